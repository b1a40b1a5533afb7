"""Layer, group and batch normalisation. Statistics are kept in the compute dtype; one rounding per result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    load_or,
    result_dtype,
    result_shape,
)
from smelt.lowering.reductions.statistics import divided, moments
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import FloorDiv, as_expr, is_one

aten = torch.ops.aten


def _rstd(ctx: Builder, m2: Tensor, count: Expr, eps: float) -> Tensor:
    """``1 / sqrt(m2 / count + eps)`` in the dtype of ``m2``."""
    dtype = m2.dtype

    def inner_fn(index: Index) -> Any:
        variance = divided(m2.load(index), count, 0, dtype)
        return ops.rsqrt(ops.add(variance, ops.constant(float(eps), dtype)))

    return ctx.pointwise(inner_fn, shape=m2.shape, dtype=dtype)


def _shift_and_scale(
    ctx: Builder,
    x: Tensor,
    mean: Callable[[Index], Any],
    rstd: Callable[[Index], Any],
    weight: Tensor | None,
    bias: Tensor | None,
    place: Callable[[Index], Sequence[Expr]],
) -> Tensor:
    """``(x - mean) * rstd * weight + bias``; ``place`` maps an index of ``x`` to one of weight and bias."""
    dtype, out = compute_dtype(x.dtype), result_dtype(ctx, 0)

    def inner_fn(index: Index) -> Any:
        value = ops.mul(ops.sub(load_as(x, index, dtype), mean(index)), rstd(index))
        if weight is not None:
            value = ops.mul(value, load_as(weight, place(index), dtype))
        value = ops.add(value, load_or(bias, place(index), dtype, 0.0))  # as ATen: no bias adds 0, never -0.0
        return convert(value, dtype, out)

    return ctx.pointwise(inner_fn, shape=x.shape, dtype=out)


@lowers(aten.native_layer_norm.default)
def layer_norm(
    ctx: Builder,
    x: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(result, mean, 1/deviation) over the last ``len(normalized_shape)`` dimensions."""
    outer = len(x.shape) - len(normalized_shape)
    inner = range(outer, len(x.shape))
    mean, m2, count = moments(ctx, x, inner, keepdim=True)
    rstd = _rstd(ctx, m2, count, eps)

    def row(index: Index) -> list[Expr]:
        return [position if dim < outer else as_expr(0) for dim, position in enumerate(index)]

    result = _shift_and_scale(
        ctx,
        x,
        lambda index: mean.load(row(index)),
        lambda index: rstd.load(row(index)),
        weight,
        bias,
        lambda index: index[outer:],
    )
    return result, cast(ctx, mean, result_dtype(ctx, 1)), cast(ctx, rstd, result_dtype(ctx, 2))


def grouped(x: Tensor, groups: int) -> Tensor:
    """``x`` as (batch, group, channel in the group, …), a view."""
    depth = FloorDiv(x.shape[1], as_expr(groups))
    return x.view(
        [x.shape[0], as_expr(groups), depth, *x.shape[2:]],
        lambda index: [index[0], index[1] * depth + index[2], *index[3:]],
    )


def group_of(channel: Expr, channels: Expr, groups: int) -> Expr:
    """The group that a channel belongs to."""
    depth = FloorDiv(channels, as_expr(groups))
    return as_expr(0) if groups == 1 else channel if is_one(depth) else FloorDiv(channel, depth)


@lowers(aten.native_group_norm.default)
def group_norm(
    ctx: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: Any,
    channels: Any,
    spatial: Any,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(result, mean, 1/deviation); the statistics have shape (batch, groups)."""
    split = grouped(x, groups)
    mean, m2, count = moments(ctx, split, range(2, len(split.shape)))
    rstd = _rstd(ctx, m2, count, eps)

    def row(index: Index) -> list[Expr]:
        return [index[0], group_of(index[1], x.shape[1], groups)]

    result = _shift_and_scale(
        ctx,
        x,
        lambda index: mean.load(row(index)),
        lambda index: rstd.load(row(index)),
        weight,
        bias,
        lambda index: [index[1]],
    )
    return result, cast(ctx, mean, result_dtype(ctx, 1)), cast(ctx, rstd, result_dtype(ctx, 2))


# -- batch normalisation -------------------------------------------------------------------------------------


def _batch_inference(
    ctx: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
) -> Tensor:
    dtype, out = compute_dtype(x.dtype), result_dtype(ctx, 0)

    def scale_of(index: Index) -> Any:
        variance = load_as(running_var, index, dtype)
        rstd = ops.rsqrt(ops.add(variance, ops.constant(float(eps), dtype)))
        return rstd if weight is None else ops.mul(rstd, load_as(weight, index, dtype))

    scale = ctx.pointwise(scale_of, shape=[x.shape[1]], dtype=dtype)

    def inner_fn(index: Index) -> Any:
        channel = [index[1]]
        shifted = ops.sub(load_as(x, index, dtype), load_as(running_mean, channel, dtype))
        value = ops.mul(shifted, scale.load(channel))
        return convert(ops.add(value, load_or(bias, channel, dtype, 0.0)), dtype, out)

    return ctx.pointwise(inner_fn, shape=x.shape, dtype=out)


def _batch_training(
    ctx: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Expr]:
    """(result, mean, m2, 1/deviation, count); statistics per channel in the compute dtype."""
    mean, m2, count = moments(ctx, x, [dim for dim in range(len(x.shape)) if dim != 1])
    rstd = _rstd(ctx, m2, count, eps)
    result = _shift_and_scale(
        ctx,
        x,
        lambda index: mean.load([index[1]]),
        lambda index: rstd.load([index[1]]),
        weight,
        bias,
        lambda index: [index[1]],
    )
    return result, mean, m2, rstd, count


def _running(
    ctx: Builder, old: Tensor, momentum: float, batch: Callable[[Index], Any], dtype: torch.dtype
) -> Tensor:
    """``momentum * batch + (1 - momentum) * old``."""
    compute = torch.promote_types(compute_dtype(old.dtype), dtype)

    def inner_fn(index: Index) -> Any:
        new = ops.mul(ops.constant(momentum, compute), convert(batch(index), dtype, compute))
        kept = ops.mul(ops.constant(1.0 - momentum, compute), load_as(old, index, compute))
        return convert(ops.add(new, kept), compute, old.dtype)

    return ctx.pointwise(inner_fn, shape=old.shape, dtype=old.dtype)


def _batch_norm_updating(
    ctx: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(result, saved mean, saved 1/deviation, new running mean, new running variance)."""
    result, mean, m2, rstd, count = _batch_training(ctx, x, weight, bias, eps)
    dtype = mean.dtype
    new_mean = _running(ctx, running_mean, momentum, mean.load, dtype)
    new_var = _running(
        ctx, running_var, momentum, lambda index: divided(m2.load(index), count, 1, dtype), dtype
    )
    return (
        result,
        cast(ctx, mean, result_dtype(ctx, 1)),
        cast(ctx, rstd, result_dtype(ctx, 2)),
        new_mean,
        new_var,
    )


@lowers(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    ctx: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    if training:
        return _batch_norm_updating(ctx, x, weight, bias, running_mean, running_var, momentum, eps)
    result = _batch_inference(ctx, x, weight, bias, running_mean, running_var, eps)
    return result, *_nothing(ctx, 1, 2), running_mean, running_var


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    ctx: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    result = _batch_inference(ctx, x, weight, bias, running_mean, running_var, eps)
    return result, *_nothing(ctx, 1, 2)


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    ctx: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    result, mean, _, rstd, _ = _batch_training(ctx, x, weight, bias, eps)
    return result, cast(ctx, mean, result_dtype(ctx, 1)), cast(ctx, rstd, result_dtype(ctx, 2))


def _nothing(ctx: Builder, *positions: int) -> tuple[Tensor, ...]:
    """Empty results (the saved statistics of inference); equal ones are one buffer."""
    made: dict[Any, Tensor] = {}
    results = []
    for position in positions:
        key = shape, dtype = result_shape(ctx, position), result_dtype(ctx, position)
        if not any(size == 0 for size in shape):
            raise Unsupported("batch norm that saves statistics in inference")
        if key not in made:
            made[key] = fill(ctx, shape, dtype, 0)
        results.append(made[key])
    return tuple(results)
