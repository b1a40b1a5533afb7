"""The nest of a product that sums integers: some columns of the weight at a time, read once, in place.

    for chunk of columns in parallel:
        a[column, group], b[column, group]: the weight's scale and minimum
        for a few rows: scales[row, group]; tile[row, column]: the products; the epilogue on the tile

The products of a tile are a stage with a text, functions of ``smelt_integers.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.dependencies import variables
from smelt.loops.ir import Contraction
from smelt.loops.straightline import Instruction
from smelt.nest.ir import Alloc, Block, For, Let, LoopKind, Operand, Prefetch, Stage, Stmt, Store, Text
from smelt.schedule.grouping.items import Item, Work
from smelt.schedule.loops import Target
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.integers import TERMS, Quantized, numbers_of, operands_of
from smelt.schedule.products.split_dimensions import product_of
from smelt.schedule.products.tile_results import Panel, TileResults
from smelt.schedule.products.tiles import ceiling
from smelt.symbolic import flatten
from smelt.symbolic.affine import divided, expand, replaced

ZERO = sympy.Integer(0)
F32, I32 = torch.float32, torch.int32
MOST_ROWS = 4
"""The most rows whose sums, with four columns, are in registers at once."""
CHUNKS = (64, 48, 32, 24, 16)
"""Columns of a chunk, the best numbers first: quantized rows are arranged once for each chunk."""
FEWEST_CHUNKS = 16
"""Chunks from which on threads share them evenly."""


class IntegerProduct(TileResults):
    """Builds the kernel of a product that sums integers, with its epilogue."""

    def __init__(self, work: Work, item: Item, epilogue: BuiltKernel | None, target: Target) -> None:
        body = item.body
        assert isinstance(body, Contraction)
        product, operands = product_of(body, work.graph), operands_of(body, work.graph)
        assert product is not None and operands is not None
        super().__init__(work, item, product, epilogue, target)
        self.left, self.right = operands
        self.depth = int(product.depth)
        count = int(self.columns)
        even = [width for width in CHUNKS if count % width == 0] or [CHUNKS[-1]]
        self.width = next((width for width in even if count // width >= FEWEST_CHUNKS), even[-1])
        self.height = int(self.rows) if self.rows.is_Integer and self.rows < MOST_ROWS else MOST_ROWS
        self.symbols, self.term_symbols = variables("i", 2), variables("r", 1)
        self.group = self.right.group
        """The terms of a group of the weight; None: all."""
        self.whole = self.group is None and self.left.group is None
        """Whether each operand has one scale for all terms."""

    def build(self) -> BuiltKernel:
        """The kernel, arranged."""
        chunk = self.writer.variable()
        stmts = self._pieces(self.columns, self.width, chunk, chunk + 1, self._columns())
        count = ceiling(self.columns, self.width)
        loop = For(chunk, ZERO, count, Block(tuple(stmts)), LoopKind.PARALLEL)
        return BuiltKernel(self.writer.kernel(Block((loop,))), tuple(self.writer.params), arranged=True)

    def _columns(self) -> Callable[[Expr, Expr], Sequence[Stmt]]:
        """The statements for the columns of a chunk, given its number and theirs."""

        def one(panel: Expr, columns: Expr) -> Sequence[Stmt]:
            groups = sympy.Integer(1 if self.group is None else self.depth // self.group)
            size, names = self.group or self.depth, ("a", "b")[: 1 + self.right.shifted]
            (i, j), (r,) = self.symbols, self.term_symbols

            def scale(column: Symbol, group: Expr) -> list[Stmt]:
                where = {i: ZERO, j: panel * self.width + column, r: group * size}
                stmts = self._numbers(self.right, where, names, column, group)
                return [*stmts, *_fetched(stmts, column, self.width)]

            room = [Alloc(name, F32, (columns, groups)) for name in names]
            filled = self._over(columns, groups, scale)
            return [*room, filled, *self._all_rows(Panel((), (), panel, columns))]

        return one

    def _over(self, rows: Expr, groups: Expr, body: Callable[[Symbol, Expr], Sequence[Stmt]]) -> For:
        """``body(row, group)`` for all rows and groups; groups are lanes, if there are some."""
        row, group = self.writer.variable(rows), self.writer.variable(groups)
        if groups == 1:
            return For(row, ZERO, rows, Block(tuple(body(row, ZERO))))
        kind, step = (LoopKind.VECTOR, self.lanes) if groups >= 4 else (LoopKind.SERIAL, 1)
        inner = For(group, ZERO, groups, Block(tuple(body(row, group))), kind, step)
        return For(row, ZERO, rows, Block((inner,)))

    def _numbers(
        self, of: Quantized, where: dict[Symbol, Expr], into: Sequence[str], row: Expr, group: Expr
    ) -> list[Stmt]:
        """Stores the numbers that a group shares: ``into[0]`` its scale; ``into[1]`` what is added to each of
        its terms.
        """
        extents = {**self.writer.extents}
        steps = numbers_of(of, (*of.scales, of.zero, of.minimum), where, extents)
        stmts: list[Stmt] = [self._plain(step, into[0]) for step in steps]

        def named(name: str) -> str:
            return f"{into[0]}_{name}"

        def made(name: str, op: str, *args: object) -> str:
            stmts.append(Let(named(name), F32, op, args))
            return named(name)

        first, *others = map(named, of.scales)
        for number, other in enumerate(others):
            first = made(f"scale{number}", "mul", first, other)
        stmts.append(Store(into[0], (row, group), first))
        if len(into) > 1:
            added = None if of.minimum is None else named(of.minimum)
            if of.zero is not None:
                zero = made("zero", "to_dtype", named(of.zero))
                away = made("away", "neg", made("scaled", "mul", first, zero))
                added = away if added is None else made("added", "add", added, away)
            assert added is not None
            stmts.append(Store(into[1], (row, group), added))
        return stmts

    def _plain(self, step: Instruction, prefix: str) -> Let:
        """The statement of an instruction, on parameters."""
        args = step.args
        if step.op == "load":
            buffer = self.work.buffers[step.args[0]]
            args = (self.writer.param(buffer.name), (expand(flatten(step.args[1], buffer.strides)),))
        elif step.op not in ("constant", "index_expr"):
            args = tuple(f"{prefix}_{arg}" if isinstance(arg, str) else arg for arg in args)
        return Let(f"{prefix}_{step.name}", step.dtype, step.op, args)

    def _all_rows(self, at: Panel) -> list[Stmt]:
        """The rows, a few at a time; an unknown number that is left, one by one."""
        height = self.height
        full = divided(self.rows, sympy.Integer(height))
        rest = expand(self.rows - full * height)
        stmts: list[Stmt] = []
        if full != 0:
            tile = self.writer.variable(full)
            body = Block(tuple(self._rows(at, tile * height, height)))
            stmts.append(For(tile, ZERO, full, body))
        if rest.is_Integer:
            return [*stmts, *(self._rows(at, full * height, int(rest)) if rest else ())]
        row = self.writer.variable(rest)
        body = Block(tuple(self._rows(at, full * height + row, 1)))
        return [*stmts, For(row, ZERO, rest, body)]

    def _rows(self, at: Panel, start: Expr, height: int) -> list[Stmt]:
        """The products of rows from ``start`` on with a chunk of columns, and the epilogue on them."""
        rows = sympy.Integer(height)
        groups = sympy.Integer(1 if self.whole else self.depth // TERMS)
        size = self.depth if self.whole else TERMS
        (i, j), (r,) = self.symbols, self.term_symbols

        def scale(row: Expr, group: Expr) -> list[Stmt]:
            return self._numbers(
                self.left, {i: start + row, j: ZERO, r: group * size}, ("scales",), row, group
            )

        return [
            Alloc("scales", F32, (rows, groups)),
            self._over(rows, groups, scale),
            Alloc("tile", F32, (rows, sympy.Integer(self.width))),
            self._stage(at, start, height),
            *self._finish(at, start, rows),
        ]

    def _stage(self, at: Panel, start: Expr, height: int) -> Stage:
        """``tile[row, column] = sum over k of scale * x * (a * (w - offset) + b)``."""
        writer, left, right = self.writer, self.left, self.right
        row, column, term = (writer.variable() for _ in range(3))
        i, j = self.symbols
        x_step, w_step = (expand(of.place.coeff(line)) for of, line in ((left, i), (right, j)))
        x = (start + row) * x_step + term
        w = (at.panel * self.width + column) * w_step
        group = ZERO if self.whole else divided(term, sympy.Integer(TERMS))
        own = ZERO if self.group is None else divided(term, sympy.Integer(self.group))
        types = {name: self.work.buffers[of.buffer].dtype for name, of in (("x", left), ("w", right))}
        xs, ws = writer.param(left.buffer), writer.param(right.buffer)
        stmts: list[Stmt] = [Let("x", types["x"], "load", (xs, (x,)))]
        lanes = sympy.Integer(16)
        if right.bits == 8:
            stmts += [Let("w", types["w"], "load", (ws, (w + term,))), Let("q", I32, "to_dtype", ("w",))]
        else:
            byte = divided(term, 2 * lanes) * lanes + sympy.Mod(term, lanes)
            shift = 4 * divided(sympy.Mod(term, 2 * lanes), lanes)
            stmts += [
                Let("w", types["w"], "load", (ws, (w + byte,))),
                Let("both", I32, "to_dtype", ("w",)),
                Let("by", I32, "index_expr", (shift,)),
                Let("moved", I32, "rshift", ("both", "by")),
                Let("mask", I32, "constant", (15,)),
                Let("q", I32, "bitwise_and", ("moved", "mask")),
            ]
        stmts += [
            Let("offset", I32, "constant", (right.offset,)),
            Let("less", I32, "sub", ("q", "offset")),
            Let("number", F32, "to_dtype", ("less",)),
            Let("scale", F32, "load", ("scales", (row, group))),
            Let("own", F32, "load", ("a", (column, own))),
            Let("weight", F32, "mul", ("own", "number")),
        ]
        weight = "weight"
        if right.shifted:
            stmts += [
                Let("low", F32, "load", ("b", (column, own))),
                Let("raised", F32, "add", ("weight", "low")),
            ]
            weight = "raised"
        stmts += [
            Let("xf", F32, "to_dtype", ("x",)),
            Let("value", F32, "mul", ("scale", "xf")),
            Let("product", F32, "mul", ("value", weight)),
            Let("before", F32, "load", ("tile", (row, column))),
            Let("after", F32, "add", ("before", "product")),
            Store("tile", (row, column), "after"),
        ]
        nothing: list[Stmt] = [
            Let("nothing", F32, "constant", (0.0,)),
            Store("tile", (row, column), "nothing"),
        ]
        terms = For(term, ZERO, sympy.Integer(self.depth), Block(tuple(stmts)))
        across = For(column, ZERO, at.columns, Block((*nothing, terms)))
        body = Block((For(row, ZERO, sympy.Integer(height), Block((across,))),))
        # the order of accesses: tile, x, w, scales, a, b
        offset = right.offset + (128 if right.bits == 8 else 0)
        operands = [
            Operand("tile", F32, True, 0, (0,), (None,)),
            Operand("x", types["x"], False, 1, (0,), (None,)),
            Operand("w", types["w"], False, 2, (1,), (None,)),
            Operand("scales", F32, False, 3, (0,), (None,)),
            Operand("a", F32, False, 4, (1,), (None,)),
        ]
        args = "tile, tile_0, x, x_0, scales"
        weights = "(const u8_buffer*)w, w_0, a"
        if self.whole:
            call = f"row_products<{self.depth}, {offset}, {height}>({at.columns}, {args}, {weights});"
        else:
            low = "b" if right.shifted else "(const f32_buffer*)0"
            if right.shifted:
                operands.append(Operand("b", F32, False, 5, (1,), (None,)))
            shape = f"{right.bits}, {self.depth}, {self.group or self.depth}, {offset}"
            shape += f", {'true' if right.shifted else 'false'}, {height}"
            call = f"group_products<{shape}>({at.columns}, {args}, scales_0, {weights}, {low}, a_0);"
        text = Text("integers", f"  {call}", tuple(operands), ("__AVX512VNNI__",), ("integers",))
        return Stage("products", (), body, text=text)


def _fetched(stmts: Sequence[Stmt], column: Symbol, away: int) -> list[Stmt]:
    """Prefetches of what is loaded for the column so many columns further."""
    loads = [stmt.args for stmt in stmts if isinstance(stmt, Let) and stmt.op == "load"]
    return [
        Prefetch(buffer, (replaced(place, {column: column + away}),))
        for buffer, (place,) in loads
        if place.has(column)
    ]
