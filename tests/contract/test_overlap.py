"""Collectives in clusters: one order, nothing merged or dropped, memory held, communication overlaps."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.fx import Graph, Node

from smelt.capture import Program, by_pytorch, capture_function
from smelt.capture.partition import merge_equal_nodes
from smelt.contract import clustered, contracted, graph_key, unsupported
from smelt.contract.clusters import Clustered
from smelt.errors import Unsupported
from smelt.runtime.externs import is_collective, is_wait

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")

c10d = torch.ops._c10d_functional


@pytest.fixture(scope="module", autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def begin(x: Tensor, group: str | None = None) -> Tensor:
    return c10d.all_reduce(x, "sum", group or dist.group.WORLD.group_name)  # type: ignore[union-attr]


def end(x: Tensor) -> Tensor:
    return c10d.wait_tensor(x)


def gathered(x: Tensor) -> Tensor:
    return c10d.all_gather_into_tensor(x, 1, dist.group.WORLD.group_name)  # type: ignore[union-attr]


def captured(function: Callable[..., Any]) -> Program:
    return contracted(capture_function(function, [torch.randn(4, 4), torch.randn(4, 4)]))


def in_parts(program: Program, least: int = 1) -> Clustered:
    parts = clustered(program, unsupported(program), least)
    for cluster, call in zip(parts.clusters, parts.calls, strict=True):
        call.run = by_pytorch(cluster.program)
    return parts


def outline(graph: Graph) -> str:
    """The calls of an outer graph: a cluster's number, ``(`` for a start, ``)`` for a wait."""
    text = ""
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "")
        if is_wait(node.target):
            text += ")"
        elif is_collective(node.target):
            text += "("
        elif name.startswith("cluster_"):
            text += name.removeprefix("cluster_")
    return text


def starts(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if is_collective(node.target) and not is_wait(node.target)]


def test_equal_collectives_stay_two_and_none_is_dropped() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        a = x.sin()
        end(begin(a))  # nobody looks at it: the other processes wait for it all the same
        return end(begin(a)) + end(begin(a))

    program = captured(function)
    assert len(starts(program.graph_module.graph)) == 3
    assert outline(in_parts(program).outer.graph).count("(") == 3


def test_the_partitioner_does_not_merge_equal_collectives() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return end(begin(x)) * 2 + end(begin(x)) * 2 + x.sin() + x.sin()

    graph = capture_function(function, [torch.randn(4), torch.randn(4)]).graph_module.graph
    merge_equal_nodes(graph)
    assert len(starts(graph)) == 2
    assert sum(node.target is torch.ops.aten.sin.default for node in graph.nodes) == 1


def test_what_a_collective_does_not_need_is_computed_while_it_runs() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        other = (y.cos() @ y).relu()
        return end(begin(x.sin() * 2)) + other

    assert outline(in_parts(captured(function), 2).outer.graph) == "1(2)"
    assert outline(in_parts(captured(function), 1).outer.graph) == "1(2)3"
    # nothing to be computed meanwhile: no cluster more
    assert outline(in_parts(captured(lambda x, y: end(begin(x.sin() @ y)).cos())).outer.graph) == "1()2"


def test_each_gradient_is_sent_as_soon_as_it_is_there() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        first = (x @ y).relu()
        second = (first @ y).relu()
        third = (second @ y).relu()
        sent = [begin(each) for each in (first, second, third)]
        return tuple(end(each) for each in sent)

    assert outline(in_parts(captured(function), 2).outer.graph) == "1(2(3()))"


def test_weights_are_asked_for_ahead_and_waited_for_when_they_are_used() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x = (x @ end(gathered(y))).relu()
        x = (x @ end(gathered(y.sin()))).relu()
        return (x @ end(gathered(y * 2))).relu()

    assert outline(in_parts(captured(function), 1).outer.graph) == "(1(2()3)4)5"
    assert outline(in_parts(captured(function), 2).outer.graph) == "(1(()2)3)4"


@pytest.mark.parametrize("least", [1, 2])
def test_programs_of_all_kinds_keep_their_results_and_the_order_of_their_collectives(least: int) -> None:
    chosen = random.Random(11)

    def made(seed: int) -> Callable[..., tuple[Tensor, ...]]:
        def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            own = random.Random(seed)
            known, pending = [x, y], []
            for number in range(own.randint(4, 20)):
                one, other = own.choice(known), own.choice(known)
                kind = own.randrange(6)
                if kind < 3:
                    known.append((one @ other).tanh() if own.random() < 0.5 else (one + other) * 0.5)
                elif kind < 5 or not pending:
                    sent = one if own.random() < 0.5 else one.t()
                    pending.append(begin(sent * number) if kind == 3 else gathered(sent.contiguous()))
                else:
                    known.append(end(pending.pop(own.randrange(len(pending)))))
            known += [end(each) for each in pending]
            if own.random() < 0.3:
                x.copy_(known[-1])
            return tuple(own.sample(known[2:], min(4, len(known) - 2)))

        return function

    clusters = 0
    for _ in range(60):
        program = captured(made(chosen.randrange(10**9)))
        try:
            parts = in_parts(program, least)
        except Unsupported:  # no cluster is left
            continue
        clusters = max(clusters, len(parts.clusters))
        names = [node.name for node in starts(program.graph_module.graph)]
        assert [node.name for node in starts(parts.outer.graph)] == names
        given = [torch.randn(4, 4), torch.randn(4, 4)]
        mine, its = [each.clone() for each in given], [each.clone() for each in given]
        expected = by_pytorch(program)(its[:])
        got = parts.outer.forward(mine[:])
        torch.testing.assert_close(list(got), list(expected), rtol=0, atol=0)
        torch.testing.assert_close(mine, its, rtol=0, atol=0)
    assert clusters >= 3


def test_an_input_is_not_overwritten_while_a_collective_reads_it() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        got = end(gathered(x[:2]))
        x.mul_(2).add_(y)
        return got, y.sin().cos()

    parts = in_parts(captured(function))
    order = [node for node in parts.outer.graph.nodes if node.op == "call_function"]
    wait = next(place for place, node in enumerate(order) if is_wait(node.target))
    copies = [place for place, node in enumerate(order) if node.target is torch.ops.aten.copy_.default]
    assert copies and min(copies) > wait


def test_what_a_collective_reads_is_held_until_somebody_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        sent = gathered((x * 2)[1:])
        other = (y.cos() @ y).relu()
        return end(sent) + other[1:]

    parts = in_parts(captured(function))
    alive: list[Any] = []
    (first, *_, last) = parts.calls
    run = first.run
    assert run is not None

    def watched(args: list[Any]) -> Any:
        results = run(args)
        alive.extend(weakref.ref(each) for each in results)
        return results

    seen = []

    def at_last(args: list[Any], run: Any = last.run) -> Any:
        gc.collect()
        seen.extend(each() is not None for each in alive)
        return run(args)

    between = parts.calls[1]
    first.run = watched
    between_run = between.run
    assert between_run is not None
    between.run = lambda args: (seen.extend(each() is not None for each in alive), between_run(args))[1]
    parts.outer.forward([torch.randn(4, 4), torch.randn(4, 4)])
    assert seen and all(seen)
    assert all(each() is None for each in alive)


def test_control_flow_with_a_collective_inside_keeps_its_place() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        first = begin(x.sin())
        chosen = torch.cond(y.sum() > 0, lambda y: end(begin(y * 2)), lambda y: end(begin(y * 3)), (y,))
        return end(begin(x.cos())), chosen, end(first)

    program = captured(function)
    names = [node.name for node in program.graph_module.graph.nodes]
    cond = next(name for name in names if name.startswith("cond"))
    first, last = (node.name for node in starts(program.graph_module.graph))
    assert names.index(first) < names.index(cond) < names.index(last)
    outer = in_parts(program).outer
    kept = [node.name for node in outer.graph.nodes if node.name in (first, cond, last)]
    assert kept == [first, cond, last]
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    torch.testing.assert_close(list(outer.forward([x, y])), list(function(x, y)))


def test_keys_have_the_group_but_nothing_of_the_rank() -> None:
    def over(group: str) -> Program:
        return captured(lambda x, y: end(begin(x.sin() * 2, group)).cos() * 3)

    world = dist.group.WORLD.group_name  # type: ignore[union-attr]
    other = dist.new_group([0]).group_name  # type: ignore[union-attr]
    one, two = over(world), over(other)
    assert graph_key(one) == graph_key(over(world)) != graph_key(two)
    keys = [[graph_key(each.program) for each in in_parts(program).clusters] for program in (one, two)]
    assert keys[0] == keys[1]
