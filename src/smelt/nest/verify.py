"""The verifier of loop nests: names, scopes, dtypes, and the legal nesting of loop kinds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from sympy import Basic, Expr, Symbol

from smelt.errors import Problem, VerificationError
from smelt.loops.elementwise import ASSERTIONS
from smelt.loops.ir import ACCUMULATIONS, REDUCTIONS
from smelt.nest.claims import verify_kinds
from smelt.nest.ir import (
    TABLE_LANES,
    Accumulate,
    Advance,
    Alloc,
    Argument,
    Block,
    Carry,
    For,
    Guard,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Prefetch,
    Routine,
    Run,
    SortRow,
    Stage,
    Stmt,
    Store,
    Update,
)
from smelt.nest.primitives import memories_of, not_jammed, not_turned
from smelt.nest.primitives.turning import Memories
from smelt.nest.races import races
from smelt.nest.tree import blocks_of, names_in, stages
from smelt.ops import TABLE, result_dtype
from smelt.symbolic.affine import symbols_in

_Buffer = tuple[torch.dtype, int, bool]
"""The element type, the number of dimensions, and whether it is written."""

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def verify(kernel: Kernel) -> None:
    """Check every rule of `smelt.nest.ir`.

    Raises:
        VerificationError: SM0530, with every problem found and the loops around it; SM0531, with every loop
            whose kind is not shown to be right (`smelt.nest.claims`).
    """
    problems = find_problems(kernel)
    if problems:
        raise VerificationError("SM0530", f"kernel {kernel.name}", problems)
    verify_kinds([kernel])


def verify_run(run: Run) -> None:
    """Check a run and each of its kernels once.

    Raises:
        VerificationError: SM0530.
    """
    problems: list[Problem] = []
    sizes = set(run.sizes)
    for number, call in enumerate(run.calls):
        where = f"call {number} of {call.kernel.name}"
        if len(call.args) != len(call.kernel.params):
            problems.append(
                Problem(f"{len(call.args)} buffers for {len(call.kernel.params)} parameters", where)
            )
        for size in set(call.kernel.sizes) - sizes:
            problems.append(Problem(f"the size {size} is not given to the run", where))
        for arg in call.args:
            if isinstance(arg, Argument):
                if not 0 <= arg.position < len(run.arguments):
                    problems.append(Problem(f"there is no argument {arg.position}", where))
                continue
            for symbol in arg.offset.free_symbols - sizes:
                problems.append(Problem(f"the size {symbol} of an arena offset is not given", where))
    for kernel in dict.fromkeys(call.kernel for call in run.calls):
        problems += find_problems(kernel)
    if problems:
        raise VerificationError("SM0530", f"run {run.name}", problems)


def verify_blocks(kernels: Iterable[Kernel]) -> None:
    """Check that the programs and lanes of a GPU do not race, in each kernel once.

    Raises:
        VerificationError: SM0530.
    """
    for kernel in dict.fromkeys(kernels):
        problems = [Problem(why, kernel.name) for why in races(kernel)]
        if problems:
            raise VerificationError("SM0530", f"kernel {kernel.name}", problems)


def find_problems(kernel: Kernel) -> list[Problem]:
    """All problems of the kernel, in order."""
    checker = _Checker(kernel)
    checker.check()
    return checker.problems


class _Scope:
    """The names visible in a block; a child has copies of its parents' names and hides its own from them.
    Symbols are grouped by their kinds; accumulators and carries come with the number of loops around their
    declarations.
    """

    __slots__ = ("accumulators", "buffers", "carries", "symbols", "values")

    def __init__(self, symbols: Mapping[str, frozenset[Symbol]], buffers: Mapping[str, _Buffer]) -> None:
        self.symbols, self.buffers = dict(symbols), dict(buffers)
        self.values: dict[str, torch.dtype] = {}
        self.accumulators: dict[str, tuple[Accumulate, int]] = {}
        self.carries: dict[str, tuple[Carry, int]] = {}

    def child(self) -> _Scope:
        made = _Scope(self.symbols, self.buffers)
        if self.values or self.accumulators or self.carries:
            made.values = dict(self.values)
            made.accumulators, made.carries = dict(self.accumulators), dict(self.carries)
        return made

    def kind(self, symbol: Symbol) -> str | None:
        return next((kind for kind, group in self.symbols.items() if symbol in group), None)

    def declare(self, kind: str, symbol: Symbol) -> None:
        self.symbols[kind] = self.symbols.get(kind, frozenset()) | {symbol}


class _Checker:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.problems: list[Problem] = []
        self.path: list[For] = []
        self._masked = 0

    @cached_property
    def memories(self) -> Memories:
        return memories_of(self.kernel)

    def check(self) -> None:
        scope = _Scope({"size": frozenset(self.kernel.sizes)}, {})
        for param in self.kernel.params:
            if param.name in scope.buffers:
                self._say(f"the parameter {param.name} is there twice")
            if len(param.shape) != len(param.strides):
                self._say(f"{param.name} has {len(param.shape)} dimensions and {len(param.strides)} strides")
            scope.buffers[param.name] = (param.dtype, len(param.shape), param.written)
            self._exprs((*param.shape, *param.strides), scope)
        self._block(self.kernel.body, scope)

    def _say(self, what: str) -> None:
        around = " / ".join(f"for {loop.var}" for loop in self.path)
        self.problems.append(Problem(what, f"{self.kernel.name}{': ' if around else ''}{around}"))

    def _block(self, block: Block, scope: _Scope) -> None:
        """Checks a block. Where no values are visible, its problems are a function of its surroundings: those
        in which it last had none are kept with it.
        """
        if self._masked or scope.values or scope.accumulators or scope.carries:
            self._stmts(block, scope.child())
        elif block.sound is None or block.sound != self._around(block, scope):
            before = len(self.problems)
            self._stmts(block, scope.child())
            if len(self.problems) == before:
                object.__setattr__(block, "sound", self._around(block, scope))

    def _around(self, block: Block, scope: _Scope) -> tuple[Any, ...]:
        """The surroundings of a block: what its names are, and what rules ask about the loops around."""
        names = names_in(block)
        symbols = {kind: group & names.symbols for kind, group in scope.symbols.items()}
        buffers = {name: scope.buffers[name] for name in names.buffers if name in scope.buffers}
        loops: tuple[Any, ...] = (bool(self.path),)
        if not all(loop.kind in (LoopKind.SERIAL, LoopKind.UNROLL) for loop in self.path):
            loops = tuple(
                (each.var, each.kind, each.begin, each.end, each.step, len(each.body.stmts) == 1)
                for each in self.path
            )
        return symbols, buffers, loops

    def _stmts(self, block: Block, scope: _Scope) -> None:
        for stmt in block.stmts:
            self._stmt(stmt, scope)

    def _stmt(self, stmt: Stmt, scope: _Scope) -> None:
        if self._masked and not isinstance(stmt, (Let, Masked)):
            self._say(f"a masked body only computes values, it holds a {type(stmt).__name__}")
        if isinstance(stmt, For):
            self._loop(stmt, scope)
        elif isinstance(stmt, Let):
            self._let(stmt, scope)
        elif isinstance(stmt, Guard):
            self._exprs((stmt.condition,), scope)
            self._block(stmt.body, scope)
        elif isinstance(stmt, Stage):
            self._stage(stmt, scope)
        elif isinstance(stmt, Masked):
            self._mask(stmt, scope)
        elif isinstance(stmt, Store):
            self._store(stmt, scope)
        elif isinstance(stmt, Accumulate):
            if stmt.kind not in REDUCTIONS:
                self._say(f"the accumulator {stmt.name} is no reduction: {stmt.kind!r}")
            if stmt.name in scope.accumulators:
                self._say(f"the accumulator {stmt.name} is declared twice")
            scope.accumulators[stmt.name] = stmt, len(self.path)
        elif isinstance(stmt, Update):
            self._update(stmt, scope)
        elif isinstance(stmt, Carry):
            if stmt.name in scope.carries or stmt.name in scope.accumulators:
                self._say(f"the carry {stmt.name} is declared twice")
            self._number(stmt.initial, stmt.dtype)
            scope.carries[stmt.name] = stmt, len(self.path)
        elif isinstance(stmt, Advance):
            self._advance(stmt, scope)
        elif isinstance(stmt, SortRow):
            self._sort(stmt, scope)
        elif isinstance(stmt, Routine):
            self._routine(stmt, scope)
        elif isinstance(stmt, Prefetch):
            self._place(stmt.buffer, stmt.index, scope)
        else:
            self._alloc(stmt, scope)

    # -- loops --------------------------------------------------------------------------------------------

    def _loop(self, loop: For, scope: _Scope) -> None:
        self._exprs((loop.begin, loop.end), scope)
        taken = scope.kind(loop.var)
        if taken is not None:
            self._say(f"the loop variable {loop.var} is taken: it is a {taken} already")
        if loop.step < 1:
            self._say(f"the loop over {loop.var} has the step {loop.step}")
        for outer in self.path:
            if outer.kind is LoopKind.SERIAL:
                continue
            if loop.kind in (LoopKind.PARALLEL, LoopKind.VECTOR) and outer.kind is LoopKind.VECTOR:
                self._say(
                    f"the {loop.kind.value} loop over {loop.var} lies in the vector loop over {outer.var}"
                )
            if (
                loop.kind is LoopKind.PARALLEL
                and outer.kind is LoopKind.PARALLEL
                and not self._perfect(outer)
            ):
                self._say(
                    f"the parallel loop over {loop.var} lies in the parallel loop over {outer.var}, "
                    "but not alone"
                )
            if outer.kind is LoopKind.JAM and loop.kind in (LoopKind.PARALLEL, LoopKind.VECTOR):
                self._say(
                    f"the {loop.kind.value} loop over {loop.var} lies in the jammed one over {outer.var}"
                )
            if outer.kind is LoopKind.VECTOR and (loop.begin.has(outer.var) or loop.end.has(outer.var)):
                self._say(f"the bounds of {loop.var} differ between the lanes of {outer.var}")
        why = not_jammed(loop) if loop.kind is LoopKind.JAM else None
        if why is not None:
            self._say(f"the loop over {loop.var} cannot be jammed: {why}")
        if loop.kind is LoopKind.TURN and not stages(loop.body):
            why = not_turned(loop, self.path, self.memories)
            if why is not None:
                self._say(f"the loop over {loop.var} cannot be turned: {why}")
        inner = scope.child()
        inner.declare("loop variable", loop.var)
        self.path.append(loop)
        self._block(loop.body, inner)
        self.path.pop()

    def _stage(self, stage: Stage, scope: _Scope) -> None:
        """The body sees its axes, sizes, positions found around it, and buffers; no loop, no value. A stage
        with a text, as `dissolve` leaves it, sees loops.
        """
        self._exprs(stage.where, scope)
        hidden = None if stage.text is not None and not stage.axes else "loop variable"
        known = {kind: group for kind, group in scope.symbols.items() if kind != hidden}
        inside = _Scope(known, scope.buffers)
        for axis in stage.axes:
            self._exprs((axis.value,), scope)
            self._exprs((axis.extent, axis.begin), inside)
            taken = inside.kind(axis.var)
            if taken is not None:
                self._say(f"the axis {axis.var} of {stage.name} is taken: it is a {taken}")
            inside.declare("axis", axis.var)
        for block in blocks_of(stage):
            around, self.path = self.path, []
            self._block(block, inside)
            self.path = around

    def _perfect(self, outer: For) -> bool:
        """Whether one thread team can run ``outer`` and the loops down to here, because they are perfectly
        nested.
        """
        below = self.path[self.path.index(outer) :]
        return all(len(each.body.stmts) == 1 and each.kind is LoopKind.PARALLEL for each in below)

    def _sort(self, stmt: SortRow, scope: _Scope) -> None:
        dtype = self._place(stmt.source, stmt.start, scope)
        self._exprs((stmt.length, stmt.limit), scope)
        if any(loop.kind is LoopKind.VECTOR for loop in self.path):
            self._say(f"{stmt.source} is sorted in a vector loop")
        for name, wanted in ((stmt.values, dtype), (stmt.positions, torch.int64)):
            if name is None:
                continue
            found = self._place(name, stmt.into, scope)
            if found is not None and found != wanted:
                self._say(f"{name} holds {found}, sorting {stmt.source} gives {wanted}")
            if found is not None and not scope.buffers[name][2]:
                self._say(f"{name} is stored to but not marked as written")

    def _routine(self, stmt: Routine, scope: _Scope) -> None:
        self._exprs(stmt.numbers, scope)
        if self.path:
            self._say(f"{stmt.name} is a routine inside of a loop")
        for name in (*stmt.reads, *stmt.writes):
            if name not in scope.buffers:
                self._say(f"{stmt.name} takes {name}, which is no buffer")
            elif scope.buffers[name][2] != (name in stmt.writes):
                self._say(f"{stmt.name} and the parameters differ on whether {name} is written")

    def _alloc(self, stmt: Alloc, scope: _Scope) -> None:
        if stmt.buffer in scope.buffers:
            self._say(f"the scratch buffer {stmt.buffer} is declared twice or hides a parameter")
        if any(loop.kind is LoopKind.VECTOR for loop in self.path):
            self._say(f"the scratch buffer {stmt.buffer} is inside a vector loop")
        self._exprs(stmt.shape, scope)
        scope.buffers[stmt.buffer] = (stmt.dtype, len(stmt.shape), True)

    # -- values -------------------------------------------------------------------------------------------

    def _bind(self, name: str, dtype: torch.dtype, scope: _Scope) -> None:
        if name in scope.values:
            self._say(f"{name} is assigned twice")
        scope.values[name] = dtype

    def _value(self, name: Any, scope: _Scope) -> torch.dtype | None:
        dtype = scope.values.get(name) if isinstance(name, str) else None
        if dtype is None:
            self._say(f"{name} is used before it is defined")
        return dtype

    def _exprs(self, exprs: Iterable[Basic], scope: _Scope) -> None:
        for expr in exprs:
            if expr.is_Integer:
                continue
            unknown = symbols_in(expr).difference(*scope.symbols.values())  # type: ignore[arg-type]
            for symbol in sorted(unknown, key=str) if unknown else ():
                self._say(f"the symbol {symbol} in {expr} is not defined here")

    def _place(self, buffer: str, index: Sequence[Expr], scope: _Scope) -> torch.dtype | None:
        self._exprs(index, scope)
        known = scope.buffers.get(buffer)
        if known is None:
            self._say(f"there is no buffer {buffer}")
            return None
        if len(index) != known[1]:
            self._say(f"{buffer} is accessed with {len(index)} indices, it has {known[1]} dimensions")
        return known[0]

    def _expect(self, name: str, dtype: torch.dtype, wanted: torch.dtype | None) -> None:
        if wanted is not None and dtype != wanted:
            self._say(f"{name} is declared as {dtype}, it is {wanted}")

    def _let(self, stmt: Let, scope: _Scope) -> None:
        check = getattr(self, f"_let_{stmt.op}", None)
        if stmt.op in TABLE:
            self._elementwise(stmt, scope)
        elif check is None:
            self._say(f"there is no operation {stmt.op!r}")
        elif len(stmt.args) != _ARITY[stmt.op]:
            self._say(f"{stmt.op} takes {_ARITY[stmt.op]} arguments, not {len(stmt.args)}")
        else:
            check(stmt, scope)
        self._bind(stmt.name, stmt.dtype, scope)

    def _elementwise(self, stmt: Let, scope: _Scope) -> None:
        dtypes = [self._value(name, scope) for name in stmt.args]
        if None in dtypes:
            return
        try:
            wanted = result_dtype(TABLE[stmt.op], dtypes)  # type: ignore[arg-type]
        except TypeError as error:
            self._say(f"{stmt.name}: {error}")
            return
        self._expect(stmt.name, stmt.dtype, wanted)

    def _let_load(self, stmt: Let, scope: _Scope) -> None:
        self._expect(stmt.name, stmt.dtype, self._place(stmt.args[0], stmt.args[1], scope))

    def _let_constant(self, stmt: Let, scope: _Scope) -> None:
        self._number(stmt.args[0], stmt.dtype)

    def _number(self, number: object, dtype: torch.dtype) -> None:
        wanted = bool if dtype is torch.bool else float if dtype.is_floating_point else int
        if type(number) is not wanted:
            self._say(f"the constant {number!r} is no {dtype}")

    def _let_index_expr(self, stmt: Let, scope: _Scope) -> None:
        self._exprs((stmt.args[0],), scope)

    def _let_to_dtype(self, stmt: Let, scope: _Scope) -> None:
        self._value(stmt.args[0], scope)

    def _let_bitcast(self, stmt: Let, scope: _Scope) -> None:
        dtype = self._value(stmt.args[0], scope)
        if dtype is not None and dtype.itemsize != stmt.dtype.itemsize:
            self._say(f"{stmt.name}: a bitcast from {dtype} to {stmt.dtype} changes the width")

    def _let_indirect_index(self, stmt: Let, scope: _Scope) -> None:
        dtype = self._value(stmt.args[0], scope)
        if dtype is not None and dtype not in _INTEGERS:
            self._say(f"{stmt.name}: an indirect index is an integer, not {dtype}")
        self._exprs((stmt.args[1],), scope)
        kind = str(stmt.args[3]).partition(": ")[0]
        if kind not in ("True", "False", "IndexError", *ASSERTIONS):
            self._say(f"{stmt.name}: an indirect index raises no {stmt.args[3]}")
        if stmt.index is None:
            self._say(f"{stmt.name}: the indirect index binds no symbol")
        elif (taken := scope.kind(stmt.index)) is not None:
            self._say(f"the index symbol {stmt.index} is taken: it is a {taken} already")
        else:
            scope.declare("index symbol", stmt.index)

    def _let_read(self, stmt: Let, scope: _Scope) -> None:
        name, position = stmt.args
        if name in scope.carries:
            if position != 0:
                self._say(f"the carry {name} has no output {position}")
            self._expect(stmt.name, stmt.dtype, scope.carries[name][0].dtype)
            return
        accumulator, _ = scope.accumulators.get(name, (None, 0))
        if accumulator is None:
            self._say(f"the accumulator {name} is read before it is declared")
            return
        if not 0 <= position < REDUCTIONS.get(accumulator.kind, 1):
            self._say(f"the accumulator {name} ({accumulator.kind}) has no output {position}")
        argument = accumulator.kind in ("argmax", "argmin")
        self._expect(stmt.name, stmt.dtype, torch.int64 if argument else accumulator.dtype)

    def _let_lookup(self, stmt: Let, scope: _Scope) -> None:
        table, number = (self._value(name, scope) for name in stmt.args)
        if table is not None:
            self._expect(stmt.name, stmt.dtype, table)
        if number not in (None, torch.int32) or stmt.dtype.itemsize != 4:
            self._say(f"{stmt.name}: tables are of 32 bits, and looked up by numbers of int32")
        vectors = [loop for loop in self.path if loop.kind is LoopKind.VECTOR]
        if not any(loop.begin == 0 and loop.end == loop.step == TABLE_LANES for loop in vectors):
            self._say(f"{stmt.name} is looked up outside of a vector loop of {TABLE_LANES} iterations")

    def _mask(self, stmt: Masked, scope: _Scope) -> None:
        dtype = self._value(stmt.mask, scope)
        if dtype is not None and dtype is not torch.bool:
            self._say(f"{stmt.name}: the mask {stmt.mask} is bool, not {dtype}")
        inner = scope.child()
        self._masked += 1
        self._stmts(stmt.body, inner)
        self._masked -= 1
        self._expect(stmt.name, stmt.dtype, self._value(stmt.result, inner))
        self._bind(stmt.name, stmt.dtype, scope)

    # -- effects ------------------------------------------------------------------------------------------

    def _store(self, stmt: Store, scope: _Scope) -> None:
        dtype = self._place(stmt.buffer, stmt.index, scope)
        value = self._value(stmt.value, scope)
        if dtype is not None and not scope.buffers[stmt.buffer][2]:
            self._say(f"{stmt.buffer} is stored to but not marked as written")
        if dtype is not None and value is not None and dtype != value:
            self._say(f"{stmt.buffer} holds {dtype}, stored is {value}")
        if stmt.mode not in (None, *ACCUMULATIONS, "atomic_add"):
            self._say(f"a store has no mode {stmt.mode!r}")

    def _update(self, stmt: Update, scope: _Scope) -> None:
        accumulator, depth = scope.accumulators.get(stmt.acc, (None, 0))
        if stmt.position is not None:
            self._exprs((stmt.position,), scope)
        if accumulator is None:
            self._say(f"the accumulator {stmt.acc} is updated before it is declared")
            return
        if stmt.merge:
            other, _ = scope.accumulators.get(stmt.value, (None, 0))
            if other is None:
                self._say(f"the accumulator {stmt.value} is merged before it is declared")
            elif (other.kind, other.dtype) != (accumulator.kind, accumulator.dtype):
                self._say(f"{stmt.value} ({other.kind}) is merged into {stmt.acc} ({accumulator.kind})")
        else:
            value = self._value(stmt.value, scope)
            if value is not None and value != accumulator.dtype:
                self._say(f"the accumulator {stmt.acc} takes {accumulator.dtype}, not {value}")
            if stmt.position is None and accumulator.kind in ("argmax", "argmin"):
                self._say(f"the accumulator {stmt.acc} ({accumulator.kind}) needs a position")
        for loop in self.path[depth:]:
            if loop.kind is LoopKind.PARALLEL:
                self._say(f"iterations of the parallel loop over {loop.var} share the accumulator {stmt.acc}")

    def _advance(self, stmt: Advance, scope: _Scope) -> None:
        """Iterations that carry a value run one after another."""
        carry, depth = scope.carries.get(stmt.carry, (None, 0))
        if carry is None:
            self._say(f"the carry {stmt.carry} is advanced before it is declared")
            return
        value = self._value(stmt.value, scope)
        if value is not None and value != carry.dtype:
            self._say(f"the carry {stmt.carry} is {carry.dtype}, not {value}")
        for loop in self.path[depth:]:
            if loop.kind in (LoopKind.PARALLEL, LoopKind.VECTOR):
                self._say(
                    f"iterations of the {loop.kind.value} loop over {loop.var} share the carry {stmt.carry}"
                )


_ARITY = {
    "load": 2,
    "constant": 1,
    "index_expr": 1,
    "to_dtype": 1,
    "bitcast": 1,
    "indirect_index": 4,
    "read": 2,
    "lookup": 2,
}
