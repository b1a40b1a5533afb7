"""The innermost loop of a register tile as assembly: the same numbers as the loop's, nothing read beyond."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import smelt
from smelt.codegen.cpp import register_tiles
from smelt.runtime import toolchain

pytestmark = pytest.mark.skipif(
    toolchain.find().vector_bytes != 64, reason="there is assembly for AVX-512 alone"
)


def _product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


def _compiled(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    assembly: bool,
    *inputs: torch.Tensor,
    function: Callable[..., torch.Tensor] = _product,
    has: str = "asm volatile",
) -> torch.Tensor:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(folder / str(assembly)))
    smelt.reset()
    with monkeypatch.context() as patch:
        if not assembly:
            patch.setattr(register_tiles, "fits", lambda *_: False)
        result = smelt.compile(function, dynamic=False, keep_text=True)(*inputs)
    assert (has in smelt.reports()[-1].text("cpp")) is assembly
    return result


@pytest.mark.parametrize(
    ("rows", "terms", "columns"),
    [
        (64, 64, 48),
        (64, 65, 96),
        (33, 66, 32),
        (34, 67, 16),
        (35, 68, 100),
        (41, 600, 144),
        (39, 1601, 70),
        (64, 16, 48),
    ],
)
@pytest.mark.parametrize("beside", ["terms", "rows"])
def test_sums_are_those_of_the_loop(beside, rows, terms, columns, tmp_path, monkeypatch) -> None:
    """To the last bit: it adds the same numbers in the same order, whatever lies side by side in lhs."""
    x, w = torch.randn(rows, terms), torch.randn(terms, columns)
    x = x if beside == "terms" else x.t().contiguous().t()
    found = [_compiled(monkeypatch, tmp_path, assembly, x, w) for assembly in (True, False)]
    assert torch.equal(*found)
    torch.testing.assert_close(found[0].double(), x.double() @ w.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [3, 5, 8])
@pytest.mark.parametrize(("kernel_size", "stride"), [(7, 2), (3, 1)])
def test_terms_in_several_loops_are_one_sum(channels, kernel_size, stride, tmp_path, monkeypatch) -> None:
    """Those of a window: its lines, and what is in one."""

    def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, stride=stride, padding=kernel_size // 2)

    x = torch.randn(2, channels, 23, 26).to(memory_format=torch.channels_last)
    w = torch.randn(48, channels, kernel_size, kernel_size)
    found = [
        _compiled(monkeypatch, tmp_path, assembly, x, w, function=convolved, has="decq")
        for assembly in (True, False)
    ]
    assert torch.equal(*found)
    torch.testing.assert_close(found[0].double(), convolved(x.double(), w.double()), rtol=1e-4, atol=1e-4)


def test_rows_may_be_one_number(tmp_path, monkeypatch) -> None:
    x, w = torch.randn(70).expand(64, 70), torch.randn(70, 96)
    found = [_compiled(monkeypatch, tmp_path, assembly, x, w) for assembly in (True, False)]
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], x @ w, rtol=1e-4, atol=1e-4)


def test_what_is_not_finite_stays_so(tmp_path, monkeypatch) -> None:
    x, w = torch.randn(64, 70), torch.randn(70, 96)
    x[3, 5], x[20, 69], w[7, 11] = torch.inf, torch.nan, -torch.inf
    found = _compiled(monkeypatch, tmp_path, True, x, w)
    torch.testing.assert_close(found, x @ w, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("terms", [64, 61, 17])
@pytest.mark.parametrize("beside", ["terms", "rows"])
def test_nothing_is_read_beyond_the_operand(beside, terms, tmp_path, monkeypatch) -> None:
    """Behind its last number memory may not be touched: a page without rights begins there."""
    rows, page = 65, mmap.PAGESIZE
    size = 4 * rows * terms
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(begin + pages * page), page, 0) == 0
    x = torch.frombuffer(memory, dtype=torch.float32, count=rows * terms, offset=pages * page - size)
    x = x.view(rows, terms) if beside == "terms" else x.view(terms, rows).t()
    x.copy_(torch.randn(rows, terms))
    w = torch.randn(terms, 96)
    found = _compiled(monkeypatch, tmp_path, True, x, w)
    torch.testing.assert_close(found, x.clone() @ w, rtol=1e-4, atol=1e-4)
