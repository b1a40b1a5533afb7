"""TorchScript's graphs as plain objects: the only module that uses ``torch._C``'s bindings for them.

``prim::If`` has two blocks, ``prim::Loop`` one (its inputs: the iteration, then the carried values; its
outputs: whether to continue, then the carried values). Functions and methods are inlined.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

_PLACE = re.compile(r"# (?P<file>[^\n]+):(?P<line>\d+):\d+$")
_GRADIENTS = {
    f"__torch__.torch.autograd.grad_mode.{name}": wanted
    for name, wanted in (("no_grad", False), ("enable_grad", True))
}
"""Context managers that a graph may make: whether gradients are computed inside."""


@dataclass(slots=True, eq=False)
class Value:
    """A value of the graph. ``type``: TorchScript's static type; ``node``: its defining node, None for inputs
    of blocks; ``unique``: its number in TorchScript's graph; ``is_returned``: a block returns it.
    """

    name: str
    type: Any = field(repr=False)
    node: Node | None = field(default=None, repr=False)
    unique: int = -1
    users: list[Node] = field(default_factory=list, repr=False)
    is_returned: bool = False

    @property
    def kind(self) -> str:
        """Its type's kind: ``TensorType``, ``IntType``, ``ListType`` …"""
        return str(self.type.kind())


@dataclass(slots=True, eq=False)
class Node:
    """A node. ``key``: its operator with the overload, ``aten::add.Tensor``, or its kind if it has no schema;
    ``constant``: the value of a ``prim::Constant``; ``where``: ``file:line`` of the user's program; ``left``:
    the operator because of which TorchScript runs it; ``block``: the block that contains it.
    """

    key: str
    schema: Any = field(repr=False)
    source: Any = field(repr=False)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list, repr=False)
    constant: Any = None
    where: str | None = None
    left: str | None = None
    block: Block | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        """The operator without its overload: ``aten::add``."""
        return self.key.split(".")[0]

    @property
    def is_constant(self) -> bool:
        return self.key == "prim::Constant"

    def gives(self, name: str, type: Any) -> Value:
        """Adds a result to the node."""
        self.outputs.append(Value(name, type, self))
        return self.outputs[-1]

    def walk(self) -> Iterator[Node]:
        """The node and all nodes in its blocks."""
        yield self
        for block in self.blocks:
            yield from block.walk()


@dataclass(slots=True, eq=False)
class Block:
    """Nodes in order, with the block's inputs and outputs."""

    inputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    owners: list[Any] = field(default_factory=list, repr=False)
    """TorchScript's graphs that own the objects of `Node.source`."""

    def walk(self) -> Iterator[Node]:
        """All nodes, also of inner blocks, in textual order."""
        for node in self.nodes:
            yield from node.walk()


def read(graph: torch._C.Graph, as_it_is: bool = False) -> Block:
    """The graph as a `Block`; functions and methods that it calls are inlined (in a copy).

    ``as_it_is``: it is not simplified, and if it calls no functions its values keep their names.

    >>> graph = torch._C.parse_ir("graph(%x : Tensor):\\n  %y : Tensor = aten::relu(%x)\\n  return (%y)")
    >>> [node.key for node in read(graph).nodes]
    ['aten::relu']
    """
    calls = any(node.kind() in ("prim::CallMethod", "prim::CallFunction") for node in _walk(graph))
    if calls or not as_it_is:
        graph = graph.copy()
    if calls:
        torch._C._jit_pass_inline(graph)
    for name in () if as_it_is else ("constant_propagation_immutable_types", "dce"):
        getattr(torch._C, f"_jit_pass_{name}")(graph)
    block = _Reader().block(graph)
    block.owners.append(graph)
    return block


def _walk(given: Any) -> Iterator[Any]:
    """All of TorchScript's nodes in a graph or block."""
    for node in given.nodes():
        yield node
        for block in node.blocks():
            yield from _walk(block)


class _Reader:
    def __init__(self) -> None:
        self.values: dict[int, Value] = {}

    def block(self, given: Any, fresh: bool = True) -> Block:
        """A graph, or a block of one; its inputs become new values, unless these are known."""
        block = Block([self._new(each, None) for each in given.inputs()] if fresh else [])
        for each in given.nodes():
            if each.kind().startswith("prim::fork"):
                self._fork(each, block)
            elif each.kind() == "aten::wait":
                self.values[each.output().unique()] = self.values[each.input().unique()]
            elif not _is_gradient_mode_setup(each):
                node = self._node(each)
                if not (node.key == "prim::GetAttr" and is_module(node.outputs[0])):
                    block.nodes.append(node)
        returned = given.returnNode() if hasattr(given, "returnNode") else given.return_node()
        block.outputs = [self.values[each.unique()] for each in returned.inputs()]
        for node in block.nodes:
            node.block = block
        for value in block.outputs:
            value.is_returned = True
        return block

    def _node(self, given: Any) -> Node:
        text = given.schema()
        schema = None if text == "(no schema)" or not text else torch._C.parse_schema(text)
        key = given.kind()
        if schema is not None:
            key = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        node = Node(key, schema, given, where=place_of(_first_line(given)))
        node.inputs = [self.values[each.unique()] for each in given.inputs()]
        for value in node.inputs:
            value.users.append(node)
        node.blocks = [self.block(each) for each in given.blocks()]
        for block in node.blocks:
            for value in block.outputs:
                value.users.append(node)
        node.outputs = [self._new(each, node) for each in given.outputs()]
        if node.key == "prim::Constant":
            node.constant = given.output().toIValue()
        return node

    def _fork(self, given: Any, block: Block) -> None:
        """Inlines a fork: TorchScript only promises that it is done when it is waited for."""
        graph = given.g("Subgraph").copy()
        torch._C._jit_pass_inline(graph)
        inner = _Reader()
        for each, argument in zip(graph.inputs(), given.inputs()):
            inner.values[each.unique()] = self.values[argument.unique()]
        forked = inner.block(graph, fresh=False)
        block.nodes += forked.nodes
        block.owners.append(graph)
        self.values[given.output().unique()] = forked.outputs[0]

    def _new(self, given: Any, node: Node | None) -> Value:
        value = Value(given.debugName(), given.type(), node, given.unique())
        self.values[given.unique()] = value
        return value


def is_module(value: Value) -> bool:
    """Whether a value is the module of a method, or a submodule: a path, not a value that can be passed."""
    reached = value.node is None or value.node.key == "prim::GetAttr"
    return value.kind == "ClassType" and reached and not is_custom(value)


def is_custom(value: Value) -> bool:
    """Whether a value is an object of a class of ``torch.classes``."""
    return value.kind == "ClassType" and value.type.qualified_name().startswith("__torch__.torch.classes.")


def gradient_mode(value: Value) -> bool | None:
    """Whether gradients are computed inside a context manager; None for other context managers."""
    name = value.type.qualified_name() if value.kind == "ClassType" else ""
    return _GRADIENTS.get(name)


def _is_gradient_mode_setup(given: Any) -> bool:
    """Whether a node writes the field in which ``torch.no_grad`` saves the outer mode."""
    if given.kind() not in ("prim::SetAttr", "prim::GetAttr"):
        return False
    of = next(iter(given.inputs())).type()
    return of.kind() == "ClassType" and of.qualified_name() in _GRADIENTS


def _first_line(given: Any) -> str:
    """A node's text without its blocks, which are on separate lines."""
    return str(given).split("\n", 1)[0]


def place_of(text: str) -> str | None:
    """``model.py:12`` of a node's text: its origin according to TorchScript.

    >>> place_of("%y : Tensor = aten::relu(%x) # /home/me/model.py:12:8")
    'model.py:12'
    """
    found = _PLACE.search(text)
    return f"{os.path.basename(found['file'])}:{found['line']}" if found and found["file"][0] != "<" else None
