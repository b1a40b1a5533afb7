"""Running sums and products of short dimensions, as one reduction over the elements before."""

from __future__ import annotations

from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import canonical_dim, compute_dtype, load_as
from smelt.lowering.registry import lowers
from smelt.lowering.structural import compare, constant_of
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import numel

aten = torch.ops.aten

_MOST_STEPS = 1 << 20
"""Above so many additions, ATen's single pass is cheaper than one reduction for each element."""


@lowers(aten.cumsum.default)
def cumsum(ctx: Builder, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _scan(ctx, x, dim, "sum", 0)


@lowers(aten.cumprod.default)
def cumprod(ctx: Builder, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _scan(ctx, x, dim, "prod", 1)


def _scan(ctx: Builder, x: Tensor, dim: int, kind: str, neutral: int) -> Tensor:
    """``out[i] = kind of x[j] for j <= i``.

    Raises:
        Unsupported: the dimension is long or dynamic; the loop IR has no scan yet.
    """
    shape, out = ctx.shape, ctx.dtype
    if not shape:
        return ctx.pointwise(lambda index: load_as(x, index, out))
    dim = canonical_dim(dim, len(shape))
    steps = numel(shape) * shape[dim]
    if not steps.is_Integer or int(steps) > _MOST_STEPS:
        raise Unsupported(f"a running {kind} over {shape[dim]} elements")
    accumulator = compute_dtype(out)

    def inner(index: Index, rindex: Index) -> Any:
        at = [*index[:dim], rindex[0], *index[dim + 1 :]]
        before = compare("le", rindex[0], index[dim])
        # Eager rounds to the result's dtype first: float64 summed as float32 is a sum of float32s.
        value = load_as(x, at, out)
        value = value if out == accumulator else ops.to_dtype(value, accumulator)
        return ops.where(before, value, ops.constant(constant_of(accumulator, neutral), accumulator))

    (total,) = ctx.reduction(kind, inner, shape=shape, reduce_shape=[shape[dim]], dtype=accumulator)
    if out == accumulator:
        return total
    return ctx.pointwise(lambda index: ops.to_dtype(total.load(index), out))
