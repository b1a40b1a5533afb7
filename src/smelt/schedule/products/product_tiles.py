"""Tiles of a matrix product: the sums of a few rows and a panel in registers, and their epilogue.

Rows may be several dimensions (a convolution's: batch, height, width), and so may terms. Sizes may be
symbols: the last tile may have fewer rows than the others, which are equal. Dimensions that lhs shares with
the columns (a depthwise convolution's channels) are loaded as vectors, instead of one number for all lanes;
tiles stay inside a line of the image then, where adjacent windows share most loads. If the operands are
swapped, a weight's columns are the rows: it is read in place, and a tile is transposed before the epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.dependencies import variables
from smelt.loops.ir import Contraction
from smelt.nest.ir import Alloc, Axis, Block, For, Let, Stmt, Store
from smelt.records import replace
from smelt.schedule.grouping.items import ZERO, Item, Work
from smelt.schedule.loops import Target
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.elements import chain_of
from smelt.schedule.products.matrix_tiles import HEIGHT, PAIR, tile_stage
from smelt.schedule.products.operands import (
    columns_in_a_row,
    lhs_place,
    memory_order,
    place_before_cast,
    together,
)
from smelt.schedule.products.panels import Panels
from smelt.schedule.products.register_tile import Element
from smelt.schedule.products.split_dimensions import product_of
from smelt.schedule.products.tile_results import Panel, TileResults
from smelt.schedule.products.tiles import Place, ceiling, in_groups, is_short, panel_width
from smelt.symbolic import contiguous_strides, flatten, least, numel, unflatten
from smelt.symbolic.affine import divided, linear, replaced, times, total

ACCUMULATORS, MORE_ACCUMULATORS, MOST_ACCUMULATORS = 12, 16, 24
"""Registers of a tile: with the operands 12 fill 16 registers; with 32 registers (AVX-512) 16, and 24 in
tiles three registers wide if the target starts two multiply-adds in a cycle (`Target.large_tiles`).
"""
WINDOWS, MOST_WINDOWS = 8, 14
"""Registers of a tile if each row has a window of its own: the window elements take registers as well."""
DEEP = 2048
"""Terms from which on a panel does not fit the cache: they are processed in blocks."""
WEIGHT = "weight"
"""The scratch buffer of computed rows of a weight."""
FEWEST_ROWS = 4
MOST_TILE_ROWS = 8
"""Rows of a tile one register wide: the associativity of the cache. Rows at a distance of 4096 bytes, for
example, all map to one set.
"""
MOST_TILES = 64
"""Tiles of rows with one panel up to which the next panel is prefetched; with more it does not pay."""


def tile_rows(rows: int, registers: int, accumulators: int) -> int:
    """Rows of a tile that is ``registers`` wide: as many as fit, or fewer if that leaves fewer unused for
    about so many ``rows``.

    >>> [tile_rows(rows, 2, 12) for rows in (128, 49, 197, 1)]
    [6, 5, 6, 1]
    >>> [tile_rows(rows, 2, 16) for rows in (128, 49, 197)]
    [8, 7, 8]
    >>> tile_rows(1024, 1, 12), tile_rows(3136, 3, 24), tile_rows(1024, 6, 12), tile_rows(1024, 12, 12)
    (8, 8, 2, 1)
    """
    most = accumulators // registers if registers > 1 else min(accumulators, MOST_TILE_ROWS)
    least = max(1, min(FEWEST_ROWS, rows, most))
    return min(range(most, least - 1, -1), key=lambda tile: (-(-rows // tile) * (tile + 1), -tile))


def accumulators_of(target: Target, width: int, shared: bool = False) -> int:
    """Registers of a tile that is ``width`` wide, for its sums; ``shared``: lhs is shared with columns.

    >>> [accumulators_of(Target(64, (), units), 48) for units in (1, 2)]
    [16, 24]
    """
    wide = target.many_registers
    if shared:
        return MOST_WINDOWS if wide else WINDOWS
    if target.large_tiles and width == 3 * target.lanes:
        return MOST_ACCUMULATORS
    return MORE_ACCUMULATORS if wide else ACCUMULATORS


class ProductTiles(TileResults):
    """The statements of a product's kernel for one tile: tile size, operands, epilogue."""

    def __init__(self, work: Work, item: Item, epilogue: BuiltKernel | None, target: Target) -> None:
        body = item.body
        assert isinstance(body, Contraction)
        product = product_of(body, work.graph)
        assert product is not None
        place = (place_before_cast(body.lhs, body, work.graph) if product.pairs else None) or lhs_place(
            body, work.graph
        )
        assert place is not None
        super().__init__(work, item, product, epilogue, target)
        self.panels = body.rhs if isinstance(body.rhs, Panels) else None
        self.batch_sizes = product.extents[:-2]
        self.outer_columns = () if self.panels else product.columns[:-1]
        """Dimensions of columns with panels of their own: panels packed here have contiguous columns."""
        self.outer_column_sizes = product.sizes(self.outer_columns)
        if self.outer_columns:
            self.columns = product.body.shape[product.columns[-1]]
        often = min(self.hint(self.rows), self.hint(product.depth))
        self.width = (
            self.panels.width
            if self.panels
            else panel_width(self.columns, self.lanes, product.shared, target.large_tiles, often=often)
        )
        self.lhs, self.lhs_flat = place
        self.symbols = variables("i", len(body.shape))
        self.term_symbols = variables("r", len(body.reduce_shape))
        row_sizes = [body.shape[d] for d in product.rows]
        row_symbols = [self.symbols[d] for d in product.rows]
        own = [d for d, size in enumerate(row_sizes) if size != 1]
        self.row_runs = [
            [product.rows[d] for d in run] for run in together(self.lhs_flat, row_symbols, row_sizes, own)
        ]
        self.term_runs = self._term_runs()
        self.run_sizes = [numel([body.reduce_shape[d] for d in run]) for run in self.term_runs]
        self.deep = not self.panels and self.hint(product.depth) > DEEP
        """Whether a panel packed here holds a block of terms at a time."""
        *outer, self.line = self._lines()
        """The number of rows in a line: tiles stay inside one."""
        self.lines = numel(outer) if outer else None
        """The number of lines; None: all rows are in one."""
        self.line_number = self.writer.variable(self.lines)
        self.along = self.writer.variable(self.line)
        """A placeholder for a row's position in its line until that is simplified."""
        accumulators = accumulators_of(target, self.width, product.shared)
        self.height = tile_rows(self.hint(self.line), self.width // self.lanes, accumulators)
        self.at_once = self.height
        """Rows that registers sum at once; a transposed tile has as many rows as a vector has lanes."""
        if product.swapped:
            most = accumulators // (self.width // self.lanes)
            self.at_once, self.height = min(self.lanes, 1 << most.bit_length() - 1), self.lanes
        self.is_computed = self.lhs in work.inlined
        """Whether the weight is computed here, where the rows of a tile need it."""
        if product.pairs:
            self.at_once = self.height = HEIGHT
        self.tiles = self.hint(self.rows) // self.height
        """About how many tiles of rows use a panel."""
        self.fetches = not product.shared and 2 <= self.tiles <= MOST_TILES
        """Whether the next panel is prefetched while one is used: a depthwise panel is only a few lines."""
        self.packed_from = self._packed_from() if self.fetches and not self.panels else None

    def _lines(self) -> list[Expr]:
        """Sizes whose product is that of all rows, the last one a line's.

        Lines exist for adjacent windows, which share loads, and for unknown sizes: no row's number has to be
        divided by them then.
        """
        shape, known = self.product.body.shape, self.rows.is_Integer
        if self.deep or (known and not self.product.shared):
            return [self.rows]
        dims = [d for d in self.product.rows if shape[d] != 1]
        touched = [self.source] if self.epilogue is None else self.epilogue.buffers
        if dims and any(self.work.buffers[name].halo for name in touched):
            return [shape[d] for d in dims]
        return [numel([shape[d] for d in run]) for run in self.row_runs] or [self.rows]

    def _term_runs(self) -> list[list[int]]:
        """The terms that are one loop, outermost first; terms whose number depends on phases are alone."""
        sizes = self.product.body.reduce_shape
        order = memory_order(self.lhs_flat, self.term_symbols, sizes)
        assert order is not None
        counted = self.product.counts
        runs = [[term] for term in counted if term not in order]
        for run in together(self.lhs_flat, self.term_symbols, sizes, order):
            cut = any(term in counted for term in run)
            runs += [[term] for term in run] if cut else [run]
        return runs

    # -- the operands ---------------------------------------------------------------------------------------

    def _pack(self, at: Panel, first: Expr, terms: Expr) -> Stmt:
        """``panel[k, c] = B[first + k, width * panel + c]``, terms in the order of lhs's memory."""
        product = self.product
        order = [d for run in self.term_runs for d in run]
        sizes = [product.body.reduce_shape[d] for d in order]

        def element(column: Expr, term: Expr) -> Any:
            where: dict[int, Expr] = dict(
                zip((*product.batch, *self.outer_columns), (*at.batch, *at.outer_columns))
            )
            inner = product.columns[len(self.outer_columns) :]
            where.update(zip(inner, unflatten(column, product.sizes(inner))))
            return product.rhs_at(where, dict(zip(order, unflatten(first + term, sizes))))

        return self.writer.pack_panel(
            lambda term, column: ("panel", (term, column)),
            at.panel,
            at.columns,
            self.width,
            terms,
            element,
        )

    def _tile(self, at: Panel, start: Expr, height: int, first: Expr, at_once: Place | None) -> list[Stmt]:
        """``T[first + r, c] = sum over k of A[start + r, k] panel[k, c]``, all of it in registers, or stored
        ``at_once`` instead of in ``T``.
        """

        if self.product.pairs:
            return [self._matrix_tile(at, start)]

        def left(row: Expr, terms: Sequence[Expr], column: Expr) -> Element:
            return self._left(at, start + row, terms, column)

        def right(terms: Sequence[Expr], column: Expr) -> Element:
            return self._panel_place(at, terms, column)

        def ahead(terms: Sequence[Expr]) -> Element | None:
            term = flatten(terms, contiguous_strides(self.run_sizes))
            if self.product.swapped:
                return self._rows_prefetched(at, start - first, first, term)
            return self._prefetched(at, start / self.height, term) if height == self.height else None

        where = {self.symbols[dim]: place for dim, place in zip(self.product.batch, at.batch)}
        counted = self.product.counts
        terms = [
            replaced(counted[run[0]], where) if run[0] in counted else size
            for run, size in zip(self.term_runs, self.run_sizes)
        ]

        def into(row: Expr, column: Expr) -> Element:
            return at_once(start + row, column) if at_once else ("tile", (first + row, column))

        tile = height, self._summed(at), terms, left, right, into
        if not is_short(numel(self.run_sizes)):
            return self.writer.tile_in_parts(*tile, step=self.width, ahead=ahead)
        return [self.writer.tile(*tile, step=self.width, ahead=ahead, windows=self.product.shared)]

    def _matrix_tile(self, at: Panel, start: Expr) -> Stmt:
        """`_tile` in matrix registers: of the weight in place, or of its computed rows."""
        width, terms = self._summed(at), int(self.product.depth)
        row, column, pair, term = each = [self.writer.variable() for _ in range(4)]
        tile, panel_number = self.writer.variable(), self.writer.variable()
        axes = (
            Axis(tile, ceiling(self.rows, HEIGHT), divided(start, HEIGHT)),
            Axis(panel_number, ceiling(self.columns, self.width), at.panel, label="number"),
        )
        if self.is_computed:
            weight = WEIGHT, row * terms + pair * PAIR + term
        else:
            place = self._lhs_place(at.batch, tile * HEIGHT + row, [pair * PAIR + term], ZERO)
            weight = self.writer.param(self.lhs), place
        assert self.panels is not None
        buffer = self.panels.buffer
        strides = self.work.buffers[buffer].strides
        panel = self.writer.param(buffer), flatten((panel_number, pair, column, term), strides)
        panels = 0 if self.is_computed else min(HEIGHT, self.hint(ceiling(self.columns, self.width)))
        return tile_stage(each, width, terms, weight, panel, "tile", axes, panels)

    def _computed_rows(self, start: Expr) -> list[Stmt]:
        """The rows of the weight that a tile uses, if they are computed."""
        if not (self.product.pairs and self.is_computed):
            return []
        writer, terms = self.writer, self.product.depth
        row, term = writer.variable(sympy.Integer(HEIGHT)), writer.variable(terms)

        def filled(at: Expr) -> tuple[Stmt, ...]:
            index = {self.product.rows[0]: start + row}
            stmts, value = writer.coded(lambda: self.product.lhs_at(index, at, torch.bfloat16), "w")
            return (*stmts, Store(WEIGHT, (row * terms + at,), value))

        loop = in_groups(writer, term, terms, filled)
        size = (sympy.Integer(HEIGHT) * terms,)
        return [Alloc(WEIGHT, torch.bfloat16, size), For(row, ZERO, sympy.Integer(HEIGHT), Block((loop,)))]

    def _left(self, at: Panel, row: Expr, terms: Sequence[Expr], column: Expr) -> Element:
        number, where = self._numbered(row)
        column = total([times(at.panel, sympy.Integer(self.width)), column])
        place = replaced(self._lhs_place(at.batch, number, terms, column), where)
        return self.writer.param(self.lhs), (place,)

    def _lhs_place(self, batch: Sequence[Expr], row: Expr, terms: Sequence[Expr], column: Expr) -> Expr:
        """The flat index of lhs at a row, counted through all row dimensions, and a term of each run; at the
        column, where that is shared.
        """
        body = self.product.body
        where: dict[Symbol, Expr] = dict.fromkeys((*self.symbols, *self.term_symbols), ZERO)
        where.update(zip((self.symbols[d] for d in self.product.batch), batch))
        sizes = [numel([body.shape[d] for d in run]) for run in self.row_runs]
        for run, at in zip(self.row_runs, self._unflattened(row, sizes)):
            where[self.symbols[run[-1]]] = at
        for run, term in zip(self.term_runs, terms):
            where[self.term_symbols[run[-1]]] = term
        if self.product.shared:
            where[self.symbols[self.product.columns[-1]]] = column
        return replaced(self.lhs_flat, where)

    def _panel_place(self, at: Panel, terms: Sequence[Expr], column: Expr) -> Element:
        """The element of a panel at a term of each run, for a load."""
        if self.panels is None:
            return "panel", (flatten(terms, contiguous_strides(self.run_sizes)), column)
        where: list[Expr] = [ZERO] * len(self.term_symbols)
        for run, term in zip(self.term_runs, terms):
            where[run[-1]] = term
        place = self.panels.place(at.batch, at.panel, where, column)
        buffer = self.panels.buffer
        return self.writer.param(buffer), (flatten(place, self.work.buffers[buffer].strides),)

    def _packed_from(self) -> tuple[str, Expr] | None:
        """The offset of the first column to be packed here, if the source of a panel is contiguous."""
        terms = [term for run in self.term_runs for term in run]
        columns = self.product.columns[len(self.outer_columns) :]
        found = columns_in_a_row(self.product, self.work.graph, columns, terms)
        return found if self.lines is None and found and found[0] not in self.work.inlined else None

    def _next_panel(self, at: Panel) -> tuple[str, Expr] | None:
        """The begin of the next panel, or of the source that it will be packed from: short lines of many
        columns, far from each other, which hardware does not prefetch. None: it isn't there, or has another
        layout.
        """
        if at.next is not None:
            there = replace(at, panel=at.next)
            buffer, (place,) = self._panel_place(there, [ZERO] * len(self.run_sizes), ZERO)
            return buffer, place
        if self.packed_from is None:
            return None
        buffer, first = self.packed_from
        dims = zip((*self.product.batch, *self.outer_columns), (*at.batch, *at.outer_columns))
        begin = replaced(first, {self.symbols[dim]: place for dim, place in dims})
        return self.writer.param(buffer), begin + (at.panel + 1) * self.width * self.product.depth

    def _prefetched(self, at: Panel, tile: Expr, term: Expr) -> Element | None:
        """The part of the next panel that is prefetched, so that all of it is in the cache when the last tile
        of this one is done.
        """
        found = self._next_panel(at) if self.fetches else None
        if found is None:
            return None
        buffer, begin = found
        fetching = min(self.tiles, self.width)
        if self.lines is not None:
            tile = self.line_number * ceiling(self.line, self.height) + tile
        if self.deep or not self.rows.is_Integer or fetching < self.tiles:
            tile = least(tile, sympy.Integer(fetching - 1))
        step = -(-self.width // self.tiles)
        return buffer, (begin + (tile * self.product.depth + term) * step,)

    def _rows_prefetched(self, at: Panel, start: Expr, first: Expr, term: Expr) -> Element:
        """The part that is prefetched of the rows after the tile at ``start``, which come from memory while
        the panels, which all rows use, are in the cache.
        """
        parts = -(-self.height // self.at_once)
        step = -(-self.height // (parts * self.hint(ceiling(self.columns, self.width))))
        begin = self._lhs_place(at.batch, start + self.height, [ZERO] * len(self.run_sizes), ZERO)
        done = ((at.panel * parts + first / self.at_once) * self.product.depth + term) * step
        return self.writer.param(self.lhs), (begin + done,)

    # -- the result -----------------------------------------------------------------------------------------

    def _stored_at_once(self, at: Panel) -> Place | None:
        """The destination of a tile's registers, given a row of a line and a column of a panel, if they are
        only stored: no register has unused columns, and columns are contiguous.
        """
        if at.columns != self._summed(at) or self.product.swapped:
            return None
        if self.epilogue is not None and len(chain_of(self.epilogue.kernel)[-1].body.stmts) != 2:
            return None
        row, column = self.writer.variable(self.line), self.writer.variable()
        load, store = self._element(at, row, column, ("tile", (row, column))).stmts
        if not (isinstance(load, Let) and load.args[0] == "tile" and isinstance(store, Store)):
            return None
        if load.op != "load" or store.mode is not None or store.value != load.name:
            return None
        buffer, (place,) = store.buffer, store.index
        (across, rest), (down, others) = linear(place, column), linear(place, row)
        if across != 1 or rest.has(column) or down.has(row, column) or others.has(row):
            return None
        return lambda at_row, at_column: (buffer, (replaced(rest, {row: at_row}) + at_column,))
