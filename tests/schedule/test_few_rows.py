"""Products of few rows: the weight is read once, in place, and computed in registers; caches are appended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.contract import dequantize as _defined  # noqa: F401  the operator exists once this is imported
from tests.quantized.planes import random_planes
from tests.support.agreement import assert_close

F = torch.nn.functional


def _compiled(function: Callable[..., Any], *args: torch.Tensor) -> tuple[Any, str]:
    """The result, and the text of the nests."""
    smelt.reset()
    with torch.no_grad():
        got = torch.compile(function, backend="smelt", dynamic=False, options={"verify": True})(*args)
    return got, smelt.reports()[-1].text("nest")


def _dequantized(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Two 4-bit numbers in a byte: columns j and j + 16 of each 32."""
    shifts = torch.tensor([0, 4], dtype=torch.int32)[:, None]
    numbers = (q.view(len(q), -1, 1, 16).to(torch.int32) >> shifts) & 15
    return ((numbers - 8).float().view(len(q), -1, 32) * scale.float()[:, :, None]).view(len(q), -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns", "terms"), [(1, 136, 192), (3, 130, 200), (4, 129, 131)])
def test_weights_are_read_in_place(dtype: torch.dtype, rows: int, columns: int, terms: int) -> None:
    x, w, b = (torch.randn(*size).to(dtype) for size in ((rows, terms), (columns, terms), (columns,)))
    got, nest = _compiled(lambda x, w, b: F.silu(F.linear(x, w, b)), x, w, b)
    exact = F.silu(F.linear(x.double(), w.double(), b.double()))
    assert_close(got, F.silu(F.linear(x, w, b)), exact)
    assert nest.count("kernel ") == 1 and "prefetch" in nest
    if terms % 64 == 0:
        assert "fma" in nest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "columns", "terms"), [(1, 256, 96), (3, 384, 64), (4, 768, 128)])
def test_weights_with_contiguous_columns_stream(
    dtype: torch.dtype, rows: int, columns: int, terms: int
) -> None:
    x, w, b = (torch.randn(*size).to(dtype) for size in ((rows, terms), (terms, columns), (columns,)))
    got, nest = _compiled(lambda x, w, b: torch.addmm(b, x, w).relu(), x, w, b)
    exact = torch.addmm(b.double(), x.double(), w.double()).relu()
    assert_close(got, torch.addmm(b, x, w).relu(), exact)
    assert nest.count("kernel ") == 1 and "prefetch" in nest and "fma" in nest


@pytest.mark.parametrize(
    ("rows", "columns", "terms"),
    [(5, 256, 96), (3, 200, 96), (3, 256, 100), (1, 2048, 1024)],
    ids=["rows", "no whole vectors", "no whole blocks", "one row of a large weight"],
)
def test_weights_with_contiguous_columns_that_do_not(rows: int, columns: int, terms: int) -> None:
    x, w = torch.randn(rows, terms), torch.randn(terms, columns)
    got, nest = _compiled(torch.mm, x, w)
    assert_close(got, torch.mm(x, w), torch.mm(x.double(), w.double()))
    assert "prefetch" not in nest


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_numbers_of_four_bits_are_computed_once_for_all_rows(rows: int) -> None:
    q, scale = torch.randint(0, 256, (72, 128), dtype=torch.uint8), torch.rand(72, 8).half()
    x = torch.randn(rows, 256)
    got, nest = _compiled(lambda x, q, scale: F.linear(x, _dequantized(q, scale)), x, q, scale)
    weight = _dequantized(q, scale)
    assert_close(got, F.linear(x, weight), F.linear(x.double(), weight.double()))
    assert nest.count("kernel ") == 1
    for each in range(8 if rows <= 2 else 16 // rows):  # each column's numbers once, for all rows
        assert nest.count(f"_{each}: u8 = ") <= 1


@pytest.mark.parametrize("name", ["int4_g64_zero_points", "q4_k", "q6_k"])
def test_numbers_of_four_bits_are_looked_up(name: str) -> None:
    """A table in a register has the values of a group; scales are computed in vectors of groups before."""
    weight = random_planes(name, 40, 512)
    dequantize = torch.ops.smelt.dequantize
    x = torch.randn(2, 512)
    got, nest = _compiled(
        lambda x, *each: F.linear(x, dequantize(list(each), name, 512, torch.float32)), x, *weight
    )
    values = dequantize(list(weight), name, 512, torch.float32)
    assert_close(got, F.linear(x, values), F.linear(x.double(), values.double()))
    if torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        assert "= lookup(" in nest
    assert "_ahead[" in nest[nest.index("carry ") :] and "f16" not in nest[nest.index("carry ") :]


def test_many_rows_have_another_recipe() -> None:
    x, w = torch.randn(9, 192), torch.randn(128, 192)
    _, nest = _compiled(F.linear, x, w)
    assert "prefetch" not in nest or "tile" in nest


def test_what_costs_something_is_not_computed_for_every_column() -> None:
    x, w = torch.randn(1, 256), torch.randn(128, 256)
    _, nest = _compiled(lambda x, w: F.linear(torch.exp(x), w), x, w)
    assert nest.count("= exp(") == 1 and nest.count("kernel ") == 2


def test_a_cache_is_appended_in_place() -> None:
    def step(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, new)
        return cache.amax(1)

    cache, new = torch.randn(3, 16, 8), torch.randn(3, 1, 8)
    mine = cache.clone()
    want = step(cache, torch.tensor([5]), new)
    got, nest = _compiled(step, mine, torch.tensor([5]), new)
    assert torch.equal(got, want) and torch.equal(mine, cache)
    assert nest.split("\n\n")[0].count("index_copy") == 1  # no copy of the whole cache


def test_a_cache_that_is_read_before_is_copied() -> None:
    def step(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        before = cache.amax(1)
        cache.index_copy_(1, at, new)
        return cache.amax(1) - before

    cache, new = torch.randn(3, 16, 8), torch.randn(3, 1, 8)
    mine = cache.clone()
    want = step(cache, torch.tensor([5]), new)
    got, _ = _compiled(step, mine, torch.tensor([5]), new)
    assert torch.equal(got, want) and torch.equal(mine, cache)
