"""Attention for a GPU: a program has some queries, and goes over blocks of keys with an online softmax.

    for some queries on blockIdx.x: for q on threadIdx.y:
        largest = -inf, total = 0, found[c] = 0
        for each block of keys:
            for k on threadIdx.x:  for r on threadIdx.z: sum of query[q, r] * key[k, r]
                                   scores[k] = score of that sum
            new = max(largest, scores);  factor = exp(largest - new)
            for k on threadIdx.x:  scores[k] = exp(scores[k] - new);  total = total * factor + their sum
            for c on threadIdx.x:  for k on threadIdx.z: sum of scores[k] * value[k, c]
                                   found[c] = found[c] * factor + that sum
        out[q, c] = found[c] / total

``scores`` and ``found`` are rows in registers; both sums are products of blocks (Dao et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.ir import Attention, Attentions
from smelt.loops.record import RecordedValue
from smelt.lowering.dims import convert
from smelt.nest.ir import Accumulate, Advance, Alloc, Block, Carry, For, Let, Stmt, Store, Update
from smelt.nest.primitives import fuse
from smelt.nest.primitives.kinds import bind
from smelt.ops import ops
from smelt.schedule.grouping.items import Item, Work
from smelt.schedule.loops import Target
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.tiles import F32, ZERO, TileWriter, ceiling
from smelt.schedule.tilings import SMALLEST, power_of_two
from smelt.symbolic import flatten, least, size_hint

_Body = Callable[[Symbol], Iterable[Stmt]]

QUERIES, KEYS = 32, 32
"""The most queries of a program, and the keys of a block."""
LARGEST = 256
"""The most terms and columns that fit in registers."""


def has_blocks(body: Attentions) -> bool:
    """Whether there is a nest of this kind for an attention."""
    if not isinstance(body, Attention) or body.kept is not None or not body.dtype.is_floating_point:
        return False
    sizes = (body.shape[-1], body.reduce_shape[1])
    return body.dtype.itemsize <= 4 and all(size.is_Integer and 0 < size <= LARGEST for size in sizes)


class BlockAttention:
    """Builds the nest of one attention. ``outputs``: the buffers of its results, None for unused ones."""

    def __init__(self, work: Work, item: Item, outputs: Sequence[str | None], target: Target) -> None:
        assert isinstance(item.body, Attention)
        self.work, self.body = work, item.body
        self.out, self.total = outputs
        self.writer = TileWriter(work, item.node.origin, target.lanes)
        self.keys, self.depth = self.body.reduce_shape
        self.queries, self.columns = self.body.shape[-2:]

    def build(self) -> BuiltKernel:
        """The kernel, arranged."""
        writer, sizes = self.writer, self.body.shape[:-2]
        batch = [writer.variable(size) for size in sizes]
        count = size_hint(self.queries, self.work.graph.hints)
        rows = min(QUERIES, max(SMALLEST, power_of_two(count)))
        tile, query = writer.variable(), writer.variable()
        at = (*batch, query)
        first, beyond = tile * rows, least(self.queries, tile * rows + rows)
        body = Block(tuple(self._row(at, beyond)))
        nest = Block((For(query, first, beyond, body, thread="threadIdx.y"),))
        outer = [*batch, tile]
        for variable, size in reversed(list(zip(outer, (*sizes, ceiling(self.queries, rows)), strict=True))):
            nest = Block((For(variable, ZERO, size, nest),))
        kernel = writer.kernel(nest)
        kernel, grid = fuse(kernel, outer, plain=True) if batch else (kernel, tile)
        kernel = bind(kernel, grid, "blockIdx.x", proved=True)
        return BuiltKernel(kernel, tuple(writer.params), arranged=True)

    def _row(self, at: tuple[Expr, ...], beyond: Expr) -> Iterator[Stmt]:
        """All of one query; ``beyond``: the end of its program's queries."""
        yield Alloc("found", F32, (self.columns,))
        yield Alloc("scores", F32, (sympy.Integer(KEYS),))
        yield from _constants(lowest=-math.inf, none=0.0, one=1.0)
        yield Carry("largest", F32, -math.inf)
        yield Carry("total", F32, 0.0)
        yield self._lanes(self.columns, lambda c: [Store("found", (c,), "none")])
        count = ceiling(self.keys, KEYS)
        if self.body.seen is not None:
            count = least(count, ceiling(self.body.seen((*at[:-1], beyond - 1)), KEYS))
        block = self.writer.variable()
        yield For(block, ZERO, count, Block(tuple(self._keys(at, block))))
        yield from _lets(
            ("e0", "read", ("total", 0)),
            ("e1", "read", ("largest", 0)),
            ("e2", "eq", ("e0", "none")),
            ("e3", "where", ("e2", "one", "e0")),
        )
        yield self._lanes(self.columns, lambda c: self._result(at, c))
        if self.total is not None:
            yield from self._logarithm(at)

    def _keys(self, at: tuple[Expr, ...], block: Symbol) -> Iterator[Stmt]:
        """The share of one block of keys."""
        begin = block * KEYS
        length = least(sympy.Integer(KEYS), self.keys - begin)
        yield self._lanes(length, lambda k: self._score(at, begin + k, k))
        yield Accumulate("top", "max", F32)
        yield self._lanes(length, lambda k: [_read("a0", "scores", k), Update("top", "a0")])
        yield from _lets(
            ("b0", "read", ("largest", 0)),
            ("b1", "read", ("top", 0)),
            ("b2", "maximum", ("b0", "b1")),
            ("b3", "eq", ("b2", "lowest")),
            ("b4", "where", ("b3", "none", "b2")),
            ("b5", "sub", ("b0", "b4")),
            ("b6", "exp", ("b5",)),
        )
        yield Accumulate("part", "sum", F32)
        yield self._lanes(
            length,
            lambda k: [
                _read("c0", "scores", k),
                *_lets(("c1", "sub", ("c0", "b4")), ("c2", "exp", ("c1",))),
                Store("scores", (k,), "c2"),
                Update("part", "c2"),
            ],
        )
        yield from _lets(
            ("d0", "read", ("part", 0)),
            ("d1", "read", ("total", 0)),
            ("d2", "mul", ("d1", "b6")),
            ("d3", "add", ("d2", "d0")),
        )
        yield self._lanes(self.columns, lambda c: self._weighted(at, begin, length, c))
        yield Advance("largest", "b2")
        yield Advance("total", "d3")

    def _score(self, at: tuple[Expr, ...], key: Expr, place: Symbol) -> Iterator[Stmt]:
        body, made = self.body, RecordedValue("p2", F32)
        yield Accumulate("dots", "sum", F32)

        def term(r: Symbol) -> Iterator[Stmt]:
            left, query = self.writer.coded(lambda: body.query(at, (r,)), "q")
            right, other = self.writer.coded(lambda: body.key((*at[:-1], key), (r,)), "k")
            yield from (*left, *right)
            yield from _lets(("p0", "mul", (query, other)))
            yield Update("dots", "p0")

        yield self._lanes(self.depth, term, "threadIdx.z")
        yield from _lets(("p2", "read", ("dots", 0)))

        def score() -> object:
            found = body.score((*at, key), made)
            if body.seen is None:
                return found
            here, end = (ops.index_expr(each, torch.int64) for each in (key, body.seen(at)))
            return ops.where(ops.lt(here, end), found, ops.constant(-math.inf, F32))

        stmts, value = self.writer.coded(score, "s", {"p2": F32})
        yield from stmts
        yield Store("scores", (place,), value)

    def _weighted(self, at: tuple[Expr, ...], begin: Expr, length: Expr, column: Symbol) -> Iterator[Stmt]:
        yield Accumulate("sums", "sum", F32)

        def term(k: Symbol) -> Iterator[Stmt]:
            yield _read("v0", "scores", k)
            stmts, value = self.writer.coded(lambda: self.body.value((*at[:-1], begin + k, column)), "w")
            yield from stmts
            yield from _lets(("v1", "mul", ("v0", value)))
            yield Update("sums", "v1")

        yield self._lanes(length, term, "threadIdx.z")
        yield _read("f0", "found", column)
        yield from _lets(
            ("f1", "mul", ("f0", "b6")), ("f2", "read", ("sums", 0)), ("f3", "add", ("f1", "f2"))
        )
        yield Store("found", (column,), "f3")

    def _result(self, at: tuple[Expr, ...], column: Symbol) -> Iterator[Stmt]:
        if self.out is None:
            return
        yield _read("g0", "found", column)
        yield from _lets(("g1", "truediv", ("g0", "e3")))
        made = RecordedValue("g1", F32)
        stmts, value = self.writer.coded(lambda: convert(made, F32, self.body.dtype), "h", {"g1": F32})
        yield from stmts
        yield self._stored(self.out, (*at, column), value)

    def _logarithm(self, at: tuple[Expr, ...]) -> Iterator[Stmt]:
        assert self.total is not None
        yield from _constants(blind=self.body.blind)
        yield from _lets(
            ("l0", "log", ("e3",)),
            ("l1", "eq", ("e1", "lowest")),
            ("l2", "where", ("l1", "none", "e1")),
            ("l3", "add", ("l2", "l0")),
            ("l4", "where", ("e2", "blind", "l3")),
        )
        yield self._stored(self.total, at, "l4")

    def _stored(self, buffer: str, index: tuple[Expr, ...], value: str) -> Store:
        into = self.writer.param(buffer, written=True)
        return Store(into, (flatten(index, self.work.buffers[buffer].strides),), value)

    def _lanes(self, end: Expr, body: _Body, thread: str = "threadIdx.x") -> For:
        variable = self.writer.variable()
        return For(variable, ZERO, end, Block(tuple(body(variable))), thread=thread)


def _read(name: str, row: str, place: Symbol) -> Let:
    return Let(name, F32, "load", (row, (place,)))


def _lets(*given: tuple[str, str, tuple[object, ...]]) -> Iterator[Let]:
    """Values in float32, comparisons in bool: name, operator, arguments."""
    for name, op, args in given:
        yield Let(name, torch.bool if op in ("eq", "lt") else F32, op, args)


def _constants(**given: float) -> Iterator[Let]:
    for name, value in given.items():
        yield Let(name, F32, "constant", (value,))
