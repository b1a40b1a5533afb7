"""Fourier transforms of our own, against NumPy's in long double."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from smelt.loops.ir import Extern
from tests.lowering.harness import check, lowered
from tests.support import target

NORMS = ("backward", "ortho", "forward")
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 17, 31, 35, 64, 70)
DTYPES = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _long(x: torch.Tensor) -> np.ndarray[Any, Any]:
    return x.numpy().astype(np.clongdouble if x.is_complex() else np.longdouble)


def _error(got: torch.Tensor, exact: np.ndarray[Any, Any]) -> float:
    """The relative error of all numbers together, as transforms have it."""
    total = np.sqrt((np.abs(exact) ** 2).sum())
    return float(np.sqrt((np.abs(_long(got) - exact) ** 2).sum()) / total) if total else 0.0


def _agrees(
    function: Callable[[torch.Tensor], torch.Tensor],
    exact: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]],
    x: torch.Tensor,
) -> None:
    """The loop graph calls nothing of ATen, and errs at most four times as much as eager."""
    graph = lowered(function, x, own=True)
    assert not any(isinstance(node.body, Extern) for node in graph.nodes)
    (got,) = target.run(graph, [x.clone()])
    eager, reference = function(x), exact(_long(x))
    assert got.dtype == eager.dtype and got.shape == eager.shape and got.stride() == eager.stride()
    own = DTYPES[x.dtype.to_real() if x.is_complex() else x.dtype]
    assert _error(got, reference) <= 4 * max(_error(eager, reference), own)


@pytest.mark.parametrize("count", SIZES)
def test_transforms_of_each_kind(count: int) -> None:
    x, real = _numbers((2, count), torch.complex64), _numbers((2, count), torch.float32)
    _agrees(torch.fft.fft, np.fft.fft, x)
    _agrees(torch.fft.fft, np.fft.fft, real)
    _agrees(torch.fft.rfft, np.fft.rfft, real)
    for size in {max(2 * count - 2, 1), 2 * count - 1}:
        _agrees(partial(_to_real, torch.fft.irfft, size), partial(_to_real, np.fft.irfft, size), x)


def _to_real(transform: Any, size: int, x: Any) -> Any:
    return transform(x, n=size)


@pytest.mark.parametrize("count", [97, 134])
def test_large_prime_factors_become_convolutions(count: int) -> None:
    _agrees(torch.fft.ifft, np.fft.ifft, _numbers((1, count), torch.complex128))
    _agrees(torch.fft.rfft, np.fft.rfft, _numbers((1, count), torch.float32))


@pytest.mark.parametrize("norm", NORMS)
def test_norms_and_dims(norm: str) -> None:
    x = _numbers((3, 4, 5), torch.complex128)
    real = _numbers((3, 4, 6), torch.float64)
    kinds: dict[str, Any] = {"norm": norm, "dim": (0, 2)}
    numpy = {"norm": norm, "axes": (0, 2)}
    _agrees(lambda x: torch.fft.fftn(x, **kinds), lambda x: np.fft.fftn(x, **numpy), x)
    _agrees(lambda x: torch.fft.ifftn(x, **kinds), lambda x: np.fft.ifftn(x, **numpy), x)
    _agrees(lambda x: torch.fft.rfftn(x, **kinds), lambda x: np.fft.rfftn(x, **numpy), real)
    _agrees(lambda x: torch.fft.fftn(x, **kinds), lambda x: np.fft.fftn(x, **numpy), real)
    _agrees(lambda x: torch.fft.irfftn(x, **kinds), lambda x: np.fft.irfftn(x, **numpy), x)
    _agrees(lambda x: torch.fft.fft(x, dim=1, norm=norm), lambda x: np.fft.fft(x, axis=1, norm=norm), x)


def test_gradients() -> None:
    def energy(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) ** 2, n=x.shape[-1]).square().sum()

    check(torch.func.grad(energy), _numbers((3, 12), torch.float64), own=True, functionalize=True, slack=8)


def test_short_time_transforms_find_their_tables_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cached program has the tables' recipes only."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))

    def short_time(x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 16, 4, window=window, return_complex=True).abs()

    given = _numbers((2, 60), torch.float32), torch.hann_window(16)
    for known in (False, True):
        torch._dynamo.reset()
        run = torch.compile(short_time, backend="smelt", options={"own": True}, dynamic=False)
        torch.testing.assert_close(run(*given), short_time(*given))
        report = smelt.reports()[-1]
        assert (report.cache_hit, report.externs, report.fallbacks) == (known, {}, [])


def test_sizes_that_are_not_known() -> None:
    """One graph for all sizes: sums by the definition."""

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half = torch.fft.rfft(x, norm="ortho")
        whole = torch.fft.fft(y, norm="forward")
        return half, whole, torch.fft.irfft(half, n=x.shape[-1]), torch.fft.ifft(whole, norm="ortho")

    def given(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _numbers((2, count), torch.float32), _numbers((2, count), torch.complex128)

    check(both, *given(10), symbolic=True, own=True, slack=4, zeros=False, others=[given(7), given(24)])


def test_by_choice_transforms_are_atens() -> None:
    graph = lowered(torch.fft.fft, _numbers((2, 8), torch.complex64))
    calls = [node.body for node in graph.nodes if isinstance(node.body, Extern)]
    assert [(call.target, call.reason) for call in calls] == [("aten._fft_c2c.default", None)]
