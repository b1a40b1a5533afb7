"""Decomposition of fake quantization: numbers rounded to a grid and back, and a mask of unclipped ones.

The formulas are those of ``aten/src/ATen/native/quantized/FakeQuantPer*Affine.cpp`` and its kernels: a scale
is float32.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_REFUSED = (torch.float64, torch.float16)
"""The dtypes for which eager has no gradient of learnt scales."""


def along(numbers: Tensor, x: Tensor, axis: int) -> Tensor:
    """One number for each element of ``axis``, as a tensor that broadcasts against ``x``."""
    shape = [1] * x.dim()
    shape[axis] = -1
    return numbers.reshape(shape)


def _float32(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", number))[0])


def _single(scale: Any) -> tuple[Any, Any]:
    """A scale and its inverse, both rounded to float32."""
    if isinstance(scale, Tensor):
        wide = scale.to(torch.float32)
        return wide, wide.reciprocal()
    single = _float32(scale)
    return single, _float32(1.0 / single)


def _place(x: Tensor, inverse: Any, zero_point: Any) -> Tensor:
    """The grid position of each element, a whole number, before clipping."""
    wide = x if x.dtype is torch.float64 else x.to(torch.float32)
    return torch.round(wide * inverse) + zero_point


def _cut(place: Tensor, quant_min: int, quant_max: int) -> Tensor:
    """The position clipped to the grid; NaN becomes the least number."""
    low = torch.where(place >= quant_min, place, torch.full_like(place, quant_min))
    return low.clamp_max(quant_max)


def fake_quantize(
    x: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """x on the grid ``(n - zero_point) * scale``, ``quant_min <= n <= quant_max``; and whether n was inside.

    The computation is in float32, also for float64. ``scale`` and ``zero_point``: numbers, or tensors that
    broadcast against x.

    >>> x = torch.tensor([0.24, -9.0])
    >>> [each.tolist() for each in fake_quantize(x, 0.5, 0, -4, 3)]
    [[0.0, -2.0], [True, False]]
    """
    single, inverse = _single(scale)
    place = _place(x, inverse, zero_point)
    steps = (_cut(place, quant_min, quant_max) - zero_point).to(torch.float32)
    return (steps * single).to(x.dtype), (place >= quant_min) & (place <= quant_max)


def fake_quantize_channels(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Any:
    """`fake_quantize` with a scale and a zero point for each element of dimension ``axis``.

    Here grid numbers are int64: the conversion of NaN and too large numbers is the processor's. Zero points
    of floating point are added before the number is rounded.
    """
    single, inverse = _single(along(scale, x, axis))
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    if zero_point.is_floating_point():
        zero = along(zero_point, x, axis).to(torch.float32).to(wide)
        place = torch.round(x.to(wide) * inverse + zero).to(torch.int64)
    else:
        zero = along(zero_point, x, axis).to(torch.int64)
        place = _place(x, inverse, zero).to(torch.int64)
    steps = (place.clamp(quant_min, quant_max) - zero).to(wide)
    return (steps * single.to(wide)).to(x.dtype), (place >= quant_min) & (place <= quant_max)


def _when_enabled(
    x: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """`fake_quantize`, or x itself if the flag ``enabled`` is 0."""
    value, kept = fake_quantize(x, scale.reshape(()), zero_point.reshape(()), quant_min, quant_max)
    on = enabled.reshape(()) != 0
    return torch.where(on, value, x), kept | ~on


def _learnt_zero_point(zero_point: Tensor, quant_min: int, quant_max: int) -> Tensor:
    """The nearest whole number within the grid: learnt zero points are real numbers."""
    return torch.round(zero_point.to(torch.float32)).clamp(quant_min, quant_max).to(torch.int64)


def _learnable(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    at = _learnt_zero_point(zero_point, quant_min, quant_max)
    return fake_quantize(x, scale.reshape(()), at.reshape(()), quant_min, quant_max)[0]


def _learnable_channels(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    at = _learnt_zero_point(zero_point, quant_min, quant_max)
    return fake_quantize_channels(x, scale, at, axis, quant_min, quant_max)[0]


def _gradients(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Each element's gradients by x, the scale and the zero point, float32; the last two broadcast."""
    single, inverse = _single(scale)
    wide, place = grad.to(torch.float32), torch.round(x.to(torch.float32) * inverse + zero_point)
    kept = (place >= quant_min) & (place <= quant_max)
    steps = (_cut(place, quant_min, quant_max) - zero_point).to(torch.float32)
    inner = (steps * single - x) * inverse
    by_scale = wide * torch.where(kept, inner, steps) * grad_factor
    by_zero_point = torch.where(kept, torch.zeros_like(wide), wide * -single * grad_factor)
    return wide * kept, by_scale, by_zero_point


def _learnable_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Any:
    if x.dtype in _REFUSED:
        return NotImplemented
    at = _learnt_zero_point(zero_point, quant_min, quant_max).reshape(())
    by_x, by_scale, by_zero_point = _gradients(
        grad, x, scale.reshape(()), at, quant_min, quant_max, grad_factor
    )
    return by_x, by_scale.sum().reshape(1), by_zero_point.sum().reshape(1)


def _learnable_channels_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Any:
    if x.dtype in _REFUSED:
        return NotImplemented
    at = along(_learnt_zero_point(zero_point, quant_min, quant_max), x, axis)
    by_x, *others = _gradients(grad, x, along(scale, x, axis), at, quant_min, quant_max, grad_factor)
    rest = [dim for dim in range(x.dim()) if dim != axis % x.dim()]
    by_scale, by_zero_point = (each.sum(rest) if rest else each for each in others)
    return by_x, by_scale, by_zero_point


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: fake_quantize,
    aten.fake_quantize_per_channel_affine_cachemask.default: fake_quantize_channels,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _when_enabled,
    aten._fake_quantize_learnable_per_tensor_affine.default: _learnable,
    aten._fake_quantize_learnable_per_tensor_affine_backward.default: _learnable_backward,
    aten._fake_quantize_learnable_per_channel_affine.default: _learnable_channels,
    aten._fake_quantize_learnable_per_channel_affine_backward.default: _learnable_channels_backward,
}
