"""Order along a dimension: sort, topk, kthvalue, median, mode, by one `Sort` node each, on rows.

Equal elements keep their order, which eager promises for stable sorts only; NaN is the largest of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sympy import Expr, Integer

from smelt.errors import Unsupported
from smelt.loops.reductions import least
from smelt.lowering.builder import Builder
from smelt.lowering.dims import ZERO, canonical_dim, fill
from smelt.lowering.numbers import constant
from smelt.lowering.reductions.reductions import require_elements
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import FloorDiv, as_expr, numel

aten = torch.ops.aten
INT64 = torch.int64


def in_order(
    ctx: Builder, x: Tensor, dim: int, *, descending: bool = False, limit: Expr | None = None
) -> tuple[Tensor, Tensor]:
    """Values and positions of the first ``limit`` (None: all) elements along ``dim``, in order.

    ``x`` has at least one dimension; the results have its shape with ``limit`` elements along ``dim``.
    """
    shape = (*x.shape[:dim], *x.shape[dim + 1 :], x.shape[dim])

    def keys(index: Index) -> Any:
        return x.load((*index[:dim], index[-1], *index[dim:-1]))

    parts = ctx.sort(keys, shape=shape, dtype=x.dtype, descending=descending, limit=limit)
    kept = parts[0].shape[-1]
    wanted = (*x.shape[:dim], kept, *x.shape[dim + 1 :])

    def moved(part: Tensor) -> Tensor:
        return part.view(wanted, lambda index: (*index[:dim], *index[dim + 1 :], index[dim]))

    return moved(parts[0]), moved(parts[1])


@lowers(aten.sort.default)
def sort(ctx: Builder, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    dim = canonical_dim(dim, len(x.shape))
    if not x.shape:
        return x, fill(ctx, (), INT64, 0)
    values, positions = in_order(ctx, x, dim, descending=descending)
    return _stored(ctx, values), _stored(ctx, positions)


@lowers(aten.sort.stable)
def sort_stable(
    ctx: Builder, x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return sort(ctx, x, dim, descending)


@lowers(aten.topk.default)
def topk(
    ctx: Builder, x: Tensor, k: int | Expr, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    dim = canonical_dim(dim, len(x.shape))
    if not x.shape:
        return x, fill(ctx, (), INT64, 0)
    values, positions = in_order(ctx, x, dim, descending=largest, limit=as_expr(k))
    return _stored(ctx, values), _stored(ctx, positions)


@lowers(aten.kthvalue.default)
def kthvalue(
    ctx: Builder, x: Tensor, k: int | Expr, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dim, rank = canonical_dim(dim, len(x.shape)), as_expr(k)
    if not x.shape:
        return x, fill(ctx, (), INT64, 0)
    require_elements(ctx, x, dim, "kthvalue")
    return _picked(ctx, in_order(ctx, x, dim, limit=rank), dim, keepdim, lambda _: rank - 1)


# -- medians -----------------------------------------------------------------------------------------------


@lowers(aten.median.dim)
def median_dim(ctx: Builder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower median; the first NaN if there is one."""
    return _median(ctx, x, dim, keepdim, ignore_nan=False)


@lowers(aten.nanmedian.dim)
def nanmedian_dim(ctx: Builder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _median(ctx, x, dim, keepdim, ignore_nan=True)


@lowers(aten.median.default)
def median(ctx: Builder, x: Tensor) -> Tensor:
    return _median_of_all(ctx, x, ignore_nan=False)


@lowers(aten.nanmedian.default)
def nanmedian(ctx: Builder, x: Tensor) -> Tensor:
    return _median_of_all(ctx, x, ignore_nan=True)


def _median_of_all(ctx: Builder, x: Tensor, ignore_nan: bool) -> Tensor:
    if not x.shape:
        return x
    if any(size == 0 for size in x.shape):
        whole = True if x.dtype is torch.bool else least(x.dtype)
        return fill(ctx, (), x.dtype, float("nan") if x.dtype.is_floating_point else whole)
    count = numel(x.shape)
    stored = _stored(ctx, x)
    flat = stored.view((count,), lambda index: _unflattened(index[0], x.shape))
    return _median(ctx, flat, 0, False, ignore_nan)[0]


def _unflattened(position: Expr, shape: tuple[Expr, ...]) -> list[Expr]:
    index: list[Expr] = []
    for size in reversed(shape[1:]):
        index.append(position % size)
        position = FloorDiv(position, size)
    return [position, *reversed(index)]


def _median(ctx: Builder, x: Tensor, dim: int, keepdim: bool, ignore_nan: bool) -> tuple[Tensor, Tensor]:
    dim = canonical_dim(dim, len(x.shape))
    if not x.shape:
        return x, fill(ctx, (), INT64, 0)
    require_elements(ctx, x, dim, "median")
    size = x.shape[dim]
    middle = FloorDiv(size - 1, Integer(2))
    parts = in_order(ctx, x, dim)
    if not x.dtype.is_floating_point:
        return _picked(ctx, parts, dim, keepdim, lambda _: middle)
    values = parts[0]
    outer = (*x.shape[:dim], *x.shape[dim + 1 :])

    def number(index: Index, r: Index) -> Any:
        value = values.load((*index[:dim], r[0], *index[dim:]))
        present = ops.logical_not(ops.isnan(value))
        return ops.where(present, constant(1, INT64), constant(0, INT64))

    (numbers,) = ctx.reduction("sum", number, shape=outer, reduce_shape=(size,), dtype=INT64)

    def place(index: Index) -> Expr:
        count = numbers.load(index)
        if ignore_nan:
            half = ops.rshift(ops.sub(count, constant(1, INT64)), constant(1, INT64))
            found = ops.maximum(half, constant(0, INT64))
        else:
            whole = ops.eq(count, ops.index_expr(size, INT64))
            found = ops.where(whole, ops.index_expr(middle, INT64), count)
        return ops.indirect_index(found, size, wrap=False, check=False)

    return _picked(ctx, parts, dim, keepdim, place)


# -- the most frequent element -------------------------------------------------------------------------------


@lowers(aten.mode.default)
def mode(ctx: Builder, x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent elements, and the last position of it."""
    dim = canonical_dim(dim, len(x.shape))
    if not x.shape:
        return x, fill(ctx, (), INT64, 0)
    require_elements(ctx, x, dim, "mode")
    size = x.shape[dim]
    values, positions = in_order(ctx, x, dim)

    def turn(index: Index, state: Any) -> Any:
        run, longest, best = state
        at = index[dim]
        before = (*index[:dim], at - 1, *index[dim + 1 :])
        here, one = values.load(index), constant(1, INT64)
        first = ops.eq(ops.index_expr(at, INT64), constant(0, INT64))
        continues = ops.masked(ops.logical_not(first), lambda: ops.eq(values.load(before), here), False)
        run = ops.where(continues, ops.add(run, one), one)
        better = ops.gt(run, longest)
        longest = ops.where(better, run, longest)
        best = ops.where(better, ops.index_expr(at, INT64), best)
        return (run, longest, best), (best,)

    state = [(INT64, 0)] * 3
    (best,) = ctx.scan(turn, shape=x.shape, dim=dim, state=state, dtypes=[INT64])

    def place(index: Index) -> Expr:
        last = best.load((*index[:dim], size - 1, *index[dim:]))
        return ops.indirect_index(last, size, wrap=False, check=False)

    return _picked(ctx, (values, positions), dim, keepdim, place)


def _picked(
    ctx: Builder,
    parts: tuple[Tensor, Tensor],
    dim: int,
    keepdim: bool,
    place: Callable[[Index], Expr],
) -> tuple[Tensor, Tensor]:
    """The elements of both parts at ``place(index)`` along ``dim``, which the index lacks."""
    shape = parts[0].shape
    kept = (ZERO + 1,) if keepdim else ()
    result = (*shape[:dim], *kept, *shape[dim + 1 :])

    def pick(part: Tensor) -> Tensor:
        def inner_fn(index: Index) -> Any:
            outer = (*index[:dim], *index[dim + len(kept) :])
            return part.load((*outer[:dim], place(outer), *outer[dim:]))

        return ctx.pointwise(inner_fn, shape=result, dtype=part.dtype)

    return pick(parts[0]), pick(parts[1])


def _stored(ctx: Builder, x: Tensor) -> Tensor:
    return ctx.pointwise(x.load, shape=x.shape, dtype=x.dtype)


# -- positions in a sorted sequence --------------------------------------------------------------------------

MOST_STEPS = 63
"""The number of halvings of a sequence of unknown length."""


@lowers(aten.searchsorted.Tensor)
def searchsorted(
    ctx: Builder,
    sequence: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    outer = len(sequence.shape) - 1
    return _search(
        ctx,
        sequence,
        lambda index: x.load(index),
        x,
        lambda index: index[:outer],
        right or side == "right",
        sorter,
    )


@lowers(aten.searchsorted.Scalar)
def searchsorted_scalar(
    ctx: Builder,
    sequence: Tensor,
    x: float | int | Expr,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    return _search(
        ctx,
        sequence,
        lambda _: _number(x, sequence.dtype),
        None,
        lambda _: (),
        right or side == "right",
        sorter,
    )


@lowers(aten.bucketize.Tensor)
def bucketize(
    ctx: Builder, x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    return _search(ctx, boundaries, lambda index: x.load(index), x, lambda _: (), right, None)


@lowers(aten.bucketize.Scalar)
def bucketize_scalar(
    ctx: Builder,
    x: float | int | Expr,
    boundaries: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Tensor:
    return _search(ctx, boundaries, lambda _: _number(x, boundaries.dtype), None, lambda _: (), right, None)


def _number(x: float | int | Expr, dtype: torch.dtype) -> Any:
    if isinstance(x, Expr):
        return ops.index_expr(x, dtype)
    if not dtype.is_floating_point and isinstance(x, float) and not x.is_integer():
        raise Unsupported("a fraction among integers")
    return constant(x, dtype)


def _search(
    ctx: Builder,
    sequence: Tensor,
    load: Callable[[Index], Any],
    x: Tensor | None,
    row_of: Callable[[Index], Index],
    right: bool,
    sorter: Tensor | None,
) -> Tensor:
    """The number of elements of the row before each value, by binary search (``std::lower_bound``).

    NaN comes after everything (a comparison with it is false).
    """
    size = sequence.shape[-1]
    dtype = sequence.dtype
    if x is not None and x.dtype != dtype:
        raise Unsupported(f"{x.dtype} searched in {dtype}")
    if dtype is torch.bool:
        raise Unsupported("a search in booleans")
    low16 = dtype in (torch.float16, torch.bfloat16)
    steps = int(size).bit_length() if size.is_Integer else MOST_STEPS
    out = ctx.dtype

    def inner_fn(index: Index) -> Any:
        wanted = load(index)
        row = tuple(row_of(index))
        begin, end = constant(0, INT64), ops.index_expr(size, INT64)
        for _ in range(steps):
            open_ = ops.lt(begin, end)
            middle = ops.add(begin, ops.rshift(ops.sub(end, begin), constant(1, INT64)))

            def before(middle: Any = middle) -> Any:
                at = ops.indirect_index(middle, size, wrap=False, check=False)
                if sorter is not None:
                    at = ops.indirect_index(sorter.load((*row, at)), size, wrap=False, check=False)
                here, value = sequence.load((*row, at)), wanted
                if low16:
                    here, value = ops.to_dtype(here, torch.float32), ops.to_dtype(value, torch.float32)
                reached = ops.gt(here, value) if right else ops.ge(here, value)
                return ops.logical_not(reached)

            go_on = ops.masked(open_, before, False)
            past = ops.add(middle, constant(1, INT64))
            begin, end = (
                ops.where(go_on, past, begin),
                ops.where(ops.logical_and(open_, ops.logical_not(go_on)), middle, end),
            )
        return begin if out is INT64 else ops.to_dtype(begin, out)

    return ctx.pointwise(inner_fn, dtype=out)
