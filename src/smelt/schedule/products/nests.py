"""Matrix products as nests: panels packed for the cache, register tiles, epilogues on the tile.

    C = A B:  parallel for each panel of columns:
                  pack the panel of B, where that has not been done before
                  for each few rows:  T[rows, panel] = A[rows, :] panel;  the epilogue on T stores C

The nest consists of `smelt.nest` statements and is transformed by primitives. This module has the order of
the tiles; `smelt.schedule.products.product_tiles` has the statements of one tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy
import torch
from sympy import Expr, Symbol

from smelt.nest.ir import Alloc, Block, For, LoopKind, Stmt
from smelt.nest.tree import substitute
from smelt.records import replace
from smelt.schedule.grouping.items import ZERO
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.product_tiles import ProductTiles
from smelt.schedule.products.register_tile import Element
from smelt.schedule.products.tile_results import Panel
from smelt.schedule.products.tiles import ceiling, clamped
from smelt.symbolic import least, numel, unflatten
from smelt.symbolic.affine import divided

BLOCK = 512
"""Terms of a block, where a panel with all terms does not fit the cache."""
CACHED_BYTES = 1 << 17
"""Bytes of panels that are used together: they stay in the cache while rows change."""
SWAPPED_BYTES = 1 << 20
"""The same limit if the rows are a weight's, which come from memory once then: part of the second-level
cache.
"""
ROWS_BYTES = 1 << 18
"""Bytes of rows that are used together: they stay in the second-level cache while panels change."""
FIRST_BYTES, MOST_TOGETHER = 5 << 13, 8
"""Bytes of a panel and the rows that use it while it is in the first-level cache; most tiles of such rows."""
LONG_BYTES, PART_TERMS, PART_TILES = 1 << 18, 512, 32
"""Bytes from which on a panel is used in parts; most terms of a part, and most tiles of rows that use it."""


def last_rows(expected: int, height: int) -> list[int]:
    """The numbers of rows that are processed at once for the rest of a last tile of unknown size:
    ``expected`` rows, half a tile if that is 0 or 1, then smaller numbers.

    >>> [last_rows(expected, 6) for expected in range(6)]
    [[3, 1], [3, 1], [2, 1], [3, 1], [4, 2, 1], [5, 2, 1]]
    """
    most = expected if expected > 1 else -(-height // 2)
    return sorted({most, 2, 1} if most > 3 else {most, 1}, reverse=True)


Some = Callable[[Expr, int, Expr], list[Stmt]]
"""(start, rows, first) → statements that sum so many rows of a line, from ``start`` on: a tile's from row
``first``.
"""


class ProductBuilder(ProductTiles):
    """Builds the kernel of one product with its epilogue; its base has the statements of one tile."""

    def build(self) -> BuiltKernel:
        """The kernel, arranged; its parameters are the operands' buffers, then the epilogue's."""
        writer = self.writer
        batch = [writer.variable() for _ in self.batch_sizes]
        outer_columns = [writer.variable() for _ in self.outer_columns]
        panel = writer.variable()
        at = Panel(batch, outer_columns, panel, sympy.Integer(self.width))
        nest = self._shared(at) if self.panels else self._packed_by_thread(at)
        sizes = (*self.batch_sizes, *self.outer_column_sizes)
        dims = (*self.product.batch, *self.outer_columns)
        for dim, variable, size in reversed(list(zip(dims, (*batch, *outer_columns), sizes))):
            if dim not in self.product.phases:
                nest = For(variable, ZERO, size, Block((nest,)), LoopKind.PARALLEL)
        return BuiltKernel(writer.kernel(Block((nest,))), tuple(writer.params), arranged=True)

    def _shared(self, at: Panel) -> For:
        """A loop over panels that are packed already. A few rows use all panels that fit the cache before the
        next rows come, so that the result is written along its memory. Blocks of rows are the outermost loop.
        """
        chunk, tile = self.writer.variable(), self.writer.variable()
        panels = ceiling(self.columns, self.width)
        if self._is_long():
            block = self.writer.variable()

            def parts(here: Panel) -> list[Stmt]:
                return self._by_parts(here, block)

            each = Block(tuple(self._over_panels(at, chunk, chunk + 1, parts)))
            blocks = ceiling(ceiling(self.line, self.height), self._part_tiles())
            down = For(block, ZERO, blocks, each, LoopKind.PARALLEL)
            return For(chunk, ZERO, panels, Block((down,)), LoopKind.PARALLEL)
        bytes_each = (2 if self.product.pairs else 4) * self.width * self.hint(self.product.depth)
        count = self.hint(panels)
        near = SWAPPED_BYTES if self.product.swapped else CACHED_BYTES
        wanted = -(-count // max(1, near // max(1, bytes_each)))
        side = -(-count // max(1, wanted))  # as equal as can be: threads share chunks
        first, chunks = chunk * side, ceiling(panels, side)
        stop = least(panels, first + side)
        tiles = ceiling(self.line, self.height)
        group = 1 if self.product.pairs else self._tiles_together(bytes_each)
        rows, groups = (tile, tiles) if group == 1 else (self.writer.variable(), ceiling(tiles, group))
        block = self._rows_together(chunks, groups)

        def across(stmts: Callable[[Panel], Sequence[Stmt]]) -> list[Stmt]:
            def one(here: Panel) -> Sequence[Stmt]:
                return stmts(replace(here, next=None if block else here.panel + side))

            return self._over_panels(at, first, stop, one)

        if group == 1:
            inside = Block((*self._computed_rows(tile * self.height), *self._all_terms(across, tile)))
        else:
            begin, end = rows * group, least(tiles, rows * group + group)

            def together(here: Panel) -> list[Stmt]:
                each = Block(tuple(self._all_terms(lambda stmts: stmts(here), tile)))
                return [For(tile, begin, end, each)]

            inside = Block(tuple(across(together)))
        over = [(chunk, chunks), (rows, groups)]
        if self.lines is not None:
            over.insert(1, (self.line_number, self.lines))
        if block is not None:
            number, within = self.writer.variable(), self.writer.variable()
            variable, size = over[1]
            over[1:2] = [(within, sympy.Integer(block))]
            over.insert(0, (number, ceiling(size, block)))
            row = number * block + within
            if size.is_Integer and int(size) % block == 0:
                inside = substitute(inside, {variable: row})
            else:  # the last block may have fewer
                inside = Block((For(variable, row, least(size, row + 1), inside),))
        for variable, size in reversed(over):
            inside = Block((For(variable, ZERO, size, inside, LoopKind.PARALLEL),))
        (nest,) = inside.stmts
        assert isinstance(nest, For)
        return nest

    def _over_panels(
        self, at: Panel, first: Expr, stop: Expr, one: Callable[[Panel], Sequence[Stmt]]
    ) -> list[Stmt]:
        """``one(panel)`` for the panels from ``first`` up to ``stop``."""
        return self._pieces(
            self.columns,
            self.width,
            first,
            stop,
            lambda panel, columns: one(replace(at, panel=panel, columns=columns)),
        )

    def _is_long(self) -> bool:
        """Whether a panel, the prefetched next one, and rows exceed the second-level cache."""
        product = self.product
        special = product.shared or product.swapped or product.counts or product.phases
        plain = self.lines is None and not special
        held = 4 * self.width * self.hint(product.depth)
        if not plain or held < LONG_BYTES or not all(size.is_Integer for size in self.run_sizes):
            return False
        return int(self.run_sizes[-1]) >= PART_TERMS

    def _part_tiles(self) -> int:
        """The number of tiles of rows that use a part of a panel, one after another, in blocks of nearly
        equal size.
        """
        tiles = self.hint(ceiling(self.line, self.height))
        return -(-tiles // -(-tiles // PART_TILES))

    def _by_parts(self, at: Panel, block: Symbol) -> list[Stmt]:
        """The products of a panel with a block of tiles: a part of it and of the rows is in the cache at a
        time, and the next part is prefetched.
        """
        writer, height, most = self.writer, self.height, self._part_tiles()
        number = writer.variable()
        *outer, innermost = self.run_sizes
        over = [writer.variable() for _ in outer]
        begin, base = number * PART_TERMS, block * (most * height)
        step = -(-self.width // most)

        def some(start: Expr, rows: int, _: Expr) -> list[Stmt]:
            def left(row: Expr, term: Sequence[Expr], column: Expr) -> Element:
                return self._left(at, start + row, [*over, *term], column)

            def right(term: Sequence[Expr], column: Expr) -> Element:
                return self._panel_place(at, [*over, *term], column)

            def into(row: Expr, column: Expr) -> Element:
                return "tile", (start - base + row, column)

            def ahead(term: Sequence[Expr]) -> Element:
                buffer, (place,) = right([begin + PART_TERMS], ZERO)
                return buffer, (place + ((start - base) / height * PART_TERMS + term[0] - begin) * step,)

            terms = [(begin, least(innermost, begin + PART_TERMS))]
            part = rows, self._summed(at), terms, left, right, into
            return [writer.tile(*part, step=self.width, ahead=ahead, result="add")]

        tiles, tile = ceiling(self.line, height), writer.variable()
        stop = least(tiles, block * most + most)
        each = Block(tuple(self._of_tile(tile, lambda start, count, stmts: stmts(some))))
        down = For(tile, block * most, stop, each)
        sums: Stmt = For(number, ZERO, ceiling(innermost, PART_TERMS), Block((down,)))
        for variable, size in reversed(list(zip(over, outer))):
            sums = For(variable, ZERO, size, Block((sums,)))
        rows = sympy.Integer(most * height)
        return [
            Alloc("tile", torch.float32, (rows, sympy.Integer(self.width))),
            *writer.cleared(lambda row, column: ("tile", (row, column)), rows, sympy.Integer(self.width)),
            sums,
            *self._finish(at, base, least(rows, self.line - base)),
        ]

    def _tiles_together(self, panel_bytes: int) -> int:
        """The number of tiles of rows that use a panel one after another, while it and they are in the
        first-level cache.
        """
        if self.product.shared:
            return 1  # a depthwise panel is a few lines
        tile_bytes = 4 * self.height * self.hint(self.product.depth)
        return max(1, min((FIRST_BYTES - panel_bytes) // tile_bytes, MOST_TOGETHER))

    def _rows_together(self, chunks: Expr, groups: Expr) -> int | None:
        """The number of groups of tiles, or lines, of rows that use all chunks of panels while they stay in
        the second-level cache; None if panels are larger than rows. Threads divide these blocks: each reads
        few rows then, mostly those that it has written, and all panels; otherwise all rows, and few panels.
        """
        count = self.hint(groups if self.lines is None else self.lines)
        depth, buffer = self.hint(self.product.depth), self.work.buffers[self.lhs]
        held = 4 * min(self.hint(self.rows) * depth, self.hint(numel(buffer.shape)))
        if chunks == 1 or held <= 4 * self.hint(self.columns) * depth:
            return None
        wanted = max(2, -(-held // ROWS_BYTES))
        return next((count // n for n in range(wanted, 4 * wanted) if count % n == 0), None)

    def _packed_by_thread(self, at: Panel) -> For:
        """A loop over panels, each packed by the one thread that uses it."""
        depth, tile = self.product.depth, self.writer.variable()

        def one(here: Panel) -> list[Stmt]:
            if self.deep:
                return self._in_blocks(here)
            inside = Block(tuple(self._all_terms(lambda stmts: stmts(here), tile)))
            tiles = For(tile, ZERO, ceiling(self.line, self.height), inside)
            return [self._pack(here, ZERO, depth), self._over_lines(tiles)]

        terms = sympy.Integer(BLOCK) if self.deep else depth
        body = [
            Alloc("panel", torch.float32, (terms, sympy.Integer(self.width))),
            *self._over_panels(at, at.panel, at.panel + 1, one),
        ]
        panels = ceiling(self.columns, self.width)
        return For(at.panel, ZERO, panels, Block(tuple(body)), LoopKind.PARALLEL)

    def _over_lines(self, line: For) -> For:
        """A loop over all lines."""
        if self.lines is None:
            return line
        return For(self.line_number, ZERO, self.lines, Block((line,)))

    def _of_tile(
        self, tile: Symbol, rows: Callable[[Expr, Expr, Callable[[Some], list[Stmt]]], Sequence[Stmt]]
    ) -> list[Stmt]:
        """The statements for the rows of one tile of those that cover a line: ``rows(start, count, sums)``,
        where ``sums(some)`` are the statements that sum them.

        Only the last tile may have fewer rows than the others. If their number is unknown, they are processed
        by `last_rows`.
        """

        def one(number: Expr, count: Expr) -> Sequence[Stmt]:
            start = number * self.height
            if count.is_Integer:
                firsts = range(0, int(count), self.at_once)
                parts = [(sympy.Integer(first), min(self.at_once, int(count) - first)) for first in firsts]
                return rows(
                    start,
                    count,
                    lambda some: [s for first, many in parts for s in some(start + first, many, first)],
                )
            return rows(start, count, lambda some: self._by_fewer(start, count, some))

        return self._pieces(self.line, self.height, tile, tile + 1, one)

    def _by_fewer(self, start: Expr, rest: Expr, some: Some) -> list[Stmt]:
        """``some`` for the last ``rest`` rows, fewer than a tile's, from ``start`` on: by `last_rows`."""
        stmts: list[Stmt] = []
        first: Expr = ZERO
        for rows in last_rows(self.hint(rest), self.height):
            each, count = self.writer.variable(), divided(rest, sympy.Integer(rows))
            here = first + each * rows
            body = Block(tuple(some(start + here, rows, here)))
            stmts.append(For(each, ZERO, count, body))
            first, rest = first + count * rows, rest - count * rows
        return stmts

    def _all_terms(
        self,
        across: Callable[[Callable[[Panel], Sequence[Stmt]]], Sequence[Stmt]],
        tile: Symbol,
    ) -> list[Stmt]:
        """The rows of a tile, in every phase, with panels ``across`` that hold all terms."""

        def rows(start: Expr, count: Expr, some: Callable[[Some], Sequence[Stmt]]) -> Sequence[Stmt]:
            def one(at: Panel) -> Sequence[Stmt]:
                at_once = self._stored_at_once(at)
                stmts = some(lambda start, rows, first: self._tile(at, start, rows, first, at_once))
                if at_once is None:
                    size = (sympy.Integer(self.height), sympy.Integer(self.width))
                    room = Alloc("tile", torch.float32, size)
                    stmts = [room, *stmts, *self._finish(at, start, count)]
                batch = list(zip(self.product.batch, at.batch, self.batch_sizes))
                for dim, variable, extent in reversed(batch):
                    if dim in self.product.phases:
                        stmts = [For(variable, ZERO, extent, Block(tuple(stmts)))]
                return stmts

            return across(one)

        return self._of_tile(tile, rows)

    def _in_blocks(self, at: Panel) -> list[Stmt]:
        """The statements for a panel that holds one block of terms at a time: the sums of all rows are kept
        in ``tile`` between blocks.
        """
        writer = self.writer
        block, tile = writer.variable(), writer.variable()
        rows, width = ceiling(self.rows, self.height), sympy.Integer(self.width)
        first = block * BLOCK
        terms = least(sympy.Integer(BLOCK), self.product.depth - first)

        def left(row: Expr, over: Sequence[Expr], column: Expr) -> Element:
            each = unflatten(first + over[0], self.run_sizes)
            return self._left(at, clamped(tile * self.height + row, self.rows, self.height), each, column)

        def into(row: Expr, column: Expr) -> Element:
            return "tile", (tile * self.height + row, column)

        def right(over: Sequence[Expr], column: Expr) -> Element:
            return "panel", (over[0], column)

        def ahead(over: Sequence[Expr]) -> Element | None:
            return self._prefetched(at, tile, first + over[0])

        part = self.height, self._summed(at), [terms], left, right, into
        sums = writer.tile(*part, step=self.width, ahead=ahead, result="add")
        down = For(tile, ZERO, rows, Block((sums,)))
        return [
            Alloc("tile", torch.float32, (rows * self.height, width)),
            *writer.cleared(lambda row, column: ("tile", (row, column)), rows * self.height, width),
            For(block, ZERO, ceiling(self.product.depth, BLOCK), Block((self._pack(at, first, terms), down))),
            *self._finish(at, ZERO, self.rows),
        ]
