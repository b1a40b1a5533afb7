"""The results of a product's tiles: the epilogue, or the plain store, on sums in the buffer ``tile``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy
import torch
from sympy import Expr, Symbol

from smelt.nest.ir import Alloc, Block, For, Let, LoopKind, Masked, Stmt, Store
from smelt.nest.primitives import not_vector
from smelt.nest.primitives.turning import TURNED
from smelt.nest.tree import loops, substitute
from smelt.records import dataclass, replace
from smelt.schedule.grouping.items import ZERO, Item, Work
from smelt.schedule.loops import Target
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.elements import chain_of, grouped, pieces_in_order
from smelt.schedule.products.operands import Product
from smelt.schedule.products.tiles import TileWriter
from smelt.symbolic import contiguous_strides, flatten, least, numel, simplify, size_hint, unflatten
from smelt.symbolic.affine import divided, replaced


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: its position in the batch, the columns before it, and its number there.

    ``columns``: its number of columns; the last one may have fewer than the others. ``next``: the panel used
    after all rows are done with this one; None: it isn't packed yet.
    """

    batch: Sequence[Symbol]
    outer_columns: Sequence[Symbol]
    panel: Expr
    columns: Expr
    next: Expr | None = None


class TileResults:
    """What is done with the tiles of a product, ``height`` rows and ``width`` columns each.

    ``epilogue``: a kernel `over_elements` that loads `Work` buffer ``source`` (the product's result); None:
    the result itself is stored.
    """

    width: int
    height: int
    line_number: Symbol
    line: Expr
    along: Symbol

    def __init__(
        self, work: Work, item: Item, product: Product, epilogue: BuiltKernel | None, target: Target
    ) -> None:
        self.work, self.item, self.product, self.target = work, item, product, target
        self.source, self.epilogue = str(item.writes[0]), epilogue
        self.lanes = target.lanes
        self.writer = TileWriter(work, item.node.origin, self.lanes)
        self.rows, self.columns = product.extents[-2:]
        self.outer_columns: tuple[int, ...] = ()
        self.outer_column_sizes: tuple[Expr, ...] = ()
        self.lines: Expr | None = None

    def hint(self, size: Expr) -> int:
        """The estimated value of a size."""
        return size_hint(size, self.work.graph.hints)

    def _pieces(
        self, size: Expr, step: int, first: Expr, stop: Expr, one: Callable[[Expr, Expr], Sequence[Stmt]]
    ) -> list[Stmt]:
        """``one(number, length)`` for pieces from ``first`` up to ``stop`` of those of ``step`` that cover
        ``size``. The last piece, which may be shorter, has a loop of its own, so that the others have a
        constant length.
        """
        full, length = divided(size, sympy.Integer(step)), sympy.Integer(step)
        rest = size - full * step
        if rest == 0 and stop == first + 1:
            return list(one(first, length))
        each, last = self.writer.variable(), self.writer.variable()
        stmts: list[Stmt] = []
        if full != 0:
            most = stop if rest == 0 else least(full, stop)
            stmts.append(For(each, first, most, Block(tuple(one(each, length)))))
        if rest != 0:
            stmts.append(For(last, full, stop, Block(tuple(one(last, rest)))))
        return stmts

    def _summed(self, at: Panel) -> int:
        """The number of columns of a panel that registers sum: whole registers."""
        columns = at.columns
        return -(-int(columns) // self.lanes) * self.lanes if columns.is_Integer else self.width

    def _numbered(self, row: Expr) -> tuple[Expr, dict[Symbol, Expr]]:
        """The number among all rows of a line's ``row``, and the substitution to apply to results."""
        if self.lines is None:
            return row, {}
        return self.line_number * self.line + self.along, {self.along: row}

    def _finish(self, at: Panel, start: Expr, height: Expr) -> list[Stmt]:
        """The statements on ``tile``, ``height`` rows from ``start`` on: the epilogue's statements, or the
        plain store.
        """
        if self.product.swapped:
            return self._finish_transposed(at, start, height)
        row = self.writer.variable(height)
        column = self.writer.variable()
        element = self._element(at, start + row, column, ("tile", (row, column)))
        inner = _along_lanes(For(column, ZERO, at.columns, element), self.lanes)
        kind = LoopKind.UNROLL if self.product.shared and height.is_Integer else LoopKind.SERIAL
        return [For(row, ZERO, height, Block((inner,)), kind)]

    def _finish_transposed(self, at: Panel, start: Expr, height: Expr) -> list[Stmt]:
        """`_finish` if as many rows of the tile as a vector has lanes are contiguous in the result."""
        writer, lanes, summed = self.writer, sympy.Integer(self.lanes), sympy.Integer(self._summed(at))
        row, across, column, inner = (writer.variable(size) for size in (lanes, summed, None, height))
        blocks = [sympy.Integer(first) for first in range(0, self.height, self.lanes)]
        rows = [row, *(writer.variable(lanes) for _ in blocks[1:])]
        transpose = Block(
            tuple(
                For(
                    each,
                    ZERO,
                    lanes,
                    Block(
                        (
                            Let("e", torch.float32, "load", ("tile", (first + each, across))),
                            Store("transposed", (across, first + each), "e"),
                        )
                    ),
                    LoopKind.TURN if self.lanes in TURNED else LoopKind.SERIAL,
                )
                for first, each in zip(blocks, rows)
            )
        )
        element = self._element(at, start + inner, column, ("transposed", (column, inner)))
        along = _along_lanes(For(inner, ZERO, height, element), self.lanes)
        return [
            Alloc("transposed", torch.float32, (sympy.Integer(self.width), sympy.Integer(self.height))),
            For(across, ZERO, summed, transpose, LoopKind.VECTOR, self.lanes),
            For(column, ZERO, at.columns, Block((along,))),
        ]

    def _element(self, at: Panel, row: Expr, column: Expr, tile: tuple[str, tuple[Expr, ...]]) -> Block:
        """The statements on the tile's element in a row of its line and a column of the panel; ``tile``: its
        buffer and index.
        """
        before = flatten(at.outer_columns, contiguous_strides(self.outer_column_sizes)) * self.columns
        pieces = pieces_in_order(self.product)
        across = before + at.panel * self.width + column
        number, where = self._numbered(row)
        place = self._coordinates(pieces, at.batch, number, across)
        if self.epilogue is not None:
            return substitute(self._on_tile(self.epilogue, place, tile), where)
        load = Let("e", torch.float32, "load", tile)
        flat = flatten(place, contiguous_strides([size for _, size in pieces]))
        out = self.writer.param(self.source, written=True)
        return Block((load, Store(out, (replaced(flat, where),), "e")))

    def _unflattened(self, flat: Expr, sizes: Sequence[Expr]) -> list[Expr]:
        """The index in each of several dimensions that are counted as one: from the tile, if possible."""
        return [simplify(place, self.writer.extents) for place in unflatten(flat, sizes)]

    def _coordinates(
        self, pieces: Sequence[tuple[tuple[int, ...], Expr]], batch: Sequence[Expr], row: Expr, column: Expr
    ) -> list[Expr]:
        """The coordinates of the tile's element in each piece of the result."""
        product = self.product
        where: dict[int, Expr] = dict(zip(product.batch, batch))
        for dims, flat in ((product.rows, row), (product.columns, column)):
            if (dims, numel(product.sizes(dims))) not in pieces:
                where.update(zip(dims, self._unflattened(flat, product.sizes(dims))))
        whole = {product.rows: row, product.columns: column}
        return [whole[dims] if dims in whole else where[dims[0]] for dims, _ in pieces]

    def _on_tile(
        self, epilogue: BuiltKernel, at: Sequence[Expr], tile: tuple[str, tuple[Expr, ...]]
    ) -> Block:
        """The epilogue's innermost block, with its loop variables replaced and the tile as its source."""
        chain = chain_of(epilogue.kernel)
        names = dict(zip((param.name for param in epilogue.kernel.params), epilogue.buffers))
        extents = [size for _, size in pieces_in_order(self.product)]
        groups = grouped(chain, extents)
        assert groups is not None
        where: dict[Symbol, Expr] = {}
        for group, pieces in groups:
            strides = contiguous_strides([extents[piece] for piece in pieces])
            flat = flatten([at[piece] for piece in pieces], strides)
            where.update(
                zip((loop.var for loop in group), self._unflattened(flat, [loop.end for loop in group]))
            )
        inner = {loop.var: self.writer.variable(loop.end) for loop in loops(chain[-1].body)}

        def visit(block: Block) -> Block:
            stmts: list[Stmt] = []
            for stmt in block.stmts:
                if isinstance(stmt, Let) and stmt.op == "load":
                    buffer = names[stmt.args[0]]
                    mine = buffer == self.source
                    place = tile if mine else (self.writer.param(buffer), stmt.args[1])
                    stmt = replace(stmt, args=place)
                elif isinstance(stmt, Store):
                    stmt = replace(stmt, buffer=self.writer.param(names[stmt.buffer], written=True))
                elif isinstance(stmt, For):
                    stmt = replace(stmt, var=inner[stmt.var], body=visit(stmt.body))
                elif isinstance(stmt, Masked):
                    stmt = replace(stmt, body=visit(stmt.body))
                stmts.append(stmt)
            return Block(tuple(stmts))

        return visit(substitute(chain[-1].body, {**where, **inner}))


def _along_lanes(loop: For, lanes: int) -> For:
    """The loop, as a vector loop if legal."""
    if not_vector(loop) is not None:
        return loop
    return replace(loop, kind=LoopKind.VECTOR, step=lanes)
