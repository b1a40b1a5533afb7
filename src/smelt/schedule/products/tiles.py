"""The parts of kernels with register tiles: operands as statements, packed panels, the tile itself.

All parts are `smelt.nest` statements. A panel holds ``width`` columns of an operand, term after term; a
register tile sums ``left[row, term] * panel[term, column]`` for a few rows and one panel, each sum in a
register.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from torch.utils._sympy.functions import Min

from smelt.loops.ir import Origin
from smelt.loops.record import RecordedValue, Recorder
from smelt.loops.straightline import prune
from smelt.nest.ir import Alloc, Block, For, Kernel, Let, LoopKind, Masked, Param, Stage, Stmt, Store
from smelt.nest.primitives import hoist
from smelt.nest.primitives.turning import TURNED
from smelt.nest.tree import nested, rewritten, with_body
from smelt.records import dataclass, field, replace
from smelt.schedule.fills import fill
from smelt.schedule.grouping.items import Work
from smelt.schedule.nests import size_symbols, to_statement
from smelt.schedule.packed import rounded_by
from smelt.schedule.products.register_tile import Element, Tile, stride
from smelt.symbolic import flatten, least, loop_var, span
from smelt.symbolic.affine import affine, coefficient, divided, expand, remainder

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)
F32 = torch.float32
WIDEST, WIDEST_OF_LARGE = (2, 3, 1), (3, 2, 1)
"""Numbers of adjacent registers in a panel's width, the best ones first; and for large tiles."""
NARROWER = 1.06
"""Cost of a column where large tiles are not of the widest kind."""
SWAPPED_COSTS = {3: 3.0, 2: 2.15, 1: 2.0}
"""Cost of tiles of so many adjacent registers with a vector's rows; a tile of one register waits for its own
sums.
"""
OFTEN = 256
"""Rows, and terms, from which on the widest tiles are worth unused columns in the packing of each call."""

DEPTH = 512
"""Terms that one register sums before its sum is added to the total, for accuracy."""

MOST_PARTS = 4
"""Limit on the vectors of a group of packed numbers that are computed in one iteration."""

Coded = tuple[list[Stmt], str]
"""Statements, and the name of the value that they make."""
Place = Callable[[Expr, Expr], Element]
"""(term, column) of a panel, or (row, column) of a tile → the buffer and the index of that element."""
Left = Callable[[Expr, Sequence[Expr], Expr], Element]
"""(row, terms, column) → the left factor; ``column`` matters where it is shared with the panel."""


def ceiling(size: Expr, step: int) -> Expr:
    """The number of pieces of ``step`` that cover ``size``.

    >>> ceiling(sympy.Integer(33), 16)
    3
    """
    return divided(size + step - 1, sympy.Integer(step))


def clamped(index: Expr, size: Expr, step: int) -> Expr:
    """``index`` in pieces of ``step`` that cover ``size``: indices beyond the end repeat the last element."""
    return index if size.is_Integer and int(size) % step == 0 else least(index, size - 1)


def panel_width(
    columns: Expr, lanes: int, shared: bool = False, large: bool = False, frozen: bool = False, often: int = 0
) -> int:
    """Columns of a panel: the number of adjacent registers that leaves the fewest columns of the last panel
    unused.

    It is one register where lhs is ``shared`` with columns: its loads serve adjacent rows, but no other
    columns. ``large``: `Target.large_tiles`. Wide tiles are worth a few unused columns if panels are
    ``frozen``, packed once for all calls, or if there are many rows and terms: ``often`` is the smaller of
    both.

    >>> [panel_width(sympy.Integer(columns), 16) for columns in (64, 144, 16)]
    [32, 48, 16]
    >>> panel_width(sympy.Integer(64), 16, shared=True)
    16
    >>> [panel_width(sympy.Integer(columns), 16, large=True) for columns in (64, 192, 16)]
    [32, 48, 16]
    >>> [panel_width(sympy.Integer(512), 16, large=True, often=often) for often in (128, 512)]
    [32, 48]
    """
    if shared:
        return lanes
    widest = WIDEST_OF_LARGE if large else WIDEST
    if not columns.is_Integer:
        return lanes * widest[0]

    def cost(wide: int) -> float:
        narrower = large and (frozen or often >= OFTEN) and wide < widest[0]
        return -(-int(columns) // (wide * lanes)) * wide * (NARROWER if narrower else 1.0)

    return lanes * min(widest, key=cost)


def swapped_panels(columns: int, lanes: int) -> tuple[float, int]:
    """The cost of all panels of a product with swapped operands, in adjacent registers, and the registers of
    a panel: only used columns of the last one are summed.

    >>> [swapped_panels(columns, 16) for columns in (128, 48, 49, 32)]
    [(8.15, 3), (3.0, 3), (4.3, 2), (2.15, 2)]
    """

    def cost(wide: int) -> float:
        full, rest = divmod(-(-columns // lanes), wide)
        return full * SWAPPED_COSTS[wide] + SWAPPED_COSTS.get(rest, 0.0)

    return min((cost(wide), wide) for wide in SWAPPED_COSTS)


def added(into: str, place: tuple[Expr, ...], value: str) -> list[Stmt]:
    """``into[place] += value``."""
    return [
        Let("before", F32, "load", (into, place)),
        Let("after", F32, "add", ("before", value)),
        Store(into, place, "after"),
    ]


@dataclass(slots=True)
class TileWriter:
    """Writes the statements of one kernel; keeps its parameters and loop variables.

    ``lanes``: float32 elements of a vector register.
    """

    work: Work
    origin: Origin
    lanes: int
    params: dict[str, str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    extents: dict[Symbol, Expr] = field(default_factory=dict)
    count: int = 0

    # -- names ----------------------------------------------------------------------------------------------

    def variable(self, extent: Expr | None = None) -> Symbol:
        """A new loop variable; ``extent`` is passed where it helps to simplify indices."""
        self.count += 1
        made = loop_var(f"i{self.count - 1}")
        if extent is not None:
            self.extents[made] = extent
        return made

    def param(self, buffer: str, *, written: bool = False) -> str:
        """The parameter of a buffer of the graph; all accesses are by one flat index."""
        if buffer not in self.params:
            self.params[buffer] = f"p{len(self.params)}"
        if written:
            self.written.add(buffer)
        return self.params[buffer]

    def kernel(self, body: Block) -> Kernel:
        """The kernel around ``body``, shared statements of loops first; it has no name yet
        (`Deduplicated`).
        """
        return own_functions(hoist(self.plain(body)))

    def plain(self, body: Block) -> Kernel:
        """The kernel around ``body`` as it is."""
        params = []
        for buffer, param in self.params.items():
            info = self.work.buffers[buffer]
            params.append(
                Param(param, info.dtype, (span(info.shape, info.strides),), (ONE,), buffer in self.written)
            )
        return Kernel("", tuple(params), size_symbols(body, params), body)

    # -- values ---------------------------------------------------------------------------------------------

    def coded(
        self, function: Callable[[], Any], prefix: str, given: Mapping[str, torch.dtype] | None = None
    ) -> Coded:
        """The statements of ``function`` under the `ops` handler, with names that begin with ``prefix``.

        ``given`` are values that it uses and that are bound outside.
        """
        recorder = Recorder(self.work.dtypes, self.extents, origin=self.origin)
        recorder.load_hook = lambda buffer, index: self._inlined(recorder, buffer, index)
        for name, dtype in (given or {}).items():
            recorder.adopt(RecordedValue(name, dtype))
        value = recorder.run(function)
        steps = prune(recorder.instructions, [value.name], set())
        names: dict[str, str] = {}
        looked_up: dict[Symbol, Symbol] = {}
        stmts = [self._renamed(to_statement(step), names, looked_up, prefix) for step in steps]
        return stmts, names.get(value.name, value.name)

    def _inlined(self, recorder: Recorder, buffer: str, index: tuple[Expr, ...]) -> Any:
        """Reads a plain copy from its source."""
        producer = self.work.inlined.get(buffer)
        return None if producer is None else recorder.inlined(buffer, index, producer)

    def _renamed(
        self, stmt: Stmt, names: dict[str, str], looked_up: dict[Symbol, Symbol], prefix: str
    ) -> Stmt:
        assert isinstance(stmt, (Let, Masked))
        made = f"{prefix}{stmt.name}"
        if isinstance(stmt, Masked):
            body = Block(tuple(self._renamed(inner, names, looked_up, prefix) for inner in stmt.body.stmts))
            mask, result = (names.get(name, name) for name in (stmt.mask, stmt.result))
            names[stmt.name] = made
            return replace(stmt, name=made, mask=mask, body=body, result=result)
        args = list(stmt.args)
        if stmt.op == "load":
            strides = self.work.buffers[stmt.args[0]].strides
            place = expand(flatten(stmt.args[1], strides))
            args = [self.param(stmt.args[0]), (place.xreplace(looked_up),)]
        elif stmt.op == "index_expr":
            args[0] = args[0].xreplace(looked_up)
        elif stmt.op != "constant":
            args = [names.get(arg, arg) if isinstance(arg, str) else arg for arg in args]
        names[stmt.name] = made
        if stmt.index is not None:
            looked_up[stmt.index] = loop_var(f"{prefix}{stmt.index}")
            return replace(stmt, name=made, args=tuple(args), index=looked_up[stmt.index])
        return replace(stmt, name=made, args=tuple(args))

    # -- loops ----------------------------------------------------------------------------------------------

    def over(self, end: Expr, body: Callable[[Symbol], Iterable[Stmt]]) -> For:
        """A serial loop from 0 whose iterations do not depend on each other."""
        variable = self.variable()
        return For(variable, ZERO, end, Block(tuple(body(variable))))

    def vector(self, begin: Expr, end: Expr, body: Callable[[Symbol], Iterable[Stmt]]) -> For:
        """A vector loop."""
        variable = self.variable()
        inside = Block(tuple(body(variable)))
        return For(variable, begin, end, inside, LoopKind.VECTOR, self.lanes)

    def cleared(self, into: Place, rows: Expr, width: Expr) -> list[Stmt]:
        """0.0 in the elements ``into(row, column)`` of all rows and columns."""
        row, column = self.variable(), self.variable()
        element = into(row, column)
        if stride(element, column) == 1 and all(affine(expr, (row, column)) for expr in element[1]):
            return [fill(element[0], F32, 0.0, element[1], [(row, ZERO, rows), (column, ZERO, width)])]
        zero = Let(f"zero_{column}", F32, "constant", (0.0,))
        along = For(column, ZERO, width, Block((Store(*element, zero.name),)), LoopKind.VECTOR, self.lanes)
        return [zero, For(row, ZERO, rows, Block((along,)))]

    def rows_of(
        self, name: str, rows: int, terms: Expr, at: Callable[[Expr, Expr], Any]
    ) -> tuple[list[Stmt], Left]:
        """The elements ``at(row, term)`` of a loop function: where they are, or where the statements compute
        them, in scratch memory of that name.
        """

        def computed(row: Expr, term: Expr) -> list[Stmt]:
            stmts, value = self.coded(lambda: at(row, term), "e")
            return [*stmts, Store(name, (row, term), value)]

        load, *others = computed(self.variable(), self.variable())
        if isinstance(load, Let) and load.op == "load" and load.dtype is F32 and len(others) == 1:

            def there(row: Expr, over: Sequence[Expr], column: Expr) -> Element:
                (load, _) = computed(row, over[0])
                assert isinstance(load, Let)
                return load.args[0], load.args[1]

            return [], there
        height = sympy.Integer(rows)
        made = self.over(height, lambda row: [self.vector(ZERO, terms, lambda term: computed(row, term))])
        return [Alloc(name, F32, (height, terms)), made], lambda row, over, column: (name, (row, over[0]))

    # -- panels ---------------------------------------------------------------------------------------------

    def pack(self, into: str, columns: Expr, width: int, terms: Expr, at: Callable[[Expr, Expr], Any]) -> For:
        """``into[panel, term, column] = at(panel * width + column, term)``; ``at`` is a loop function.

        Columns of the last panel beyond ``columns`` repeat the last one, or are 0.
        """
        panel = self.variable()

        def place(term: Expr, column: Expr) -> tuple[str, tuple[Expr, ...]]:
            return into, (panel, term, column)

        even = columns.is_Integer and int(columns) % width == 0
        here = sympy.Integer(width) if even else least(sympy.Integer(width), columns - panel * width)
        body = self.pack_panel(place, panel, here, width, terms, at)
        return For(panel, ZERO, ceiling(columns, width), Block((body,)))

    def pack_panel(
        self,
        into: Place,
        panel: Symbol,
        columns: Expr,
        width: int,
        terms: Expr,
        at: Callable[[Expr, Expr], Any],
    ) -> For:
        """A panel of `pack` with ``columns``; ``into(term, column)`` is the destination of an element."""
        term, column = self.variable(), self.variable()
        stmts, value = self.coded(lambda: at(panel * width + column, term), "b")
        if not contiguous(stmts, column):
            return self._pack_transposed(into, panel, term, column, columns, width, terms, at)
        wide = sympy.Integer(width)
        inner = Block((*stmts, Store(*into(term, column), value)))
        lanes: list[Stmt] = [For(column, ZERO, columns, inner, LoopKind.VECTOR, self.lanes)]
        if columns != wide:
            zero = Let(f"zero_{column}", F32, "constant", (0.0,))  # it may be moved to where others are
            lanes.append(self.vector(columns, wide, lambda rest: [zero, Store(*into(term, rest), zero.name)]))
        return For(term, ZERO, terms, Block(tuple(lanes)))

    def _pack_transposed(
        self,
        into: Place,
        panel: Symbol,
        term: Symbol,
        block: Symbol,
        columns: Expr,
        width: int,
        terms: Expr,
        at: Callable[[Expr, Expr], Any],
    ) -> For:
        """Packs a source that is contiguous along the terms: as many columns as lanes are read along it, and
        stored transposed.
        """
        column, lanes = self.variable(), self.lanes
        inside = block * lanes + column
        place = panel * width + (inside if columns == width else least(inside, columns - 1))

        def transposed(term: Expr) -> tuple[Stmt, ...]:
            stmts, value = self.coded(lambda: at(place, term), "b")
            each = Block((*stmts, Store(*into(term, inside), value)))
            plain = all(isinstance(stmt, Let) for stmt in stmts)
            kind = LoopKind.TURN if plain and lanes in TURNED else LoopKind.SERIAL
            return (For(column, ZERO, sympy.Integer(lanes), each, kind),)

        loop = in_groups(self, term, terms, transposed)
        return For(block, ZERO, sympy.Integer(width // lanes), Block((loop,)))

    # -- the register tile ----------------------------------------------------------------------------------

    def tile(
        self,
        rows: int,
        width: int,
        terms: Sequence[Expr | tuple[Expr, Expr]],
        left: Left,
        panel: Callable[[Sequence[Expr], Expr], Element],
        into: Place,
        *,
        step: int = 0,
        ahead: Callable[[Sequence[Expr]], Element | None] = lambda _: None,
        result: str = "store",
        factor: Callable[[Expr], Element] | None = None,
        windows: bool = False,
    ) -> Stmt:
        """``into(row, column) = sum over terms of left(row, terms, column) * panel(terms, column)``, all
        elements at once.

        ``terms``: the extents of the loops over them, outermost first, or their begins and ends. ``step``:
        the distance of terms in a panel, ``width`` by default. ``ahead``: what is prefetched with a term.
        ``result``, ``factor``: see `Tile`. ``windows``: the terms of the last loop overlap with those of
        other rows; it is unrolled, so that each is loaded once.
        """
        row, column = self.variable(sympy.Integer(rows)), self.variable()
        ranges = [(self.variable(), *(each if isinstance(each, tuple) else (ZERO, each))) for each in terms]
        over = [variable for variable, _, _ in ranges]

        def at(row: Expr, column: Expr) -> Tile:
            operands = left(row, over, column), panel(over, column), into(row, column)
            scaled = factor(row) if factor is not None else None
            return Tile(*operands, step or width, ahead(over), result, scaled)

        stage = at(row, column).stage(row, column, ranges, rows, width, self.lanes) if terms else None
        if stage is not None:
            return stage
        unrolled = windows and all(end.is_Integer for _, _, end in ranges[-1:])
        kind = LoopKind.UNROLL if unrolled else LoopKind.SERIAL
        return self._side_by_side(rows, width, lambda row, column: at(row, column).sums(ranges, kind))

    def tile_in_parts(
        self,
        rows: int,
        width: int,
        terms: Sequence[Expr],
        left: Left,
        panel: Callable[[Sequence[Expr], Expr], Element],
        into: Place,
        *,
        step: int = 0,
        ahead: Callable[[Sequence[Expr]], Element | None] = lambda _: None,
    ) -> list[Stmt]:
        """As `tile`; the sums are added to the element ``into(row, column)``, so that no register takes many
        more than `DEPTH` terms.
        """
        *sizes, innermost = terms
        outer, block = [self.variable() for _ in sizes], self.variable()
        part = (ZERO, innermost)
        if not is_short(innermost):
            part = block * DEPTH, least(innermost, block * DEPTH + DEPTH)
        body: Stmt = self.tile(
            rows,
            width,
            [part],
            lambda row, term, column: left(row, [*outer, *term], column),
            lambda term, column: panel([*outer, *term], column),
            into,
            step=step,
            ahead=lambda term: ahead([*outer, *term]),
            result="add",
        )
        if not is_short(innermost):
            body = For(block, ZERO, ceiling(innermost, DEPTH), Block((body,)))
        for variable, size in reversed(list(zip(outer, sizes))):
            body = For(variable, ZERO, size, Block((body,)))
        return [*self.cleared(into, sympy.Integer(rows), sympy.Integer(width)), body]

    def _side_by_side(self, rows: int, width: int, one: Callable[[Symbol, Expr], Iterable[Stmt]]) -> For:
        """``one(row, column)`` for all elements of a tile at once, each with registers of its own."""
        lane, row, side = self.variable(), self.variable(sympy.Integer(rows)), self.variable()
        body = Block(tuple(one(row, side * self.lanes + lane)))
        for variable, count in ((side, width // self.lanes), (row, rows)):
            body = Block((For(variable, ZERO, sympy.Integer(count), body, LoopKind.JAM),))
        lanes = sympy.Integer(self.lanes)
        return For(lane, ZERO, lanes, body, LoopKind.VECTOR, self.lanes)


def own_functions(kernel: Kernel) -> Kernel:
    """The kernel, in which rows of vectors that follow a register tile have the note ``function``: compilers
    take as long for them as for all the rest, and kernels of other sizes call the same
    (`smelt.codegen.cpp.micro_kernels`).
    """
    tiles: list[Stage] = []

    def rewrite(stmt: Stmt) -> Sequence[Stmt] | None:
        if isinstance(stmt, Stage):
            tiles.extend([stmt] if stmt.text is not None and stmt.text.form[0] == "register_tile" else [])
            return [stmt]
        if not tiles or not isinstance(stmt, For) or stmt.kind is not LoopKind.SERIAL:
            return None
        (*rows, lanes), held = nested(stmt)
        serial = rows and all(each.kind is LoopKind.SERIAL for each in rows)
        if not serial or lanes.kind is not LoopKind.VECTOR or lanes.begin != 0:
            return None
        if not all(isinstance(each, (Let, Store)) for each in held):
            return None
        return [replace(stmt, notes=(*stmt.notes, ("function", True)))]

    return with_body(kernel, rewritten(kernel.body, rewrite))


def is_short(terms: Expr) -> bool:
    """Whether one register may sum that many terms: no more than about `DEPTH`."""
    return bool(terms.is_Integer) and int(terms) <= DEPTH + DEPTH // 2


def in_groups(writer: TileWriter, term: Symbol, terms: Expr, body: Callable[[Expr], tuple[Stmt, ...]]) -> For:
    """A vector loop over ``terms``; where they are packed numbers, loops over groups that share an element or
    a byte, and vectors of them.
    """
    lanes = writer.lanes
    loop = For(term, ZERO, terms, Block(body(term)), LoopKind.VECTOR, lanes)
    step = group_of(loop, lanes)
    if not step:
        return loop
    sizes = (None, sympy.Integer(step // lanes), sympy.Integer(lanes))
    group, part, lane = (writer.variable(size) for size in sizes)
    inner = Block(body(group * step + part * lanes + lane))
    loop = For(lane, ZERO, sympy.Integer(lanes), inner, LoopKind.VECTOR, lanes)
    loop = For(part, ZERO, sympy.Integer(step // lanes), Block((loop,)), LoopKind.UNROLL)
    return For(group, ZERO, divided(terms, sympy.Integer(step)), Block((loop,)))


def group_of(loop: For, lanes: int) -> int:
    """The number of iterations that share an element or a byte of packed numbers, at most `MOST_PARTS`
    vectors; 0 where lanes read adjacent memory, or groups are no whole vectors.

    >>> from smelt.symbolic import FloorDiv, Mod
    >>> i = loop_var("i")
    >>> load = Let("a", F32, "load", ("p0", (16 * FloorDiv(i, 32) + Mod(i, 16),)))
    >>> group_of(For(i, ZERO, sympy.Integer(64), Block((load,))), 16)
    32
    """
    sizes = rounded_by(loop)
    step = max((size for size in sizes if size <= MOST_PARTS * lanes), default=lanes)
    whole = all(remainder(each, step) == 0 for each in Min.make_args(loop.end))
    return step if sizes and whole and not any(size % lanes for size in sizes) else 0


def contiguous(stmts: Sequence[Stmt], column: Symbol) -> bool:
    """Whether every load moves by one element with ``column``."""
    flat = [stmt.args[1][0] for stmt in stmts if isinstance(stmt, Let) and stmt.op == "load"]
    return all(coefficient(expr, column) == 1 for expr in flat)
