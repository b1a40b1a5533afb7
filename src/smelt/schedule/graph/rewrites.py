"""Rewrites of the loop graph before scheduling. Each states before → after and is a function of one node.

They run over the graph once, in the order of `REWRITES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.loops.dependencies import analyze, variables, views_in
from smelt.loops.ir import (
    Body,
    Buffer,
    Extern,
    Graph,
    Native,
    Node,
    Origin,
    Pointwise,
    Reduction,
    Scatter,
    StridedView,
)
from smelt.loops.reductions import identity
from smelt.lowering.dtypes import supported
from smelt.ops import ops
from smelt.records import replace
from smelt.schedule.graph.attention import gradients_apart, own_results, split_keys
from smelt.schedule.loops import Target
from smelt.schedule.products.tiles import ceiling
from smelt.symbolic import contiguous_strides, flatten, numel, size_hint, unflatten
from smelt.symbolic.affine import affine

RESIDENT_ELEMENTS = 131072
"""Elements of a reduced row that stay in the second-level cache, so that a second read is cheap."""

SPLIT_ELEMENTS = 32768
"""The fewest elements of a reduction with few results that is split, for threads and for accuracy."""

FEW_RESULTS = 8
COLUMN_CHUNK = 256
"""Terms of a chunk if lanes are adjacent results: without partial sums in the lanes, rounding errors grow
faster.
"""
SPLITTABLE = ("sum", "prod", "max", "min", "any", "all", "xor_sum")


class Rewriter:
    """Applies the rewrites to every node of a copy of ``graph`` (nodes and buffers are shared,
    containers are not), for a target: more reductions are split for the programs of a GPU. ``appended``:
    `appended_in_place`'s. ``ordered``: the number of results decides nothing.
    """

    def __init__(
        self, graph: Graph, target: Target, appended: Sequence[Node] = (), ordered: bool = False
    ) -> None:
        self.target, self.appended, self.ordered = target, {id(node) for node in appended}, ordered
        self.graph = replace(graph, buffers=dict(graph.buffers), nodes=[])
        self.source = graph

    def run(self) -> Graph:
        for node in self.source.nodes:
            self._rewrite(node, 0)
        return self.graph

    def _rewrite(self, node: Node, start: int) -> None:
        for number in range(start, len(REWRITES)):
            nodes = REWRITES[number](node, self)
            if nodes is not None:
                for new in nodes:
                    self._rewrite(new, number + 1)
                return
        self.graph.nodes.append(node)

    def hint(self, sizes: Sequence[Expr]) -> int:
        return size_hint(numel(sizes), self.source.hints)

    def is_read(self, name: str) -> bool:
        """Whether a call, a loop function or who runs the graph reads a buffer."""
        views = views_in(self.source.outputs)
        return any(view.buffer == name for view in views) or any(
            name in analyze(node).buffers_read for node in self.source.nodes
        )

    def new_buffer(self, dtype: torch.dtype, shape: Sequence[Expr]) -> str:
        name = f"t{len(self.graph.buffers)}"
        self.graph.buffers[name] = Buffer(name, dtype, tuple(shape), contiguous_strides(shape))
        return name


def two_pass_statistics(node: Node, rewriter: Rewriter) -> list[Node] | None:
    """Welford over a cache-resident row → sum, then sum of squared deviations from the mean.

    (mean, m2, n) = welford(x)  →  m = x0 + sum(x - x0) / n;  m2 = sum((x - m)**2);
                                   mean = m + sum(x - m) / n;  n = n

    With x0, the row's first element, the mean of equal elements is that element and their deviation exactly
    0, as in Welford's recurrence. ``m`` has the rounding error of x0, which may be much larger than the mean;
    the last line corrects it, because an error of the mean would affect every element.
    """
    body = node.body
    if not isinstance(body, Reduction) or body.kind != "welford" or not _rereadable(node, rewriter):
        return None
    count = numel(body.reduce_shape)
    total = rewriter.new_buffer(body.dtype, body.shape)
    near = rewriter.new_buffer(body.dtype, body.shape)
    value, dtype = body.inner_fn, body.dtype

    first = rewriter.new_buffer(dtype, body.shape)
    zeros = [sympy.Integer(0)] * len(body.reduce_shape)

    def start(index: Sequence[Expr]) -> Any:
        return value(index, zeros) if count.is_positive else ops.constant(0.0, dtype)

    def from_start(index: Sequence[Expr], rindex: Sequence[Expr]) -> Any:
        return ops.sub(value(index, rindex), ops.load(first, index))

    def moved(start: str, sum_of_rest: str) -> Pointwise:
        def mean_of(index: Sequence[Expr]) -> Any:
            share = ops.truediv(ops.load(sum_of_rest, index), ops.index_expr(count, dtype))
            return ops.add(ops.load(start, index), share)

        return Pointwise(body.shape, dtype, mean_of)

    def deviation(index: Sequence[Expr], rindex: Sequence[Expr]) -> Any:
        delta = left(index, rindex)
        return ops.mul(delta, delta)

    def left(index: Sequence[Expr], rindex: Sequence[Expr]) -> Any:
        return ops.sub(value(index, rindex), ops.load(near, index))

    nodes = [
        Node((first,), Pointwise(body.shape, dtype, start), node.origin),
        Node((total,), replace(body, kind="sum", inner_fn=from_start), node.origin),
        Node((near,), moved(first, total), node.origin),
    ]
    if node.outputs[1] is not None:
        nodes.append(Node((node.outputs[1],), replace(body, kind="sum", inner_fn=deviation), node.origin))
    if node.outputs[0] is not None:
        rest = rewriter.new_buffer(body.dtype, body.shape)
        nodes.append(Node((rest,), replace(body, kind="sum", inner_fn=left), node.origin))
        nodes.append(Node((node.outputs[0],), moved(near, rest), node.origin))
    if node.outputs[2] is not None:
        constant = Pointwise(body.shape, dtype, lambda index: ops.index_expr(count, dtype))
        nodes.append(Node((node.outputs[2],), constant, node.origin))
    return nodes


def two_pass_softmax(node: Node, rewriter: Rewriter) -> list[Node] | None:
    """Online softmax over a cache-resident row → maximum, then sum of exponentials.

    (m, s) = online_softmax(x)  →  m = max(x);  s = sum(exp(x - m))
    """
    body = node.body
    if not isinstance(body, Reduction) or body.kind != "online_softmax" or not _rereadable(node, rewriter):
        return None
    largest = node.outputs[0] or rewriter.new_buffer(body.dtype, body.shape)
    value = body.inner_fn

    def exponential(index: Sequence[Expr], rindex: Sequence[Expr]) -> Any:
        return ops.exp(ops.sub(value(index, rindex), ops.load(largest, index)))

    nodes = [Node((largest,), replace(body, kind="max"), node.origin)]
    if node.outputs[1] is not None:
        nodes.append(Node((node.outputs[1],), replace(body, kind="sum", inner_fn=exponential), node.origin))
    return nodes


def _rereadable(node: Node, rewriter: Rewriter) -> bool:
    body = node.body
    assert isinstance(body, Reduction)
    few = rewriter.hint(body.shape) < FEW_RESULTS and not rewriter.ordered
    few |= rewriter.hint(body.reduce_shape) <= RESIDENT_ELEMENTS
    return few or _iterates_columns(node, rewriter)


def single_term(node: Node, rewriter: Rewriter) -> list[Node] | None:
    """A reduction over one element → that element.

    out[i] = sum over r in 1 of f(i, r)  →  out[i] = f(i, 0);     argmax → 0
    """
    del rewriter
    body = node.body
    if not isinstance(body, Reduction) or any(size != 1 for size in body.reduce_shape):
        return None
    if body.kind in ("argmax", "argmin"):
        position = Pointwise(body.shape, torch.int64, lambda index: ops.constant(0, torch.int64))
        return [Node(node.outputs, position, node.origin)]
    if body.kind not in SPLITTABLE:
        return None
    zeros = [sympy.Integer(0)] * len(body.reduce_shape)
    return [
        Node(node.outputs, Pointwise(body.shape, body.dtype, lambda i: body.inner_fn(i, zeros)), node.origin)
    ]


def split_reduction(node: Node, rewriter: Rewriter) -> list[Node] | None:
    """A long reduction with few results → chunks (in parallel), then the chunks' results.

    out[i] = sum_r f(i, r)  →  part[k, i] = sum_b f(i, k*B + b);  out[i] = sum_k part[k, i]
    """
    body = node.body
    if not isinstance(body, Reduction) or body.kind not in SPLITTABLE or body.product is not None:
        return None
    found = _parts(body, node, rewriter)
    if found is None:
        return None
    chunks, first, _ = found
    partial = rewriter.new_buffer(body.dtype, first.shape)
    second = replace(
        body, reduce_shape=chunks, inner_fn=lambda index, rindex: ops.load(partial, [*rindex, *index])
    )
    return [Node((partial,), first, node.origin), Node(node.outputs, second, node.origin)]


def split_position(node: Node, rewriter: Rewriter) -> list[Node] | None:
    """The position of an extreme of a long row, for GPUs → extremes of chunks, then of these.

    out[i] = argmax_r f(i, r)  →  part[k, i] = max_b f(i, k*B + b);  at[k, i] = argmax_b f(i, k*B + b);
                                  best[i] = argmax_k part[k, i];  out[i] = at[best[i], i] + B*best[i]
    """
    body = node.body
    if not rewriter.target.blocks or not isinstance(body, Reduction) or body.kind not in ("argmax", "argmin"):
        return None
    found = _parts(body, node, rewriter)
    if found is None:
        return None
    chunks, places, _ = found
    extremes = replace(places, kind=body.kind.removeprefix("arg"))
    part, at = (rewriter.new_buffer(dtype, places.shape) for dtype in (body.dtype, torch.int64))
    best = rewriter.new_buffer(torch.int64, body.shape)
    of_chunks = replace(
        body, reduce_shape=chunks, inner_fn=lambda index, rindex: ops.load(part, [*rindex, *index])
    )

    def position(index: Sequence[Expr]) -> Any:
        chunk = ops.indirect_index(ops.load(best, index), numel(chunks), wrap=False, check=False)
        local = ops.load(at, [*unflatten(chunk, chunks, {chunk: numel(chunks)}), *index])
        return ops.add(local, ops.index_expr(chunk * numel(places.reduce_shape), torch.int64))

    result = Pointwise(body.shape, torch.int64, position)
    bodies: tuple[Body, ...] = (extremes, places, of_chunks, result)
    names = ((part,), (at,), (best,), node.outputs)
    return [Node(name, each, node.origin) for name, each in zip(names, bodies)]


def split_statistics(node: Node, rewriter: Rewriter) -> list[Node] | None:
    """Welford over a long row, for GPUs → Welford over chunks, whose results two sums combine.

    (mean, m2, n) = welford(x)  →  (mean_k, m2_k, n_k) = welford(chunk k of x);
                                   mean = sum_k mean_k * n_k / n;  m2 = sum_k m2_k + n_k * (mean_k - mean)**2
    """
    body = node.body
    if not rewriter.target.blocks or not isinstance(body, Reduction) or body.kind != "welford":
        return None
    found = _parts(body, node, rewriter)
    if found is None or not found[2]:
        return None
    chunks, first, _ = found
    dtype, count = body.dtype, numel(body.reduce_shape)
    parts = [rewriter.new_buffer(dtype, first.shape) for _ in range(3)]
    total, mean = rewriter.new_buffer(dtype, body.shape), node.outputs[0]
    mean = mean or rewriter.new_buffer(dtype, body.shape)

    def weighted(index: Sequence[Expr], rindex: Sequence[Expr]) -> Any:
        of, _, weight = (ops.load(part, [*rindex, *index]) for part in parts)
        return ops.mul(of, weight)

    def mean_of(index: Sequence[Expr]) -> Any:
        return ops.truediv(ops.load(total, index), ops.index_expr(count, dtype))

    def squares(index: Sequence[Expr], rindex: Sequence[Expr]) -> Any:
        of, rest, weight = (ops.load(part, [*rindex, *index]) for part in parts)
        away = ops.sub(of, ops.load(mean, index))
        return ops.add(rest, ops.mul(weight, ops.mul(away, away)))

    sums = replace(body, kind="sum", reduce_shape=chunks)
    nodes = [
        Node(tuple(parts), first, node.origin),
        Node((total,), replace(sums, inner_fn=weighted), node.origin),
        Node((mean,), Pointwise(body.shape, dtype, mean_of), node.origin),
    ]
    if node.outputs[1] is not None:
        nodes.append(Node((node.outputs[1],), replace(sums, inner_fn=squares), node.origin))
    if node.outputs[2] is not None:
        constant = Pointwise(body.shape, dtype, lambda index: ops.index_expr(count, dtype))
        nodes.append(Node((node.outputs[2],), constant, node.origin))
    return nodes


def _parts(
    body: Reduction, node: Node, rewriter: Rewriter
) -> tuple[tuple[Expr, ...], Reduction, bool] | None:
    """The chunks that a reduction is worth splitting into, the reduction of each (over the chunks, then its
    own results), and whether all are whole; in the last of others the identity fills up.
    """
    body = _without_ones(body)
    total, results = rewriter.hint(body.reduce_shape), rewriter.hint(body.shape)
    columns = total >= 2 * COLUMN_CHUNK and _iterates_columns(node, rewriter)
    if not columns:
        if rewriter.ordered:
            return None  # results lie between the chunks, unless there is one
        if results >= FEW_RESULTS * 128 or total < SPLIT_ELEMENTS:
            return None
        if results >= FEW_RESULTS and total < SPLIT_ELEMENTS * 4 and not rewriter.target.blocks:
            return None
    split = _leading_dims(body.reduce_shape, rewriter, COLUMN_CHUNK if columns else None)
    if split is not None:
        chunks, rest = body.reduce_shape[:split], body.reduce_shape[split:]

        def part_of(index: Sequence[Expr], rindex: Sequence[Expr]) -> Any:
            return body.inner_fn(index[split:], [*index[:split], *rindex])

        return (
            chunks,
            replace(body, shape=(*chunks, *body.shape), reduce_shape=tuple(rest), inner_fn=part_of),
            True,
        )
    found = _chunk(body, rewriter, columns)
    if found is None:
        return None
    count, length, whole = found
    limit = body.reduce_shape[0]

    def chunk_of(index: Sequence[Expr], rindex: Sequence[Expr]) -> Any:
        position = index[0] * length + rindex[0]
        if whole:
            return body.inner_fn(index[1:], [position, *rindex[1:]])
        inside = ops.lt(ops.index_expr(position, torch.int64), ops.index_expr(limit, torch.int64))
        return ops.masked(
            inside,
            lambda: body.inner_fn(index[1:], [position, *rindex[1:]]),
            identity(body.kind.removeprefix("arg"), body.dtype),
        )

    rest = (length, *body.reduce_shape[1:])
    return (count,), replace(body, shape=(count, *body.shape), reduce_shape=rest, inner_fn=chunk_of), whole


def _without_ones(body: Reduction) -> Reduction:
    """The reduction over the dimensions of more than one element."""
    places = [d for d, size in enumerate(body.reduce_shape) if size != 1]
    if len(places) == len(body.reduce_shape):
        return body

    def value(index: Sequence[Expr], rindex: Sequence[Expr]) -> Any:
        terms = [sympy.Integer(0)] * len(body.reduce_shape)
        for place, term in zip(places, rindex):
            terms[place] = term
        return body.inner_fn(index, terms)

    return replace(body, reduce_shape=tuple(body.reduce_shape[d] for d in places), inner_fn=value)


def _iterates_columns(node: Node, rewriter: Rewriter) -> bool:
    """Whether results, not terms, are contiguous in the largest buffer that is read."""
    body = node.body
    assert isinstance(body, Reduction)
    buffers = rewriter.graph.buffers
    outer, terms = variables("i", len(body.shape)), variables("r", len(body.reduce_shape))
    reads = [read for read in analyze(node).reads if any(e.has(*terms) for e in read.index)] if terms else []
    if not reads:
        return False
    largest = max(reads, key=lambda read: rewriter.hint(buffers[read.buffer].shape))
    found = affine(flatten(largest.index, buffers[largest.buffer].strides), (*outer, *terms))
    if found is None:
        return False
    return any(step == 1 and size != 1 for step, size in zip(found[0], body.shape))


def _leading_dims(reduce_shape: Sequence[Expr], rewriter: Rewriter, most: int | None) -> int | None:
    """The number of leading dimensions that give a good number of chunks, or None; chunks have between
    ``most`` / 16 and ``most`` terms.
    """
    for split in range(1, len(reduce_shape)):
        chunks, rest = rewriter.hint(reduce_shape[:split]), rewriter.hint(reduce_shape[split:])
        fits = rest >= 256 if most is None else most >= rest >= most // 16
        if 8 <= chunks <= 4096 and fits:
            return split
    return None


def _chunk(body: Reduction, rewriter: Rewriter, columns: bool) -> tuple[Expr, Expr, bool] | None:
    """(number of chunks, chunk length, whether they divide the first reduced dimension evenly)."""
    first = body.reduce_shape[0]
    rest = rewriter.hint(body.reduce_shape[1:])
    if not first.is_Integer:
        length = max(1, COLUMN_CHUNK // rest)
        return (ceiling(first, length), sympy.Integer(length), False) if columns else None
    size = int(first)
    wanted = max(8, min(1024, size * rest // (COLUMN_CHUNK if columns else 16384)))
    if size < 16:
        return None
    divisors = [k for k in range(8, min(size, 4096) + 1) if size % k == 0]
    if divisors:
        best = min(divisors, key=lambda k: abs(k - wanted))
        if best <= wanted * 8:
            return sympy.Integer(best), sympy.Integer(size // best), True
    length = -(-size // wanted)
    return sympy.Integer(-(-size // length)), sympy.Integer(length), False


def scatter_in_place(node: Node, rewriter: Rewriter) -> list[Node] | None:
    """A scatter into a copy → the copy, then a scatter in place.

    out = scatter(base, …)  →  out = base;  out[place] = …      (the second node has ``base == out``)
    """
    body = node.body
    if not isinstance(body, Scatter) or body.base == node.outputs[0] or id(node) in rewriter.appended:
        return None
    out = node.outputs[0]
    assert out is not None
    base = body.base
    shape = rewriter.graph.buffers[out].shape
    copy = Pointwise(shape, body.dtype, lambda index: ops.load(base, index))
    return [Node((out,), copy, node.origin), Node((out,), replace(body, base=out), node.origin)]


def appended_in_place(graph: Graph) -> tuple[Graph, list[Node]]:
    """The graph without the copies into inputs that scatters can write themselves, as a cache of keys while
    text is generated, and these scatters: at the end the input holds the result, and nothing else reads it.
    """
    read = Counter(name for node in graph.nodes for name in {*analyze(node).whole, *_loaded(node)})
    read.update(view.buffer for view in graph.outputs if isinstance(view, StridedView))
    ends = Counter(each.target for each in graph.mutations) + Counter(each.source for each in graph.mutations)
    targets = {each.source: each.target for each in graph.mutations}
    seen = {view.buffer for view in graph.outputs if isinstance(view, StridedView)}
    buffers = graph.buffers
    found = [
        node
        for node in graph.nodes
        if isinstance(node.body, Scatter)
        and (out := str(node.outputs[0])) in targets
        and node.body.base == targets[out]
        and read[node.body.base] == 1
        and (ends[out], ends[node.body.base]) == (1, 1)
        and out not in seen
        and buffers[out] == replace(buffers[node.body.base], name=out)
    ]
    done = {node.outputs[0] for node in found}
    return replace(graph, mutations=[each for each in graph.mutations if each.source not in done]), found


def stored_in_place(graph: Graph) -> Graph:
    """Makes a user-written kernel store directly into the input that holds its result at the end.

    No other node may read either of them.
    """
    written = {name: node for node in graph.nodes if isinstance(node.body, Native) for name in node.outputs}
    read = Counter(name for node in graph.nodes for name in {*analyze(node).whole, *_loaded(node)})
    read.update(view.buffer for view in graph.outputs if isinstance(view, StridedView))
    buffers = graph.buffers
    places = {
        each.source: each.target
        for each in graph.mutations
        if each.source in written
        and not read[each.source]
        and read[each.target] <= (each.target in analyze(written[each.source]).whole)
        and buffers[each.source] == replace(buffers[each.target], name=each.source)
    }
    nodes = [
        replace(node, outputs=tuple(places.get(name or "", name) for name in node.outputs))
        if isinstance(node.body, Native)
        else node
        for node in graph.nodes
    ]
    done = {name for node in nodes if isinstance(node.body, Native) for name in node.outputs}
    left = [each for each in graph.mutations if places.get(each.source) not in done]
    return replace(graph, nodes=nodes, mutations=left)


def _loaded(node: Node) -> set[str]:
    return {each.buffer for each in analyze(node).reads}


def mutation_copies(graph: Graph) -> list[Node]:
    """``input holds source at the end`` → a pointwise node that writes the input's memory.

    Dtypes that loop functions do not support (unsigned integers of 16 bits and more …) are written by ATen's
    ``copy_``.
    """
    nodes = []
    for mutation in graph.mutations:
        source = graph.buffers[mutation.source]
        origin = next((n.origin for n in graph.nodes if mutation.source in n.outputs), None)
        if not supported(source.dtype):
            views = (_all_of(graph.buffers[mutation.target]), _all_of(source))
            body = Extern("aten.copy_.default", views, {}, overwrites=(mutation.target,))
            nodes.append(Node((None, mutation.target), body, origin or Origin(body.target)))
            continue

        def copy(index: Sequence[Expr], name: str = mutation.source) -> Any:
            return ops.load(name, index)

        nodes.append(
            Node(
                (mutation.target,),
                Pointwise(source.shape, source.dtype, copy),
                origin or Origin("aten.copy_.default"),
            )
        )
    return nodes


def _all_of(buffer: Buffer) -> StridedView:
    return StridedView(buffer.name, buffer.shape, buffer.strides, sympy.Integer(0))


REWRITES: tuple[Callable[[Node, Rewriter], list[Node] | None], ...] = (
    split_statistics,
    two_pass_statistics,
    two_pass_softmax,
    single_term,
    split_reduction,
    split_position,
    scatter_in_place,
    gradients_apart,
    own_results,
    split_keys,
)
