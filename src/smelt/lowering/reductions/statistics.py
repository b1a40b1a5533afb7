"""Variance, deviation, norms, log-sum-exp and softmax: reductions followed by a pointwise function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import canonical_dims, cast, compute_dtype, convert, expanded, fill, load_as
from smelt.lowering.numbers import constant
from smelt.lowering.reductions.reductions import Dims, reduce, reduce_tensor
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import Expr, is_zero, numel

aten = torch.ops.aten


# -- variance ------------------------------------------------------------------------------------------------


def moments(
    ctx: Builder, x: Tensor, dims: Sequence[int], *, keepdim: bool = False
) -> tuple[Tensor, Tensor, Expr]:
    """(mean, sum of squared deviations, count) of ``x`` over ``dims``, in the compute dtype."""
    mean, m2, _ = reduce_tensor(ctx, "welford", x, dims, compute_dtype(x.dtype), keepdim=keepdim)
    return mean, m2, numel(x.shape[dim] for dim in dims)


def divided(m2: Any, count: Expr, correction: float | Expr, dtype: torch.dtype) -> Any:
    """``m2 / max(count - correction, 0)``: the variance (NaN or inf for a divisor of 0, as in ATen)."""
    if isinstance(correction, Expr):
        freedom = ops.sub(ops.index_expr(count, dtype), constant(correction, dtype))
    elif float(correction).is_integer():
        freedom = ops.index_expr(count - int(correction), dtype)
    else:
        freedom = ops.sub(ops.index_expr(count, dtype), ops.constant(float(correction), dtype))
    return ops.truediv(m2, ops.maximum(freedom, ops.constant(0.0, dtype)))


def _variance(
    ctx: Builder,
    x: Tensor,
    dim: Dims,
    correction: float | Expr | None,
    keepdim: bool,
    finish: Callable[[Any], Any] = lambda value: value,
) -> tuple[Tensor, Tensor]:
    if not x.dtype.is_floating_point:
        raise Unsupported(f"variance of {x.dtype}")
    dtype, out = compute_dtype(x.dtype), x.dtype
    mean, m2, count = moments(ctx, x, canonical_dims(dim, len(x.shape)), keepdim=keepdim)
    ddof = 1.0 if correction is None else correction
    variance = ctx.pointwise(
        lambda index: convert(finish(divided(m2.load(index), count, ddof, dtype)), dtype, out),
        shape=m2.shape,
        dtype=out,
    )
    if is_zero(count):  # ATen's mean of nothing
        mean = fill(ctx, mean.shape, dtype, math.nan)
    return variance, mean


@lowers(aten.var.correction)
def var(
    ctx: Builder, x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return _variance(ctx, x, dim, correction, keepdim)[0]


@lowers(aten.var.dim)
def var_dim(ctx: Builder, x: Tensor, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return _variance(ctx, x, dim, float(unbiased), keepdim)[0]


@lowers(aten.var.default)
def var_all(ctx: Builder, x: Tensor, unbiased: bool = True) -> Tensor:
    return _variance(ctx, x, None, float(unbiased), False)[0]


@lowers(aten.var_mean.default)
def var_mean_all(ctx: Builder, x: Tensor, unbiased: bool = True) -> tuple[Tensor, Tensor]:
    return var_mean(ctx, x, None, correction=float(unbiased))


@lowers(aten.var_mean.dim)
def var_mean_dim(
    ctx: Builder, x: Tensor, dim: Dims, unbiased: bool = True, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return var_mean(ctx, x, dim, correction=float(unbiased), keepdim=keepdim)


@lowers(aten.var_mean.correction)
def var_mean(
    ctx: Builder, x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    variance, mean = _variance(ctx, x, dim, correction, keepdim)
    return variance, cast(ctx, mean, x.dtype)


# -- norms ---------------------------------------------------------------------------------------------------


@lowers(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    ctx: Builder,
    x: Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``(sum |x|**ord) ** (1/ord)``; 0 counts the non-zero, inf and -inf are the extremes of ``|x|``."""
    out = ctx.dtype
    inputs = x.dtype if dtype is None else dtype
    if not inputs.is_floating_point:
        raise Unsupported(f"vector norm of {inputs}")
    if isinstance(ord, Expr):
        raise Unsupported("a norm whose order is a dynamic number")
    accumulator = compute_dtype(inputs)
    order = float(ord)
    kind = {math.inf: "max", -math.inf: "min"}.get(order, "sum")

    def value(index: Index) -> Any:
        number = convert(load_as(x, index, inputs), inputs, accumulator)
        if order == 0:
            return ops.to_dtype(ops.ne(number, ops.constant(0.0, accumulator)), accumulator)
        if order == 2:
            return ops.mul(number, number)
        size = ops.abs(number)
        return size if kind != "sum" or order == 1 else ops.pow(size, ops.constant(order, accumulator))

    (total,) = reduce(
        ctx, kind, x.shape, canonical_dims(dim, len(x.shape)), value, accumulator, keepdim=keepdim
    )
    if kind != "sum" or order in (0.0, 1.0):
        return cast(ctx, total, out)

    def root(index: Index) -> Any:
        number = total.load(index)
        rooted = ops.sqrt(number) if order == 2 else ops.pow(number, ops.constant(1.0 / order, accumulator))
        return convert(rooted, accumulator, out)

    return ctx.pointwise(root)


# -- softmax -------------------------------------------------------------------------------------------------


def _online(ctx: Builder, x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(max, sum of exp(x - max)) over ``dims``, broadcast back to the shape of ``x``."""
    largest, total = reduce_tensor(ctx, "online_softmax", x, dims, compute_dtype(x.dtype), keepdim=True)
    return expanded(largest, x.shape), expanded(total, x.shape)


@lowers(aten._softmax.default)
def softmax(ctx: Builder, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """Softmax; its exponentials are a tensor of their own, of which the scheduler keeps one row."""
    out, dtype = ctx.dtype, compute_dtype(x.dtype)
    dims = canonical_dims(dim, len(x.shape))
    (largest,) = reduce_tensor(ctx, "max", x, dims, dtype, keepdim=True)
    largest = expanded(largest, x.shape)

    def exponential(index: Index) -> Any:
        return ops.exp(ops.sub(load_as(x, index, dtype), largest.load(index)))

    exponentials = ctx.pointwise(exponential, dtype=dtype)
    (total,) = reduce_tensor(ctx, "sum", exponentials, dims, dtype, keepdim=True)
    total = expanded(total, x.shape)
    return ctx.pointwise(
        lambda index: convert(ops.truediv(exponentials.load(index), total.load(index)), dtype, out)
    )


@lowers(aten._log_softmax.default)
def log_softmax(ctx: Builder, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    out, dtype = ctx.dtype, compute_dtype(x.dtype)
    largest, total = _online(ctx, x, canonical_dims(dim, len(x.shape)))

    def inner_fn(index: Index) -> Any:
        shifted = ops.sub(load_as(x, index, dtype), largest.load(index))
        return convert(ops.sub(shifted, ops.log(total.load(index))), dtype, out)

    return ctx.pointwise(inner_fn)
