"""Pooling and its gradients."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from smelt.loops.ir import Reduction
from tests.lowering.harness import FLOATS, check, lowered
from tests.support.agreement import sample

aten = torch.ops.aten


MAX_POOLS: list[list[Any]] = [
    [[3, 3], [2, 2], [1, 1], [1, 1], False],
    [[2, 2], [], [0, 0], [1, 1], False],
    [[3, 2], [2, 1], [1, 0], [1, 2], True],
    [[3, 3], [1, 1], [1, 1], [2, 2], False],
    [[2, 2], [3, 3], [0, 0], [1, 1], True],
    [[6, 6], [3, 3], [3, 3], [1, 1], False],  # more than is unrolled
    [[40, 3], [40, 2], [0, 1], [1, 1], True],  # larger than the inputs
    [[11, 12], [2, 2], [3, 3], [1, 1], True],
]


@pytest.mark.parametrize("arguments", MAX_POOLS)
def test_max_pool2d(arguments: list[Any]) -> None:
    x = sample(torch.float32, 2, 3, 9, 8)
    check(lambda x: aten.max_pool2d_with_indices.default(x, *arguments), x)
    check(
        lambda x: aten.max_pool2d_with_indices.default(x, *arguments), x.to(memory_format=torch.channels_last)
    )
    check(lambda x: aten.max_pool2d_with_indices.default(x, *arguments), sample(torch.bfloat16, 3, 9, 8))


@pytest.mark.parametrize("arguments", MAX_POOLS)
def test_max_pool2d_backward(arguments: list[Any]) -> None:
    x = sample(torch.float32, 2, 3, 9, 8)
    values, indices = aten.max_pool2d_with_indices.default(x, *arguments)
    check(
        lambda g, x, i: aten.max_pool2d_with_indices_backward.default(g, x, *arguments, i),
        sample(torch.float32, *values.shape, seed=1),
        x,
        indices,
        slack=1,
    )


@pytest.mark.parametrize("window", [[2, 2], [6, 6]])
def test_max_pool_of_infinities_and_nan(window: list[int]) -> None:
    x = torch.full((1, 6, 6), -math.inf)
    padding = [size // 2 for size in window]
    check(lambda x: aten.max_pool2d_with_indices.default(x, window, window, padding), x)
    x[0, 2, 2] = math.nan
    check(lambda x: aten.max_pool2d_with_indices.default(x, window, window, padding), x)
    x[0, 4, 0] = math.inf
    check(lambda x: aten.max_pool2d_with_indices.default(x, window, window, padding), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.uint8])
def test_max_pool_dtypes(dtype: torch.dtype) -> None:
    check(lambda x: aten.max_pool2d_with_indices.default(x, [3, 3], [2, 2], [1, 1]), sample(dtype, 2, 7, 7))


def test_max_pool3d_and_backward() -> None:
    x = sample(torch.float32, 2, 2, 5, 6, 7)
    arguments: list[Any] = [[2, 2, 3], [2, 1, 2], [1, 0, 1], [1, 1, 1], False]
    check(lambda x: aten.max_pool3d_with_indices.default(x, *arguments), x)
    values, indices = aten.max_pool3d_with_indices.default(x, *arguments)
    check(
        lambda g, x, i: aten.max_pool3d_with_indices_backward.default(g, x, *arguments, i),
        sample(torch.float32, *values.shape, seed=1),
        x,
        indices,
        slack=1,
    )


AVERAGE_POOLS: list[list[Any]] = [
    [[3, 3], [2, 2], [1, 1], False, True, None],
    [[3, 3], [2, 2], [1, 1], False, False, None],
    [[2, 2], [], [0, 0], False, True, None],
    [[3, 2], [2, 2], [1, 1], True, True, None],
    [[3, 2], [2, 2], [1, 1], True, False, None],
    [[2, 2], [2, 2], [0, 0], True, False, 7],
    [[7, 7], [2, 1], [3, 0], False, False, None],  # more than is unrolled
    [[1280, 1280], [], [0, 0], True, True, None],  # larger than the inputs
    [[3, 40], [2, 40], [1, 20], True, False, None],
    [[12, 11], [2, 1], [3, 3], True, True, None],
]


@pytest.mark.parametrize("arguments", AVERAGE_POOLS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_avg_pool2d(arguments: list[Any], dtype: torch.dtype) -> None:
    check(lambda x: aten.avg_pool2d.default(x, *arguments), sample(dtype, 2, 3, 9, 8), slack=4)


@pytest.mark.parametrize("arguments", AVERAGE_POOLS)
def test_avg_pool2d_backward(arguments: list[Any]) -> None:
    x = sample(torch.float32, 2, 3, 9, 8)
    grad = sample(torch.float32, *aten.avg_pool2d.default(x, *arguments).shape, seed=1)
    check(lambda g, x: aten.avg_pool2d_backward.default(g, x, *arguments), grad, x, slack=4)


def test_avg_pool1d_and_3d() -> None:
    check(lambda x: aten.avg_pool1d.default(x, [3], [2], [1]), sample(torch.float32, 2, 3, 9), slack=4)
    x = sample(torch.float32, 2, 2, 5, 6, 7)
    check(lambda x: aten.avg_pool3d.default(x, [2, 2, 3], [2, 1, 2], [1, 0, 1], True, False), x, slack=4)
    grad = torch.ones_like(aten.avg_pool3d.default(x, [2, 2, 3], [2, 1, 2], [1, 0, 1]))
    check(
        lambda g, x: aten.avg_pool3d_backward.default(
            g, x, [2, 2, 3], [2, 1, 2], [1, 0, 1], False, True, None
        ),
        grad,
        x,
        slack=4,
    )


@pytest.mark.parametrize("out", [[1, 1], [3, 4], [2, 3], [5, 5], [7, 9], [9, 8]])
def test_adaptive_average_pool_and_backward(out: list[int]) -> None:
    x = sample(torch.float32, 2, 3, 9, 8)
    check(lambda x: aten._adaptive_avg_pool2d.default(x, out), x, slack=4)
    grad = sample(torch.float32, 2, 3, *out, seed=1)
    check(lambda g, x: aten._adaptive_avg_pool2d_backward.default(g, x), grad, x, slack=4)


def test_adaptive_pools_of_other_ranks() -> None:
    check(lambda x: aten.adaptive_avg_pool1d.default(x, [3]), sample(torch.float32, 2, 3, 8), slack=4)
    x = sample(torch.float32, 2, 4, 5, 6)
    check(lambda x: aten._adaptive_avg_pool3d.default(x, [2, 3, 3]), x, slack=4)
    check(lambda x: aten.adaptive_max_pool3d.default(x, [2, 3, 4]), x)
    grad = sample(torch.float32, 2, 2, 3, 3, seed=1)
    check(lambda g, x: aten._adaptive_avg_pool3d_backward.default(g, x), grad, x, slack=4)


@pytest.mark.parametrize("out", [[1, 1], [3, 4], [5, 5]])
def test_adaptive_max_pool_and_backward(out: list[int]) -> None:
    x = sample(torch.float32, 2, 3, 9, 8)
    check(lambda x: aten.adaptive_max_pool2d.default(x, out), x)
    values, indices = aten.adaptive_max_pool2d.default(x, out)
    grad = sample(torch.float32, *values.shape, seed=1)
    check(lambda g, x, i: aten.adaptive_max_pool2d_backward.default(g, x, i), grad, x, indices, slack=1)


@pytest.mark.parametrize("arguments", AVERAGE_POOLS)
def test_average_of_integers_is_rounded_to_zero(arguments: list[Any]) -> None:
    check(lambda x: aten.avg_pool2d.default(x, *arguments), sample(torch.int64, 2, 3, 9, 8))


def test_dynamic_sizes() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *aten.max_pool2d_with_indices.default(x, [3, 3], [2, 2], [1, 1]),
            aten.avg_pool2d.default(x, [3, 3], [2, 2], [1, 1], False, False),
            aten._adaptive_avg_pool2d.default(x, [3, 2]),
            aten._adaptive_avg_pool2d.default(x, [1, 1]),
        )

    others = [
        [sample(torch.float32, n, c, h, w)] for n, c, h, w in ((2, 3, 7, 9), (3, 5, 12, 6), (4, 2, 13, 13))
    ]
    check(function, sample(torch.float32, 2, 3, 8, 10), symbolic=True, others=others, slack=4)


def test_a_window_much_larger_than_its_inputs_visits_the_inputs_alone() -> None:
    """Pooling over all of a plane, written as a window of some thousand: EfficientNet of transformers."""
    x = torch.randn(1, 2, 7, 6)
    for pool in (
        lambda x: F.avg_pool2d(x, 1280, ceil_mode=True),
        lambda x: F.max_pool2d(x, 90, ceil_mode=True),
    ):
        bodies = [node.body for node in lowered(pool, x).nodes]
        assert {body.reduce_shape for body in bodies if isinstance(body, Reduction)} == {(7, 6)}


def test_windows_larger_than_dynamic_inputs() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.avg_pool2d(x, 90, ceil_mode=True), *aten.max_pool2d_with_indices.default(
            x, [90, 90], [], [0, 0], [1, 1], True
        )

    others = [[sample(torch.float32, 2, 3, h, w)] for h, w in ((7, 9), (12, 6), (88, 89))]
    check(function, sample(torch.float32, 2, 3, 8, 10), symbolic=True, others=others, slack=4)


def test_dynamic_gradients() -> None:
    def function(x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            aten.max_pool2d_with_indices_backward.default(
                values, x, [3, 3], [2, 2], [1, 1], [1, 1], False, indices
            ),
            aten.avg_pool2d_backward.default(values, x, [3, 3], [2, 2], [1, 1], False, False, None),
            aten._adaptive_avg_pool2d_backward.default(values, x),
        )

    def inputs(*shape: int) -> list[torch.Tensor]:
        x = sample(torch.float32, *shape)
        return [x, *aten.max_pool2d_with_indices.default(x, [3, 3], [2, 2], [1, 1])]

    others = [inputs(2, 3, 7, 9), inputs(3, 5, 12, 6)]
    check(function, *inputs(2, 3, 8, 10), symbolic=True, others=others, slack=4)
