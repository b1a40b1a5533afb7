"""Recipes: short functions over a schedule's steps that make the nests of a family, for a target.

A person calls them as smelt does: ``tir.Schedule(func).apply(recipes.matmul)``.
"""

from smelt.schedule.recipes.matmul import matmul

__all__ = ["matmul"]
