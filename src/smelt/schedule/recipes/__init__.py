"""Recipes: short functions over a schedule's steps that make the nests of a family, for a target.

A person calls them as smelt does: ``tir.Schedule(func).apply(recipes.matmul)``.
"""

from smelt.schedule.recipes.attention import attention
from smelt.schedule.recipes.attention_gradients import attention_gradients
from smelt.schedule.recipes.convolution import convolution
from smelt.schedule.recipes.dots import dots
from smelt.schedule.recipes.few_rows import few_rows
from smelt.schedule.recipes.matmul import matmul

__all__ = ["attention", "attention_gradients", "convolution", "dots", "few_rows", "matmul"]
