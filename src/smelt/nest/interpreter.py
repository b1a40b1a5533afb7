"""Runs a loop nest statement by statement: the oracle of the primitives and of every nest printer.

Slow on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.loops.elementwise import apply, index_error
from smelt.loops.reductions import reduce
from smelt.nest.initialization import initialize_empty_reductions
from smelt.nest.inside import check_bounds, open_bounds
from smelt.nest.ir import (
    TABLE_LANES,
    Accumulate,
    Advance,
    Alloc,
    Block,
    Carry,
    For,
    Guard,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Routine,
    SortRow,
    Stage,
    Stmt,
    Store,
    Update,
)
from smelt.nest.tree import named, needed, reduced_axes, stages, walk
from smelt.ops import TABLE
from smelt.records import dataclass, field
from smelt.symbolic import evaluate, flatten
from smelt.symbolic.expr import evaluate_on


def run_kernel(
    kernel: Kernel,
    memory: Mapping[str, torch.Tensor],
    sizes: Mapping[Symbol, int] | None = None,
    first: Mapping[str, int] | None = None,
) -> None:
    """Runs ``kernel`` on 1-d tensors, one for each parameter, in place. ``first``: the offset of a
    parameter's element 0 in its tensor, if not 0.

    Accumulators keep all their terms and reduce them when read, in float64 where that is wider: the order of
    additions changes the result by one rounding at most.

    Stages run by their definition (`smelt.nest.ir.Stage`); elements of empty reductions are initialized as
    well.

    Raises:
        IndexError: an indirect index is out of range; an axis of a stage is outside of its range.
        SmeltError: SM1048, an index of a stage is outside of its buffer at these sizes.
    """
    if any(stage.axes for stage in stages(kernel.body)):
        check_bounds(kernel, open_bounds(kernel), sizes or {})
    _Machine(kernel, dict(memory), dict(sizes or {}), first or {}).run()


@dataclass(slots=True)
class _Accumulator:
    kind: str
    dtype: torch.dtype
    terms: list[tuple[torch.Tensor, int]] = field(default_factory=list)


class _Machine:
    def __init__(
        self,
        kernel: Kernel,
        memory: dict[str, torch.Tensor],
        sizes: dict[Symbol, int],
        first: Mapping[str, int],
    ) -> None:
        self.kernel, self.memory, self.first = kernel, memory, first
        self.symbols: dict[Symbol, int] = sizes
        self.values: dict[str, torch.Tensor] = {}
        self.accumulators: dict[str, _Accumulator] = {}
        self.carries: dict[str, torch.Tensor] = {}
        self.lane: Symbol | None = None
        self.lets = {stmt.name: stmt for stmt in walk(kernel.body) if isinstance(stmt, Let)}
        self.strides: dict[str, tuple[Expr, ...]] = {param.name: param.strides for param in kernel.params}

    def run(self) -> None:
        self._block(initialize_empty_reductions(self.kernel).body)

    def _block(self, block: Block) -> None:
        for stmt in block.stmts:
            self._stmt(stmt)

    def _stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, For):
            # A vector loop has independent iterations: one lane after the other gives the same.
            self.lane = stmt.var if stmt.kind is LoopKind.VECTOR else self.lane
            for number in range(self._number(stmt.begin), self._number(stmt.end)):
                self.symbols[stmt.var] = number
                self._block(stmt.body)
        elif isinstance(stmt, Let):
            self.values[stmt.name] = self._let(stmt)
        elif isinstance(stmt, Guard):
            if self._holds(stmt.condition):
                self._block(stmt.body)
        elif isinstance(stmt, Stage):
            self._stage(stmt)
        elif isinstance(stmt, Masked):
            if bool(self.values[stmt.mask]):
                self._block(stmt.body)
                self.values[stmt.name] = self.values[stmt.result]
            else:
                self.values[stmt.name] = torch.tensor(stmt.other, dtype=stmt.dtype)
        elif isinstance(stmt, Store):
            at = self._place(stmt.buffer, stmt.index)
            value = self.values[stmt.value]
            if stmt.mode is not None:
                combine = stmt.mode.removeprefix("atomic_")
                value = apply(combine, [self.memory[stmt.buffer][at], value])
            self.memory[stmt.buffer][at] = value
        elif isinstance(stmt, Accumulate):
            self.accumulators[stmt.name] = _Accumulator(stmt.kind, stmt.dtype)
        elif isinstance(stmt, Update):
            self._update(stmt)
        elif isinstance(stmt, Carry):
            self.carries[stmt.name] = torch.tensor(stmt.initial, dtype=stmt.dtype)
        elif isinstance(stmt, Advance):
            self.carries[stmt.carry] = self.values[stmt.value]
        elif isinstance(stmt, SortRow):
            self._sort(stmt)
        elif isinstance(stmt, Routine):
            given = [self.memory[name] for name in stmt.reads]
            found = stmt.run([self._number(each) for each in stmt.numbers], given)
            for name, value in zip(stmt.writes, found, strict=True):
                self.memory[name][: value.numel()] = value.reshape(-1)
        elif isinstance(stmt, Alloc):
            self.memory[stmt.buffer] = torch.zeros(self._number(stmt.count), dtype=stmt.dtype)
            self.strides[stmt.buffer] = stmt.strides

    def _let(self, stmt: Let) -> torch.Tensor:
        args = stmt.args
        if stmt.op in TABLE:
            return apply(stmt.op, [self.values[name] for name in args])
        if stmt.op == "load":
            return self.memory[args[0]][self._place(args[0], args[1])].clone()
        if stmt.op == "constant":
            return torch.tensor(args[0], dtype=stmt.dtype)
        if stmt.op == "index_expr":
            return torch.tensor(self._number(args[0])).to(stmt.dtype)
        if stmt.op == "to_dtype":
            return self.values[args[0]].to(stmt.dtype)
        if stmt.op == "bitcast":
            return self.values[args[0]].view(stmt.dtype)
        if stmt.op == "read" and args[0] in self.carries:
            return self.carries[args[0]]
        if stmt.op == "read":
            return self._read(args[0], args[1])
        if stmt.op == "lookup":
            return self._in_lane(args[0], int(self.values[args[1]]) % TABLE_LANES)
        assert stmt.op == "indirect_index", stmt.op
        value, size = int(self.values[args[0]]), self._number(args[1])
        if args[2] and value < 0:
            value += size
        if args[3] and not 0 <= value < size:
            raise index_error(args[3])
        assert stmt.index is not None
        self.symbols[stmt.index] = value
        return torch.tensor(value)

    def _in_lane(self, name: str, number: int) -> torch.Tensor:
        """A value in another iteration of the vector loop."""
        assert self.lane is not None
        steps = needed(Block(tuple(self.lets.values())), name)
        values, own = dict(self.values), self.symbols[self.lane]
        self.symbols[self.lane] = number
        self._block(steps)
        self.symbols[self.lane], found = own, self.values[name]
        self.values = values
        return found

    def _stage(self, stage: Stage) -> None:
        if not all(map(self._holds, stage.where)):
            return
        values = {axis.var: self._number(axis.value) for axis in stage.axes}
        for axis in stage.axes:
            begin = self._number(axis.begin)
            if not begin <= values[axis.var] < begin + self._number(axis.extent):
                raise IndexError(f"{named(axis)} of {stage.name} is {values[axis.var]}")
        self.symbols.update(values)
        first = (values[axis.var] == self._number(axis.begin) for axis in reduced_axes(stage))
        if stage.init is not None and all(first):
            self._block(stage.init)
        self._block(stage.body)

    def _holds(self, condition: Boolean) -> bool:
        return bool(evaluate_on(condition, self.symbols))

    def _sort(self, stmt: SortRow) -> None:
        start, length = self._place(stmt.source, stmt.start), self._number(stmt.length)
        row = self.memory[stmt.source][start : start + length]
        ordered = torch.sort(row, stable=True, descending=stmt.descending)
        limit = self._number(stmt.limit)
        for name, part in zip((stmt.values, stmt.positions), ordered):
            if name is not None:
                at = self._place(name, stmt.into)
                self.memory[name][at : at + limit] = part[:limit]

    def _update(self, stmt: Update) -> None:
        accumulator = self.accumulators[stmt.acc]
        if stmt.merge:
            accumulator.terms += self.accumulators[stmt.value].terms
            return
        position = 0 if stmt.position is None else self._number(stmt.position)
        accumulator.terms.append((self.values[stmt.value], position))

    def _read(self, name: str, output: int) -> torch.Tensor:
        accumulator = self.accumulators[name]
        terms = sorted(accumulator.terms, key=lambda term: term[1])
        values = (
            torch.stack([value for value, _ in terms]) if terms else torch.empty(0, dtype=accumulator.dtype)
        )
        return reduce(accumulator.kind, values)[output]

    def _place(self, buffer: str, index: tuple[Expr, ...]) -> int:
        place: int = self._number(flatten(index, self.strides[buffer])) + self.first.get(buffer, 0)
        if place < 0:
            raise IndexError(f"{buffer} is read {-place} elements before its memory")
        return place

    def _number(self, expr: Expr) -> Any:
        return evaluate(expr, self.symbols)
