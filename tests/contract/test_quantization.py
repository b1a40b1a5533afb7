"""Fake quantization, taken apart: eager's grid, masks and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.lowering.harness import FLOATS, check

from smelt.contract.decompositions import decompositions

aten = torch.ops.aten
GRID = (-8, 20)
SCALE, ZERO = torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32)
SCALES, ZEROS = torch.tensor([0.1, 0.13, 0.2, 0.3, 0.07]), torch.tensor([0, 1, -3, 4, 2], dtype=torch.int32)


def same(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """With fixed sizes; then with symbolic ones, for another number of rows too."""
    check(function, *inputs, decompositions=decompositions(), slack=16)
    rows = inputs[0].shape[0]
    more = [torch.cat([x, x]) if x.dim() == 2 and x.shape[0] == rows else x for x in inputs]
    check(function, *inputs, decompositions=decompositions(), slack=16, symbolic=True, others=[more])


def values(dtype: torch.dtype, special: bool = False) -> torch.Tensor:
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)) * 3
    if special:
        x[0, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e4])
    return x.to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_scale(dtype: torch.dtype) -> None:
    x = values(dtype, special=True)
    same(lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, *GRID), x)
    for flag in (0, 1):
        same(
            lambda x, s, z, on: aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
                x, s, z, on, *GRID
            ),
            x, SCALE, ZERO, torch.tensor([flag]),
        )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("zeros", [ZEROS, ZEROS + 0.3])
def test_a_scale_for_each_channel(dtype: torch.dtype, zeros: torch.Tensor) -> None:
    operator = aten.fake_quantize_per_channel_affine_cachemask.default
    same(lambda x, s, z: operator(x, s, z, 1, *GRID), values(dtype), SCALES, zeros)


@pytest.mark.parametrize("dtype", FLOATS)
def test_learnt_scales(dtype: torch.dtype) -> None:
    one = aten._fake_quantize_learnable_per_tensor_affine.default
    each = aten._fake_quantize_learnable_per_channel_affine.default
    same(lambda x, s, z: one(x, s, z, *GRID, 0.5), values(dtype), SCALE, ZERO + 0.4)
    same(lambda x, s, z: each(x, s, z, 1, *GRID, 0.5), values(dtype), SCALES, ZEROS + 0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_learnt_scales(dtype: torch.dtype) -> None:
    one = aten._fake_quantize_learnable_per_tensor_affine_backward.default
    each = aten._fake_quantize_learnable_per_channel_affine_backward.default
    grad, x = values(dtype).flip(0), values(dtype)
    same(lambda g, x, s, z: one(g, x, s, z, *GRID, 0.5), grad, x, SCALE, ZERO + 0.4)
    same(lambda g, x, s, z: each(g, x, s, z, 1, *GRID, 0.5), grad, x, SCALES, ZEROS + 0.3)
