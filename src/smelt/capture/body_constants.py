"""Replaces tensor constants in bodies of control flow by operators, since functionalization does not accept
them.

    _tensor_constant0 = self._tensor_constant0   →  full([], 3.0, dtype=float32)

`torch.export` lifts the constants of a program to inputs, but not those of its bodies (``torch.tensor(3.0)``
in a branch), and then cannot decompose the program.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from smelt.errors import SmeltError

aten = torch.ops.aten
MOST = 1024
"""Limit on the elements of a constant that is built element by element."""


def make_body_constants(exported: ExportedProgram) -> None:
    """Replaces the constants in the bodies of a program, in place; its results stay the same.

    Raises:
        SmeltError: SM0602, a constant is too large.
    """
    for body in exported.graph_module.modules():
        if body is exported.graph_module or not isinstance(body, GraphModule):
            continue
        found = [(node, _value(body, node)) for node in body.graph.find_nodes(op="get_attr")]
        tensors = [(node, value) for node, value in found if isinstance(value, torch.Tensor)]
        for node, value in tensors:
            if value.numel() > MOST:
                raise SmeltError(
                    "SM0602",
                    "smelt cannot export this program",
                    why=f"a constant of {value.numel()} elements inside of a body of control flow",
                    remedy="make it a buffer, or make it outside and close over it",
                )
            with body.graph.inserting_before(node):
                made = _made(body.graph, value)
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)
            body.graph.erase_node(node)
        for name in {str(node.target) for node, _ in tensors}:
            if hasattr(body, name):
                delattr(body, name)
        if tensors:
            body.recompile()


def _value(body: GraphModule, node: Node) -> Any:
    value: Any = body
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value


def _made(graph: Graph, value: torch.Tensor) -> Node:
    """The nodes that build a constant: its elements, stacked."""
    options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
    if value.numel() == 0:
        return graph.call_function(aten.full.default, (list(value.shape), 0), options)
    elements = [
        graph.call_function(aten.full.default, ([1], each), options) for each in value.flatten().tolist()
    ]
    joined = graph.call_function(aten.cat.default, (elements,)) if len(elements) > 1 else elements[0]
    return graph.call_function(aten.reshape.default, (joined, list(value.shape)))
