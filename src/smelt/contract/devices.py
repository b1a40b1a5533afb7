"""Devices of a program: each cluster has one; PyTorch copies between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
from torch.utils._pytree import tree_leaves

from smelt.capture.program import Program

aten = torch.ops.aten

KINDS = ("cpu", "cuda")
"""Devices that smelt compiles for."""


def devices_of(nodes: Iterable[Node]) -> list[torch.device]:
    """The devices of the tensors of inputs, constants and calls, in order."""
    return list(dict.fromkeys(tensor.device for node in nodes for tensor in _tensors(node)))


def device_of(graph: Graph) -> torch.device:
    """The device of a graph whose tensors are all on one; of no tensors, the CPU.

    >>> from smelt.capture import capture_function
    >>> device_of(capture_function(torch.sin, [torch.ones(3)]).graph_module.graph)
    device(type='cpu')
    """
    return next((tensor.device for node in graph.nodes for tensor in _tensors(node)), torch.device("cpu"))


def between_devices(node: Node) -> str | None:
    """The reason why PyTorch runs a call, if its tensors are on several devices."""
    if node.op != "call_function":
        return None
    found = devices_of([*node.all_input_nodes, node])
    return f"tensors on {' and '.join(map(str, found))}" if len(found) > 1 else None


def copy_scalars(program: Program, context: Any) -> Program:
    """Copies tensors of no dimensions from the CPU to the devices of the calls that take them; calls of ATen
    on GPUs take them as they are.

        add(x on cuda:0, s on cpu)  →  t = _to_copy(s, device=cuda:0); add(x, t)
    """
    del context
    graph = program.graph_module.graph
    if len(devices_of(graph.nodes)) < 2:
        return program
    new = Graph()
    env: dict[Node, Node] = {}
    copies: dict[tuple[Node, torch.device], Node] = {}

    def given(node: Node, user: Node) -> Node:
        value = node.meta.get("val")
        own = devices_of([user])
        if user.op != "call_function" or len(own) != 1 or own[0].type == "cpu" or _copies(user):
            return env[node]
        if not isinstance(value, FakeTensor) or value.dim() or value.device.type != "cpu":
            return env[node]
        if (node, own[0]) not in copies:
            made = new.call_function(aten._to_copy.default, (env[node],), {"device": own[0]})
            made.meta = {**user.meta}
            with value.fake_mode:
                made.meta["val"] = value.to(own[0])
            copies[node, own[0]] = made
        return copies[node, own[0]]

    for node in graph.nodes:
        args = {each: given(each, node) for each in node.all_input_nodes}
        env[node] = new.node_copy(node, args.__getitem__)
    with _use_lazy_graph_module(True):
        graph_module = _make_graph_module(program.graph_module, new, "Contract")
    return dataclasses.replace(program, graph_module=graph_module)


def _copies(node: Node) -> bool:
    return node.target in (aten._to_copy.default, aten.copy_.default, aten.copy.default)


def _tensors(node: Node) -> Iterator[torch.Tensor]:
    value = None if node.op == "output" else node.meta.get("val")
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        yield from (each for each in tree_leaves(value) if isinstance(each, torch.Tensor))
