"""What only exporting takes apart: overloads that dispatch would have resolved, quantization in numbers,
Fourier transforms and products of complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from smelt.contract.spectra import SPECTRA

aten = torch.ops.aten


def _ldexp(self: Tensor, other: Tensor) -> Tensor:
    return self * torch.pow(2.0, other)


# -- overloads ------------------------------------------------------------------------------------------


def _convolution(input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    """The last arguments choose among ATen's kernels."""
    return aten.convolution.default(input, weight, bias, *geometry[:6])


def _index_put_impl(
    self: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    return aten.index_put.default(self, indices, values, accumulate)


def _collapse(a: Tensor, start: int, end: int) -> Tensor:
    """Dimensions ``start`` to ``end``, both inclusive, as one."""
    return a.reshape(*a.shape[:start], -1, *a.shape[end + 1 :])


def _sum(inp: Tensor, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> Tensor:
    return aten.sum.dim_IntList(inp, dims, dtype=output_dtype)


def _product(inp: Tensor, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> Tensor:
    every = range(inp.dim()) if dims is None else [dim % inp.dim() for dim in dims]
    for dim in sorted(every, reverse=True):
        inp = aten.prod.dim_int(inp, dim, dtype=output_dtype)
    return inp


def _extreme(name: str) -> Callable[..., Tensor]:
    whole = getattr(aten, name).default

    def over(inp: Tensor, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> Tensor:
        found: Tensor = whole(inp, [] if dims is None else dims)
        return found if output_dtype is None else found.to(output_dtype)

    return over


def _all_dims(name: str) -> Callable[..., Any]:
    whole = getattr(aten, name).correction

    def over_all(self: Tensor, unbiased: bool = True) -> Any:
        return whole(self, None, correction=int(unbiased))

    return over_all


def _some_dims(name: str) -> Callable[..., Any]:
    whole = getattr(aten, name).correction

    def over(self: Tensor, dim: Sequence[int] | None, unbiased: bool = True, keepdim: bool = False) -> Any:
        return whole(self, dim, correction=int(unbiased), keepdim=keepdim)

    return over


# -- quantization ---------------------------------------------------------------------------------------


def _along(numbers: Tensor, x: Tensor, axis: int) -> Tensor:
    """One number for each element of ``axis``, as a tensor that broadcasts against ``x``."""
    shape = [1] * x.dim()
    shape[axis] = -1
    return numbers.reshape(shape)


def _rounded(x: Tensor, scale: Any, zero_point: Any) -> Tensor:
    return torch.round(x * (1.0 / scale)) + zero_point


def _quantize(
    input: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    return torch.clamp(_rounded(input, scale, zero_point), quant_min, quant_max).to(dtype)


def _dequantize(
    input: Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    return (input.to(out_dtype or torch.float32) - zero_point) * scale


def _quantize_channels(input: Tensor, scales: Tensor, zero_points: Tensor, axis: int, *rest: Any) -> Tensor:
    return _quantize(input, _along(scales, input, axis), _along(zero_points, input, axis), *rest)


def _dequantize_channels(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: Any,
    quant_max: Any,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    at = 0 if zero_points is None else _along(zero_points, input, axis)
    result = (input.to(torch.float32) - at) * _along(scales, input, axis)
    return result if out_dtype is None else result.to(out_dtype)


def _fake_quantize(
    self: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """Quantized and back; and where nothing was cut off."""
    place = _rounded(self, scale, zero_point)
    kept = (place >= quant_min) & (place <= quant_max)
    return ((torch.clamp(place, quant_min, quant_max) - zero_point) * scale).to(self.dtype), kept


def _fake_quantize_channels(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    return _fake_quantize(
        self, _along(scale, self, axis), _along(zero_point, self, axis), quant_min, quant_max
    )


def _quantized() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """The operators of ``torch.ao``'s exported quantization, where that is loaded."""
    functions: dict[str, Callable[..., Any]] = {
        "quantize_per_tensor": _quantize,
        "dequantize_per_tensor": _dequantize,
        "quantize_per_channel": _quantize_channels,
        "dequantize_per_channel": _dequantize_channels,
    }
    for name, function in functions.items():
        packet = getattr(torch.ops.quantized_decomposed, name, None)
        for overload in () if packet is None else packet.overloads():
            if overload != "out" and not overload.endswith("_out"):
                yield getattr(packet, overload), function


_TABLE: dict[Any, Callable[..., Any]] = {
    torch.ops.prims.collapse.default: _collapse,
    torch.ops.prims.sum.default: _sum,
    torch.ops.prims.prod.default: _product,
    torch.ops.prims.amax.default: _extreme("amax"),
    torch.ops.prims.amin.default: _extreme("amin"),
    aten._convolution.default: _convolution,
    aten._convolution.deprecated: _convolution,
    aten._index_put_impl.default: _index_put_impl,
    aten.ldexp.Tensor: _ldexp,
    aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantize,
    aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantize_channels,
    **{getattr(aten, name).default: _all_dims(name) for name in ("var", "var_mean", "std", "std_mean")},
    **{getattr(aten, name).dim: _some_dims(name) for name in ("var", "var_mean", "std", "std_mean")},
}


def portable() -> dict[Any, Callable[..., Any]]:
    """Overload → function of simpler ones, as of now: operators may be registered later.

    >>> aten._convolution.default in portable()
    True
    """
    return {**_TABLE, **SPECTRA, **dict(_quantized())}
