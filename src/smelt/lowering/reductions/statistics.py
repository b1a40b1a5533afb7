"""Variance, deviation, norms, log-sum-exp and softmax: reductions with a pointwise function behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder, constant
from smelt.lowering.dims import canonical_dims, cast, compute_dtype, convert, expanded, fill, load_as
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
    """``m2 / max(count - correction, 0)``: the variance (NaN or inf where the divisor is 0, as ATen's)."""
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


@lowers(aten.std.correction)
def std(
    ctx: Builder, x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return _variance(ctx, x, dim, correction, keepdim, lambda value: ops.sqrt(value))[0]


@lowers(aten.var_mean.correction)
def var_mean(
    ctx: Builder, x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    variance, mean = _variance(ctx, x, dim, correction, keepdim)
    return variance, cast(ctx, mean, x.dtype)


@lowers(aten.std_mean.correction)
def std_mean(
    ctx: Builder, x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    deviation, mean = _variance(ctx, x, dim, correction, keepdim, lambda value: ops.sqrt(value))
    return deviation, cast(ctx, mean, x.dtype)


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
    """The exponentials are a tensor of their own: the scheduler keeps a row of them, computed once."""
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


@lowers(aten._softmax_backward_data.default)
def softmax_backward(
    ctx: Builder, grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """``output * (grad - sum(grad * output))``."""
    out, dtype = ctx.dtype, compute_dtype(grad.dtype)

    def product(index: Index) -> Any:
        return ops.mul(load_as(grad, index, dtype), load_as(output, index, dtype))

    dims = canonical_dims(dim, len(grad.shape))
    (total,) = reduce(ctx, "sum", grad.shape, dims, product, dtype, keepdim=True)
    total = expanded(total, grad.shape)

    def inner_fn(index: Index) -> Any:
        shifted = ops.sub(load_as(grad, index, dtype), total.load(index))
        return convert(ops.mul(load_as(output, index, dtype), shifted), dtype, out)

    return ctx.pointwise(inner_fn)


@lowers(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    ctx: Builder, grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """``grad - exp(output) * sum(grad)``."""
    out, dtype = ctx.dtype, compute_dtype(grad.dtype)
    dims = canonical_dims(dim, len(grad.shape))
    (total,) = reduce_tensor(ctx, "sum", grad, dims, dtype, keepdim=True)
    total = expanded(total, grad.shape)

    def inner_fn(index: Index) -> Any:
        scaled = ops.mul(ops.exp(load_as(output, index, dtype)), total.load(index))
        return convert(ops.sub(load_as(grad, index, dtype), scaled), dtype, out)

    return ctx.pointwise(inner_fn)


@lowers(aten.logsumexp.default)
def logsumexp(ctx: Builder, x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """``log(sum(exp(x - m))) + m`` with ``m`` the maximum, 0 where that is infinite."""
    if not x.dtype.is_floating_point:
        raise Unsupported(f"logsumexp of {x.dtype}")
    out, dtype = ctx.dtype, compute_dtype(x.dtype)
    dims = canonical_dims(dim, len(x.shape))
    (largest,) = reduce_tensor(ctx, "max", x, dims, dtype, keepdim=True)

    def shift(index: Index) -> Any:
        number = largest.load(index)
        return ops.where(ops.isinf(number), ops.constant(0.0, dtype), number)

    wide = expanded(largest, x.shape)

    def value(index: Index) -> Any:
        number = wide.load(index)
        shifted = ops.where(ops.isinf(number), ops.constant(0.0, dtype), number)
        return ops.exp(ops.sub(load_as(x, index, dtype), shifted))

    (total,) = reduce(ctx, "sum", x.shape, dims, value, dtype, keepdim=True)
    result = ctx.pointwise(
        lambda index: convert(ops.add(ops.log(total.load(index)), shift(index)), dtype, out),
        shape=total.shape,
        dtype=out,
    )
    if keepdim:
        return result
    kept = [dim for dim in range(len(x.shape)) if dim not in dims]
    position = {dim: place for place, dim in enumerate(kept)}
    zero = numel(()) - 1
    return result.view(
        [x.shape[dim] for dim in kept],
        lambda index: [index[position[dim]] if dim in position else zero for dim in range(len(x.shape))],
    )
