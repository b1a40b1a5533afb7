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


pointwise(aten._prelu_kernel.default, lambda c, x, w: ops.where(ops.gt(x, c(0)), x, ops.mul(w, x)))


@lowers(aten.softshrink.default)
def softshrink(ctx: Builder, x: Tensor, limit: Number = 0.5) -> Tensor:
    def value(c: Constants, v: Any) -> Any:
        nearer = ops.where(ops.gt(v, c(0)), ops.sub(v, c(limit)), ops.add(v, c(limit)))
        return ops.where(ops.le(ops.abs(v), c(limit)), c(0), nearer)

    return elementwise(ctx, value, x)


@lowers(aten.hardshrink_backward.default)
def hardshrink_backward(ctx: Builder, grad: Tensor, x: Tensor, limit: Number) -> Tensor:
    """The gradient outside the limits, 0 inside them and for NaN."""

    def value(c: Constants, g: Any, v: Any) -> Any:
        return ops.where(ops.gt(ops.abs(v), c(limit)), g, c(0))

    return elementwise(ctx, value, grad, x)


@lowers(aten.softshrink_backward.default)
def softshrink_backward(ctx: Builder, grad: Tensor, x: Tensor, limit: Number) -> Tensor:
    return hardshrink_backward(ctx, grad, x, limit)


_SIXTH = 0.1666666716337204
"""1/6 rounded to float32: ATen's kernel multiplies by it in float64 too."""


def _ramp(c: Constants, x: Any) -> Any:
    return clamp_value(c, ops.add(x, c(3)), 0, 6)


pointwise(aten.hardsigmoid.default, lambda c, x: ops.truediv(_ramp(c, x), c(6)))
pointwise(aten.hardswish.default, lambda c, x: ops.truediv(ops.mul(x, _ramp(c, x)), c(6)))


def _hardsigmoid_backward(c: Constants, grad: Any, x: Any) -> Any:
    inside = ops.logical_and(ops.gt(x, c(-3)), ops.lt(x, c(3)))
    return ops.where(inside, ops.mul(grad, c(_SIXTH)), c(0))


pointwise(aten.hardsigmoid_backward.default, _hardsigmoid_backward)
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


def logistic(c: Constants, x: Any) -> Any:
    """``1 / (1 + exp(-x))``, in the form that ATen's gradient kernels use."""
    return ops.truediv(c(1), ops.add(c(1), ops.exp(ops.neg(x))))


pointwise(aten.silu.default, lambda c, x: ops.truediv(x, ops.add(c(1), ops.exp(ops.neg(x)))))


@lowers(aten.softplus.default)
def softplus(ctx: Builder, x: Tensor, beta: Number = 1, limit: Number = 20) -> Tensor:
    def value(c: Constants, v: Any) -> Any:
        scaled = ops.mul(v, c(beta))
        return ops.where(ops.gt(scaled, c(limit)), v, ops.truediv(ops.log1p(ops.exp(scaled)), c(beta)))

    return elementwise(ctx, value, x)


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


@lowers(aten.gelu.default)
def gelu(ctx: Builder, x: Tensor, *, approximate: str = "none") -> Tensor:
    return elementwise(ctx, _gelu_tanh if approximate == "tanh" else _gelu_erf, x)


def halves(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The two halves of a tensor along a dimension, as views."""
    dim %= len(x.shape)
    middle = x.shape[dim] // 2
    return slice_view(x, dim, 0, middle), slice_view(x, dim, middle, middle)


# -- gradients of dropout and logit ------------------------------------------------------------------------
