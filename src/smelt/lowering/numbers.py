"""Numbers in loop functions that depend on sizes: ``1 / x.shape[0]`` as a factor."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.tensor import HeldNumber, Index
from smelt.ops import ops


def symbolic_number(expr: Expr, dtype: torch.dtype) -> Callable[[Index], Any]:
    """A loop function for a size expression, or for floating arithmetic on sizes (``1 / (s0 * s1)``).

    Raises:
        Unsupported: an arithmetic that smelt has no rule for.
    """
    if expr.is_integer:
        return lambda index: ops.index_expr(expr, dtype)
    _floating(expr, check=True)
    return lambda index: ops.to_dtype(_floating(expr), dtype)


def _floating(expr: Expr, check: bool = False) -> Any:
    """``expr`` in float64; with ``check``, only whether there is a rule for it."""
    kind = expr.func.__name__
    if expr.is_number:
        return None if check else ops.constant(float(expr), torch.float64)
    if isinstance(expr, HeldNumber):
        return None if check else ops.to_dtype(expr.load(), torch.float64)
    if expr.is_integer:
        return None if check else ops.index_expr(expr, torch.float64)
    if kind == "ToFloat":
        return _floating(expr.args[0], check)
    binary = {"Add": "add", "Mul": "mul", "FloatPow": "pow"}
    binary |= {"FloatTrueDiv": "truediv", "IntTrueDiv": "truediv"}
    if kind in binary:
        values = [_floating(arg, check) for arg in expr.args]
        return None if check else reduce(lambda a, b: getattr(ops, binary[kind])(a, b), values)
    if kind == "OpaqueUnaryFn_sqrt":
        value = _floating(expr.args[0], check)
        return None if check else ops.sqrt(value)
    raise Unsupported(f"the number {expr}, which depends on sizes")


def constant(value: float | int | bool | Expr, dtype: torch.dtype) -> Any:
    """``ops.constant`` with the number converted to the dtype's kind, or a number that depends on sizes."""
    if isinstance(value, Expr):
        return symbolic_number(value, dtype)(())
    if dtype is torch.bool:
        return ops.constant(bool(value), dtype)
    return ops.constant(float(value) if dtype.is_floating_point else int(value), dtype)
