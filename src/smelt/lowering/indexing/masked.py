"""Operators that compact the elements selected by a mask; the size of the result is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sympy import Expr, Le

from smelt.lowering.builder import Builder
from smelt.lowering.dims import broadcast_shape, expanded, fill
from smelt.lowering.indexing.positions import compacted_place, flattened, positions_of
from smelt.lowering.numbers import constant
from smelt.lowering.registry import lowers
from smelt.lowering.shapes.views import reshape
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import as_expr, numel, unflatten
from smelt.symbolic.affine import expand

aten = torch.ops.aten


@lowers(aten.masked_scatter.default)
def masked_scatter(ctx: Builder, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The k-th element that the mask selects becomes element k of ``source``.

    RuntimeError is raised at run time if ``source`` has too few elements.
    """
    shape = ctx.shape
    wide, chosen = expanded(x, shape), expanded(mask, shape)
    count, positions = positions_of(ctx, chosen)
    given = numel(source.shape)
    if not (given - numel(shape)).is_nonnegative:
        enough = Le(ctx.item(count), given)
        ctx.check(enough, "Number of elements of source < number of ones in mask")
    values = flattened(ctx.realize(source) if len(source.shape) != 1 else source)

    def inner_fn(index: Index) -> Any:
        takes = chosen.load(index)

        def taken() -> Any:
            at = ops.indirect_index(positions.load(index), given, wrap=False, check=False)
            return values.load([at])

        return ops.where(takes, ops.masked(takes, taken, 0), wide.load(index))

    if given == 0:
        return ctx.pointwise(wide.load)
    return ctx.pointwise(inner_fn)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(ctx: Builder, grad: Tensor, mask: Tensor, sizes: Sequence[Any]) -> Tensor:
    """The gradient of ``source``: the elements of ``grad`` that the mask selects, then zeros."""
    shape = broadcast_shape(grad.shape, mask.shape)
    out = tuple(as_expr(size) for size in sizes)
    whole, chosen = expanded(grad, shape), expanded(mask, shape)
    _, positions = positions_of(ctx, chosen)
    compact = _compact(ctx, chosen, positions, numel(out), whole.load, grad.dtype, 0)
    return reshape(compact, out)


@lowers(aten.nonzero_static.default)
def nonzero_static(ctx: Builder, x: Tensor, *, size: Any, fill_value: int = -1) -> Tensor:
    """The indices of the first ``size`` nonzero elements, one row each; then rows of ``fill_value``."""
    rows, rank = as_expr(size), len(x.shape)
    if rank == 0 or any(extent == 0 for extent in x.shape):
        return fill(ctx, (rows, as_expr(rank)), torch.int64, fill_value)
    flat = flattened(x)
    _, positions = positions_of(ctx, flat)

    def number(index: Index) -> Any:
        return ops.index_expr(index[0], torch.int64)

    found = _compact(ctx, flat, positions, rows, number, torch.int64, -1)

    def coordinate(index: Index) -> Any:
        element = found.load(index[:1])
        missing = ops.lt(element, constant(0, torch.int64))
        at = ops.indirect_index(
            ops.maximum(element, constant(0, torch.int64)), flat.shape[0], wrap=False, check=False
        )
        places = [ops.index_expr(place, torch.int64) for place in unflatten(at, x.shape, {at: flat.shape[0]})]
        value = places[-1]
        for dim in range(rank - 1):
            is_dim = ops.eq(ops.index_expr(index[1], torch.int64), constant(dim, torch.int64))
            value = ops.where(is_dim, places[dim], value)
        return ops.where(missing, constant(fill_value, torch.int64), value)

    return ctx.pointwise(coordinate, shape=(rows, as_expr(rank)), dtype=torch.int64)


def _compact(
    ctx: Builder,
    mask: Tensor,
    positions: Tensor,
    size: Expr,
    value: Any,
    dtype: torch.dtype,
    rest: float | int | bool,
) -> Tensor:
    """At most ``size`` of the values ``value(index)`` at which the mask holds, compacted; then ``rest``."""
    more = expand(size + 1)
    if any(extent == 0 for extent in mask.shape):
        return fill(ctx, [size], dtype, rest)
    scattered = ctx.scatter(
        fill(ctx, [more], dtype, rest),
        value,
        lambda index: [compacted_place(mask, positions, index, size, size)],
        shape=mask.shape,
    )
    return scattered.view([size], tuple)
