"""Groups that fusion made apart and that one nest can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import smelt
from smelt.config import Config
from smelt.schedule import Target, schedule
from tests.lowering.harness import lowered
from tests.schedule.test_schedule import check

X, Y, Z = torch.randn(64, 32), torch.randn(64, 32), torch.randn(64, 32)


def kernels(function: Callable[..., Any], *inputs: torch.Tensor) -> int:
    """How many kernels there are; their numbers are the interpreter's."""
    graph = lowered(function, *inputs)
    check(graph, list(inputs))
    return len(schedule(graph, Config(), Target(32)).plain)


def test_what_reads_two_results_runs_with_both() -> None:
    """x and y share nothing until the last line."""

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = x.exp(), y.sin()
        return first, second, first * second + z

    assert kernels(function, X, Y, Z) == 1


def test_not_past_what_needs_the_first() -> None:
    """Both read x, but between them ATen's product needs exp(x)."""
    graph = lowered(lambda x, w: (x.exp() @ w) + x, X[:8], Y[:32])
    assert len(schedule(graph, Config(), Target(32)).plain) == 2


def test_an_optimizers_step_is_one_nest_for_each_parameter() -> None:
    weight = torch.nn.Parameter(torch.randn(64, 32))
    twin = torch.nn.Parameter(weight.detach().clone())
    weight.grad = torch.randn(64, 32)
    twin.grad = weight.grad.clone()
    ours, theirs = (torch.optim.AdamW([each], lr=0.1) for each in (weight, twin))
    smelt.reset()
    step = torch.compile(lambda: ours.step(), backend="smelt")
    for _ in range(3):
        step()
        theirs.step()
    torch.testing.assert_close(weight, twin)
    large = [kernel for kernel in smelt.reports()[-1].text("nest").split("\nkernel ")[1:] if "2048" in kernel]
    assert len(large) == 1
    assert smelt.reports()[-1].native_calls == 1
