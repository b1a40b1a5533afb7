"""Minimization of failing programs: the search that `smelt repro` and the fuzzer share; its steps on
graphs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.fx import GraphModule, Interpreter, Node

T = TypeVar("T")


def smallest(program: T, smaller: Callable[[T], Iterable[T]], fails: Callable[[T], bool], tries: int) -> T:
    """A smaller program that fails as well, found in at most ``tries`` runs of ``fails``.

    ``smaller`` gives candidates, the smallest first. If there were enough tries, none of the result's
    candidates fails: every remaining part is needed for the failure.

    >>> smallest("abcdef", lambda s: [s[:i] + s[i + 1 :] for i in range(len(s))], lambda s: "c" in s, 80)
    'c'
    """
    left, changed = tries, True
    while changed and left > 0:
        changed = False
        for candidate in smaller(program):
            if left == 0:
                break
            left -= 1
            if fails(candidate):
                program, changed = candidate, True
                break
    return program


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph and its arguments."""

    graph_module: GraphModule
    inputs: tuple[Any, ...]

    @property
    def calls(self) -> int:
        """The number of calls in the graph."""
        return sum(node.op.startswith("call") for node in self.graph_module.graph.nodes)


def smaller_graphs(traced: Traced) -> Iterator[Traced]:
    """Candidates: fewer outputs; an inner value as the only output; an input instead of a computed value."""
    nodes = list(traced.graph_module.graph.nodes)
    outputs = nodes[-1].all_input_nodes
    values = _values(traced)
    wanted = [node for node in nodes if node.op == "call_function" and _is_value(values.get(node.name))]
    for name in [node.name for node in outputs] if len(outputs) > 1 else ():
        yield _changed(traced, lambda graph, named, name=name: _give(graph, named[name]))
    for node in reversed(wanted):
        if node not in outputs or len(outputs) > 1:
            yield _changed(traced, lambda graph, named, name=node.name: _give(graph, named[name]))
    for node in reversed(wanted):
        if node not in outputs:
            found = values[node.name]
            yield _changed(traced, lambda graph, named, name=node.name: _replaced(graph, named[name]), found)


def _is_value(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _values(traced: Traced) -> dict[str, Any]:
    found: dict[str, Any] = {}

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            found[n.name] = value = super().run_node(n)
            return value

    try:
        with torch.no_grad():
            Recorder(traced.graph_module).run(*copy.deepcopy(traced.inputs))
    except Exception:  # then fewer candidates
        return found
    return found


def _changed(traced: Traced, change: Callable[..., Any], *more: Any) -> Traced:
    """The graph after ``change``, without dead nodes and inputs."""
    module = GraphModule(traced.graph_module, copy.deepcopy(traced.graph_module.graph))
    graph = module.graph
    inputs = [*traced.inputs, *(each.detach().clone() for each in more)]
    change(graph, {node.name: node for node in graph.nodes})
    graph.eliminate_dead_code()
    kept = []
    for node, value in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        if node.users:
            kept.append(value)
        else:
            graph.erase_node(node)
    module.recompile()
    return Traced(module, tuple(kept))


def _give(graph: torch.fx.Graph, node: Node) -> None:
    graph.output_node().args = ((node,),)


def _replaced(graph: torch.fx.Graph, node: Node) -> None:
    last = graph.find_nodes(op="placeholder")[-1:]
    with graph.inserting_after(last[0]) if last else graph.inserting_before(next(iter(graph.nodes))):
        node.replace_all_uses_with(graph.placeholder(f"given_{node.name}"))
