"""Matrix products as nests: panels packed for the cache, tiles of registers, what follows done on the tile.

    C = A B:  parallel for each panel of 16 columns:
                  pack the panel of B
                  for each 6 rows:  T[6, 16] = A[rows, :] panel;  then the epilogue on T, which stores C

It is all `smelt.nest` statements, shaped by its primitives; nothing is text. Sizes may be symbols: the last
tile computes some rows twice and stores them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Min

from smelt.loops.dependencies import variables
from smelt.loops.ir import Buffer, Contraction, Graph, accumulator
from smelt.loops.record import Recorder
from smelt.loops.straightline import Instruction, prune
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
from smelt.symbolic import contiguous_strides, flatten, free_symbols, loop_var, same, size_hint

ROWS, REGISTERS = 6, 2
"""Rows of a register tile, and vector registers side by side in each: 12 accumulators, 16 registers."""
DEPTH = 256
"""Terms that one accumulator sums before it is added to the total, for accuracy."""


@dataclass(frozen=True, slots=True)
class Product:
    """``out[*batch, m, n] = sum over k``: what each operand depends on.

    ``sizes``: the contraction's shape; ``depth``: the summed extent.
    """

    body: Contraction
    sizes: tuple[Expr, ...]
    depth: Expr


def as_product(body: Contraction) -> Product | None:
    """The contraction as a matrix product whose rows only lhs, whose columns only rhs depends on."""
    if len(body.reduce_shape) != 1 or len(body.shape) < 2 or accumulator(body.dtype) != torch.float32:
        return None
    return Product(body, body.shape, body.reduce_shape[0])


FEWEST = 64
"""Products with fewer rows, columns or terms than this are ATen's: packing a panel would not pay."""


def worth_it(body: Contraction, graph: Graph) -> bool:
    """Whether a contraction is a product that the nests below compute, large enough that they pay."""
    product = as_product(body)
    if product is None or body.dtype != torch.float32 or body.result != 0:
        return False
    sizes = [size_hint(size, graph.hints) for size in (*product.sizes[-2:], product.depth)]
    return min(sizes) >= FEWEST and _operands_fit(body, graph)


def _operands_fit(body: Contraction, graph: Graph) -> bool:
    """Whether both are straight-line code: lhs by (batch, row, term), rhs by (batch, column, term)."""
    left, right = (operand_code(function, body, graph) for function in (body.lhs, body.rhs))
    if left is None or right is None:
        return False
    row, column = variables("i", len(body.shape))[-2:]
    of_left, of_right = _symbols(left), _symbols(right)
    return row in of_left and column in of_right and column not in of_left and row not in of_right


def lhs_lies_along_terms(body: Contraction, graph: Graph) -> bool:
    """Whether lhs is one plain load, contiguous along the terms: what the register tile reads."""
    steps = operand_code(body.lhs, body, graph)
    if steps is None or len(steps) != 1 or steps[0].op != "load":
        return False
    buffer, place = steps[0].args
    (term,) = variables("r", 1)
    return bool(sympy.expand(flatten(place, graph.buffers[buffer].strides)).coeff(term, 1) == 1)


def operand_code(function: Any, body: Contraction, graph: Graph) -> list[Instruction] | None:
    """What ``lhs`` or ``rhs`` does at ``variables``; None where it masks or looks positions up."""
    dtypes = {name: buffer.dtype for name, buffer in graph.buffers.items()}
    recorder = Recorder(dtypes, {})
    recorder.run(function, variables("i", len(body.shape)), variables("r", 1))
    steps = [s for s in recorder.instructions if isinstance(s, Instruction) and s.index is None]
    return steps if len(steps) == len(recorder.instructions) else None


def _symbols(steps: Sequence[Instruction]) -> set[Symbol]:
    """The symbols that loads and index expressions depend on."""
    exprs = [expr for s in steps if s.op == "load" for expr in s.args[1]]
    exprs += [s.args[0] for s in steps if s.op == "index_expr"]
    return free_symbols(exprs)


# -- the nest ----------------------------------------------------------------------------------------------


class ProductBuilder:
    """Builds the kernel of one product with its epilogue.

    ``epilogue``: a plain kernel over the product's elements that loads `Work` buffer ``source`` (the
    product's result), flattened; None: the result itself is stored.
    """

    def __init__(self, work: Work, item: Item, epilogue: BuiltKernel | None, target: Target) -> None:
        body = item.body
        assert isinstance(body, Contraction)
        product = as_product(body)
        assert product is not None
        self.work, self.item, self.product, self.target = work, item, product, target
        self.source = str(item.writes[0])
        self.lanes = target.vector_bytes // 4
        self.columns = self.lanes * REGISTERS
        self.params: dict[str, str] = {}
        self.written: set[str] = set()
        self.epilogue = epilogue
        self.count = 0

    def build(self) -> BuiltKernel:
        """The kernel, arranged; its parameters are the operands' buffers, then the epilogue's."""
        epilogue = self._epilogue()
        batch = [self.variable() for _ in self.product.sizes[:-2]]
        rows, columns, depth = self.product.sizes[-2], self.product.sizes[-1], self.product.depth
        panel, tile = self.variable(), self.variable()
        width = sympy.Integer(self.columns)
        body: list[Stmt] = [
            Alloc("panel", torch.float32, (depth, width)),
            *self._pack(batch, panel, columns, depth),
        ]
        inside: list[Stmt] = [
            Alloc("tile", torch.float32, (sympy.Integer(ROWS), width)),
            self._tile(batch, tile, rows, depth),
            *self._finish(epilogue, batch, tile, panel, rows, columns),
        ]
        body.append(For(tile, ZERO, _ceiling(rows, ROWS), Block(tuple(inside)), independent=True))
        nest: Stmt = For(
            panel,
            ZERO,
            _ceiling(columns, self.columns),
            Block(tuple(body)),
            LoopKind.PARALLEL,
            independent=True,
        )
        for variable, size in reversed(list(zip(batch, self.product.sizes[:-2]))):
            nest = For(variable, ZERO, size, Block((nest,)), LoopKind.PARALLEL, independent=True)
        kernel = self._kernel(Block((nest,)))
        for variable in self.jammed:
            kernel = jam(kernel, variable)
        return BuiltKernel(hoist(kernel), tuple(self.params), arranged=True)

    def variable(self) -> Symbol:
        """A loop variable that is not in use."""
        self.count += 1
        return loop_var(f"i{self.count - 1}")

    # -- operands -------------------------------------------------------------------------------------------

    def _operand(self, function: Any, index: Sequence[Expr], term: Expr, name: str) -> tuple[list[Stmt], str]:
        """Straight-line code of ``lhs`` or ``rhs`` at an element, its names beginning with ``name``."""
        recorder = Recorder(self.work.dtypes, {}, origin=self.item.node.origin)
        value = recorder.run(function, tuple(index), (term,))
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

    def _pack(self, batch: Sequence[Expr], panel: Symbol, columns: Expr, depth: Expr) -> list[Stmt]:
        """``panel[k, c] = B[k, 16 panel + c]``."""
        term, column = self.variable(), self.variable()
        at = self._column(panel, column, columns)
        stmts, value = self._operand(self.product.body.rhs, [*batch, ZERO, at], term, "b")
        store = Store("panel", (term, column), value)
        inner = Block((*stmts, store))
        width = sympy.Integer(self.columns)
        if _contiguous(stmts, column):
            loop = For(column, ZERO, width, inner, LoopKind.VECTOR, self.lanes, independent=True)
            return [For(term, ZERO, depth, Block((loop,)), independent=True)]
        return [self._pack_turned(batch, columns, panel, term, column, depth)]

    def _pack_turned(
        self, batch: Sequence[Expr], columns: Expr, panel: Symbol, term: Symbol, block: Symbol, depth: Expr
    ) -> Stmt:
        """B's memory runs along k: as many columns as lanes are read along k, and stored side by side."""
        loads: list[Stmt] = []
        stores: list[Stmt] = []
        for k in range(self.lanes):
            inside = block * self.lanes + k
            at = self._column(panel, inside, columns)
            stmts, value = self._operand(self.product.body.rhs, [*batch, ZERO, at], term, f"b{k}")
            loads += stmts
            stores.append(Store("panel", (term, inside), value))
        loop = For(term, ZERO, depth, Block((*loads, *stores)), LoopKind.VECTOR, self.lanes, independent=True)
        return For(block, ZERO, sympy.Integer(REGISTERS), Block((loop,)), independent=True)

    def _column(self, panel: Symbol, inside: Expr, columns: Expr) -> Expr:
        """Column ``inside`` of a panel as one of B's; beyond the last column that one again."""
        at = panel * self.columns + inside
        if columns.is_Integer and int(columns) % self.columns == 0:
            return at
        return Min(at, columns - 1)

    # -- the register tile ----------------------------------------------------------------------------------

    def _tile(self, batch: Sequence[Expr], tile: Symbol, rows: Expr, depth: Expr) -> Stmt:
        """``T[r, c] = sum over k of A[6 tile + r, k] panel[k, c]``, all of it in registers."""
        lane, row, half = self.variable(), self.variable(), self.variable()
        self.jammed = (half, row)
        at = tile * ROWS + row
        if not (rows.is_Integer and int(rows) % ROWS == 0):
            at = Min(at, rows - 1)
        column = half * self.lanes + lane
        f32 = torch.float32

        def terms(term: Expr, carry: str, tag: str) -> list[Stmt]:
            stmts, value = self._operand(self.product.body.lhs, [*batch, at, ZERO], term, f"a{tag}")
            return [
                *stmts,
                Let(f"q{tag}", f32, "load", ("panel", (term, column))),
                Let(f"s{tag}", f32, "read", (carry, 0)),
                Let(f"n{tag}", f32, "fma", (value, f"q{tag}", f"s{tag}")),
                Advance(carry, f"n{tag}"),
            ]

        if depth.is_Integer and int(depth) <= DEPTH + DEPTH // 2:
            term = self.variable()
            sums: list[Stmt] = [For(term, ZERO, depth, Block(tuple(terms(term, "total", ""))))]
        else:
            block, term = self.variable(), self.variable()
            part = Block(
                (
                    Carry("part", f32, 0.0),
                    For(
                        term,
                        block * DEPTH,
                        Min(depth, block * DEPTH + DEPTH),
                        Block(tuple(terms(term, "part", ""))),
                    ),
                    Let("whole", f32, "read", ("part", 0)),
                    Let("before", f32, "read", ("total", 0)),
                    Let("after", f32, "add", ("before", "whole")),
                    Advance("total", "after"),
                )
            )
            sums = [For(block, ZERO, _ceiling(depth, DEPTH), part)]
        one = Block(
            (
                Carry("total", f32, 0.0),
                *sums,
                Let("made", f32, "read", ("total", 0)),
                Store("tile", (row, column), "made"),
            )
        )
        side = For(half, ZERO, sympy.Integer(REGISTERS), one, independent=True)
        down = For(row, ZERO, sympy.Integer(ROWS), Block((side,)), independent=True)
        return For(
            lane,
            ZERO,
            sympy.Integer(self.lanes),
            Block((down,)),
            LoopKind.VECTOR,
            self.lanes,
            independent=True,
        )

    # -- the epilogue ---------------------------------------------------------------------------------------

    def _epilogue(self) -> Kernel | None:
        if self.epilogue is None:
            return None
        kernel = over_elements(self.epilogue, self.source, self.product.sizes)
        assert kernel is not None
        return kernel

    def _finish(
        self,
        epilogue: Kernel | None,
        batch: Sequence[Expr],
        tile: Symbol,
        panel: Symbol,
        rows: Expr,
        columns: Expr,
    ) -> list[Stmt]:
        """What is done with the tile: the epilogue's statements, or the plain store."""
        row, column = self.variable(), self.variable()
        at = (*batch, tile * ROWS + row, panel * self.columns + column)
        if epilogue is None:
            element = Block((Let("e", torch.float32, "load", ("tile", (row, column))),))
            flat = flatten(at, self.work.buffers[self.source].strides)
            element = Block((*element.stmts, Store(self.param(self.source, written=True), (flat,), "e")))
        else:
            element = self._on_tile(epilogue, at, row, column)
        down = rows - tile * ROWS
        across = columns - panel * self.columns
        inner = For(column, ZERO, _least(across, self.columns, columns), element, independent=True)
        if not_vector(inner) is None:
            inner = replace(inner, kind=LoopKind.VECTOR, step=self.lanes)
        return [For(row, ZERO, _least(down, ROWS, rows), Block((inner,)), independent=True)]

    def _on_tile(self, epilogue: Kernel, at: Sequence[Expr], row: Expr, column: Expr) -> Block:
        """The epilogue's innermost block, its loop variables replaced, its source the tile."""
        chain = _chain(epilogue)
        assert self.epilogue is not None
        names = dict(zip((param.name for param in epilogue.params), self.epilogue.buffers))
        where: dict[Symbol, Expr] = dict(zip((loop.var for loop in chain), self._long(at), strict=True))
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

    def _long(self, at: Sequence[Expr]) -> list[Expr]:
        """The coordinates that have loops: dimensions of one element have none."""
        return [expr for expr, size in zip(at, self.product.sizes) if size != 1]

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
            shape, strides = (_span(info),), (sympy.Integer(1),)
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


def _span(buffer: Buffer) -> Expr:
    """How many elements from a buffer's first to its last one."""
    if any(size == 0 for size in buffer.shape):
        return ZERO
    reach = [(size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides)]
    return sympy.expand(sympy.Add(sympy.Integer(1), *reach))


def over_elements(built: BuiltKernel, source: str, sizes: Sequence[Expr]) -> Kernel | None:
    """The kernel as perfectly nested loops over ``sizes``, flattened, which loads ``source`` at just the
    element that the loops are at; None where it is not of that kind.
    """
    kernel = flatten_accesses(built.kernel)
    wanted = [size for size in sizes if size != 1]
    while len(_chain(kernel)) > len(wanted):
        outer = next((loop for loop in _chain(kernel)[:-1] if merges_cleanly(kernel, loop.var)), None)
        if outer is None:
            return None
        kernel = merge(kernel, outer.var)
    chain = _chain(kernel)
    if len(chain) != len(wanted) or len(kernel.body.stmts) != 1:
        return None
    if not all(same(loop.end, size) for loop, size in zip(chain, wanted)):
        return None
    if any(isinstance(stmt, (Alloc, Carry)) for stmt in walk(kernel.body)):
        return None
    mine = next(param.name for param, buffer in zip(kernel.params, built.buffers) if buffer == source)
    strides = [stride for stride, size in zip(contiguous_strides(tuple(sizes)), sizes) if size != 1]
    place = sympy.expand(flatten(tuple(loop.var for loop in chain), tuple(strides)))
    for stmt in walk(chain[-1].body):
        if isinstance(stmt, Store) and stmt.buffer == mine:
            return None
        reads = isinstance(stmt, Let) and stmt.op == "load" and stmt.args[0] == mine
        if reads and not same(sympy.expand(stmt.args[1][0]), place):  # type: ignore[union-attr]
            return None
    return kernel


def _chain(kernel: Kernel) -> list[For]:
    """The perfectly nested loops of a kernel, outermost first."""
    loop = kernel.body.stmts[0] if len(kernel.body.stmts) == 1 else None
    chain: list[For] = []
    while isinstance(loop, For):
        chain.append(loop)
        loop = inner_loop(loop)
    return chain


def _ceiling(size: Expr, step: int) -> Expr:
    return FloorDiv(size + step - 1, sympy.Integer(step))


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
