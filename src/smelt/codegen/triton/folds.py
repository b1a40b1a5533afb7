"""Triton's text of reductions, scans and sorts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from sympy import Expr, Integer, Symbol

from smelt.codegen.triton.lines import AXES, TRUE, Axes, Lanes, Lines, Sum
from smelt.codegen.triton.values import TYPES, Value, Values
from smelt.errors import Unsupported
from smelt.loops.reductions import identity
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Block,
    Carry,
    Combination,
    For,
    Guard,
    Let,
    Masked,
    Routine,
    SortRow,
    Stmt,
    Update,
)
from smelt.nest.tree import walk
from smelt.ops import using
from smelt.records import dataclass
from smelt.symbolic import loop_var

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
NOWHERE = 2**63 - 1
"""The position of an argmax or argmin over no element so far."""
SORTED = 2048
"""Longest row that a block sorts."""


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


@dataclass(slots=True)
class Folds(Lines):
    """The statements that combine the values of lanes."""

    # -- reductions -----------------------------------------------------------------------------------------

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
            given = [self.handler.to_dtype(self.values[stmt.value], torch.bool).text]
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

    def routine(self, stmt: Routine) -> None:
        raise Unsupported(f"{stmt.name}, which there is for CPUs only")

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


def _order(text: str, dtype: torch.dtype) -> tuple[str, bool]:
    """Integers in the order of the numbers, and whether they need 64 bits."""
    bits = 64 if dtype.itemsize == 8 else 32
    if not dtype.is_floating_point:
        return f"{text}.to(tl.int64)", bits == 64
    return f"order_of({text}.to(tl.float{bits}), tl.int{bits}, {2 ** (bits - 1) - 1})", bits == 64


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
