"""Recipes: short functions over a schedule's steps that make the nests of a family, for a target.

A person calls them as smelt does: ``tir.Schedule(func).apply(recipes.matmul)``.
"""

from smelt.schedule.recipes.dots import dots
from smelt.schedule.recipes.few_rows import few_rows
from smelt.schedule.recipes.matmul import matmul

__all__ = ["dots", "few_rows", "matmul"]
