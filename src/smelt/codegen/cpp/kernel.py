"""Prints one kernel as a C++ function: traverses the nest and prints each statement for one lane or for many.

Everything is renamed by position (``in0``, ``out1``, ``d0``, ``v3`` …), so that equal kernels have equal
text.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache

import sympy
import torch
from sympy import Expr

from smelt.codegen.cpp.accumulators import Accumulator, updates_in
from smelt.codegen.cpp.intrinsics import intrinsic_call, macros
from smelt.codegen.cpp.micro_kernels import MicroKernel, row_micro_kernel
from smelt.codegen.cpp.register_transpose import columns_of, copied
from smelt.codegen.cpp.scope import Function, Memory, Scope, Value
from smelt.codegen.cpp.types import CPP_TYPES, literal
from smelt.codegen.cpp.values import ValuePrinter
from smelt.codegen.cpp.vectorize import VectorPlan, plan_vector_loop
from smelt.codegen.index import ITERATION, Names, condition_text
from smelt.codegen.nests import NestText
from smelt.errors import SmeltError
from smelt.nest.ir import (
    FEW_COLUMNS,
    Advance,
    Alloc,
    Block,
    For,
    Guard,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Prefetch,
    Routine,
    SortRow,
    Stage,
    Stmt,
    Store,
)
from smelt.nest.primitives import side_by_side, without_jams
from smelt.nest.primitives.turning import TURNED
from smelt.nest.tree import loops, trip_count
from smelt.records import dataclass, replace
from smelt.symbolic import numel
from smelt.symbolic.affine import divided, remainder

ZERO = sympy.Integer(0)
STACK_BYTES = 64 * 1024


@dataclass(slots=True)
class KernelPrinter(ValuePrinter):
    """Prints one kernel; see `print_kernel`."""

    def run(self) -> Function:
        parameters = []
        for position, param in enumerate(self.kernel.params):
            name = f"{'out' if param.written else 'in'}{position}"
            self.memories[param.name] = Memory(name, param.dtype, param.strides, param.streamed)
            const = "" if param.written else "const "
            parameters.append(f"{const}{CPP_TYPES[param.dtype]}_buffer* {name}")
        sizes = {symbol: f"s{position}" for position, symbol in enumerate(self.kernel.sizes)}
        self.symbols = Names(sizes, self.shared, self.number)
        parameters += [f"i64 {name}" for name in self.symbols.values()]
        with self.head([None]):
            self.statements(self.kernel.body, Scope())
        body = [f"  const divider {name}({by});" for by, name in self.symbols.dividers.items()] + self.text()
        if "stream" in self.needs and self.fences:
            body.append("  streamed();")
        if self.checked:
            body = ["  i64 failed = 0, *const error = &failed;", *body, "  return failed;"]
        return Function(
            self.kernel.name,
            ", ".join(parameters),
            "\n".join(body),
            self.checked,
            frozenset(self.needs),
            computes=self.computes,
            carries=bool(self.carries),
            calls=tuple(self.functions.values()),
        )

    # ------------------------------------------------------------------------------------------ statements
    def statements(self, block: Block, scope: Scope) -> Scope:
        declared: list[Accumulator] = []
        self.held |= factors_of_several(block)
        for position, stmt in enumerate(block.stmts):
            self.computes |= not (
                isinstance(stmt, (For, Alloc, Prefetch)) or is_constant(stmt) or is_call(stmt)
            )
            made = self.statement(stmt, scope)
            if isinstance(made, Scope):
                scope = made
            elif isinstance(made, Accumulator):
                declared.append(made)
            for accumulator in declared:
                rest = block.stmts[position + 1 :]
                if not accumulator.finished and accumulator.name not in updates_in(rest):
                    self.finish(accumulator)
        return scope

    def loop(self, stmt: For, scope: Scope) -> None:
        if self.calls_rows(stmt) or (stmt.kind is LoopKind.TURN and self.turned_loop(stmt, scope)):
            return
        self.loops.append(stmt)
        var = self.symbols[stmt.var] = self.fresh("d")
        if stmt.kind is LoopKind.VECTOR and stmt.step > 1:
            self.vector_loop(stmt, var, scope)
        elif stmt.kind is LoopKind.PARALLEL and scope.lanes == 1:
            self.parallel_loop(stmt, var, scope)
        else:
            extent = stmt.end - stmt.begin if stmt.kind is LoopKind.UNROLL else None
            if extent is not None and extent.is_Integer and extent > 1:
                self.line(f"#pragma GCC unroll {max(1, min(int(extent), 64))}")
            with self.iterations(stmt, var), self.head([stmt.var]):
                self.statements(stmt.body, scope)
        self.loops.pop()

    @contextmanager
    def iterations(self, loop: For, var: str) -> Iterator[None]:
        """A loop, or a block if it has one iteration."""
        once = trip_count(loop) == loop.step and (self.known or loop.step == 1)
        with self.block("" if once else self.loop_head(loop, var)):
            if once:
                self.line(f"const i64 {var} = {self.index(loop.begin)};")
            yield

    def loop_head(self, stmt: For, var: str) -> str:
        begin, goes_on = self.index(stmt.begin), f"{var} < {self.index(stmt.end)}"
        if any(isinstance(each, Advance) for each in stmt.body.stmts):
            goes_on = f"SMELT_OFTEN({goes_on})"
        return f"for (i64 {var} = {begin}; {goes_on}; {var} += {stmt.step})"

    def parallel_loop(self, stmt: For, var: str, scope: Scope) -> None:
        nested = [(stmt, var)]
        body = stmt.body
        while len(body.stmts) == 1:
            inner = body.stmts[0]
            if not (isinstance(inner, For) and inner.kind is LoopKind.PARALLEL):
                break
            bounds = inner.begin.free_symbols | inner.end.free_symbols
            if any(outer.var in bounds for outer, _ in nested):
                break
            name = self.symbols[inner.var] = self.fresh("d")
            nested.append((inner, name))
            self.loops.append(inner)
            body = inner.body
        inside = replace(scope, parallel=scope.parallel + 1)
        with ExitStack() as blocks:
            if scope.parallel or self.merges_outward(body):
                if not scope.parallel:
                    collapse = f" collapse({len(nested)})" if len(nested) > 1 else ""
                    self.line(f"#pragma omp parallel for schedule(static){collapse} ordered")
                for loop, name in nested:
                    blocks.enter_context(self.block(self.loop_head(loop, name)))
            else:
                blocks.enter_context(self.shared_out(nested))
            with self.head([each.var for each, _ in nested]):
                self.statements(body, inside)
        del self.loops[len(self.loops) - (len(nested) - 1) :]

    @contextmanager
    def shared_out(self, nested: list[tuple[For, str]]) -> Iterator[None]:
        """Prints these loops as one, whose iterations the threads take in chunks (``smelt_parallel.h``)."""
        self.needs.add("parallel")
        counts = [divided(trip_count(loop) + (loop.step - 1), loop.step) for loop, _ in nested]
        iterations = self.index(numel(counts))
        opening: list[str] = []
        self.lines.append(opening)
        around, self.computes = self.computes, False
        before = "  " * self.indent
        self.indent += 1
        first, name = nested[0]
        counted = len(nested) == 1 and first.begin == 0 and first.step == 1
        place = name if counted else self.fresh("i")
        with self.block(f"for (i64 {place} = begin; {place} < end; {place} += 1)"):
            if not counted:
                self.symbols[ITERATION] = place
                self.each_of(nested, counts)
            yield
        self.indent -= 1
        self.line("});")
        function, body = (
            ("in_parallel", "SMELT_CHUNK") if self.computes else ("calls_in_parallel", "SMELT_CALLS")
        )
        opening.append(f"{before}{function}({iterations}, {body}(begin, end) {{")
        self.computes |= around

    def each_of(self, nested: list[tuple[For, str]], counts: list[Expr]) -> None:
        """Computes the variables of loops from the `ITERATION` of all."""
        for position, (loop, name) in enumerate(nested):
            number = ZERO
            if counts[position] != 1:
                number = divided(ITERATION, numel(counts[position + 1 :]))
                number = remainder(number, counts[position]) if position else number
            self.line(f"const i64 {name} = {self.index(loop.begin + loop.step * number)};")

    def merges_outward(self, body: Block) -> bool:
        updated = updates_in(body.stmts)
        return any(name in updated for name in self.accumulators if not self.accumulators[name].finished)

    def vector_loop(self, stmt: For, var: str, scope: Scope) -> None:
        if scope.lanes > 1:
            raise SmeltError(
                "SM0803", f"codegen: a VECTOR loop inside a VECTOR loop in kernel {self.kernel.name}"
            )
        if any(each.kind is LoopKind.JAM for each in loops(stmt.body)):
            stmt = replace(stmt, body=without_jams(stmt.body))
        outer = {name: acc.kind for name, acc in self.accumulators.items() if not acc.finished}
        plan = plan_vector_loop(stmt, outer)
        begin, end = self.index(stmt.begin), self.index(stmt.end)
        wide = replace(scope, lanes=plan.lanes, var=stmt.var, varying=frozenset({stmt.var}))
        if plan.exact:
            with self.iterations(replace(stmt, step=plan.lanes), var):
                self.statements(stmt.body, wide)
            return
        self.line(f"i64 {var} = {begin};")
        if plan.main:
            with self.block(f"for (; {var} + {plan.lanes} <= {end}; {var} += {plan.lanes})"):
                self.statements(stmt.body, wide)
        self.tail(stmt, var, end, plan, scope)

    def calls_rows(self, loop: For) -> bool:
        """Calls the function of rows of vectors, if a loop has that note and they can be one."""
        wanted = ("function", True) in loop.notes
        return wanted and self.calls(row_micro_kernel(loop, self.memories, self.definitions))

    def calls(self, outlined: MicroKernel | None) -> bool:
        """Calls a micro-kernel, if there is one."""
        if outlined is None:
            return False
        function = own_function(outlined.kernel)
        self.functions[function.name] = function
        self.needs.update(function.needs & {"stream"})
        self.line(outlined.call(function.name, self.memories, self.symbols))
        return True

    def tail(self, stmt: For, var: str, end: str, plan: VectorPlan, scope: Scope) -> None:
        """The tail of a vector loop: the body again, in which only the first lanes are active."""
        lanes = plan.tail_lanes
        once = plan.lanes == lanes
        head = f"if ({var} < {end})" if once else f"for (; {var} < {end}; {var} += {lanes})"
        with self.block(head):
            mask = self.fresh("m")
            self.line(f"const auto {mask} = first<{lanes}>({end} - {var});")
            varying = frozenset({stmt.var})
            self.statements(stmt.body, replace(scope, lanes=lanes, var=stmt.var, varying=varying, mask=mask))

    def masked(self, stmt: Masked, scope: Scope) -> None:
        mask = self.value(stmt.mask)
        other = literal(stmt.other, stmt.dtype)
        name = self.fresh("v")
        if mask.lanes > 1:
            active = mask.text
            if scope.mask is not None:
                active = self.fresh("m")
                self.line(f"const auto {active} = bitwise_and({scope.mask}, {mask.text});")
            self.statements(stmt.body, replace(scope, mask=active, maybe_empty=True))
            lanes = self.in_lanes(self.value(stmt.result), scope)
            self.line(f"const auto {name} = where({mask.text}, {lanes}, splat<{scope.lanes}>({other}));")
            self.values[stmt.name] = Value(name, stmt.dtype, scope.lanes)
            return
        # The same for all lanes: a branch. Whether the result varies shows after the body is printed.
        declaration: list[str] = []
        self.lines.append(declaration)
        indent = self.indent
        with self.block(f"if ({mask.text})"):
            self.statements(stmt.body, scope)
            result = self.value(stmt.result)
            fitted = (
                f"resize<i32>({result.text})"
                if result.lanes > 1 and stmt.dtype is torch.bool
                else result.text
            )
            self.line(f"{name} = {fitted};")
        cpp = CPP_TYPES[stmt.dtype]
        if result.lanes > 1:
            declared = f"values<{cpp}, {result.lanes}> {name} = splat<{result.lanes}>({other});"
        else:
            declared = f"{cpp} {name} = {other};"
        declaration.append("  " * indent + declared)
        self.values[stmt.name] = Value(name, stmt.dtype, result.lanes)

    def guard(self, stmt: Guard, scope: Scope) -> None:
        """A branch; lanes in which the condition does not hold are inactive."""
        if scope.varying.isdisjoint(stmt.condition.free_symbols):
            with self.block(f"if ({condition_text(stmt.condition, self.symbols)})"):
                self.statements(stmt.body, scope)
            return
        text = condition_text(stmt.condition, self.lane_names(scope))
        mask = self.fresh("m")
        found = f"resize<i32>(gather<{scope.lanes}>([&](i64 k) {{ return bool({text}); }}))"
        text = found if scope.mask is None else f"bitwise_and({scope.mask}, {found})"
        self.line(f"const auto {mask} = {text};")
        with self.block(f"if (any({mask}))"):
            self.statements(stmt.body, replace(scope, mask=mask, maybe_empty=True))

    def stage(self, stage: Stage, scope: Scope) -> None:
        """A call of a stage's text; its body, if the macros for the text are missing."""
        text = stage.text
        assert text is not None, f"the stage {stage.name} is dissolved before it is printed"
        function, arguments = intrinsic_call(stage, text, self.memories, scope.parallel > 0)
        self.functions[function.name] = function
        self.needs.update(function.needs & {"stream"})
        given = [*(memory.at(offset, self.symbols) for memory, offset in arguments[0])]
        call = f"{function.name}({', '.join([*given, *map(self.index, arguments[1])])});"
        if not text.requires:
            self.line(call)
            return
        self.line(macros(text))
        self.line(call)
        self.line("#else")
        NestText.stage(self, stage, scope)
        self.line("#endif")

    def prefetch(self, stmt: Prefetch, scope: Scope) -> None:
        memory = self.memories[stmt.buffer]
        self.line(f"__builtin_prefetch({memory.at(memory.offset(stmt.index), self.symbols)});")

    def sort_row(self, stmt: SortRow, scope: Scope) -> None:
        if scope.lanes > 1:
            raise SmeltError(
                "SM0808", f"codegen: rows sorted inside a VECTOR loop in kernel {self.kernel.name}"
            )
        self.needs.add("sort")
        source = self.memories[stmt.source]

        def place(name: str | None, index: Sequence[Expr], dtype: torch.dtype) -> str:
            if name is None:
                return f"({CPP_TYPES[dtype]}_buffer*)0"
            memory = self.memories[name]
            return memory.at(memory.offset(index), self.symbols)

        args = [
            place(stmt.source, stmt.start, source.dtype),
            self.index(stmt.length),
            self.index(stmt.limit),
            "true" if stmt.descending else "false",
            place(stmt.values, stmt.into, source.dtype),
            place(stmt.positions, stmt.into, torch.int64),
        ]
        self.line(f"sort_row({', '.join(args)});")

    def routine(self, stmt: Routine, scope: Scope) -> None:
        self.needs |= {stmt.part, "parallel"}
        memories = [self.memories[name].text for name in (*stmt.reads, *stmt.writes)]
        self.line(f"{stmt.name}({', '.join([*map(self.index, stmt.numbers), *memories])});")

    def alloc(self, stmt: Alloc, scope: Scope) -> None:
        if scope.lanes > 1:
            raise SmeltError(
                "SM0804", f"codegen: scratch memory inside a VECTOR loop in kernel {self.kernel.name}"
            )
        name, cpp = self.fresh("t"), CPP_TYPES[stmt.dtype]
        self.memories[stmt.buffer] = Memory(name, stmt.dtype, stmt.strides)
        size = stmt.count
        if size.is_Integer and int(size) * stmt.dtype.itemsize <= STACK_BYTES:
            array = name if scope.parallel else f"{name}_memory"  # threads take a copy of all but pointers
            self.line(f"alignas(64) {cpp}_buffer {array}[{max(1, int(size))}];")
        else:
            self.line(f"scratch {name}_memory(({self.index(size)}) * i64(sizeof({cpp})));")
            array = f"({cpp}_buffer*){name}_memory.p"
        if array != name:
            self.line(f"{cpp}_buffer* const {name} = {array};")

    def turned_loop(self, loop: For, scope: Scope) -> bool:
        """Prints a loop whose columns are stored as rows; False where lanes are masked, or vectors have other
        sizes.
        """
        count, store = int(trip_count(loop)), loop.body.stmts[-1]
        assert isinstance(store, Store)
        if scope.mask is not None or scope.lanes not in TURNED:
            return False
        columns, memory = columns_of(loop, store, scope, self.memories), self.memories[store.buffer]
        few = count in FEW_COLUMNS and columns.step.is_number(count)
        place = memory.at(columns.place, self.symbols)
        if not few and count != scope.lanes:
            return False
        self.needs.add("transpose")
        vectors, kind = self.fresh("w"), f"values<{CPP_TYPES[memory.dtype]}, {scope.lanes}>"
        if few:
            self.computes = True
            body = side_by_side(loop).stmts
            stores = [each for each in body if isinstance(each, Store)]
            self.statements(Block(tuple(each for each in body if not isinstance(each, Store))), scope)
            values = [self.in_lanes(self.value(each.value), scope) for each in stores]
            self.line(f"{kind} {vectors}[] = {{{', '.join(values)}}};")
            stored = f"transposed({place}, {count}" if count == scope.lanes else f"adjacent({place}"
            self.line(f"store_{stored}, {vectors});")
            return True
        place = f"{place}, {columns.step.text(self.symbols)}"
        source = copied(loop, scope, self.memories)
        if source is not None:
            name, first, step = source
            given = f"{self.memories[name].at(first, self.symbols)}, {step.text(self.symbols)}"
            self.line(f"copy_transposed<{scope.lanes}>({place}, {given});")
            return True
        self.computes = True
        lane = self.fresh("d")
        begin = "" if loop.begin == 0 else f"{self.index(loop.begin)} + "
        self.symbols[loop.var] = f"({begin}{lane})" if begin else lane
        self.line(f"{kind} {vectors}[{scope.lanes}];")
        with self.block(f"for (i64 {lane} = 0; {lane} < {scope.lanes}; {lane} += 1)"), self.head([loop.var]):
            self.statements(Block(loop.body.stmts[:-1]), scope)
            self.line(f"{vectors}[{lane}] = {self.in_lanes(self.value(store.value), scope)};")
        self.line(f"store_transposed({place}, {vectors});")
        return True


def is_call(stmt: Stmt) -> bool:
    """Whether a statement is printed as a call of a function."""
    return isinstance(stmt, Stage) and stmt.text is not None and not stmt.text.requires


def factors_of_several(block: Block) -> set[str]:
    """The operands of several fused multiply-adds of a block: they stay in registers."""
    uses = Counter(
        name for stmt in block.stmts if isinstance(stmt, Let) and stmt.op == "fma" for name in stmt.args[:2]
    )
    return {name for name, count in uses.items() if count > 1}


def is_constant(stmt: Stmt) -> bool:
    return isinstance(stmt, Let) and stmt.op == "constant"


def print_kernel(kernel: Kernel, number: Callable[[int | str], str] = str, known: bool = True) -> Function:
    """The C++ of one kernel; ``number`` prints the numbers of indices and loops, and fractions that it
    computes with (text). ``known``: numbers are constants, so that a loop of one vector is no loop.

    Raises:
        SmeltError: SM0801-SM0807, the nest breaks a rule that its verifier should have caught.
    """
    return KernelPrinter(kernel, number, known).run()


@lru_cache(maxsize=1024)
def own_function(kernel: Kernel) -> Function:
    """The function of a micro-kernel, named by its contents, so that equal ones are one function.

    Compilers may not inline it: it would be copied to each call.
    """
    function = KernelPrinter(kernel, fences=False).run()
    digest = hashlib.sha256((function.parameters + function.body).encode()).hexdigest()
    name = f"{kernel.name}_{digest[:12]}"
    return replace(function, name=name, before="__attribute__((noinline)) ")
