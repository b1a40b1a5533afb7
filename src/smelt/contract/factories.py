"""Decomposition of factories of tensors from numbers: window functions, ranges, frequencies.

The formulas are those of ``aten/src/ATen/native/TensorFactories.cpp``, operator by operator, so that 16-bit
dtypes round as in eager.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _options(options: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a factory without the omitted ones."""
    return {name: value for name, value in options.items() if value is not None and name != "layout"}


def _window(shape: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A factory, given ``shape(positions, length, *numbers)``; a periodic window lacks the last element."""

    def window(length: int, periodic: bool = True, *numbers: float, **options: Any) -> Tensor:
        options = _options(options)
        if length <= 1:
            return torch.ones(length, **options)
        whole = length + 1 if periodic else length
        made = shape(torch.arange(whole, **{"dtype": torch.get_default_dtype(), **options}), whole, *numbers)
        return made[:length].clone() if periodic else made

    return window


def _bartlett(n: Tensor, length: int) -> Tensor:
    rising = n * (2 / (length - 1))
    return torch.where(torch.arange(length, device=n.device) <= (length - 1) >> 1, rising, 2 - rising)


def _blackman(n: Tensor, length: int) -> Tensor:
    angle = n * (math.pi / (length - 1))
    middle = torch.full((), 0.42, dtype=n.dtype, device=n.device)  # eager rounds it to the dtype
    return (angle * 4).cos() * 0.08 - (angle * 2).cos() * 0.5 + middle


def _hamming(n: Tensor, length: int, alpha: float = 0.54, beta: float = 0.46) -> Tensor:
    return (n * (math.pi * 2 / (length - 1))).cos() * -beta + alpha


def _kaiser(n: Tensor, length: int, beta: float = 12.0) -> Tensor:
    wide = n if n.dtype is torch.float64 else n.to(torch.float32)
    alpha = (length - 1) / 2
    ratio = (wide - alpha) / alpha
    largest = torch.i0(torch.full((), beta, dtype=wide.dtype, device=n.device))
    return (torch.i0(beta * torch.sqrt(1 - ratio * ratio)) / largest).to(n.dtype)


def _range(start: float, end: float, step: float = 1, **options: Any) -> Tensor:
    """The numbers ``start`` to ``end``, both inclusive."""
    count = math.floor((end - start) / step) + 1
    options = {"dtype": torch.get_default_dtype(), **_options(options)}
    kept = options["dtype"]
    wide = kept if kept is torch.float64 or not kept.is_floating_point else torch.float32
    return (torch.arange(count, **{**options, "dtype": wide}) * step + start).to(kept)


def _frequencies(n: int, d: float = 1.0, **options: Any) -> Tensor:
    """The frequencies of a Fourier transform's results: 0 and up, then the negative ones."""
    options = {"dtype": torch.get_default_dtype(), **_options(options)}
    upper = torch.arange((n + 1) // 2, **options)
    return torch.cat([upper, torch.arange(-(n // 2), 0, **options)]) * (1.0 / (n * d))


def _real_frequencies(n: int, d: float = 1.0, **options: Any) -> Tensor:
    options = {"dtype": torch.get_default_dtype(), **_options(options)}
    return torch.arange(n // 2 + 1, **options) * (1.0 / (n * d))


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.fft_fftfreq.default: _frequencies,
    aten.fft_rfftfreq.default: _real_frequencies,
    aten.range.default: _range,
    aten.range.step: _range,
    **{
        getattr(packet, overload): _window(shape)
        for packet, shape in (
            (aten.bartlett_window, _bartlett),
            (aten.blackman_window, _blackman),
            (aten.hamming_window, _hamming),
            (aten.kaiser_window, _kaiser),
        )
        for overload in ("default", "periodic", "periodic_alpha", "periodic_alpha_beta", "beta")
        if hasattr(packet, overload)
    },
}
