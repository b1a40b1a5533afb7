"""Padding by a number, by reflection and by repeating the border."""

import math

import pytest
import torch

from tests.lowering.harness import DTYPES, check
from tests.lowering.test_indexing import numbers

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_pad(dtype: torch.dtype) -> None:
    x = numbers(dtype, 2, 3, 4)
    check(
        lambda x: (aten.constant_pad_nd.default(x, [1, 2]), aten.constant_pad_nd.default(x, [0, 1, 2, 0], 1)),
        x,
    )


def test_constant_pad_cuts_off_where_negative() -> None:
    x = numbers(torch.float32, 3, 5)
    check(lambda x: aten.constant_pad_nd.default(x, [-1, 2, 1, -1], -math.inf), x)
    check(lambda x: aten.constant_pad_nd.default(x, [-1, -2]), x)
    check(lambda x: aten.constant_pad_nd.default(x, [0, 0, 2, 2], math.nan), x[:0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_reflection_and_replication(dtype: torch.dtype) -> None:
    check(
        lambda x: (aten.reflection_pad1d.default(x, [3, 1]), aten.replication_pad1d.default(x, [5, 1])),
        numbers(dtype, 2, 3, 4),
    )
    check(
        lambda x: (
            aten.reflection_pad2d.default(x, [3, 0, 1, 2]),
            aten.replication_pad2d.default(x, [3, 0, 1, 7]),
        ),
        numbers(dtype, 2, 3, 4, 5),
    )
    check(
        lambda x: (
            aten.reflection_pad3d.default(x, [1, 0, 1, 2, 0, 1]),
            aten.replication_pad3d.default(x, [1, 0, 1, 2, 0, 1]),
        ),
        numbers(dtype, 2, 2, 3, 3),
    )


def test_reflection_and_replication_backward() -> None:
    x = numbers(torch.float32, 2, 3, 4, 5)
    grad = torch.rand(2, 3, 7, 8)
    check(lambda g, x: aten.reflection_pad2d_backward.default(g, x, [3, 0, 1, 2]), grad, x, slack=2)
    check(lambda g, x: aten.replication_pad2d_backward.default(g, x, [3, 0, 1, 2]), grad, x, slack=2)


def test_dynamic_sizes() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            aten.constant_pad_nd.default(x, [1, 2, 0, 1], 0.5),
            aten.reflection_pad1d.default(x, [2, 1]),
            aten.replication_pad1d.default(x, [2, 1]),
        )

    others = [[numbers(torch.float32, n, m)] for n, m in ((2, 4), (7, 9))]
    check(function, numbers(torch.float32, 3, 6), symbolic=True, others=others)
