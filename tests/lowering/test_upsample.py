"""Resizing."""

from typing import Any

import pytest
import torch

from smelt.lowering.shapes.upsample import nearest_source
from smelt.symbolic import FloorDiv, as_expr, loop_var
from tests.lowering.harness import FLOATS, check
from tests.support.agreement import sample

aten = torch.ops.aten


SIZES = [[10, 14], [5, 7], [12, 3], [15, 21], [3, 40], [1, 1]]


@pytest.mark.parametrize("out", SIZES)
def test_nearest(out: list[int]) -> None:
    x = sample(torch.float32, 2, 3, 5, 7)
    check(
        lambda x: (aten.upsample_nearest2d.vec(x, out, None), aten._upsample_nearest_exact2d.default(x, out)),
        x,
    )


@pytest.mark.parametrize("factors", [[2.0, 2.0], [1.5, 3.0], [0.6, 2.3]])
def test_nearest_by_factors(factors: list[float]) -> None:
    x = sample(torch.float32, 2, 3, 5, 7)
    check(
        lambda x: (
            aten.upsample_nearest2d.vec(x, None, factors),
            aten._upsample_nearest_exact2d.vec(x, None, factors),
        ),
        x,
    )


def test_nearest_of_other_ranks_and_dtypes() -> None:
    check(lambda x: aten.upsample_nearest1d.vec(x, [9], None), sample(torch.bfloat16, 2, 3, 4))
    check(lambda x: aten.upsample_nearest3d.vec(x, [4, 5, 6], None), sample(torch.float64, 2, 3, 2, 3, 4))
    check(
        lambda x: aten.upsample_nearest2d.vec(x, [5, 6], None),
        torch.arange(24, dtype=torch.uint8).view(1, 2, 3, 4),
    )


def test_whole_ratios_become_plain_indices() -> None:
    o, size = loop_var("o"), as_expr(5)
    assert nearest_source(size, as_expr(15), None, False)(o) == FloorDiv(o, 3)
    assert nearest_source(size, as_expr(15), None, True)(o) == FloorDiv(o, 3)
    assert nearest_source(as_expr(12), as_expr(3), None, False)(o) == 4 * o
    assert nearest_source(as_expr(12), as_expr(3), None, True)(o) == 4 * o + 2


@pytest.mark.parametrize("out", SIZES)
def test_nearest_backward(out: list[int]) -> None:
    grad = sample(torch.float32, 2, 3, *out)
    check(lambda g: aten.upsample_nearest2d_backward.default(g, out, [2, 3, 5, 7]), grad, slack=2)
    check(lambda g: aten._upsample_nearest_exact2d_backward.default(g, out, [2, 3, 5, 7]), grad, slack=2)


@pytest.mark.parametrize("out", SIZES)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_bilinear(out: list[int], align_corners: bool, dtype: torch.dtype) -> None:
    x = sample(dtype, 2, 3, 5, 7)
    check(lambda x: aten.upsample_bilinear2d.vec(x, out, align_corners, None), x, slack=16)


def test_linear_of_other_ranks_and_by_factors() -> None:
    check(
        lambda x: aten.upsample_linear1d.vec(x, None, False, [1.7]), sample(torch.float32, 2, 3, 9), slack=8
    )
    check(
        lambda x: aten.upsample_trilinear3d.vec(x, [4, 5, 6], False, None),
        sample(torch.float32, 1, 2, 2, 3, 4),
        slack=8,
    )


@pytest.mark.parametrize("out", SIZES)
@pytest.mark.parametrize("align_corners", [False, True])
def test_bicubic(out: list[int], align_corners: bool) -> None:
    x = sample(torch.float32, 2, 3, 5, 7)
    check(lambda x: aten.upsample_bicubic2d.default(x, out, align_corners), x, slack=32)


@pytest.mark.parametrize("out", SIZES)
@pytest.mark.parametrize("align_corners", [False, True])
def test_bilinear_backward(out: list[int], align_corners: bool) -> None:
    grad = sample(torch.float32, 2, 3, *out)
    check(
        lambda g: aten.upsample_bilinear2d_backward.default(g, out, [2, 3, 5, 7], align_corners),
        grad,
        slack=16,
    )


def test_bytes_are_interpolated_by_aten() -> None:
    x: Any = torch.arange(48, dtype=torch.uint8).view(1, 3, 4, 4)
    check(
        lambda x: aten.upsample_bilinear2d.vec(x, [6, 6], False, None),
        x,
        fallbacks=["aten.upsample_bilinear2d.default"],
    )


def test_dynamic_sizes() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        height, width = x.shape[2], x.shape[3]
        return (
            aten.upsample_nearest2d.default(x, [2 * height, 2 * width], 2.0, 2.0),
            aten.upsample_nearest2d.default(x, [5, 9]),
            aten.upsample_bilinear2d.default(x, [2 * height, 3 * width], False, 2.0, None),
            aten.upsample_bilinear2d.default(x, [5, 9], True),
        )

    others = [[sample(torch.float32, n, c, h, w)] for n, c, h, w in ((2, 3, 7, 8), (3, 5, 12, 6))]
    check(function, sample(torch.float32, 2, 4, 8, 10), symbolic=True, others=others, slack=16)
