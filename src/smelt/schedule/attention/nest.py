"""Attention as a nest: blocks of queries against blocks of keys, with an online softmax.

    parallel for each head, for each block of queries:
        for each block of keys that these see:
            pack the keys in panels, term after term; and the values
            for each few queries (a tile of registers):
                scores = tile(queries, keys);  scaled, masked;  largest so far;  exp;  sum so far;  dropped
                found = found * (what the older ones count now) + tile(scores, values)
        out = found / sum

The softmax over a row is computed block by block (Milakov and Gimelshein 2018; Dao et al. 2022): earlier sums
are multiplied by exp(old largest - new largest). Sizes may be symbols: one nest serves all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from torch.utils._sympy.functions import Max

from smelt.loops.ir import Attention
from smelt.loops.record import RecordedValue
from smelt.nest.ir import Accumulate, Advance, Alloc, Block, Carry, For, Let, LoopKind, Stmt, Store, Update
from smelt.ops import ops
from smelt.records import replace
from smelt.schedule.attention.parts import (
    blocks,
    divides,
    exp_below_one,
    length_of_block,
    score_width,
    tile_rows,
)
from smelt.schedule.grouping.items import Item, Work
from smelt.schedule.loops import Target
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.register_tile import Element
from smelt.schedule.products.tiles import F32, ZERO, Coded, Left, TileWriter, ceiling, clamped, panel_width
from smelt.symbolic import flatten, least

QUERY_TILES = 32
"""Register tiles in a block of queries: the number of uses of packed keys and values."""
KEY_BLOCK = 256
"""Keys in a block: the packed keys and their values stay in the second-level cache."""


class AttentionBuilder:
    """Builds the nest of one attention. ``outputs``: the buffers of its results, None for unused ones."""

    def __init__(self, work: Work, item: Item, outputs: Sequence[str | None], target: Target) -> None:
        assert isinstance(item.body, Attention)
        self.work, self.item, self.body = work, item, item.body
        self.out, self.total = outputs
        self.writer = TileWriter(work, item.node.origin, target.lanes)
        lanes = self.writer.lanes
        self.rows = tile_rows(target.many_registers)
        self.keys, self.depth = self.body.reduce_shape
        self.wide = score_width(self.keys, lanes)
        self.columns = self.body.shape[-1]
        self.across = panel_width(self.columns, lanes)
        self.panels = ceiling(self.columns, self.across)
        self.queries = blocks(self.body.shape[-2], self.rows * QUERY_TILES, self.rows)
        alone = self.keys.is_Integer and int(self.keys) <= KEY_BLOCK + KEY_BLOCK // 2
        self.key_blocks = blocks(self.keys, int(self.keys) if alone else KEY_BLOCK, self.wide)
        self.once = self.key_blocks.count is None
        self.plain = True
        self.skips = False
        self.by_comparing = False
        self.scale: float | None = None
        self.batch: tuple[Expr, ...] = ()
        self.query_block: Expr = ZERO
        self.key_block: Expr = ZERO

    def build(self) -> BuiltKernel:
        sizes = self.body.shape[:-2]
        loops = [self.writer.variable(size) for size in sizes]
        self.batch = tuple(loops)
        self.plain = self._is_plain()
        self.skips = self.body.visible is not None and not self.plain
        self.by_comparing = self._compares()
        self.scale = self._scale()
        if self.queries.count is not None:
            self.query_block = self.writer.variable(self.queries.count)
            loops.append(self.query_block)
            sizes = (*sizes, self.queries.count)
        nest = Block(tuple(self._block()))
        for variable, size in reversed(list(zip(loops, sizes))):
            nest = Block((For(variable, ZERO, size, nest, LoopKind.PARALLEL),))
        return BuiltKernel(self.writer.kernel(nest), tuple(self.writer.params), arranged=True)

    # -- one block of queries -------------------------------------------------------------------------------

    def _block(self) -> Iterator[Stmt]:
        keys, wide = sympy.Integer(self.key_blocks.block), sympy.Integer(self.wide)
        rows, width = sympy.Integer(self.rows), self.panels * self.across
        block = rows if self.once else sympy.Integer(self.queries.block)
        shapes: dict[str, tuple[Expr, ...]] = {
            "keys": (sympy.Integer(self.key_blocks.pieces), self.depth, wide),
            "values": (self.panels, keys, sympy.Integer(self.across)),
            "scores": (rows, keys),
            "found": (block, width),
            "base": (rows,),
            "factor": (rows,),
        }
        if not self.once:
            shapes |= {"largest": (block,), "sums": (block,)}
        elif self._whole_panels():
            del shapes["found"]
        if self.scale is not None:
            shapes["scale"] = (sympy.Integer(1),)
        for name, shape in shapes.items():
            yield Alloc(name, F32, shape)
        yield Let("lowest", F32, "constant", (-math.inf,))
        yield Let("none", F32, "constant", (0.0,))
        yield Let("one", F32, "constant", (1.0,))
        if self.scale is not None:
            yield Let("scaled", F32, "constant", (self.scale,))
            yield Store("scale", (ZERO,), "scaled")
        if self.once:
            yield from self._keys()
            return
        yield self.writer.vector(ZERO, block, lambda row: [Store("largest", (row,), "lowest")])
        yield self.writer.vector(ZERO, block, lambda row: [Store("sums", (row,), "none")])
        yield from self.writer.cleared(lambda row, column: ("found", (row, column)), block, width)
        assert self.key_blocks.count is not None
        ends = self.key_blocks.count
        self.key_block = self.writer.variable()
        if self.body.seen is not None:
            last = least((self.query_block + 1) * self.queries.block, self.queries.size) - 1
            ends = least(ends, ceiling(self.body.seen((*self.batch, last)), self.key_blocks.block))
        yield For(self.key_block, ZERO, ends, Block(tuple(self._keys())))
        yield self.writer.over(self.queries.length(self.query_block), self._last)

    def _whole_panels(self) -> bool:
        return divides(self.across, self.columns)

    def _last(self, row: Expr) -> Iterator[Stmt]:
        """The results of one query: the weighted sum divided by the sum of weights, and the logarithm of that
        sum.
        """
        at = (*self.batch, self.query_block * self.queries.block + row)
        yield Let("l0", F32, "load", ("sums", (row,)))
        yield Let("l1", F32, "load", ("largest", (row,)))
        yield from self._factor("l0")
        yield self._copied(row, at, "l4")
        yield Let("l5", torch.bool, "eq", ("l1", "lowest"))
        yield Let("l6", F32, "where", ("l5", "none", "l1"))
        yield from self._logarithm("l6", at)

    def _factor(self, total: str) -> Iterator[Stmt]:
        """``l3``: the sum, 1 where no key is visible; ``l4``: its reciprocal."""
        yield Let("l2", torch.bool, "eq", (total, "none"))
        yield Let("l3", F32, "where", ("l2", "one", total))
        yield Let("l4", F32, "reciprocal", ("l3",))

    def _logarithm(self, base: str, at: Sequence[Expr]) -> Iterator[Stmt]:
        if self.total is not None:
            into, strides = self.writer.param(self.total, written=True), self.work.buffers[self.total].strides
            yield Let("l7", F32, "log", ("l3",))
            yield Let("l8", F32, "add", (base, "l7"))
            if self.body.blind == 0.0:
                yield Store(into, (flatten(tuple(at), strides),), "l8")
                return
            yield Let("l9", F32, "constant", (self.body.blind,))
            yield Let("l10", F32, "where", ("l2", "l9", "l8"))
            yield Let("l11", F32, "constant", (math.inf,))
            yield Let("l12", torch.bool, "eq", (base, "l11"))
            yield Let("l13", F32, "where", ("l12", base, "l10"))
            yield Store(into, (flatten(tuple(at), strides),), "l13")

    def _copied(self, row: Expr, at: Sequence[Expr], factor: str) -> For:
        """Stores a row of ``found`` in the result, times a factor."""

        def element(column: Expr) -> list[Stmt]:
            found = Let("e0", F32, "load", ("found", (row, column)))
            return [found, Let("e1", F32, "mul", ("e0", factor)), *self._stored((*at, column), "e1")]

        return self.writer.vector(ZERO, self.columns, element)

    def _stored(self, at: Sequence[Expr], value: str) -> list[Stmt]:
        return [] if self.out is None else [Store(*self._result(at), value)]

    def _result(self, at: Sequence[Expr]) -> Element:
        """An element of the result."""
        assert self.out is not None
        into, strides = self.writer.param(self.out, written=True), self.work.buffers[self.out].strides
        return into, (flatten(tuple(at), strides),)

    # -- one block of keys ----------------------------------------------------------------------------------

    def _keys(self) -> Iterator[Stmt]:
        writer, body, batch = self.writer, self.body, self.batch
        begin = self.key_block * self.key_blocks.block
        length = self.key_blocks.length(self.key_block)

        def key(place: Expr, term: Expr) -> Any:
            return body.key((*batch, begin + place), (term,))

        def value(column: Expr, place: Expr) -> Any:
            return body.value((*batch, begin + place, column))

        yield writer.pack("keys", length, self.wide, self.depth, key)
        yield writer.pack("values", self.columns, self.across, length, value)
        if self.skips:
            yield from self._finite(length)
        yield writer.over(
            ceiling(self.queries.length(self.query_block), self.rows),
            lambda number: _Tile(self, number, begin, length).statements(),
        )

    def _finite(self, length: Expr) -> Iterator[Stmt]:
        """``odd``: NaN where a key or value of the block is not finite, else 0."""
        packed = (
            ("keys", ceiling(length, self.wide), self.depth, self.wide),
            ("values", self.panels, length, self.across),
        )
        yield Accumulate("odds", "sum", F32)
        for name, panels, terms, width in packed:
            yield self.writer.over(
                panels,
                lambda panel, name=name, terms=terms, width=width: [  # type: ignore[misc]
                    self.writer.over(
                        terms,
                        lambda term: [
                            self.writer.vector(
                                ZERO,
                                sympy.Integer(width),
                                lambda column: _nonfinite(
                                    Let("h0", F32, "load", (name, (panel, term, column)))
                                ),
                            )
                        ],
                    )
                ],
            )
        yield Let("odd", F32, "read", ("odds", 0))

    def _scoring(self) -> tuple[Symbol, list[Let]]:
        """A key, and the steps from a product to its score."""
        row, key = self.writer.variable(), self.writer.variable()
        made = RecordedValue("made", F32)
        stmts, _ = self.writer.coded(
            lambda: self.body.score((*self.batch, row, key), made), "c", {"made": F32}
        )
        return key, [stmt for stmt in stmts if isinstance(stmt, Let)]

    def _is_plain(self) -> bool:
        """Whether a score depends on the product alone, not on the key's position."""
        key, steps = self._scoring()
        return not any(_depends(step, key) for step in steps)

    def _scale(self) -> float | None:
        """The number that products are scaled by, if that makes their scores."""
        _, steps = self._scoring()
        if [step.op for step in steps] != ["constant", "mul"] or "made" not in steps[1].args:
            return None
        return float(steps[0].args[0])

    def _compares(self) -> bool:
        """Whether ATen finds a row's largest score by comparison: without a mask, with fewer keys than a
        vector has lanes. NaN is never the largest then, and a row of NaN alone counts as a row without
        visible keys.
        """
        masked = any(step.op == "load" for step in self._scoring()[1])
        plain = self.once and self.plain and not masked and self.body.kept is None
        return plain and self.keys.is_Integer and int(self.keys) < self.writer.lanes


class _Tile:
    """A tile of a few queries, ``length`` of them from ``begin`` on, against a block of keys.

    The rows of the last tile beyond the last query repeat it, and store the same values.
    """

    def __init__(self, builder: AttentionBuilder, number: Expr, begin: Expr, length: Expr) -> None:
        self.builder, self.writer, self.body = builder, builder.writer, builder.body
        self.number, self.begin, self.length = number, begin, length
        self.rows = builder.rows
        self.limit = length
        self.direct = builder.once and builder._whole_panels()

    def _query(self, row: Expr) -> Expr:
        queries = self.builder.queries
        return clamped(queries.block * self.builder.query_block + self._place(row), queries.size, self.rows)

    def _place(self, row: Expr) -> Expr:
        """The row of the tile in the block of queries."""
        return self.number * self.rows + row

    def _seen(self, row: Expr) -> Expr:
        """The number of the block's keys that a row sees."""
        if self.body.seen is None:
            return self.limit
        return least(self.limit, Max(ZERO, self.body.seen(self._at(row)) - self.begin))

    @property
    def reach(self) -> Expr:
        """The largest number of the block's keys that any row sees."""
        return self._seen(sympy.Integer(self.rows - 1))

    def _at(self, row: Expr) -> tuple[Expr, ...]:
        return (*self.builder.batch, self._query(row))

    def statements(self) -> Iterator[Stmt]:
        builder, rows = self.builder, sympy.Integer(self.rows)
        if builder.skips:
            yield from self._visible()
        before, queries = self.writer.rows_of(
            "queries", self.rows, builder.depth, lambda row, term: self.body.query(self._at(row), (term,))
        )
        yield from before
        panels = ceiling(self.reach, builder.wide)
        yield self.writer.over(panels, lambda panel: [self._scores(queries, panel)])
        yield self.writer.over(rows, self._largest)
        if not builder.once:
            yield self.writer.vector(ZERO, rows, self._factor)
        yield self.writer.over(rows, self._weights)
        if not self.direct or builder.out is not None:
            yield self.writer.over(builder.panels, lambda panel: [self._found(panel)])
        if builder.once and not builder._whole_panels():
            factor = Let("l4", F32, "load", ("factor", (rows,)))
            yield self.writer.over(
                rows,
                lambda row: [
                    replace(factor, args=("factor", (row,))),
                    builder._copied(row, self._at(row), "l4"),
                ],
            )

    # -- masks -----------------------------------------------------------------------------------------------

    def _visible(self) -> Iterator[Stmt]:
        """Skips the last panels if no row sees any of their keys: scores are -inf there, whatever the
        product.

        This needs finite operands; otherwise no panel is skipped, so that NaN appears where ATen has it.
        """
        writer, wide = self.writer, self.builder.wide
        panels = ceiling(self.reach, wide)

        def operand(row: Expr, term: Expr) -> Iterator[Stmt]:
            stmts, value = writer.coded(lambda: self.body.query(self._at(row), (term,)), "h")
            yield from stmts
            yield from _nonfinite(Let("h_", F32, "mul", (value, "one")), "strange")

        def masked(row: Expr, panel: Expr, column: Expr) -> Iterator[Stmt]:
            index = (*self._at(row), self.begin + panel * wide + column)
            stmts, value = writer.coded(lambda: self._reached(index), "m")
            yield from stmts
            yield Update("most", value)

        def seen(panel: Expr) -> Iterator[Stmt]:
            yield Accumulate("most", "max", F32)
            width = length_of_block(self.length, wide, panel)
            yield writer.over(
                sympy.Integer(self.rows),
                lambda row: [writer.vector(ZERO, width, lambda column: masked(row, panel, column))],
            )
            yield Let("v0", F32, "read", ("most", 0))
            yield Let("v1", torch.bool, "ne", ("v0", "lowest"))
            yield Let("v2", torch.int64, "index_expr", (panel + 1,))
            yield Let("v3", torch.int64, "read", ("last", 0))
            yield Let("v4", torch.int64, "where", ("v1", "v2", "v3"))
            yield Advance("last", "v4")

        yield Accumulate("strange", "sum", F32)
        yield writer.over(
            sympy.Integer(self.rows),
            lambda row: [writer.vector(ZERO, self.builder.depth, lambda term: operand(row, term))],
        )
        yield Carry("last", torch.int64, 0)
        panel = writer.variable()
        yield For(panel, ZERO, panels, Block(tuple(seen(panel))))
        yield Let("w0", F32, "read", ("strange", 0))
        yield Let("w1", F32, "add", ("w0", "odd"))
        yield Let("w2", torch.bool, "eq", ("w1", "none"))
        yield Let("w3", torch.int64, "read", ("last", 0))
        yield Let("w4", torch.int64, "index_expr", (panels,))
        yield Let("w5", torch.int64, "where", ("w2", "w3", "w4"))
        last = writer.variable()
        yield Let("w6", torch.int64, "indirect_index", ("w5", panels + 1, False, False), last)
        self.limit = last * wide if divides(wide, self.length) else least(self.length, last * wide)

    def _reached(self, index: Sequence[Expr]) -> Any:
        """0 where a key is visible, else -inf."""
        assert self.body.visible is not None
        seen, none, lowest = self.body.visible(index), ops.constant(0.0, F32), ops.constant(-math.inf, F32)
        return ops.where(seen, none, lowest)

    # -- scores ---------------------------------------------------------------------------------------------

    def _score(self, row: Expr, key: Expr) -> Coded:
        """The score of the product ``made``."""
        index, made = (*self._at(row), self.begin + key), RecordedValue("made", F32)
        return self.writer.coded(lambda: self.body.score(index, made), "c", {"made": F32})

    def _scores(self, queries: Left, panel: Expr) -> Stmt:
        """``scores = tile(queries, keys)``: the products, scaled."""

        def right(terms: Sequence[Expr], column: Expr) -> Element:
            return "keys", (panel, *terms, column)

        def into(row: Expr, column: Expr) -> Element:
            return "scores", (row, panel * self.builder.wide + column)

        tile = self.rows, self.builder.wide, (self.builder.depth,), queries, right, into
        if self.builder.scale is None:
            return self.writer.tile(*tile)
        return self.writer.tile(*tile, result="scale", factor=lambda _: ("scale", (ZERO,)))

    # -- the softmax ----------------------------------------------------------------------------------------

    def _largest(self, row: Expr) -> Iterator[Stmt]:
        """``base``: a row's largest score, 0 for -inf (except where ATen compares); ``factor``: the earlier
        largest minus ``base``.
        """

        def scored(key: Expr) -> Iterator[Stmt]:
            yield Let("made", F32, "load", ("scores", (row, key)))
            stmts, value = self._score(row, key) if self.builder.scale is None else ([], "made")
            yield from stmts
            if value != "made":
                yield Store("scores", (row, key), value)
            if self.builder.by_comparing:
                yield Let("seen", torch.bool, "gt", (value, "lowest"))
                yield Let("known", F32, "where", ("seen", value, "lowest"))
                value = "known"
            yield Update("top", value)

        yield Accumulate("top", "max", F32)
        yield self.writer.vector(ZERO, self._seen(row), scored)
        yield Let("t0", F32, "read", ("top", 0))
        if not self.builder.once:
            yield Let("t1", F32, "load", ("largest", (self._place(row),)))
            yield Let("t2", F32, "maximum", ("t0", "t1"))
            yield Store("largest", (self._place(row),), "t2")
        if self.builder.by_comparing:
            yield Store("base", (row,), "t0")
            return
        largest = "t0" if self.builder.once else "t2"
        yield Let("t3", torch.bool, "eq", (largest, "lowest"))
        yield Let("t4", F32, "where", ("t3", "none", largest))
        yield Store("base", (row,), "t4")
        if not self.builder.once:
            yield Let("t5", F32, "sub", ("t1", "t4"))
            yield Store("factor", (row,), "t5")

    def _factor(self, row: Expr) -> Iterator[Stmt]:
        """The factor that rescales the earlier sums."""
        stmts, value = self._exp("f0")
        yield Let("f0", F32, "load", ("factor", (row,)))
        yield from stmts
        yield Store("factor", (row,), value)

    def _exp(self, name: str) -> Coded:
        below = RecordedValue(name, F32)
        return self.writer.coded(lambda: exp_below_one(below), "x", {name: F32})

    def _weights(self, row: Expr) -> Iterator[Stmt]:
        """Replaces scores by their weights, and sums these."""
        seen, place = self._seen(row), self._place(row)

        def counted(key: Expr) -> Iterator[Stmt]:
            stmts, value = self._exp("x1")
            yield Let("x0", F32, "load", ("scores", (row, key)))
            yield Let("x1", F32, "sub", ("x0", "t0"))
            yield from stmts
            if self.builder.by_comparing:
                yield Let("x2", F32, "where", ("blind", "none", value))
                value = "x2"
            yield Update("sum", value)
            if self.body.kept is not None:
                stmts, value = self._after_dropout(row, key, value)
                yield from stmts
            yield Store("scores", (row, key), value)

        yield Let("t0", F32, "load", ("base", (row,)))
        if self.builder.by_comparing:
            yield Let("blind", torch.bool, "eq", ("t0", "lowest"))
        yield Accumulate("sum", "sum", F32)
        yield self.writer.vector(ZERO, seen, counted)
        if seen != self.reach:
            yield self.writer.vector(seen, self.reach, lambda key: [Store("scores", (row, key), "none")])
        yield Let("t1", F32, "read", ("sum", 0))
        if self.builder.once:
            yield from self.builder._factor("t1")
            yield Store("factor", (row,), "l4")
            if self.builder.by_comparing:
                yield Let("t5", F32, "where", ("blind", "none", "t0"))
            yield from self.builder._logarithm("t5" if self.builder.by_comparing else "t0", self._at(row))
        else:
            yield Let("t2", F32, "load", ("sums", (place,)))
            yield Let("t3", F32, "load", ("factor", (row,)))
            yield Let("t4", F32, "fma", ("t2", "t3", "t1"))
            yield Store("sums", (place,), "t4")

    def _after_dropout(self, row: Expr, key: Expr, share: str) -> Coded:
        """The weight after dropout."""
        assert self.body.kept is not None
        kept, index = self.body.kept, (*self._at(row), self.begin + key)
        stmts, factor = self.writer.coded(lambda: kept(index), "k")
        return [*stmts, Let("x2", F32, "mul", (share, factor))], "x2"

    # -- weighted sums ---------------------------------------------------------------------------------------

    def _found(self, panel: Expr) -> Stmt:
        """``found = found * factor + tile(scores, values)``; with one block of keys, the result itself."""
        builder, direct = self.builder, self.direct

        def left(row: Expr, terms: Sequence[Expr], column: Expr) -> Element:
            return "scores", (row, *terms)

        def right(terms: Sequence[Expr], column: Expr) -> Element:
            return "values", (panel, *terms, column)

        def into(row: Expr, column: Expr) -> Element:
            across = panel * builder.across + column
            if not direct:
                return "found", (row if builder.once else self._place(row), across)
            return builder._result((*self._at(row), across))

        result = "scale" if direct else "store" if builder.once else "rescale"
        tile = self.rows, builder.across, (self.reach,), left, right, into
        return self.writer.tile(*tile, result=result, factor=lambda row: ("factor", (row,)))


def _nonfinite(value: Let, into: str = "odds") -> list[Stmt]:
    """A value, and its contribution to an accumulator: NaN where it is not finite, else 0."""
    return [value, Let("h9", F32, "mul", (value.name, "none")), Update(into, "h9")]


def _depends(stmt: Let, symbol: Symbol) -> bool:
    """Whether the index of a load or an index expression depends on ``symbol``."""
    exprs = stmt.args[1] if stmt.op == "load" else stmt.args[:1] if stmt.op == "index_expr" else ()
    return any(expr.has(symbol) for expr in exprs)
