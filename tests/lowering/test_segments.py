"""Reductions over segments, forward and backward."""

from typing import Any

import pytest
import torch

from smelt.loops.interpreter import run_graph
from tests.lowering.harness import FLOATS, check, copies, lowered
from tests.lowering.test_indexing import positions

REDUCTIONS = ["sum", "mean", "max", "min", "prod"]
DATA = torch.tensor([[1.0, 2.0], [-3.0, 2.0], [0.0, 2.5], [4.0, 0.0], [4.0, 0.0], [-1.5, 0.5], [2.0, 3.0]])
LENGTHS = positions([3, 0, 2, 2])


@pytest.mark.parametrize("initial", [None, 2])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_segments_of_lengths(dtype: torch.dtype, reduce: str, initial: float | None) -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.segment_reduce(x, reduce, lengths=n, axis=n.dim() - 1, initial=initial)

    check(function, DATA.to(dtype), LENGTHS, slack=2)
    check(function, DATA[:, 0].to(dtype), LENGTHS.int(), slack=2)
    rows = torch.stack([DATA, DATA * 2]).to(dtype)
    check(function, rows, positions([[3, 0, 4], [1, 5, 1]]), slack=2)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("start", [0, 1])
def test_segments_between_offsets(reduce: str, start: int) -> None:
    """Only their differences count."""
    offsets = positions([0, 2, 2, 6]) + start

    def function(x: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        return torch.segment_reduce(x, reduce, offsets=o, axis=o.dim() - 1)

    check(function, DATA, offsets)
    check(function, torch.stack([DATA, DATA]), torch.stack([offsets, offsets * 0 + start]))


@pytest.mark.parametrize("initial", [None, 2])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients(dtype: torch.dtype, reduce: str, initial: float | None) -> None:
    def function(x: torch.Tensor, n: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        reduced = torch.segment_reduce(x, reduce, lengths=n, initial=initial, unsafe=True)
        return torch.autograd.grad(reduced, x, g)[0]

    grad = torch.tensor([[1.0, -2.0], [3.0, 0.5], [2.0, 6.0], [-1.0, 4.0]], dtype=dtype)
    check(function, DATA.to(dtype), LENGTHS, grad, slack=2)
    check(function, DATA.to(dtype), LENGTHS - 1 + (LENGTHS == 0).long(), grad, slack=2)
    strange = DATA.to(dtype)
    strange[0, 0] = strange[3, 1] = strange[5] = float("nan")
    check(function, strange, LENGTHS, grad, slack=2)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_nan_and_nothing(reduce: str) -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.segment_reduce(x, reduce, lengths=n, unsafe=True)

    strange = DATA.clone()
    strange[1, 0], strange[3, 1] = float("nan"), float("inf")
    check(function, strange, LENGTHS)
    check(function, DATA, LENGTHS * 0)
    check(function, DATA[:, :0], LENGTHS)


@pytest.mark.parametrize("lengths", [[3, 3], [-1, 8], [3, 5]])
def test_lengths_that_do_not_add_up_raise(lengths: list[int]) -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.segment_reduce(x, "sum", lengths=n)

    given = [DATA, positions(lengths)]
    with pytest.raises(RuntimeError):
        function(*given)
    graph = lowered(function, *given)
    with pytest.raises(RuntimeError):
        run_graph(graph, copies(given))


def test_dynamic_sizes() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.segment_reduce(x, reduce, lengths=n) for reduce in REDUCTIONS)

    def case(count: int, width: int) -> list[Any]:
        lengths = torch.randint(0, 4, (count,))
        return [torch.rand(int(lengths.sum()), width), lengths]

    torch.manual_seed(0)
    others = [case(9, 3), case(4, 5), case(6, 2)]
    check(function, *case(5, 4), symbolic=True, others=others, slack=2)
