"""The same memory as another dtype: every pair of widths, strides and sizes as eager demands."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.lowering.harness import DTYPES, check
from tests.semantics.sameness import raises_alike, same

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def memory(dtype: torch.dtype) -> torch.Tensor:
    """Rows of random bytes (of booleans: 0 and 1), NaN with all their payloads among them."""
    most = 2 if dtype is torch.bool else 256
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, most, (3, 64), dtype=torch.uint8, generator=generator).view(dtype)


def every_view(x: torch.Tensor) -> list[Any]:
    """All views as integers, so that NaN compare by their bits."""
    views = [x.view(dtype) for dtype in DTYPES]
    return [v.logical_not() if v.dtype is torch.bool else v.view(WORDS[v.dtype.itemsize]) + 0 for v in views]


@pytest.mark.parametrize("source", DTYPES)
def test_views_of_every_dtype_as_every_other(source: torch.dtype) -> None:
    check(every_view, memory(source))


def test_views_between_widths_run_natively() -> None:
    same(every_view, memory(torch.float32), calls=1)
    same(lambda x: (x.view(torch.int16) + 1, x.view(torch.int64) + 1), torch.randn(4, 6), dynamic=True)


def test_views_between_widths_share_memory() -> None:
    x = torch.randn(4, 6)
    same(lambda x: (x.view(torch.int16), (x + 1).view(torch.int64)), x)
    same(lambda x: (x.view(torch.int16).add_(1), x.view(torch.int64).add_(1)), x)
    same(lambda x: (x[:, 2:].view(torch.int64) + 1, x.t().t().view(torch.uint8) + 1), x)


def test_views_that_eager_refuses() -> None:
    raises_alike(lambda x: x.view(torch.int64) + 1, torch.randn(4, 5))
    raises_alike(lambda x: x.view(torch.int16) + 1, torch.randn(4, 6).t())
    raises_alike(lambda x: x.view(torch.int16) + 1, torch.tensor(1.0))
