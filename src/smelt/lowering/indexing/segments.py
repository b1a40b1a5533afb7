"""Reductions over segments of a dimension whose lengths a tensor holds, and their gradients.

Source: ``aten/src/ATen/native/SegmentReduce.cpp``. An element's segment is the number of segments that have
ended before it; the elements are then combined at their segments' positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from sympy import Expr

from smelt.loops.reductions import MODES, identity
from smelt.lowering.builder import Builder
from smelt.lowering.checks import at_least
from smelt.lowering.dims import cast, compute_dtype, convert, fill, load_as
from smelt.lowering.indexing.indexing import position
from smelt.lowering.indexing.scatter_reduce import KINDS
from smelt.lowering.numbers import constant
from smelt.lowering.promotion import Operand, loader
from smelt.lowering.registry import lowers
from smelt.lowering.running import running_sum
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops

aten = torch.ops.aten

_NAMES = {"sum": "sum", "mean": "mean", "prod": "prod", "max": "amax", "min": "amin"}
"""``segment_reduce``'s names of reductions → those of ``scatter_reduce``."""


class _Segments:
    """The segments of a dimension of ``data``, and tensors with an element for each segment.

    ``lengths`` has the dimensions before that one, ``axis``, and a last one: the segments. ``offsets``, if
    given, has the same, but one more along the last. Elements before the first or after the last segment are
    in none.
    """

    def __init__(self, ctx: Builder, data: Tensor, lengths: Tensor | None, offsets: Tensor | None) -> None:
        given = lengths if lengths is not None else offsets
        assert given is not None
        self.ctx, self.dtype = ctx, compute_dtype(data.dtype)
        self.axis, self.shape = len(given.shape) - 1, data.shape
        self.count = given.shape[-1] - int(lengths is None)
        self.lengths = _lengths(ctx, given, self.count, lengths is None)
        self.number = self._number(self._ends() if lengths is not None else given, lengths is None)

    def _ends(self) -> Tensor:
        """The end of each segment: the running sum of the lengths."""
        return running_sum(self.ctx, self.lengths.load, shape=self.lengths.shape, dim=self.axis)

    def _number(self, bounds: Tensor, has_start: bool) -> Tensor:
        """The segment of each position of the dimension; ``count`` if it is in none.

        ``bounds``: the ends of segments, after the start of the first one if ``has_start``.
        """
        axis, more = self.axis, self.shape[self.axis] + 1
        shape = self.shape[: axis + 1]

        def place(index: Index) -> list[Expr]:
            return [*index[:-1], position(bounds, index, more, wrap=False, check="RuntimeError")]

        passed = self.ctx.scatter(
            fill(self.ctx, [*shape[:-1], more], torch.int64, 0),
            lambda index: constant(1, torch.int64),
            place,
            shape=bounds.shape,
            mode="add",
        )

        def finish(index: Index, number: Any) -> Any:
            if not has_start:
                return number
            before = ops.lt(number, constant(0, torch.int64))
            return ops.where(before, ops.index_expr(self.count, torch.int64), number)

        first = -int(has_start)
        return running_sum(self.ctx, passed.load, shape=shape, dim=axis, first=first, finish=finish)

    def of(self, index: Index) -> Any:
        """The number of the segment of an element."""
        return self.number.load(index[: self.axis + 1])

    def place(self, index: Index) -> list[Expr]:
        """The position of an element's segment; elements in no segment have one extra position."""
        at = ops.indirect_index(self.of(index), self.count + 1, wrap=False, check=False)
        return [*index[: self.axis], at, *index[self.axis + 1 :]]

    def combine(self, reduce: str, value: Callable[[Index], Any], first: Operand) -> Tensor:
        """``value`` of each segment's elements combined, from ``first`` on, in the dtype `dtype`."""
        before, after = self.shape[: self.axis], self.shape[self.axis + 1 :]
        start = loader(first, self.dtype, self.dtype)
        base = self.ctx.pointwise(start, shape=[*before, self.count + 1, *after], dtype=self.dtype)
        found = self.ctx.scatter(base, value, self.place, shape=self.shape, mode=MODES[KINDS[reduce]])
        return found.view((*before, self.count, *after), tuple)

    def spread(self, x: Tensor, index: Index, dtype: torch.dtype) -> Any:
        """The element of ``x`` for an element's segment; 0 if it is in none."""
        number = self.of(index)
        inside = ops.lt(number, ops.index_expr(self.count, torch.int64))
        known = ops.where(inside, number, constant(0, torch.int64))
        at = ops.indirect_index(known, self.count, wrap=False, check=False)
        found = ops.masked(inside, lambda: x.load([*index[: self.axis], at, *index[self.axis + 1 :]]), 0)
        return convert(found, x.dtype, dtype)

    def length_of(self, index: Index) -> Any:
        """The length of segment ``index[axis]``."""
        return self.lengths.load(index[: self.axis + 1])


def _lengths(ctx: Builder, given: Tensor, count: Expr, are_offsets: bool) -> Tensor:
    """The lengths as int64; between offsets they are the differences."""

    def inner_fn(index: Index) -> Any:
        here = load_as(given, index, torch.int64)
        if not are_offsets:
            return here
        return ops.sub(load_as(given, [*index[:-1], index[-1] + 1], torch.int64), here)

    return ctx.pointwise(inner_fn, shape=[*given.shape[:-1], count], dtype=torch.int64)


@lowers(aten.segment_reduce.default)
def segment_reduce(
    ctx: Builder,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Operand | None = None,
) -> Tensor:
    """RuntimeError is raised if a length is negative or, unless ``unsafe``, the lengths do not add up."""
    segments, kind = _Segments(ctx, data, lengths, offsets), _NAMES[reduce]
    if lengths is not None and not unsafe:
        _check_lengths(ctx, segments)
    first = identity(KINDS[kind], segments.dtype) if initial is None else initial
    total = segments.combine(kind, lambda index: load_as(data, index, segments.dtype), first)
    if kind == "mean":
        total = _mean(ctx, segments, total, initial is not None)
    return cast(ctx, total, data.dtype)


def _mean(ctx: Builder, segments: _Segments, total: Tensor, has_initial: bool) -> Tensor:
    dtype = segments.dtype

    def inner_fn(index: Index) -> Any:
        length, value = segments.length_of(index), total.load(index)
        empty = ops.eq(length, constant(0, torch.int64))
        none = value if has_initial else constant(math.nan, dtype)
        return ops.where(empty, none, ops.truediv(value, convert(length, torch.int64, dtype)))

    return ctx.pointwise(inner_fn, shape=total.shape, dtype=dtype)


def _check_lengths(ctx: Builder, segments: _Segments) -> None:
    """Check that no length is negative, and that the lengths of each row add up to the dimension's size."""
    lengths, size = segments.lengths, segments.shape[segments.axis]
    if any(extent == 0 for extent in lengths.shape[:-1]):
        return
    if segments.count == 0:
        ctx.check(at_least(0, size), _DO_NOT_ADD_UP)
        return
    (total,) = ctx.reduction(
        "sum",
        lambda index, rindex: lengths.load([*index, *rindex]),
        shape=lengths.shape[:-1],
        reduce_shape=(segments.count,),
        dtype=torch.int64,
    )
    (least,) = ctx.reduction(
        "min", lambda _, rindex: lengths.load(rindex), shape=(), reduce_shape=lengths.shape, dtype=torch.int64
    )

    def gap(index: Index) -> Any:
        return ops.abs(ops.sub(total.load(index), ops.index_expr(size, torch.int64)))

    (most,) = ctx.reduction(
        "max", lambda _, rindex: gap(rindex), shape=(), reduce_shape=total.shape, dtype=torch.int64
    )
    ctx.check(at_least(ctx.item(least), 0), "lengths contains negative value!")
    ctx.check(at_least(0, ctx.item(most)), _DO_NOT_ADD_UP)


_DO_NOT_ADD_UP = (
    "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) "
    "when !unsafe."
)


# -- gradients -----------------------------------------------------------------------------------------------


@lowers(aten._segment_reduce_backward.default)
def segment_reduce_backward(
    ctx: Builder,
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: Operand | None = None,
) -> Tensor:
    segments = _Segments(ctx, data, lengths, offsets)
    if reduce in ("max", "min"):
        gradient = _of_extremes(segments, grad, output, data)
    elif reduce == "prod":
        gradient = _of_product(segments, grad, output, data, 1 if initial is None else initial)
    else:
        gradient = _of_sum(segments, grad, reduce == "mean")

    def inner_fn(index: Index) -> Any:
        inside = ops.lt(segments.of(index), ops.index_expr(segments.count, torch.int64))
        value = ops.where(inside, gradient(index), constant(0, segments.dtype))
        return convert(value, segments.dtype, data.dtype)

    return ctx.pointwise(inner_fn, shape=data.shape, dtype=data.dtype)


def _of_sum(segments: _Segments, grad: Tensor, mean: bool) -> Callable[[Index], Any]:
    dtype, lengths = segments.dtype, segments.lengths

    def gradient(index: Index) -> Any:
        given = segments.spread(grad, index, dtype)
        if not mean:
            return given
        length = segments.spread(lengths, index[: segments.axis + 1], dtype)
        return ops.truediv(given, length)

    return gradient


def _is_extreme(segments: _Segments, output: Tensor, data: Tensor, index: Index) -> Any:
    value = load_as(data, index, segments.dtype)
    return ops.logical_or(ops.isnan(value), ops.eq(value, segments.spread(output, index, segments.dtype)))


def _of_extremes(segments: _Segments, grad: Tensor, output: Tensor, data: Tensor) -> Callable[[Index], Any]:
    """Equal extremes share the gradient if it is positive; otherwise each gets all of it (as in ATen)."""
    dtype = segments.dtype

    def one(index: Index) -> Any:
        return convert(_is_extreme(segments, output, data, index), torch.bool, dtype)

    many = segments.combine("sum", one, 0)

    def gradient(index: Index) -> Any:
        given = segments.spread(grad, index, dtype)
        shared = ops.truediv(given, segments.spread(many, index, dtype))
        shared = ops.where(ops.gt(given, constant(0, dtype)), shared, given)
        return ops.where(_is_extreme(segments, output, data, index), shared, constant(0, dtype))

    return gradient


def _of_product(
    segments: _Segments, grad: Tensor, output: Tensor, data: Tensor, initial: Operand
) -> Callable[[Index], Any]:
    """``grad * output / x``; if x is 0 or NaN, ``grad`` times the product of all others.

    That is the product of the elements that are neither, 0 if another one is 0, NaN if another one is NaN.
    """
    dtype = segments.dtype

    def zero() -> Any:
        return constant(0, dtype)

    def is_zero(value: Any) -> Any:
        return ops.eq(value, zero())

    def usual(index: Index) -> Any:
        value = load_as(data, index, dtype)
        return ops.where(ops.logical_or(is_zero(value), ops.isnan(value)), constant(1, dtype), value)

    product = segments.combine("prod", usual, initial)
    zeros = segments.combine(
        "sum", lambda index: convert(is_zero(load_as(data, index, dtype)), torch.bool, dtype), 0
    )
    undefined = segments.combine(
        "sum", lambda index: convert(ops.isnan(load_as(data, index, dtype)), torch.bool, dtype), 0
    )

    def gradient(index: Index) -> Any:
        value, given = load_as(data, index, dtype), segments.spread(grad, index, dtype)
        result = segments.spread(output, index, dtype)
        own_zero, own_nan = is_zero(value), ops.isnan(value)
        others = segments.spread(product, index, dtype)
        more_zeros = ops.sub(segments.spread(zeros, index, dtype), convert(own_zero, torch.bool, dtype))
        more_nans = ops.sub(segments.spread(undefined, index, dtype), convert(own_nan, torch.bool, dtype))
        others = ops.where(ops.gt(more_zeros, zero()), ops.mul(others, zero()), others)
        others = ops.where(ops.gt(more_nans, zero()), constant(math.nan, dtype), others)
        apart = ops.mul(given, others)
        together = ops.truediv(ops.mul(given, result), value)
        return ops.where(ops.logical_or(own_zero, own_nan), apart, together)

    return gradient
