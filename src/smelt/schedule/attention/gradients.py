"""The nest of attention gradients: the probabilities are recomputed block by block from the saved logarithms.

    parallel for each head of keys:
        for each block of keys:
            pack the keys in panels (along each key for scores, along the block for by_query), the values
            by_key = by_value = 0
            for each head of queries that has these keys, each block of queries that see them:
                pack the queries, and the gradient by the result
                for each few queries (a tile of registers):
                    P = exp(score(tile(queries, keys)) - logsumexp);  P_kept = P * kept
                    dS = derivative of (P_kept * tile(upstream, values) - P * inner)
                    by_query = by_query + tile(dS, keys)
                for each few keys:
                    by_key = by_key + tile(dS, queries);  by_value = by_value + tile(P_kept, upstream)

With few heads there are two consecutive nests: the gradients by key and value, also parallel over blocks of
keys, and the gradient by query, parallel over blocks of queries. Both compute P (Dao et al. 2022, Dao 2023).
Sizes may be symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import sympy
from sympy import Expr
from torch.utils._sympy.functions import FloorDiv, Max

from smelt.loops.ir import AttentionGradients
from smelt.loops.record import RecordedValue
from smelt.nest.ir import Alloc, Block, For, Let, LoopKind, Stmt, Store
from smelt.records import dataclass
from smelt.schedule.attention.parts import blocks, divides, exp_below_one, score_width, tile_rows
from smelt.schedule.grouping.items import Item, Work
from smelt.schedule.loops import Target
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.register_tile import Element
from smelt.schedule.products.tiles import F32, ZERO, TileWriter, ceiling, clamped, panel_width
from smelt.symbolic import flatten, least, numel, same, size_hint
from smelt.symbolic.affine import expand

QUERY_TILES = 16
"""Register tiles in a block of queries."""
KEY_BLOCK = 256
"""Keys in a block: the packed operands and sums of a pair of blocks stay in the second-level cache."""
ENOUGH_HEADS = 2
"""With fewer heads of keys there are two nests, which do more work but have more parallel iterations."""


class GradientsBuilder:
    """Builds the nest of one `AttentionGradients`. ``outputs``: the buffers of the gradients by query, key
    and value, None for unused ones.
    """

    def __init__(self, work: Work, item: Item, outputs: Sequence[str | None], target: Target) -> None:
        assert isinstance(item.body, AttentionGradients)
        self.work, self.item, self.body = work, item, item.body
        self.outputs = tuple(outputs)
        self.writer = TileWriter(work, item.node.origin, target.lanes)
        lanes = self.writer.lanes
        self.rows = tile_rows(target.many_registers)
        self.columns = self.body.shape[-1]
        self.keys, self.depth = self.body.reduce_shape
        self.wide = score_width(self.keys, lanes)
        self.across, self.deep = panel_width(self.columns, lanes), panel_width(self.depth, lanes)
        self.queries = blocks(self.body.shape[-2], self.rows * QUERY_TILES, self.rows)
        self.key_blocks = blocks(self.keys, KEY_BLOCK, self.wide)
        whole = same(self.body.heads, self.body.shape[-3])
        self.group: Expr = sympy.Integer(1) if whole else FloorDiv(self.body.shape[-3], self.body.heads)

    def build(self) -> BuiltKernel:
        by_query, by_key, by_value = self.outputs
        shared = (*self.body.shape[:-3], self.body.heads)
        together = size_hint(numel(shared), self.work.graph.hints) >= ENOUGH_HEADS
        if by_query is None or (by_key is None and by_value is None) or together:
            sweeps = [_Sweep(self, by_query, by_key, by_value)]
        else:
            sweeps = [_Sweep(self, None, by_key, by_value), _Sweep(self, by_query, None, None)]
        nests = tuple(sweep.nest(together) for sweep in sweeps)
        return BuiltKernel(self.writer.kernel(Block(nests)), tuple(self.writer.params), arranged=True)

    def ahead(self) -> Expr | None:
        """The number of keys that a query sees, minus the query's position; None if it sees all."""
        seen = self.body.attention.seen
        if seen is None:
            return None
        query = self.writer.variable()
        ahead = expand(seen((*(ZERO for _ in self.body.shape[:-2]), query)) - query)
        assert not ahead.has(query)
        return ahead


class _Sweep:
    """A sweep over all pairs of a query and a key for some of the gradients; None for gradients of the other
    sweep.
    """

    def __init__(
        self, builder: GradientsBuilder, by_query: str | None, by_key: str | None, by_value: str | None
    ) -> None:
        self.builder, self.writer, self.body = builder, builder.writer, builder.body
        self.by_query, self.by_key, self.by_value = by_query, by_key, by_value
        self.of_keys = by_key is not None or by_value is not None
        self.rows, self.wide = builder.rows, builder.wide
        self.queries, self.key_blocks = builder.queries, builder.key_blocks
        self.ahead = builder.ahead()
        self.once = builder.key_blocks.count is None
        self.outer: tuple[Expr, ...] = ()
        self.shared: Expr = ZERO
        self.head: Expr = ZERO
        self.query_block: Expr = ZERO
        self.key_block: Expr = ZERO

    # -- the loops ------------------------------------------------------------------------------------------

    def nest(self, together: bool) -> Stmt:
        """The nest of the sweep; ``together``: each iteration of the parallel loops has all keys of a
        head.
        """
        writer, builder = self.writer, self.builder
        sizes = [*self.body.shape[:-3], self.body.heads if self.of_keys else self.body.shape[-3]]
        loops = [writer.variable(size) for size in sizes]
        self.outer, self.shared = tuple(loops[:-1]), loops[-1]
        self.head = self.shared * builder.group if self.of_keys else self.shared
        if self.of_keys and not together and self.key_blocks.count is not None:
            self.key_block = writer.variable(self.key_blocks.count)
            loops.append(self.key_block)
            sizes.append(self.key_blocks.count)
            body: Iterable[Stmt] = self._keys()
        elif self.of_keys:
            body = self._each_key_block(self.key_blocks.count)
        else:
            body = self._one_query_block(loops, sizes)
        stmts = [*self._scratch(), *body]
        nest = Block(tuple(stmts))
        for variable, size in reversed(list(zip(loops, sizes))):
            nest = Block((For(variable, ZERO, size, nest, LoopKind.PARALLEL),))
        (loop,) = nest.stmts
        return loop

    def _scratch(self) -> Iterator[Stmt]:
        builder = self.builder
        rows, wide, lanes = (sympy.Integer(each) for each in (self.rows, self.wide, self.writer.lanes))
        keys, queries = sympy.Integer(self.key_blocks.block), sympy.Integer(self.queries.block)
        pieces = sympy.Integer(self.key_blocks.pieces)
        of_columns = ceiling(builder.columns, builder.across), sympy.Integer(builder.across)
        of_depth = ceiling(builder.depth, builder.deep), sympy.Integer(builder.deep)
        pairs = (queries if self.of_keys else rows, keys + wide + lanes)  # rows begin in different sets
        shapes: dict[str, tuple[Expr, ...]] = {"keys": (pieces, builder.depth, wide), "P": pairs}
        if self.counted != "P":
            shapes |= {self.counted: pairs}
        if self.has_ds:
            shapes |= {"values": (pieces, builder.columns, wide), "dS": pairs}
        if self.by_query is not None:
            shapes |= {
                "transposed": (of_depth[0], keys, of_depth[1]),
                "found": (rows, of_depth[0] * of_depth[1]),
            }
        if self.by_key is not None:
            shapes |= {"asked": (of_depth[0], queries, of_depth[1])}
            shapes |= {"by_key": (keys + rows, of_depth[0] * of_depth[1])}
        if self.by_value is not None:
            shapes |= {"came": (of_columns[0], queries, of_columns[1])}
            shapes |= {"by_value": (keys + rows, of_columns[0] * of_columns[1])}
        for name, shape in shapes.items():
            yield Alloc(name, F32, shape)
        yield Let("none", F32, "constant", (0.0,))

    @property
    def has_ds(self) -> bool:
        """Whether the gradients of the scores are needed."""
        return self.by_query is not None or self.by_key is not None

    @property
    def counted(self) -> str:
        """The buffer of the probabilities after dropout."""
        return "P" if self.body.attention.kept is None else "P_kept"

    def _each_key_block(self, count: Expr | None) -> Iterator[Stmt]:
        """A serial loop over blocks of keys; the gradient by query starts from 0."""
        if count is None:
            yield from self._keys()
            return
        if self.by_query is not None:
            size = self.queries.size
            yield from self._each_member(lambda: [self.writer.over(size, lambda row: [self._zeroed(row)])])
        self.key_block = self.writer.variable()
        yield For(self.key_block, ZERO, count, Block(tuple(self._keys())))

    def _each_member(self, body: Callable[[], Iterable[Stmt]]) -> Iterator[Stmt]:
        """A loop over the heads of queries that share the keys."""
        first, group = self.head, self.builder.group
        if group == 1:
            yield from body()
            return
        member = self.writer.variable(group)
        self.head = first + member
        yield For(member, ZERO, group, Block(tuple(body())))
        self.head = first

    def _one_query_block(self, loops: list[Any], sizes: list[Expr]) -> list[Stmt]:
        """The gradient by the queries of one block, over all keys; the block number is one more parallel
        loop.
        """
        writer, ends = self.writer, self.key_blocks.count
        if self.queries.count is not None:
            self.query_block = writer.variable(self.queries.count)
            loops.append(self.query_block)
            sizes.append(self.queries.count)
        if ends is None:
            return [*self._pack_keys(), *self._pair()]
        begin, length = self.query_block * self.queries.block, self.queries.length(self.query_block)
        nothing = writer.over(length, lambda row: [self._zeroed(begin + row)])
        if self.ahead is not None:
            ends = least(ends, ceiling(begin + length - 1 + self.ahead, self.key_blocks.block))
        self.key_block = writer.variable()
        return [nothing, For(self.key_block, ZERO, ends, Block((*self._pack_keys(), *self._pair())))]

    def _zeroed(self, query: Expr) -> Stmt:
        at = (*self.outer, self.head, query)
        return self.writer.vector(
            ZERO, self.builder.depth, lambda term: [self._store(self.by_query, (*at, term), "none")]
        )

    # -- one block of keys ----------------------------------------------------------------------------------

    @property
    def begin(self) -> Expr:
        """The first key of the block."""
        return self.key_block * self.key_blocks.block

    @property
    def length(self) -> Expr:
        """The number of keys of the block."""
        return self.key_blocks.length(self.key_block)

    def _keys(self) -> Iterator[Stmt]:
        """The gradients by one block of keys and their values, and the block's contribution to the gradient
        by query.
        """
        yield from self._pack_keys()
        sums = (
            ("by_key", self.by_key, self.builder.depth),
            ("by_value", self.by_value, self.builder.columns),
        )
        wanted = [(local, name, size) for local, name, size in sums if name is not None]
        for local, _, size in wanted:
            yield from self._cleared(local, size)
        yield from self._each_member(self._each_query_block)
        for local, name, size in wanted:
            yield self.writer.over(self.length, partial(self._stored_sum, local, name, size))

    def _each_query_block(self) -> Iterable[Stmt]:
        count = self.queries.count
        if count is None:
            return self._pair()
        begin = ZERO
        if self.ahead is not None:
            begin = FloorDiv(self._first(ZERO), sympy.Integer(self.queries.block))
        self.query_block = self.writer.variable()
        return [For(self.query_block, begin, count, Block(tuple(self._pair())))]

    def _first(self, key: Expr) -> Expr:
        """The first query that sees a key of the block."""
        assert self.ahead is not None
        return Max(ZERO, self.begin + key + 1 - self.ahead)

    def _cleared(self, local: str, size: Expr) -> list[Stmt]:
        width = panel_width(size, self.writer.lanes)
        across = ceiling(size, width) * width
        rows = ceiling(self.length, self.rows) * self.rows
        return self.writer.cleared(lambda row, column: (local, (row, column)), rows, across)

    def _stored_sum(self, local: str, name: str, size: Expr, key: Expr) -> list[Stmt]:
        """Stores the sum of a key in the gradient."""
        at = (*self.outer, self.shared, self.begin + key)

        def element(place: Expr) -> list[Stmt]:
            return [Let("e", F32, "load", (local, (key, place))), self._store(name, (*at, place), "e")]

        return [self.writer.vector(ZERO, size, element)]

    def _pack_keys(self) -> Iterator[Stmt]:
        writer, builder, of = self.writer, self.builder, self.body.attention
        at = (*self.outer, self.head)

        def key(place: Expr, term: Expr) -> Any:
            return of.key((*at, self.begin + place), (term,))

        yield writer.pack("keys", self.length, self.wide, builder.depth, key)
        if self.has_ds:
            yield writer.pack(
                *("values", self.length, self.wide, builder.columns),
                lambda place, column: of.value((*at, self.begin + place, column)),
            )
        if self.by_query is not None:
            yield writer.pack(
                *("transposed", builder.depth, builder.deep, self.length),
                lambda term, place: key(place, term),
            )

    # -- a block of queries with a block of keys ------------------------------------------------------------

    def at(self, place: Expr) -> tuple[Expr, ...]:
        """The index of a query by its place in the block; places beyond the last query repeat it."""
        row = clamped(self.queries.block * self.query_block + place, self.queries.size, self.rows)
        return (*self.outer, self.head, row)

    def _pair(self) -> Iterator[Stmt]:
        writer, builder = self.writer, self.builder
        length = self.queries.length(self.query_block)
        if self.by_key is not None:
            yield writer.pack(
                *("asked", builder.depth, builder.deep, length),
                lambda term, place: self.body.attention.query(self.at(place), (term,)),
            )
        if self.by_value is not None:
            yield writer.pack(
                *("came", builder.columns, builder.across, length),
                lambda column, place: self.body.upstream((*self.at(place), column)),
            )
        tiles = ceiling(length, self.rows)
        yield writer.over(tiles, lambda number: _QueryTile(self, number).statements())
        if self.of_keys:
            yield writer.over(ceiling(self.length, self.rows), lambda number: self._of_keys(number, length))

    def _of_keys(self, number: Expr, length: Expr) -> Iterator[Stmt]:
        """``by_value += tile(P_kept, upstream)`` and ``by_key += tile(dS, query)`` for a few keys."""
        begin: Expr = ZERO
        if self.ahead is not None:
            before = self.query_block * self.queries.block
            begin = least(length, Max(ZERO, self._first(number * self.rows) - before))
        builder = self.builder
        kinds = (
            ("by_value", self.by_value, self.counted, "came", builder.columns, builder.across),
            ("by_key", self.by_key, "dS", "asked", builder.depth, builder.deep),
        )
        for into, wanted, factor, packed, size, width in kinds:
            if wanted is not None:
                tile = _KeyTile(self, number * self.rows, begin, into, factor, packed, width)
                yield self.writer.over(ceiling(size, width), partial(tile.statements, length - begin))

    def _store(self, name: str | None, at: Sequence[Expr], value: str) -> Store:
        assert name is not None
        into, strides = self.writer.param(name, written=True), self.builder.work.buffers[name].strides
        return Store(into, (flatten(tuple(at), strides),), value)


@dataclass(slots=True)
class _KeyTile:
    """A tile of a few keys, from place ``key`` in the block on, with all queries from place ``begin`` on."""

    sweep: _Sweep
    key: Expr
    begin: Expr
    into: str
    factor: str
    packed: str
    width: int

    def statements(self, queries: Expr, panel: Expr) -> list[Stmt]:
        """``into[key, column] += sum over queries of factor[query, key] * packed[query, column]``."""

        def left(row: Expr, terms: Sequence[Expr], column: Expr) -> Element:
            return self.factor, (self.begin + terms[0], self.key + row)

        def right(terms: Sequence[Expr], column: Expr) -> Element:
            return self.packed, (panel, self.begin + terms[0], column)

        def into(row: Expr, column: Expr) -> Element:
            return self.into, (self.key + row, panel * self.width + column)

        sweep = self.sweep
        return [sweep.writer.tile(sweep.rows, self.width, (queries,), left, right, into, result="add")]


class _QueryTile:
    """A tile of a few queries with a block of keys.

    The rows of the last tile beyond the last query repeat it.
    """

    def __init__(self, sweep: _Sweep, number: Expr) -> None:
        self.sweep, self.writer, self.body, self.number = sweep, sweep.writer, sweep.body, number
        self.rows = sweep.rows
        self.reach = self._seen(sympy.Integer(self.rows - 1))
        last = self.reach
        if sweep.ahead is not None and sweep.of_keys:  # a tile of keys begins where its first one is seen
            last = least(sweep.length, last + self.rows - 1)
        self.panels = ceiling(last, sweep.wide)

    def _place(self, row: Expr) -> Expr:
        return self.number * self.rows + row

    def _local(self, row: Expr) -> Expr:
        """The row of the tile in ``P``, ``P_kept`` and ``dS``."""
        return self._place(row) if self.sweep.of_keys else row

    def _seen(self, row: Expr) -> Expr:
        """The number of the block's keys that a row sees."""
        sweep = self.sweep
        if sweep.ahead is None:
            return sweep.length
        query = sweep.at(self._place(row))[-1]
        return least(sweep.length, Max(ZERO, query + sweep.ahead - sweep.begin))

    def statements(self) -> Iterator[Stmt]:
        sweep, over = self.sweep, self.writer.over
        rows = sympy.Integer(self.rows)
        depth, columns, of = sweep.builder.depth, sweep.builder.columns, self.body
        yield from self._products(
            *("P", "queries", depth, "keys"), lambda row, term: of.attention.query(self._at(row), (term,))
        )
        yield over(rows, self._probabilities)
        if sweep.has_ds:
            yield from self._products(
                *("dS", "upstream", columns, "values"),
                lambda row, column: of.upstream((*self._at(row), column)),
            )
            yield over(rows, self._ds)
        if sweep.by_query is not None:
            yield over(
                ceiling(sweep.builder.depth, sweep.builder.deep), lambda panel: [self._by_query(panel)]
            )
            if not self._direct:
                left = sweep.queries.length(sweep.query_block) - self.number * self.rows
                even = divides(self.rows, sweep.queries.size)
                yield over(rows if even else least(rows, left), self._added)

    def _at(self, row: Expr) -> tuple[Expr, ...]:
        return self.sweep.at(self._place(row))

    def _products(
        self, name: str, rows: str, terms: Expr, packed: str, at: Callable[[Expr, Expr], Any]
    ) -> Iterator[Stmt]:
        """``P = tile(queries, keys)``, or ``dS = tile(upstream, values)``, panel by panel."""
        writer, wide = self.writer, self.sweep.wide
        before, left = writer.rows_of(rows, self.rows, terms, at)
        yield from before

        def one(panel: Expr) -> list[Stmt]:
            def right(terms: Sequence[Expr], column: Expr) -> Element:
                return packed, (panel, *terms, column)

            def into(row: Expr, column: Expr) -> Element:
                return name, (self._local(row), panel * wide + column)

            return [writer.tile(self.rows, wide, (terms,), left, right, into)]

        yield writer.over(self.panels, one)

    def _probabilities(self, row: Expr) -> Iterator[Stmt]:
        """``P = exp(score - logsumexp)``, ``P_kept = P * kept``, 0 for masked keys."""
        sweep, writer, kept = self.sweep, self.writer, self.body.attention.kept
        at = self._at(row)
        before, logsumexp = writer.coded(lambda: self.body.logsumexp(at), "l")
        yield from before
        seen, local = self._seen(row), self._local(row)

        def probability(key: Expr) -> Iterator[Stmt]:
            made, below = RecordedValue("made", F32), RecordedValue("below", F32)
            yield Let("made", F32, "load", ("P", (local, key)))
            index = (*at, sweep.begin + key)
            stmts, value = writer.coded(lambda: self.body.attention.score(index, made), "c", {"made": F32})
            yield from stmts
            yield Let("below", F32, "sub", (value, logsumexp))
            stmts, value = writer.coded(lambda: exp_below_one(below), "x", {"below": F32})
            yield from stmts
            yield Store("P", (local, key), value)
            if kept is not None:
                stmts, factor = writer.coded(lambda: kept(index), "k")
                yield from (*stmts, Let("left", F32, "mul", (value, factor)))
                yield Store(sweep.counted, (local, key), "left")

        yield writer.vector(ZERO, seen, probability)
        if sweep.ahead is not None:
            end, cleared = self.panels * sweep.wide, dict.fromkeys(("P", sweep.counted))
            yield writer.vector(
                seen, end, lambda key: [Store(name, (local, key), "none") for name in cleared]
            )

    def _ds(self, row: Expr) -> Iterator[Stmt]:
        """``dS``: the derivative of ``P_kept * dS - P * inner``, with the products in ``dS``."""
        sweep, writer, body = self.sweep, self.writer, self.body
        at, local = self._at(row), self._local(row)
        before, inner = writer.coded(lambda: body.inner(at), "n")
        yield from before

        def one(key: Expr) -> Iterator[Stmt]:
            product, net = RecordedValue("product", F32), RecordedValue("net", F32)
            after, ds = writer.coded(
                lambda: body.derivative((*at, sweep.begin + key), product, net),
                "g",
                {"product": F32, "net": F32},
            )
            yield Let("made", F32, "load", ("dS", (local, key)))
            yield Let("p", F32, "load", ("P", (local, key)))
            if sweep.counted == "P":
                yield Let("dp", F32, "sub", ("made", inner))
                yield Let("net", F32, "mul", ("p", "dp"))
            else:
                yield Let("count", F32, "load", (sweep.counted, (local, key)))
                yield Let("dp", F32, "mul", ("count", "made"))
                yield Let("loss", F32, "mul", ("p", inner))
                yield Let("net", F32, "sub", ("dp", "loss"))
            yield from after
            yield Store("dS", (local, key), ds)

        yield writer.vector(ZERO, self.panels * sweep.wide, one)

    # -- the gradient by query ------------------------------------------------------------------------------

    @property
    def _direct(self) -> bool:
        """Whether a tile is the whole gradient and is stored directly."""
        depth = self.sweep.builder.depth
        return self.sweep.once and divides(self.sweep.builder.deep, depth)

    def _by_query(self, panel: Expr) -> Stmt:
        """``tile(dS, keys)``."""
        deep, sweep = self.sweep.builder.deep, self.sweep

        def left(row: Expr, terms: Sequence[Expr], column: Expr) -> Element:
            return "dS", (self._local(row), *terms)

        def right(terms: Sequence[Expr], column: Expr) -> Element:
            return "transposed", (panel, *terms, column)

        def into(row: Expr, column: Expr) -> Element:
            term = panel * deep + column
            if self._direct:
                store = sweep._store(sweep.by_query, (*self._at(row), term), "g")
                return store.buffer, store.index
            return "found", (row, term)

        return self.writer.tile(self.rows, deep, (self.reach,), left, right, into)

    def _added(self, row: Expr) -> Iterator[Stmt]:
        """Adds a row of the tile to the sum so far."""
        sweep = self.sweep
        at = self._at(row)

        def element(term: Expr) -> Iterator[Stmt]:
            store = sweep._store(sweep.by_query, (*at, term), "e0")
            yield Let("e0", F32, "load", ("found", (row, term)))
            if sweep.once:
                yield store
                return
            yield Let("e1", F32, "load", (store.buffer, store.index))
            yield Let("e2", F32, "add", ("e0", "e1"))
            yield Store(store.buffer, store.index, "e2")

        yield self.writer.vector(ZERO, sweep.builder.depth, element)
