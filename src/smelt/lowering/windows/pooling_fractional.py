"""Fractional max pooling: windows of one size whose starts a random number spreads over the input.

After ``aten/src/ATen/native/FractionalMaxPool2d.cpp`` and ``FractionalMaxPool3d.cpp`` (Graham 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import compute_dtype, convert, load_as, result_shape
from smelt.lowering.registry import lowers_by_rank
from smelt.lowering.tensor import Index, Tensor
from smelt.lowering.windows.pooling import Sizes, flat_position, lowest, spread
from smelt.lowering.windows.pooling_backward import add_at_maxima
from smelt.lowering.windows.windows import Window, candidates, unrolled
from smelt.ops import ops
from smelt.symbolic import as_expr, numel, unflatten

aten = torch.ops.aten


def _start(size: Expr, out: Expr, kernel: int, sample: Any, o: Expr, dtype: torch.dtype) -> Any:
    """Where window ``o`` of ``out`` starts, as int64; the last one ends where the input does.

    Eager computes in the dtype of the samples: ``int((o + sample) * alpha) - int(sample * alpha)``.
    """
    compute = compute_dtype(dtype)

    def rounded(value: Any) -> Any:
        return convert(convert(value, compute, dtype), dtype, compute)

    def whole(value: Any) -> Any:
        return ops.to_dtype(value, torch.int64)

    last = ops.index_expr(size - kernel, torch.int64)
    if out == 1:
        return last
    room, gaps = (rounded(ops.index_expr(expr, compute)) for expr in (size - kernel, out - 1))
    alpha = rounded(ops.truediv(room, gaps))
    moved = rounded(ops.add(rounded(ops.index_expr(o, compute)), sample))
    start = ops.sub(whole(rounded(ops.mul(moved, alpha))), whole(rounded(ops.mul(sample, alpha))))
    is_last = ops.eq(ops.index_expr(o, torch.int64), ops.index_expr(out - 1, torch.int64))
    return ops.where(is_last, last, start)


@lowers_by_rank({2: aten.fractional_max_pool2d.default, 3: aten.fractional_max_pool3d.default})
def fractional_max_pool(
    ctx: Builder, x: Tensor, kernel_size: Sizes, output_size: Any, random_samples: Tensor, *, rank: int
) -> tuple[Tensor, Tensor]:
    """(maxima, positions in the input); in two dimensions each takes the other's sample.

    x (C, *) or (N, C, *); samples (N, C, dimensions) in [0, 1). The first of equal elements counts; of
    several NaN in a window its last one as in eager, in large windows (not unrolled) its first one.
    """
    order, samples = (1, 0) if rank == 2 else (0, 1, 2), random_samples
    outer, shape = len(x.shape) - rank, result_shape(ctx, 0)
    if not x.dtype.is_floating_point:
        raise Unsupported(f"fractional max pooling of {x.dtype}")
    kernel = spread(kernel_size, rank, (), "window size")
    sizes, outs, dtype = x.shape[outer:], shape[outer:], compute_dtype(x.dtype)

    def starts(index: Index) -> list[Any]:
        plane = [*([as_expr(0)] if outer == 1 else []), *index[:outer]]
        drawn = [load_as(samples, [*plane, as_expr(each)], compute_dtype(samples.dtype)) for each in order]
        return [
            _start(sizes[d], outs[d], kernel[d], drawn[d], index[outer + d], samples.dtype)
            for d in range(rank)
        ]

    def moved(first: Sequence[Any], numbers: Sequence[Expr]) -> list[Any]:
        steps = [ops.index_expr(number, torch.int64) for number in numbers]
        return [ops.add(start, step) for start, step in zip(first, steps, strict=True)]

    def element(index: Index, where: Sequence[Any]) -> Any:
        at = [ops.indirect_index(each, size, wrap=False) for each, size in zip(where, sizes, strict=True)]
        return load_as(x, [*index[:outer], *at], dtype)

    windows = [Window(as_expr(count), lambda o, k: o + k, lambda o, k: []) for count in kernel]
    if unrolled(windows):

        def furthest(index: Index) -> Any:
            first = starts(index)
            best, at = ops.constant(lowest(x.dtype), dtype), flat_position(first, sizes)
            for numbers in candidates(windows):
                where = moved(first, numbers)
                found = element(index, where)
                wins = ops.logical_or(ops.gt(found, best), ops.isnan(found))
                best = ops.where(wins, found, best)
                at = ops.where(wins, flat_position(where, sizes), at)
            return at
    else:
        (number,) = ctx.reduction(
            "argmax",
            lambda index, rindex: element(index, moved(starts(index), rindex)),
            shape=shape,
            reduce_shape=[as_expr(count) for count in kernel],
            dtype=dtype,
        )

        def furthest(index: Index) -> Any:
            left, coordinates = number.load(index), []
            for start, count in reversed(list(zip(starts(index), kernel, strict=True))):
                width = ops.constant(count, torch.int64)
                coordinates.append(ops.add(start, ops.remainder(left, width)))
                left = ops.floordiv(left, width)
            return flat_position(coordinates[::-1], sizes)

    indices = ctx.pointwise(furthest, shape=shape, dtype=torch.int64)

    def maximum(index: Index) -> Any:
        flat = ops.indirect_index(indices.load(index), numel(sizes), wrap=False, check=False)
        return x.load([*index[:outer], *unflatten(flat, sizes)])

    return ctx.pointwise(maximum, shape=shape, dtype=x.dtype), indices


@lowers_by_rank(
    {2: aten.fractional_max_pool2d_backward.default, 3: aten.fractional_max_pool3d_backward.default}
)
def fractional_max_pool_backward(
    ctx: Builder,
    grad: Tensor,
    x: Tensor,
    kernel_size: Sizes,
    output_size: Any,
    indices: Tensor,
    *,
    rank: int,
) -> Tensor:
    return add_at_maxima(ctx, grad, x, indices, rank=rank)
