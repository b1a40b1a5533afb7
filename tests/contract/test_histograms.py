"""Histograms, taken apart: the same bins as eager's, also where elements lie on edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.lowering.harness import check
from tests.support.agreement import sample

from smelt.contract.decompositions import decompositions

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64)


def same(function: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> None:
    check(function, *inputs, decompositions=decompositions(), slack=4, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("density", [False, True])
def test_of_one_dimension(dtype: torch.dtype, density: bool) -> None:
    x, weight = sample(dtype, 12, 10), sample(dtype, 12, 10).exp()
    edges = torch.tensor([-1, -0.5, 0.1, 0.7, 2], dtype=dtype)
    same(lambda x: aten.histogram.bin_ct(x, 10, density=density), x)
    same(lambda x, w: aten.histogram.bin_ct(x, 10, weight=w, density=density), x, weight)
    same(lambda x: aten.histogram.bin_ct(x, 10, range=[-1.0, 2.0], density=density), x)
    same(lambda x, b: aten.histogram.bins_tensor(x, b, density=density), x, edges)
    same(lambda x, b, w: aten.histogram.bins_tensor(x, b, weight=w, density=density), x, edges, weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("density", [False, True])
def test_of_several_dimensions(dtype: torch.dtype, density: bool) -> None:
    x, edges = sample(dtype, 60, 3), [torch.linspace(-1, 1, n, dtype=dtype) for n in (3, 4, 5)]
    span = [-1.0, 1.0, -2.0, 0.5, 0.0, 1.0]
    same(lambda x: aten._histogramdd_from_bin_cts(x, [3, 4, 5], density=density), x)
    same(lambda x: aten._histogramdd_from_bin_cts(x, [3, 4, 5], range=span, density=density), x)
    same(lambda x: aten._histogramdd_bin_edges(x, [3, 4, 5], range=span), x)
    same(lambda x, *e: aten._histogramdd_from_bin_tensors(x, list(e), density=density), x, *edges)


@pytest.mark.parametrize("dtype", DTYPES)
def test_on_edges_and_outside(dtype: torch.dtype) -> None:
    grid = torch.arange(101, dtype=dtype) / 10
    same(lambda x: aten.histogram.bin_ct(x, 10), grid)
    same(lambda x: aten.histogram.bin_ct(x, 7, range=[0.0, 9.0]), grid)
    same(lambda x: aten.histc.default(x, 7, 0, 9), grid)
    same(lambda x: aten.histogram.bin_ct(x, 4), torch.ones(5, dtype=dtype))
    same(lambda x: aten.histogram.bin_ct(x, 4), torch.ones(0, dtype=dtype))
    same(lambda x: aten.histogram.bin_ct(x), grid)
    grid[3] = torch.nan
    same(lambda x: aten.histogram.bin_ct(x, 4, range=[1.0, 2.0]), grid)


def test_sizes_of_data_are_dynamic() -> None:
    x, longer = sample(torch.float32, 40), sample(torch.float32, 90)
    same(lambda x: aten.histogram.bin_ct(x, 5, range=[-1.0, 1.0]), x, symbolic=True, others=[(longer,)])
    same(lambda x: aten.histc.default(x, 5, -1, 1), x, symbolic=True, others=[(longer,)])
