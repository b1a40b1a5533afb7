"""Gradients of embeddings, and bags of embeddings forward and backward."""

from typing import Any

import pytest
import torch
from torch.nn.functional import embedding_bag

from tests.lowering.harness import FLOATS, check
from tests.lowering.test_indexing import numbers, positions, raises

aten = torch.ops.aten

WEIGHT = torch.tensor([[0.5, 2.0, -1.0], [1.5, 2.0, 7.0], [1.5, -3.0, 2.5], [0.25, 4.0, -8.0]])
INDICES, OFFSETS = positions([1, 2, 2, 0, 3, 1]), positions([0, 2, 2, 5])
SUM, MEAN, MAX = 0, 1, 2


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("by_frequency", [False, True])
def test_embedding_gradient(dtype: torch.dtype, by_frequency: bool) -> None:
    grad, i = numbers(dtype, 2, 3, 4) / 7, positions([[1, 0, 5], [5, 5, 2]])

    def function(g: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(aten.embedding_dense_backward.default(g, i, 6, each, by_frequency) for each in (-1, 5))

    check(function, grad, i, slack=2)


def bag(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor, **options: Any) -> torch.Tensor:
    return aten._embedding_bag.default(w, i, o, **options)[0]


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
@pytest.mark.parametrize("dtype", FLOATS)
def test_bags(dtype: torch.dtype, mode: int, padding: int) -> None:
    weight = WEIGHT.to(dtype)
    options = {"mode": mode, "padding_idx": padding}
    for number in (torch.int64, torch.int32):
        i, o = INDICES.to(number), OFFSETS.to(number)
        check(lambda w, i, o: bag(w, i, o, **options), weight, i, o, slack=2)
        ended = torch.cat([o, torch.tensor([6], dtype=number)])
        check(lambda w, i, o: bag(w, i, o, include_last_offset=True, **options), weight, i, ended, slack=2)


@pytest.mark.parametrize("mode", [MEAN, MAX])
def test_what_the_gradient_of_bags_needs(mode: int) -> None:
    def function(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten._embedding_bag.default(w, i, o, mode=mode, padding_idx=2)

    check(function, WEIGHT, INDICES, OFFSETS)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("padding", [-1, 2])
def test_weighted_bags(dtype: torch.dtype, padding: int) -> None:
    factors = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.25, 1.5], dtype=dtype)
    check(
        lambda w, i, o, f: bag(w, i, o, per_sample_weights=f, padding_idx=padding),
        WEIGHT.to(dtype),
        INDICES,
        OFFSETS,
        factors,
        slack=2,
    )


def test_maxima_of_bags_with_nan_are_eager_s() -> None:
    """NaN is the maximum only where it comes first."""
    weight = WEIGHT.clone()
    weight[2, 0] = float("nan")
    check(lambda w, i, o: bag(w, i, o, mode=MAX), weight, positions([1, 2, 2, 1, 2, 3]), positions([0, 2, 4]))


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize(
    ("mode", "by_frequency"), [("sum", False), ("sum", True), ("mean", False), ("mean", True), ("max", False)]
)
def test_gradient_of_bags(mode: str, by_frequency: bool, padding: int | None) -> None:
    def function(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        w = w.detach().requires_grad_()
        bags = embedding_bag(i, w, o, mode=mode, padding_idx=padding, scale_grad_by_freq=by_frequency)
        return torch.autograd.grad(bags, w, g)[0]

    check(function, WEIGHT, INDICES, OFFSETS, torch.rand(4, 3), slack=2)


@pytest.mark.parametrize("padding", [None, 2])
def test_gradient_of_the_weights_of_samples(padding: int | None) -> None:
    def function(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w, f, g, i, o = given
        w, f = w.detach().requires_grad_(), f.detach().requires_grad_()
        bags = embedding_bag(i, w, o, mode="sum", per_sample_weights=f, padding_idx=padding)
        return torch.autograd.grad(bags, (w, f), g)

    check(function, WEIGHT, torch.rand(6), torch.rand(4, 3), INDICES, OFFSETS, slack=2)


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
def test_bags_of_nothing_and_out_of_range(mode: int) -> None:
    def function(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        return bag(w, i, o, mode=mode)

    none = torch.empty(0, dtype=torch.int64)
    check(function, WEIGHT, none, positions([0, 0]))
    check(function, WEIGHT, none, none)
    raises(function, WEIGHT, positions([0, 4]), positions([0]))
    raises(function, WEIGHT, positions([0, -1]), positions([0]))
    raises(function, WEIGHT, positions([0, 1]), positions([0, 3]))
    raises(function, WEIGHT, positions([0, 1]), positions([1, 2]))


def test_dynamic_sizes() -> None:
    def function(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(bag(w, i, o, mode=mode) for mode in (SUM, MEAN, MAX))

    def case(rows: int, width: int, count: int, bags: int) -> list[torch.Tensor]:
        offsets = torch.randint(0, count, (bags,)).sort().values
        offsets[0] = 0
        return [torch.rand(rows, width), torch.randint(0, rows, (count,)), offsets]

    torch.manual_seed(0)
    others = [case(3, 4, 9, 2), case(10, 2, 5, 7), case(4, 7, 3, 3)]
    check(function, *case(5, 3, 8, 4), symbolic=True, others=others, slack=2)
