"""Clusters: the same results whatever is left to PyTorch, convex regions, order, sizes, small ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Node

from smelt.capture import Program, by_pytorch, capture_function
from smelt.contract import clustered, contracted
from smelt.contract.clusters import Clustered, work_of
from smelt.errors import Unsupported

aten = torch.ops.aten


def chain(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a = x.sin() + y
    b = a.cos() @ y.t()
    return b.relu() * a, b


def views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    first, second = (x * y).split(2, dim=1)
    turned = first.t().exp()
    return turned.reshape(-1)[1:], second.select(0, 0) + turned.sum(), first


def several(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    values, indices = torch.sort(x * 2, dim=1)
    mean, var = torch.var_mean(values, 1)
    return y.gather(1, indices), mean + 1, var.sqrt()


def mutating(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    before = x.sum()
    x.mul_(2)
    z = (x + y).relu()
    y.copy_(z.exp())
    return z, before + y.sum()


def sizes(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    n = x.shape[0] * x.shape[1]
    flat = x.sin().reshape(n) * n
    return flat + y.cos().reshape(-1), torch.arange(x.shape[0] + 1) * 2, y.relu()[: x.shape[0] // 2]


def data(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    found = torch.nonzero(x > 0)
    return found + 1, y.exp().sum(), (found.sum(1) * 2).cos()


PROGRAMS = (chain, views, several, mutating, sizes, data)


def captured(function: Callable[..., Any], dynamic: bool = False) -> Program:
    return contracted(capture_function(function, [torch.randn(4, 4), torch.randn(4, 4)], dynamic=dynamic))


def calls(program: Program) -> list[Node]:
    return [
        node
        for node in program.graph_module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target is not aten.copy_.default
    ]


def runs(parts: Clustered) -> Callable[[list[Any]], Sequence[Any]]:
    for cluster, call in zip(parts.clusters, parts.calls, strict=True):
        call.run = by_pytorch(cluster.program)
    return parts.outer.forward


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda each: each.__name__)
def test_whatever_is_left_to_pytorch_the_results_are_the_same(
    function: Callable[..., Any], dynamic: bool
) -> None:
    program = captured(function, dynamic)
    sizes = [each for each in program.example_inputs if not isinstance(each, Tensor)]
    assert not sizes  # so that real tensors alone are arguments
    chosen = random.Random(7)
    several_clusters = 0
    for _ in range(40):
        nodes = calls(program)
        left = chosen.sample(nodes, chosen.randint(1, max(1, len(nodes) // 2)))
        try:
            parts = clustered(program, {node: ["left"] for node in left}, 1)
        except Unsupported:
            continue
        several_clusters += len(parts.clusters) > 1
        given = [torch.randn(4, 4), torch.randn(4, 4)]
        mine, its = [each.clone() for each in given], [each.clone() for each in given]
        expected = by_pytorch(program)(its[:])
        got = runs(parts)(mine[:])
        torch.testing.assert_close(list(got), list(expected), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(mine, its, rtol=0, atol=0, equal_nan=True)
    assert several_clusters


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda each: each.__name__)
def test_every_call_is_in_one_region_and_clusters_have_the_rest(
    function: Callable[..., Any],
) -> None:
    program = captured(function)
    left = calls(program)[1::3]
    parts = clustered(program, {node: ["left"] for node in left}, 1)
    inside = [node for cluster in parts.clusters for node in cluster.nodes]
    assert len(inside) == len(set(inside))
    assert set(inside).isdisjoint(left)
    assert sum(region.nodes for region in parts.regions if region.is_native) == sum(
        work_of(cluster.nodes) for cluster in parts.clusters
    ) - sum(node.target is aten.copy_.default for node in inside)


def test_calls_that_do_not_depend_on_what_is_left_share_a_cluster() -> None:
    program = captured(lambda x, y: (x.sin().cos(), y.exp().relu().tan().sqrt()))
    (left,) = (node for node in calls(program) if node.target is aten.exp.default)
    parts = clustered(program, {left: ["left"]}, 1)
    assert len(parts.clusters) == 1
    assert parts.regions[0].reason == "left"


def test_small_clusters_are_left_and_what_joins_clusters_is_said() -> None:
    program = captured(lambda x, y: ((x.sin() * 2).exp() + 1, (y * 3).cos()))
    left = {node: ["left"] for node in calls(program) if node.target is aten.exp.default}
    (first, region, second) = clustered(program, left, 1).regions
    assert (first.nodes, second.nodes, region.joins) == (4, 1, 1)
    (one, *rest) = clustered(program, left, 2).regions
    assert one.nodes == 4
    assert [each.reason for each in rest] == ["left", "fewer than 2 operators together (min_cluster)"]
    with pytest.raises(Unsupported, match="left"):
        clustered(program, left, 5)


def test_a_cluster_gets_the_sizes_that_its_inputs_do_not_tell() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        flat = x.sin().reshape(-1)
        return flat.exp() * x.shape[0] + torch.arange(x.shape[0] * x.shape[1])

    program = captured(function, dynamic=True)
    left = {node: ["left"] for node in calls(program) if node.target is aten.sin.default}
    parts = clustered(program, left, 1)
    x = torch.randn(5, 3)
    torch.testing.assert_close(runs(parts)([x, torch.randn(4, 4)])[0], function(x, x))


def test_what_another_region_overwrites_is_not_the_same_at_every_call() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        kept = (x * 2).cos().exp()
        x.copy_(y.sin())
        return kept

    program = captured(function)
    inputs = tuple(replace(each, static=True) for each in program.inputs)
    program = replace(program, inputs=inputs)
    sin = next(node for node in calls(program) if node.target is aten.sin.default)
    (cluster,) = clustered(program, {sin: ["left"]}, 1).clusters
    assert not any(each.static for each in cluster.program.inputs)


def test_an_input_that_is_read_later_is_overwritten_at_the_end() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        total = x + y
        kept = x.exp()
        x.copy_(total * 2)
        return kept

    program = captured(function)
    exp = next(node for node in calls(program) if node.target is aten.exp.default)
    parts = clustered(program, {exp: ["left"]}, 1)
    x, y = torch.ones(4, 4), torch.ones(4, 4)
    (kept,) = runs(parts)([x, y])
    assert torch.equal(kept, torch.ones(4, 4).exp()) and torch.equal(x, torch.full((4, 4), 4.0))
