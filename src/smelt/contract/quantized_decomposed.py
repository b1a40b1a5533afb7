"""Decomposition of the operators ``quantized_decomposed::…`` of exported (PT2E) quantization.

Formulas and dtypes are those of ``torch/ao/quantization/fx/_decomposed.py``: float16 and bfloat16 are
quantized in float32; scales and zero points in tensors of one element count as Python's numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smelt.contract.quantization import along

_HALVES = (torch.float16, torch.bfloat16)


def _number(value: Any, dtype: torch.dtype) -> Any:
    """A number held by a tensor of one element, in a form that does not promote."""
    return value.reshape(()).to(dtype) if isinstance(value, Tensor) else value


def _inverse(scale: Any) -> Any:
    """The inverse of one scale, computed in double precision as in Python, in float32."""
    if not isinstance(scale, Tensor):
        return 1.0 / scale
    return (1.0 / scale.reshape(()).to(torch.float64)).to(torch.float32)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in _HALVES else x


def _bound(value: Any) -> Any:
    return _number(value, torch.float32)


def _quantize(x: Tensor, scale: Any, zero_point: Any, low: Any, high: Any, dtype: torch.dtype) -> Tensor:
    place = torch.round(_wide(x) * _inverse(scale)) + _number(zero_point, torch.int64)
    return torch.clamp(place, _bound(low), _bound(high)).to(dtype)


def _dequantize(
    x: Tensor,
    scale: Any,
    zero_point: Any,
    low: Any,
    high: Any,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    made = out_dtype or torch.float32
    return (x.to(made) - _number(zero_point, torch.int64)) * _number(scale, made)


def _quantize_channels(
    x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, low: int, high: int, dtype: torch.dtype
) -> Tensor:
    place = torch.round(_wide(x) * (1.0 / along(scales, x, axis))) + along(zero_points, x, axis)
    return torch.clamp(place, low, high).to(dtype)


def _dequantize_channels(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    steps = x if zero_points is None else x - along(zero_points, x, axis)
    return (steps * along(scales, x, axis)).to(out_dtype or torch.float32)


def _fake_quantize_channels(
    x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, low: int, high: int
) -> Tensor:
    scale = along(scales.to(torch.float32), x, axis)
    zero = along(zero_points.to(torch.int32), x, axis)
    place = torch.round(x * (1.0 / scale)) + zero
    return (torch.clamp(place, low, high) - zero) * scale


def _quantize_tokens(
    x: Tensor, scales: Tensor, zero_points: Tensor, low: int, high: int, dtype: torch.dtype
) -> Tensor:
    return torch.clamp(torch.round(x * (1.0 / scales) + zero_points), low, high).to(dtype)


def _dequantize_tokens(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    return ((x - zero_points) * scales).to(output_dtype)


def _grouped(x: Tensor, scales: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The groups of a matrix's rows as rows, and their scales, one for each."""
    if size > x.shape[-1] and scales.shape[-1] == 1:
        size = x.shape[-1]
    return x.reshape(-1, size), scales.reshape(-1, 1)


def _quantize_groups(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
    group_size: int = 128,
) -> Tensor:
    rows, scale = _grouped(x, scales, group_size)
    return _quantize_tokens(rows, scale, zero_points.reshape(-1, 1), low, high, dtype).reshape(x.shape)


def _dequantize_groups(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    low: int,
    high: int,
    dtype: torch.dtype,
    group_size: int = 128,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    rows, scale = _grouped(x, scales, group_size)
    zero = 0 if zero_points is None else zero_points.reshape(-1, 1)
    return ((rows - zero) * scale).reshape(x.shape).to(output_dtype)


def _range(x: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest element, and zero."""
    low, high = torch.aminmax(x)
    return torch.minimum(low, torch.zeros_like(low)), torch.maximum(high, torch.zeros_like(high))


def _choose(x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    least, most = _range(x)
    scale = torch.maximum((most - least) / float(high - low), torch.full((1,), eps, dtype=torch.float32))
    zero = low - torch.round(least / scale).to(torch.int32)
    return scale.to(torch.float64), torch.clamp(zero, low, high).to(torch.int64)


def _choose_symmetric(
    x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    least, most = _range(x)
    most = torch.maximum(-least, most)
    scale = torch.maximum(most / (float(high - low) / 2), torch.full((1,), eps, dtype=torch.float32))
    zero = torch.full((1,), 128 if dtype is torch.uint8 else 0, dtype=torch.int64)
    return scale.to(torch.float64), zero


def _choose_tokens(x: Tensor, dtype: torch.dtype) -> Any:
    if dtype is not torch.int8:
        return NotImplemented
    scales = x.abs().amax(dim=-1, keepdim=True)
    if scales.dtype is torch.float16:
        scales = scales.to(torch.float32)
    scales = scales.clamp(min=1e-5).div(127)
    return scales, torch.zeros_like(scales)


def _choose_tokens_asymmetric(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    low, high = -128, 127
    least = torch.clamp(torch.amin(x, dim=-1, keepdim=True), max=0)
    most = torch.clamp(torch.amax(x, dim=-1, keepdim=True), min=0)
    scale = ((most - least) / float(high - low)).clamp(min=torch.finfo(torch.float32).eps)
    below, above = least / scale, most / scale
    zero = torch.where((low + below) + (high + above) > 0, low - below, high - above)
    return scale.to(torch.float64), torch.clamp(zero, low, high).round().to(torch.int64)


def _convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantize_per_tensor": _quantize,
    "dequantize_per_tensor": _dequantize,
    "quantize_per_channel": _quantize_channels,
    "dequantize_per_channel": _dequantize_channels,
    "fake_quant_per_channel": _fake_quantize_channels,
    "quantize_per_token": _quantize_tokens,
    "dequantize_per_token": _dequantize_tokens,
    "quantize_per_channel_group": _quantize_groups,
    "dequantize_per_channel_group": _dequantize_groups,
    "choose_qparams": _choose,
    "choose_qparams_symmetric": _choose_symmetric,
    "choose_qparams_per_token": _choose_tokens,
    "choose_qparams_per_token_asymmetric": _choose_tokens_asymmetric,
    "_choose_qparams_per_token_asymmetric_impl": _choose_tokens_asymmetric,
    "convert_element_type": _convert,
}


def quantized_decomposed() -> dict[Any, Callable[..., Any]]:
    """Overload → decomposition, computed per call: the operators exist once ``torch.ao`` is imported."""
    found: dict[Any, Callable[..., Any]] = {}
    for name, function in _FUNCTIONS.items():
        packet = getattr(torch.ops.quantized_decomposed, name, None)
        for overload in () if packet is None else packet.overloads():
            if overload != "out" and not overload.endswith("_out"):
                found[getattr(packet, overload)] = function
    return found
