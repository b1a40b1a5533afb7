"""Which calls of a contract graph are alike: the same operator, on tensors that lie alike.

A model's layers repeat. What is decided about a call is decided once for all that are alike: who computes it,
how its results lie, how ATen gets to see its arguments. Loop functions are made for each, as they hold the
names of its buffers; that takes less time than finding out what is alike.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import Node

from smelt.contract.facts import REFUSED, layout, new_sizes, number
from smelt.loops.ir import Graph, Shape, StridedView
from smelt.lowering.tensor import Tensor
from smelt.records import dataclass, field, replace


class Way(Enum):
    """How a call is lowered."""

    ROW = "by its row of the table"
    VIEW = "a view of what loop functions cannot compute on, by its row; or ATen's call"
    STRUCTURED = "ATen's call, kept as the contraction that it computes"
    ATEN = "ATen's call"


@dataclass(slots=True)
class Decided:
    """What has been found out about a call, and holds for those that are alike.

    ``way`` is None before it is known; ``reason``: why ATen has to run it, if it has to; ``complex``: whether
    complex numbers go in or come out, None before it is known. ``results``: shape
    and strides of each result, and ``layouts``: the strides of buffers by their shapes, as the builder has
    worked them out.
    """

    way: Way | None = None
    reason: str | None = None
    complex: bool | None = None
    results: list[tuple[Shape, Shape]] | None = None
    layouts: dict[Shape, Shape] = field(default_factory=dict)


class StructuralHash:
    """A structural hash of a contract graph: calls, and the values they give, by number.

    Calls have the same number if they have the same operator, literals and metadata, and arguments whose
    values have the same number. So have values that are the same view of buffers that lie alike.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._values: dict[Node, int] = {}
        self._given: dict[int, int] = {}
        self._decided: dict[int, Decided] = {}
        self._views: dict[tuple[int, bool], StridedView] = {}

    def call(self, node: Node) -> int:
        """The number of what a node does, all of whose arguments have been through `gives`."""
        if node.op != "call_function" or isinstance(node.target, HigherOrderOperator) or new_sizes(node):
            return self._own()
        arguments = self._key(node.args), self._key(node.kwargs)
        key = (node.target, *arguments, _metadata(node.meta.get("val")), node.meta.get(REFUSED))
        return self._numbers.setdefault(key, len(self._numbers))

    def _own(self) -> int:
        """A number that nothing else has."""
        return self._numbers.setdefault(object(), len(self._numbers))

    def decided(self, call: int) -> Decided:
        """What is known about calls of this number, to be added to."""
        return self._decided.setdefault(call, Decided())

    def gives(self, node: Node, value: Any, graph: Graph, call: int | None) -> None:
        """``node`` has become ``value`` in ``graph``; None: no other call of that number gives its like."""
        call = self._own() if call is None else call
        found = self._given.get(call)
        if found is None:
            found = call
            if isinstance(value, Tensor) and value.transform is tuple:
                buffer = graph.buffers[value.buffer]
                outside = value.buffer in graph.constants or value.buffer in graph.inputs
                metadata = _metadata(node.meta.get("val"))
                key = ("buffer", outside, buffer.dtype, buffer.shape, buffer.strides, metadata)
                found = self._numbers.setdefault(key, len(self._numbers))
            self._given[call] = found
        self._values[node] = found

    def view(self, node: Node, buffer: str, exact: bool) -> StridedView | None:
        """How ATen gets to see what ``node`` gives, if that is known; see `seen_as`."""
        known = self._views.get((self._values[node], exact))
        return None if known is None else replace(known, buffer=buffer)

    def seen_as(self, node: Node, view: StridedView, exact: bool) -> None:
        """ATen gets to see what ``node`` gives as ``view``, which takes no copy."""
        self._views[self._values[node], exact] = view

    def _key(self, argument: Any) -> Hashable:
        """An argument as a key: nodes by what they give; 1, 1.0 and True, and 0.0 and -0.0, are different."""
        if isinstance(argument, Node):
            return self._values[argument]
        if isinstance(argument, (tuple, list)):
            return tuple([self._key(each) for each in argument])
        if isinstance(argument, dict):
            return tuple([(name, self._key(each)) for name, each in argument.items()])
        if isinstance(argument, (bool, int)) or argument is None:
            return type(argument), argument
        return type(argument), repr(argument)


def _metadata(value: Any) -> Hashable:
    """What is known of a result: the layout of a tensor, a number; of several, of each."""
    if isinstance(value, (tuple, list)):
        return tuple([_metadata(each) for each in value])
    if isinstance(value, torch.Tensor):
        return layout(value) or (value.layout, value.dtype, value.device, value.dim())
    return type(value), number(value)
