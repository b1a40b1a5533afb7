"""The gradients of attention for a GPU, in two kernels: by query, and by key and value.

    for some queries on blockIdx.x: for q on threadIdx.y:
        for each block of keys:
            for k on threadIdx.x:  P = exp(score(sum of query[q, r] * key[k, r]) - logsumexp[q])
                                   dP = sum of upstream[q, c] * value[k, c]
                                   dS[k] = derivative of P * (dP - inner[q])
            for r on threadIdx.x:  by_query[q, r] += sum over k of dS[k] * key[k, r]

The other kernel has keys in place of queries, blocks of queries, and sums ``P[q] * upstream[q, c]`` as well.
Scores are computed again in both, and no matrix of them is ever stored (Dao 2023). Sums over heads that share
keys are part of the loops: no two programs add to one element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Max

from smelt.loops.ir import AttentionGradients
from smelt.loops.record import RecordedValue
from smelt.nest.ir import Block, For, Stmt
from smelt.schedule.attention.lanes import Blocks, constants, length_from, lets, read
from smelt.schedule.grouping.items import Item, Work
from smelt.schedule.loops import Target
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.tiles import F32, ZERO, ceiling
from smelt.symbolic import least, same


class BlockGradients(Blocks):
    """Builds the nest of some of the gradients: by query, or by key and value."""

    def __init__(self, work: Work, item: Item, outputs: Sequence[str | None], target: Target) -> None:
        assert isinstance(item.body, AttentionGradients)
        super().__init__(work, item, outputs, target)
        self.body = item.body

    def build(self) -> BuiltKernel:
        """The kernel, arranged."""
        by_query, by_key, by_value = self.outputs
        shape = self.body.shape[:-2]
        if by_query is not None:
            assert by_key is None and by_value is None
            return self.programs(shape, self.queries, self._of_query)
        return self.programs((*shape[:-1], self.body.heads), self.keys, self._of_key)

    # -- by query -------------------------------------------------------------------------------------------

    def _of_query(self, at: tuple[Expr, ...], first: Expr, beyond: Expr) -> Iterator[Stmt]:
        (by_query, _, _), of = self.outputs, self.of
        assert by_query is not None
        yield from constants(none=0.0)
        yield from self.zeros("by_query", self.depth)
        yield self.weights("dS")
        count = ceiling(self.keys, self.block)
        if of.seen is not None:
            count = least(count, ceiling(of.seen((*at[:-1], beyond - 1)), self.block))
        block = self.writer.variable()
        begin = block * self.block
        length = length_from(begin, self.keys, self.block)
        body = (
            self.lanes(length, lambda k: self._pair(at, begin + k, k)),
            self.weighted(
                *("dS", "by_query", length, self.depth),
                lambda k, r: lambda: of.key((*at[:-1], begin + k), (r,)),
            ),
        )
        yield For(block, ZERO, count, Block(body))
        yield self._result(by_query, "by_query", at, self.depth)

    # -- by key and value -----------------------------------------------------------------------------------

    def _of_key(self, at: tuple[Expr, ...], first: Expr, beyond: Expr) -> Iterator[Stmt]:
        _, by_key, by_value = self.outputs
        *outer, head, key = at
        yield from constants(none=0.0)
        wanted = (("by_key", by_key, self.depth, "dS"), ("by_value", by_value, self.columns, "P"))
        sums = [(row, name, size, weight) for row, name, size, weight in wanted if name is not None]
        for row, _, size, weight in sums:
            yield from self.zeros(row, size)
            yield self.weights(weight)
        if same(self.body.heads, self.body.shape[-3]):
            yield self._queries((*outer, head), key, first)
        else:
            group = FloorDiv(self.body.shape[-3], self.body.heads)
            member = self.writer.variable(group)
            yield For(
                member, ZERO, group, Block((self._queries((*outer, head * group + member), key, first),))
            )
        for row, name, size, _ in sums:
            yield self._result(name, row, at, size)

    def _queries(self, outer: tuple[Expr, ...], key: Expr, first: Expr) -> For:
        """All blocks of queries of a head that see a key; ``first``: the first key of the program."""
        _, by_key, by_value = self.outputs
        of, block, begin = self.of, self.writer.variable(), ZERO
        if of.seen is not None:  # query q sees q + ahead keys
            ahead = sympy.expand(of.seen((*outer, ZERO)))
            begin = FloorDiv(Max(ZERO, first + 1 - ahead), sympy.Integer(self.block))
        start = block * self.block
        length = length_from(start, self.queries, self.block)
        body: list[Stmt] = [self.lanes(length, lambda q: self._pair((*outer, start + q), key, q))]
        if by_value is not None:
            body.append(
                self.weighted(
                    *("P", "by_value", length, self.columns),
                    lambda q, c: lambda: self.body.upstream((*outer, start + q, c)),
                )
            )
        if by_key is not None:
            body.append(
                self.weighted(
                    *("dS", "by_key", length, self.depth),
                    lambda q, r: lambda: of.query((*outer, start + q), (r,)),
                )
            )
        return For(block, begin, ceiling(self.queries, self.block), Block(tuple(body)))

    # -- a query and a key ----------------------------------------------------------------------------------

    def _pair(self, at: tuple[Expr, ...], key: Expr, place: Symbol) -> Iterator[Stmt]:
        """``P[place]`` and ``dS[place]``, those that are wanted."""
        (by_query, by_key, by_value), of, body = self.outputs, self.of, self.body
        yield from self.product(
            *("dots", self.depth),
            lambda r: lambda: of.query(at, (r,)),
            lambda r: lambda: of.key((*at[:-1], key), (r,)),
        )
        stmts, score = self.score(at, key, "dots_")
        before, logsumexp = self.writer.coded(lambda: body.logsumexp(at), "l")
        yield from (*stmts, *before)
        yield from lets(("p0", "sub", (score, logsumexp)), ("p1", "exp", ("p0",)))
        if by_value is not None:
            yield from self.rounded("P", place, "p1")
        if by_query is None and by_key is None:
            return
        yield from self.product(
            *("dP", self.columns),
            lambda c: lambda: body.upstream((*at, c)),
            lambda c: lambda: of.value((*at[:-1], key, c)),
        )
        stmts, inner = self.writer.coded(lambda: body.inner(at), "n")
        yield from stmts
        yield from lets(("d0", "sub", ("dP_", inner)), ("d1", "mul", ("p1", "d0")))
        product, above = RecordedValue("dots_", F32), RecordedValue("d1", F32)
        stmts, ds = self.writer.coded(
            lambda: body.derivative((*at, key), product, above), "g", {"dots_": F32, "d1": F32}
        )
        yield from stmts
        yield from self.rounded("dS", place, ds)

    def _result(self, buffer: str, row: str, at: tuple[Expr, ...], size: Expr) -> For:
        def element(c: Symbol) -> Iterator[Stmt]:
            yield read("g0", row, c)
            yield from self.converted(buffer, (*at, c), "g0")

        return self.lanes(size, element)
