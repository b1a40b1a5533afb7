"""Floating arithmetic on sizes, compiled with dynamic sizes: as a factor, and rounded to a size."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import smelt

FACTORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "alpha": lambda x, y: torch.add(x, y, alpha=1 / x.shape[0]),
    "alpha of integers": lambda x, y: torch.sub(x, y, alpha=x.shape[0]),
    "alpha and a root": lambda x, y: torch.rsub(x, y, alpha=x.shape[0] ** 0.5),
    "matrix product": lambda x, y: torch.addmm(x[:, :1], x, y.t(), beta=1 / x.shape[0], alpha=2 / x.shape[0]),
    "batched product": lambda x, y: torch.baddbmm(
        x[None, :, :1], x[None], y.t()[None], beta=1 / x.shape[0], alpha=x.shape[0] ** -0.5
    ),
    "by a vector": lambda x, y: torch.addmv(x[:, 1], x, y[0], beta=1 / x.shape[0], alpha=1.5 * x.shape[0]),
    "elu": lambda x, y: torch.nn.functional.elu(x, 1 / x.shape[0]),
    "leaky relu": lambda x, y: torch.nn.functional.leaky_relu(x, 1 / x.shape[0]),
    "variance": lambda x, y: torch.var(x, 0, correction=1 / x.shape[0]),
    "full": lambda x, y: torch.full_like(x, 1 / x.shape[0]) + y,
    "where": lambda x, y: torch.where(x > x.shape[0] / 40, y, x.shape[0] ** 0.5),
}
SIZES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "int": lambda x, y: x[: int(x.shape[0] * 0.5)] + 1,
    "ceil": lambda x, y: x[: math.ceil(x.shape[0] * 0.3)].cumsum(0),
    "floor": lambda x, y: x[: math.floor(x.shape[0] ** 0.5)] * 2,
    "round": lambda x, y: x.new_zeros(round(x.shape[0] / 2)) + x.shape[0] / 2,
    "interpolate": lambda x, y: torch.nn.functional.interpolate(x[None, None], scale_factor=1.7),
    "interpolate between": lambda x, y: torch.nn.functional.interpolate(
        x[None, None], scale_factor=1.3, mode="bilinear"
    ),
    "a branch": lambda x, y: x + 1 if x.shape[0] / 2 > 3.2 else x - 1,
}


@pytest.mark.parametrize("name", [*FACTORS, *SIZES])
def test_with_dynamic_sizes(name: str) -> None:
    function = {**FACTORS, **SIZES}[name]
    smelt.reset()
    compiled = torch.compile(function, backend="smelt", dynamic=True, fullgraph=True)
    generator = torch.Generator().manual_seed(0)
    for size in (9, 13, 8):
        x, y = (torch.randn(size, 5, generator=generator) for _ in range(2))
        torch.testing.assert_close(compiled(x, y), function(x, y))
    assert not [each for report in smelt.reports() for each in report.fallbacks]


def test_a_probability_that_depends_on_sizes() -> None:
    smelt.reset()
    dropped = lambda x: torch.nn.functional.dropout(x, 1 / x.shape[0])  # noqa: E731
    result = torch.compile(dropped, backend="smelt", dynamic=True)(torch.ones(4, 1000))
    assert 0.7 < float((result != 0).float().mean()) < 0.8
