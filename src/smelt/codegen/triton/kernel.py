"""Prints a kernel of a GPU recipe as a Triton function: bound loops are programs and lanes, the others loops.

Every value is a block of two dimensions: lanes of threadIdx.y first, lanes of threadIdx.x second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from sympy import Expr, Integer, Symbol

from smelt.codegen.index import Names, Spelling, condition_text, flat_offset
from smelt.codegen.nests import NestText
from smelt.codegen.triton.values import LOW, TYPES, Value, Values, among
from smelt.codegen.triton.words import ends_of, index_bits, lanes_of
from smelt.errors import Unsupported
from smelt.loops.reductions import MODES, identity
from smelt.nest.dependence import carried_state
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Alloc,
    Block,
    Carry,
    Combination,
    For,
    Guard,
    Let,
    Masked,
    SortRow,
    Stmt,
    Store,
    Update,
)
from smelt.nest.tree import loops, needed, symbols_of, trip_count, walk
from smelt.ops import using
from smelt.records import dataclass, field
from smelt.symbolic import flatten, loop_var
from smelt.symbolic.affine import expand

TRITON = Spelling(
    "Triton", "{}//{}", " & ", " | ", "({} == 0)", "tl.where({}, {}, {})", ("False", "True"), floats=False
)
AXES = {"threadIdx.y": 0, "threadIdx.x": 1}
TERMS = "threadIdx.z"
"""Iterations that are terms of a product: columns of its left block, rows of its right one."""
MANY = 4096
"""Elements of a block of sums that eight warps share."""
SMALLEST = 16
"""The fewest rows, columns and terms of blocks that Triton multiplies."""
GRID = {"blockIdx.x": 0, "blockIdx.y": 1, "blockIdx.z": 2}
Axes = frozenset[int]

COMBINED = {
    "sum": "plus",
    "prod": "times",
    "max": "maximum",
    "min": "minimum",
    "any": "either",
    "all": "both",
    "xor_sum": "exclusive",
    "argmax": "first_greatest",
    "argmin": "first_least",
    "welford": "welford",
    "online_softmax": "softmax_parts",
}
"""Reduction → the function (`functions.py`) that combines two partial results, of one or several values."""
STORED = {mode: kind for kind, mode in MODES.items()}
"""Mode of a store → the reduction that it is a step of."""
WORDS = (torch.int32, torch.int64)
ATOMIC = {
    "add": ("atomic_add", (*WORDS, torch.float32, torch.float64)),
    "maximum": ("atomic_max", WORDS),
    "minimum": ("atomic_min", WORDS),
}
"""Mode of a store → Triton's own function, and the dtypes that it is right for."""
NOWHERE = 2**63 - 1
"""The position of an argmax or argmin over no element so far."""


def starts(kind: str, dtype: torch.dtype) -> list[tuple[float | int | bool, torch.dtype]]:
    """The partial result of no elements: the number and the dtype of each of its values."""
    if kind in ("any", "all"):
        return [(kind == "all", torch.bool)]
    if kind in ("argmax", "argmin"):
        return [(identity(kind.removeprefix("arg"), dtype), dtype), (NOWHERE, torch.int64)]
    if kind == "welford":
        return [(0.0, dtype)] * 3
    if kind == "online_softmax":
        return [(float("-inf"), dtype), (0.0, dtype)]
    return [(identity(kind, dtype), dtype)]


@dataclass(frozen=True, slots=True)
class Lanes:
    """A loop whose iterations are lanes: their number (a power of two), and the mask of active lanes ("" for
    all).
    """

    loop: For
    axis: int
    width: int
    mask: str


@dataclass(slots=True)
class Sum:
    """An accumulator: its variables, and the axes that are reduced when it is read."""

    kind: str
    names: tuple[str, ...]
    dtype: torch.dtype
    folded: tuple[int, ...]
    axes: Axes


@dataclass(slots=True)
class Row:
    """A buffer that a block keeps in registers: its strides, and its value once stored."""

    stmt: Alloc
    value: Value | None = None
    width: int = 0


@dataclass(slots=True)
class BlockText(NestText):
    """The text of one kernel. ``grid``: the programs along each axis; ``errors``: the error of check number
    1, 2 …
    """

    symbols: Names = field(default_factory=lambda: Names(spelling=TRITON), kw_only=True)
    grid: dict[int, Expr] = field(default_factory=dict)
    errors: list[tuple[str, str]] = field(default_factory=list)
    lanes: list[Lanes] = field(default_factory=list)
    conditions: list[tuple[str, Axes]] = field(default_factory=list)
    axes: dict[Symbol, Axes] = field(default_factory=dict)
    of_value: dict[str, Axes] = field(default_factory=dict)
    sums: dict[str, Sum] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    narrow: dict[str, Value] = field(default_factory=dict)
    """The text of a value → the 16-bit float that it was before."""
    interpreted: bool = False
    """Blocks of 16-bit floats are multiplied in float32: the interpreter multiplies bfloat16's bits."""
    scans: dict[str, Combination] = field(default_factory=dict)
    carried: dict[str, int] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    name: str = ""
    word: str = "tl.int64"
    handler: Any = None

    def function(self, name: str) -> str:
        """The kernel as a function of its buffers, its sizes and the address for failed checks; before it the
        functions that it scans by.
        """
        self.name, self.handler = name, Values(self.block_index)
        self.word = f"tl.int{index_bits(self.kernel)}"
        self.symbols |= {size: size.name for size in self.kernel.sizes}
        self.axes |= {size: frozenset() for size in self.kernel.sizes}
        self.statements(self.kernel.body)
        heads = [*(param.name for param in self.kernel.params), *(size.name for size in self.kernel.sizes)]
        origins = [f"    # {origin}" for origin in self.kernel.origins]
        head = f"def {name}({', '.join([*heads, 'failed'])}):"
        return "\n".join([*self.functions, "@triton.jit", head, *origins, *self.text(), "    return", ""])

    @property
    def warps(self) -> int:
        """The warps of a block: 8 elements for each of their threads, more of blocks that are multiplied."""
        elements = 1
        for thread in AXES:
            widths = [lanes_of(loop)[0] for loop in loops(self.kernel.body) if loop.thread == thread]
            elements *= max(widths, default=1)
        if any(loop.thread == TERMS for loop in loops(self.kernel.body)):
            return 8 if elements >= MANY else 4
        return min(16, max(1, elements // 256))

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def block(self, opening: str, closing: str = "") -> Iterator[None]:
        self.line(f"{opening}:")
        self.indent += 1
        yield
        self.indent -= 1

    def axes_of(self, exprs: Iterable[Any]) -> Axes:
        """The axes along which expressions differ between lanes."""
        symbols = {symbol for expr in exprs for symbol in expr.free_symbols}
        return frozenset().union(*(self.axes[symbol] for symbol in symbols))

    def block_index(self, expr: Expr) -> str:
        """An index as a block, also where it is the same for all lanes."""
        return self._as_block(self.index(expr), self.axes_of([expr]))

    def _as_block(self, text: str, axes: Axes) -> str:
        return text if axes else f"({text} + tl.zeros([1, 1], {self.word}))"

    # -- loops ----------------------------------------------------------------------------------------------

    def loop(self, stmt: For) -> None:
        if stmt.thread in GRID:
            axis = GRID[stmt.thread]
            if axis in self.grid or self.indent > 1 or self.lanes:
                raise Unsupported(f"a second loop over {stmt.thread}, or one inside of others")
            self.grid[axis] = trip_count(stmt)
            name = self._named(stmt, frozenset())
            self.line(f"{name} = tl.program_id({axis}).to({self.word}) + {self.index(stmt.begin)}")
            self.statements(stmt.body)
        elif stmt.thread in AXES:
            with self._in_lanes(stmt, AXES[stmt.thread]):
                self.statements(stmt.body)
        elif stmt.thread == TERMS:
            self._dot(stmt)
        elif stmt.thread is not None:
            raise Unsupported(f"loops over {stmt.thread}")
        else:
            if self.axes_of([stmt.begin, stmt.end]):
                raise Unsupported("a loop that is not equally long for all lanes")
            name = self._named(stmt, frozenset())
            begin = f"tl.cast({self.index(stmt.begin)}, {self.word})"  # its dtype is that of the variable
            with self.block(f"for {name} in range({begin}, {self.index(stmt.end)})"):
                self.statements(stmt.body)

    def _named(self, loop: For, axes: Axes) -> str:
        name = self.symbols[loop.var] = self.fresh("xr"[1 in axes] if axes else "i")
        self.axes[loop.var] = axes
        return name

    @contextmanager
    def _in_lanes(self, stmt: For, axis: int) -> Iterator[None]:
        """Makes the iterations of a loop the lanes along an axis."""
        if any(each.axis == axis for each in self.lanes):
            raise Unsupported(f"a loop over {stmt.thread} inside of another")
        width, exact = self._width(stmt)
        begin, end = self.index(stmt.begin), self.index(stmt.end)
        if len(ends := _ends(stmt, width)) == 1:
            end = self.index(ends[0])
        name = self._named(stmt, frozenset({axis}))
        shape = "[:, None]" if axis == 0 else "[None, :]"
        self.line(f"{name} = {begin} + tl.arange(0, {width}).to({self.word}){shape}")
        mask = ""
        if not exact:
            mask = self.fresh("m")
            self.line(f"{mask} = {name} < {end}")
        self.lanes.append(Lanes(stmt, axis, width, mask))
        if axis == 1:
            by = (each.by for each in carried_state(stmt) if each.by is not None)
            self.scans |= {value: each for each in by for value in each.values}
        yield
        self.lanes.pop()

    # -- products of blocks ---------------------------------------------------------------------------------

    def _dot(self, stmt: For) -> None:
        """A loop over terms of a product: its iterations are the columns of the left block and the rows of
        the right one.
        """
        update, lanes = stmt.body.stmts[-1], list(self.lanes)
        if not isinstance(update, Update) or {each.axis for each in lanes} != {0, 1} or self.conditions:
            raise Unsupported("a product of blocks that are not rows and columns")
        product = next(e for e in stmt.body.stmts if isinstance(e, Let) and e.name == update.value)
        names = list(product.args)
        if lanes[1].loop.var in symbols_of(needed(stmt.body, names[0])):
            names.reverse()
        blocks = [self._operand(stmt, name, lanes[axis]) for axis, name in enumerate(names)]
        if len({each.dtype for each in blocks}) > 1:
            blocks = [self.handler.to_dtype(each, product.dtype) for each in blocks]
        (accumulator,) = self.sums[update.acc].names
        texts = ", ".join([*(each.text for each in blocks), accumulator])
        dtype = self.sums[update.acc].dtype
        self.line(
            f'{accumulator} = tl.dot({texts}, input_precision="{_precision()}", out_dtype={TYPES[dtype]})'
        )

    def _operand(self, terms: For, name: str, own: Lanes) -> Value:
        """One block of a product, from rows or columns (``own``) and terms; 0 beyond the last term."""
        body = needed(terms.body, name)
        others = {each.loop.var for each in self.lanes} - {own.loop.var}
        if not others.isdisjoint(symbols_of(body)):
            raise Unsupported("a product's operand that depends on rows and columns")
        known, self.lanes = self.lanes, [own]
        with self._in_lanes(terms, 1 - own.axis):
            self.statements(body)
            value, mask = self.values[name], self.lanes[-1].mask
            shape = [self._width_of(0), self._width_of(1)]
            loads = (stmt for stmt in body.stmts if isinstance(stmt, Let) and stmt.op == "load")
            read = {stmt.name for stmt in loads if stmt.args[0] not in self.rows}
            last = body.stmts[-1]
            if isinstance(last, Let) and last.op == "to_dtype" and value.text in self.narrow:
                value, name = self.narrow[value.text], last.args[0]
            text = f"tl.broadcast_to({value.text}, {shape})"
            if mask and name not in read:  # loads have the mask already
                text = f"tl.where({mask}, {text}, {self.handler.constant(0, value.dtype).text})"
            found = Value(self.fresh("block"), value.dtype)
            self.line(f"{found.text} = {text}")
        self.lanes = known
        return found

    def _width(self, loop: For) -> tuple[int, bool]:
        """The number of lanes of a loop, and whether all of them are always active; blocks that are
        multiplied have some at least.
        """
        width, exact = lanes_of(loop)
        least = SMALLEST if any(each.thread == TERMS for each in loops(self.kernel.body)) else 1
        return max(width, least), exact and width >= least

    def statements(self, block: Block) -> None:
        for position, stmt in enumerate(block.stmts):
            if isinstance(stmt, Accumulate):
                self._accumulate(stmt, block.stmts[position + 1 :])
            else:
                self.statement(stmt)

    def guard(self, stmt: Guard) -> None:
        axes = self.axes_of(stmt.condition.free_symbols)
        name = self.fresh("m")
        self.line(f"{name} = {condition_text(stmt.condition, self.symbols)} & {TRUE}")
        self.conditions.append((name, axes))
        self.statements(stmt.body)
        self.conditions.pop()

    # -- masks ----------------------------------------------------------------------------------------------

    def mask(self, axes: Axes) -> tuple[str, Axes]:
        """The mask of active lanes, from the lanes along ``axes`` and all conditions, and the axes along
        which it differs.
        """
        parts = [
            (each.mask, frozenset({each.axis})) for each in self.lanes if each.mask and each.axis in axes
        ]
        for name, own in self.conditions:
            parts.append((name, own))
            parts += [(e.mask, frozenset({e.axis})) for e in self.lanes if e.mask and e.axis in own - axes]
        texts = dict.fromkeys(name for name, _ in parts)
        return " & ".join(texts), frozenset().union(*(own for _, own in parts))

    def _pointer(self, buffer: str, index: Sequence[Expr]) -> tuple[str, str, Axes]:
        """The addresses of elements, their mask, and the axes along which they differ."""
        strides = next(param.strides for param in self.kernel.params if param.name == buffer)
        offset = flat_offset(index, strides)
        axes = self.axes_of(factor for term in offset.terms for factor in term.factors)
        mask, masked = self.mask(axes)
        text = self._as_block(offset.text(self.symbols), axes)
        if masked - axes:
            text = f"({text} + ({mask}).to({self.word}) * 0)"
        return f"{buffer} + {text}", f", mask={mask}" if mask else "", axes | masked

    # -- values ---------------------------------------------------------------------------------------------

    def let(self, stmt: Let) -> None:
        if stmt.name in self.scans:
            self._scan(self.scans[stmt.name])
        elif stmt.op == "indirect_index":
            self._look_up(stmt)
        elif stmt.op == "read":
            self._bound(stmt.name, *self._read(stmt))
        elif stmt.op == "load":
            self._bound(stmt.name, *self._load(stmt))
        else:
            value = self.perform(stmt, self.handler)
            names = [arg for arg in stmt.args if isinstance(arg, str) and arg in self.of_value]
            axes = frozenset().union(*(self.of_value[name] for name in names))
            text = self._bound(
                stmt.name, value, self.axes_of([stmt.args[0]]) if stmt.op == "index_expr" else axes
            )
            given = self.values[stmt.args[0]] if stmt.op == "to_dtype" else None
            if given is not None and given.dtype in LOW and not self.interpreted:
                self.narrow[text] = given

    def _bound(self, name: str, value: Value, axes: Axes) -> str:
        text = self.fresh("v")
        self.line(f"{text} = {value.text}")
        self.values[name], self.of_value[name] = Value(text, value.dtype), axes
        return text

    def _load(self, stmt: Let) -> tuple[Value, Axes]:
        buffer, index = stmt.args
        if buffer in self.rows:
            return self._from_row(self.rows[buffer], index)
        if buffer in self.written:
            self.line("tl.debug_barrier()")
        place, mask, axes = self._pointer(buffer, index)
        other = f"{mask}, other=0" if mask else ""
        among(stmt.dtype)
        return Value(f"tl.load({place}{other})", stmt.dtype), axes

    def masked(self, stmt: Masked) -> None:
        mask = self.values[stmt.mask]
        self.conditions.append((mask.text, self.of_value[stmt.mask]))
        self.statements(stmt.body)
        self.conditions.pop()
        other = self.handler.constant(stmt.other, stmt.dtype).text
        axes = self.of_value[stmt.mask] | self.of_value[stmt.result]
        text = f"tl.where({mask.text}, {self.values[stmt.result].text}, {other})"
        self._bound(stmt.name, Value(text, stmt.dtype), axes)

    def _look_up(self, stmt: Let) -> None:
        x, size, wrap, check = stmt.args
        assert stmt.index is not None
        axes, value, name, extent = self.of_value[x], self.values[x], self.fresh("at"), self.index(size)
        self.line(f"{name} = {value.text}.to(tl.int64)")
        if wrap:
            self.line(f"{name} = tl.where({name} < 0, {name} + {extent}, {name})")
        if check:
            self.errors.append(("RuntimeError", check) if isinstance(check, str) else ("IndexError", OUTSIDE))
            mask, masked = self.mask(axes)
            bad = f"({name} < 0) | ({name} >= {extent})"
            if mask:
                bad = f"({bad}) & {mask}"
            wrong = self.fresh("wrong")
            self.line(f"{wrong} = {bad}")
            number = len(self.errors)
            self.line(f"tl.store(failed + {wrong}.to(tl.int64) * 0, {number}, mask={wrong})")
            self.line(f"{name} = tl.where({wrong}, 0, {name})")
            axes |= masked
        if self.word != "tl.int64":
            self.line(f"{name} = {name}.to({self.word})")
        self.symbols[stmt.index], self.axes[stmt.index] = name, axes

    # -- stores ---------------------------------------------------------------------------------------------

    def store(self, stmt: Store) -> None:
        value, own = self.values[stmt.value], self.of_value[stmt.value]
        if stmt.buffer in self.rows:
            self._into_row(self.rows[stmt.buffer], stmt, value)
            return
        place, mask, axes = self._pointer(stmt.buffer, stmt.index)
        if own - axes:
            raise Unsupported("lanes that store to one element")
        self.written.add(stmt.buffer)
        mode = (stmt.mode or "").removeprefix("atomic_")
        if not mode:
            self.line(f"tl.store({place}, {value.text}{mask})")
        elif mode in ATOMIC and value.dtype in ATOMIC[mode][1]:
            self.line(f"tl.{ATOMIC[mode][0]}({place}, {value.text}{mask})")
        else:
            self._combine(place, mode, value, mask.removeprefix(", mask="))

    def _combine(self, place: str, mode: str, value: Value, mask: str) -> None:
        """Combines by compare and swap; lanes that are not active swap nothing at the buffer's start."""
        size = value.dtype.itemsize
        if size == 1:
            raise Unsupported(f"{mode} of {value.dtype} between programs")
        buffer, offset = place.split(" + ", 1)
        inside = mask or TRUE
        pointer = f"{buffer} + tl.where({inside}, {offset}, 0)"
        word, function = f"tl.int{8 * size}", COMBINED[STORED[mode]]
        self.line(f"combine_at({pointer}, {value.text}, {inside}, {function}, {word})")

    def alloc(self, stmt: Alloc) -> None:
        self.rows[stmt.buffer] = Row(stmt)

    def _row_lanes(self, row: Row, index: Sequence[Expr]) -> Lanes | None:
        """The lanes that an index of a row follows, element by element; None: the index is uniform."""
        flat = flatten(index, row.stmt.strides)
        if 1 not in self.axes_of([flat]):
            return None
        lanes = next(each for each in self.lanes if each.axis == 1)
        if flat != lanes.loop.var or lanes.loop.begin != 0:
            raise Unsupported("a row that is read in another order than it was stored")
        return lanes

    def _into_row(self, row: Row, stmt: Store, value: Value) -> None:
        lanes = self._row_lanes(row, stmt.index)
        if lanes is None or stmt.mode is not None:
            raise Unsupported("single elements of a row in registers")
        known = row.value if row.width == lanes.width else None
        name = self.fresh("row") if known is None else known.text  # loops hand it on
        shape = f"[{self._width_of(0)}, {lanes.width}]"
        self.line(f"{name} = tl.broadcast_to({value.text}, {shape})")
        row.value, row.width = Value(name, value.dtype), lanes.width

    def _from_row(self, row: Row, index: Sequence[Expr]) -> tuple[Value, Axes]:
        lanes = self._row_lanes(row, index)
        if row.value is None or (lanes is not None and lanes.width != row.width):
            raise Unsupported("a row that is read before it is stored, or in parts")
        both = frozenset({0, 1}) if self._width_of(0) > 1 else frozenset({1})
        if lanes is not None:
            return row.value, both
        at = self.index(flatten(index, row.stmt.strides))
        wide = "tl.int32" if row.value.dtype is torch.bool else TYPES[row.value.dtype]
        zero = f"tl.full([1, 1], 0, {wide})"
        here = f"tl.arange(0, {row.width})[None, :] == {at}"
        text = f"tl.sum(tl.where({here}, {row.value.text}.to({wide}), {zero}), 1, keep_dims=True)"
        return Value(f"{text}.to({TYPES[row.value.dtype]})", row.value.dtype), both - {1}

    # -- sorts ----------------------------------------------------------------------------------------------

    def sort_row(self, stmt: SortRow) -> None:
        """Sorts integers that hold the order of an element and its place; values are then read again."""
        if not stmt.length.is_Integer or stmt.length > SORTED:
            raise Unsupported(f"a sort of rows of {stmt.length} elements (at most {SORTED})")
        with self._row(stmt.length, stmt.length) as lane:
            place, mask, _ = self._pointer(stmt.source, (*stmt.start[:-1], stmt.start[-1] + lane))
            dtype = next(param.dtype for param in self.kernel.params if param.name == stmt.source)
            order, wide = _order(f"tl.load({place}{mask}, other=0)", dtype)
            inside = mask.removeprefix(", mask=")
            places = self.fresh("at")
            order = f"-1 - {order}" if stmt.descending else order
            self.line(f"{places} = places_of{'_wide' * wide}({order}, {self.symbols[lane]}, {inside})")
        with self._row(stmt.length, stmt.limit) as lane:
            found = loop_var(places)
            self.symbols[found], self.axes[found] = places, frozenset({0, 1})
            into = (*stmt.into[:-1], stmt.into[-1] + lane)
            for buffer in (stmt.values, stmt.positions):
                if buffer is None:
                    continue
                value = places
                if buffer is stmt.values:
                    source, mask, _ = self._pointer(stmt.source, (*stmt.start[:-1], stmt.start[-1] + found))
                    value = f"tl.load({source}{mask}, other=0)"
                place, mask, _ = self._pointer(buffer, into)
                self.line(f"tl.store({place}, {value}{mask})")
                self.written.add(buffer)

    @contextmanager
    def _row(self, length: Expr, limit: Expr) -> Iterator[Symbol]:
        """Lanes for a row of ``length`` elements, of which the first ``limit`` are active."""
        lane = loop_var(self.fresh("r"))
        loop = For(lane, Integer(0), limit, Block())
        self.symbols[lane], self.axes[lane] = str(lane), frozenset({1})
        width, mask = 1 << max(0, int(length) - 1).bit_length(), self.fresh("m")
        self.line(f"{lane} = tl.arange(0, {width}).to({self.word})[None, :]")
        self.line(f"{mask} = {lane} < {self.index(limit)}")
        self.lanes.append(Lanes(loop, 1, width, mask))
        yield lane
        self.lanes.pop()

    # -- reductions -----------------------------------------------------------------------------------------

    def _width_of(self, axis: int) -> int:
        return next((each.width for each in self.lanes if each.axis == axis), 1)

    def _accumulate(self, stmt: Accumulate, rest: Sequence[Stmt]) -> None:
        inside = [loop for loop in _loops_to(stmt.name, rest) if loop.thread in AXES]
        folded = tuple(AXES[str(loop.thread)] for loop in inside)
        widths = [self._width_of(0), self._width_of(1)]
        for loop, axis in zip(inside, folded):
            widths[axis] = self._width(loop)[0]
        axes = frozenset(each.axis for each in self.lanes)
        names = []
        for start, dtype in starts(stmt.kind, stmt.dtype):
            names.append(self.fresh("acc"))
            self.line(f"{names[-1]} = {self.handler.constant(start, dtype, widths).text}")
        self.sums[stmt.name] = Sum(stmt.kind, tuple(names), stmt.dtype, folded, axes)

    def update(self, stmt: Update) -> None:
        if stmt.merge:
            raise Unsupported("reductions in two levels")
        found, value = self.sums[stmt.acc], self.values[stmt.value].text
        mask, _ = self.mask(frozenset({0, 1}))
        given = [value]
        if found.kind in ("any", "all"):
            given = [f"({value} != 0)"]
        elif found.kind in ("argmax", "argmin"):
            assert stmt.position is not None
            given.append(self.block_index(stmt.position))
        elif found.kind in ("welford", "online_softmax"):
            rest = (0.0, 1.0) if found.kind == "welford" else (1.0,)
            given += [self.handler.constant(each, found.dtype).text for each in rest]
        new = [self.fresh("new") for _ in found.names]
        self.line(f"{', '.join(new)} = {COMBINED[found.kind]}({', '.join([*found.names, *given])})")
        for name, text in zip(found.names, new, strict=True):
            self.line(f"{name} = tl.where({mask}, {text}, {name})" if mask else f"{name} = {text}")

    def _read(self, stmt: Let) -> tuple[Value, Axes]:
        name, position = stmt.args
        if name not in self.sums:
            return self.values[name], self.of_value[name]
        found = self.sums[name]
        parts = list(found.names)
        for axis in found.folded:
            folded = [self.fresh("all") for _ in parts]
            parts_text = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
            call = f"tl.reduce({parts_text}, {axis}, {COMBINED[found.kind]}, keep_dims=True)"
            if found.kind == "sum":  # Triton's own: it sums small integers in 32 bits
                call = f"tl.sum({parts_text}, {axis}, keep_dims=True).to({TYPES[found.dtype]})"
            self.line(f"{', '.join(folded)} = {call}")
            parts = folded
        if found.kind in ("argmax", "argmin"):
            return Value(f"tl.where({parts[1]} == {NOWHERE}, 0, {parts[1]})", stmt.dtype), found.axes
        text = parts[position]
        if found.kind in ("any", "all") and stmt.dtype is not torch.bool:
            text = f"{text}.to({TYPES[stmt.dtype]})"
        return Value(text, stmt.dtype), found.axes

    # -- values that iterations hand on ---------------------------------------------------------------------

    def carry(self, stmt: Carry) -> None:
        name = self.fresh("c")
        shape = [self._width_of(0), self._width_of(1)]
        self.line(f"{name} = {self.handler.constant(stmt.initial, stmt.dtype, shape).text}")
        axes = frozenset(each.axis for each in self.lanes)
        self.values[stmt.name], self.of_value[stmt.name] = Value(name, stmt.dtype), axes
        self.carried[stmt.name] = self.indent

    def _scan(self, by: Combination) -> None:
        """The values of all lanes of a row, from the lanes' elements and the state before the row."""
        if by.values[0] in self.values:
            return
        dtypes = [self.values[each].dtype for each in by.elements]
        function = self._function(by, dtypes)
        shape = f"[{self._width_of(0)}, {self._width_of(1)}]"
        parts = [f"tl.broadcast_to({self.values[each].text}, {shape})" for each in by.elements]
        given = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
        scanned, new = ([self.fresh(prefix) for _ in parts] for prefix in ("scan", "v"))
        self.line(f"{', '.join(scanned)} = tl.associative_scan({given}, 1, {function})")
        before = [self.values[carry].text for carry in by.carries]
        self.line(f"{', '.join(new)} = {function}({', '.join([*before, *scanned])})")
        axes = frozenset(each.axis for each in self.lanes)
        for name, text, dtype in zip(by.values, new, dtypes):
            self.values[name], self.of_value[name] = Value(text, dtype), axes

    def _function(self, by: Combination, dtypes: Sequence[torch.dtype]) -> str:
        """A function of the module that combines two states of numbers, or of blocks."""
        name = f"{self.name}_scan{len(self.functions)}"
        sides = [[Value(f"{side}{n}", dtype) for n, dtype in enumerate(dtypes)] for side in "ab"]
        with using(Values(self.block_index, ())):
            made = by.function(*sides)
        head = f"def {name}({', '.join(each.text for side in sides for each in side)}):"
        body = f"    return {', '.join(each.text for each in made)}"
        self.functions.append("\n".join(["@triton.jit", head, body, "", ""]))
        return name

    def advance(self, stmt: Advance) -> None:
        name = self.values[stmt.carry].text
        if stmt.value in self.scans:
            mask, _ = self.mask(frozenset({1}))
            if self.indent > self.carried[stmt.carry]:  # a loop hands it on
                self.line(f"{name} = last_of({self.values[stmt.value].text}, {mask or TRUE})")
            return
        if self.of_value[stmt.value] - self.of_value[stmt.carry]:
            raise Unsupported("a value that lanes hand on to one another")
        mask, _ = self.mask(frozenset())
        new = self.values[stmt.value].text
        self.line(f"{name} = tl.where({mask or TRUE}, {new}, {name})")


TRUE = "tl.full([1, 1], 1, tl.int1)"
OUTSIDE = "index out of range in self"
SORTED = 2048
"""Longest row that a block sorts."""


def _order(text: str, dtype: torch.dtype) -> tuple[str, bool]:
    """Integers in the order of the numbers, and whether they need 64 bits."""
    bits = 64 if dtype.itemsize == 8 else 32
    if not dtype.is_floating_point:
        return f"{text}.to(tl.int64)", bits == 64
    return f"order_of({text}.to(tl.float{bits}), tl.int{bits}, {2 ** (bits - 1) - 1})", bits == 64


def _ends(loop: For, width: int) -> list[Expr]:
    """The limits of a loop that its lanes can reach."""
    return [end for end in ends_of(loop) if expand(end - loop.begin) != width]


def _loops_to(name: str, stmts: Sequence[Stmt]) -> list[For]:
    """The loops around the statement that adds to an accumulator."""
    for stmt in stmts:
        if isinstance(stmt, Update) and stmt.acc == name:
            return []
        if isinstance(stmt, (For, Guard, Masked)) and any(
            isinstance(each, Update) and each.acc == name for each in walk(stmt.body)
        ):
            inside = _loops_to(name, stmt.body.stmts)
            return [stmt, *inside] if isinstance(stmt, For) else inside
    return []


def _precision() -> str:
    """The precision of products in float32, as PyTorch is told."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
