"""``@T.prim_func`` → a kernel."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Integer, Symbol
from sympy.logic.boolalg import Boolean

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
    LoopKind,
    Param,
    Prefetch,
    SortRow,
    Stage,
    Stmt,
    Store,
    Update,
)
from smelt.nest.scopes import writes
from smelt.nest.stages import Fresh
from smelt.nest.tree import rewritten
from smelt.records import dataclass, field, replace
from smelt.script.expressions import Condition, Index, Reader
from smelt.script.module import PrimFunc
from smelt.script.parse import FUNCTIONS, Source, is_private, literal, near, word_of
from smelt.script.words import NAMED_DTYPES
from smelt.symbolic import contiguous_strides

_LOOPS = {
    "range": LoopKind.SERIAL,
    "grid": LoopKind.SERIAL,
    "serial": LoopKind.SERIAL,
    "parallel": LoopKind.PARALLEL,
    "vectorized": LoopKind.VECTOR,
    "unroll": LoopKind.UNROLL,
    "smelt_jam": LoopKind.JAM,
    "thread_binding": LoopKind.SERIAL,
}
_AXES = {
    "spatial": AxisKind.SPATIAL,
    "S": AxisKind.SPATIAL,
    "reduce": AxisKind.REDUCE,
    "R": AxisKind.REDUCE,
    "opaque": AxisKind.OPAQUE,
    "O": AxisKind.OPAQUE,
    "scan": AxisKind.OPAQUE,
}
_BLOCKS = ("block", "sblock")
_ALLOCS = ("alloc_buffer", "sblock_alloc_buffer")
_SAID = ("reads", "writes", "evaluate", "pass")
"""What says nothing that the kernel does not say."""


@dataclass(slots=True)
class _Stage:
    """A stage while it is read."""

    axes: list[Axis] = field(default_factory=list)
    where: list[Boolean] = field(default_factory=list)
    init: Block | None = None
    notes: dict[str, Any] = field(default_factory=dict)


class _Parser:
    def __init__(self, function: ast.FunctionDef, source: Source) -> None:
        self.function, self.source = function, source
        self.fresh = Fresh()
        self.params: list[Param] = []
        self.handles: dict[str, str] = {}
        """A handle among the parameters → its buffer, "" as long as there is none."""
        self.sizes: list[Symbol] = []
        self.attrs: dict[str, Any] = {}
        self.written: set[str] = set()
        self.reader = Reader(source, self.fresh)
        self.loops: dict[Symbol, For] = {}
        self.stage: _Stage | None = None
        self.aligned: dict[str, list[tuple[int, ...]]] = {}

    def run(self) -> PrimFunc:
        for arg in self.function.args.args:
            self._param(arg)
        body = self._block(self.function.body, root=True)
        if self.aligned:
            body = rewritten(body, self._aligned)
        for handle, buffer in self.handles.items():
            if not buffer:
                what = f"{handle} is never matched with a buffer"
                remedy = f"{handle[4:] or 'A'} = T.match_buffer({handle}, shape)"
                raise self.source.error("SM1204", what, self.function, remedy=remedy)
        order = [self.handles.get(arg.arg, arg.arg) for arg in self.function.args.args]
        given = sorted(self.params, key=lambda param: order.index(param.name))
        params = tuple(replace(param, written=param.name in self.written) for param in given)
        scalars = tuple((order.index(each.name), each) for each in self.sizes if each.name in order)
        kernel = Kernel(self.function.name, params, tuple(self.sizes), body, scalars=scalars)
        return PrimFunc(kernel, self.attrs, is_private(self.function))

    def _aligned(self, stmt: Stmt) -> list[Stmt] | None:
        if not isinstance(stmt, Alloc) or stmt.buffer not in self.aligned:
            return None
        return [replace(stmt, aligned=tuple(sorted(self.aligned[stmt.buffer])))]  # type: ignore[arg-type]

    # -- the head ----------------------------------------------------------------------------------------

    def _param(self, arg: ast.arg) -> None:
        note = arg.annotation
        if isinstance(note, ast.Call) and word_of(note.func) in ("Buffer", "buffer"):
            self._buffer(arg.arg, note.args, note.keywords, note)
            return
        if isinstance(note, ast.Subscript) and word_of(note.value) == "Buffer":  # TVM of 2022
            parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
            shaped = (
                [parts[0]] if isinstance(parts[0], ast.Tuple) else [ast.Tuple(list(parts[:1]), ast.Load())]
            )
            self._buffer(arg.arg, [*shaped, *parts[1:]], [], note)
            return
        word = "" if note is None else word_of(note.func if isinstance(note, ast.Call) else note)
        if word == "handle":
            self.handles[arg.arg] = ""
            return
        if word in NAMED_DTYPES and not NAMED_DTYPES[word].is_floating_point:
            self._size(arg.arg)
            return
        what = f"the parameter {arg.arg} is no buffer, handle or size"
        raise self.source.error("SM1204", what, arg, remedy=f'{arg.arg}: T.Buffer((128, 128), "float32")')

    def _size(self, name: str) -> None:
        symbol = self.fresh(name)
        self.sizes.append(symbol)
        self.reader.names[name] = Index(symbol)

    def _buffer(
        self, name: str, args: Sequence[ast.AST], keywords: Sequence[ast.keyword], node: ast.AST
    ) -> None:
        given = {each.arg: each.value for each in keywords}
        shape_node = args[0] if args else given.get("shape")
        if shape_node is None:
            raise self.source.error("SM1204", f"{name} has no shape", node)
        shape = self._shape(shape_node)
        dtype = self._dtype(args[1] if len(args) > 1 else given.get("dtype"))
        strides = contiguous_strides(shape)
        if "strides" in given and not _is_empty(given["strides"]):
            strides = self._shape(given["strides"])
        self.reader.buffers[name] = (dtype, len(shape))
        self.params.append(Param(name, dtype, shape, strides))

    def _shape(self, node: ast.AST) -> tuple[Expr, ...]:
        parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
        for part in parts:  # TVM declares sizes that a buffer names first
            known = isinstance(part, ast.Name) and isinstance(self.source.outside.get(part.id), int)
            if isinstance(part, ast.Name) and part.id not in self.reader.names and not known:
                self._size(part.id)
        return tuple(self.reader.index(part) for part in parts)

    def _dtype(self, node: ast.AST | None) -> torch.dtype:
        if node is None:
            return torch.float32
        said = isinstance(node, ast.Constant) or word_of(node) in self.source.outside
        name = literal(node, self.source) if said else word_of(node)
        if name not in NAMED_DTYPES:
            what = f"{name!r} is no dtype"
            raise self.source.error("SM1204", what, node, remedy=near(str(name), NAMED_DTYPES))
        return NAMED_DTYPES[name]

    # -- statements --------------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], root: bool = False) -> Block:
        around = self.reader.stmts
        names = dict(self.reader.names)
        self.reader.stmts = []
        for stmt in body:
            self._statement(stmt, root)
        found, self.reader.stmts = Block(tuple(self.reader.stmts)), around
        if not root:
            self.reader.names = names
        return found

    def _add(self, *stmts: Stmt) -> None:
        self.reader.stmts += stmts

    def _statement(self, stmt: ast.stmt, root: bool) -> None:
        if isinstance(stmt, ast.For):
            self._for(stmt)
        elif isinstance(stmt, ast.With):
            self._with(stmt, root)
        elif isinstance(stmt, ast.If):
            self._if(stmt)
        elif isinstance(stmt, ast.Assign) and len(stmt.targets) == 1:
            self._assign(stmt.targets[0], stmt.value, stmt)
        elif isinstance(stmt, ast.AnnAssign) and stmt.value is not None:
            self._assign(stmt.target, stmt.value, stmt)
        elif isinstance(stmt, ast.AugAssign):
            self._assign(stmt.target, ast.copy_location(_plain(stmt), stmt), stmt)
        elif isinstance(stmt, ast.Expr):
            self._call(stmt.value)
        elif (isinstance(stmt, ast.Return) and stmt.value is None) or isinstance(stmt, ast.Pass):
            return
        else:
            what = f"{type(stmt).__name__.lower()} is no statement of a function of loops"
            raise self.source.error("SM1204", what, stmt)

    def _if(self, stmt: ast.If) -> None:
        condition = self._known_truth(stmt.test)
        if condition is None:
            what = "a condition that depends on data"
            remedy = "T.if_then_else or T.Select within the expression"
            raise self.source.error("SM1204", what, stmt.test, remedy=remedy)
        for part, body in ((condition, stmt.body), (sympy.Not(condition), stmt.orelse)):
            if body and part != sympy.false:
                inner = self._block(body)
                self._add(*(inner.stmts if part == sympy.true else (Guard(part, inner),)))

    def _known_truth(self, node: ast.AST) -> Boolean | None:
        """A condition over loops and sizes; None for one that depends on data."""
        before = len(self.reader.stmts)
        found = self.reader.read(node)
        if isinstance(found, Index) and found.expr.is_Integer:
            return sympy.true if found.expr != 0 else sympy.false
        if isinstance(found, Condition):
            return found.condition
        del self.reader.stmts[before:]
        return None

    def _for(self, stmt: ast.For) -> None:
        call = stmt.iter
        if not isinstance(call, ast.Call) or word_of(call.func) not in _LOOPS:
            word = word_of(call.func) if isinstance(call, ast.Call) else ast.unparse(call)
            remedy = near(word, _LOOPS) or f"one of {', '.join(_LOOPS)}"
            raise self.source.error("SM1203", f"{word or 'this'} is no kind of loop", call, remedy=remedy)
        word = word_of(call.func)
        targets = stmt.target.elts if isinstance(stmt.target, ast.Tuple) else [stmt.target]
        given = {each.arg: each.value for each in call.keywords}
        last = call.args[-1] if call.args else None
        if word == "thread_binding" and isinstance(last, ast.Constant) and isinstance(last.value, str):
            given["thread"] = last  # TVM takes it by its place, too
            call = ast.copy_location(ast.Call(call.func, call.args[:-1], []), call)
        if not call.args:
            raise self.source.error("SM1204", f"{word} of nothing", call, remedy="range(128)")
        if word == "grid" and len(targets) != len(call.args):
            what = f"{len(targets)} variables for {len(call.args)} loops"
            raise self.source.error("SM1204", what, stmt.target)
        bounds = [(Integer(0), self.reader.index(arg)) for arg in call.args]
        if word != "grid":
            ends = [self.reader.index(arg) for arg in call.args]
            bounds = [(ends[0], ends[1])] if len(ends) > 1 else [(Integer(0), ends[0])]
        notes = literal(given["annotations"], self.source) if "annotations" in given else {}
        thread = str(literal(given["thread"], self.source)) if "thread" in given else None
        step = int(literal(given["step"], self.source)) if "step" in given else 1
        names = dict(self.reader.names)
        made: list[For] = []
        for target, (begin, end) in zip(targets, bounds, strict=True):
            label = word_of(target)
            var = self.fresh(label)
            self.reader.names[label] = Index(var)
            loop = For(var, begin, end, Block(), _LOOPS[word], step, label=label, thread=thread)
            made.append(replace(loop, notes=tuple(notes.items())))
            self.loops[var] = made[-1]
        body = self._block(stmt.body)
        self.reader.names = names
        for loop in reversed(made):
            body = Block((replace(loop, body=body),))
        self._add(*body.stmts)

    def _with(self, stmt: ast.With, root: bool) -> None:
        call = stmt.items[0].context_expr
        word = word_of(call.func) if isinstance(call, ast.Call) else ""
        if word == "init" and self.stage is not None:
            self.stage.init = self._block(stmt.body)
            return
        if word not in _BLOCKS or not isinstance(call, ast.Call):
            remedy = 'with T.block("name"):'
            raise self.source.error("SM1203", f"no statement: with {ast.unparse(call)}", call, remedy=remedy)
        name = str(literal(call.args[0], self.source)) if call.args else "block"
        if root and name == "root" and not _has_axes(stmt.body):
            for each in stmt.body:
                self._statement(each, root)
            return
        around, self.stage = self.stage, _Stage()
        names = dict(self.reader.names)
        body = self._block(stmt.body)
        own = self.stage
        self.stage, self.reader.names = around, names
        stage = Stage(name, tuple(own.axes), body, own.init, tuple(own.where))
        if _is_alignment(own.notes.get("buffer_dim_align")):  # as TVM says it, beside the stage that writes
            stored = writes(stage)
            for number, *aligned in own.notes.pop("buffer_dim_align"):
                self.aligned.setdefault(stored[number], []).append(tuple(aligned))
        self._add(replace(stage, notes=tuple(own.notes.items())))

    def _assign(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            if len(target.elts) != len(value.elts):
                what = f"{len(target.elts)} names for {len(value.elts)} values"
                raise self.source.error("SM1204", what, node)
            for one, other in zip(target.elts, value.elts):
                self._assign(one, other, node)
            return
        if isinstance(target, ast.Subscript):
            self._store(target, value)
            return
        word = word_of(value.func) if isinstance(value, ast.Call) else ""
        names = [word_of(each) for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
        call = value if isinstance(value, ast.Call) else None
        if (call is not None and word == "remap") or (word in _AXES and _is_axis(value)):
            assert call is not None
            self._axes(names, call, word)
        elif call is not None and word in ("match_buffer", "buffer_decl"):
            self._match(names[0], call)
        elif call is not None and word in _ALLOCS:
            self._alloc(names[0], call)
        elif call is not None and (word == "var" or (word in NAMED_DTYPES and not call.args)):
            if names[0] not in self.reader.names:
                self._size(names[0])
        elif call is not None and word == "smelt_accumulator":
            kind, dtype = (literal(arg, self.source) for arg in call.args)
            self._add(Accumulate(names[0], kind, NAMED_DTYPES[dtype]))
        elif call is not None and word == "smelt_carry":
            initial, dtype = (literal(arg, self.source) for arg in call.args)
            self._add(Carry(names[0], NAMED_DTYPES[dtype], initial))
        else:
            note = node.annotation if isinstance(node, ast.AnnAssign) else None
            dtype = NAMED_DTYPES.get(word_of(note)) if note is not None else None
            found = self.reader.read(value)
            if isinstance(found, Index) and dtype is None:
                self.reader.names[names[0]] = found
            else:
                self.reader.names[names[0]] = self.reader.value(found, dtype, value)

    def _match(self, name: str, call: ast.Call) -> None:
        handle = word_of(call.args[0])
        if handle not in self.handles:
            what = f"{handle} is no handle among the parameters"
            raise self.source.error("SM1205", what, call.args[0], remedy=near(handle, self.handles))
        self.handles[handle] = name
        self._buffer(name, call.args[1:], call.keywords, call)

    def _alloc(self, name: str, call: ast.Call) -> None:
        given = {each.arg: each.value for each in call.keywords}
        shape = self._shape(call.args[0] if call.args else given["shape"])
        dtype = self._dtype(call.args[1] if len(call.args) > 1 else given.get("dtype"))
        scope = str(literal(given["scope"], self.source)) if "scope" in given else ""
        aligned = literal(given["smelt_aligned"], self.source) if "smelt_aligned" in given else ()
        self.reader.buffers[name] = (dtype, len(shape))
        self._add(Alloc(name, dtype, shape, "" if scope == "global" else scope, tuple(aligned)))

    def _axes(self, names: Sequence[str], call: ast.Call, word: str) -> None:
        if self.stage is None:
            raise self.source.error("SM1204", "an axis outside of a block", call)
        if word != "remap":
            extent, value = call.args[0], call.args[1]
            begin, size = Integer(0), Integer(0)
            if isinstance(extent, ast.Tuple):
                begin, end = (self.reader.index(each) for each in extent.elts)
                size = end - begin
            else:
                size = self.reader.index(extent)
            self._axis(names[0], size, self.reader.index(value), _AXES[word], begin)
            return
        letters, values = str(literal(call.args[0], self.source)), call.args[1]
        nodes = values.elts if isinstance(values, (ast.List, ast.Tuple)) else [values]
        if not len(letters) == len(nodes) == len(names):
            what = f"{len(names)} axes, {len(letters)} kinds, {len(nodes)} values"
            raise self.source.error("SM1204", what, call)
        for name, letter, node in zip(names, letters, nodes):
            value = self.reader.index(node)
            loop = self.loops.get(value) if isinstance(value, Symbol) else None
            if loop is None or letter not in _AXES:
                what = f"{ast.unparse(node)} is no loop" if loop is None else f"{letter!r} is no kind of axis"
                raise self.source.error("SM1204", what, node, remedy="S, R or O, and a loop around the block")
            self._axis(name, loop.end - loop.begin, value, _AXES[letter], loop.begin)

    def _axis(self, name: str, extent: Expr, value: Expr, kind: AxisKind, begin: Expr) -> None:
        assert self.stage is not None
        var = self.fresh(name)
        self.reader.names[name] = Index(var)
        self.stage.axes.append(Axis(var, extent, value, kind, begin, label=name))

    def _store(self, target: ast.Subscript, value: ast.expr) -> None:
        name = word_of(target.value)
        dtype = self.reader.dtype_of(name, target.value)
        index = self.reader.place(name, target)
        self.written.add(name)
        mode, rest = _accumulated(target, value)
        if mode is not None:
            value = rest
        found = self.reader.value(self.reader.read(value, dtype), dtype, value)
        if found.dtype != dtype:
            found = self.reader.cast(found, dtype)
        self._add(Store(name, index, found.name, mode))

    def _call(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant):  # a docstring
            return
        word = word_of(node.func) if isinstance(node, ast.Call) else ""
        if word in _SAID:
            return
        assert isinstance(node, ast.Call) or not word
        if not isinstance(node, ast.Call):
            raise self.source.error("SM1204", "an expression by itself does nothing", node)
        if word == "func_attr":
            found = literal(node.args[0], self.source)
            self.attrs.update((key.replace("tirx.", "tir."), value) for key, value in found.items())
        elif word == "where" and self.stage is not None:
            condition = self._known_truth(node.args[0])
            if condition is None:
                raise self.source.error("SM1204", "a condition over loops is wanted", node.args[0])
            parts = sympy.ordered(sympy.And.make_args(condition))
            self.stage.where += [each for each in parts if each != sympy.true]
        elif word in ("block_attr", "sblock_attr"):
            notes = literal(node.args[0], self.source)
            if self.stage is None:
                self.attrs["smelt.root_attr"] = {**self.attrs.get("smelt.root_attr", {}), **notes}
            else:
                self.stage.notes.update(notes)
        elif word == "smelt_update":
            self._update(node)
        elif word == "smelt_advance":
            value = self.reader.value(self.reader.read(node.args[1]), None, node.args[1])
            self._add(Advance(word_of(node.args[0]), value.name))
        elif word == "smelt_prefetch":
            place = node.args[0]
            assert isinstance(place, ast.Subscript)
            self._add(Prefetch(word_of(place.value), self.reader.place(word_of(place.value), place)))
        elif word == "smelt_sort_row":
            self._sort(node)
        elif word == "smelt_store":
            place = node.args[0]
            assert isinstance(place, ast.Subscript)
            name = word_of(place.value)
            dtype = self.reader.dtype_of(name, place)
            value = self.reader.value(self.reader.read(node.args[1], dtype), dtype, node.args[1])
            self.written.add(name)
            index = self.reader.place(name, place)
            self._add(Store(name, index, value.name, str(literal(node.args[2], self.source))))
        else:
            raise self.reader.unknown(word, node)

    def _update(self, node: ast.Call) -> None:
        given = {each.arg: each.value for each in node.keywords}
        if "merge" in given:
            self._add(Update(word_of(node.args[0]), word_of(node.args[1]), None, merge=True))
            return
        value = self.reader.value(self.reader.read(node.args[1]), None, node.args[1])
        position = self.reader.index(given["position"]) if "position" in given else None
        self._add(Update(word_of(node.args[0]), value.name, position))

    def _sort(self, node: ast.Call) -> None:
        def place(part: ast.AST) -> tuple[str, tuple[Expr, ...]]:
            assert isinstance(part, ast.Subscript)
            return word_of(part.value), self.reader.place(word_of(part.value), part)

        source, start = place(node.args[0])
        results = {str(each.arg): place(each.value) for each in node.keywords}
        into = next(iter(results.values()))[1]
        self.written |= {name for name, _ in results.values()}
        length, limit = (self.reader.index(arg) for arg in node.args[1:3])
        descending = bool(literal(node.args[3], self.source))
        values, positions = (results.get(key, (None, ()))[0] for key in ("values", "positions"))
        self._add(SortRow(source, start, length, limit, descending, values, positions, into))


def _plain(stmt: ast.AugAssign) -> ast.expr:
    """``x[i] + v`` of ``x[i] += v``."""
    left = (
        ast.Subscript(stmt.target.value, stmt.target.slice, ast.Load())
        if isinstance(stmt.target, ast.Subscript)
        else stmt.target
    )
    return ast.fix_missing_locations(ast.copy_location(ast.BinOp(left, stmt.op, stmt.value), stmt))


def _is_empty(node: ast.AST) -> bool:
    return (isinstance(node, (ast.Tuple, ast.List)) and not node.elts) or (
        isinstance(node, ast.Constant) and node.value is None
    )


def _is_axis(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (word_of(node.func.value) == "axis")
    )


def _is_alignment(note: Any) -> bool:
    return isinstance(note, list) and all(isinstance(each, (list, tuple)) and len(each) == 4 for each in note)


def _has_axes(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(each, ast.Assign) and _is_axis(each.value) for each in body)


_EXTREMES = {"max": "maximum", "min": "minimum"}
_SIGNS: Mapping[type[ast.operator], str] = {ast.Add: "add", ast.Mult: "mul"}


def _accumulated(target: ast.Subscript, value: ast.expr) -> tuple[str | None, ast.expr]:
    """The mode of ``X[i] = X[i] + v`` and ``X[i] = T.max(X[i], v)``, and ``v``."""
    same = ast.unparse(target)
    if isinstance(value, ast.BinOp) and type(value.op) in _SIGNS and ast.unparse(value.left) == same:
        return _SIGNS[type(value.op)], value.right
    word = word_of(value.func) if isinstance(value, ast.Call) and len(value.args) == 2 else ""
    if word in _EXTREMES and isinstance(value, ast.Call) and ast.unparse(value.args[0]) == same:
        return _EXTREMES[word], value.args[1]
    return None, value


def parse(function: ast.FunctionDef, source: Source, known: Mapping[str, Any]) -> PrimFunc:
    """The function of loops that a Python function's text is."""
    del known
    return _Parser(function, source).run()


FUNCTIONS["prim_func"] = parse
