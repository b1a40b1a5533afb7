"""Floating arithmetic in size expressions: ``1 / s0`` as a factor, ``int(s0 * 0.5)`` as a size."""

from __future__ import annotations

from typing import Any

import sympy

DIVISIONS = frozenset({"FloatTrueDiv", "IntTrueDiv"})
ROUNDINGS = frozenset({"CeilToInt", "FloorToInt", "RoundToInt", "TruncToInt"})
"""Functions from a floating number to an integer; RoundToInt rounds half to even."""

_FUNCTIONS = DIVISIONS | {"FloatPow", "OpaqueUnaryFn_sqrt", "RoundDecimal", "ToFloat"}


def is_floating(expr: Any) -> bool:
    """Whether an expression on sizes is a floating number to Python.

    >>> n = sympy.Symbol("n", integer=True)
    >>> is_floating(0.5 * n), is_floating(2 * n), is_floating(sympy.Max(n, 1))
    (True, False, False)
    """
    if isinstance(expr, sympy.Float) or expr.func.__name__ in _FUNCTIONS:
        return True
    return isinstance(expr, (sympy.Add, sympy.Mul, sympy.Pow)) and any(map(is_floating, expr.args))
