"""Operators that are a few others: eager's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.lowering.harness import FLOATS, check
from tests.support.agreement import sample

from smelt.contract.decompositions import decompositions

aten = torch.ops.aten


def same(function: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> None:
    check(function, *inputs, decompositions=decompositions(), slack=8, **options)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm_and_its_gradients(dtype: torch.dtype, dim: int) -> None:
    v = sample(dtype, 7, 5, 6)
    g = sample(dtype, *(size if d == dim else 1 for d, size in enumerate(v.shape)))
    _, norms = aten._weight_norm_interface.default(v, g, dim)
    same(lambda v, g: aten._weight_norm_interface.default(v, g, dim), v, g)
    backward = aten._weight_norm_interface_backward.default
    same(
        lambda grad, v, g, n: backward(grad, v, g, n, dim),
        sample(dtype, 7, 5, 6).flip(0),
        v,
        g,
        norms,
        zeros=False,
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_weight_norm_of_one_dimension(dtype: torch.dtype) -> None:
    same(lambda v, g: aten._weight_norm_interface.default(v, g), sample(dtype, 5), sample(dtype, 5))


@pytest.mark.parametrize("dtype", FLOATS)
def test_convolution_over_time(dtype: torch.dtype) -> None:
    inputs = sample(dtype, 7, 2, 3), sample(dtype, 3, 3, 5), sample(dtype, 5)
    same(lambda x, w, b: aten.conv_tbc.default(x, w, b, 1), *inputs)
    other = sample(dtype, 9, 4, 3)
    same(
        lambda x, w, b: aten.conv_tbc.default(x, w, b), *inputs, symbolic=True, others=[(other, *inputs[1:])]
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("use_gelu", [False, True])
def test_linear_layer_with_activation(dtype: torch.dtype, use_gelu: bool) -> None:
    same(
        lambda b, x, w: aten._addmm_activation.default(b, x, w, beta=0.5, use_gelu=use_gelu),
        sample(dtype, 5), sample(dtype, 4, 3), sample(dtype, 3, 5),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("norm", [0.0, 1.0, 2.0, 3.0, torch.inf])
def test_renormalized_rows(dtype: torch.dtype, norm: float) -> None:
    rows = torch.tensor([[0, 3], [3, 5]])
    same(lambda x, i: aten.embedding_renorm.default(x, i, 1.0, norm), sample(dtype, 6, 4), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("corners", [False, True])
def test_lanczos(dtype: torch.dtype, corners: bool) -> None:
    x = sample(dtype, 2, 3, 6, 5)
    for size in ([9, 4], [3, 3], [1, 12]):
        same(lambda x: aten._upsample_lanczos2d_aa.default(x, size, corners), x)  # noqa: B023
        backward = aten._upsample_lanczos2d_aa_backward.default
        same(lambda g: backward(g, size, x.shape, corners), sample(dtype, 2, 3, *size))  # noqa: B023
