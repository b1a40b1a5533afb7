"""Matrix products as nests: panels packed for the cache, tiles of registers, what follows done on the tile.

    C = A B:  parallel for each panel of columns:
                  pack the panel of B, where that has not been done before
                  for each few rows:  T[rows, panel] = A[rows, :] panel;  the epilogue on T stores C

Rows may be several dimensions (a convolution's: batch, height, width), and so may terms. It is all
`smelt.nest` statements, shaped by its primitives; nothing is text. Sizes may be symbols: the last tile
computes some rows twice and stores them once. What lhs shares with the columns (a depthwise convolution's
channels) it loads side by side, instead of one number for all lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import sympy
import torch
from sympy import Expr, Symbol
from torch.utils._sympy.functions import Min

from smelt.loops.dependencies import variables
from smelt.loops.ir import Contraction
from smelt.loops.record import Recorder
from smelt.loops.straightline import prune
from smelt.nest.ir import Advance, Alloc, Block, Carry, For, Kernel, Let, LoopKind, Masked, Param, Stmt, Store
from smelt.nest.primitives import (
    flatten_accesses,
    hoist,
    inner_loop,
    jam,
    merge,
    merges_cleanly,
    not_vector,
)
from smelt.nest.tree import loops, substitute, walk
from smelt.schedule.items import ZERO, Item, Work
from smelt.schedule.loops import Target
from smelt.schedule.names import kernel_name
from smelt.schedule.nests import BuiltKernel, size_symbols, to_statement
from smelt.schedule.operands import Product, as_product, lhs_place, memory_order, together
from smelt.schedule.panels import Panels
from smelt.schedule.tiles import ceiling, clamped, panel_width, span
from smelt.symbolic import (
    contiguous_strides,
    flatten,
    loop_var,
    numel,
    same,
    simplify,
    unflatten,
)

ACCUMULATORS = 12
"""Registers of a tile: with the operands they fill 16."""
FEWEST_ROWS = 4
DEPTH = 256
"""Terms that one accumulator sums before it is added to the total, for accuracy."""


def tile_rows(rows: Expr, registers: int) -> int:
    """Rows of a tile that is ``registers`` wide: as many as fit, or fewer where that leaves fewer unused.

    >>> [tile_rows(sympy.Integer(rows), 2) for rows in (128, 49, 197)]
    [6, 5, 6]
    """
    most = ACCUMULATORS // registers
    if not rows.is_Integer:
        return most
    count = int(rows)
    return min(range(most, FEWEST_ROWS - 1, -1), key=lambda tile: (-(-count // tile) * (tile + 1), -tile))


class ProductBuilder:
    """Builds the kernel of one product with its epilogue.

    ``epilogue``: a plain kernel over the product's elements that loads `Work` buffer ``source`` (the
    product's result), flattened; None: the result itself is stored.
    """

    def __init__(self, work: Work, item: Item, epilogue: BuiltKernel | None, target: Target) -> None:
        body = item.body
        assert isinstance(body, Contraction)
        product, place = as_product(body, work.graph), lhs_place(body, work.graph)
        assert product is not None and place is not None
        self.work, self.item, self.product, self.target = work, item, product, target
        self.source = str(item.writes[0])
        self.lanes = target.vector_bytes // 4
        self.panels = body.rhs if isinstance(body.rhs, Panels) else None
        *self.batch_sizes, self.rows, self.columns = product.extents
        self.width = self.panels.width if self.panels else panel_width(self.columns, self.lanes)
        self.height = tile_rows(self.rows, self.width // self.lanes)
        self.lhs, self.lhs_flat = place
        self.symbols = variables("i", len(body.shape))
        self.term_symbols = variables("r", len(body.reduce_shape))
        row_sizes = [body.shape[d] for d in product.rows]
        row_symbols = [self.symbols[d] for d in product.rows]
        own = [d for d, size in enumerate(row_sizes) if size != 1]
        self.row_runs = [
            [product.rows[d] for d in run] for run in together(self.lhs_flat, row_symbols, row_sizes, own)
        ]
        order = memory_order(self.lhs_flat, self.term_symbols, body.reduce_shape)
        assert order is not None
        self.term_runs = together(self.lhs_flat, self.term_symbols, body.reduce_shape, order)
        self.params: dict[str, str] = {}
        self.written: set[str] = set()
        self.epilogue = epilogue
        self.count = 0

    def build(self) -> BuiltKernel:
        """The kernel, arranged; its parameters are the operands' buffers, then the epilogue's."""
        epilogue = self._epilogue()
        batch = [self.variable() for _ in self.batch_sizes]
        panel, tile = self.variable(), self.variable()
        body: list[Stmt] = []
        if self.panels is None:
            depth = self.product.depth
            body = [
                Alloc("panel", torch.float32, (depth, sympy.Integer(self.width))),
                *self._pack(batch, panel, depth),
            ]
        inside: list[Stmt] = [
            Alloc("tile", torch.float32, (sympy.Integer(self.height), sympy.Integer(self.width))),
            self._tile(batch, tile, panel),
            *self._finish(epilogue, batch, tile, panel),
        ]
        down = For(tile, ZERO, ceiling(self.rows, self.height), Block(tuple(inside)), independent=True)
        if self.panels is not None:
            down = replace(down, kind=LoopKind.PARALLEL)
        body.append(down)
        panels = ceiling(self.columns, self.width)
        nest: Stmt = For(panel, ZERO, panels, Block(tuple(body)), LoopKind.PARALLEL, independent=True)
        for variable, size in reversed(list(zip(batch, self.batch_sizes))):
            nest = For(variable, ZERO, size, Block((nest,)), LoopKind.PARALLEL, independent=True)
        kernel = self._kernel(Block((nest,)))
        for variable in self.jammed:
            kernel = jam(kernel, variable)
        return BuiltKernel(hoist(kernel), tuple(self.params), arranged=True)

    def variable(self) -> Symbol:
        """A loop variable that is not in use."""
        self.count += 1
        return loop_var(f"i{self.count - 1}")

    # -- rhs ------------------------------------------------------------------------------------------------

    def _rhs(self, batch: Sequence[Expr], column: Expr, term: Expr, name: str) -> tuple[list[Stmt], str]:
        """Straight-line code of rhs at an element, names beginning with ``name``; one summed dimension."""
        product = self.product
        index: list[Expr] = [ZERO] * len(product.body.shape)
        for dim, at in zip(product.batch, batch):
            index[dim] = at
        for dim, at in zip(product.columns, unflatten(column, product.sizes(product.columns))):
            index[dim] = at
        recorder = Recorder(self.work.dtypes, {}, origin=self.item.node.origin)
        value = recorder.run(product.body.rhs, tuple(index), (term,))
        steps = prune(recorder.instructions, [value.name], set())
        stmts = [self._renamed(to_statement(step), name) for step in steps]
        return stmts, f"{name}{value.name}"

    def _renamed(self, stmt: Stmt, name: str) -> Stmt:
        assert isinstance(stmt, Let)
        args = list(stmt.args)
        if stmt.op == "load":
            strides = self.work.buffers[stmt.args[0]].strides
            args = [self.param(stmt.args[0]), (flatten(stmt.args[1], strides),)]
        elif stmt.op not in ("constant", "index_expr"):
            args = [f"{name}{arg}" if isinstance(arg, str) else arg for arg in args]
        return replace(stmt, name=f"{name}{stmt.name}", args=tuple(args))

    def _pack(self, batch: Sequence[Expr], panel: Symbol, depth: Expr) -> list[Stmt]:
        """``panel[k, c] = B[k, width * panel + c]``."""
        term, column = self.variable(), self.variable()
        stmts, value = self._rhs(batch, self._column(panel, column), term, "b")
        store = Store("panel", (term, column), value)
        inner = Block((*stmts, store))
        if _contiguous(stmts, column):
            width = sympy.Integer(self.width)
            loop = For(column, ZERO, width, inner, LoopKind.VECTOR, self.lanes, independent=True)
            return [For(term, ZERO, depth, Block((loop,)), independent=True)]
        return [self._pack_turned(batch, panel, term, column, depth)]

    def _pack_turned(
        self, batch: Sequence[Expr], panel: Symbol, term: Symbol, block: Symbol, depth: Expr
    ) -> Stmt:
        """B's memory runs along k: as many columns as lanes are read along k, and stored side by side."""
        loads: list[Stmt] = []
        stores: list[Stmt] = []
        for k in range(self.lanes):
            inside = block * self.lanes + k
            stmts, value = self._rhs(batch, self._column(panel, inside), term, f"b{k}")
            loads += stmts
            stores.append(Store("panel", (term, inside), value))
        loop = For(term, ZERO, depth, Block((*loads, *stores)), LoopKind.VECTOR, self.lanes, independent=True)
        registers = sympy.Integer(self.width // self.lanes)
        return For(block, ZERO, registers, Block((loop,)), independent=True)

    def _column(self, panel: Symbol, inside: Expr) -> Expr:
        """Column ``inside`` of a panel as one of B's; beyond the last column that one again."""
        return clamped(panel * self.width + inside, self.columns, self.width)

    # -- the register tile ----------------------------------------------------------------------------------

    def _tile(self, batch: Sequence[Expr], tile: Symbol, panel: Symbol) -> Stmt:
        """``T[r, c] = sum over k of A[height * tile + r, k] panel[k, c]``, all of it in registers."""
        lane, row, side = self.variable(), self.variable(), self.variable()
        self.jammed = (side, row)
        at = clamped(tile * self.height + row, self.rows, self.height)
        column = side * self.lanes + lane
        terms = [self.variable() for _ in self.term_runs]
        left = self._lhs_place(batch, at, terms, panel * self.width + column)
        right = self._panel_place(batch, panel, terms, column)
        f32 = torch.float32

        def leaf(carry: str) -> tuple[Stmt, ...]:
            return (
                Let("a", f32, "load", (self.param(self.lhs), (left,))),
                Let("q", f32, "load", right),
                Let("s", f32, "read", (carry, 0)),
                Let("n", f32, "fma", ("a", "q", "s")),
                Advance(carry, "n"),
            )

        one = Block(tuple(self._sums(terms, leaf, (row, column))))
        across = For(side, ZERO, sympy.Integer(self.width // self.lanes), one, independent=True)
        down = For(row, ZERO, sympy.Integer(self.height), Block((across,)), independent=True)
        return For(
            lane,
            ZERO,
            sympy.Integer(self.lanes),
            Block((down,)),
            LoopKind.VECTOR,
            self.lanes,
            independent=True,
        )

    def _sums(
        self, terms: Sequence[Symbol], leaf: Callable[[str], tuple[Stmt, ...]], place: tuple[Expr, ...]
    ) -> list[Stmt]:
        """The loops over terms, which leave the sum at ``place`` of the tile.

        No accumulator takes many more than `DEPTH` terms: the tile sums what the accumulators have summed.
        """
        sizes = [numel([self.product.body.reduce_shape[d] for d in run]) for run in self.term_runs]
        total = numel(sizes)
        f32 = torch.float32
        part = Let("part", f32, "read", ("sum", 0))
        if total.is_Integer and int(total) <= DEPTH + DEPTH // 2:
            stmts = leaf("sum")
            for term, size in reversed(list(zip(terms, sizes))):
                stmts = (For(term, ZERO, size, Block(stmts)),)
            return [Carry("sum", f32, 0.0), *stmts, part, Store("tile", place, "part")]
        innermost = sizes[-1]
        whole = innermost.is_Integer and int(innermost) <= DEPTH + DEPTH // 2
        block = self.variable()
        begin = ZERO if whole else block * DEPTH
        end = innermost if whole else Min(innermost, block * DEPTH + DEPTH)
        stmts = (
            Carry("sum", f32, 0.0),
            For(terms[-1], begin, end, Block(leaf("sum"))),
            part,
            Let("before", f32, "load", ("tile", place)),
            Let("after", f32, "add", ("before", "part")),
            Store("tile", place, "after"),
        )
        if not whole:
            stmts = (For(block, ZERO, ceiling(innermost, DEPTH), Block(stmts)),)
        for term, size in reversed(list(zip(terms[:-1], sizes[:-1]))):
            stmts = (For(term, ZERO, size, Block(stmts)),)
        return [Let("nothing", f32, "constant", (0.0,)), Store("tile", place, "nothing"), *stmts]

    def _lhs_place(self, batch: Sequence[Expr], row: Expr, terms: Sequence[Expr], column: Expr) -> Expr:
        """The flat index of lhs at a row, counted through all row dimensions, and a term of each run; at the
        column, where that is shared.
        """
        body = self.product.body
        where: dict[Symbol, Expr] = dict.fromkeys((*self.symbols, *self.term_symbols), ZERO)
        where.update(zip((self.symbols[d] for d in self.product.batch), batch))
        sizes = [numel([body.shape[d] for d in run]) for run in self.row_runs]
        for run, at in zip(self.row_runs, unflatten(row, sizes)):
            where[self.symbols[run[-1]]] = at
        for run, term in zip(self.term_runs, terms):
            where[self.term_symbols[run[-1]]] = term
        if self.product.shared:
            where[self.symbols[self.product.columns[-1]]] = column
        return self.lhs_flat.xreplace(where)

    def _panel_place(
        self, batch: Sequence[Expr], panel: Expr, terms: Sequence[Expr], column: Expr
    ) -> tuple[str, tuple[Expr, ...]]:
        """The element of a panel at a term of each run: what a load takes."""
        if self.panels is None:
            return "panel", (terms[0] if terms else ZERO, column)
        where: list[Expr] = [ZERO] * len(self.term_symbols)
        for run, term in zip(self.term_runs, terms):
            where[run[-1]] = term
        place = self.panels.place(batch, panel, where, column)
        buffer = self.panels.buffer
        return self.param(buffer), (flatten(place, self.work.buffers[buffer].strides),)

    # -- the epilogue ---------------------------------------------------------------------------------------

    def _epilogue(self) -> Kernel | None:
        if self.epilogue is None:
            return None
        kernel = over_elements(self.epilogue, self.source, self.product)
        assert kernel is not None
        return kernel

    def _finish(
        self, epilogue: Kernel | None, batch: Sequence[Expr], tile: Symbol, panel: Symbol
    ) -> list[Stmt]:
        """What is done with the tile: the epilogue's statements, or the plain store."""
        row, column = self.variable(), self.variable()
        at = (*batch, tile * self.height + row, panel * self.width + column)
        if epilogue is None:
            flat = flatten(at, contiguous_strides(self.product.extents))
            element = Block(
                (
                    Let("e", torch.float32, "load", ("tile", (row, column))),
                    Store(self.param(self.source, written=True), (flat,), "e"),
                )
            )
        else:
            element = self._on_tile(epilogue, at, row, column)
        down = self.rows - tile * self.height
        across = self.columns - panel * self.width
        inner = For(column, ZERO, _least(across, self.width, self.columns), element, independent=True)
        if not_vector(inner) is None:
            inner = replace(inner, kind=LoopKind.VECTOR, step=self.lanes)
        return [For(row, ZERO, _least(down, self.height, self.rows), Block((inner,)), independent=True)]

    def _on_tile(self, epilogue: Kernel, at: Sequence[Expr], row: Expr, column: Expr) -> Block:
        """The epilogue's innermost block, its loop variables replaced, its source the tile."""
        chain = _chain(epilogue)
        assert self.epilogue is not None
        names = dict(zip((param.name for param in epilogue.params), self.epilogue.buffers))
        groups = _grouped(chain, self.product.extents)
        assert groups is not None
        where: dict[Symbol, Expr] = {}
        for group, coordinate in zip(groups, at, strict=True):
            sizes = [loop.end for loop in group]
            where.update(zip((loop.var for loop in group), unflatten(coordinate, sizes)))
        where.update({loop.var: self.variable() for loop in loops(chain[-1].body)})

        def visit(block: Block) -> Block:
            stmts: list[Stmt] = []
            for stmt in block.stmts:
                if isinstance(stmt, Let) and stmt.op == "load":
                    buffer = names[stmt.args[0]]
                    mine = buffer == self.source
                    stmt = replace(
                        stmt, args=("tile", (row, column)) if mine else (self.param(buffer), stmt.args[1])
                    )
                elif isinstance(stmt, Store):
                    stmt = replace(stmt, buffer=self.param(names[stmt.buffer], written=True))
                elif isinstance(stmt, (For, Masked)):
                    stmt = replace(stmt, body=visit(stmt.body))
                stmts.append(stmt)
            return Block(tuple(stmts))

        return visit(substitute(chain[-1].body, where))

    # -- parameters -----------------------------------------------------------------------------------------

    def param(self, buffer: str, *, written: bool = False) -> str:
        """The parameter's name; all accesses are by one flat index."""
        if buffer not in self.params:
            self.params[buffer] = f"p{len(self.params)}"
        if written:
            self.written.add(buffer)
        return self.params[buffer]

    def _kernel(self, body: Block) -> Kernel:
        params = []
        for buffer, name in self.params.items():
            info = self.work.buffers[buffer]
            shape, strides = (span(info),), (sympy.Integer(1),)
            params.append(Param(name, info.dtype, shape, strides, buffer in self.written))
        name, origins = self.name_and_origins()
        return Kernel(name, tuple(params), size_symbols(body, params), body, origins)

    def name_and_origins(self) -> tuple[str, tuple[str, ...]]:
        """What the kernel is called, and the operators that it computes."""
        origin = self.item.node.origin
        origins: tuple[str, ...] = (f"{origin.op} at {origin.where or '?'}",)
        if self.epilogue is not None:
            origins += self.epilogue.kernel.origins
        return f"{kernel_name([origin])}_tiled", origins


def over_elements(built: BuiltKernel, source: str, product: Product) -> Kernel | None:
    """The kernel as perfectly nested loops over the product's elements, flattened, which loads ``source`` at
    just the element that the loops are at; None where it is not of that kind.
    """
    kernel = flatten_accesses(built.kernel)
    groups = _grouped(_chain(kernel), product.extents)
    if groups is None or len(kernel.body.stmts) != 1:
        return None
    for group in groups:
        for _ in group[1:]:
            outer = _chain(kernel)[[loop.var for loop in _chain(kernel)].index(group[0].var)]
            if merges_cleanly(kernel, outer.var):
                kernel = merge(kernel, outer.var)
    chain = _chain(kernel)
    if any(isinstance(stmt, (Alloc, Carry)) for stmt in walk(kernel.body)):
        return None
    mine = next(param.name for param, buffer in zip(kernel.params, built.buffers) if buffer == source)
    strides = contiguous_strides([loop.end for loop in chain])
    extents = {loop.var: loop.end for loop in chain}
    place = simplify(sympy.expand(flatten([loop.var for loop in chain], strides)), extents)
    for stmt in walk(chain[-1].body):
        if isinstance(stmt, Store) and stmt.buffer == mine:
            return None
        if isinstance(stmt, Let) and stmt.op == "load" and stmt.args[0] == mine:
            read = simplify(sympy.expand(stmt.args[1][0]), extents)
            if not same(read, place):
                return None
    return kernel


def _grouped(chain: Sequence[For], extents: Sequence[Expr]) -> list[list[For]] | None:
    """For each extent the loops, one after another, that run over it; None where they do not fit.

    An extent of 1 has no loops; loops inside the last extent's are the epilogue's own.
    """
    left = list(chain)
    groups: list[list[For]] = []
    for extent in extents:
        group: list[For] = []
        while not same(numel([loop.end for loop in group]), extent):
            if not left:
                return None
            group.append(left.pop(0))
        groups.append(group)
    return None if left else groups


def _chain(kernel: Kernel) -> list[For]:
    """The perfectly nested loops of a kernel, outermost first."""
    loop = kernel.body.stmts[0] if len(kernel.body.stmts) == 1 else None
    chain: list[For] = []
    while isinstance(loop, For):
        chain.append(loop)
        loop = inner_loop(loop)
    return chain


def _least(rest: Expr, most: int, size: Expr) -> Expr:
    """``min(rest, most)``, where ``rest`` is what is left of ``size``."""
    if size.is_Integer and int(size) % most == 0:
        return sympy.Integer(most)
    return Min(rest, sympy.Integer(most))


def _contiguous(stmts: Sequence[Stmt], column: Symbol) -> bool:
    """Whether every load moves by one element with ``column``, where its index is not clamped."""
    flat = [stmt.args[1][0] for stmt in stmts if isinstance(stmt, Let) and stmt.op == "load"]
    loose = [sympy.expand(expr.replace(lambda e: isinstance(e, Min), _moving)) for expr in flat]
    return all(expr.coeff(column, 1) == 1 for expr in loose)


def _moving(*args: Expr) -> Expr:
    """Of what a minimum is taken of, the part that has loop variables."""
    return max(args, key=lambda each: len(each.free_symbols))
