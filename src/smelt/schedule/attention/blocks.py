"""Attention for a GPU: a program has some queries, and goes over blocks of keys with an online softmax.

    for some queries on blockIdx.x: for q on threadIdx.y:
        largest = -inf, total = 0, found[c] = 0
        for each block of keys:
            for k on threadIdx.x:  for r on threadIdx.z: sum of query[q, r] * key[k, r]
                                   scores[k] = score of that sum
            new = max(largest, scores);  factor = exp(largest - new)
            for k on threadIdx.x:  weights[k] = exp(scores[k] - new);  total = total * factor + their sum
            for c on threadIdx.x:  for k on threadIdx.z: sum of weights[k] * value[k, c]
                                   found[c] = found[c] * factor + that sum
        out[q, c] = found[c] / total

``scores``, ``weights`` and ``found`` are rows in registers; both sums are products of blocks (Dao et al.
2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import sympy
from sympy import Expr, Symbol

from smelt.nest.ir import Accumulate, Advance, Alloc, Block, Carry, For, Stmt, Store, Update
from smelt.schedule.attention.lanes import Blocks, constants, length_from, lets, read
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.tiles import F32, ZERO, ceiling
from smelt.symbolic import least


class BlockAttention(Blocks):
    """Builds the nest of one attention."""

    def build(self) -> BuiltKernel:
        """The kernel, arranged."""
        return self.programs(self.of.shape[:-2], self.queries, self._row)

    def _row(self, at: tuple[Expr, ...], first: Expr, beyond: Expr) -> Iterator[Stmt]:
        """All of one query; ``beyond``: the end of its program's queries."""
        out, total = self.outputs
        yield from constants(lowest=-math.inf, none=0.0, one=1.0)
        yield from self.zeros("found", self.columns)
        yield Alloc("scores", F32, (sympy.Integer(self.block),))
        yield self.weights("weights")
        yield Carry("largest", F32, -math.inf)
        yield Carry("total", F32, 0.0)
        count = ceiling(self.keys, self.block)
        if self.of.seen is not None:
            count = least(count, ceiling(self.of.seen((*at[:-1], beyond - 1)), self.block))
        block = self.writer.variable()
        yield For(block, ZERO, count, Block(tuple(self._keys(at, block))))
        yield from lets(
            ("e0", "read", ("total", 0)),
            ("e1", "read", ("largest", 0)),
            ("e2", "eq", ("e0", "none")),
            ("e3", "where", ("e2", "one", "e0")),
        )
        if out is not None:
            yield self.lanes(self.columns, lambda c: self._result(out, (*at, c), c))
        if total is not None:
            yield from self._logarithm(total, at)

    def _keys(self, at: tuple[Expr, ...], block: Symbol) -> Iterator[Stmt]:
        """The share of one block of keys."""
        begin, of = block * self.block, self.of
        length = length_from(begin, self.keys, self.block)
        yield self.lanes(length, lambda k: self._score(at, begin + k, k))
        yield Accumulate("top", "max", F32)
        yield self.lanes(length, lambda k: [read("a0", "scores", k), Update("top", "a0")])
        yield from lets(
            ("b0", "read", ("largest", 0)),
            ("b1", "read", ("top", 0)),
            ("b2", "maximum", ("b0", "b1")),
            ("b3", "eq", ("b2", "lowest")),
            ("b4", "where", ("b3", "none", "b2")),
            ("b5", "sub", ("b0", "b4")),
            ("b6", "exp", ("b5",)),
        )
        yield Accumulate("part", "sum", F32)
        yield self.lanes(
            length,
            lambda k: [
                read("c0", "scores", k),
                *lets(("c1", "sub", ("c0", "b4")), ("c2", "exp", ("c1",))),
                Update("part", "c2"),
                *self.rounded("weights", k, "c2"),
            ],
        )
        yield from lets(
            ("d0", "read", ("part", 0)),
            ("d1", "read", ("total", 0)),
            ("d2", "mul", ("d1", "b6")),
            ("d3", "add", ("d2", "d0")),
        )
        yield self.weighted(
            *("weights", "found", length, self.columns),
            lambda k, c: lambda: of.value((*at[:-1], begin + k, c)),
            "b6",
        )
        yield Advance("largest", "b2")
        yield Advance("total", "d3")

    def _score(self, at: tuple[Expr, ...], key: Expr, place: Symbol) -> Iterator[Stmt]:
        of = self.of
        yield from self.product(
            *("dots", self.depth),
            lambda r: lambda: of.query(at, (r,)),
            lambda r: lambda: of.key((*at[:-1], key), (r,)),
        )
        stmts, value = self.score(at, key, "dots_")
        yield from stmts
        yield Store("scores", (place,), value)

    def _result(self, out: str, index: tuple[Expr, ...], column: Symbol) -> Iterator[Stmt]:
        yield read("g0", "found", column)
        yield from lets(("g1", "truediv", ("g0", "e3")))
        yield from self.converted(out, index, "g1")

    def _logarithm(self, total: str, at: tuple[Expr, ...]) -> Iterator[Stmt]:
        yield from constants(blind=self.of.blind)
        yield from lets(
            ("l0", "log", ("e3",)),
            ("l1", "eq", ("e1", "lowest")),
            ("l2", "where", ("l1", "none", "e1")),
            ("l3", "add", ("l2", "l0")),
            ("l4", "where", ("e2", "blind", "l3")),
        )
        yield self.stored(total, at, "l4")
