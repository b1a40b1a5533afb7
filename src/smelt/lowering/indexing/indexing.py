"""Reading at positions that other tensors hold: advanced indexing, gather, embedding, take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import ZERO, broadcast_index, broadcast_shape, canonical_dim, convert, fill
from smelt.lowering.indexing.data_sizes import (
    MASKS,
    bind_count,
    flat,
    index_by_mask,
    mask_among,
    without_mask,
)
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import numel, unflatten

aten = torch.ops.aten

Indices = Sequence[Tensor | None]


def position(x: Tensor, index: Index, size: Expr, *, wrap: bool, check: bool | str = True) -> Expr:
    """The index symbol that an element of the integer tensor ``x`` stands for (`ops.indirect_index`)."""
    return ops.indirect_index(convert(x.load(index), x.dtype, torch.int64), size, wrap=wrap, check=check)


def require_int64(index: Tensor) -> None:
    """Some operators take no other index; their metadata functions do.

    Raises:
        Unsupported: the index has another dtype: ATen says so.
    """
    if index.dtype is not torch.int64:
        raise Unsupported(f"an index of {index.dtype}: eager refuses it")


class AdvancedIndex:
    """Which shape ``x[indices]`` has, and which element of ``x`` each of its elements is.

    ``indices`` holds one entry per leading dimension of ``x``; None keeps the dimension. Index tensors that
    stand side by side put their broadcast dimensions in their own place, separated ones put them first.
    """

    def __init__(self, shape: Sequence[Expr], indices: Indices, *, check: bool = True) -> None:
        for entry in indices:
            if entry is not None and entry.dtype in (torch.bool, torch.uint8):
                raise Unsupported("data-dependent size (indexing by a mask)")
        self.source = tuple(shape)
        self.check = check
        self.tensors = {dim: entry for dim, entry in enumerate(indices) if entry is not None}
        dims = list(self.tensors)
        adjacent = not dims or dims == list(range(dims[0], dims[-1] + 1))
        self.block = broadcast_shape(*(entry.shape for entry in self.tensors.values()))
        self.start = dims[0] if dims and adjacent else 0
        self.kept = [dim for dim in range(len(shape)) if dim not in self.tensors]
        kept_shape = tuple(shape[dim] for dim in self.kept)
        self.shape = (*kept_shape[: self.start], *self.block, *kept_shape[self.start :])

    def place(self, index: Index) -> list[Expr]:
        """The element of ``x`` at ``index`` of the result."""
        end = self.start + len(self.block)
        block = list(index[self.start : end])
        kept = dict(zip(self.kept, [*index[: self.start], *index[end:]], strict=True))
        return [
            kept[dim]
            if dim in kept
            else position(
                self.tensors[dim],
                broadcast_index(block, self.tensors[dim].shape),
                size,
                wrap=True,
                check=self.check,
            )
            for dim, size in enumerate(self.source)
        ]


def _index(ctx: Builder, x: Tensor, indices: Indices, check: bool) -> Tensor:
    place = mask_among(ctx, indices, x)
    if place is not None:
        mask = indices[place]
        assert mask is not None
        if len(indices) == 1 and len(mask.shape) == len(x.shape):
            return index_by_mask(ctx, x, mask)
        size = bind_count(ctx, flat(ctx, mask), _block_dim(indices))
        indices = without_mask(ctx, indices, place, size)
    advanced = AdvancedIndex(x.shape, indices, check=check)
    return ctx.pointwise(lambda index: x.load(advanced.place(index)), shape=advanced.shape, dtype=x.dtype)


def _block_dim(indices: Indices) -> int:
    """The result's dimension that a mask among the indices becomes."""
    given = [place for place, entry in enumerate(indices) if entry is not None]
    adjacent = given == list(range(given[0], given[-1] + 1))
    ranks = [len(entry.shape) for entry in indices if entry is not None and entry.dtype not in MASKS]
    return (given[0] if adjacent else 0) + max([1, *ranks]) - 1


@lowers(aten.index.Tensor)
def index_tensor(ctx: Builder, x: Tensor, indices: Indices) -> Tensor:
    return _index(ctx, x, indices, True)


def _number(value: float | int | bool, dtype: torch.dtype) -> float | int | bool:
    if dtype is torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else int(value)


def along(shape: Sequence[Expr], dim: int, index: Tensor) -> Callable[[Index], list[Expr]]:
    """Places of gather and scatter: position ``i`` with its coordinate ``dim`` replaced by ``index[i]``.

    Out of range RuntimeError is raised, as ATen does it.
    """
    if not shape:  # a 0-d tensor counts as one of one element
        return lambda at: _checked_scalar(index, at, _OUT_OF_BOUNDS)

    def place(at: Index) -> list[Expr]:
        result = list(at) if index.shape else [at[0] if at else numel(())] * len(shape)
        where = at if index.shape else ()
        result[dim] = position(index, where, shape[dim], wrap=False, check=_OUT_OF_BOUNDS)
        return result

    return place


_OUT_OF_BOUNDS = "RuntimeError"


def _checked_scalar(index: Tensor, at: Index, check: bool | str) -> list[Expr]:
    position(index, at, numel(()), wrap=False, check=check)
    return []


@lowers(aten.gather.default)
def gather(ctx: Builder, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if any(size == 0 for size in index.shape):  # of any rank
        return fill(ctx, index.shape, x.dtype, 0)
    place = along(x.shape, canonical_dim(dim, len(x.shape)), index)
    return ctx.pointwise(lambda at: x.load(place(at)), shape=index.shape, dtype=x.dtype)


def selected(
    shape: Sequence[Expr], dim: int, index: Tensor, *, wrap: bool = False, check: bool | str = True
) -> Callable[[Index], list[Expr]]:
    """Places of index_select, index_add, …: coordinate ``dim`` is looked up in the 1-d (or 0-d) ``index``."""
    if not shape:
        # The result of index_select has no dimension either, whatever index has.
        return lambda at: _checked_scalar(index, (at or [sympy.Integer(0)]) if index.shape else (), check)

    def place(at: Index) -> list[Expr]:
        result = list(at)
        result[dim] = position(index, [at[dim]] if index.shape else (), shape[dim], wrap=wrap, check=check)
        return result

    return place


@lowers(aten.index_select.default)
def index_select(ctx: Builder, x: Tensor, dim: int, index: Tensor) -> Tensor:
    dim = canonical_dim(dim, len(x.shape))
    if not x.shape:  # the result has no dimension either, whatever that of the index
        at = [ZERO] * len(index.shape)
        return ctx.pointwise(lambda _: x.load(_checked_scalar(index, at, True)), dtype=x.dtype)
    place = selected(x.shape, dim, index, check=_OUT_OF_BOUNDS if dim == 1 else True)  # as eager's kernels do
    return ctx.pointwise(lambda at: x.load(place(at)), dtype=x.dtype)


@lowers(aten.embedding.default)
def embedding(
    ctx: Builder,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    rank = len(indices.shape)

    def inner_fn(index: Index) -> Any:
        row = position(indices, index[:rank], weight.shape[0], wrap=False)
        return weight.load([row, *index[rank:]])

    return ctx.pointwise(inner_fn, shape=[*indices.shape, *weight.shape[1:]], dtype=weight.dtype)


@lowers(aten.take.default)
def take(ctx: Builder, x: Tensor, index: Tensor) -> Tensor:
    total = numel(x.shape)

    def inner_fn(at: Index) -> Any:
        flat = position(index, at, total, wrap=True)
        return x.load(unflatten(flat, x.shape))

    return ctx.pointwise(inner_fn, shape=index.shape, dtype=x.dtype)
