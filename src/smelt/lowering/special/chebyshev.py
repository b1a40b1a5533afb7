"""Chebyshev series on values of the compute dtype, and functions that are computed in a wider dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.lowering.dims import convert
from smelt.lowering.promotion import Constants, Function
from smelt.ops import ops


def chebyshev(c: Constants, t: Any, coefficients: Sequence[float]) -> Any:
    """``sum of coefficients[k] T_k(t)``, t in -1..1, by Clenshaw's recurrence.

    Terms below the compute dtype's precision (an eighth of the last place of the largest) are left out.
    """
    least = torch.finfo(c.dtype).eps / 8 * max(map(abs, coefficients))
    count = max(k for k, coefficient in enumerate(coefficients) if abs(coefficient) > least) + 1
    twice = ops.add(t, t)
    value, previous = c(coefficients[count - 1]), c(0)
    for coefficient in reversed(coefficients[1 : count - 1]):
        value, previous = ops.fma(twice, value, ops.sub(c(coefficient), previous)), value
    return ops.fma(t, value, ops.sub(c(coefficients[0]), previous))


def fold(c: Constants, x: Any, low: float, high: float) -> Any:
    """The variable of a series: -1..1 for x in ``low..high``."""
    middle, half = (low + high) / 2, (high - low) / 2
    return ops.fma(x, c(1 / half), c(-middle / half))


def in_float64(function: Function) -> Function:
    """Computes a function of the compute dtype in float64, for zeros and phases that float32 loses."""
    wide = Constants(torch.float64)

    def value(c: Constants, *operands: Any) -> Any:
        result = function(wide, *(convert(each, c.dtype, wide.dtype) for each in operands))
        return convert(result, wide.dtype, c.dtype)

    return value
