"""Activations."""

from __future__ import annotations

from typing import Any

import torch

from smelt.te.errors import refuse
from smelt.te.tensor import Tensor
from smelt.topi.reduction import axes_of
from smelt.topi.rows import Program, call, compose
from smelt.topi.written import Labels

aten = torch.ops.aten


def _elementwise(name: str, overload: Any, x: Any, *args: Any, **options: Any) -> Any:
    if not isinstance(x, Tensor):
        refuse("SM1122", f"topi.nn.{name}: {x!r} is no tensor")
    return call(f"nn.{name}", overload, [x, *args], Labels("compute", "i", tag="elemwise"), **options)


def relu(x: Tensor) -> Any:
    """``max(x, 0)``."""
    return _elementwise("relu", aten.relu.default, x)


def leaky_relu(x: Tensor, alpha: float) -> Any:
    """``x`` if positive, else ``alpha * x``."""
    return _elementwise("leaky_relu", aten.leaky_relu.default, x, alpha)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """``log(1 + exp(beta * x)) / beta``; x if ``beta * x`` is above the threshold."""
    return _elementwise("softplus", aten.softplus.default, x, beta, threshold)


def gelu(x: Tensor, approximate: str = "none") -> Any:
    """``x * Phi(x)``."""
    return _elementwise("gelu", aten.gelu.default, x, approximate=approximate)


def silu(x: Tensor) -> Any:
    """``x * sigmoid(x)``."""
    return _elementwise("silu", aten.silu.default, x)


def elu(x: Tensor, alpha: float = 1.0) -> Any:
    """``x`` if positive, else ``alpha * (exp(x) - 1)``."""
    return _elementwise("elu", aten.elu.default, x, alpha)


def hardswish(x: Tensor) -> Any:
    """``x * clip(x + 3, 0, 6) / 6``."""
    return _elementwise("hardswish", aten.hardswish.default, x)


def hardsigmoid(x: Tensor) -> Any:
    """``clip(x + 3, 0, 6) / 6``."""
    return _elementwise("hardsigmoid", aten.hardsigmoid.default, x)


def prelu(x: Tensor, slope: Tensor, axis: int = 1) -> Any:
    """``x`` if positive, else ``slope[c] * x``, c the index along an axis."""
    (dim,) = axes_of("nn.prelu", x.ndim, axis)
    if slope.ndim != 1:
        refuse("SM1121", f"topi.nn.prelu: a slope of {slope.ndim} dimensions")

    def function(program: Program, x: Any, slope: Any) -> Any:
        shape = [1] * len(x.fake.shape)
        shape[dim] = -1
        return program(aten._prelu_kernel.default, x, program(aten.reshape.default, slope, shape))

    return compose("nn.prelu", Labels("T_prelu", tag="broadcast"), function, x, slope)


__all__ = ["elu", "gelu", "hardsigmoid", "hardswish", "leaky_relu", "prelu", "relu", "silu", "softplus"]
