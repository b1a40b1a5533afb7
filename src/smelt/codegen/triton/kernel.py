"""Prints a kernel of a GPU recipe as a Triton function: bound loops are programs and lanes, the others loops.

Every value is a block of two dimensions: lanes of threadIdx.y first, lanes of threadIdx.x second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from sympy import Expr, sympify

from smelt.codegen.index import condition_text
from smelt.codegen.triton.folds import COMBINED, Folds
from smelt.codegen.triton.lines import AXES, GRID, MANY, TERMS, TRUE, Axes, Lanes, Row
from smelt.codegen.triton.values import LOW, TYPES, Value, Values, among
from smelt.codegen.triton.words import LIMIT, ends_of, index_bits, lanes_of
from smelt.errors import Unsupported
from smelt.loops.reductions import MODES
from smelt.nest.dependence import carried_state
from smelt.nest.ir import Accumulate, Alloc, Block, For, Guard, Let, Masked, Store, Update
from smelt.nest.tree import loops, needed, symbols_of, trip_count
from smelt.records import dataclass, field
from smelt.symbolic import flatten
from smelt.symbolic.affine import expand, linear

STORED = {mode: kind for kind, mode in MODES.items()}
"""Mode of a store → the reduction that it is a step of."""
WORDS = (torch.int32, torch.int64)
ATOMIC = {
    "add": ("atomic_add", (*WORDS, torch.float32, torch.float64)),
    "maximum": ("atomic_max", WORDS),
    "minimum": ("atomic_min", WORDS),
}
"""Mode of a store → Triton's own function, and the dtypes that it is right for."""
OUTSIDE = "index out of range in self"


@dataclass(slots=True)
class BlockText(Folds):
    """The text of one kernel. ``block_extents``: rows, columns and terms of a product whose blocks a copy
    engine loads, while an operand of it is printed.
    """

    block_extents: Sequence[Expr] | None = field(default=None, init=False)

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
        origins = [f"    # {origin}" for origin in dict.fromkeys(map(str, self.kernel.origins))]
        head = f"def {name}({', '.join([*heads, 'failed'])}):"
        lines = [*self.descriptors, *self.text()]
        return "\n".join([*self.functions, "@triton.jit", head, *origins, *lines, "    return", ""])

    @property
    def warps(self) -> int:
        """The warps of a block: 8 elements for each of their threads; for blocks of a product those
        that its loop says.
        """
        elements = 1
        for thread in AXES:
            widths = [lanes_of(loop)[0] for loop in loops(self.kernel.body) if loop.thread == thread]
            elements *= max(widths, default=1)
        if any(loop.thread == TERMS for loop in loops(self.kernel.body)):
            return int(self._noted("warps", 8 if elements >= MANY else 4))
        return min(16, max(1, elements // 256))

    @property
    def stages(self) -> int:
        """The blocks of a product that are loaded ahead."""
        return int(self._noted("stages", 3))

    def _noted(self, name: str, usual: Any) -> Any:
        """An annotation of the product's terms."""
        notes = (dict(loop.notes) for loop in loops(self.kernel.body) if loop.thread == TERMS)
        return next((found[name] for found in notes if name in found), usual)

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
            extents = dict(terms.notes)["extents"] if self._descriptors(terms) else None
            self.block_extents = None if extents is None else [sympify(each) for each in extents]
            self.statements(body)
            self.block_extents = None
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

    def _by_descriptor(self, buffer: str, index: Sequence[Expr]) -> str | None:
        """A block of a product that a GPU's copy engine loads, with zeros outside; None if elements are not
        adjacent along one axis and a multiple of 16 bytes apart along the other.
        """
        if self.block_extents is None or self.conditions or buffer in self.written:
            return None
        param = next(param for param in self.kernel.params if param.name == buffer)
        rest, steps = flatten(index, param.strides), []
        own, terms = self.lanes
        for lanes in (own, terms):
            step, rest = linear(rest, lanes.loop.var)
            steps.append(step)
        size, lengths = param.dtype.itemsize, (self.block_extents[own.axis], self.block_extents[2])
        near = next((place for place, step in enumerate(steps) if step == 1), None)
        if near is None or not rest.is_Integer or int(rest) * size % 16 or param.dtype is torch.bool:
            return None
        if not all(length.is_Integer and length < LIMIT for length in lengths):  # its places have 32 bits
            return None
        far, order = steps[1 - near], (1 - near, near)
        if not far.is_Integer or far <= 0 or int(far) * size % 16 or (own, terms)[near].width * size < 16:
            return None
        shape = ", ".join(self.index(lengths[place]) for place in order)
        widths = [(own, terms)[place].width for place in order]
        name, base = self.fresh("tiles"), f"{buffer} + {rest}" if rest else buffer
        made = f"{base}, [{shape}], [{far}, 1], {widths}"
        self.descriptors.append(f"    {name} = tl.make_tensor_descriptor({made})")
        begins = ", ".join(
            f"tl.cast({self.index((own, terms)[place].loop.begin)}, tl.int32)" for place in order
        )
        turned = own.axis != order.index(0)
        return f"{name}.load([{begins}])" + ".T" * turned

    def _descriptors(self, terms: For) -> bool:
        return self.by_descriptor and bool(dict(terms.notes).get("descriptors"))

    def statements(self, block: Block) -> None:
        for position, stmt in enumerate(block.stmts):
            if isinstance(stmt, Accumulate):
                self._accumulate(stmt, block.stmts[position + 1 :])
            else:
                self.statement(stmt)

    def guard(self, stmt: Guard) -> None:
        axes = self.axes_of(stmt.condition.free_symbols)
        if not axes:
            with self.block(f"if {condition_text(stmt.condition, self.symbols)}"):
                self.statements(stmt.body)
            return
        name = self.fresh("m")
        self.line(f"{name} = {condition_text(stmt.condition, self.symbols)} & {TRUE}")
        self.conditions.append((name, axes))
        self.statements(stmt.body)
        self.conditions.pop()

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

    def _load(self, stmt: Let) -> tuple[Value, Axes]:
        buffer, index = stmt.args
        if buffer in self.rows:
            return self._from_row(self.rows[buffer], index)
        if buffer in self.written:
            self.line("tl.debug_barrier()")
        block = self._by_descriptor(buffer, index)
        if block is not None:
            return Value(block, stmt.dtype), frozenset({0, 1})
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


def _ends(loop: For, width: int) -> list[Expr]:
    """The limits of a loop that its lanes can reach."""
    return [end for end in ends_of(loop) if expand(end - loop.begin) != width]


def _precision() -> str:
    """The precision of products in float32, as PyTorch is told."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
