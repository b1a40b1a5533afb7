"""Conditions on sizes that are checked at run time: ``torch._check`` and ``aten._assert_scalar``."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert
from smelt.lowering.registry import lowers, lowers_own
from smelt.lowering.tensor import Index, Tensor
from smelt.symbolic import as_expr

aten = torch.ops.aten


@lowers(aten._assert_scalar.default)
def assert_scalar(ctx: Builder, condition: Any, message: str) -> None:
    """Raise RuntimeError with ``message`` at run time if a condition on sizes is false (or a size is 0)."""
    ctx.check(_truth(condition), message)


@lowers_own(aten._assert_async.default, aten._assert_async.msg)
def assert_async(ctx: Builder, condition: Tensor, message: str = "Expected a nonzero value") -> None:
    """Raise RuntimeError with ``message`` at run time if a tensor of one element holds a zero."""
    ctx.check(sympy.Ne(ctx.item(_as_number(ctx, condition)), 0), message)


def _as_number(ctx: Builder, condition: Tensor) -> Tensor:
    """1 if the element is true, else 0."""
    first = (sympy.Integer(0),) * len(condition.shape)

    def truth(index: Index) -> Any:
        found = convert(condition.load(first), condition.dtype, torch.bool)
        return convert(found, torch.bool, torch.int64)

    return ctx.pointwise(truth, shape=(), dtype=torch.int64)


def _truth(value: Any) -> Any:
    if isinstance(value, (bool, int, float)):
        return sympy.true if value else sympy.false
    return sympy.Ne(value, 0) if isinstance(value, Expr) else value


@lowers(aten.sym_constrain_range.default)
def sym_constrain_range(ctx: Builder, size: Any, *, min: int | None = None, max: int | None = None) -> None:
    _within(ctx, size, min, max)


@lowers(aten.sym_constrain_range_for_size.default)
def sym_constrain_range_for_size(
    ctx: Builder, size: Any, *, min: int | None = None, max: int | None = None
) -> None:
    _within(ctx, size, 0 if min is None else min, max)


def _within(ctx: Builder, size: Any, low: int | None, high: int | None) -> None:
    """Raise RuntimeError at run time unless ``low <= size <= high`` (``at::native::sym_constrain_range``)."""
    least, most = "-inf" if low is None else low, "inf" if high is None else high
    message = f"Invalid value range for {size} between [{least}, {most}]."
    if low is not None:
        ctx.check(at_least(size, low), message)
    if high is not None:
        ctx.check(at_least(high, size), message)


def as_traced(ctx: Builder, size: Any, known: Any) -> None:
    """Raise RuntimeError at run time unless a data-dependent size has the value known from ``torch._check``.

    PyTorch replaces the symbol by the known size everywhere, also in the assertion itself.
    """
    ctx.check(equal(size, known), f"Runtime assertion failed: a size that depends on data is not {known}")


def at_least(size: Any, least: Any) -> Any:
    """The condition ``size >= least``."""
    return sympy.Ge(_plain(size), _plain(least))


def equal(left: Any, right: Any) -> Any:
    """The condition ``left == right``."""
    return sympy.Eq(_plain(left), _plain(right))


def _plain(size: Any) -> Expr:
    """A size over symbols without assumptions, so that SymPy does not decide the condition to be checked."""
    expr = as_expr(size)
    return expr.xreplace({symbol: sympy.Symbol(symbol.name, integer=True) for symbol in expr.free_symbols})
