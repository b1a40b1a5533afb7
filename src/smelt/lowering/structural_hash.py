"""Structural hash of a contract graph: calls of the same operator on tensors of equal layout are equal.

A model's layers repeat. Decisions about a call are made once for all equal calls: its way of lowering, the
layout of its results, the views that ATen gets. Loop functions are made for each call, as they hold the names
of its buffers; that takes less time than the hash.
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
    """The facts decided for a call, which hold for all structurally equal calls.

    ``way`` is None before it is known; ``reason``: the reason if ATen has to run it; ``complex``: whether
    complex numbers are among arguments or results, None before it is known. ``results``: shape and strides of
    each result; ``layouts``: the strides of buffers by their shapes, as the builder has computed them.
    """

    way: Way | None = None
    reason: str | None = None
    complex: bool | None = None
    results: list[tuple[Shape, Shape]] | None = None
    layouts: dict[Shape, Shape] = field(default_factory=dict)


class StructuralHash:
    """A structural hash of a contract graph: calls, and the values they give, by number.

    Calls have the same number if they have the same operator, literals and metadata, and arguments whose
    values have the same number. Values that are equal views of buffers of equal layout have the same number
    too.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._values: dict[Node, int] = {}
        self._given: dict[int, int] = {}
        self._decided: dict[int, Decided] = {}
        self._views: dict[tuple[int, bool], StridedView] = {}

    def call(self, node: Node) -> int:
        """The number of a node's call, after `gives` was called for all of its arguments."""
        if node.op != "call_function" or isinstance(node.target, HigherOrderOperator) or new_sizes(node):
            return self._own()
        arguments = self._key(node.args), self._key(node.kwargs)
        key = (node.target, *arguments, _metadata(node.meta.get("val")), node.meta.get(REFUSED))
        return self._numbers.setdefault(key, len(self._numbers))

    def _own(self) -> int:
        """A unique number."""
        return self._numbers.setdefault(object(), len(self._numbers))

    def decided(self, call: int) -> Decided:
        """The facts about calls of this number; the caller may add to them."""
        return self._decided.setdefault(call, Decided())

    def gives(self, node: Node, value: Any, graph: Graph, call: int | None) -> None:
        """Record that ``node`` became ``value`` in ``graph``; ``call`` None: no other has an equal result."""
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
        """The view of ``node``'s result that ATen gets, if that is known; see `seen_as`."""
        known = self._views.get((self._values[node], exact))
        return None if known is None else replace(known, buffer=buffer)

    def seen_as(self, node: Node, view: StridedView, exact: bool) -> None:
        """Record that ATen gets ``node``'s result as ``view``, without a copy."""
        self._views[self._values[node], exact] = view

    def _key(self, argument: Any) -> Hashable:
        """An argument as a key: nodes by their values; 1, 1.0 and True, and 0.0 and -0.0, are different."""
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
    """The hashed metadata of a result: the layout of a tensor, a number; for several, that of each."""
    if isinstance(value, (tuple, list)):
        return tuple([_metadata(each) for each in value])
    if isinstance(value, torch.Tensor):
        return layout(value) or (value.layout, value.dtype, value.device, value.dim())
    return type(value), number(value)
