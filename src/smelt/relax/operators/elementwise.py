"""Operators that compute each element on its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smelt.relax.operators.table import aten, one_to_one, operator
from smelt.relax.types import torch_dtype

one_to_one("""
add(x1, x2) = add.Tensor
subtract(x1, x2) = sub.Tensor
multiply(x1, x2) = mul.Tensor
atan2(x1, x2) = atan2
mod(x1, x2) = fmod.Tensor
floor_mod(x1, x2) = remainder.Tensor
floor_divide(x1, x2) = floor_divide
log_add_exp(x1, x2) = logaddexp
equal(x1, x2) = eq.Tensor
not_equal(x1, x2) = ne.Tensor
greater(x1, x2) = gt.Tensor
greater_equal(x1, x2) = ge.Tensor
less(x1, x2) = lt.Tensor
less_equal(x1, x2) = le.Tensor
maximum(x1, x2) = maximum
minimum(x1, x2) = minimum
logical_and(x1, x2) = logical_and
logical_or(x1, x2) = logical_or
logical_xor(x1, x2) = logical_xor
bitwise_and(x1, x2) = bitwise_and.Tensor
bitwise_or(x1, x2) = bitwise_or.Tensor
bitwise_xor(x1, x2) = bitwise_xor.Tensor
left_shift(x1, x2) = bitwise_left_shift.Tensor
right_shift(x1, x2) = bitwise_right_shift.Tensor
abs(x) = abs
acos(x) = acos
acosh(x) = acosh
asin(x) = asin
asinh(x) = asinh
atan(x) = atan
atanh(x) = atanh
bitwise_not(x) = bitwise_not
ceil(x) = ceil
cos(x) = cos
cosh(x) = cosh
exp(x) = exp
floor(x) = floor
log(x) = log
logical_not(x) = logical_not
negative(x) = neg
round(x) = round
rsqrt(x) = rsqrt
sigmoid(x) = sigmoid
sign(x) = sign
sin(x) = sin
sinh(x) = sinh
sqrt(x) = sqrt
tan(x) = tan
tanh(x) = tanh
trunc(x) = trunc
erf(x) = erf
isnan(x) = isnan
isinf(x) = isinf
where(condition, x1, x2) = where.self
nn.relu(data) = relu
nn.relu6(data) = relu6
nn.silu(data) = silu
nn.selu(data) = selu
""")


@operator("divide", numbers=True)
def divide(x1: Tensor, x2: Tensor, /) -> Tensor:
    """A quotient; integer quotients are rounded towards zero."""
    tensors = [each for each in (x1, x2) if isinstance(each, Tensor)]
    floats = any(each.dtype.is_floating_point or each.dtype.is_complex for each in tensors)
    return aten.div.Tensor(x1, x2) if floats else aten.div.Tensor_mode(x1, x2, rounding_mode="trunc")


@operator("power", numbers=True)
def power(x1: Tensor, x2: Tensor, /) -> Tensor:
    return torch.pow(x1, x2)


@operator("square")
def square(x: Tensor, /) -> Tensor:
    return aten.mul.Tensor(x, x)


@operator("isfinite")
def isfinite(x: Tensor, /) -> Tensor:
    return torch.isfinite(x)


@operator("clip", numbers=True)
def clip(x: Tensor, min: Any, max: Any, /) -> Tensor:
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        return torch.clamp(x, *(torch.as_tensor(each, dtype=x.dtype) for each in (min, max)))
    whole = not x.dtype.is_floating_point
    lower, upper = (int(each) if whole and isinstance(each, float) else each for each in (min, max))
    return aten.clamp.default(x, lower, upper)


@operator("ewise_fma")
def ewise_fma(x1: Tensor, x2: Tensor, x3: Tensor, /) -> Tensor:
    return x1 * x2 + x3


@operator("astype", legal="cast")
def astype(x: Tensor, /, dtype: str) -> Tensor:
    wanted = torch_dtype(dtype)
    return aten.clone.default(x) if x.dtype is wanted else aten._to_copy.default(x, dtype=wanted)


@operator("masked_fill", numbers=True)
def masked_fill(x: Tensor, mask: Tensor, value: Any, /) -> Tensor:
    return torch.masked_fill(x, mask, value)


@operator("nn.leakyrelu", legal="leaky_relu")
def leakyrelu(data: Tensor, /, alpha: float = 0.01) -> Tensor:
    return aten.leaky_relu.default(data, alpha)


@operator("nn.prelu")
def prelu(data: Tensor, alpha: Tensor, /, axis: int = 1) -> Tensor:
    shape = [1] * data.dim()
    shape[axis] = alpha.numel()
    return torch.where(data > 0, data, data * alpha.reshape(shape))


@operator("nn.gelu")
def gelu(data: Tensor, /) -> Tensor:
    return aten.gelu.default(data)


@operator("nn.gelu_tanh")
def gelu_tanh(data: Tensor, /) -> Tensor:
    return aten.gelu.default(data, approximate="tanh")


@operator("nn.softplus")
def softplus(data: Tensor, /, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return aten.softplus.default(data, beta, threshold)


@operator("nn.dropout")
def dropout(data: Tensor, /, rate: float = 0.5) -> tuple[Tensor, Tensor]:
    """Dropout in inference: nothing is dropped, and the mask consists of ones."""
    return aten.clone.default(data), torch.ones_like(data)
