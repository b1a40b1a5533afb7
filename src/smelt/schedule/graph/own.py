"""Attentions without a nest as products around a softmax: where there is no ATen to compute them.

    scores[i, q, k] = score(sum over r of query[i, q, r] * key[i, k, r])
    weights[i, q, k] = exp(scores[i, q, k] - max over k of scores[i, q, k])
    out[i, q, c] = sum over k of weights[i, q, k] * value[i, k, c] / sum over k of weights[i, q, k]

Nests read each score once and keep none (`smelt.schedule.attention.nest`); here they are stored. The products
get kernels like all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr

from smelt.loops.ir import (
    Attention,
    AttentionGradients,
    Attentions,
    Body,
    Buffer,
    Contraction,
    Graph,
    Index,
    Node,
    Pointwise,
    Reduction,
    Value,
    accumulator,
)
from smelt.lowering.dims import convert
from smelt.ops import ops
from smelt.records import replace
from smelt.schedule.attention.few_queries import why_not_few
from smelt.schedule.attention.kernels import why_no_nest
from smelt.symbolic import contiguous_strides, same


def with_products(graph: Graph) -> Graph:
    """The graph, in which attentions without a nest are products around a softmax."""
    made = replace(graph, buffers=dict(graph.buffers), nodes=[])
    for node in graph.nodes:
        body = node.body
        if (
            not isinstance(body, Attentions)
            or why_not_few(body, graph) is None
            or not why_no_nest(body, graph)
        ):
            made.nodes.append(node)
        elif isinstance(body, Attention):
            _Forward(node, body, made).add()
        else:
            _Gradients(node, body, made).add()
    return made


class _Nodes:
    """The nodes that replace an attention; they go into ``graph``."""

    def __init__(self, node: Node, attention: Attention, graph: Graph) -> None:
        self.node, self.attention, self.graph = node, attention, graph
        self.within = accumulator(attention.dtype)
        self.rows = attention.shape[:-1]
        self.keys, self.depth = attention.reduce_shape
        self.every = (*self.rows, self.keys)

    def _new(self, purpose: str, body: Pointwise | Reduction | Contraction) -> str:
        name = f"{next(filter(None, self.node.outputs))}_{purpose}"
        self.graph.buffers[name] = Buffer(name, body.dtype, body.shape, contiguous_strides(body.shape))
        self._give(name, body)
        return name

    def _give(self, name: str, body: Body) -> None:
        self.graph.nodes.append(Node((name,), body, self.node.origin))

    def _product(
        self,
        shape: Sequence[Expr],
        terms: Sequence[Expr],
        lhs: Callable[[Index, Index], Value],
        rhs: Callable[[Index, Index], Value],
        dtype: torch.dtype | None = None,
    ) -> Contraction:
        call = self.attention.call
        return Contraction(tuple(shape), tuple(terms), dtype or self.within, lhs, rhs, None, call)

    def _number(self, value: float) -> Any:
        return ops.constant(value, self.within)

    def _products(self) -> str:
        """The products of queries and keys."""
        body = self.attention
        of_queries = self._product(
            self.every,
            (self.depth,),
            lambda i, r: body.query(tuple(i[:-1]), tuple(r)),
            lambda i, r: body.key((*i[:-2], i[-1]), tuple(r)),
        )
        return self._new("products", of_queries)

    def _scores(self, products: str) -> str:
        """The scores; -inf where a query does not see a key."""
        body = self.attention

        def score(index: Index) -> Value:
            found = body.score(tuple(index), ops.load(products, tuple(index)))
            if body.seen is None:
                return found
            key, end = (ops.index_expr(at, torch.int64) for at in (index[-1], body.seen(tuple(index[:-1]))))
            return ops.where(ops.lt(key, end), found, self._number(-math.inf))

        return self._new("scores", Pointwise(self.every, self.within, score))

    def _kept(self, index: Index, value: Value) -> Value:
        """A probability after dropout."""
        kept = self.attention.kept
        return value if kept is None else ops.mul(value, kept(tuple(index)))


class _Forward(_Nodes):
    """The result of an attention, and the logarithm of its sums."""

    def add(self) -> None:
        body, within, rows, terms = self.attention, self.within, self.rows, (self.keys,)
        scores = self._scores(self._products())
        largest = self._new(
            "largest", Reduction("max", rows, terms, within, lambda i, r: ops.load(scores, (*i, *r)))
        )

        def weight(index: Index) -> Value:
            most, none = ops.load(largest, tuple(index[:-1])), self._number(-math.inf)
            base = ops.where(ops.eq(most, none), self._number(0.0), most)
            return ops.exp(ops.sub(ops.load(scores, tuple(index)), base))

        weights = self._new("weights", Pointwise(self.every, within, weight))
        total = self._new(
            "total", Reduction("sum", rows, terms, within, lambda i, r: ops.load(weights, (*i, *r)))
        )

        def nonzero(index: Index) -> Value:
            found = ops.load(total, tuple(index))
            return ops.where(ops.eq(found, self._number(0.0)), self._number(1.0), found)

        out, logsumexp = self.node.outputs[:2]
        if out is not None:
            kept = weights
            if body.kept is not None:
                dropped = Pointwise(self.every, within, lambda i: self._kept(i, ops.load(weights, tuple(i))))
                kept = self._new("kept", dropped)
            found = self._new(
                "found",
                self._product(
                    body.shape,
                    terms,
                    lambda i, r: ops.load(kept, (*i[:-1], *r)),
                    lambda i, r: body.value((*i[:-2], *r, i[-1])),
                ),
            )

            def result(index: Index) -> Value:
                share = ops.truediv(ops.load(found, tuple(index)), nonzero(index[:-1]))
                return convert(share, within, body.dtype)

            self._give(out, Pointwise(body.shape, body.dtype, result))
        if logsumexp is not None:

            def logarithm(index: Index) -> Value:
                log = ops.add(ops.load(largest, tuple(index)), ops.log(nonzero(index)))
                none = ops.eq(ops.load(total, tuple(index)), self._number(0.0))
                return ops.where(none, self._number(body.blind), log)

            self._give(logsumexp, Pointwise(rows, within, logarithm))


class _Gradients(_Nodes):
    """The gradients of an attention (`AttentionGradients`)."""

    def __init__(self, node: Node, body: AttentionGradients, graph: Graph) -> None:
        super().__init__(node, body.attention, graph)
        self.body = body
        *outer, queries = self.rows
        self.group = outer[-1] / body.heads if not same(outer[-1], body.heads) else None
        self.terms = (queries,) if self.group is None else (self.group, queries)

    def add(self) -> None:
        body, attention, within = self.body, self.attention, self.within
        products = self._products()
        scores = self._scores(products)

        def probability(index: Index) -> Value:
            score, none = ops.load(scores, tuple(index)), self._number(-math.inf)
            found = ops.exp(ops.sub(score, body.logsumexp(tuple(index[:-1]))))
            return ops.where(ops.eq(score, none), self._number(0.0), found)

        chances = self._new("chances", Pointwise(self.every, within, probability))
        by_query, by_key, by_value = self.node.outputs[:3]
        if by_query is not None or by_key is not None:
            above = self._product(
                self.every,
                (attention.shape[-1],),
                lambda i, r: body.upstream((*i[:-1], *r)),
                lambda i, r: attention.value((*i[:-2], i[-1], *r)),
            )
            of_chances = self._new("of_chances", above)

            def by_score(index: Index) -> Value:
                index = tuple(index)
                upstream = self._kept(index, ops.load(of_chances, index))
                found = ops.mul(ops.load(chances, index), ops.sub(upstream, body.inner(index[:-1])))
                return body.derivative(index, ops.load(products, index), found)

            of_scores = self._new("of_scores", Pointwise(self.every, within, by_score))
            if by_query is not None:
                shape = (*self.rows, self.depth)
                gradient = self._product(
                    shape,
                    (self.keys,),
                    lambda i, r: ops.load(of_scores, (*i[:-1], *r)),
                    lambda i, r: attention.key((*i[:-2], *r), (i[-1],)),
                    attention.dtype,
                )
                self._give(by_query, gradient)
            if by_key is not None:
                self._by_keys(
                    by_key, of_scores, self.depth, lambda row, column: attention.query(row, (column,))
                )
        if by_value is not None:
            kept = chances
            if attention.kept is not None:
                dropped = Pointwise(self.every, within, lambda i: self._kept(i, ops.load(chances, tuple(i))))
                kept = self._new("kept", dropped)
            columns = attention.shape[-1]
            self._by_keys(by_value, kept, columns, lambda row, column: body.upstream((*row, column)))

    def _by_keys(self, name: str, of: str, columns: Expr, other: Callable[[Index, Expr], Value]) -> None:
        """The sum over queries, and over the heads that share a key, of ``of`` times ``other``."""
        shape = (*self.rows[:-2], self.body.heads, self.keys, columns)

        def row(index: Index, rindex: Index) -> tuple[Expr, ...]:
            *outer, head, _, _ = index
            if self.group is None:
                return (*outer, head, *rindex)
            within, query = rindex
            return (*outer, head * self.group + within, query)

        gradient = self._product(
            shape,
            self.terms,
            lambda i, r: ops.load(of, (*row(i, r), i[-2])),
            lambda i, r: other(row(i, r), i[-1]),
            self.attention.dtype,
        )
        self._give(name, gradient)
