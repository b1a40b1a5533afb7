"""Recipes for `smelt.tir.Schedule.apply`: those that smelt's own scheduler has."""

from smelt.schedule.recipes import matmul

__all__ = ["matmul"]
