"""Fractional max pooling: eager's windows, maxima and gradients."""

from __future__ import annotations

import pytest
import torch

import smelt
from tests.lowering.harness import FLOATS, check

aten = torch.ops.aten
GENERATOR = torch.Generator().manual_seed(0)

PLANES = [([2, 2], [3, 4]), ([2, 3], [1, 4]), ([6, 5], [2, 3]), ([1, 1], [10, 9]), ([3, 3], [8, 7])]
"""(window, output size) for planes of 10 x 9."""


def drawn(dtype: torch.dtype, lead: list[int], *sizes: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(*lead, *sizes, generator=GENERATOR).to(dtype)
    planes = lead if len(lead) == 2 else [1, *lead]
    return x, torch.rand(*planes, len(sizes), generator=GENERATOR).to(dtype)


@pytest.mark.parametrize("lead", [[2, 3], [3]])
@pytest.mark.parametrize("dtype", FLOATS)
def test_of_planes(dtype: torch.dtype, lead: list[int]) -> None:
    for window, out in PLANES:
        x, samples = drawn(dtype, lead, 10, 9)
        check(lambda x, s: aten.fractional_max_pool2d.default(x, window, out, s), x, samples)  # noqa: B023
        maxima, at = aten.fractional_max_pool2d.default(x, window, out, samples)
        backward = aten.fractional_max_pool2d_backward.default
        check(lambda g, x, i: backward(g, x, window, out, i), maxima, x, at, slack=2)  # noqa: B023


@pytest.mark.parametrize("lead", [[2, 3], [3]])
@pytest.mark.parametrize("dtype", FLOATS)
def test_of_volumes(dtype: torch.dtype, lead: list[int]) -> None:
    for window, out in (([2, 2, 2], [3, 4, 2]), ([2, 3, 2], [1, 4, 4]), ([4, 5, 3], [2, 3, 3])):
        x, samples = drawn(dtype, lead, 7, 9, 6)
        check(lambda x, s: aten.fractional_max_pool3d.default(x, window, out, s), x, samples)  # noqa: B023
        maxima, at = aten.fractional_max_pool3d.default(x, window, out, samples)
        backward = aten.fractional_max_pool3d_backward.default
        check(lambda g, x, i: backward(g, x, window, out, i), maxima, x, at, slack=2)  # noqa: B023


def test_dynamic_planes() -> None:
    x, samples = drawn(torch.float32, [2, 3], 10, 9)
    larger, _ = drawn(torch.float32, [2, 3], 11, 14)
    for window, out in PLANES:
        check(
            lambda x, s: aten.fractional_max_pool2d.default(x, window, out, s),  # noqa: B023
            x, samples, symbolic=True, others=[(larger, samples)],
        )  # fmt: skip


def test_nan_wins_and_the_last_one_is_named() -> None:
    x, samples = drawn(torch.float32, [1, 1], 6, 6)
    x[0, 0, 2, 2:4] = torch.nan
    check(lambda x, s: aten.fractional_max_pool2d.default(x, [2, 2], [3, 3], s), x, samples)


def test_as_a_module_compiled_with_gradients() -> None:
    x, samples = drawn(torch.float32, [2, 3], 10, 9)
    module = torch.nn.FractionalMaxPool2d((2, 3), (4, 4), _random_samples=samples)
    smelt.reset()
    compiled = torch.compile(lambda x: module(x).sin(), backend="smelt")
    mine, theirs = (x.clone().requires_grad_() for _ in range(2))
    got, expected = compiled(mine), module(theirs).sin()
    got.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(mine.grad, theirs.grad)
    assert not [each for report in smelt.reports() for each in report.fallbacks]
