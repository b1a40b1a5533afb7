"""Descriptions of contractions and attentions, and the reasons of the rule that gives them to ATen or to
kernels of our own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from sympy import Expr

from smelt.config import Config
from smelt.loops.ir import Contraction, Contractions, Extern, Graph, Node, StridedView
from smelt.schedule.attention.kernels import attention_sizes, described_sizes, why_atens
from smelt.schedule.graph.contractions import has_nest, worth_it
from smelt.schedule.loops import Target
from smelt.schedule.products.split_dimensions import product_of
from smelt.symbolic import contiguous_strides, same, size_hint


def contractions(graph: Graph) -> Iterator[tuple[Node, Contractions, Graph]]:
    """The contractions and attentions of a graph and of its bodies, each with its graph."""
    for each in graph.with_bodies():
        for node in each.nodes:
            if isinstance(node.body, Contractions):
                yield node, node.body, each


def described(body: Contractions, graph: Graph, frozen: Collection[str]) -> str:
    """ATen's call with its operands' dtypes, sizes and strides: equal for contractions of equal cost.

    ``addmm(f32[768]*, f32[128, 768], f32[768, 3072]@(1, 768)*)``: strides where they are not row-major, ``*``
    where the content is the same at every call (``frozen``), ``~`` before a size that is dynamic.
    """

    def size(expr: Expr) -> str:
        return str(int(expr)) if expr.is_Integer else f"~{size_hint(expr, graph.hints)}"

    def sizes(exprs: Sequence[Expr]) -> str:
        return ", ".join(map(size, exprs))

    def text(arg: Any) -> str:
        if isinstance(arg, StridedView):
            dtype = str(graph.buffers[arg.buffer].dtype).removeprefix("torch.")
            dense = zip(arg.shape, arg.strides, contiguous_strides(arg.shape))
            plain = all(length == 1 or same(stride, usual) for length, stride, usual in dense)
            laid = "" if plain else f"@({sizes(arg.strides)})"
            short = dtype.replace("float", "f").replace("bf", "bf").replace("int", "i")
            return f"{short}[{sizes(arg.shape)}]{laid}{'*' if arg.buffer in frozen else ''}"
        if isinstance(arg, (list, tuple)):
            return f"[{', '.join(map(text, arg))}]"
        return size(arg) if isinstance(arg, Expr) else str(arg)

    call = body.call
    parts = [*map(text, call.args), *(f"{name}={text(value)}" for name, value in call.kwargs.items())]
    result = f" result {body.result}" if isinstance(body, Contraction) and body.results > 1 else ""
    return f"{call.target.removeprefix('aten.').removesuffix('.default')}({', '.join(parts)}){result}"


def rule(
    body: Contractions,
    graph: Graph,
    frozen: Collection[str],
    config: Config,
    target: Target,
    native: bool,
) -> str:
    """The rule's decision for a contraction or attention, and its reason; ``native``: it runs in a kernel of
    ours.
    """
    if not config.contractions:
        return "the option contractions is off"
    if config.ordered:
        return "numerics are strict"
    if not isinstance(body, Contraction):
        return why_atens(body, graph) or f"{described_sizes(attention_sizes(body, graph))}: enough"
    product = product_of(body, graph, frozen)
    if product is None:
        return "no product in float32"
    if not native and not has_nest(product, graph, target):
        return "no nest for such a product"
    rows, columns, terms = (size_hint(s, graph.hints) for s in (*product.extents[-2:], product.depth))
    size = f"{rows} rows, {columns} columns, {terms} terms"
    if native:
        return f"{size}: enough"
    if worth_it(product, graph, target):
        return f"{size}: too few for a result that ATen reads, and which needs another layout"
    if body.dtype in target.dot_products:
        return f"{size}: the processor multiplies {str(body.dtype).removeprefix('torch.')} itself"
    return f"{size}: too few"


def by_aten(graph: Graph) -> set[str]:
    """The buffers that ATen calls of a scheduled graph, and of its bodies, write."""
    return {
        name
        for each in graph.with_bodies()
        for node in each.nodes
        if isinstance(node.body, Extern)
        for name in node.outputs
        if name is not None
    }
