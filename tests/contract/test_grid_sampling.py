"""Grid sampling apart: eager's numbers and gradients, also of coordinates that are NaN or far outside."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.semantics.sameness import same

from smelt.contract.grid_sampling import BILINEAR, ZEROS, grid_sampler, grid_sampler_backward

ODD = (math.nan, math.inf, -math.inf, 1e10, -1e10, 1e30, -1e38, -3e9)


def sampled(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An input, and a grid with each odd coordinate in each dimension."""
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(2, 2, *(5, 4, 6)[:rank], generator=generator)
    grid = torch.rand(2, 4, 10, *[1] * (rank - 2), rank, generator=generator) * 2.4 - 1.2
    for number, (value, dim) in enumerate(itertools.product(ODD, range(rank))):
        grid.view(-1, rank)[number, dim] = value
    return x, grid


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize(("rank", "mode"), [(2, 0), (2, 1), (2, 2), (3, 0), (3, 1)])
def test_odd_coordinates(rank: int, mode: int, padding: int, corners: bool) -> None:
    x, grid = sampled(rank)
    forward = getattr(torch.ops.aten, f"grid_sampler_{rank}d")
    backward = getattr(torch.ops.aten, f"grid_sampler_{rank}d_backward")
    expected = forward(x, grid, mode, padding, corners)
    close(grid_sampler(x, grid, mode, padding, corners), expected)
    if (rank, mode) == (2, BILINEAR) and padding != ZEROS:
        grid = grid.nan_to_num(0.5, 1.5, -1.5)  # eager's kernel reads outside of its memory
    upstream = torch.ones_like(expected)
    gradients = backward(upstream, x, grid, mode, padding, corners, [True, True])
    for got, wanted in zip(
        grid_sampler_backward(upstream, x, grid, mode, padding, corners, [True, True]), gradients
    ):
        assert got is not None
        close(got, wanted)


def test_odd_coordinates_natively() -> None:
    x, grid = sampled(2)
    sample = torch.nn.functional.grid_sample
    modes = ("zeros", "border", "reflection")
    same(
        lambda x, grid: [sample(x, grid, padding_mode=mode, align_corners=False) for mode in modes],
        x,
        grid.where(grid.abs() < 1e9, math.nan),
        calls=1,
    )
