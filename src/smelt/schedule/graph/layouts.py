"""Layouts of buffers inside a graph: the layout that a product writes is propagated through whole regions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sympy import Expr

from smelt.loops.dependencies import analyze, variables, views_in
from smelt.loops.ir import (
    Attentions,
    Buffer,
    Contraction,
    Extern,
    Graph,
    Native,
    Node,
    Pointwise,
    Reduction,
    Scatter,
    Sort,
    StridedView,
)
from smelt.records import replace
from smelt.schedule.products.operands import strides_in_order
from smelt.symbolic import contiguous_strides, flatten, numel, same, size_hint
from smelt.symbolic.affine import affine


def fixed_buffers(graph: Graph, by_aten: Iterable[Node]) -> set[str]:
    """Buffers whose layout is fixed, because code outside of the loop functions sees their memory.

    ``by_aten``: nodes with contractions that ATen computes.
    """
    found = {name for name in graph.inputs if isinstance(name, str)} | set(graph.constants)
    found |= {view.buffer for view in graph.outputs if isinstance(view, StridedView)} - graph.saved
    calls = [node.body.call for node in by_aten if isinstance(node.body, Contraction)]
    for node in graph.nodes:
        if isinstance(node.body, Extern):
            calls.append(node.body)
        elif isinstance(node.body, Attentions):  # it may be ATen's as well
            calls.append(node.body.call)
        if not isinstance(node.body, (Pointwise, Reduction, Contraction)):
            found |= {name for name in node.outputs if name is not None}
        if isinstance(node.body, Scatter):
            found.add(node.body.base)
        elif isinstance(node.body, Sort):
            found.add(node.body.source)
        elif isinstance(node.body, Native):
            found.update(node.body.reads)
    for node in by_aten:
        found |= {name for name in node.outputs if name is not None}
    return found | {view.buffer for call in calls for view in views_in([call.args, call.kwargs])}


class Layouts:
    """Propagates the layout of a result to the values computed from it elementwise."""

    def __init__(self, fixed: set[str], graph: Graph) -> None:
        """``graph``: its buffers get other strides, except those in ``fixed``."""
        self.fixed, self.graph = fixed, graph
        self.moved = {name for name in graph.inputs if isinstance(name, str) and self._is_moved(name)}

    def place(self, name: str, strides: Sequence[Expr]) -> None:
        """Changes the strides of a buffer of the graph."""
        self.graph.buffers[name] = replace(self.graph.buffers[name], strides=tuple(strides))
        if self._is_moved(name):
            self.moved.add(name)

    def _is_moved(self, name: str) -> bool:
        """Whether a buffer's memory order differs from its dimension order."""
        buffer = self.graph.buffers[name]
        plain = contiguous_strides(buffer.shape)
        return any(size != 1 and not same(a, b) for size, a, b in zip(buffer.shape, buffer.strides, plain))

    def outputs(self) -> list[Any]:
        """The graph's outputs; saved ones have their buffers' current layout."""
        return [
            replace(view, strides=self.graph.buffers[view.buffer].strides)
            if isinstance(view, StridedView) and view.buffer in self.graph.saved
            else view
            for view in self.graph.outputs
        ]

    def follow(self, node: Node) -> None:
        """Gives a node's outputs the layout of the largest moved buffer that it reads, if that has all of
        their dimensions.
        """
        if not isinstance(node.body, (Pointwise, Reduction)):
            return
        free = [name for name in node.outputs if name is not None and name not in self.fixed]
        if not free or len(node.body.shape) < 2:
            return
        reads = [read for read in analyze(node).reads if read.buffer in self.moved]
        if not reads:
            return
        largest = max(reads, key=lambda read: self._elements(self.graph.buffers[read.buffer]))
        buffer = self.graph.buffers[largest.buffer]
        outer = variables("i", len(node.body.shape))
        found = affine(flatten(largest.index, buffer.strides), outer)
        if found is None:
            return
        dims = [d for d, size in enumerate(node.body.shape) if size != 1]
        if any(found[0][d] == 0 for d in dims):
            return
        dims.sort(key=lambda d: -size_hint(found[0][d], self.graph.hints))
        for name in free:
            self.place(name, strides_in_order(node.body.shape, dims))

    def _elements(self, buffer: Buffer) -> int:
        return size_hint(numel(buffer.shape), self.graph.hints)
