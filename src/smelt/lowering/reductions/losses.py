"""Losses that look up classes: a class out of range raises IndexError, as in eager."""

from __future__ import annotations

from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import cast, compute_dtype, convert, fill
from smelt.lowering.reductions.reductions import reduce
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(
    ctx: Builder, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """``-x[n, target[n, …], …]`` times the class's weight, 0 for ignored targets.

    x (C,) or (N, C, *), target without C. The second result is the sum of the weights; without reduction
    it is 0 for (N, C, *).
    """
    if target.dtype not in (torch.int64, torch.uint8):
        raise Unsupported(f"a target of {target.dtype}: eager refuses it")
    channel = 0 if len(x.shape) == 1 else 1
    compute = compute_dtype(x.dtype)

    def chosen(index: Index) -> tuple[Any, Expr]:
        wanted = convert(target.load(index if target.shape else ()), target.dtype, torch.int64)
        counts = ops.ne(wanted, ops.constant(ignore_index, torch.int64))
        safe = ops.where(counts, wanted, ops.constant(0, torch.int64))
        return counts, ops.indirect_index(safe, x.shape[channel], wrap=False)

    def weigh(at: Expr) -> Any:
        if weight is None:
            return ops.constant(1.0, compute)
        return convert(weight.load((at,)), weight.dtype, compute)

    def loss(index: Index) -> Any:
        counts, at = chosen(index)
        seen = x.load([*index[:channel], at, *index[channel:]] if target.shape else [at])
        value = ops.neg(convert(seen, x.dtype, compute))
        value = value if weight is None else ops.mul(value, weigh(at))
        return ops.where(counts, value, ops.constant(0.0, compute))

    def share(index: Index) -> Any:
        counts, at = chosen(index)
        return ops.where(counts, weigh(at), ops.constant(0.0, compute))

    if reduction == NONE and len(x.shape) > 1:
        result = ctx.pointwise(
            lambda i: convert(loss(i), compute, x.dtype), shape=target.shape, dtype=x.dtype
        )
        return result, fill(ctx, (), x.dtype, 0)
    every = range(len(target.shape))
    (total,) = reduce(ctx, "sum", target.shape, every, loss, compute)
    (shares,) = reduce(ctx, "sum", target.shape, every, share, compute)
    if reduction == MEAN:
        parts = total, shares
        total = ctx.pointwise(
            lambda i: ops.truediv(parts[0].load(i), parts[1].load(i)), shape=(), dtype=compute
        )
    return cast(ctx, total, x.dtype), cast(ctx, shares, x.dtype)
