"""Large results are stored past the caches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import smelt
from smelt.schedule.memory import storage
from tests.semantics.sameness import same


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)  # a sum of thousands may be as near to 0 as its rounding errors


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "STREAMED_BYTES", 2**10)


CASES: dict[str, tuple[Callable[[torch.Tensor], object], bool]] = {
    "a result": (lambda x: x.exp() + 1, True),
    "a result that is read again": (lambda x: (y := x.exp(), y.flip(0) + y.sum(0)), True),
    "rows that are not aligned": (lambda x: torch.cat([x, x[:, :1]], 1), True),
    "half precision": (lambda x: x.to(torch.bfloat16), True),
    "truths": (lambda x: x > 0, False),
    "an input": (lambda x: x.mul_(2).sum(), False),
    "a small result": (lambda x: x.sum(1), False),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_stores(name: str, small_caches: None) -> None:
    function, streams = CASES[name]
    smelt.reset()
    same(function, torch.randn(61, 129))
    assert ("stream(out" in smelt.reports()[-1].text("cpp")) == streams


def test_usual_sizes_stay_in_the_caches() -> None:
    smelt.reset()
    same(lambda x: x.exp() + 1, torch.randn(61, 129))
    assert "stream(" not in smelt.reports()[-1].text("cpp")


def test_tiles_leave_it_to_their_kernel_to_wait(small_caches: None) -> None:
    """For the stores to have arrived: once, not for every tile."""
    smelt.reset()
    fast = smelt.compile(lambda x, w: x @ w.t(), keep_text=True)
    x, w = torch.randn(96, 64), torch.randn(128, 64)
    torch.testing.assert_close(fast(x, w), x @ w.t(), rtol=1e-4, atol=1e-4)
    text = smelt.reports()[-1].text("cpp").split("static void tile_", 1)[1]
    tile, rest = text.split("\n}", 1)
    assert "stream(" in tile and "streamed()" not in tile and rest.count("streamed();") == 1
