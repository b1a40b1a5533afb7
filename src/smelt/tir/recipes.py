"""Recipes for `smelt.tir.Schedule.apply`: those that smelt's own scheduler has."""

from smelt.schedule.recipes import attention, attention_gradients, convolution, dots, few_rows, matmul

__all__ = ["attention", "attention_gradients", "convolution", "dots", "few_rows", "matmul"]
