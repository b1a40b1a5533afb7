"""Floats of modules are constants with ``dynamic=True`` too, until they change; others stay PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.symbolic_convert import TensorifyState
from torch.fx import GraphModule

import smelt.backend


class Model(nn.Module):
    """Floats that no tensor can stand for (``eps``, the bounds), and some that one can."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.cut = nn.LayerNorm(6, eps=1e-3), nn.Hardtanh(-0.7, 0.8)
        self.scale = 1.5
        self.plain = {"more": 0.25}

    def forward(self, x: Tensor, factor: float | None = None) -> Tensor:
        x = self.cut(self.norm(x)) * self.scale + self.plain["more"]
        return x if factor is None else x * factor


class Counted:
    """smelt as a backend that remembers which graphs it was asked to compile."""

    def __init__(self) -> None:
        self.graphs: list[GraphModule] = []

    def __call__(self, graph_module: GraphModule, example_inputs: Sequence[Any]) -> Any:
        self.graphs.append(graph_module)
        return smelt.backend.smelt(graph_module, example_inputs)

    def floats(self) -> list[str]:
        """The inputs of the last graph that are numbers."""
        inputs = self.graphs[-1].graph.find_nodes(op="placeholder")
        return [node.name for node in inputs if any(user.target == "item" for user in node.users)]


@pytest.fixture
def counted() -> Iterator[Counted]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield Counted()
    torch._dynamo.reset()


def test_a_model_is_traced_and_compiled_once(counted: Counted) -> None:
    model = Model()
    compiled = torch.compile(model, backend=counted, dynamic=True)
    for rows in 5, 8, 12:
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(counted.graphs) == 1
    assert not counted.floats()
    assert TensorifyState.empty()


def test_a_step_is_too(counted: Counted) -> None:
    model = Model()
    compiled = torch.compile(model, backend=counted, dynamic=True)
    for rows in 5, 8:
        x = torch.randn(rows, 6, requires_grad=True)
        (expected,) = torch.autograd.grad(model(x).square().sum(), x)
        (found,) = torch.autograd.grad(compiled(x).square().sum(), x)
        torch.testing.assert_close(found, expected)
    assert len(counted.graphs) == 1


@pytest.mark.parametrize("name", ["scale", "more", "eps", "max_val"])
def test_a_changed_float_is_noticed(counted: Counted, name: str) -> None:
    model = Model()
    compiled = torch.compile(model, backend=counted, dynamic=True)
    x = torch.randn(5, 6)
    seen = []
    for number in (0.4, 0.45, 0.5):
        places: dict[str, Any] = {"scale": vars(model), "more": model.plain, "eps": vars(model.norm)}
        places.get(name, vars(model.cut))[name] = number
        torch.testing.assert_close(compiled(x), model(x))
        seen.append(model(x))
    assert not torch.equal(seen[0], seen[1])


def test_one_that_changes_at_each_call_becomes_a_variable(counted: Counted) -> None:
    model = Model()
    compiled = torch.compile(model, backend=counted, dynamic=True)
    x = torch.randn(5, 6)
    compiled(x)
    asked = []
    for step in range(12):
        model.scale = 0.1 + 0.05 * step
        torch.testing.assert_close(compiled(x), model(x))
        asked.append(len(counted.graphs))
    assert asked[1] == asked[-1]  # the second compilation serves all numbers, however often PyTorch traces it
    assert counted.floats()


def test_a_float_that_is_handed_over_is_a_variable_at_once(counted: Counted) -> None:
    model = Model()
    compiled = torch.compile(model, backend=counted, dynamic=True)
    x = torch.randn(5, 6)
    compiled(x, 0.5)
    asked = len(counted.graphs)
    for factor in (0.7, 1.9, 2.3):
        torch.testing.assert_close(compiled(x, factor), model(x, factor))
    assert len(counted.graphs) == asked == 1
    assert len(counted.floats()) == 1


def test_numbers_of_one_frame_are_not_those_of_the_next(counted: Counted) -> None:
    """Symbols have the same names in every frame, and what PyTorch knows of them has no frame."""
    model = Model()
    torch.compile(model, backend=counted, dynamic=True)(torch.randn(5, 6))
    scaled = torch.compile(lambda x, factor: x * factor, backend=counted, dynamic=True)
    for factor in (0.7, 1.9, 2.3):
        x = torch.randn(5, 6)
        torch.testing.assert_close(scaled(x, factor), x * factor)
    assert len(counted.graphs) == 2
    assert len(counted.floats()) == 1
