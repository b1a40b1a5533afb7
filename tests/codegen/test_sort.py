"""Sorting as machine code: every type, every length at which another routine takes over, ties in order."""

from __future__ import annotations

import pytest
import torch

import smelt
from tests.lowering.harness import DTYPES

LENGTHS = [1, 2, 15, 16, 17, 33, 199, 200, 201, 799, 800, 1601, 5000]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_length(dtype: torch.dtype) -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        up, down = torch.sort(x, stable=True), torch.sort(x, stable=True, descending=True)
        return (*up, *down)

    torch._dynamo.reset()
    compiled = torch.compile(both, backend="smelt", dynamic=True, fullgraph=True)
    draw = torch.Generator().manual_seed(1)
    for length in LENGTHS:
        x = (torch.randn(3, length, generator=draw) * 50).to(dtype)
        if dtype.is_floating_point and length > 4:
            x[0, :5] = torch.tensor([torch.nan, 0.0, -0.0, torch.inf, -torch.inf]).to(dtype)
        for got, wanted in zip(compiled(x), both(x), strict=True):
            assert torch.equal(torch.nan_to_num(got, 99), torch.nan_to_num(wanted, 99)), length
            if got.is_floating_point():
                assert torch.equal(torch.signbit(got), torch.signbit(wanted))
    assert not any(report.fallbacks for report in smelt.reports()[-1:])


@pytest.mark.parametrize("k", [1, 2, 7, 50])
def test_the_first_of_many(k: int) -> None:
    """Few of a long row: a heap takes the place of the sort; the order is the stable sort's."""

    def first(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*torch.topk(x, k), *torch.topk(x, k, largest=False))

    torch._dynamo.reset()
    draw = torch.Generator().manual_seed(k)
    x = torch.randint(-9, 9, (4, 1000), generator=draw).float()
    up, down = (torch.sort(x, stable=True, descending=d) for d in (False, True))
    got = torch.compile(first, backend="smelt", fullgraph=True)(x)
    wanted = (down[0][:, :k], down[1][:, :k], up[0][:, :k], up[1][:, :k])
    assert all(map(torch.equal, got, wanted))
