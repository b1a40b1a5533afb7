"""Negative log likelihood: reductions, weights, classes to ignore, images, nothing at all."""

from __future__ import annotations

import pytest
import torch

from smelt.loops.interpreter import run_graph
from tests.lowering.harness import FLOATS, check, lowered

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_nll_loss(dtype: torch.dtype, reduction: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(7, 5, generator=draw).to(dtype)
    target = torch.tensor([0, 4, 2, -100, 1, 1, 3])
    weight = torch.rand(5, generator=draw).to(dtype)
    check(lambda x, t: aten.nll_loss_forward(x, t, None, reduction, -100), x, target, slack=2.0)
    check(lambda x, t, w: aten.nll_loss_forward(x, t, w, reduction, -100), x, target, weight, slack=2.0)
    check(
        lambda x, t, w: aten.nll_loss_forward(x, t, w, reduction, 1), x, target.abs() % 5, weight, slack=2.0
    )


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_images(reduction: int) -> None:
    x, target = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
    check(lambda x, t: aten.nll_loss2d_forward(x, t, None, reduction, 1), x, target, slack=4.0)


def test_one_sample_and_none() -> None:
    check(lambda x, t: aten.nll_loss_forward(x, t, None, 1, -100), torch.randn(3), torch.tensor(2))
    empty = torch.zeros(0, dtype=torch.int64)
    check(lambda x, t: aten.nll_loss_forward(x, t, None, 2, -100), torch.randn(0, 3), empty)
    check(lambda x, t: aten.nll_loss_forward(x, t, None, 1, -100), torch.randn(0, 3), empty)


def test_everything_ignored() -> None:
    check(lambda x, t: aten.nll_loss_forward(x, t, None, 1, 0), torch.randn(4, 3), torch.zeros(4, dtype=int))


@pytest.mark.parametrize("wrong", [3, -1])
def test_classes_out_of_range(wrong: int) -> None:
    x, target = torch.randn(2, 3), torch.tensor([0, wrong])
    graph = lowered(lambda x, t: aten.nll_loss_forward(x, t, None, 1, -100), x, target)
    with pytest.raises(IndexError):
        run_graph(graph, [x, target])
