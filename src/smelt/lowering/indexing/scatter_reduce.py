"""Combines elements at positions held by tensors: scatter_add, scatter_reduce, index_add, index_reduce.

`combined` defines all of them. Elements are combined in row-major order of the indices, so that a result does
not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr

from smelt.loops.reductions import MODES, identity
from smelt.lowering.builder import Builder
from smelt.lowering.dims import canonical_dim, cast, compute_dtype, convert, fill
from smelt.lowering.indexing.indexing import along, selected
from smelt.lowering.numbers import constant
from smelt.lowering.promotion import Operand, loader
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import as_expr

aten = torch.ops.aten

Load = Callable[[Index], Any]
Place = Callable[[Index], Index]

KINDS = {"sum": "sum", "mean": "sum", "prod": "prod", "amax": "max", "amin": "min"}
"""ATen's name of a reduction → the name in loops (`smelt.loops.reductions.MODES`)."""

_OF_TRUTH = {"add": "maximum", "mul": "minimum"}


def mode_of(reduce: str, dtype: torch.dtype) -> str:
    """The scatter's mode for a reduction; on booleans a sum is "or", a product is "and".

    >>> mode_of("sum", torch.float32), mode_of("sum", torch.bool), mode_of("amin", torch.bool)
    ('add', 'maximum', 'minimum')
    """
    mode = MODES[KINDS[reduce]]
    return _OF_TRUTH.get(mode, mode) if dtype is torch.bool else mode


def combined(
    ctx: Builder,
    x: Tensor,
    reduce: str,
    value: Load,
    place: Place,
    shape: Sequence[Expr],
    *,
    include_self: bool = True,
) -> Tensor:
    """``x`` with ``value(index)`` combined into ``place(index)`` for every index of ``shape``.

    float16 and bfloat16 are combined in float32 and rounded once. A mean divides by the number of elements
    that were combined, of integers rounded down (``aten::scatter_reduce``, ``aten::index_reduce``).

    Args:
        value: returns elements of `compute_dtype`.
        include_self: whether the element of ``x`` at a written position is combined too.
    """
    dtype, compute = x.dtype, compute_dtype(x.dtype)
    base = cast(ctx, x, compute)
    if not include_self:
        first = identity(KINDS[reduce], compute)
        base = ctx.scatter(base, lambda index: constant(first, compute), place, shape=shape)
    result = ctx.scatter(base, value, place, shape=shape, mode=mode_of(reduce, compute))
    if reduce == "mean":
        result = _divided(ctx, result, _count(ctx, x.shape, place, shape, include_self))
    return cast(ctx, result, dtype)


def _count(
    ctx: Builder, shape: Sequence[Expr], place: Place, source: Sequence[Expr], include_self: bool
) -> Tensor:
    """The number of elements combined at each position, at least one."""
    base = fill(ctx, shape, torch.int64, int(include_self))
    return ctx.scatter(base, lambda index: constant(1, torch.int64), place, shape=source, mode="add")


def _divided(ctx: Builder, total: Tensor, count: Tensor) -> Tensor:
    dtype = total.dtype

    def inner_fn(index: Index) -> Any:
        number = ops.maximum(count.load(index), constant(1, torch.int64))
        if dtype.is_floating_point:
            return ops.truediv(total.load(index), convert(number, torch.int64, dtype))
        whole = convert(total.load(index), dtype, torch.int64)  # the number may not fit the dtype
        return convert(ops.floordiv(whole, number), torch.int64, dtype)

    return ctx.pointwise(inner_fn, shape=total.shape, dtype=dtype)


# -- scatter -------------------------------------------------------------------------------------------------


def source_at(source: Tensor, index: Tensor) -> Load:
    """Loads ``source`` at an index of ``index``; 0-d and one-element 1-d tensors are interchangeable."""
    if not source.shape:
        return lambda at: source.load(())
    if not index.shape:
        return lambda at: source.load([as_expr(0)] * len(source.shape))
    return source.load


def computed(load: Load, dtype: torch.dtype) -> Load:
    """The value of ``load`` in the compute dtype of ``dtype``."""
    return lambda at: convert(load(at), dtype, compute_dtype(dtype))


def _scatter(
    ctx: Builder, x: Tensor, dim: int, index: Tensor, load: Load, reduce: str, include_self: bool = True
) -> Tensor:
    if any(size == 0 for size in index.shape):  # of any rank
        return ctx.pointwise(x.load, shape=x.shape, dtype=x.dtype)
    place = along(x.shape, canonical_dim(dim, len(x.shape)), index)
    value = computed(load, x.dtype)
    return combined(ctx, x, reduce, value, place, index.shape, include_self=include_self)


_NAMES = {"add": "sum", "multiply": "prod"}
"""``scatter``'s names of reductions → those of ``scatter_reduce``."""


@lowers(aten.scatter_add.default)
def scatter_add(ctx: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(ctx, x, dim, index, source_at(src, index), "sum")


@lowers(aten.scatter.reduce)
def scatter_source_reduce(
    ctx: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str
) -> Tensor:
    return _scatter(ctx, x, dim, index, source_at(src, index), _NAMES[reduce])


@lowers(aten.scatter.value_reduce)
def scatter_value_reduce(
    ctx: Builder, x: Tensor, dim: int, index: Tensor, value: Operand, *, reduce: str
) -> Tensor:
    return _scatter(ctx, x, dim, index, loader(value, x.dtype, x.dtype), _NAMES[reduce])


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    ctx: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return _scatter(ctx, x, dim, index, source_at(src, index), reduce, include_self)


# -- along one dimension -------------------------------------------------------------------------------------


def rows_of(source: Tensor, rank: int) -> Load:
    """Loads the source of index_add and its variants; it may be 0-d if ``x`` is 1-d and vice versa."""
    own = len(source.shape)
    if own == 0:
        return lambda at: source.load(())
    if rank == 0:
        return lambda at: source.load(list(at)[:own])
    return source.load


def rows(
    shape: Sequence[Expr], dim: int, index: Tensor, *, wrap: bool = False, check: bool | str = True
) -> tuple[Place, list[Expr]]:
    """The positions that index_add and its variants write to, and the shape of their source."""
    at = canonical_dim(dim, len(shape))
    count = index.shape[0] if index.shape else as_expr(1)
    written = [*shape[:at], count, *shape[at + 1 :]] if shape else [count]
    return selected(shape, at, index, wrap=wrap and bool(shape), check=check), written


@lowers(aten.index_add.default)
def index_add(
    ctx: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Operand = 1
) -> Tensor:
    """Indices out of range raise RuntimeError if ``x`` has several dimensions, else IndexError (ATen)."""
    load, compute = computed(rows_of(source, len(x.shape)), x.dtype), compute_dtype(x.dtype)
    factor = loader(alpha, compute, compute)

    def value(at: Index) -> Any:
        times = getattr(ops, mode_of("prod", compute))
        return load(at) if alpha == 1 else times(load(at), factor(at))

    place, shape = rows(x.shape, dim, index, check="RuntimeError" if len(x.shape) > 1 else True)
    return combined(ctx, x, "sum", value, place, shape)


@lowers(aten.index_reduce.default)
def index_reduce(
    ctx: Builder,
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    place, shape = rows(x.shape, dim, index)
    load = computed(rows_of(source, len(x.shape)), x.dtype)
    return combined(ctx, x, reduce, load, place, shape, include_self=include_self)
