"""Embeddings' gradients, and bags of embeddings: sums, means and maxima of rows of a table.

A bag is a contiguous part of a 1-d list of indices. Its rows are combined in the order of the list, into the
bag's row of the result (source: ``aten/src/ATen/native/EmbeddingBag.cpp``).
"""

from __future__ import annotations

from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import (
    cast,
    compute_dtype,
    convert,
    fill,
    load_as,
    result_dtype,
    result_shape,
    static,
)
from smelt.lowering.indexing.indexing import position
from smelt.lowering.indexing.scatter_reduce import combined
from smelt.lowering.numbers import constant
from smelt.lowering.registry import lowers
from smelt.lowering.running import running_sum
from smelt.lowering.shapes.structural import compare
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import as_expr

aten = torch.ops.aten

SUM, MEAN, MAX = 0, 1, 2
"""ATen's numbers of the modes."""
OWN_COUNTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
"""Whether ATen's bags divide a row's gradient by the row's own count; before 2.14: `_divisors`."""

_OUT_OF_BOUNDS = "RuntimeError"


# -- embedding -----------------------------------------------------------------------------------------------


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    ctx: Builder, grad: Tensor, indices: Tensor, num_weights: Any, padding_idx: Any, scale_grad_by_freq: bool
) -> Tensor:
    padding = static(padding_idx, "padding_idx")
    rank, count = len(indices.shape), as_expr(num_weights)
    compute = compute_dtype(grad.dtype)
    counts = _counts(ctx, indices, count) if scale_grad_by_freq else None

    def value(index: Index) -> Any:
        given = load_as(grad, index, compute)
        if counts is not None:
            row = position(indices, index[:rank], count, wrap=False)
            given = ops.truediv(given, convert(counts.load([row]), torch.int64, compute))
        return _unless_padding(indices, index[:rank], padding, given, compute)

    def place(index: Index) -> list[Expr]:
        return [position(indices, index[:rank], count, wrap=False), *index[rank:]]

    base = fill(ctx, [count, *grad.shape[rank:]], grad.dtype, 0)
    return combined(ctx, base, "sum", value, place, grad.shape)


def _counts(ctx: Builder, indices: Tensor, size: Expr) -> Tensor:
    """The number of occurrences of each number below ``size``."""
    return ctx.scatter(
        fill(ctx, [size], torch.int64, 0),
        lambda index: constant(1, torch.int64),
        lambda index: [position(indices, index, size, wrap=False)],
        shape=indices.shape,
        mode="add",
    )


def _is_padding(indices: Tensor, at: Index, padding: int) -> Any:
    return ops.eq(load_as(indices, at, torch.int64), constant(padding, torch.int64))


def _unless_padding(indices: Tensor, at: Index, padding: int, value: Any, dtype: torch.dtype) -> Any:
    """``value``, or 0 for the index that stands for padding (negative: there is none)."""
    return value if padding < 0 else ops.where(_is_padding(indices, at, padding), constant(0, dtype), value)


# -- bags ----------------------------------------------------------------------------------------------------


class _Bags:
    """The bag of each index: ``number`` (int64, 1-d), one of ``count`` bags.

    Indices after the last offset, if that ends the last bag, have bag number ``count``. Offsets out of order
    or out of range raise RuntimeError when the numbers are used as positions.
    """

    def __init__(self, ctx: Builder, indices: Tensor, offsets: Tensor, include_last: bool) -> None:
        self.length = indices.shape[0]
        self.count = offsets.shape[0] - int(include_last)
        starts = ctx.scatter(
            fill(ctx, [self.length + 1], torch.int64, 0),
            lambda index: constant(1, torch.int64),
            lambda index: [position(offsets, index, self.length + 1, wrap=False, check=_OUT_OF_BOUNDS)],
            shape=offsets.shape,
            mode="add",
        )
        self.number = running_sum(ctx, starts.load, shape=(self.length,), first=-1)
        self.rows = self.count + int(include_last)
        """The number of rows of results: one more than bags if indices may be in no bag."""

    def place(self, index: Index) -> list[Expr]:
        """The row of the bag that index number ``index[0]`` belongs to, and the column."""
        return [position(self.number, index[:1], self.rows, wrap=False, check=_OUT_OF_BOUNDS), *index[1:]]

    def without_rest(self, x: Tensor) -> Tensor:
        """The rows of bags, without the one for indices in no bag."""
        return x.view((self.count, *x.shape[1:]), tuple)


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    ctx: Builder,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, ...]:
    """(bags, number of each index's bag, sizes of the bags, maximal indices).

    The gradient reads the last three; if ATen leaves them out, they are empty or zero here too.
    """
    bags = _Bags(ctx, indices, offsets, include_last_offset)
    sizes = _sizes(ctx, indices, bags, padding_idx)
    if mode == MAX:
        result, best = _maximum(ctx, weight, indices, bags, padding_idx)
    else:
        result = _total(ctx, weight, indices, bags, per_sample_weights, padding_idx)
        best = sizes
        if mode == MEAN:
            result = _mean(ctx, result, sizes)
    result = cast(ctx, result, weight.dtype)
    numbers = cast(ctx, bags.number, result_dtype(ctx, 1))
    if result_shape(ctx, 1) != numbers.shape:
        numbers = fill(ctx, result_shape(ctx, 1), numbers.dtype, 0)
    if mode == SUM:
        sizes = best = fill(ctx, [bags.count], torch.int64, 0)
    return (
        result,
        numbers,
        _as_result(ctx, sizes, 2),
        _as_result(ctx, best, 3),
    )


def _as_result(ctx: Builder, x: Tensor, output: int) -> Tensor:
    """``x`` with the dtype and size of result number ``output``; missing elements are 0."""
    shape, dtype = result_shape(ctx, output), result_dtype(ctx, output)
    if shape == x.shape:
        return cast(ctx, x, dtype)
    if len(shape) != len(x.shape):
        return fill(ctx, shape, dtype, 0)

    def inner_fn(index: Index) -> Any:
        known = compare("lt", index[0], x.shape[0])
        return convert(ops.masked(known, lambda: x.load(index), 0), x.dtype, dtype)

    return ctx.pointwise(inner_fn, shape=shape, dtype=dtype)


def _sizes(ctx: Builder, indices: Tensor, bags: _Bags, padding: int) -> Tensor:
    """The number of indices in each bag, without those for padding."""

    def value(index: Index) -> Any:
        return _unless_padding(indices, index, padding, constant(1, torch.int64), torch.int64)

    zeros = fill(ctx, [bags.rows], torch.int64, 0)
    sizes = ctx.scatter(zeros, value, bags.place, shape=(bags.length,), mode="add")
    return bags.without_rest(sizes)


def _row(weight: Tensor, indices: Tensor, at: Index) -> Expr:
    return position(indices, at, weight.shape[0], wrap=False, check=_OUT_OF_BOUNDS)


def _total(
    ctx: Builder, weight: Tensor, indices: Tensor, bags: _Bags, factors: Tensor | None, padding: int
) -> Tensor:
    """The sum of each bag's rows, in the compute dtype."""
    dtype, width = compute_dtype(weight.dtype), weight.shape[1]

    def value(index: Index) -> Any:
        given = load_as(weight, [_row(weight, indices, index[:1]), index[1]], dtype)
        if factors is not None:
            given = ops.mul(given, load_as(factors, index[:1], dtype))
        return _unless_padding(indices, index[:1], padding, given, dtype)

    zeros = fill(ctx, [bags.rows, width], dtype, 0)
    total = ctx.scatter(zeros, value, bags.place, shape=(bags.length, width), mode="add")
    return bags.without_rest(total)


def _mean(ctx: Builder, total: Tensor, sizes: Tensor) -> Tensor:
    dtype = total.dtype

    def inner_fn(index: Index) -> Any:
        size = ops.maximum(sizes.load(index[:1]), constant(1, torch.int64))
        return ops.truediv(total.load(index), convert(size, torch.int64, dtype))

    return ctx.pointwise(inner_fn, shape=total.shape, dtype=dtype)


def _maximum(
    ctx: Builder, weight: Tensor, indices: Tensor, bags: _Bags, padding: int
) -> tuple[Tensor, Tensor]:
    """The largest element of each bag in each column, and the index of its row.

    The first of equal elements counts; NaN counts only if it comes first, as in ATen. Empty bags are 0.
    """
    dtype, width = weight.dtype, weight.shape[1]
    shape = (bags.length, width)

    def follow(index: Index, state: Any) -> tuple[list[Any], list[Any]]:
        largest, row, bag, found = state
        at = index[:1]
        given = load_as(weight, [_row(weight, indices, at), index[1]], compute)
        own, number = bags.number.load(at), load_as(indices, at, torch.int64)
        same = ops.logical_and(found, ops.eq(own, bag))
        counts = ops.constant(True, torch.bool)
        if padding >= 0:
            counts = ops.ne(number, constant(padding, torch.int64))
        better = ops.logical_or(ops.logical_not(same), ops.gt(given, largest))
        takes = ops.logical_and(counts, better)
        zero, none = constant(0, compute), constant(0, torch.int64)
        largest = ops.where(takes, given, ops.where(same, largest, zero))
        row = ops.where(takes, number, ops.where(same, row, none))
        return [largest, row, own, ops.logical_or(same, counts)], [largest, row]

    compute = compute_dtype(dtype)
    state = [(compute, 0.0), (torch.int64, 0), (torch.int64, -1), (torch.bool, False)]
    largest, row = ctx.scan(follow, shape=shape, dim=0, state=state, dtypes=[compute, torch.int64])

    def place(index: Index) -> list[Expr]:  # the last position of a bag has its whole maximum
        own, at = bags.number.load(index[:1]), index[0]
        goes_on = ops.masked(
            compare("lt", at, bags.length - 1), lambda: ops.eq(bags.number.load([at + 1]), own), False
        )
        target = ops.where(goes_on, ops.index_expr(bags.rows, torch.int64), own)
        return [ops.indirect_index(target, bags.rows + 1, wrap=False, check=_OUT_OF_BOUNDS), index[1]]

    found = []
    for running in (largest, row):
        zeros = fill(ctx, [bags.rows + 1, width], running.dtype, 0)
        found.append(bags.without_rest(ctx.scatter(zeros, running.load, place, shape=shape)))
    return found[0], found[1]


# -- gradients of bags ---------------------------------------------------------------------------------------


@lowers(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    ctx: Builder,
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: Any,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    if sparse:
        raise Unsupported("a sparse gradient")
    numbers = _numbers(ctx, indices, offsets, offset2bag)
    given = (num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx)
    return embedding_bag_dense_backward(ctx, grad, indices, numbers, bag_size, maximum_indices, *given)


def _numbers(ctx: Builder, indices: Tensor, offsets: Tensor, offset2bag: Tensor) -> Tensor:
    """The bag number of each index; ATen leaves the numbers out if the forward did not need them."""
    if offset2bag.shape == indices.shape:
        return offset2bag
    return _Bags(ctx, indices, offsets, include_last=False).number


@lowers(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(
    ctx: Builder,
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: Any,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    count, dtype = as_expr(num_weights), compute_dtype(grad.dtype)
    base = fill(ctx, [count, grad.shape[1]], grad.dtype, 0)
    if mode == MAX:
        return _maximum_backward(ctx, base, grad, bag_size, maximum_indices)
    divisors = _counts if OWN_COUNTS else _divisors
    counts = divisors(ctx, indices, count) if scale_grad_by_freq else None

    def value(index: Index) -> Any:
        at = index[:1]
        given, bag = _of_bag(grad, offset2bag, index, dtype)
        if per_sample_weights is not None:
            given = ops.mul(given, load_as(per_sample_weights, at, dtype))
        if counts is not None:
            number = counts.load([position(indices, at, count, wrap=False)])
            given = ops.truediv(given, convert(number, torch.int64, dtype))
        if mode == MEAN:
            size = ops.maximum(load_as(bag_size, [bag], torch.int64), constant(1, torch.int64))
            given = ops.truediv(given, convert(size, torch.int64, dtype))
        return _unless_padding(indices, at, padding_idx, given, dtype)

    def place(index: Index) -> list[Expr]:
        return [position(indices, index[:1], count, wrap=False), index[1]]

    return combined(ctx, base, "sum", value, place, (indices.shape[0], grad.shape[1]))


def _divisors(ctx: Builder, indices: Tensor, size: Expr) -> Tensor:
    """The divisor of each row's gradient for ``scale_grad_by_freq`` in bags before torch 2.14.

    ATen then looks the count up at a wrong row: row r, the n-th different one that occurs, is divided by the
    count of the n-th of all indices in order.
    """
    counts = _counts(ctx, indices, size)
    length = indices.shape[0]
    ordered, _ = ctx.sort(indices.load, shape=indices.shape, dtype=indices.dtype)

    def one(index: Index) -> Any:
        occurs = ops.ne(counts.load(index), constant(0, torch.int64))
        return convert(occurs, torch.bool, torch.int64)

    ordinal = running_sum(ctx, one, shape=(size,), finish=lambda index, sum_: ops.sub(sum_, one(index)))

    def inner_fn(index: Index) -> Any:
        occurs = ops.ne(counts.load(index), constant(0, torch.int64))

        def looked_up() -> Any:
            place = ops.indirect_index(ordinal.load(index), length, wrap=False, check=False)
            return counts.load([position(ordered, [place], size, wrap=False, check=False)])

        return ops.masked(occurs, looked_up, 1)

    return ctx.pointwise(inner_fn, shape=(size,), dtype=torch.int64)


def _of_bag(grad: Tensor, offset2bag: Tensor, index: Index, dtype: torch.dtype) -> tuple[Any, Expr]:
    """The gradient of an index's bag (0 if it is in none), and the bag."""
    count = grad.shape[0]
    number = load_as(offset2bag, index[:1], torch.int64)
    inside = ops.lt(number, ops.index_expr(count, torch.int64))
    known = ops.where(inside, number, constant(0, torch.int64))
    bag = ops.indirect_index(known, count, wrap=False, check=False)
    value = ops.masked(inside, lambda: grad.load([bag, *index[1:]]), 0)
    return convert(value, grad.dtype, dtype), bag


def _maximum_backward(ctx: Builder, base: Tensor, grad: Tensor, bag_size: Tensor, rows: Tensor) -> Tensor:
    dtype = compute_dtype(grad.dtype)

    def value(index: Index) -> Any:
        empty = ops.eq(load_as(bag_size, index[:1], torch.int64), constant(0, torch.int64))
        return ops.where(empty, constant(0, dtype), load_as(grad, index, dtype))

    def place(index: Index) -> list[Expr]:
        return [position(rows, index, base.shape[0], wrap=False), index[1]]

    return combined(ctx, base, "sum", value, place, grad.shape)


@lowers(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    ctx: Builder,
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient for each index: the sum over columns of its bag's gradient times its row."""
    dtype = compute_dtype(grad.dtype)
    numbers = _numbers(ctx, indices, offsets, offset2bag)

    def product(index: Index, rindex: Index) -> Any:
        given, _ = _of_bag(grad, numbers, [*index, *rindex], dtype)
        row = position(indices, index, weight.shape[0], wrap=False)
        both = ops.mul(given, load_as(weight, [row, *rindex], dtype))
        return _unless_padding(indices, index, padding_idx, both, dtype)

    (total,) = ctx.reduction(
        "sum", product, shape=indices.shape, reduce_shape=(weight.shape[1],), dtype=dtype
    )
    return cast(ctx, total, grad.dtype)
