"""Recipes for `smelt.tir.Schedule.apply`: those that smelt's own scheduler has."""

from smelt.schedule.recipes import dots, few_rows, matmul

__all__ = ["dots", "few_rows", "matmul"]
