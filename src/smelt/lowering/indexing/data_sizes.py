"""Results whose size depends on data: nonzero, selection by mask, and repetitions.

A running count gives the number of true elements and the position of each in the result
(`smelt.lowering.indexing.positions`). Python reads the count, and binds the size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.checks import as_traced, at_least, equal
from smelt.lowering.dims import (
    broadcast_index,
    broadcast_shape,
    compute_dtype,
    convert,
    expanded,
    fill,
    load_as,
)
from smelt.lowering.indexing.positions import compacted_place, flattened, positions_of
from smelt.lowering.numbers import constant
from smelt.lowering.reductions.reductions import is_nonzero
from smelt.lowering.registry import lowers
from smelt.lowering.running import associative_scan, running_sum
from smelt.lowering.shapes.structural import compare
from smelt.lowering.shapes.views import reshape
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import as_expr, numel, same, unflatten

aten = torch.ops.aten

MASKS = (torch.bool, torch.uint8)
"""The dtypes of masks."""


# -- counting ------------------------------------------------------------------------------------------------


def flat(ctx: Builder, x: Tensor) -> Tensor:
    """`flattened`, memoized: the same Tensor for the same ``x``, so that facts about it are found again."""
    found = ctx.memo.get(("flat", x))
    if found is None:
        found = ctx.memo["flat", x] = flattened(x)
    return found


def counted(ctx: Builder, mask: Tensor) -> tuple[Tensor, Tensor]:
    """`positions_of` a 1-d mask, memoized."""
    found = ctx.memo.get(("positions", mask))
    if found is None:
        found = ctx.memo["positions", mask] = positions_of(ctx, mask)
    return found


def count_of(ctx: Builder, mask: Tensor) -> Expr:
    """The number of nonzero elements of a 1-d mask, read while the graph runs."""
    known = ctx.memo.get(("count", mask))
    if known is None:
        known = ctx.memo["count", mask] = ctx.item(counted(ctx, mask)[0])
    return known


def bind_count(ctx: Builder, mask: Tensor, dim: int = 0, output: int | None = None) -> Expr:
    """Bind dimension ``dim`` of the current result to the number of nonzero elements of a 1-d mask.

    RuntimeError is raised at run time if tracing knew the size (``torch._check(z.size(0) == 4)``) and it
    differs.
    """
    symbol = ctx.unbound_size(dim, output)
    meta = ctx.result if output is None else ctx.result[output]
    size = as_expr(meta.shape[dim])
    if symbol is not None:
        ctx.bind_item(symbol, counted(ctx, mask)[0])
        ctx.memo["count", mask] = size
    else:
        as_traced(ctx, count_of(ctx, mask), size)
    return size


def compacted(
    ctx: Builder, mask: Tensor, value: Callable[[Index], Any], dtype: torch.dtype, size: Expr
) -> Tensor:
    """The values at which a 1-d mask is nonzero, in order: ``size`` elements, one for each.

    All other elements are written to one extra element at the end.
    """
    _, places = counted(ctx, mask)
    kept = ctx.scatter(
        fill(ctx, [size + 1], dtype, 0),
        value,
        lambda index: [compacted_place(mask, places, index, size)],
        shape=mask.shape,
    )
    return kept.view((size,), tuple)


def chosen_positions(ctx: Builder, mask: Tensor, size: Expr) -> Tensor:
    """The positions at which a 1-d mask is nonzero: int64, ascending, ``size`` of them."""
    found = ctx.memo.get(("where", mask))
    if found is None:
        found = compacted(ctx, mask, lambda index: ops.index_expr(index[0], torch.int64), torch.int64, size)
        ctx.memo["where", mask] = found
    return found


def _coordinates(where: Tensor, index: Index, shape: Sequence[Expr]) -> list[Any]:
    """The coordinates, as int64 values, of the row-major position that ``where`` holds."""
    count = numel(shape)
    place = ops.indirect_index(where.load(index), count, wrap=False, check=False)
    return [ops.index_expr(each, torch.int64) for each in unflatten(place, shape, {place: count})]


# -- positions of true elements, and their values ------------------------------------------------------------


@lowers(aten.nonzero.default)
def nonzero(ctx: Builder, x: Tensor) -> Tensor:
    line = flat(ctx, x)
    where = chosen_positions(ctx, line, bind_count(ctx, line))

    def inner(index: Index) -> Any:
        if not x.shape:
            return constant(0, torch.int64)  # never computed: the result has no columns
        found = _coordinates(where, index[:1], x.shape)
        value = found[-1]
        for dim, coordinate in enumerate(found[:-1]):
            value = ops.where(compare("eq", index[1], as_expr(dim)), coordinate, value)
        return value

    return ctx.pointwise(inner)


@lowers(aten.masked_select.default)
def masked_select(ctx: Builder, x: Tensor, mask: Tensor) -> Tensor:
    shape = broadcast_shape(x.shape, mask.shape)
    chosen, values = flattened(expanded(mask, shape)), flattened(expanded(x, shape))
    return compacted(ctx, chosen, values.load, x.dtype, bind_count(ctx, chosen))


def index_by_mask(ctx: Builder, x: Tensor, mask: Tensor) -> Tensor:
    """``x[mask]`` for a mask of ``x``'s shape."""
    chosen, values = flat(ctx, mask), flattened(x)
    return compacted(ctx, chosen, values.load, x.dtype, bind_count(ctx, chosen))


_OTHER_MASK = "The shape of the mask does not match the shape of the indexed tensor"


def mask_among(ctx: Builder, indices: Sequence[Tensor | None], x: Tensor) -> int | None:
    """The place of the only mask among advanced indices; None if there is none. Sizes unknown while compiling
    are checked at run time.

    Raises:
        Unsupported: there are several masks, a 0-d one, or one that does not fit.
    """
    places = [place for place, entry in enumerate(indices) if entry is not None and entry.dtype in MASKS]
    if not places:
        return None
    first = places[0]
    mask = indices[first]
    assert mask is not None
    if len(places) > 1 or not mask.shape:
        raise Unsupported("indexing by several masks, or by a single truth value")
    indexed = x.shape[first : first + len(mask.shape)]
    if len(indexed) < len(mask.shape):
        raise Unsupported("a mask of more dimensions than what it indexes")
    for own, size in zip(mask.shape, indexed):
        if own.is_Integer and size.is_Integer and own != size:
            raise Unsupported("a mask of another shape than what it indexes")
        if not same(own, size):
            ctx.check(equal(own, size), _OTHER_MASK, "IndexError")
    return first


def without_mask(
    ctx: Builder, indices: Sequence[Tensor | None], place: int, size: Expr
) -> list[Tensor | None]:
    """Advanced indices with the mask at ``place`` as ``size`` positions in each of its dimensions."""
    mask = indices[place]
    assert mask is not None
    shape = mask.shape
    where = chosen_positions(ctx, flat(ctx, mask), size)
    found: list[Tensor | None] = [where]
    if len(shape) > 1:

        def coordinate(dim: int) -> Callable[[Index], Any]:
            return lambda index: _coordinates(where, index, shape)[dim]

        found = [
            ctx.pointwise(coordinate(dim), shape=(size,), dtype=torch.int64) for dim in range(len(shape))
        ]
    return [*indices[:place], *found, *indices[place + 1 :]]


def put_by_mask(
    ctx: Builder, x: Tensor, place: int, mask: Tensor, values: Tensor, accumulate: bool
) -> Tensor:
    """``x`` with the k-th of ``values`` at the k-th nonzero element of a mask.

    The mask has the dimensions from ``place`` on. RuntimeError is raised unless the number of values is that
    of nonzero elements.
    """
    rank, after = len(mask.shape), len(x.shape) - place - len(mask.shape)
    own = values.shape[len(values.shape) - 1 - after] if len(values.shape) > after else as_expr(1)
    order = None
    if own != 1:
        line = flat(ctx, mask)
        order = reshape(counted(ctx, line)[1], mask.shape)
        message = "shape mismatch: value tensor cannot be broadcast to indexing result"
        ctx.check(equal(count_of(ctx, line), own), message)
    compute = compute_dtype(x.dtype)

    def value(index: Index) -> Any:
        k = as_expr(0)
        if order is not None:
            k = ops.indirect_index(order.load(index[place : place + rank]), own, wrap=False, check=False)
        at = [*index[:place], k, *index[place + rank :]]
        return values.load(broadcast_index(at, values.shape))

    def inner(index: Index) -> Any:
        old = x.load(index)
        takes = is_nonzero(mask, index[place : place + rank])
        given = convert(ops.masked(takes, lambda: value(index), 0), values.dtype, x.dtype)
        if accumulate:
            add = ops.maximum if x.dtype is torch.bool else ops.add
            total = add(convert(old, x.dtype, compute), convert(given, x.dtype, compute))
            given = convert(total, compute, x.dtype)
        return ops.where(takes, given, old)

    return ctx.pointwise(inner, shape=x.shape, dtype=x.dtype)


# -- repetitions ---------------------------------------------------------------------------------------------


@lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(ctx: Builder, repeats: Tensor, *, output_size: Any = None) -> Tensor:
    """Position ``i``, ``repeats[i]`` times.

    Element ``k`` is the number of positions whose repetitions end before it. RuntimeError is raised if a
    number of repetitions is negative, or ``output_size`` is not their sum.
    """
    count, out = repeats.shape[0], ctx.dtype

    ends, least = associative_scan(
        ctx,
        lambda index: [load_as(repeats, index, torch.int64)] * 2,
        lambda before, after: [ops.add(before[0], after[0]), ops.minimum(before[1], after[1])],
        shape=(count,),
        dim=0,
        state=[(torch.int64, 0)] * 2,
        dtypes=[torch.int64, torch.int64],
    )
    ctx.check(at_least(ctx.item(_last(ctx, least)), 0), "repeats can not be negative")
    symbol, size = ctx.unbound_size(0), ctx.shape[0]
    if symbol is not None:
        ctx.bind_item(symbol, _last(ctx, ends))
    else:
        ctx.check(equal(ctx.item(_last(ctx, ends)), size), "allocated size does not match required size")

    def end(index: Index) -> list[Expr]:
        return [ops.indirect_index(ends.load(index), size + 1, wrap=False, check=False)]

    zeros = fill(ctx, [size + 1], torch.int64, 0)
    ended = ctx.scatter(zeros, lambda index: constant(1, torch.int64), end, shape=(count,), mode="add")

    return running_sum(
        ctx,
        ended.load,
        shape=(size,),
        finish=lambda index, passed: convert(passed, torch.int64, out),
        out=out,
    )


def _last(ctx: Builder, x: Tensor) -> Tensor:
    """The last element of a 1-d int64 tensor, 0-d; 0 if the tensor is empty."""
    size = x.shape[0]
    if size.is_positive:
        return x.view((), lambda index: [size - 1])
    if size == 0:
        return fill(ctx, (), torch.int64, 0)

    def inner(index: Index) -> Any:
        return ops.masked(compare("gt", size, as_expr(0)), lambda: x.load([size - 1]), 0)

    return ctx.pointwise(inner, shape=(), dtype=torch.int64)
