"""Writing at positions that other tensors hold: index_put, scatter, index_add, embedding's gradient.

Elements are stored in row-major order of the indices, so that the last of duplicates wins and sums have
one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder, constant
from smelt.lowering.data_sizes import count_of, flat, mask_among, put_by_mask, without_mask
from smelt.lowering.dims import (
    broadcast_index,
    canonical_dim,
    convert,
    expanded,
    fill,
    load_as,
    static,
)
from smelt.lowering.indexing import AdvancedIndex, Indices, along, position, selected
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import Expr, as_expr, is_one

aten = torch.ops.aten


def _accumulates(dtype: torch.dtype) -> str:
    """Scatter's mode for a sum.

    Raises:
        Unsupported: booleans are not added.
    """
    if dtype is torch.bool:
        raise Unsupported("accumulating into booleans")
    return "add"


# -- index_put -----------------------------------------------------------------------------------------------


@lowers(aten.index_put.default)
def index_put(ctx: Builder, x: Tensor, indices: Indices, values: Tensor, accumulate: bool = False) -> Tensor:
    mask = _only_mask(indices)
    if mask is not None and not accumulate and all(is_one(size) for size in values.shape):
        return _fill_where(ctx, x, *mask, values)
    place = mask_among(indices, x)
    if place is not None:
        chosen = indices[place]
        assert chosen is not None
        if all(entry is None for entry in (*indices[:place], *indices[place + 1 :])):
            return put_by_mask(ctx, x, place, chosen, values, accumulate)
        indices = without_mask(ctx, indices, place, count_of(ctx, flat(ctx, chosen)))
    advanced = AdvancedIndex(x.shape, indices)
    return _put(ctx, x, advanced, values, accumulate)


@lowers(aten._unsafe_index_put.default)
def unsafe_index_put(
    ctx: Builder, x: Tensor, indices: Indices, values: Tensor, accumulate: bool = False
) -> Tensor:
    return _put(ctx, x, AdvancedIndex(x.shape, indices, check=False), values, accumulate)


def _put(ctx: Builder, x: Tensor, advanced: AdvancedIndex, values: Tensor, accumulate: bool) -> Tensor:
    mode = _accumulates(x.dtype) if accumulate else None
    wide = expanded(values, advanced.shape)
    return ctx.scatter(
        x, lambda index: load_as(wide, index, x.dtype), advanced.place, shape=advanced.shape, mode=mode
    )


@lowers(aten._unsafe_masked_index_put_accumulate.default)
def unsafe_masked_index_put_accumulate(
    ctx: Builder, x: Tensor, mask: Tensor, indices: Indices, values: Tensor
) -> Tensor:
    """Adds ``values`` where ``mask``; elsewhere 0 is added to element 0 (the index there may be anything)."""
    mode = _accumulates(x.dtype)
    clamped = AdvancedIndex(x.shape, indices, check=False)
    block, start = clamped.block, clamped.start
    wide = expanded(values, clamped.shape)

    def chosen(index: Index) -> Any:
        return mask.load(broadcast_index(index, mask.shape))

    def value(index: Index) -> Any:
        return ops.where(chosen(index), load_as(wide, index, x.dtype), constant(0, x.dtype))

    def place(index: Index) -> list[Expr]:
        kept = dict(zip(clamped.kept, [*index[:start], *index[start + len(block) :]], strict=True))
        result = []
        for dim, size in enumerate(x.shape):
            if dim in kept:
                result.append(kept[dim])
                continue
            entry = clamped.tensors[dim]
            at = broadcast_index(index[start : start + len(block)], entry.shape)
            number = convert(entry.load(at), entry.dtype, torch.int64)
            number = ops.where(chosen(index), number, ops.constant(0, torch.int64))
            result.append(ops.indirect_index(number, size, wrap=True, check=False))
        return result

    return ctx.scatter(x, value, place, shape=clamped.shape, mode=mode)


def _only_mask(indices: Indices) -> tuple[int, Tensor] | None:
    """(first dimension, mask) where the indices are one boolean mask and else None."""
    given = [(dim, entry) for dim, entry in enumerate(indices) if entry is not None]
    return given[0] if len(given) == 1 and given[0][1].dtype is torch.bool else None


def _fill_where(ctx: Builder, x: Tensor, first: int, mask: Tensor, value: Tensor) -> Tensor:
    """``x[:, mask] = number``: elementwise, although its number of places is not known."""
    rank = len(mask.shape)
    origin = [as_expr(0)] * len(value.shape)

    def inner_fn(index: Index) -> Any:
        return ops.where(
            mask.load(index[first : first + rank]), load_as(value, origin, x.dtype), x.load(index)
        )

    return ctx.pointwise(inner_fn, shape=x.shape, dtype=x.dtype)


# -- scatter -------------------------------------------------------------------------------------------------


def _scatter(
    ctx: Builder, x: Tensor, dim: int, index: Tensor, value: Callable[[Index], Any], mode: str | None
) -> Tensor:
    if any(size == 0 for size in index.shape):  # of any rank
        return ctx.pointwise(x.load, shape=x.shape, dtype=x.dtype)
    place = along(x.shape, canonical_dim(dim, len(x.shape)), index, wrap=False)
    return ctx.scatter(x, value, place, shape=index.shape, mode=mode)


def _source(source: Tensor, index: Tensor) -> Callable[[Index], Any]:
    """Loads ``source`` at an index of ``index``; 0-d and one-element 1-d tensors stand for each other."""
    if not source.shape:
        return lambda at: source.load(())
    if not index.shape:
        return lambda at: source.load([as_expr(0)] * len(source.shape))
    return source.load


@lowers(aten.scatter.src)
def scatter_source(ctx: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(ctx, x, dim, index, _source(src, index), None)


@lowers(aten.scatter.value)
def scatter_value(ctx: Builder, x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    return _scatter(ctx, x, dim, index, lambda at: constant(value, x.dtype), None)


@lowers(aten.scatter_add.default)
def scatter_add(ctx: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(ctx, x, dim, index, _source(src, index), _accumulates(x.dtype))


@lowers(aten.scatter.reduce)
def scatter_source_reduce(
    ctx: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str
) -> Tensor:
    if reduce != "add":
        raise Unsupported(f"scatter with reduce={reduce!r}")
    return scatter_add(ctx, x, dim, index, src)


@lowers(aten.scatter.value_reduce)
def scatter_value_reduce(
    ctx: Builder, x: Tensor, dim: int, index: Tensor, value: float, *, reduce: str
) -> Tensor:
    if reduce != "add":
        raise Unsupported(f"scatter with reduce={reduce!r}")
    return _scatter(ctx, x, dim, index, lambda at: constant(value, x.dtype), _accumulates(x.dtype))


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    ctx: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if reduce != "sum" or not include_self:
        raise Unsupported(f"scatter_reduce with reduce={reduce!r}, include_self={include_self}")
    return scatter_add(ctx, x, dim, index, src)


# -- along one dimension -------------------------------------------------------------------------------------


def _along_dim(
    ctx: Builder,
    x: Tensor,
    dim: int,
    index: Tensor,
    value: Callable[[Index], Any],
    mode: str | None,
    *,
    wrap: bool = False,
) -> Tensor:
    at = canonical_dim(dim, len(x.shape))
    shape = list(x.shape)
    count = index.shape[0] if index.shape else as_expr(1)
    if shape:
        shape[at] = count
        return ctx.scatter(x, value, selected(x.shape, at, index, wrap=wrap), shape=shape, mode=mode)
    return ctx.scatter(x, value, selected(x.shape, at, index), shape=[count], mode=mode)


@lowers(aten.index_add.default)
def index_add(
    ctx: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    load = _rows(source, len(x.shape))

    def value(at: Index) -> Any:
        return load(at) if alpha == 1 else ops.mul(load(at), constant(alpha, x.dtype))

    mode = _accumulates(x.dtype)
    if alpha != 1 and x.dtype in (torch.bfloat16, torch.float16):
        raise Unsupported("index_add with alpha in a 16-bit floating dtype")
    return _along_dim(ctx, x, dim, index, value, mode)


@lowers(aten.index_copy.default)
def index_copy(ctx: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _along_dim(ctx, x, dim, index, _rows(source, len(x.shape)), None)


@lowers(aten.index_fill.int_Scalar)
def index_fill(ctx: Builder, x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    return _along_dim(ctx, x, dim, index, lambda at: constant(value, x.dtype), None, wrap=True)


@lowers(aten.index_fill.int_Tensor)
def index_fill_tensor(ctx: Builder, x: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    return _along_dim(ctx, x, dim, index, lambda at: load_as(value, (), x.dtype), None, wrap=True)


def _rows(source: Tensor, rank: int) -> Callable[[Index], Any]:
    """Loads the source of index_add and index_copy, which may be 0-d where ``x`` is 1-d and vice versa."""
    own = len(source.shape)
    if own == 0:
        return lambda at: source.load(())
    if rank == 0:
        return lambda at: source.load(list(at)[:own])
    return source.load


# -- gradients of views and of embedding ---------------------------------------------------------------------


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    ctx: Builder, grad: Tensor, indices: Tensor, num_weights: Any, padding_idx: Any, scale_grad_by_freq: bool
) -> Tensor:
    if scale_grad_by_freq:
        raise Unsupported("embedding gradient with scale_grad_by_freq")
    padding = static(padding_idx, "padding_idx")
    rank, dtype = len(indices.shape), grad.dtype
    shape = [as_expr(num_weights), *grad.shape[rank:]]

    def value(index: Index) -> Any:
        if padding < 0:
            return grad.load(index)
        row = convert(indices.load(index[:rank]), indices.dtype, torch.int64)
        skip = ops.eq(row, ops.constant(padding, torch.int64))
        return ops.where(skip, constant(0, dtype), grad.load(index))

    def place(index: Index) -> list[Expr]:
        return [position(indices, index[:rank], shape[0], wrap=False), *index[rank:]]

    return ctx.scatter(fill(ctx, shape, dtype, 0), value, place, shape=grad.shape, mode=_accumulates(dtype))


def _place_gradient(
    ctx: Builder, grad: Tensor, sizes: Sequence[Any], place: Callable[[Index], list[Expr]]
) -> Tensor:
    """A gradient written into zeros; the places are distinct."""
    base = fill(ctx, [as_expr(size) for size in sizes], grad.dtype, 0)
    return ctx.scatter(base, grad.load, place, shape=grad.shape)


@lowers(aten.diagonal_backward.default)
def diagonal_backward(
    ctx: Builder, grad: Tensor, input_sizes: Sequence[Any], offset: int, dim1: int, dim2: int
) -> Tensor:
    rank = len(input_sizes)
    first, second = canonical_dim(dim1, rank), canonical_dim(dim2, rank)

    def place(index: Index) -> list[Expr]:
        others = iter(index[:-1])
        along_diagonal = index[-1]
        result = []
        for dim in range(rank):
            if dim == first:
                result.append(along_diagonal + max(-offset, 0))
            elif dim == second:
                result.append(along_diagonal + max(offset, 0))
            else:
                result.append(next(others))
        return result

    return _place_gradient(ctx, grad, input_sizes, place)


@lowers(aten.unfold_backward.default)
def unfold_backward(
    ctx: Builder, grad: Tensor, input_sizes: Sequence[Any], dim: int, size: Any, step: Any
) -> Tensor:
    """Windows overlap where ``step < size``: their gradients add up."""
    at, stride = canonical_dim(dim, len(input_sizes)), as_expr(step)
    base = fill(ctx, [as_expr(extent) for extent in input_sizes], grad.dtype, 0)

    def place(index: Index) -> list[Expr]:
        result = list(index[:-1])
        if not result:
            return []
        result[at] = index[at] * stride + index[-1]
        return result[: len(input_sizes)]

    return ctx.scatter(base, grad.load, place, shape=grad.shape, mode=_accumulates(grad.dtype))
