"""Which kernel computes a contraction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import sympy
from sympy import Expr

from smelt.config import Config
from smelt.loops.ir import Buffer, Contraction, Extern, Graph, Index, Node, Pointwise, Value, accumulator
from smelt.lowering.dims import convert
from smelt.ops import ops
from smelt.schedule.products import lhs_lies_along_terms, worth_it
from smelt.symbolic import contiguous_strides


def choose_kernels(graph: Graph, config: Config) -> Graph:
    """The graph, and the bodies of its control flow, with a kernel for every contraction.

    A product that pays (`worth_it`) becomes its sums, in a buffer of the accumulator's dtype, and a pointwise
    node that adds the start and rounds; all others become ATen's call.
    """
    chosen = replace(graph, buffers=dict(graph.buffers), nodes=[])
    for node in graph.nodes:
        chosen.nodes += _chosen(node, chosen, config)
    return chosen


def _chosen(node: Node, graph: Graph, config: Config) -> Iterator[Node]:
    body = node.body
    if isinstance(body, Extern) and body.bodies:
        inner = tuple(choose_kernels(each, config) for each in body.bodies)
        yield replace(node, body=replace(body, bodies=inner))
    elif not isinstance(body, Contraction):
        yield node
    elif config.contractions and worth_it(body, graph):
        yield from _apart(node, body, graph)
    else:
        outputs: list[str | None] = [None] * body.results
        outputs[body.result] = node.outputs[0]
        yield replace(node, outputs=tuple(outputs), body=body.call)


def _apart(node: Node, body: Contraction, graph: Graph) -> Iterator[Node]:
    """The sums, and what makes the result of them; first of all lhs row by row, where it lies otherwise."""
    within, result = accumulator(body.dtype), str(node.outputs[0])
    sums = f"{result}_sums"
    while sums in graph.buffers:
        sums += "_"
    graph.buffers[sums] = Buffer(sums, within, body.shape, contiguous_strides(body.shape))
    if not lhs_lies_along_terms(body, graph):
        packed = f"{sums}_lhs"
        shape = (*body.shape[:-1], *body.reduce_shape)
        graph.buffers[packed] = Buffer(packed, within, shape, contiguous_strides(shape))
        yield Node((packed,), Pointwise(shape, within, _Rows(body)), node.origin)
        body = replace(body, lhs=_Packed(packed))
    yield replace(node, outputs=(sums,), body=replace(body, dtype=within, start=None))
    yield replace(node, body=Pointwise(body.shape, body.dtype, _Ending(body, sums)))


@dataclass(frozen=True, slots=True)
class _Ending:
    """A loop function: the sum, the start added, rounded."""

    body: Contraction
    sums: str

    def __call__(self, index: Index) -> Value:
        within = accumulator(self.body.dtype)
        total = ops.load(self.sums, _listed(index))
        if self.body.start is not None:
            total = ops.add(total, self.body.start(index))
        return convert(total, within, self.body.dtype)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A loop function: lhs at (batch, row, term)."""

    body: Contraction

    def __call__(self, index: Index) -> Value:
        return self.body.lhs((*index[:-1], sympy.Integer(0)), (index[-1],))


@dataclass(frozen=True, slots=True)
class _Packed:
    """lhs, read from where it was packed."""

    buffer: str

    def __call__(self, index: Index, rindex: Index) -> Value:
        return ops.load(self.buffer, (*index[:-1], *rindex))


def _listed(index: Index) -> Sequence[Expr]:
    return tuple(index)
