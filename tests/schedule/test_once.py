"""What does the same to other buffers is built once; what differs in anything is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from smelt.config import Config
from smelt.loops.interpreter import run_graph
from smelt.schedule import Scheduled, Target, schedule
from smelt.schedule.nests import KernelBuilder
from tests.lowering.harness import lowered
from tests.schedule.simulate import simulate

TARGET = Target(16)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What is built, one after the other: the buffers that each group writes."""
    groups: list[tuple[str, ...]] = []
    real = KernelBuilder.build

    def counted(self: KernelBuilder) -> Any:
        groups.append(tuple(self.group.writes))
        return real(self)

    monkeypatch.setattr(KernelBuilder, "build", counted)
    return groups


def scheduled(function: Callable[..., Any], *inputs: torch.Tensor) -> Scheduled:
    """The schedule of a function, which computes what the function does."""
    graph = lowered(function, *inputs)
    found = schedule(graph, Config(parallel_grain=1), TARGET)
    got, want = simulate(graph, found, list(inputs)), run_graph(graph, list(inputs))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6, equal_nan=True)
        assert torch.equal(a.signbit(), b.signbit())
    return found


def test_layers_share_their_nests(built: list[tuple[str, ...]]) -> None:
    """Three layers are as much work as one: softmax, a norm, a column sum that is stored."""

    def layers(count: int) -> Callable[..., Any]:
        def function(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
            sums = []
            for weight in weights[:count]:
                x = F.layer_norm(x.softmax(-1), (33,), weight) + x
                sums.append(x.sum(0))
            return [x, *sums]

        return function

    torch.manual_seed(0)
    inputs = [torch.randn(9, 33), *(torch.randn(33) for _ in range(3))]
    scheduled(layers(2), *inputs[:3])
    two = len(built)
    built.clear()
    found = scheduled(layers(3), *inputs)
    assert len(built) == two
    kernels = [call.kernel for run in found.runs for call in run.calls]
    assert len({id(kernel) for kernel in kernels}) < len(kernels)


def test_equal_layers_keep_the_lines_that_they_come_from() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        first = x.exp().sum(-1)
        second = y.exp().sum(-1)
        return [first, second]

    found = scheduled(function, torch.randn(9, 33), torch.randn(9, 33))
    kernels = [call.kernel for run in found.runs for call in run.calls]
    assert [kernel.name for kernel in kernels] == ["fused_exp_sum"] * len(kernels)


OTHERS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "another operator": (
        lambda x, y: [x.exp().sum(-1), y.sin().sum(-1)],
        [torch.randn(9, 8), torch.randn(9, 8)],
    ),
    "another size": (lambda x, y: [x.exp().sum(-1), y.exp().sum(-1)], [torch.randn(9, 8), torch.randn(9, 7)]),
    "another layout": (
        lambda x, y: [x.exp().sum(-1), y.exp().sum(-1)],
        [torch.randn(9, 8), torch.randn(8, 9).t()],
    ),
    "another dtype": (
        lambda x, y: [x.exp().sum(-1), y.exp().sum(-1)],
        [torch.randn(9, 8), torch.randn(9, 8, dtype=torch.float64)],
    ),
    "the same buffer twice": (
        lambda x, y, z: [(x.exp() * y).sum(-1), (z.exp() * z).sum(-1)],
        [torch.randn(9, 8), torch.randn(9, 8), torch.randn(9, 8)],
    ),
    "another zero": (
        lambda x, y: [torch.where(x > 0, x, 0.0).cumsum(0)[-1:], torch.where(y > 0, y, -0.0)],
        [-torch.rand(9, 8), -torch.rand(9, 8)],
    ),
    "what is stored": (
        lambda x, y: [x.exp().sum(-1), (z := y.exp()), z.sum(-1)],
        [torch.randn(9, 8), torch.randn(9, 8)],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_is_built_for_itself(name: str, built: list[tuple[str, ...]]) -> None:
    function, inputs = OTHERS[name]
    found = scheduled(function, *inputs)
    kernels = {id(call.kernel) for run in found.runs for call in run.calls}
    assert len(kernels) >= 2
    assert len(set(built)) == len(built) >= 2


def test_a_checked_index_is_not_taken_for_a_proved_one() -> None:
    """Two gathers alike: of positions that are known to be in range, and of ones that an input holds."""

    def function(x: torch.Tensor, at: torch.Tensor) -> list[torch.Tensor]:
        known = torch.arange(8).clamp(0, 5) + 0 * at.shape[0]
        return [x[known].exp(), x[at].exp()]

    x, at = torch.randn(6, 4), torch.tensor([0, 5, 1, 2, 3, 4, 0, 1])
    scheduled(function, x, at)
    graph = lowered(function, x, at)
    found = schedule(graph, Config(parallel_grain=1), TARGET)
    with pytest.raises(IndexError):
        simulate(graph, found, [x, torch.full((8,), 6)])
