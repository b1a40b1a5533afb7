"""Running sums, products, extremes and log-sums: one scan along a dimension each.

Numbers are accumulated as ATen does on CPUs (``at::acc_type``): float32 in float64, float16 and bfloat16 in
float32, and rounded to the result's dtype element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.loops.reductions import greatest, least
from smelt.lowering.builder import Builder
from smelt.lowering.dims import canonical_dim, cast, compute_dtype, convert, fill, load_as
from smelt.lowering.registry import lowers
from smelt.lowering.running import associative_scan
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops

aten = torch.ops.aten


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of ATen's running sum of ``dtype`` on a CPU (``at::acc_type<dtype, false>``).

    >>> accumulate_dtype(torch.float32), accumulate_dtype(torch.bfloat16), accumulate_dtype(torch.int64)
    (torch.float64, torch.float32, torch.int64)
    """
    return torch.float64 if dtype is torch.float32 else compute_dtype(dtype)


# -- sums and products ---------------------------------------------------------------------------------------


@lowers(aten.cumsum.default)
def cumsum(ctx: Builder, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _running(ctx, x, dim, "add", 0)


@lowers(aten.cumprod.default)
def cumprod(ctx: Builder, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _running(ctx, x, dim, "mul", 1)


def _running(ctx: Builder, x: Tensor, dim: int, name: str, first: int) -> Tensor:
    out = ctx.dtype
    if out is torch.bool:
        raise Unsupported("a running sum or product of booleans")
    dim = canonical_dim(dim, len(x.shape))
    if not x.shape:
        return cast(ctx, x, out)
    wide = accumulate_dtype(out)

    def element(index: Index) -> Any:
        # Eager rounds to the result's dtype first: float64 summed as float32 is a sum of float32s.
        return convert(load_as(x, index, out), out, wide)

    return _single(ctx, element, getattr(ops, name), x, dim, wide, constant_of(wide, first))


def _single(
    ctx: Builder,
    element: Callable[[Index], Any],
    combine: Callable[[Any, Any], Any],
    x: Tensor,
    dim: int,
    wide: torch.dtype,
    first: float,
) -> Tensor:
    """The current node's result: a scan of one part in ``wide``, rounded to the result's dtype."""
    out = ctx.dtype
    return associative_scan(
        ctx,
        lambda index: [element(index)],
        lambda before, after: [combine(before[0], after[0])],
        shape=x.shape,
        dim=dim,
        state=[(wide, first)],
        dtypes=[out],
        finish=lambda index, state: [convert(state[0], wide, out)],
    )[0]


def constant_of(dtype: torch.dtype, number: int) -> float | int:
    """A whole number as the Python number that constants of ``dtype`` hold."""
    return float(number) if dtype.is_floating_point else number


# -- extremes with their positions ---------------------------------------------------------------------------


@lowers(aten.cummax.default)
def cummax(ctx: Builder, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extreme(ctx, x, dim, "ge", least(x.dtype))


@lowers(aten.cummin.default)
def cummin(ctx: Builder, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extreme(ctx, x, dim, "le", greatest(x.dtype))


def _extreme(
    ctx: Builder, x: Tensor, dim: int, reaches: str, first: float | int | bool
) -> tuple[Tensor, Tensor]:
    """The last of equal elements wins; after a NaN only a NaN wins (ATen's ``cummax_cummin_helper``)."""
    at = canonical_dim(dim, len(x.shape))
    if not x.shape:
        return x, fill(ctx, (), torch.int64, 0)
    wide = compute_dtype(x.dtype)

    def element(index: Index) -> list[Any]:
        return [load_as(x, index, wide), ops.index_expr(index[at], torch.int64)]

    def combine(before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
        takes = getattr(ops, reaches)(after[0], before[0])
        if wide.is_floating_point:
            takes = ops.logical_or(takes, ops.isnan(after[0]))
        return [ops.where(takes, *both) for both in zip(after, before)]

    values, places = associative_scan(
        ctx,
        element,
        combine,
        shape=x.shape,
        dim=at,
        state=[(wide, first), (torch.int64, 0)],
        dtypes=[x.dtype, torch.int64],
        finish=lambda index, state: [convert(state[0], wide, x.dtype), state[1]],
    )
    return values, places


# -- logarithms of sums --------------------------------------------------------------------------------------


@lowers(aten.logcumsumexp.default)
def logcumsumexp(ctx: Builder, x: Tensor, dim: int) -> Tensor:
    """``log(sum(exp(x)))`` so far: log1p(exp(least - most)) + most for the two operands.

    Two equal infinities are their own sum; NaN stays.
    """
    out = ctx.dtype
    wide, dim = accumulate_dtype(out), canonical_dim(dim, len(x.shape))
    if not x.shape:
        return cast(ctx, x, out)

    def combine(before: Any, value: Any) -> Any:
        most, less = ops.maximum(value, before), ops.minimum(value, before)
        total = ops.add(ops.log1p(ops.exp(ops.sub(less, most))), most)
        endless = ops.logical_and(ops.eq(less, most), ops.isinf(less))
        return ops.where(endless, value, total)

    return _single(ctx, lambda index: load_as(x, index, wide), combine, x, dim, wide, float("-inf"))
