"""Padding by a number, by reflection and by repeating the border."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr

from smelt.lowering.builder import Builder
from smelt.lowering.dims import fill
from smelt.lowering.indexing.scatter_reduce import combined, computed
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.lowering.windows.windows import Test, holds
from smelt.ops import ops
from smelt.symbolic import as_expr, is_zero

aten = torch.ops.aten


def _by_dim(pad: Sequence[Any], rank: int) -> list[tuple[Expr, Expr]]:
    """ATen's padding list (last dimension first) as (before, after) for each of ``rank`` dimensions."""
    pairs = [(as_expr(pad[at]), as_expr(pad[at + 1])) for at in range(0, len(pad), 2)]
    return [(as_expr(0), as_expr(0))] * (rank - len(pairs)) + pairs[::-1]


@lowers(aten.constant_pad_nd.default)
def constant_pad(ctx: Builder, x: Tensor, pad: Sequence[Any], value: float = 0) -> Tensor:
    """Negative padding cuts off."""
    pairs = _by_dim(pad, len(x.shape))
    dtype = x.dtype
    other = bool(value) if dtype is torch.bool else float(value) if dtype.is_floating_point else int(value)

    def inner_fn(index: Index) -> Any:
        where = [position - before for position, (before, _) in zip(index, pairs, strict=True)]
        tests: list[Test] = []
        for at, (before, after), size in zip(where, pairs, x.shape, strict=True):
            if before.is_nonpositive is not True:
                tests.append(("ge", at, as_expr(0)))
            if after.is_nonpositive is not True:
                tests.append(("lt", at, size))
        return ops.masked(holds(tests), lambda: x.load(where), other) if tests else x.load(where)

    return ctx.pointwise(inner_fn)


# -- reflection and replication ------------------------------------------------------------------------------


def _reflected(position: Expr, size: Expr) -> Any:
    """``size - 1 - |size - 1 - |position||``."""
    last = ops.index_expr(size - 1, torch.int64)
    return ops.sub(last, ops.abs(ops.sub(last, ops.abs(ops.index_expr(position, torch.int64)))))


def _clamped(position: Expr, size: Expr) -> Any:
    at = ops.maximum(ops.index_expr(position, torch.int64), ops.constant(0, torch.int64))
    return ops.minimum(at, ops.index_expr(size - 1, torch.int64))


def _border_place(
    shape: Sequence[Expr], pad: Sequence[Any], source: Callable[[Expr, Expr], Any]
) -> Callable[[Index], list[Expr]]:
    """Where a padded tensor's element comes from; dimensions without padding keep their plain index."""
    pairs = _by_dim(pad, len(shape))

    def place(index: Index) -> list[Expr]:
        return [
            at
            if is_zero(before) and is_zero(after)
            else ops.indirect_index(source(at - before, size), size, wrap=False, check=False)
            for at, (before, after), size in zip(index, pairs, shape, strict=True)
        ]

    return place


def _border_gradient(
    ctx: Builder, grad: Tensor, x: Tensor, padding: Sequence[Any], source: Callable[[Expr, Expr], Any]
) -> Tensor:
    base = fill(ctx, x.shape, grad.dtype, 0)
    place = _border_place(x.shape, padding, source)
    return combined(ctx, base, "sum", computed(grad.load, grad.dtype), place, grad.shape)


@lowers(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def replication_pad_backward(ctx: Builder, grad: Tensor, x: Tensor, padding: Sequence[Any]) -> Tensor:
    return _border_gradient(ctx, grad, x, padding, _clamped)
