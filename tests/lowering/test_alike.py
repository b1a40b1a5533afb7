"""Calls that are alike are decided once; what differs in any way that counts is not alike."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from smelt.errors import Unsupported
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Graph
from smelt.lowering import lower
from smelt.lowering.structural_hash import StructuralHash
from tests.lowering.harness import check, compare_run

lowering = importlib.import_module("smelt.lowering.lower")
aten = torch.ops.aten


def layers(count: int) -> Callable[..., torch.Tensor]:
    """As many layers, each with a weight of its own."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights[:count]:
            y = torch.nn.functional.layer_norm(x, x.shape[-1:])
            y = torch.mm(y.view(-1, x.shape[-1]), weight.t()).view(x.shape)
            x = x + torch.tanh(y.transpose(0, 1)).sum(0)[:, None]
        return x

    return function


def alike(function: Callable[..., Any], *inputs: torch.Tensor, mode: str = "fake") -> bool:
    """Whether the calls that give the two results of a function are alike."""
    traced = make_fx(function, tracing_mode=mode)(*inputs)
    found: dict[torch.fx.Node, int] = {}

    class Noting(StructuralHash):
        def call(self, node: torch.fx.Node) -> int:
            found[node] = super().call(node)
            return found[node]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "StructuralHash", Noting)
        lower(traced)
    one, other = traced.graph.output_node().args[0]
    return found[one] == found[other]


def decided(monkeypatch: pytest.MonkeyPatch, count: int) -> tuple[int, Graph]:
    """How many calls are decided about, in so many layers; and their loop graph."""
    asked = []
    way = lowering._Lowering._way
    monkeypatch.setattr(
        lowering._Lowering, "_way", lambda self, *args: asked.append(args) or way(self, *args)
    )
    given = (torch.randn(3, 5, 4), *(torch.randn(4, 4) for _ in range(count)))
    graph = lower(make_fx(layers(count), tracing_mode="fake")(*given))
    compare_run(graph, layers(count), given, slack=64)
    monkeypatch.undo()
    return len(asked), graph


def test_more_layers_are_no_more_to_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    two, small = decided(monkeypatch, 2)
    six, large = decided(monkeypatch, 6)
    assert two == six > 5
    assert len(large.nodes) == 3 * len(small.nodes)


def test_layers_of_changing_size(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [(torch.randn(size, 5, 4), torch.randn(4, 4), torch.randn(4, 4)) for size in (3, 7)]
    check(layers(2), *given[0], symbolic=True, others=given[1:], slack=64)


@pytest.mark.parametrize(
    "calls",
    [
        lambda x, y: (x + 1, y + 2),
        lambda x, y: (x + 1, y + 1.0),
        lambda x, y: (x * 0.0, y * -0.0),
        lambda x, y: (aten.sum.dim_IntList(x, [0], True), aten.sum.dim_IntList(y, [0], False)),
        lambda x, y: (aten.sum.dim_IntList(x, [0]), aten.sum.dim_IntList(y, [1])),
        lambda x, y: (torch.exp(x), torch.log(y)),
        lambda x, y: (torch.exp(x), torch.exp(y.t())),
        lambda x, y: (torch.exp(x), torch.exp(y[:, 1:])),
        lambda x, y: (torch.exp(x), torch.exp(y[None])),
        lambda x, y: (aten._to_copy(x, dtype=torch.float64), aten._to_copy(y, dtype=torch.float16)),
        lambda x, y: (torch.exp(x[:, :2]), torch.exp(y[:, 2:])),
        lambda x, y: (torch.exp(x.t()), torch.exp(y.t().contiguous())),
    ],
)
def test_what_differs_is_not_alike(calls: Callable[..., Any]) -> None:
    x, y = torch.randn(4, 4), torch.rand(4, 4)
    assert not alike(calls, x, y)
    check(calls, x, y)


def test_layouts_and_dtypes_of_inputs_count() -> None:
    def same(x: torch.Tensor, y: torch.Tensor) -> bool:
        return alike(lambda x, y: (torch.exp(x), torch.exp(y)), x, y)

    x = torch.randn(4, 4)
    assert same(x, torch.randn(4, 4))
    assert not same(x, torch.randn(4, 4).t())
    assert not same(x, torch.randn(4, 4).double())
    assert not same(x, torch.randn(8, 4)[::2])
    assert not same(x, torch.randn(20)[4:].view(4, 4))


def test_numbers_that_depend_on_data_are_their_own() -> None:
    def twice(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.nonzero().sum(0), y.nonzero().sum(0)

    x, y = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0.0, 0.0, 3.0])
    assert not alike(twice, x, y, mode="symbolic")
    check(twice, x, y, symbolic=True, others=[(y, x)])


def test_a_refusal_is_heard_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuses(ctx: Any, *args: Any) -> Any:
        asked.append(args)
        raise Unsupported("because")

    monkeypatch.setitem(lowering.TABLE, aten.exp.default, refuses)
    x, y = torch.randn(4), torch.randn(4)
    traced = make_fx(lambda x, y: (torch.exp(x), torch.exp(y)), tracing_mode="fake")(x, y)
    graph = lower(traced)
    assert len(asked) == 1
    assert [node.body.reason for node in graph.nodes] == ["because"] * 2  # type: ignore[union-attr]


def test_random_numbers_of_equal_calls_are_not_equal() -> None:
    traced = make_fx(lambda x: (torch.rand_like(x), torch.rand_like(x)), tracing_mode="fake")(torch.randn(64))
    graph = lower(traced)
    first, second = run_graph(graph, [torch.randn(64)])[:2]
    assert not torch.equal(first, second)
