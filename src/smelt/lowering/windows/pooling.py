"""Pooling over sliding and adaptive windows: maxima with their positions, and averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import compute_dtype, fold, load_as, result_shape, static
from smelt.lowering.registry import lowers_by_rank
from smelt.lowering.tensor import Index, Tensor
from smelt.lowering.windows.windows import (
    Window,
    adaptive,
    adaptive_end,
    candidates,
    positions,
    sliding,
    unrolled,
    window_reduce,
    window_value,
)
from smelt.ops import ops
from smelt.symbolic import FloorDiv, as_expr

aten = torch.ops.aten

Sizes = Sequence[int] | int


def spread(value: Sizes | None, rank: int, default: Sequence[int], what: str) -> list[int]:
    """A kernel size, stride or padding for each of ``rank`` dimensions; one number stands for all."""
    listed = [value] if not isinstance(value, (list, tuple)) and value is not None else list(value or ())
    if not listed:
        return list(default)
    numbers = [static(number, what) for number in listed]
    return numbers * rank if len(numbers) == 1 else numbers


def lowest(dtype: torch.dtype) -> float | int:
    """What a maximum starts from."""
    if dtype.is_floating_point:
        return float("-inf")
    return torch.iinfo(dtype).min


# -- maxima --------------------------------------------------------------------------------------------------


def _max_pool(
    ctx: Builder, x: Tensor, windows: Sequence[Window], first: Callable[[Index], list[Any]]
) -> tuple[Tensor, Tensor]:
    """(maxima, positions in the input plane); ``first(places)`` is each dimension's first real position."""
    rank = len(windows)
    outer, shape = len(x.shape) - rank, result_shape(ctx, 0)
    dtype, least = compute_dtype(x.dtype), lowest(x.dtype)
    if x.dtype is torch.bool:
        raise Unsupported("max pooling of booleans")
    sizes = x.shape[outer:]

    def value(index: Index, where: list[Expr]) -> Any:
        return load_as(x, [*index[:outer], *where], dtype)

    values = window_reduce(
        ctx, "max", shape, outer, windows, value, dtype, least, lambda total, index: total, x.dtype
    )
    if unrolled(windows):
        numbers = candidates(windows)

        def chain(index: Index) -> Any:
            places = index[outer:]
            best, at = ops.constant(least, dtype), flat_position(first(places), sizes)
            for number in numbers:
                where = positions(windows, places, number)
                found = window_value(windows, places, number, lambda w: value(index, w), least)
                wins = ops.gt(found, best)
                if dtype.is_floating_point:
                    wins = ops.logical_or(wins, ops.isnan(found))
                best = ops.where(wins, found, best)
                at = ops.where(
                    wins, flat_position([ops.index_expr(p, torch.int64) for p in where], sizes), at
                )
            return at

        return values, ctx.pointwise(chain, shape=shape, dtype=torch.int64)

    (best,) = ctx.reduction(
        "argmax",
        lambda index, rindex: window_value(
            windows, index[outer:], rindex, lambda where: value(index, where), least
        ),
        shape=shape,
        reduce_shape=[window.count for window in windows],
        dtype=dtype,
    )

    def unfold(index: Index) -> Any:
        places, number = index[outer:], best.load(index)
        coordinates = []
        for window, o, start in reversed(list(zip(windows, places, first(places), strict=True))):
            count = ops.index_expr(window.count, torch.int64)
            step = window.position(o, as_expr(1)) - window.position(o, as_expr(0))
            moved = ops.mul(ops.remainder(number, count), ops.index_expr(step, torch.int64))
            reached = ops.add(ops.index_expr(window.position(o, as_expr(0)), torch.int64), moved)
            coordinates.append(ops.maximum(reached, start))  # all padding and -inf: the first real one
            number = ops.floordiv(number, count)
        return flat_position(coordinates[::-1], sizes)

    return values, ctx.pointwise(unfold, shape=shape, dtype=torch.int64)


def flat_position(coordinates: Sequence[Any], sizes: Sequence[Expr]) -> Any:
    """The row-major position of int64 coordinates in a plane of these sizes."""
    flat = coordinates[0]
    for coordinate, size in zip(coordinates[1:], sizes[1:], strict=True):
        flat = ops.add(ops.mul(flat, ops.index_expr(size, torch.int64)), coordinate)
    return flat


@lowers_by_rank({2: aten.max_pool2d_with_indices.default, 3: aten.max_pool3d_with_indices.default})
def max_pool(
    ctx: Builder,
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    *,
    rank: int,
) -> tuple[Tensor, Tensor]:
    kernel = spread(kernel_size, rank, (), "window size")
    steps = spread(stride, rank, kernel, "stride")
    pads = spread(padding, rank, [0] * rank, "padding")
    gaps = spread(dilation, rank, [1] * rank, "dilation")
    outer, shape = len(x.shape) - rank, result_shape(ctx, 0)
    windows = [
        sliding(x.shape[outer + d], shape[outer + d], kernel[d], steps[d], pads[d], gaps[d], ceil_mode)
        for d in range(rank)
    ]

    def first(places: Index) -> list[Any]:
        """Each dimension's first position that is not padding."""
        starts = []
        for o, step, pad, gap in zip(places, steps, pads, gaps, strict=True):
            start = ops.index_expr(o * step - pad, torch.int64)
            if pad > 0:
                missing = ops.maximum(ops.neg(start), ops.constant(0, torch.int64))
                if gap > 1:  # up to a whole number of gaps
                    width = ops.constant(gap, torch.int64)
                    missing = ops.add(missing, ops.constant(gap - 1, torch.int64))
                    missing = ops.mul(ops.floordiv(missing, width), width)
                start = ops.add(start, missing)
            starts.append(start)
        return starts

    return _max_pool(ctx, x, windows, first)


@lowers_by_rank({2: aten.adaptive_max_pool2d.default, 3: aten.adaptive_max_pool3d.default})
def adaptive_max_pool(ctx: Builder, x: Tensor, output_size: Any, *, rank: int) -> tuple[Tensor, Tensor]:
    outer, shape = len(x.shape) - rank, result_shape(ctx, 0)
    windows = [adaptive(x.shape[outer + d], shape[outer + d]) for d in range(rank)]

    def first(places: Index) -> list[Any]:
        return [
            ops.index_expr(window.position(o, as_expr(0)), torch.int64)
            for window, o in zip(windows, places, strict=True)
        ]

    return _max_pool(ctx, x, windows, first)


# -- averages ------------------------------------------------------------------------------------------------


Extent = Callable[[Expr], Any]


def sliding_extent(
    size: Expr, out: Expr, kernel: int, stride: int, padding: int, ceil_mode: bool, include_pad: bool
) -> Extent | None:
    """How many inputs window ``o`` of one dimension counts, as an int64 value; None: always ``kernel``."""
    always_full = not ceil_mode and (padding == 0 or include_pad)
    if not always_full and size.is_Integer and out.is_Integer:
        end = (out - 1) * stride - padding + kernel
        always_full = bool(end <= size + padding) if include_pad else bool(padding == 0 and end <= size)
    if always_full:
        return None

    def extent(o: Expr) -> Any:
        start = ops.index_expr(o * stride - padding, torch.int64)
        end = ops.index_expr(o * stride - padding + kernel, torch.int64)
        end = ops.minimum(end, ops.index_expr(size + (padding if include_pad else 0), torch.int64))
        if not include_pad:
            start = ops.maximum(start, ops.constant(0, torch.int64))
        return ops.sub(end, start)

    return extent


class Average:
    """The arguments of avg_poolNd, and what they say about a window."""

    def __init__(
        self,
        rank: int,
        sizes: Sequence[Expr],
        out: Sequence[Expr],
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        self.kernel = spread(kernel_size, rank, (), "window size")
        self.stride = spread(stride, rank, self.kernel, "stride")
        self.padding = spread(padding, rank, [0] * rank, "padding")
        self.override = divisor_override
        self.windows = [
            sliding(sizes[d], out[d], self.kernel[d], self.stride[d], self.padding[d], 1, ceil_mode)
            for d in range(rank)
        ]
        self.extents = [
            sliding_extent(size, n, kernel, step, pad, ceil_mode, count_include_pad)
            for size, n, kernel, step, pad in zip(sizes, out, self.kernel, self.stride, self.padding)
        ]

    def divide(self, total: Any, places: Index, dtype: torch.dtype) -> Any:
        """``total`` of window ``places`` divided by what counts in it."""
        quotient = ops.truediv if dtype.is_floating_point else ops.truncdiv
        if self.override is not None:
            return quotient(total, ops.constant(self.override, dtype))
        full, counts = 1, []
        for extent, o, kernel in zip(self.extents, places, self.kernel, strict=True):
            if extent is None:
                full *= kernel
            else:
                counts.append(extent(o))
        if not counts:
            return quotient(total, ops.constant(full, dtype))
        if full != 1:
            counts.append(ops.constant(full, torch.int64))
        divisor = fold(lambda left, right: ops.mul(left, right), counts)
        return quotient(total, ops.to_dtype(divisor, dtype))


@lowers_by_rank({1: aten.avg_pool1d.default, 2: aten.avg_pool2d.default, 3: aten.avg_pool3d.default})
def average_pool(ctx: Builder, x: Tensor, *args: Any, rank: int, **options: Any) -> Tensor:
    """``args``, ``options``: those of `Average`, which has ATen's names."""
    if not x.dtype.is_floating_point and x.dtype is not torch.int64:  # which eager refuses
        raise Unsupported(f"average pooling of {x.dtype}")
    outer, shape, dtype = len(x.shape) - rank, ctx.shape, compute_dtype(x.dtype)
    average = Average(rank, x.shape[outer:], shape[outer:], *args, **options)
    return window_reduce(
        ctx,
        "sum",
        shape,
        outer,
        average.windows,
        lambda index, where: load_as(x, [*index[:outer], *where], dtype),
        dtype,
        0.0,
        lambda total, index: average.divide(total, index[outer:], dtype),
        x.dtype,
    )


def adaptive_extent(window: Window, o: Expr, size: Expr, out: Expr) -> Expr:
    """How many inputs adaptive window ``o`` holds."""
    if not window.tests(o, as_expr(0)):
        return window.count
    return adaptive_end(o, size, out) - FloorDiv(o * size, out)


def adaptive_divide(
    total: Any, windows: Sequence[Window], places: Index, sizes: Index, outs: Index, dtype: torch.dtype
) -> Any:
    """``total`` divided by each dimension's window size in turn, as ATen does."""
    for window, o, size, out in zip(windows, places, sizes, outs, strict=True):
        total = ops.truediv(total, ops.index_expr(adaptive_extent(window, o, size, out), dtype))
    return total


@lowers_by_rank(
    {
        1: aten.adaptive_avg_pool1d.default,
        2: aten._adaptive_avg_pool2d.default,
        3: aten._adaptive_avg_pool3d.default,
    }
)
def adaptive_average_pool(ctx: Builder, x: Tensor, output_size: Any, *, rank: int) -> Tensor:
    if not x.dtype.is_floating_point:
        raise Unsupported(f"average pooling of {x.dtype}")
    outer, shape, dtype = len(x.shape) - rank, ctx.shape, compute_dtype(x.dtype)
    sizes, outs = x.shape[outer:], shape[outer:]
    windows = [adaptive(size, out) for size, out in zip(sizes, outs, strict=True)]
    return window_reduce(
        ctx,
        "sum",
        shape,
        outer,
        windows,
        lambda index, where: load_as(x, [*index[:outer], *where], dtype),
        dtype,
        0.0,
        lambda total, index: adaptive_divide(total, windows, index[outer:], sizes, outs, dtype),
        x.dtype,
    )
