"""Gradients of layer, group and batch normalisation, each with as many reductions as it has sums.

With ``n = (x - mean) * rstd`` and ``g = grad * weight`` the input's gradient is
``rstd * (g - mean(g) - n * mean(g * n))``, the means taken over what was normalised together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import cast, compute_dtype, convert, load_as, load_or, result_dtype
from smelt.lowering.reductions.normalization import group_of, grouped
from smelt.lowering.reductions.reductions import reduce
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import as_expr, numel

aten = torch.ops.aten


class _Normalised:
    """The loads a gradient needs; ``row`` and ``column`` map an index to one of statistics and of weight."""

    def __init__(
        self,
        grad: Tensor,
        x: Tensor,
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
        row: Any,
        column: Any,
    ) -> None:
        self.tensors = grad, x, mean, rstd, weight
        self.row, self.column = row, column
        self.dtype = compute_dtype(x.dtype)

    def grad(self, index: Index) -> Any:
        return load_as(self.tensors[0], index, self.dtype)

    def normal(self, index: Index) -> Any:
        """``(x - mean) * rstd``."""
        _, x, mean, _, _ = self.tensors
        shifted = ops.sub(load_as(x, index, self.dtype), load_as(mean, self.row(index), self.dtype))
        return ops.mul(shifted, self.rstd(index))

    def rstd(self, index: Index) -> Any:
        return load_as(self.tensors[3], self.row(index), self.dtype)

    def weighted(self, index: Index) -> Any:
        """``grad * weight``."""
        weight = self.tensors[4]
        if weight is None:
            return self.grad(index)
        return ops.mul(self.grad(index), load_as(weight, self.column(index), self.dtype))


@lowers(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    ctx: Builder,
    grad: Tensor,
    x: Tensor,
    normalized_shape: Sequence[Any],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    outer, shape = len(x.shape) - len(normalized_shape), x.shape

    def row(index: Index) -> list[Expr]:
        return [position if dim < outer else as_expr(0) for dim, position in enumerate(index)]

    part = _Normalised(grad, x, mean, rstd, weight, row, lambda index: index[outer:])
    dtype = part.dtype
    inner, leading = range(outer, len(shape)), range(outer)
    results: list[Tensor | None] = [None, None, None]
    if output_mask[0]:
        out = result_dtype(ctx, 0)
        (total,) = reduce(ctx, "sum", shape, inner, part.weighted, dtype, keepdim=True)
        (product,) = reduce(
            ctx,
            "sum",
            shape,
            inner,
            lambda index: ops.mul(part.weighted(index), part.normal(index)),
            dtype,
            keepdim=True,
        )
        count = numel(shape[dim] for dim in inner)

        def grad_input(index: Index) -> Any:
            sums = total.load(row(index)), product.load(row(index))
            return convert(_input_gradient(part, index, *sums, count), dtype, out)

        results[0] = ctx.pointwise(grad_input, shape=shape, dtype=out)
    _weight_gradients(ctx, part, shape, leading, output_mask, results)
    return tuple(results)


def _input_gradient(part: _Normalised, index: Index, total: Any, product: Any, count: Expr) -> Any:
    size = ops.index_expr(count, part.dtype)
    value = ops.sub(part.weighted(index), ops.truediv(total, size))
    value = ops.sub(value, ops.mul(part.normal(index), ops.truediv(product, size)))
    return ops.mul(value, part.rstd(index))


def _weight_gradients(
    ctx: Builder,
    part: _Normalised,
    shape: Sequence[Expr],
    dims: Sequence[int],
    output_mask: Sequence[bool],
    results: list[Tensor | None],
) -> None:
    """Sums of ``grad * n`` and of ``grad`` over all dimensions that the weight does not have."""
    if output_mask[1]:
        (scaled,) = reduce(
            ctx,
            "sum",
            shape,
            dims,
            lambda index: ops.mul(part.grad(index), part.normal(index)),
            part.dtype,
        )
        results[1] = cast(ctx, scaled, result_dtype(ctx, 1))
    if output_mask[2]:
        (plain,) = reduce(ctx, "sum", shape, dims, part.grad, part.dtype)
        results[2] = cast(ctx, plain, result_dtype(ctx, 2))


@lowers(aten.native_group_norm_backward.default)
def group_norm_backward(
    ctx: Builder,
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    batch: Any,
    channels: Any,
    spatial: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    shape = x.shape

    def row(index: Index) -> list[Expr]:
        return [index[0], group_of(index[1], shape[1], groups)]

    part = _Normalised(grad, x, mean, rstd, weight, row, lambda index: [index[1]])
    dtype = part.dtype
    results: list[Tensor | None] = [None, None, None]
    if output_mask[0]:
        out = result_dtype(ctx, 0)
        split = grouped(x, groups)  # the same places as ``x``, seen as (batch, group, channel in it, …)
        inner = range(2, len(split.shape))
        depth = split.shape[2]

        def merged(index: Index) -> list[Expr]:
            return [index[0], index[1] * depth + index[2], *index[3:]]

        def by_group(index: Index) -> _Normalised:
            return _Normalised(grad, x, mean, rstd, weight, lambda _: index[:2], lambda at: [at[1]])

        def weighted(index: Index) -> Any:
            return by_group(index).weighted(merged(index))

        def with_normal(index: Index) -> Any:
            return ops.mul(weighted(index), by_group(index).normal(merged(index)))

        (total,) = reduce(ctx, "sum", split.shape, inner, weighted, dtype)
        (product,) = reduce(ctx, "sum", split.shape, inner, with_normal, dtype)
        count = numel(split.shape[dim] for dim in inner)

        def grad_input(index: Index) -> Any:
            sums = total.load(row(index)), product.load(row(index))
            return convert(_input_gradient(part, index, *sums, count), dtype, out)

        results[0] = ctx.pointwise(grad_input, shape=shape, dtype=out)
    others = [dim for dim in range(len(shape)) if dim != 1]
    _weight_gradients(ctx, part, shape, others, output_mask, results)
    return tuple(results)


@lowers(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    ctx: Builder,
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    saved_mean: Tensor | None,
    saved_rstd: Tensor | None,
    training: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of input, weight and bias.

    With ``d = x - mean``: bias gets sum(grad), weight gets ``sum(grad*d) * rstd``, and the input
    ``(grad - sum(grad)/n - d * rstd**2 * sum(grad*d)/n) * rstd * weight``; the sums only count in training.
    """
    dtype, shape = compute_dtype(x.dtype), x.shape
    others = [dim for dim in range(len(shape)) if dim != 1]
    count = numel(shape[dim] for dim in others)
    source_mean, source_scale = (saved_mean, saved_rstd) if training else (running_mean, running_var)
    if source_mean is None or source_scale is None:
        raise Unsupported("batch norm backward without statistics")

    def mean(channel: Expr) -> Any:
        return load_as(source_mean, [channel], dtype)

    def rstd(channel: Expr) -> Any:
        scale = load_as(source_scale, [channel], dtype)
        return scale if training else ops.rsqrt(ops.add(scale, ops.constant(float(eps), dtype)))

    def deviation(index: Index) -> Any:
        return ops.sub(load_as(x, index, dtype), mean(index[1]))

    (total,) = reduce(ctx, "sum", shape, others, lambda index: load_as(grad, index, dtype), dtype)
    (product,) = reduce(
        ctx, "sum", shape, others, lambda index: ops.mul(load_as(grad, index, dtype), deviation(index)), dtype
    )
    results: list[Tensor | None] = [None, None, None]
    if output_mask[0]:
        out = result_dtype(ctx, 0)

        def grad_input(index: Index) -> Any:
            value, inverse = load_as(grad, index, dtype), rstd(index[1])
            if training:
                size = ops.index_expr(count, dtype)
                slope = ops.mul(ops.mul(inverse, inverse), ops.truediv(product.load([index[1]]), size))
                value = ops.sub(value, ops.truediv(total.load([index[1]]), size))
                value = ops.sub(value, ops.mul(deviation(index), slope))
            return convert(
                ops.mul(value, ops.mul(inverse, load_or(weight, [index[1]], dtype, 1.0))), dtype, out
            )

        results[0] = ctx.pointwise(grad_input, shape=shape, dtype=out)
    if output_mask[1]:
        scaled = ctx.pointwise(
            lambda index: ops.mul(product.load(index), rstd(index[0])), shape=product.shape, dtype=dtype
        )
        results[1] = cast(ctx, scaled, result_dtype(ctx, 1))
    if output_mask[2]:
        results[2] = cast(ctx, total, result_dtype(ctx, 2))
    return tuple(results)


@lowers(aten.batch_norm_backward.default)
def batch_norm_backward_reserve(
    ctx: Builder,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    saved_mean: Tensor | None,
    saved_rstd: Tensor | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Tensor,
) -> tuple[Tensor | None, ...]:
    return batch_norm_backward(
        ctx, grad, x, weight, running_mean, running_var, saved_mean, saved_rstd, update, eps, output_mask
    )
