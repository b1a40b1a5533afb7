"""Attention of few queries, as in text generation: products of few rows around a softmax.

    for each block of keys:  scores[q, k] = score(sum over r of query[q, r] * key[k, r])
    largest[q] = max over k of scores[q, k];  weights[q, k] = exp(scores[q, k] - largest[q])
    for each block of keys:  parts[q, c] = sum over k of weights[q, k] * value[k, c]
    out[q, c] = sum over blocks of parts[q, c] / sum over k of weights[q, k]

Keys and values are read once for all heads that share them (`smelt.schedule.few_rows` has the recipe), where
they lie: plain copies such as a repetition for each head are inlined. With a mask, only blocks from the first
to the last key that a query sees are computed; which, is read once for all attentions with this mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.loops.dependencies import variables
from smelt.loops.ir import (
    Attention,
    Attentions,
    Body,
    Buffer,
    Extern,
    Graph,
    Index,
    Node,
    Pointwise,
    Reduction,
    StridedView,
    Value,
    accumulator,
)
from smelt.loops.record import Recorder
from smelt.loops.straightline import Instruction, Recordable
from smelt.lowering.dims import convert
from smelt.ops import ops
from smelt.schedule.attention.parts import divides
from smelt.schedule.few_rows import MOST_ROWS
from smelt.schedule.products.operands import Dtypes, expressions, symbols_of
from smelt.schedule.products.tiles import ZERO, ceiling
from smelt.symbolic import FloorDiv, contiguous_strides, least, loop_var, size_hint

MOST_QUERIES = 7
"""Limit on the queries; more fill a register tile (`smelt.schedule.attention.nest`)."""
BLOCK = 64
"""Keys in a block."""
FEWEST_SKIPPED = 256
"""The fewest keys for which finding the last visible one pays."""
FEWEST_KEYS = 16
"""With fewer keys than a vector has lanes, ATen finds the largest score by comparing, which ignores NaN."""
FEWEST_TERMS = 8


def why_not_few(body: Attentions, graph: Graph) -> str | None:
    """The reason why an attention is not computed this way; None where it is."""
    if not isinstance(body, Attention):
        return "gradients"
    if body.kept is not None or body.call.target.startswith("higher_order."):
        return "dropout, or a score of its own"
    queries, (keys, depth) = body.shape[-2], body.reduce_shape
    sizes = (queries, depth, body.shape[-1])
    if not all(size.is_Integer for size in sizes) or not 1 <= int(queries) <= MOST_QUERIES:
        return "not a fixed number of few queries"
    if keys.is_Integer and int(keys) < FEWEST_KEYS:
        return f"{keys} keys: too few"
    if min(int(size) for size in sizes[1:]) < FEWEST_TERMS:
        return f"{depth} terms: too few"
    group = heads_of_a_key(body, graph)
    return f"{group} heads of {queries} queries for each key" if group * queries > MOST_ROWS else None


def why_atens_of_few(body: Attentions, graph: Graph) -> str | None:
    """The reason why the rule prefers ATen's kernel to this computation, where there is one: with AVX-512 it
    takes 0.9 of the time, as products of bfloat16 are the processor's own and threads meet once.
    """
    if not isinstance(body, Attention) or body.dtype is not torch.bfloat16 or body.shape[-2] != 1:
        return None
    masked = body.visible is not None or body.seen is not None
    if masked or heads_of_a_key(body, graph) > 1 or not _is_read(body, graph):
        return None
    return "one query in bfloat16, with keys of its own and no mask"


def _is_read(body: Attention, graph: Graph) -> bool:
    """Whether keys and values are elements of memory, so that ATen needs no copy."""
    key = _code(body, graph, lambda index: body.key((*index[:-2], index[-1]), (ZERO,)))
    value = _code(body, graph, lambda index: body.value((*index[:-2], index[-1], ZERO)))
    return all(isinstance(step, Instruction) and step.op in ("load", "to_dtype") for step in (*key, *value))


def heads_of_a_key(body: Attention, graph: Graph) -> int:
    """The number of consecutive heads that share keys and values, as the indices of keys show it."""
    head = variables("i", len(body.shape))[-3] if len(body.shape) > 2 else None
    if head is None:
        return 1
    code = _code(body, graph, lambda index: body.key((*index[:-2], index[-1]), (ZERO,)))
    found = {
        int(part.args[1])
        for expr in expressions(code)
        for part in expr.atoms(FloorDiv)
        if part.args[0] == head and part.args[1].is_Integer
    }
    heads = body.shape[-3]
    return min((n for n in found if heads.is_Integer and int(heads) % n == 0), default=1)


def _code(body: Attention, graph: Graph, of: Callable[[Index], Value]) -> list[Recordable]:
    """The steps of a function of (*outer, query, key) at ``variables``."""
    index, sizes = variables("i", len(body.shape)), (*body.shape[:-1], body.reduce_shape[0])
    recorder = Recorder(Dtypes(graph.buffers), dict(zip(index, sizes)))
    recorder.run(lambda: of(index))
    return list(recorder.instructions)


Blocks = tuple[Expr, Expr]
"""The first block of keys that is computed, and the number of blocks."""


def as_reductions(
    node: Node,
    graph: Graph,
    counted: dict[Hashable, Blocks],
    from_first: bool = True,
    limited: bool = False,
) -> list[Node]:
    """The nodes that compute an attention of few queries; their buffers go into ``graph``. ``counted``: the
    blocks that earlier attentions have found for their masks. ``from_first``: blocks before the first visible
    key are skipped, which changes the order of sums. ``limited``: memory is planned for all blocks, so that
    none is allocated once their number is known.
    """
    return _Nodes(node, graph, counted, from_first, limited).made


class _Nodes:
    def __init__(
        self,
        node: Node,
        graph: Graph,
        counted: dict[Hashable, Blocks],
        from_first: bool,
        limited: bool,
    ) -> None:
        assert isinstance(node.body, Attention)
        self.node, self.graph, self.body, self.counted = node, graph, node.body, counted
        self.dtype = accumulator(node.body.dtype)
        self.made: list[Node] = []
        self.limited = limited
        self.keys = self.body.reduce_shape[0]
        group = sympy.Integer(heads_of_a_key(self.body, graph))
        *outer, queries, columns = self.body.shape
        heads = outer.pop() if outer else sympy.Integer(1)
        self.group, self.ranked = group, len(self.body.shape) > 2
        self.outer = (*outer, FloorDiv(heads, group))
        self.rows = (group, queries)
        self.first, self.blocks = self._blocks(from_first)
        self._softmax(columns)

    def _add(self, purpose: str, body: Reduction | Pointwise) -> str:
        name = f"{self.node.outputs[0] or self.node.outputs[1]}_{purpose}"
        dtype = body.dtype
        self.graph.buffers[name] = Buffer(name, dtype, body.shape, contiguous_strides(body.shape))
        self._node((name,), body)
        return name

    def _node(self, outputs: tuple[str | None, ...], body: Body) -> None:
        self.made.append(Node(outputs, body, self.node.origin))

    # -- places ---------------------------------------------------------------------------------------------

    def _head(self, index: Index) -> Index:
        """(*outer, head) of (*outer, head of keys, head in the group)."""
        *outer, shared, within = index
        return (*outer, shared * self.group + within) if self.ranked else ()

    def _heads(self, index: Index) -> Index:
        """The reverse."""
        if not self.ranked:
            return (ZERO, ZERO)
        *outer, head = index
        return (*outer, FloorDiv(head, self.group), head % self.group)

    def _inside(self, key: Expr) -> Expr:
        """The position of a key; the last one for places beyond, in the last block."""
        return key if divides(BLOCK, self.keys) else least(key, self.keys - 1)

    def _is_key(self, key: Expr) -> Value | None:
        """Whether there is a key at this place; None: everywhere."""
        if divides(BLOCK, self.keys):
            return None
        return _below(key, self.keys)

    # -- keys that a query sees -----------------------------------------------------------------------------

    def _blocks(self, from_first: bool) -> Blocks:
        """The blocks of keys, from the first to the last key that a query sees."""
        whole, visible = ceiling(self.keys, BLOCK), self.body.visible
        if visible is None or size_hint(self.keys, self.graph.hints) < FEWEST_SKIPPED:
            return ZERO, whole
        index = variables("i", len(self.body.shape))
        code = _code(self.body, self.graph, visible)
        used = symbols_of(code)
        if index[-1] not in used:
            return ZERO, whole
        sizes = (*self.body.shape[:-1], self.keys)
        places = [place for place, symbol in enumerate(index) if symbol in used]

        def block_of(rindex: Index, after: int, otherwise: Expr) -> Value:
            """The block of a key that is visible, ``after`` more; ``otherwise`` for one that is not."""
            at = [ZERO] * len(sizes)
            for place, symbol in zip(places, rindex, strict=True):
                at[place] = symbol
            block = ops.index_expr(FloorDiv(at[-1], BLOCK) + after, torch.int64)
            return ops.where(visible(tuple(at)), block, ops.index_expr(otherwise, torch.int64))

        over = tuple(sizes[place] for place in places)
        form = tuple(code), sizes
        if form in self.counted:
            return self.counted[form]
        end = self._add("end", Reduction("max", (), over, torch.int64, lambda _, r: block_of(r, 1, ZERO)))
        if not from_first:
            self.counted[form] = ZERO, self._read("blocks", lambda _: ops.load(end, ()), whole)
            return self.counted[form]
        begin = self._add(
            "begin", Reduction("min", (), over, torch.int64, lambda _, r: block_of(r, 0, whole))
        )

        def first(_: Index) -> Value:  # where nothing is visible, there is no block
            return ops.minimum(ops.load(begin, ()), ops.load(end, ()))

        count = self._read("blocks", lambda _: ops.sub(ops.load(end, ()), first(())), whole)
        self.counted[form] = self._read("first", first, 0), count
        return self.counted[form]

    def _read(self, purpose: str, value: Callable[[Index], Value], hint: Expr | int) -> Expr:
        """The symbol of a number that is computed, once it is read."""
        name = self._add(purpose, Pointwise((), torch.int64, value))
        symbol, view = loop_var(name), StridedView(name, (), (), ZERO)
        self._node((), Extern("aten._local_scalar_dense.default", (view,), {}, None, symbol))
        self.graph.hints[symbol] = size_hint(sympy.sympify(hint), self.graph.hints)
        if self.limited:
            self.graph.limits[symbol] = ceiling(self.keys, BLOCK)
        return symbol

    def _place(self, block: Expr, key: Expr) -> Expr:
        """The position of a key in a block of those that are computed."""
        return (self.first + block) * BLOCK + key

    # -- the computation ------------------------------------------------------------------------------------

    def _softmax(self, columns: Expr) -> None:
        body, dtype, rows = self.body, self.dtype, (*self.outer, *self.rows)
        size, lowest = sympy.Integer(BLOCK), -math.inf

        def product(index: Index, rindex: Index) -> Value:
            *head, query, block, key = index
            outer = self._head(tuple(head))
            at = self._inside(self._place(block, key))
            return ops.mul(body.query((*outer, query), tuple(rindex)), body.key((*outer, at), tuple(rindex)))

        def score(index: Index) -> Value:
            *head, query, block, key = index
            outer, key = self._head(tuple(head)), self._place(block, key)
            found = body.score((*outer, query, self._inside(key)), ops.load(products, tuple(index)))
            conditions = [self._is_key(key)]
            if body.seen is not None:
                conditions.append(_below(key, body.seen((*outer, query))))
            for condition in conditions:
                if condition is not None:
                    found = ops.where(condition, found, ops.constant(lowest, dtype))
            return found

        def weight(index: Index) -> Value:
            most = ops.load(largest, tuple(index[:-2]))
            blind = ops.eq(most, ops.constant(lowest, dtype))
            base = ops.where(blind, ops.constant(0.0, dtype), most)
            return ops.exp(ops.sub(ops.load(scores, tuple(index)), base))

        def weighted(index: Index, rindex: Index) -> Value:
            *outer, block, within, query, column = index
            (key,) = rindex
            place = self._place(block, key)
            value = body.value((*self._head((*outer, within)), self._inside(place), column))
            is_key = self._is_key(place)
            if is_key is not None:
                value = ops.where(is_key, value, ops.constant(0.0, dtype))
            return ops.mul(ops.load(weights, (*outer, within, query, block, key)), value)

        def of_parts(index: Index, rindex: Index) -> Value:
            *outer, within, query, column = index
            return ops.load(parts, (*outer, *rindex, within, query, column))

        def result(index: Index) -> Value:
            *head, query, column = index
            at = (*self._heads(tuple(head)), query)
            share = ops.truediv(ops.load(found, (*at, column)), self._nonzero(ops.load(total, at)))
            return convert(share, dtype, body.dtype)

        def logarithm(index: Index) -> Value:
            *head, query = index
            at = (*self._heads(tuple(head)), query)
            sums = ops.load(total, at)
            log = ops.add(ops.load(largest, at), ops.log(self._nonzero(sums)))
            none = ops.eq(sums, ops.constant(0.0, dtype))
            return ops.where(none, ops.constant(body.blind, dtype), log)

        every, depth = (*rows, self.blocks, size), (body.reduce_shape[1],)
        terms = (self.blocks, size)
        products = self._add("products", Reduction("sum", every, depth, dtype, product, product=()))
        scores = self._add("scores", Pointwise(every, dtype, score))
        largest = self._add(
            "largest", Reduction("max", rows, terms, dtype, lambda i, r: ops.load(scores, (*i, *r)))
        )
        weights = self._add("weights", Pointwise(every, dtype, weight))
        total = self._add(
            "total", Reduction("sum", rows, terms, dtype, lambda i, r: ops.load(weights, (*i, *r)))
        )
        out, logsumexp = self.node.outputs
        if out is not None:
            shape = (*self.outer, self.blocks, *self.rows, columns)
            parts = self._add("parts", Reduction("sum", shape, (size,), dtype, weighted, product=()))
            found = self._add("found", Reduction("sum", (*rows, columns), (self.blocks,), dtype, of_parts))
            self._node((out,), Pointwise(body.shape, body.dtype, result))
        if logsumexp is not None:
            self._node((logsumexp,), Pointwise(body.shape[:-1], dtype, logarithm))

    def _nonzero(self, total: Value) -> Value:
        """A sum of weights, 1 where no key is visible."""
        one, none = (ops.constant(each, self.dtype) for each in (1.0, 0.0))
        return ops.where(ops.eq(total, none), one, total)


def _below(index: Expr, limit: Expr) -> Any:
    return ops.lt(ops.index_expr(index, torch.int64), ops.index_expr(limit, torch.int64))
