"""Windows and ranges, taken apart: eager's numbers in every dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.lowering.harness import FLOATS, check
from torch import Tensor

from smelt.contract.decompositions import decompositions

aten = torch.ops.aten

_WINDOWS: dict[str, Callable[[int, bool, torch.dtype], Tensor]] = {
    "bartlett": lambda n, periodic, dtype: aten.bartlett_window.periodic(n, periodic, dtype=dtype),
    "blackman": lambda n, periodic, dtype: aten.blackman_window.periodic(n, periodic, dtype=dtype),
    "hamming": lambda n, periodic, dtype: aten.hamming_window.periodic(n, periodic, dtype=dtype),
    "hamming of numbers": lambda n, periodic, dtype: aten.hamming_window.periodic_alpha_beta(
        n, periodic, 0.3, 0.6, dtype=dtype
    ),
    "hann": lambda n, periodic, dtype: aten.hann_window.periodic(n, periodic, dtype=dtype),
    "kaiser": lambda n, periodic, dtype: aten.kaiser_window.beta(n, periodic, 5.0, dtype=dtype),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", _WINDOWS)
def test_windows(name: str, dtype: torch.dtype) -> None:
    """The tensor only carries the dtype: the harness has it in float64 for the reference."""

    def windows(x: Tensor) -> list[Tensor]:
        lengths = (0, 1, 2, 7, 8, 33)
        return [_WINDOWS[name](n, periodic, x.dtype) + 0 * x for n in lengths for periodic in (True, False)]

    check(windows, torch.zeros((), dtype=dtype), decompositions=decompositions(), slack=1)


def test_windows_by_default() -> None:
    names = "bartlett_window blackman_window hamming_window hann_window kaiser_window"

    def windows(x: Tensor) -> list[Tensor]:
        return [getattr(aten, name).default(9) + 0 * x for name in names.split()]

    check(windows, torch.zeros(()), decompositions=decompositions(), slack=1)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int64, torch.uint8])
def test_inclusive_ranges(dtype: torch.dtype) -> None:
    whole = [(0, 5, 1), (0, 9, 2), (1, 9, 3)]
    spans = [*whole, (1.5, 4, 0.5), (5, -3, -2), (-1, 1, 0.1)] if dtype.is_floating_point else whole

    def ranges(x: Tensor) -> list[Tensor]:
        return [aten.range.step(*span, dtype=x.dtype) + 0 * x for span in spans]

    check(ranges, torch.zeros((), dtype=dtype), decompositions=decompositions(), slack=1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_frequencies(dtype: torch.dtype) -> None:
    def frequencies(x: Tensor) -> list[Tensor]:
        factories = (aten.fft_fftfreq.default, aten.fft_rfftfreq.default)
        return [each(n, 0.3, dtype=x.dtype) + 0 * x for each in factories for n in (1, 2, 7, 8)]

    check(frequencies, torch.zeros((), dtype=dtype), decompositions=decompositions())
