"""What is computed where it is read: as much work as there are operators, and no deeper than Python goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from smelt.config import Config
from smelt.loops.interpreter import run_graph
from smelt.nest.ir import Let
from smelt.nest.tree import walk
from smelt.schedule import Target, schedule
from tests.lowering.harness import lowered
from tests.schedule.simulate import simulate

X = torch.linspace(-1, 1, 64)


def _products(x: torch.Tensor) -> torch.Tensor:
    for _ in range(300):
        x = x * 0.99 - 0.01
    return x


def _squares(x: torch.Tensor) -> torch.Tensor:
    for _ in range(60):
        x = (x * x).neg()
    return x


def _maxima(x: torch.Tensor) -> torch.Tensor:
    for _ in range(150):
        x = torch.where(x > 0, torch.maximum(x * 0.9, x - 1), x)
    return x


def _turns(x: torch.Tensor) -> torch.Tensor:
    x = x.view(8, 8)
    for _ in range(40):
        x = x.t().reshape(4, 16).flip(0).reshape(8, 8)
    return x + 1


@pytest.mark.parametrize("chain", [_products, _squares, _maxima, _turns])
def test_long_chains(chain: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Each was a RecursionError, or took time exponential in its length."""
    graph = lowered(chain, X)
    scheduled = schedule(graph, Config(), Target(16))
    (got,), (want,) = simulate(graph, scheduled, [X], plain=True), run_graph(graph, [X])
    torch.testing.assert_close(got, want)


def test_a_chain_that_fits_one_kernel_is_stored_once() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = x.sin()
        return x

    scheduled = schedule(lowered(chain, X), Config(), Target(16))
    (run,) = scheduled.runs
    (call,) = run.calls
    assert len(call.kernel.params) == 2


def test_what_is_read_twice_is_recorded_once() -> None:
    scheduled = schedule(lowered(_squares, X), Config(), Target(16))
    kernels = {id(each): each for run in scheduled.runs for each in (call.kernel for call in run.calls)}
    lets = [stmt for kernel in kernels.values() for stmt in walk(kernel.body) if isinstance(stmt, Let)]
    assert sum(stmt.op == "mul" for stmt in lets) <= 60 * 2  # vectors, and what is left of them
