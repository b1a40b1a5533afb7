"""Gradients of pooling in gather form: each input sums the gradients of the windows that it counts in.

No atomic adds and a fixed order of summation (that of the outputs), so that results don't depend on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import compute_dtype, fill, load_as
from smelt.lowering.indexing.scatter_reduce import combined, computed
from smelt.lowering.registry import lowers_by_rank
from smelt.lowering.tensor import Index, Tensor
from smelt.lowering.windows.pooling import Average, Sizes, adaptive_divide, spread
from smelt.lowering.windows.windows import Window, adaptive, covering, covering_adaptive, window_reduce
from smelt.ops import ops
from smelt.symbolic import Expr, flatten, numel, unflatten
from smelt.symbolic.index import contiguous_strides

aten = torch.ops.aten


def _gathered(
    ctx: Builder,
    x: Tensor,
    windows: Sequence[Window],
    value: Callable[[Index, list[Expr]], Any],
    dtype: torch.dtype,
) -> Tensor:
    """Sum of ``value(input index, output positions)`` over the windows that hold an input."""
    outer = len(x.shape) - len(windows)
    return window_reduce(
        ctx, "sum", x.shape, outer, windows, value, dtype, 0.0, lambda total, index: total, ctx.dtype
    )


# -- maxima --------------------------------------------------------------------------------------------------


@lowers_by_rank(
    {
        2: aten.max_pool2d_with_indices_backward.default,
        3: aten.max_pool3d_with_indices_backward.default,
    }
)
def max_pool_backward(
    ctx: Builder,
    grad: Tensor,
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    indices: Tensor,
    *,
    rank: int,
) -> Tensor:
    kernel = spread(kernel_size, rank, (), "window size")
    steps = spread(stride, rank, kernel, "stride")
    pads = spread(padding, rank, [0] * rank, "padding")
    gaps = spread(dilation, rank, [1] * rank, "dilation")
    outer, dtype = len(x.shape) - rank, compute_dtype(grad.dtype)
    windows = [covering(grad.shape[outer + d], kernel[d], steps[d], pads[d], gaps[d]) for d in range(rank)]
    strides = contiguous_strides(x.shape[outer:])

    def value(index: Index, where: list[Expr]) -> Any:
        at = [*index[:outer], *where]
        own = ops.index_expr(flatten(index[outer:], strides), torch.int64)
        return ops.where(ops.eq(indices.load(at), own), load_as(grad, at, dtype), ops.constant(0.0, dtype))

    return _gathered(ctx, x, windows, value, dtype)


@lowers_by_rank({2: aten.adaptive_max_pool2d_backward.default, 3: aten.adaptive_max_pool3d_backward.default})
def add_at_maxima(ctx: Builder, grad: Tensor, x: Tensor, indices: Tensor, *, rank: int) -> Tensor:
    """Adds each gradient at its recorded position; windows may share inputs."""
    outer = len(x.shape) - rank
    sizes = x.shape[outer:]

    def place(index: Index) -> list[Expr]:
        flat = ops.indirect_index(indices.load(index), numel(sizes), wrap=False, check=False)
        return [*index[:outer], *unflatten(flat, sizes)]

    base = fill(ctx, x.shape, grad.dtype, 0)
    return combined(ctx, base, "sum", computed(grad.load, grad.dtype), place, grad.shape)


# -- averages ------------------------------------------------------------------------------------------------


@lowers_by_rank({2: aten.avg_pool2d_backward.default, 3: aten.avg_pool3d_backward.default})
def average_pool_backward(
    ctx: Builder, grad: Tensor, x: Tensor, *args: Any, rank: int, **options: Any
) -> Tensor:
    if not grad.dtype.is_floating_point:
        raise Unsupported(f"average pooling of {grad.dtype}")
    outer, dtype = len(x.shape) - rank, compute_dtype(grad.dtype)
    average = Average(rank, x.shape[outer:], grad.shape[outer:], *args, **options)
    windows = [
        covering(grad.shape[outer + d], average.kernel[d], average.stride[d], average.padding[d], 1)
        for d in range(rank)
    ]

    def value(index: Index, where: list[Expr]) -> Any:
        return average.divide(load_as(grad, [*index[:outer], *where], dtype), where, dtype)

    return _gathered(ctx, x, windows, value, dtype)


@lowers_by_rank(
    {2: aten._adaptive_avg_pool2d_backward.default, 3: aten._adaptive_avg_pool3d_backward.default}
)
def adaptive_average_pool_backward(ctx: Builder, grad: Tensor, x: Tensor, *, rank: int) -> Tensor:
    if not grad.dtype.is_floating_point:
        raise Unsupported(f"average pooling of {grad.dtype}")
    outer, dtype = len(x.shape) - rank, compute_dtype(grad.dtype)
    sizes, outs = x.shape[outer:], grad.shape[outer:]
    forward = [adaptive(size, out) for size, out in zip(sizes, outs, strict=True)]
    windows = [covering_adaptive(size, out) for size, out in zip(sizes, outs, strict=True)]

    def value(index: Index, where: list[Expr]) -> Any:
        number = load_as(grad, [*index[:outer], *where], dtype)
        return adaptive_divide(number, forward, where, sizes, outs, dtype)

    return _gathered(ctx, x, windows, value, dtype)
