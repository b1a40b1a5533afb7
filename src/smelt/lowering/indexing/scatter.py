"""Writes at positions held by other tensors: index_put, scatter, index_copy, put, max_unpool.

Elements are stored in row-major order of the indices, so that the last of duplicates wins. Operators that
combine elements are in `smelt.lowering.indexing.scatter_reduce`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Symbol

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import (
    canonical_dim,
    expanded,
    fill,
    load_as,
)
from smelt.lowering.indexing.data_sizes import count_of, flat, mask_among, put_by_mask, without_mask
from smelt.lowering.indexing.indexing import AdvancedIndex, Indices, along, position, require_int64
from smelt.lowering.indexing.scatter_reduce import combined, computed, rows, rows_of, source_at
from smelt.lowering.layouts import dense_order, strides_of
from smelt.lowering.promotion import Operand, loader
from smelt.lowering.registry import lowers
from smelt.lowering.shapes.views import reshape
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import Expr, as_expr, flatten, is_one, numel, unflatten

aten = torch.ops.aten


# -- index_put -----------------------------------------------------------------------------------------------


@lowers(aten.index_put.default)
def index_put(ctx: Builder, x: Tensor, indices: Indices, values: Tensor, accumulate: bool = False) -> Tensor:
    mask = _only_mask(indices)
    if mask is not None and not accumulate and all(is_one(size) for size in values.shape):
        return _fill_where(ctx, x, *mask, values)
    place = mask_among(ctx, indices, x)
    if place is not None:
        chosen = indices[place]
        assert chosen is not None
        if all(entry is None for entry in (*indices[:place], *indices[place + 1 :])):
            return put_by_mask(ctx, x, place, chosen, values, accumulate)
        indices = without_mask(ctx, indices, place, count_of(ctx, flat(ctx, chosen)))
    advanced = AdvancedIndex(x.shape, indices)
    return _put(ctx, x, advanced, values, accumulate)


def _put(ctx: Builder, x: Tensor, advanced: AdvancedIndex, values: Tensor, accumulate: bool) -> Tensor:
    wide = expanded(values, advanced.shape)

    def load(index: Index) -> Any:
        return load_as(wide, index, x.dtype)

    if accumulate:
        return combined(ctx, x, "sum", computed(load, x.dtype), advanced.place, advanced.shape)
    return ctx.scatter(x, load, advanced.place, shape=advanced.shape)


def _only_mask(indices: Indices) -> tuple[int, Tensor] | None:
    """(first dimension, mask) if the indices are one boolean mask, else None."""
    given = [(dim, entry) for dim, entry in enumerate(indices) if entry is not None]
    return given[0] if len(given) == 1 and given[0][1].dtype is torch.bool else None


def _fill_where(ctx: Builder, x: Tensor, first: int, mask: Tensor, value: Tensor) -> Tensor:
    """``x[:, mask] = number``: elementwise, although the number of positions is unknown."""
    rank = len(mask.shape)
    origin = [as_expr(0)] * len(value.shape)

    def inner_fn(index: Index) -> Any:
        return ops.where(
            mask.load(index[first : first + rank]), load_as(value, origin, x.dtype), x.load(index)
        )

    return ctx.pointwise(inner_fn, shape=x.shape, dtype=x.dtype)


# -- scatter -------------------------------------------------------------------------------------------------


def _scatter(ctx: Builder, x: Tensor, dim: int, index: Tensor, value: Callable[[Index], Any]) -> Tensor:
    if any(size == 0 for size in index.shape):  # of any rank
        return ctx.pointwise(x.load, shape=x.shape, dtype=x.dtype)
    return ctx.scatter(x, value, along(x.shape, canonical_dim(dim, len(x.shape)), index), shape=index.shape)


@lowers(aten.scatter.src)
def scatter_source(ctx: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(ctx, x, dim, index, source_at(src, index))


@lowers(aten.scatter.value)
def scatter_value(ctx: Builder, x: Tensor, dim: int, index: Tensor, value: Operand) -> Tensor:
    return _scatter(ctx, x, dim, index, loader(value, x.dtype, x.dtype))


# -- along one dimension -------------------------------------------------------------------------------------


@lowers(aten.index_copy.default)
def index_copy(ctx: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    require_int64(index)
    place, shape = rows(x.shape, dim, index)
    return ctx.scatter(x, rows_of(source, len(x.shape)), place, shape=shape)


@lowers(aten.index_fill.int_Scalar)
def index_fill(ctx: Builder, x: Tensor, dim: int, index: Tensor, value: Operand) -> Tensor:
    require_int64(index)
    place, shape = rows(x.shape, dim, index, wrap=True)
    return ctx.scatter(x, loader(value, x.dtype, x.dtype), place, shape=shape)


@lowers(aten.index_fill.int_Tensor)
def index_fill_tensor(ctx: Builder, x: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    require_int64(index)
    place, shape = rows(x.shape, dim, index, wrap=True)
    return ctx.scatter(x, lambda at: load_as(value, (), x.dtype), place, shape=shape)


# -- at places in memory -------------------------------------------------------------------------------------


@lowers(aten.put.default)
def put(ctx: Builder, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Element k of ``source`` goes to (or is added to) the row-major position ``index[k]`` of ``x``."""
    require_int64(index)
    if any(size == 0 for size in (*index.shape, *x.shape)):
        return ctx.pointwise(x.load, shape=x.shape, dtype=x.dtype)
    values, total = reshape(source, index.shape), numel(x.shape)

    def place(at: Index) -> list[Expr]:
        flat = position(index, at, total, wrap=True)
        return unflatten(flat, x.shape, {flat: total})

    if accumulate:
        return combined(ctx, x, "sum", computed(values.load, x.dtype), place, index.shape)
    return ctx.scatter(x, values.load, place, shape=index.shape)


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    ctx: Builder,
    x: Tensor,
    src: Tensor,
    size: Sequence[Any],
    stride: Sequence[Any],
    storage_offset: Any = None,
) -> Tensor:
    """``x`` with ``src`` at the places of its memory (in eager's layout) that strides and offset reach."""
    own, shape = strides_of(ctx.operand), [as_expr(extent) for extent in size]
    order = dense_order(x.shape, own)
    if order is None:
        raise Unsupported("as_strided_scatter into a tensor whose memory has holes")
    start = as_expr(0)
    if storage_offset is not None:
        start = as_expr(storage_offset) - as_expr(ctx.operand.storage_offset())
    strides = [as_expr(step) for step in stride]

    def place(index: Index) -> list[Expr]:
        extents = {i: n for i, n in zip(index, shape) if isinstance(i, Symbol)}
        flat = flatten(index, strides, start)
        at = dict(zip(order, unflatten(flat, [x.shape[dim] for dim in order], extents)))
        return [at.get(dim, as_expr(0)) for dim in range(len(x.shape))]

    return ctx.scatter(x, src.load, place, shape=shape)


@lowers(aten.max_unpool2d.default)
def max_unpool2d(ctx: Builder, x: Tensor, indices: Tensor, output_size: Sequence[Any]) -> Tensor:
    return _max_unpool(ctx, x, indices, output_size)


@lowers(aten.max_unpool3d.default)
def max_unpool3d(
    ctx: Builder,
    x: Tensor,
    indices: Tensor,
    output_size: Sequence[Any],
    stride: Sequence[Any],
    padding: Sequence[Any],
) -> Tensor:
    return _max_unpool(ctx, x, indices, output_size)


def _max_unpool(ctx: Builder, x: Tensor, indices: Tensor, output_size: Sequence[Any]) -> Tensor:
    """Zeros, with each element at the row-major position in its plane that its index holds.

    Indices out of range raise RuntimeError. The last of several elements at one position wins.
    """
    plane = tuple(as_expr(size) for size in output_size)
    outer, total = len(x.shape) - len(plane), numel(plane)

    def place(at: Index) -> list[Expr]:
        flat = position(indices, at, total, wrap=False, check="RuntimeError")
        return [*at[:outer], *unflatten(flat, plane, {flat: total})]

    return ctx.scatter(fill(ctx, ctx.shape, x.dtype, 0), x.load, place, shape=x.shape)


# -- gradients of views -----------------------------------------------------------------------------------
