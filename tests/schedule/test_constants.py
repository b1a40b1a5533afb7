"""What runs ahead, and what stays: on loop graphs made by lowering traced functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from smelt.config import Config
from smelt.loops.ir import Contraction, Extern, Graph, Pointwise
from smelt.lowering import lower
from smelt.nest.ir import Run
from smelt.schedule import AHEAD, Context, Target, schedule
from smelt.schedule.graph.constants import frozen_buffers, split_constants
from smelt.schedule.graph.scales import fold_scales

TARGET = Target(32)


def graph_of(function: Callable[..., Any], *args: Tensor, frozen: tuple[int, ...]) -> Graph:
    traced = make_fx(function, tracing_mode="fake")(*args)
    names = [node.name for node in traced.graph.find_nodes(op="placeholder")]
    return lower(traced, frozen=[names[position] for position in frozen])


X, W, B = torch.randn(4, 8), torch.randn(8), torch.randn(8)


def test_only_what_depends_on_frozen_inputs_leaves() -> None:
    graph = graph_of(lambda x, w, b: (x * torch.rsqrt(w + 1)) + b, X, W, B, frozen=(1, 2))
    later, (part,) = split_constants(graph)
    assert len(part.uses[0].sources) == len(part.uses[0].results) == 1
    assert later.inputs[1] is None
    assert later.inputs[2] == graph.inputs[2]
    assert set(part.uses[0].results) == set(later.constants)
    assert all(tensor.device.type == "meta" for tensor in later.constants.values())


def test_nothing_frozen_nothing_leaves() -> None:
    graph = graph_of(lambda x, w: x * torch.exp(w), X, W, frozen=())
    assert split_constants(graph) == (graph, [])
    assert frozen_buffers(graph) == frozenset()


def test_a_copy_that_loops_can_read_through_stays() -> None:
    square = torch.randn(4, 4)
    graph = graph_of(lambda x, w: x[:, :4] + w.t().contiguous(), X, square, frozen=(1,))
    assert split_constants(graph)[1] == []


def test_what_would_take_much_more_memory_stays_unless_it_is_dear() -> None:
    def wide(function: Callable[[Tensor], Tensor]) -> int:
        column = torch.randn(512, 1)
        graph = graph_of(
            lambda x, w: x + function(w + torch.full((1, 512), 0.0)),
            torch.randn(512, 512),
            column,
            frozen=(1,),
        )
        return sum(len(use.results) for part in split_constants(graph)[1] for use in part.uses)

    assert wide(lambda w: w * 2) == 0
    assert wide(torch.sin) == 1


def test_results_of_the_graph_are_made_at_every_call() -> None:
    graph = graph_of(lambda x, w: (torch.exp(w), x * torch.exp(w).sum()), X, W, frozen=(1,))
    later, parts = split_constants(graph)
    given = {view.buffer for view in later.outputs}  # type: ignore[union-attr]
    assert not given & set(later.constants)
    assert len(parts) == 1


def test_random_numbers_are_not_kept() -> None:
    graph = graph_of(lambda x, w: x * torch.rand_like(w) * torch.exp(w), X, W, frozen=(1,))
    later, parts = split_constants(graph)
    assert sum(len(use.results) for part in parts for use in part.uses) == 1
    assert any("rand" in node.origin.op for node in later.nodes)


def test_equal_parts_are_one() -> None:
    def layers(x: Tensor, *weights: Tensor) -> Tensor:
        for weight in weights:
            x = torch.relu(x * weight.exp())
        return x

    graph = graph_of(layers, X, W, B, W + 1, frozen=(1, 2, 3))
    _, (part,) = split_constants(graph)
    assert len(part.uses) == 3
    scheduled = schedule(graph, Config(), TARGET)
    assert [use.sources for use in scheduled.plan.folded[0].uses] == [(1,), (2,), (3,)]
    assert len([run for run in scheduled.runs if run.name.startswith("ahead")]) == 1


def _times(function: Callable[[Tensor], Tensor], x: Tensor, w: Tensor) -> Tensor:
    return x * function(w)


def test_digests_tell_computations_apart() -> None:
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda w: w.exp() + 1,
        lambda w: w.exp() + 2,
        lambda w: w.exp() - 1,
        lambda w: w.exp().flip(0),
        lambda w: w.double().exp().float(),
        lambda w: w.exp() * w.exp().sum(),
        lambda w: w.exp() * w.exp().amax(),
        lambda w: torch.where(w > 0, w.exp(), w),
        lambda w: torch.where(w > 0, w, w.exp()),
        lambda w: w.exp().sort()[0],
    ]
    digests = []
    for function in functions:
        found = []
        for _ in range(2):
            graph = graph_of(partial(_times, function), X, W, frozen=(1,))
            _, parts = split_constants(graph)
            found.append(tuple(part.digest for part in parts))
        digests.append(found[0])
        if function is not functions[-1]:  # what sorts is like nothing else
            assert found[0] == found[1]
    assert len(set(digests)) == len(functions)


def test_a_factor_goes_into_the_weight() -> None:
    def scaled(x: Tensor, w: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return (x @ w - shift) * scale + shift

    graph = graph_of(scaled, X, torch.randn(8, 8), W, B, frozen=(1, 2, 3))
    folded = fold_scales(graph, Context(Config(), Target(32)))
    *weights, product = folded.nodes
    assert isinstance(product.body, Contraction)
    assert all(isinstance(node.body, Pointwise) for node in weights)
    assert product.body.call.target == "aten.addmm.default"
    assert product.body.start is not None


def test_a_factor_that_is_not_frozen_stays() -> None:
    graph = graph_of(lambda x, w, s: (x @ w) * s, X, torch.randn(8, 8), W, frozen=(1,))
    assert [type(node.body) for node in fold_scales(graph, Context(Config(), Target(32))).nodes] == [
        type(node.body) for node in graph.nodes
    ]
    graph = graph_of(lambda x, w, s: (x @ w) * s, X, torch.randn(8, 8), W, frozen=(2,))
    assert len(fold_scales(graph, Context(Config(), Target(32))).nodes) == len(graph.nodes)


def test_aten_calls_of_frozen_inputs_alone_run_ahead() -> None:
    graph = graph_of(
        lambda x, w: x @ torch.linalg.inv_ex(w)[0], X, torch.randn(8, 8) + 8 * torch.eye(8), frozen=(1,)
    )
    later, parts = split_constants(graph)
    assert any(isinstance(node.body, Extern) for part in parts for node in part.graph.nodes)
    assert not any("inv" in node.origin.op for node in later.nodes)


def test_values_of_quantized_weights_are_not_kept() -> None:
    quants, scales = torch.randint(-8, 8, (8, 8), dtype=torch.int8), torch.rand(8, 1)

    def product(x: Tensor, quants: Tensor, scales: Tensor) -> Tensor:
        return x @ torch.ops.smelt.dequantize([quants, scales], "int8", 8, torch.float32).t()

    graph = graph_of(product, X, quants, scales, frozen=(1, 2))
    assert split_constants(graph) == (graph, [])


def test_what_runs_ahead_is_for_the_machine_that_runs_it() -> None:
    """A package for AVX-512 was not made where vectors are shorter: its constants are computed there."""
    graph = graph_of(lambda x, w: x * torch.rsqrt(w + 1), torch.randn(4, 64), torch.randn(64), frozen=(1,))

    def runs(target: Target, constants: Target | None = None) -> tuple[list[Run], list[Run]]:
        made = schedule(graph, Config(), target, constants=constants).runs
        ahead = [run for run in made if run.name.startswith(AHEAD)]
        return ahead, [run for run in made if run not in ahead]

    wide, narrow = runs(Target(64)), runs(Target(16))
    assert wide[0] != narrow[0] and wide[1] != narrow[1]
    assert runs(Target(64), Target(16)) == (narrow[0], wide[1])
