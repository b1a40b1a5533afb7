"""Which kernel computes a contraction."""

from __future__ import annotations

from dataclasses import replace

from smelt.loops.ir import Contraction, Extern, Graph, Node


def choose_kernels(graph: Graph) -> Graph:
    """The graph, and the bodies of its control flow, with a kernel for every contraction: ATen's."""
    return replace(graph, nodes=list(map(_chosen, graph.nodes)))


def _chosen(node: Node) -> Node:
    body = node.body
    if isinstance(body, Contraction):
        outputs: list[str | None] = [None] * body.results
        outputs[body.result] = node.outputs[0]
        return replace(node, outputs=tuple(outputs), body=body.call)
    if isinstance(body, Extern) and body.bodies:
        return replace(node, body=replace(body, bodies=tuple(map(choose_kernels, body.bodies))))
    return node
