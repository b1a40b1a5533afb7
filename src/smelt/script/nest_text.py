"""A kernel as TVMScript, for people and for `smelt.script.parse`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from sympy import Eq, Expr, Ne, Not, Symbol

from smelt.errors import SmeltError
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Alloc,
    Axis,
    AxisKind,
    Block,
    Carry,
    For,
    Guard,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Param,
    Prefetch,
    Routine,
    Stage,
    Stmt,
    Store,
    Update,
)
from smelt.nest.regions import Access, Facts, Interval, found_accesses, touched
from smelt.nest.tree import exprs_of, named, symbols_of_params, walk
from smelt.ops import TABLE
from smelt.script.inert import Word
from smelt.script.placement import bound
from smelt.script.words import CALLS, DIALECTS, DTYPES, INFIX, Dialect
from smelt.symbolic import contiguous_strides, same
from smelt.symbolic.affine import expand, symbols_in
from smelt.symbolic.text import python_text

INDENT = "    "
_ATOM = 20
_MODES = {"add": "+", "mul": "*"}
_KINDS = {
    LoopKind.SERIAL: "serial",
    LoopKind.PARALLEL: "parallel",
    LoopKind.VECTOR: "vectorized",
    LoopKind.UNROLL: "unroll",
    LoopKind.JAM: "smelt_jam",
    LoopKind.TURN: "smelt_turn",
}
_LETTERS = {AxisKind.SPATIAL: "S", AxisKind.REDUCE: "R", AxisKind.OPAQUE: "O"}


def function_lines(
    kernel: Kernel,
    attrs: Mapping[str, Any],
    private: bool = False,
    dialect: str = "tvm",
    name: str | None = None,
) -> list[str]:
    """The lines of a function with its decorator, not indented."""
    return _Printer(kernel, DIALECTS[dialect]).function(attrs, private, name or kernel.name)


def dtype_name(dtype: torch.dtype) -> str:
    """
    >>> dtype_name(torch.float32)
    'float32'
    """
    return DTYPES[dtype]


def tuple_text(parts: Sequence[str]) -> str:
    """
    >>> tuple_text(["4"]), tuple_text(["4", "n"])
    ('(4,)', '(4, n)')
    """
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


class _Scope:
    """The names that are visible at a statement."""

    def __init__(self, parent: _Scope | None = None) -> None:
        self.names: dict[Symbol, str] = dict(parent.names) if parent else {}
        self.taken: set[str] = set(parent.taken) if parent else set()

    def add(self, symbol: Symbol, label: str) -> str:
        name, number = label, 0
        while name in self.taken:
            number += 1
            name = f"{label}_{number}"
        self.taken.add(name)
        self.names[symbol] = name
        return name


class _Printer:
    def __init__(self, kernel: Kernel, dialect: Dialect) -> None:
        self.kernel, self.dialect = kernel, dialect
        self.shapes = {param.name: param.shape for param in kernel.params}
        self.shapes |= {s.buffer: s.shape for s in walk(kernel.body) if isinstance(s, Alloc)}
        self.loops_by_var = {s.var: s for s in walk(kernel.body) if isinstance(s, For)}
        self.look_at(kernel.body)
        self.masks = 0
        self.values: dict[str, tuple[str, int]] = {}
        self.indices: dict[Symbol, str] = {}
        self.truths: dict[Any, tuple[str, int]] = {}
        """The positions that are truth values of data → their text."""
        self.heads = _heads(kernel.body)

    def look_at(self, block: Block) -> None:
        """Collect the names of values in a block, and their uses."""
        self.made = {s.name: s for s in walk(block) if isinstance(s, Let)}
        self.uses = _uses(block)
        self.bound = bound(block)

    # -- the head ----------------------------------------------------------------------------------------

    def function(self, attrs: Mapping[str, Any], private: bool, name: str) -> list[str]:
        scope = _Scope()
        scope.taken |= set(self.shapes)
        for size in self.kernel.sizes:
            scope.add(size, size.name)
        symbolic = bool(symbols_of_params(self.kernel.params))
        params, matched = [], []
        for param in self.kernel.params:
            if symbolic:
                params.append(f"var_{param.name}: T.handle")
                matched.append(
                    f"{param.name} = T.match_buffer(var_{param.name}, {self.buffer(param, scope)})"
                )
            else:
                params.append(f"{param.name}: T.Buffer({self.buffer(param, scope)})")
        for place, size in sorted(self.kernel.scalars, key=lambda each: each[0]):
            params.insert(place, f"{scope.names[size]}: T.int64")
        given = {size for _, size in self.kernel.scalars}
        lines = ["@T.prim_func(private=True)" if private else "@T.prim_func"]
        lines.append(f"def {name}({', '.join(params)}):")
        body: list[str] = []
        if attrs:
            body.append(f"T.func_attr({attrs_text(attrs)})")
        body += [f"{scope.names[size]} = T.int64()" for size in self.kernel.sizes if size not in given]
        body += matched
        body.append(f'# with T.{self.dialect.block}("root"):')
        body += self.block(self.kernel.body, scope) or ["T.evaluate(0)"]
        return lines + [INDENT + line for line in body]

    def buffer(self, param: Param, scope: _Scope) -> str:
        parts = [tuple_text([self.expr(e, scope) for e in param.shape]), f'"{dtype_name(param.dtype)}"']
        if not all(map(same, param.strides, contiguous_strides(param.shape))):
            parts.append(f"strides={tuple_text([self.expr(e, scope) for e in param.strides])}")
        if param.streamed:
            parts.append("smelt_streamed=True")
        return ", ".join(parts)

    # -- statements --------------------------------------------------------------------------------------

    def block(self, block: Block, scope: _Scope) -> list[str]:
        lines: list[str] = []
        last: Stmt | None = None
        for stmt in block.stmts:
            if isinstance(last, Guard) and isinstance(stmt, Guard) and stmt.condition == Not(last.condition):
                lines += ["else:", *self.body(stmt.body, _Scope(scope))]
                last = None
                continue
            lines += self.statement(stmt, scope)
            last = stmt
        return lines

    def statement(self, stmt: Stmt, scope: _Scope) -> list[str]:
        if isinstance(stmt, For):
            return self.loops(stmt, scope)
        if isinstance(stmt, Stage):
            return self.stage(stmt, scope)
        if isinstance(stmt, Guard):
            return [f"if {self.condition(stmt, scope)}:", *self.body(stmt.body, _Scope(scope))]
        if isinstance(stmt, (Let, Masked)):
            return self.value(stmt, scope)
        if isinstance(stmt, Store):
            return [self.store(stmt, scope)]
        if isinstance(stmt, Alloc):
            return [self.alloc(stmt, scope)]
        if isinstance(stmt, Accumulate):
            return [f'{stmt.name} = T.smelt_accumulator("{stmt.kind}", "{dtype_name(stmt.dtype)}")']
        if isinstance(stmt, Update):
            at = "" if stmt.position is None else f", position={self.expr(stmt.position, scope)}"
            merge = ", merge=True" if stmt.merge else ""
            value = stmt.value if stmt.merge else self.values[stmt.value][0]
            return [f"T.smelt_update({stmt.acc}, {value}{at}{merge})"]
        if isinstance(stmt, Carry):
            return [f'{stmt.name} = T.smelt_carry({stmt.initial!r}, "{dtype_name(stmt.dtype)}")']
        if isinstance(stmt, Advance):
            return [f"T.smelt_advance({stmt.carry}, {self.values[stmt.value][0]})"]
        if isinstance(stmt, Prefetch):
            return [f"T.smelt_prefetch({self.place(stmt.buffer, stmt.index, scope)})"]
        if isinstance(stmt, Routine):
            given = [*(self.expr(each, scope) for each in stmt.numbers), *stmt.reads, *stmt.writes]
            return [f"T.smelt_{stmt.name}({', '.join(given)})"]
        parts = [
            self.place(stmt.source, stmt.start, scope),
            self.expr(stmt.length, scope),
            self.expr(stmt.limit, scope),
            str(stmt.descending),
        ]
        parts += [
            f"{key}={self.place(name, stmt.into, scope)}"
            for key, name in (("values", stmt.values), ("positions", stmt.positions))
            if name is not None
        ]
        return [f"T.smelt_sort_row({', '.join(parts)})"]

    def condition(self, stmt: Guard, scope: _Scope) -> str:
        """The condition; it is a value if it depends on data."""
        truth = stmt.condition.args[0] if isinstance(stmt.condition, (Ne, Eq)) else None
        if truth not in self.truths or stmt.condition.args[1] != 0 or truth in scope.names:
            return self.expr(stmt.condition, scope)
        text, binds = self.truths[truth]
        if isinstance(stmt.condition, Ne):
            return text
        return f"not {text if binds == _ATOM else f'({text})'}"

    def loops(self, loop: For, scope: _Scope) -> list[str]:
        """One loop, or directly nested plain loops as ``T.grid``."""
        chain = [loop]
        while True:
            last = chain[-1]
            inside = last.body.stmts[0] if len(last.body.stmts) == 1 else None
            plain = isinstance(inside, For) and _is_plain(last) and _is_plain(inside)
            if not plain or not isinstance(inside, For):
                break
            if symbols_in(inside.end) & {each.var for each in chain}:
                break
            chain.append(inside)
        inner = _Scope(scope)
        names = [inner.add(each.var, named(each)) for each in chain]
        if len(chain) > 1:
            head = f"T.grid({', '.join(self.expr(each.end, scope) for each in chain)})"
        else:
            head = self.loop_head(loop, scope)
        return [f"for {', '.join(names)} in {head}:", *self.body(chain[-1].body, inner)]

    def loop_head(self, loop: For, scope: _Scope) -> str:
        begin = "" if loop.begin == 0 else f"{self.expr(loop.begin, scope)}, "
        parts = [f"{begin}{self.expr(loop.end, scope)}"]
        if loop.thread is not None:
            parts.append(f'thread="{loop.thread}"')
        if loop.step != 1:
            parts.append(f"smelt_lanes={loop.step}")
        if loop.notes:
            parts.append(f"annotations={attrs_text(dict(loop.notes))}")
        if loop.thread is not None:
            return f"T.thread_binding({', '.join(parts)})"
        if loop.kind is LoopKind.SERIAL and len(parts) == 1:
            return f"range({parts[0]})"
        return f"T.{_KINDS[loop.kind]}({', '.join(parts)})"

    def body(self, block: Block, scope: _Scope) -> list[str]:
        return _indented(self.block(block, scope)) or [f"{INDENT}pass"]

    def stage(self, stage: Stage, scope: _Scope) -> list[str]:
        inner = _Scope(scope)
        outer = self.made, self.uses, self.bound
        lines = self.axes(stage.axes, scope, inner)
        where = [self.expr(each, scope) for each in stage.where]
        if where:  # a block has these once
            lines.append(f"T.where({where[0] if len(where) == 1 else ' and '.join(f'({e})' for e in where)})")
        init = None
        if stage.init is not None:
            self.look_at(stage.init)
            init = self.body(stage.init, _Scope(inner))
        self.look_at(stage.body)  # other stages may use the same names
        body = self.block(stage.body, inner)
        lines += self.regions(stage, inner, body)
        if stage.notes:
            lines.append(f"T.{self.dialect.block}_attr({attrs_text(dict(stage.notes))})")
        if init is not None:
            lines += ["with T.init():", *init]
        lines += body
        self.made, self.uses, self.bound = outer
        return [f'with T.{self.dialect.block}("{stage.name}"):', *_indented(lines)]

    def axes(self, axes: Sequence[Axis], scope: _Scope, inner: _Scope) -> list[str]:
        lines: list[str] = []
        group: list[Axis] = []

        def flush() -> None:
            if len(group) > 1:
                names = ", ".join(inner.names[axis.var] for axis in group)
                letters = "".join(_LETTERS[axis.kind] for axis in group)
                values = ", ".join(self.expr(axis.value, scope) for axis in group)
                lines.append(f'{names} = T.axis.remap("{letters}", [{values}])')
            elif group:
                lines.append(self.axis(group[0], scope, inner))
            group.clear()

        for axis in axes:
            inner.add(axis.var, named(axis))
            if self.is_remapped(axis, scope):
                group.append(axis)
            else:
                flush()
                lines.append(self.axis(axis, scope, inner))
        flush()
        return lines

    def is_remapped(self, axis: Axis, scope: _Scope) -> bool:
        if axis.begin != 0 or not isinstance(axis.value, Symbol) or axis.kind is AxisKind.OPAQUE:
            return False
        loop = self.loops_by_var.get(axis.value)
        return loop is not None and loop.begin == 0 and same(loop.end, axis.extent)

    def axis(self, axis: Axis, scope: _Scope, inner: _Scope) -> str:
        extent = self.expr(axis.extent, scope)
        if axis.begin != 0:
            extent = f"({self.expr(axis.begin, scope)}, {self.expr(axis.begin + axis.extent, scope)})"
        return f"{inner.names[axis.var]} = T.axis.{axis.kind.value}({extent}, {self.expr(axis.value, scope)})"

    def regions(self, stage: Stage, scope: _Scope, body: Sequence[str]) -> list[str]:
        """``T.reads`` and ``T.writes``: an element, or a box, of each buffer, ordered by the body's text."""
        facts = Facts({axis.var: axis.begin + axis.extent for axis in stage.axes})
        inside = _inside(stage) | set(self.indices)
        own = {s.buffer for s in walk(stage.body) if isinstance(s, Alloc)}
        found = found_accesses(stage.body)
        adds = stage.init is not None
        stored = list(dict.fromkeys(a.buffer for a in found if a.is_store and a.buffer not in own))
        loaded = [a.buffer for a in found if not a.is_store and a.buffer not in own]
        if adds:
            loaded = [name for name in loaded if name not in stored]
        else:
            loaded = [a.buffer for a in found if a.is_store and a.mode and a.buffer not in own] + loaded
        said = set(re.findall(r"\w+", "\n".join(body)))  # unused loads have no text
        loaded = [name for name in dict.fromkeys(loaded) if name in said]
        loaded.sort(key=partial(_first_read, body))
        lines = []
        for word, names, stores in (("reads", loaded, None), ("writes", stored, True)):
            texts = []
            for name in names:
                only = False if word == "reads" and name not in stored else stores
                element = self.element(inside, found, name, only, scope)
                if element is not None:
                    texts.append(element)
                    continue
                box = touched(stage.body, name, facts, stores=only, shape=self.shapes[name])
                if box is not None:
                    spans = [span if _is_outside(span, inside) else None for span in box]
                    texts.append(f"{name}[{self.box(spans, self.shapes[name], scope)}]")
            lines.append(f"T.{word}({', '.join(texts)})")
        return lines

    def element(
        self, inside: set[Symbol], found: Sequence[Access], name: str, stores: bool | None, scope: _Scope
    ) -> str | None:
        """The only element of a buffer that a stage accesses, as its text; None if there are several."""
        places = {a.own for a in found if a.buffer == name and stores in (None, a.is_store) and not a.whole}
        if len(places) != 1:
            return None
        (index,) = places
        if any(not inside.isdisjoint(expr.free_symbols) for expr in index):
            return None
        return self.place(name, index, scope)

    def box(self, box: Sequence[Interval | None], shape: Sequence[Expr], scope: _Scope) -> str:
        parts = []
        for span, size in zip(box, shape):
            if span is None or None in span:
                parts.append(f"0:{self.expr(size, scope)}")
            elif span[0] == span[1]:
                parts.append(self.expr(span[0], scope))
            else:
                parts.append(f"{self.expr(span[0], scope)}:{self.expr(expand(span[1] + 1), scope)}")
        return ", ".join(parts) or "()"

    def alloc(self, stmt: Alloc, scope: _Scope) -> str:
        parts = [tuple_text([self.expr(e, scope) for e in stmt.shape])]
        if stmt.dtype is not torch.float32:
            parts.append(f'"{dtype_name(stmt.dtype)}"')
        if stmt.scope:
            parts.append(f'scope="{stmt.scope}"')
        if stmt.aligned:
            parts.append(f"smelt_aligned={stmt.aligned!r}")
        word = self.dialect.alloc if stmt.buffer in self.heads else "alloc_buffer"
        return f"{stmt.buffer} = T.{word}({', '.join(parts)})"

    def store(self, stmt: Store, scope: _Scope) -> str:
        place = self.place(stmt.buffer, stmt.index, scope)
        value, binds = self.values[stmt.value]
        if stmt.mode is None:
            return f"{place} = {value}"
        if stmt.mode in _MODES:
            sign = _MODES[stmt.mode]
            least = INFIX[stmt.mode][1] + 1
            return f"{place} = {place} {sign} {value if binds >= least else f'({value})'}"
        if stmt.mode in CALLS:
            return f"{place} = T.{CALLS[stmt.mode]}({place}, {value})"
        return f"T.smelt_store({place}, {value}, {stmt.mode!r})"

    # -- values ------------------------------------------------------------------------------------------

    def value(self, stmt: Let | Masked, scope: _Scope) -> list[str]:
        """The lines of a value; none if it is inlined at its use.

        A value is inlined if it has one use or is just a load, and if it is still the same there.
        """
        if isinstance(stmt, Masked):
            self.masks += 1
            self.block(stmt.body, scope)
            self.masks -= 1
            condition, result = self.values[stmt.mask][0], self.values[stmt.result][0]
            other = _number(stmt.other, stmt.dtype)
            text, binds = f"T.if_then_else({condition}, {result}, {other})", _ATOM
            cheap = True
        else:
            text, binds = self.text_of(stmt, scope)
            cheap = stmt.index is not None or stmt.op in ("load", "constant", "index_expr")
        self.values[stmt.name] = text, binds
        index = stmt.index if isinstance(stmt, Let) else None
        if isinstance(stmt, Let) and stmt.index is not None:
            self.indices[stmt.index] = text
            source = self.made[stmt.args[0]]
            if source.op == "to_dtype" and stmt.args[1:] == (2, False, False):
                self.truths[stmt.index] = self.values[source.args[0]]
            if ": " in str(stmt.args[3]):
                kind, _, message = stmt.args[3].partition(": ")
                condition = self.values[self.made[source.args[0]].args[0]][0]
                return [f'assert {condition}, ("{kind}", [{_literal(message)}])']
        shared = self.uses[stmt.name] > 1 and not cheap
        if not self.masks and not self.uses[stmt.name] and not (index and self.uses[index]):
            return [f"T.evaluate({text})"]
        if self.masks or not (shared or stmt.name in self.bound):
            return []
        if isinstance(stmt, Let) and stmt.index is not None:
            return [f"{scope.add(stmt.index, 'at')} = {text}"]
        name = scope.add(Symbol(stmt.name), "v")
        self.values[stmt.name] = name, _ATOM
        return [f"{name}: T.{dtype_name(stmt.dtype)} = {text}"]

    def text_of(self, stmt: Let, scope: _Scope) -> tuple[str, int]:
        if stmt.op == "load":
            return self.place(stmt.args[0], stmt.args[1], scope), _ATOM
        if stmt.op == "constant":
            return _number(stmt.args[0], stmt.dtype), _ATOM
        if stmt.op == "index_expr" and stmt.args[0].is_Integer:
            return _number(stmt.args[0], stmt.dtype), _ATOM
        if stmt.op == "index_expr":
            return f'T.Cast("{dtype_name(stmt.dtype)}", {self.expr(stmt.args[0], scope)})', _ATOM
        if stmt.op in ("to_dtype", "bitcast"):
            word = "Cast" if stmt.op == "to_dtype" else "reinterpret"
            return f'T.{word}("{dtype_name(stmt.dtype)}", {self.operands(stmt)[0][0]})', _ATOM
        if stmt.op == "indirect_index":
            value, size, *flags = stmt.args
            said = "".join(f", {flag!r}" for flag in flags)
            return f"T.smelt_index({self.values[value][0]}, {self.expr(size, scope)}{said})", _ATOM
        if stmt.op == "read":
            return f"T.smelt_read({stmt.args[0]}, {stmt.args[1]})", _ATOM
        if stmt.op in INFIX:
            sign, binds = INFIX[stmt.op]
            left, right = self.operands(stmt)
            compared = binds == INFIX["lt"][1]
            first = left[0] if left[1] >= binds + compared else f"({left[0]})"
            second = right[0] if right[1] > binds else f"({right[0]})"
            return f"{first} {sign} {second}", binds
        args = ", ".join(text for text, _ in self.operands(stmt))
        if stmt.op == "lookup":
            return f"T.smelt_lookup({args})", _ATOM
        if stmt.op not in TABLE:
            raise SmeltError("SM1201", f"no text for {stmt.op} in {self.kernel.name}")
        return f"T.{CALLS.get(stmt.op, stmt.op)}({args})", _ATOM

    def operands(self, stmt: Let) -> list[tuple[str, int]]:
        """The texts of an operator's operands; if all are numbers, the first has its dtype."""
        found = [self.values[name] for name in stmt.args]
        if found and all(text.lstrip("-").isdigit() for text, _ in found):
            found[0] = f"T.int32({found[0][0]})", _ATOM
        return found

    def place(self, buffer: str, index: Sequence[Expr], scope: _Scope) -> str:
        return f"{buffer}[{', '.join(self.expr(e, scope) for e in index) or '()'}]"

    def expr(self, expr: Any, scope: _Scope) -> str:
        """The text of an index expression, with the local names of symbols."""
        if isinstance(expr, Symbol):
            return scope.names.get(expr) or self.indices.get(expr) or expr.name
        names = {
            symbol: Symbol(scope.names.get(symbol) or self.indices.get(symbol) or symbol.name, integer=True)
            for symbol in expr.free_symbols
        }
        moved = {old: new for old, new in names.items() if old.name != new.name}
        text = python_text(expr.xreplace(moved) if moved else expr)
        return text.replace("max(", "T.max(").replace("min(", "T.min(") if "m" in text else text


def _is_outside(span: Interval | None, inside: set[Symbol]) -> bool:
    """Whether the ends of a span contain no variable inside a stage."""
    return span is not None and all(end is None or inside.isdisjoint(end.free_symbols) for end in span)


def _inside(stage: Stage) -> set[Symbol]:
    """The variables of loops and stages inside a stage."""
    found = walk(stage.body)
    axes = {axis.var for s in found if isinstance(s, Stage) for axis in s.axes}
    return axes | {s.var for s in found if isinstance(s, For)}


def _first_read(body: Sequence[str], buffer: str) -> tuple[int, int]:
    """The line and column of a text at which an element of a buffer is read first."""
    element = re.compile(rf"(?<![\w.]){re.escape(buffer)}\[")
    for number, line in enumerate(body):
        _, sign, value = line.partition(" = ")
        found = element.search(value if sign else line)
        if found is not None:
            return number, found.start()
    return len(body), 0


def _heads(body: Block) -> set[str]:
    """The buffers allocated at the start of the function, or of a block."""
    blocks = [body, *(stmt.body for stmt in walk(body) if isinstance(stmt, Stage))]
    heads = [takewhile(lambda stmt: isinstance(stmt, Alloc), block.stmts) for block in blocks]
    return {stmt.buffer for head in heads for stmt in head if isinstance(stmt, Alloc)}


def _is_plain(loop: For) -> bool:
    plain = loop.kind is LoopKind.SERIAL and loop.thread is None and not loop.notes
    return plain and loop.begin == 0 and loop.step == 1


def _uses(block: Block) -> Counter[Any]:
    """The number of uses of each value, and of each symbol of the expressions."""
    found: Counter[Any] = Counter(symbol for expr in exprs_of(block) for symbol in expr.free_symbols)
    for stmt in walk(block):
        if isinstance(stmt, Let):
            found.update(arg for arg in stmt.args if isinstance(arg, str) and stmt.op not in ("load", "read"))
        elif isinstance(stmt, Masked):
            found.update((stmt.mask, stmt.result))
        elif isinstance(stmt, (Store, Update, Advance)):
            found[stmt.value] += 1
    return found


def _number(value: Any, dtype: torch.dtype) -> str:
    """
    >>> _number(0, torch.float32), _number(3, torch.int32), _number(True, torch.bool)
    ('T.float32(0.0)', '3', 'T.bool(True)')
    """
    if dtype is torch.bool:
        return f"T.bool({bool(value)})"
    if dtype.is_floating_point:
        number = float(value)
        text = repr(number) if number - number == 0 else f'"{number}"'
        return f"T.{dtype_name(dtype)}({text})"
    return str(int(value)) if dtype is torch.int32 else f"T.{dtype_name(dtype)}({int(value)})"


def attrs_text(attrs: Mapping[str, Any]) -> str:
    """
    >>> attrs_text({"tir.noalias": True, "note": [1, "a"]})
    '{"tir.noalias": True, "note": [1, "a"]}'
    """
    return "{" + ", ".join(f'"{key}": {_literal(value)}' for key, value in attrs.items()) + "}"


def _literal(value: Any) -> str:
    if isinstance(value, Word):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return attrs_text(value)
    return repr(value) if value is None or isinstance(value, (bool, int, float)) else _literal(str(value))


def _indented(lines: Sequence[str]) -> list[str]:
    return [INDENT + line for line in lines]


def module_head() -> Iterator[str]:
    """The imports above a script, for people who paste it into a file."""
    yield "# from smelt.script import ir as I"
    yield "# from smelt.script import tir as T"
