"""Prints statements of a nest that compute, load, store and reduce, for one lane or for many."""

from __future__ import annotations

import sympy
import torch
from sympy import Expr

from smelt.codegen.cpp.accumulators import Accumulator
from smelt.codegen.cpp.header import CORE_OPERATORS, RANDOM_OPERATORS
from smelt.codegen.cpp.scope import Scope, Value
from smelt.codegen.cpp.text import KernelText
from smelt.codegen.cpp.types import CPP_TYPES, ERROR_CODES, literal
from smelt.codegen.index import Names, Offset, flat_offset
from smelt.errors import SmeltError
from smelt.loops.ir import ACCUMULATIONS
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Carry,
    For,
    Let,
    Store,
    Update,
)
from smelt.ops import TABLE
from smelt.records import dataclass, replace

_DIVISIONS = ("fmod", "remainder", "floordiv", "truncdiv")


@dataclass(slots=True)
class ValuePrinter(KernelText):
    """Prints the statements that have neither loops nor statements inside."""

    # ------------------------------------------------------------------------------------------ values
    def value(self, name: str) -> Value:
        try:
            return self.values[name]
        except KeyError:
            raise SmeltError(
                "SM0805", f"codegen: value {name} is not defined in kernel {self.kernel.name}"
            ) from None

    def in_lanes(self, value: Value, scope: Scope) -> str:
        return value.text if value.lanes > 1 or scope.lanes == 1 else f"splat<{scope.lanes}>({value.text})"

    def define(self, stmt: Let, text: str, lanes: int) -> None:
        name = self.fresh("v")
        kind = "auto" if lanes > 1 else CPP_TYPES[stmt.dtype]
        self.line(f"const {kind} {name} = {text};")
        self.values[stmt.name] = Value(name, stmt.dtype, lanes)

    def let(self, stmt: Let, scope: Scope) -> Scope:
        self.definitions[stmt.name] = stmt
        if stmt.op == "constant":
            text = literal(stmt.args[0], stmt.dtype)
            if stmt.dtype in (torch.float32, torch.float64) and float(stmt.args[0]) % 1 > 0:
                text = self.number(text)
            self.values[stmt.name] = Value(text, stmt.dtype, 1, stmt.args[0])
        elif stmt.op == "load":
            self.load(stmt, scope)
        elif stmt.op == "index_expr":
            self.index_expr(stmt, scope)
        elif stmt.op in ("to_dtype", "bitcast"):
            source = self.value(stmt.args[0])
            function = "to" if stmt.op == "to_dtype" else "bitcast"
            self.define(stmt, f"{function}<{CPP_TYPES[stmt.dtype]}>({source.text})", source.lanes)
        elif stmt.op == "indirect_index":
            return self.indirect_index(stmt, scope)
        elif stmt.op == "read" and stmt.args[0] in self.carries:
            carry = self.carries[stmt.args[0]]
            self.define(stmt, carry.text, carry.lanes)
        elif stmt.op == "read":
            accumulator = self.accumulators[stmt.args[0]]
            text, lanes = accumulator.read(int(stmt.args[1]) if len(stmt.args) > 1 else 0)
            self.define(stmt, text, lanes)
        elif stmt.op == "lookup":
            self.needs.add("lookup")
            table, number = (self.in_lanes(self.value(name), scope) for name in stmt.args)
            self.define(stmt, f"lookup({table}, {number})", scope.lanes)
        elif stmt.op in TABLE:
            self.elementwise(stmt, scope)
        else:
            raise SmeltError("SM0806", f"codegen: no C++ for {stmt.op} in kernel {self.kernel.name}")
        return scope

    def elementwise(self, stmt: Let, scope: Scope) -> None:
        args = [self.value(name) for name in stmt.args]
        lanes = max(arg.lanes for arg in args)
        texts = [arg.text if lanes == 1 else self.in_lanes(arg, scope) for arg in args]
        if stmt.op in _DIVISIONS and not args[0].dtype.is_floating_point and not args[1].number:
            self.checked = True
            mask = f"{scope.mask}, " if scope.mask is not None and lanes > 1 else ""
            texts[1] = f"check_divisor({mask}{texts[1]}, error)"
            if scope.maybe_empty and lanes == 1:
                texts[1] = f"(any({scope.mask}) ? {texts[1]} : {literal(1, args[1].dtype)})"
        if self.is_floor(stmt):
            self.define(stmt, f"at_least({texts[2]}, {texts[1]})", lanes)
            return
        if stmt.op not in CORE_OPERATORS:
            self.needs.add("random" if stmt.op in RANDOM_OPERATORS else "math")
        self.define(stmt, f"{stmt.op}({', '.join(texts)})", lanes)

    def is_floor(self, stmt: Let) -> bool:
        """``where(x < c, c, x)  →  at_least(x, c)``: one instruction, used for relu."""
        if stmt.op != "where" or not stmt.dtype.is_floating_point or stmt.dtype.itemsize < 4:
            return False
        test = self.definitions.get(stmt.args[0])
        return test is not None and test.op == "lt" and test.args == (stmt.args[2], stmt.args[1])

    def load(self, stmt: Let, scope: Scope) -> None:
        memory = self.memories[stmt.args[0]]
        offset = memory.offset(stmt.args[1])
        if not offset.depends(set(scope.varying)):
            text = f"{memory.text}[{offset.text(self.symbols)}]"
            if scope.maybe_empty:
                text = f"any({scope.mask}) ? {text} : {literal(0, stmt.dtype)}"
                if stmt.dtype is torch.bool:
                    text = text.replace(" ? ", " ? bool(", 1).replace(" : ", ") : ", 1)
            self.define(stmt, text, 1)
            return
        mask = f"{scope.mask}, " if scope.mask is not None else ""
        if self.contiguous(offset, scope):
            place = memory.at(offset, self.symbols)
            text = f"load<{scope.lanes}>({mask}{place})"
            self.define(stmt, f"held({text})" if stmt.name in self.held else text, scope.lanes)
        else:
            element = f"{memory.text}[{self.at_lane(offset, scope)}]"
            self.define(stmt, f"gather<{scope.lanes}>({mask}[&](i64 k) {{ return {element}; }})", scope.lanes)

    def contiguous(self, offset: Offset, scope: Scope) -> bool:
        assert scope.var is not None
        if offset.depends(set(scope.varying) - {scope.var}):
            return False
        parts = offset.split(scope.var)
        return parts is not None and parts[1].is_one

    def at_lane(self, offset: Offset, scope: Scope) -> str:
        """The offset in lane ``k``."""
        return offset.text(self.lane_names(scope))

    def lane_names(self, scope: Scope) -> Names:
        """The names of symbols in lane ``k``."""
        own = {
            s: f"({self.symbols[s]} + k)" if s == scope.var else f"{self.symbols[s]}[k]"
            for s in scope.varying
        }
        return self.symbols.in_lanes(own)

    def index_expr(self, stmt: Let, scope: Scope) -> None:
        offset = flat_offset([stmt.args[0]], [sympy.Integer(1)])
        varies = offset.depends(set(scope.varying))
        text = self.index_lanes(offset, scope) if varies else f"i64({offset.text(self.symbols)})"
        if stmt.dtype is not torch.int64:
            text = f"to<{CPP_TYPES[stmt.dtype]}>({text})"
        self.define(stmt, text, scope.lanes if varies else 1)

    def index_lanes(self, offset: Offset, scope: Scope) -> str:
        """An index expression that differs by lane, as int64 lanes."""
        assert scope.var is not None
        parts = None if offset.depends(set(scope.varying) - {scope.var}) else offset.split(scope.var)
        if parts is None:
            return f"gather<{scope.lanes}>([&](i64 k) {{ return i64({self.at_lane(offset, scope)}); }})"
        step = "" if parts[1].is_one else f", {parts[1].text(self.symbols)}"
        return f"iota<{scope.lanes}>({offset.text(self.symbols)}{step})"

    def indirect_index(self, stmt: Let, scope: Scope) -> Scope:
        name, size, wrap, check = (*stmt.args, True, True)[:4]
        source = self.value(name)
        text = source.text if source.dtype is torch.int64 else f"to<i64>({source.text})"
        if wrap:
            text = f"wrap_index({text}, {self.index(size)})"
        if check:
            self.checked = True
            code = ERROR_CODES.get(check, "BOUNDS_ERROR")  # an assertion of a person's
            self.empty_guard(size, code)
            mask = f"{scope.mask}, " if scope.mask is not None and source.lanes > 1 else ""
            which = "" if code == "INDEX_ERROR" else f", {code}"
            text = f"check_index({mask}{text}, {self.index(size)}, error{which})"
            if scope.maybe_empty and source.lanes == 1:
                text = f"any({scope.mask}) ? {text} : 0"
        position = self.fresh("x")
        assert stmt.index is not None
        if source.lanes == 1:
            self.line(f"const i64 {position} = {text};")
            self.values[stmt.name] = Value(position, torch.int64, 1)
            self.symbols[stmt.index] = position
            return scope
        self.line(f"const auto {position}_lanes = {text};")
        self.line(f"i64 {position}[{scope.lanes}];")
        self.line(f"store({position}, {position}_lanes);")
        self.values[stmt.name] = Value(f"{position}_lanes", torch.int64, scope.lanes)
        self.symbols[stmt.index] = position
        return replace(scope, varying=scope.varying | {stmt.index})

    def empty_guard(self, size: Expr, code: str) -> None:
        """A dimension without elements: no clamped index is safe, so the kernel stops before its loops."""
        if size.is_positive:
            return
        runs = [
            f"{self.index(loop.begin)} < {self.index(loop.end)}"
            for loop in self.loops
            if self.outermost(loop)
        ]
        # behind the kernel's own head, which names the parts of sizes and bounds
        self.lines.insert(1, f"  if ({' && '.join([f'{self.index(size)} <= 0', *runs])}) return {code};")

    def outermost(self, loop: For) -> bool:
        bounds = loop.begin.free_symbols | loop.end.free_symbols
        return bounds <= set(self.kernel.sizes)

    # ------------------------------------------------------------------------------------------ stores
    def store(self, stmt: Store, scope: Scope) -> None:
        memory = self.memories[stmt.buffer]
        offset = memory.offset(stmt.index)
        value = self.value(stmt.value)
        varies = offset.depends(set(scope.varying))
        if scope.lanes == 1 or (
            not varies and value.lanes == 1 and stmt.mode is None and not scope.maybe_empty
        ):
            place = f"{memory.text}[{offset.text(self.symbols)}]"
            self.line(self.store_one(place, value.text, value.dtype, stmt.mode))
            return
        mask = f"{scope.mask}, " if scope.mask is not None else ""
        lanes = self.in_lanes(value, scope)
        if varies and stmt.mode != "atomic_add" and self.contiguous(offset, scope):
            place = memory.at(offset, self.symbols)
            if stmt.mode is not None:
                lanes = f"{stmt.mode}(load<{scope.lanes}>({mask}{place}), {lanes})"
            if memory.streamed and not mask and stmt.mode is None and value.dtype is not torch.bool:
                self.needs.add("stream")
                self.line(f"stream({place}, {lanes});")
            else:
                self.line(f"store({mask}{place}, {lanes});")
            return
        place = f"{memory.text}[{self.at_lane(offset, scope)}]"
        body = self.store_one(place, "value", value.dtype, stmt.mode)
        self.line(f"scatter({mask}{lanes}, [&](i64 k, auto value) {{ {body} }});")

    def store_one(self, place: str, value: str, dtype: torch.dtype, mode: str | None) -> str:
        if mode is None:
            return f"{place} = {value};"
        if mode == "atomic_add":
            return f"atomic_add(({CPP_TYPES[dtype]}*)&{place}, {value});"
        if mode in ACCUMULATIONS:
            return f"{place} = {mode}({CPP_TYPES[dtype]}({place}), {CPP_TYPES[dtype]}({value}));"
        raise SmeltError("SM0806", f"codegen: no C++ for store mode {mode!r}")

    # ------------------------------------------------------------------------------------------ scans
    def carry(self, stmt: Carry, scope: Scope) -> None:
        name, first, cpp = self.fresh("c"), literal(stmt.initial, stmt.dtype), CPP_TYPES[stmt.dtype]
        if scope.lanes == 1:
            self.line(f"{cpp} {name} = {first};")
        else:
            self.line(f"values<{cpp}, {scope.lanes}> {name} = splat<{scope.lanes}>({first});")
        self.carries[stmt.name] = Value(name, stmt.dtype, scope.lanes)

    def advance(self, stmt: Advance, scope: Scope) -> None:
        carry = self.carries[stmt.carry]
        if carry.lanes != scope.lanes:
            raise SmeltError(
                "SM0807", f"codegen: kernel {self.kernel.name} advances {stmt.carry} in several lanes at once"
            )
        text = self.in_lanes(self.value(stmt.value), scope)
        if carry.lanes > 1 and carry.dtype is torch.bool:
            text = f"resize<i32>({text})"
        self.line(f"{carry.text} = {text};")

    # ------------------------------------------------------------------------------------------ reductions
    def accumulate(self, stmt: Accumulate, scope: Scope) -> Accumulator:
        self.needs.add("softmax" if stmt.kind == "online_softmax" else "reduce")
        slot: list[str] = []
        self.lines.append(slot)
        accumulator = Accumulator(
            stmt.name,
            self.fresh("a"),
            stmt.kind,
            CPP_TYPES[stmt.dtype],
            scope.lanes,
            slot,
            self.indent,
            scope.parallel,
        )
        self.accumulators[stmt.name] = accumulator
        return accumulator

    def update(self, stmt: Update, scope: Scope) -> None:
        accumulator = self.accumulators[stmt.acc]
        if stmt.merge:
            other = self.accumulators[stmt.value]
            if scope.parallel > accumulator.parallel:
                self.line("#pragma omp ordered")
            self.line(f"{accumulator.part(other.final_lanes, masked=False)}.merge({other.final});")
            return
        if scope.parallel > accumulator.parallel:
            raise SmeltError(
                "SM0807",
                f"codegen: kernel {self.kernel.name} updates {stmt.acc} from several threads",
                remedy="accumulate inside the parallel loop and merge",
            )
        own = accumulator.lanes > 1  # one accumulation per lane: lanes that do not count do no harm
        part = accumulator.part(scope.lanes, masked=scope.mask is not None and not own)
        mask = f"{scope.mask}, " if scope.mask is not None and scope.lanes > 1 and not own else ""
        value = self.value(stmt.value)
        text = self.in_lanes(value, scope)
        if accumulator.element == "bool":
            text = text if value.dtype is torch.bool else f"to<bool>({text})"
            text = f"resize<i32>({text})" if scope.lanes > 1 else text
        if accumulator.kind in ("argmax", "argmin"):
            assert stmt.position is not None
            offset = flat_offset([stmt.position], [sympy.Integer(1)])
            if offset.depends(set(scope.varying)):
                text += f", {self.index_lanes(offset, scope)}"
            else:
                position = f"i64({offset.text(self.symbols)})"
                text += f", {position}" if scope.lanes == 1 else f", splat<{scope.lanes}>({position})"
        self.line(f"{part}.update({mask}{text});")

    def finish(self, accumulator: Accumulator) -> None:
        for text in accumulator.finish():
            self.line(text)
