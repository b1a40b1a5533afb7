"""Helpers for reductions, shared by several targets."""

from __future__ import annotations

import math

import sympy
from sympy import Expr

from smelt.errors import Unsupported
from smelt.loops.reductions import MODES
from smelt.mlir.arrays.dialect import Array, ArrayDialect

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)

COMBINED = {**MODES, "any": "logical_or", "all": "logical_and", "xor_sum": "bitwise_xor"}
"""Reduction → the elementwise row that combines two elements."""


def divisor(size: Expr, longest: int) -> int | None:
    """The part size of sums of more than ``longest`` elements: the largest divisor of ``size`` up to its
    square root. None if the sum is not so long, its size is unknown, or the divisor is below 16."""
    if not size.is_Integer or size <= longest:
        return None
    return next((part for part in range(math.isqrt(int(size)), 15, -1) if size % part == 0), None)


def split(dialect: ArrayDialect, x: Array, dim: int, part: int) -> Array:
    """``x`` with dimension ``dim`` split into parts of ``part`` elements."""
    halves = (x.shape[dim] / part, sympy.Integer(part))
    return dialect.reshape(x, (*x.shape[:dim], *halves, *x.shape[dim + 1 :]))


def halved(dialect: ArrayDialect, name: str, x: Array, dim: int) -> Array:
    """Combine one half with the other until one element is left; a 0 makes an odd size even.

    Raises:
        Unsupported: the size is unknown.
    """
    if not x.shape[dim].is_Integer:
        raise Unsupported(f"a {name} of so many elements as only the run shows")
    while x.shape[dim] != 1:
        half = sympy.Integer((int(x.shape[dim]) + 1) // 2)
        spare = [ZERO] * x.rank
        spare[dim] = 2 * half - x.shape[dim]
        if spare[dim] != 0:
            x = dialect.pad(x, (ZERO,) * x.rank, tuple(spare), 0)
        parts = [dialect.part(x, dim, start, half) for start in (ZERO, half)]
        x = dialect.apply(name, *parts)
    return x
