"""Activation functions and their gradients, with the order of operations of ATen's CPU kernels."""

from __future__ import annotations

import math
from typing import Any

import torch

from smelt.lowering.builder import Builder
from smelt.lowering.elementwise.pointwise import clamp_value
from smelt.lowering.promotion import Constants, Number, elementwise, pointwise
from smelt.lowering.registry import lowers
from smelt.lowering.shapes.views import slice_view
from smelt.lowering.tensor import Tensor
from smelt.ops import ops

aten = torch.ops.aten

# -- rectifiers --------------------------------------------------------------------------------------------

pointwise(aten.relu.default, lambda c, x: ops.where(ops.lt(x, c(0)), c(0), x))


@lowers(aten.leaky_relu.default)
def leaky_relu(ctx: Builder, x: Tensor, slope: Number = 0.01) -> Tensor:
    return elementwise(ctx, lambda c, v: ops.where(ops.gt(v, c(0)), v, ops.mul(v, c(slope))), x)


@lowers(aten.leaky_relu_backward.default)
def leaky_relu_backward(ctx: Builder, grad: Tensor, x: Tensor, slope: Number, is_result: bool) -> Tensor:
    return elementwise(ctx, lambda c, g, v: ops.where(ops.gt(v, c(0)), g, ops.mul(g, c(slope))), grad, x)


@lowers(aten.threshold.default)
def threshold(ctx: Builder, x: Tensor, limit: Number, value: Number) -> Tensor:
    return elementwise(ctx, lambda c, v: ops.where(ops.le(v, c(limit)), c(value), v), x)


@lowers(aten.threshold_backward.default)
def threshold_backward(ctx: Builder, grad: Tensor, x: Tensor, limit: Number) -> Tensor:
    return elementwise(ctx, lambda c, g, v: ops.where(ops.le(v, c(limit)), c(0), g), grad, x)


pointwise(aten._prelu_kernel.default, lambda c, x, w: ops.where(ops.gt(x, c(0)), x, ops.mul(w, x)))


@lowers(aten._prelu_kernel_backward.default)
def prelu_backward(ctx: Builder, grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    def to_x(c: Constants, g: Any, v: Any, w: Any) -> Any:
        return ops.where(ops.gt(v, c(0)), g, ops.mul(w, g))

    def to_weight(c: Constants, g: Any, v: Any, w: Any) -> Any:
        return ops.where(ops.gt(v, c(0)), c(0), ops.mul(v, g))

    return elementwise(ctx, to_x, grad, x, weight), elementwise(ctx, to_weight, grad, x, weight)


@lowers(aten.hardshrink.default)
def hardshrink(ctx: Builder, x: Tensor, limit: Number = 0.5) -> Tensor:
    """0 within the limits; NaN stays."""

    def value(c: Constants, v: Any) -> Any:
        return ops.where(ops.le(ops.abs(v), c(limit)), c(0), v)

    return elementwise(ctx, value, x)


@lowers(aten.softshrink.default)
def softshrink(ctx: Builder, x: Tensor, limit: Number = 0.5) -> Tensor:
    def value(c: Constants, v: Any) -> Any:
        nearer = ops.where(ops.gt(v, c(0)), ops.sub(v, c(limit)), ops.add(v, c(limit)))
        return ops.where(ops.le(ops.abs(v), c(limit)), c(0), nearer)

    return elementwise(ctx, value, x)


@lowers(aten.hardshrink_backward.default)
def hardshrink_backward(ctx: Builder, grad: Tensor, x: Tensor, limit: Number) -> Tensor:
    """The gradient beyond the limits, 0 within and for NaN."""

    def value(c: Constants, g: Any, v: Any) -> Any:
        return ops.where(ops.gt(ops.abs(v), c(limit)), g, c(0))

    return elementwise(ctx, value, grad, x)


@lowers(aten.softshrink_backward.default)
def softshrink_backward(ctx: Builder, grad: Tensor, x: Tensor, limit: Number) -> Tensor:
    return hardshrink_backward(ctx, grad, x, limit)


@lowers(aten.hardtanh_backward.default)
def hardtanh_backward(ctx: Builder, grad: Tensor, x: Tensor, low: Number, high: Number) -> Tensor:
    def value(c: Constants, g: Any, v: Any) -> Any:
        inside = ops.logical_and(ops.gt(v, c(low)), ops.lt(v, c(high)))
        return ops.where(inside, g, c(0))

    return elementwise(ctx, value, grad, x)


_SIXTH = 0.1666666716337204
"""1/6 rounded to float32: ATen's kernel multiplies by it in float64 too."""


def _ramp(c: Constants, x: Any) -> Any:
    return clamp_value(c, ops.add(x, c(3)), 0, 6)


pointwise(aten.hardsigmoid.default, lambda c, x: ops.truediv(_ramp(c, x), c(6)))
pointwise(aten.hardswish.default, lambda c, x: ops.truediv(ops.mul(x, _ramp(c, x)), c(6)))


def _hardsigmoid_backward(c: Constants, grad: Any, x: Any) -> Any:
    inside = ops.logical_and(ops.gt(x, c(-3)), ops.lt(x, c(3)))
    return ops.where(inside, ops.mul(grad, c(_SIXTH)), c(0))


def _hardswish_backward(c: Constants, grad: Any, x: Any) -> Any:
    between = ops.mul(grad, ops.add(ops.truediv(x, c(3)), c(0.5)))
    return ops.where(ops.le(x, c(-3)), c(0), ops.where(ops.lt(x, c(3)), between, grad))


pointwise(aten.hardsigmoid_backward.default, _hardsigmoid_backward)
pointwise(aten.hardswish_backward.default, _hardswish_backward)

# -- exponential units -------------------------------------------------------------------------------------


@lowers(aten.elu.default)
def elu(ctx: Builder, x: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Tensor:
    def value(c: Constants, v: Any) -> Any:
        negative = ops.mul(ops.expm1(ops.mul(v, c(input_scale))), c(alpha * scale))
        return ops.where(ops.le(v, c(0)), negative, ops.mul(v, c(scale)))

    return elementwise(ctx, value, x)


@lowers(aten.elu_backward.default)
def elu_backward(
    ctx: Builder, grad: Tensor, alpha: Number, scale: Number, input_scale: Number, is_result: bool, x: Tensor
) -> Tensor:
    def value(c: Constants, g: Any, v: Any) -> Any:
        if is_result:
            negative = ops.mul(ops.mul(g, c(input_scale)), ops.add(v, c(alpha * scale)))
        else:
            slope = ops.mul(ops.mul(g, c(input_scale)), c(alpha * scale))
            negative = ops.mul(slope, ops.exp(ops.mul(v, c(input_scale))))
        return ops.where(ops.gt(v, c(0)), ops.mul(g, c(scale)), negative)

    return elementwise(ctx, value, grad, x)


@lowers(aten.celu.default)
def celu(ctx: Builder, x: Tensor, alpha: Number = 1.0) -> Tensor:
    return elu(ctx, x, alpha, 1, 1.0 / alpha)


def logistic(c: Constants, x: Any) -> Any:
    """``1 / (1 + exp(-x))`` as the gradients of ATen's kernels have it."""
    return ops.truediv(c(1), ops.add(c(1), ops.exp(ops.neg(x))))


def _silu_backward(c: Constants, grad: Any, x: Any) -> Any:
    sigmoid = logistic(c, x)
    inner = ops.add(c(1), ops.mul(x, ops.sub(c(1), sigmoid)))
    return ops.mul(ops.mul(grad, sigmoid), inner)


pointwise(aten.silu.default, lambda c, x: ops.truediv(x, ops.add(c(1), ops.exp(ops.neg(x)))))
pointwise(aten.silu_backward.default, _silu_backward)
pointwise(aten.mish.default, lambda c, x: ops.mul(x, ops.tanh(ops.log1p(ops.exp(x)))))


def _mish_backward(c: Constants, grad: Any, x: Any) -> Any:
    gate = ops.tanh(ops.log1p(ops.exp(x)))
    slope = ops.mul(ops.mul(x, logistic(c, x)), ops.sub(c(1), ops.mul(gate, gate)))
    return ops.mul(grad, ops.add(gate, slope))


pointwise(aten.mish_backward.default, _mish_backward)
pointwise(aten.sigmoid_backward.default, lambda c, g, y: ops.mul(ops.mul(g, ops.sub(c(1), y)), y))
pointwise(aten.tanh_backward.default, lambda c, g, y: ops.mul(g, ops.sub(c(1), ops.mul(y, y))))


@lowers(aten.softplus.default)
def softplus(ctx: Builder, x: Tensor, beta: Number = 1, limit: Number = 20) -> Tensor:
    def value(c: Constants, v: Any) -> Any:
        scaled = ops.mul(v, c(beta))
        return ops.where(ops.gt(scaled, c(limit)), v, ops.truediv(ops.log1p(ops.exp(scaled)), c(beta)))

    return elementwise(ctx, value, x)


@lowers(aten.softplus_backward.default)
def softplus_backward(ctx: Builder, grad: Tensor, x: Tensor, beta: Number, limit: Number) -> Tensor:
    def value(c: Constants, g: Any, v: Any) -> Any:
        scaled = ops.mul(v, c(beta))
        power = ops.exp(scaled)
        return ops.where(ops.gt(scaled, c(limit)), g, ops.truediv(ops.mul(g, power), ops.add(power, c(1))))

    return elementwise(ctx, value, grad, x)


@lowers(aten.log_sigmoid_forward.default)
def log_sigmoid(ctx: Builder, x: Tensor) -> tuple[Tensor, Tensor]:
    """The result, and ``exp(-|x|)``, which ATen's CPU kernel keeps for the gradient."""

    def power(c: Constants, v: Any) -> Any:
        return ops.exp(ops.neg(ops.abs(v)))

    def value(c: Constants, v: Any) -> Any:
        return ops.sub(ops.minimum(c(0), v), ops.log1p(power(c, v)))

    return elementwise(ctx, value, x), elementwise(ctx, power, x)


@lowers(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(ctx: Builder, grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    """``buffer`` is the forward's ``exp(-|x|)``, rounded to the dtype, as ATen's CPU kernel reads it."""

    def value(c: Constants, g: Any, v: Any, power: Any) -> Any:
        part = ops.truediv(power, ops.add(c(1), power))
        return ops.mul(g, ops.where(ops.lt(v, c(0)), ops.sub(c(1), part), part))

    return elementwise(ctx, value, grad, x, buffer)


# -- gelu and glu ------------------------------------------------------------------------------------------

_TANH_SCALE = math.sqrt(2 / math.pi)
_CUBE = 0.044715


def _gelu_erf(c: Constants, x: Any) -> Any:
    return ops.mul(x, ops.ndtr(x))


def _gelu_angle(c: Constants, x: Any) -> Any:
    cube = ops.mul(ops.mul(x, x), x)
    return ops.mul(c(_TANH_SCALE), ops.add(x, ops.mul(c(_CUBE), cube)))


def _gelu_tanh(c: Constants, x: Any) -> Any:
    return ops.mul(ops.mul(c(0.5), x), ops.add(c(1), ops.tanh(_gelu_angle(c, x))))


def _gelu_erf_backward(c: Constants, grad: Any, x: Any) -> Any:
    density = ops.mul(ops.exp(ops.mul(ops.mul(x, x), c(-0.5))), c(1 / math.sqrt(2 * math.pi)))
    return ops.mul(grad, ops.add(ops.ndtr(x), ops.mul(x, density)))


def _gelu_tanh_backward(c: Constants, grad: Any, x: Any) -> Any:
    tanh = ops.tanh(_gelu_angle(c, x))
    left, right = ops.mul(c(0.5), x), ops.add(c(1), tanh)
    inner = ops.mul(c(_TANH_SCALE), ops.add(c(1), ops.mul(c(3 * _CUBE), ops.mul(x, x))))
    slope = ops.mul(ops.mul(left, ops.sub(c(1), ops.mul(tanh, tanh))), inner)
    return ops.mul(grad, ops.add(ops.mul(c(0.5), right), slope))


@lowers(aten.gelu.default)
def gelu(ctx: Builder, x: Tensor, *, approximate: str = "none") -> Tensor:
    return elementwise(ctx, _gelu_tanh if approximate == "tanh" else _gelu_erf, x)


@lowers(aten.gelu_backward.default)
def gelu_backward(ctx: Builder, grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    function = _gelu_tanh_backward if approximate == "tanh" else _gelu_erf_backward
    return elementwise(ctx, function, grad, x)


@lowers(aten.glu.default)
def glu(ctx: Builder, x: Tensor, dim: int = -1) -> Tensor:
    """The first half times the sigmoid of the second."""
    first, gate = halves(x, dim)
    return elementwise(ctx, lambda c, a, b: ops.mul(a, ops.sigmoid(b)), first, gate)


def halves(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The two halves of a tensor along a dimension, as views."""
    dim %= len(x.shape)
    middle = x.shape[dim] // 2
    return slice_view(x, dim, 0, middle), slice_view(x, dim, middle, middle)


# -- gradients of dropout and logit ------------------------------------------------------------------------


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(ctx: Builder, grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return elementwise(
        ctx, lambda c, g, kept: ops.mul(g, ops.mul(kept, c(scale))), grad, mask, round_scalars=False
    )


@lowers(aten.logit_backward.default)
def logit_backward(ctx: Builder, grad: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    low, high = (0.0, 1.0) if eps is None else (eps, 1.0 - eps)
    outside = float("nan") if eps is None else 0.0

    def value(c: Constants, g: Any, v: Any) -> Any:
        inside = ops.logical_and(ops.ge(v, c(low)), ops.le(v, c(high)))
        return ops.where(inside, ops.truediv(g, ops.mul(v, ops.sub(c(1), v))), c(outside))

    return elementwise(ctx, value, grad, x)
