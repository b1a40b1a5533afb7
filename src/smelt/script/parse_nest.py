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
from smelt.nest.stages import Fresh
from smelt.nest.tree import map_exprs, walk
from smelt.records import dataclass, field, replace
from smelt.script.desugar import at, augmented, lanes, stepped, without_continue
from smelt.script.expressions import Condition, Index, Reader
from smelt.script.inert import Word
from smelt.script.module import PrimFunc
from smelt.script.outside import UNKNOWN, Macro
from smelt.script.parse import FUNCTIONS, Source, is_private, literal, near, word_of
from smelt.script.views import Buffer, flat_view, region_view
from smelt.script.words import NAMED_DTYPES
from smelt.symbolic import contiguous_strides
from smelt.symbolic.affine import replaced

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
_ALLOCS = ("alloc_buffer", "sblock_alloc_buffer", "decl_buffer")
_SAID = ("assume", "pass")
"""What says nothing that the kernel does not say."""
_ONCE = ("reads", "writes", "where")
"""What a block says at most once."""
_MACROS = ("inline", "macro")


@dataclass(slots=True)
class _Stage:
    """A stage while it is read."""

    axes: list[Axis] = field(default_factory=list)
    where: list[Boolean] = field(default_factory=list)
    init: Block | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    allocs: list[Stmt] = field(default_factory=list)


class _Parser:
    def __init__(self, function: ast.FunctionDef, source: Source) -> None:
        self.function, self.source = function, source
        self.fresh = Fresh()
        self.params: list[Param] = []
        self.handles: dict[str, str] = {}
        """A handle among the parameters → its buffer, "" as long as there is none."""
        self.sizes: list[Symbol] = []
        self.free: set[Symbol] = set()
        """The sizes that are no parameters: one that nothing needs is none."""
        self.attrs: dict[str, Any] = {}
        self.written: set[str] = set()
        self.reader = Reader(source, self.fresh)
        self.loops: dict[Symbol, For] = {}
        self.around: list[Symbol] = []
        """The variables of the loops around what is read."""
        self.stage: _Stage | None = None
        self.root = _Stage()
        self.explicit = False
        """Whether a block that is called root is read."""
        self.declared: set[str] = set()
        """The buffers that the statements of this depth declare."""
        self.reader.inline = self._inline

    def run(self) -> PrimFunc:
        for arg in self.function.args.args:
            self._param(arg)
        body = self._block(self.function.body, root=True)
        body = Block((*self.root.allocs, *body.stmts))
        for handle, buffer in self.handles.items():
            if not buffer:
                what = f"{handle} is never matched with a buffer"
                remedy = f"{handle[4:] or 'A'} = T.match_buffer({handle}, shape)"
                raise self.source.error("SM1204", what, self.function, remedy=remedy)
        order = [self.handles.get(arg.arg, arg.arg) for arg in self.function.args.args]
        order += [param.name for param in self.params if param.name not in order]
        given = sorted(self.params, key=lambda param: order.index(param.name))
        params = tuple(replace(param, written=param.name in self.written) for param in given)
        needed = _symbols(body).union(*(e.free_symbols for p in params for e in (*p.shape, *p.strides)))
        sizes = tuple(size for size in self.sizes if size in needed or size not in self.free)
        kernel = Kernel(self.function.name, params, sizes, body)
        private = is_private(self.function)
        if private and "global_symbol" in self.attrs:
            what = "a private function has no global symbol"
            raise self.source.error("SM1204", what, self.function)
        return PrimFunc(kernel, self.attrs, private)

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
        if word in NAMED_DTYPES or word == "boolean":
            self._variable(arg.arg, NAMED_DTYPES.get(word, torch.bool))
            return
        what = f"the parameter {arg.arg} is no buffer, handle or number"
        raise self.source.error("SM1204", what, arg, remedy=f'{arg.arg}: T.Buffer((128, 128), "float32")')

    def _variable(self, name: str, dtype: torch.dtype) -> None:
        """A number that is given: an integer is a size, others are buffers without dimensions."""
        if not dtype.is_floating_point and dtype is not torch.bool:
            if name not in self.reader.names:
                self._size(name)
                if name not in {arg.arg for arg in self.function.args.args}:
                    self.free.add(self.sizes[-1])
            return
        self.reader.buffers[name] = Buffer(dtype, (), name)
        self.reader.scalars.add(name)
        self.params.append(Param(name, dtype, (), ()))

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
        strides = self._strides(given, shape)
        streamed = "smelt_streamed" in given
        self.reader.buffers[name] = Buffer(dtype, shape, name)
        self.params.append(Param(name, dtype, shape, strides, streamed=streamed))

    def _strides(self, given: Mapping[str | None, ast.expr], shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
        if "strides" not in given or _is_empty(given["strides"]):
            return contiguous_strides(shape)
        return self._shape(given["strides"])

    def _shape(self, node: ast.AST) -> tuple[Expr, ...]:
        """Sizes. A text in the place of one, ``"n + 1"``, declares the names in it, as a variable from
        outside of the script does.
        """
        found = []
        for part in self.reader.spread([node]):  # type: ignore[list-item]
            value = self.reader.python(part)
            if isinstance(value, str):
                try:
                    part = at(ast.parse(value, mode="eval").body, part)
                except SyntaxError:
                    raise self.source.error("SM1204", f"{value!r} is no size", part) from None
                for each in ast.walk(part):
                    if isinstance(each, ast.Name) and each.id not in (*self.reader.names, "T"):
                        self._size(each.id)
            elif isinstance(part, ast.Name) and value is not UNKNOWN and not isinstance(value, (int, Expr)):
                self._size(part.id)
            found.append(self.reader.index(part))
        return tuple(found)

    def _dtype(self, node: ast.AST | None) -> torch.dtype:
        if node is None:
            return torch.float32
        return self.reader.dtype(node)

    # -- statements --------------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], root: bool = False) -> Block:
        around, declared = self.reader.stmts, self.declared
        names = dict(self.reader.names)
        self.reader.stmts, self.declared = [], set()
        self._statements(body, root)
        found, self.reader.stmts = Block(tuple(self.reader.stmts)), around
        self.declared = declared
        if not root:
            self.reader.names = names
        return found

    def _statements(self, body: Sequence[ast.stmt], root: bool = False) -> None:
        for number, stmt in enumerate(body):
            around = self._around(stmt, body[number + 1 :])
            if around is not None:
                self._statement(around, root)
                return
            self._statement(stmt, root)

    def _around(self, stmt: ast.stmt, rest: Sequence[ast.stmt]) -> ast.stmt | None:
        """A statement that holds all that is below it, as one that holds it by its form."""
        call = stmt.value if isinstance(stmt, (ast.Assign, ast.Expr)) else None
        if not isinstance(call, ast.Call):
            return None
        body = list(rest) or [at(ast.Pass(), stmt)]
        if isinstance(stmt, ast.Assign) and word_of(call.func) == "launch_thread" and len(call.args) == 2:
            return _thread(stmt.targets[0], call, body)
        if isinstance(stmt, ast.Expr) and word_of(call.func) == "attr":
            return ast.copy_location(ast.With([ast.withitem(call)], body), stmt)
        return None

    def _add(self, *stmts: Stmt) -> None:
        self.reader.stmts += stmts

    def _statement(self, stmt: ast.stmt, root: bool) -> None:
        vector = None
        if isinstance(stmt, (ast.Assign, ast.Expr, ast.AugAssign)):
            plain = _plain(stmt) if isinstance(stmt, ast.AugAssign) else stmt
            vector = lanes(plain, self.source, self._count)
        if vector is not None:
            self._for(vector)
        elif isinstance(stmt, ast.FunctionDef) and any(map(_is_macro, stmt.decorator_list)):
            self.reader.names[stmt.name] = Macro(stmt)
        elif isinstance(stmt, ast.For):
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
            self._assign(stmt.target, augmented(stmt), stmt)
        elif isinstance(stmt, ast.Expr):
            self._call(stmt.value)
        elif (isinstance(stmt, ast.Return) and stmt.value is None) or isinstance(stmt, ast.Pass):
            return
        else:
            what = f"{type(stmt).__name__.lower()} is no statement of a function of loops"
            raise self.source.error("SM1204", what, stmt)

    def _count(self, node: ast.Slice) -> int:
        """The elements of a slice."""
        begin = self.reader.index(node.lower) if node.lower else Integer(0)
        step = self.reader.index(node.step) if node.step else Integer(1)
        if node.upper is None or not step.is_Integer or step < 1:
            raise self.source.error("SM1204", "a slice has an end, and a step above 0", node)
        count = sympy.expand(self.reader.index(node.upper) - begin)
        if not count.is_Integer:
            what = "a vector has a number of elements that is known"
            raise self.source.error("SM1204", what, node, remedy="a loop")
        return -(-int(count) // int(step))

    def _if(self, stmt: ast.If) -> None:
        condition = self._known_truth(stmt.test)
        test = stmt.test
        if condition is None and isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            if not stmt.orelse:  # what is on the right is not looked at where the left is false
                first, *rest = test.values
                inner: list[ast.stmt] = list(stmt.body)
                for each in reversed(rest):
                    inner = [ast.copy_location(ast.If(each, inner, []), stmt)]
                self._if(ast.copy_location(ast.If(first, inner, []), stmt))
                return
        if condition is None:
            truth = self.reader.truth(test)
            condition = sympy.Ne(truth, 0)
        for part, body in ((condition, stmt.body), (sympy.Not(condition), stmt.orelse)):
            if body and part != sympy.false:
                inner_block = self._block(body)
                self._add(*(inner_block.stmts if part == sympy.true else (Guard(part, inner_block),)))

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
        given = {each.arg: each.value for each in call.keywords}
        args = self.reader.spread(call.args)
        last = args[-1] if args else None
        if word == "thread_binding" and isinstance(last, ast.Constant) and isinstance(last.value, str):
            given["thread"] = args.pop()  # TVM takes it by its place, too
        if not args:
            raise self.source.error("SM1204", f"{word} of nothing", call, remedy="range(128)")
        if word == "thread_binding" and "thread" not in given:
            remedy = 'thread="threadIdx.x"'
            raise self.source.error("SM1204", "a thread binding without a thread", call, remedy=remedy)
        if word != "grid" and len(args) > (3 if word == "range" else 2):
            raise self.source.error("SM1204", f"{word} of {len(args)} numbers", call)
        step = given.get("step", args[2] if word == "range" and len(args) == 3 else None)
        if step is not None and not (isinstance(step, ast.Constant) and step.value == 1):
            begin, end = args[:2] if len(args) > 1 else (at(ast.Constant(0), call), args[0])
            if not isinstance(stmt.target, ast.Name):
                raise self.source.error("SM1204", f"one variable for {word}", stmt.target)
            self._for(stepped(stmt, begin, end, step))
            return
        bounds = [(Integer(0), self.reader.index(arg)) for arg in args]
        if word != "grid":
            ends = [end for _, end in bounds]
            bounds = [(ends[0], ends[1])] if len(ends) > 1 else [(Integer(0), ends[0])]
        labels = self._labels(stmt.target, len(bounds))
        notes = literal(given["annotations"], self.source) if "annotations" in given else {}
        thread = str(literal(given["thread"], self.source)) if "thread" in given else None
        lanes_at_once = int(literal(given["smelt_lanes"], self.source)) if "smelt_lanes" in given else 1
        names = dict(self.reader.names)
        made: list[For] = []
        for label, (begin, end) in zip(labels, bounds):
            var = self.fresh(label)
            self.reader.names[label] = Index(var)
            loop = For(var, begin, end, Block(), _LOOPS[word], lanes_at_once, label=label, thread=thread)
            free = "smelt_independent" in given
            made.append(replace(loop, notes=tuple(notes.items()), independent=free))
            self.loops[var] = made[-1]
        self._gather(stmt.target, labels)
        self.around += [loop.var for loop in made]
        body = self._block(without_continue(stmt.body))
        del self.around[-len(made) :]
        self.reader.names = names
        for loop in reversed(made):
            body = Block((replace(loop, body=body),))
        self._add(*body.stmts)

    def _labels(self, target: ast.expr, count: int) -> list[str]:
        """What the loops of a statement are called: ``i, j``, ``ij`` for both of them, ``*i, k``."""
        parts = list(target.elts) if isinstance(target, (ast.Tuple, ast.List)) else [target]
        starred = [isinstance(each, ast.Starred) for each in parts]
        several = count - len(parts) + 1
        if parts == [target] and count > 1:
            return [f"{word_of(target)}_{number}" for number in range(count)]
        if (several != 1 and not any(starred)) or several < 0:
            raise self.source.error("SM1204", f"{len(parts)} variables for {count} loops", target)
        labels: list[str] = []
        for each in parts:
            inner = each.value if isinstance(each, ast.Starred) else each
            made = [f"{word_of(inner)}_{number}" for number in range(several)]
            labels += made if isinstance(each, ast.Starred) else [word_of(inner)]
        return labels

    def _gather(self, target: ast.expr, labels: Sequence[str]) -> None:
        """Names that stand for several loops."""
        parts = list(target.elts) if isinstance(target, (ast.Tuple, ast.List)) else [target]
        for each in parts:
            name = word_of(each.value if isinstance(each, ast.Starred) else each)
            if name not in labels:
                own = [label for label in labels if label.rpartition("_")[0] == name]
                self.reader.names[name] = tuple(self.reader.names[label] for label in own)

    def _with(self, stmt: ast.With, root: bool) -> None:
        call, target = stmt.items[0].context_expr, stmt.items[0].optional_vars
        word = word_of(call.func) if isinstance(call, ast.Call) else ""
        if word == "launch_thread" and isinstance(call, ast.Call) and len(call.args) == 2:
            self._for(_thread(target or ast.Name("thread", ast.Store()), call, stmt.body))
            return
        if target is not None:
            raise self.source.error("SM1204", f"{word} gives no value", target)
        if word == "attr" and isinstance(call, ast.Call):
            self._attr(call, stmt.body)
            return
        if word == "init" and self.stage is not None:
            if self.stage.init is not None:
                raise self.source.error("SM1204", "a block has one T.init", call)
            self.stage.init = self._block(stmt.body)
            return
        if word not in _BLOCKS or not isinstance(call, ast.Call):
            remedy = 'with T.block("name"):'
            raise self.source.error("SM1203", f"no statement: with {ast.unparse(call)}", call, remedy=remedy)
        name = str(literal(call.args[0], self.source)) if call.args else "block"
        if root and name == "root" and not _has_axes(stmt.body):
            self.explicit = True
            self._statements(stmt.body, root)
            self.explicit = False
            return
        around, self.stage = self.stage, _Stage()
        names = dict(self.reader.names)
        body = self._block(stmt.body)
        own = self.stage
        self.stage, self.reader.names = around, names
        body = Block((*own.allocs, *body.stmts))
        stage = Stage(name, tuple(own.axes), body, own.init, tuple(own.where), tuple(own.notes.items()))
        self._add(self._closed(stage))

    def _closed(self, stage: Stage) -> Stage:
        """The block with an axis for each loop around it that is named inside: nothing is known of those."""
        blocks = [block for block in (stage.body, stage.init) if block is not None]
        used = {symbol for block in blocks for symbol in _symbols(block)}
        loops = [self.loops[var] for var in self.around if var in used]
        if not loops:
            return stage
        vars = {loop.var: self.fresh(f"v{loop.label}") for loop in loops}
        axes = tuple(
            Axis(
                vars[loop.var],
                replaced(loop.end - loop.begin, vars),
                loop.var,
                AxisKind.OPAQUE,
                replaced(loop.begin, vars),
                label=f"v{loop.label}",
            )
            for loop in loops
        )
        body, init = (
            block and map_exprs(block, lambda e: replaced(e, vars)) for block in (stage.body, stage.init)
        )
        assert body is not None
        return replace(stage, axes=(*stage.axes, *axes), body=body, init=init)

    def _attr(self, call: ast.Call, body: Sequence[ast.stmt]) -> None:
        """``T.attr(node, key, value)``: a note beside each of the loops in it."""
        _, key, value = (*call.args, None, None)[:3]
        before = len(self.reader.stmts)
        self._statements(body)
        found = self.reader.stmts[before:]
        if key is None or value is None or not any(isinstance(each, For) for each in found):
            remedy = "around a loop"
            raise self.source.error("SM1204", "an attribute of what is no loop", call, remedy=remedy)
        note = (str(literal(key, self.source)), literal(value, self.source))
        self.reader.stmts[before:] = [
            replace(each, notes=(*each.notes, note)) if isinstance(each, For) else each for each in found
        ]

    def _assign(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> None:
        macro = self.reader.macro(value.func) if isinstance(value, ast.Call) else None
        if macro is not None and isinstance(value, ast.Call):
            result = self._inline(macro, value)
            if result is None:
                raise self.source.error("SM1204", f"{ast.unparse(value.func)} returns nothing", value)
            self._assign(target, result, node)
            return
        if isinstance(value, ast.Call) and word_of(value.func) == "meta_var" and len(value.args) == 1:
            self._assign(target, value.args[0], node)
            return
        if isinstance(target, ast.Tuple) and not isinstance(value, ast.Call):
            parts = self.reader.spread([value])
            if len(target.elts) != len(parts):
                what = f"{len(target.elts)} names for {len(parts)} values"
                raise self.source.error("SM1204", what, node)
            for one, other in zip(target.elts, parts):
                self._assign(one, other, node)
            return
        if isinstance(target, ast.Subscript):
            self._store(target, value)
            return
        if not isinstance(target, (ast.Name, ast.Tuple)):
            raise self.source.error("SM1204", f"nothing is assigned to {ast.unparse(target)}", target)
        word = word_of(value.func) if isinstance(value, ast.Call) else ""
        names = [word_of(each) for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
        call = value if isinstance(value, ast.Call) else None
        if (call is not None and word == "remap") or (word in _AXES and _is_axis(value)):
            assert call is not None
            self._axes(names, call, word)
        elif call is not None and word in ("match_buffer", "buffer_decl"):
            self._match(names[0], call)
        elif call is not None and word in _ALLOCS:
            self._alloc(names[0], call, word)
        elif call is not None and (word == "var" or (word in NAMED_DTYPES and not call.args)):
            self._variable(names[0], NAMED_DTYPES.get(word, torch.int32))
        elif call is not None and word == "smelt_accumulator":
            kind, dtype = (literal(arg, self.source) for arg in call.args)
            self._add(Accumulate(names[0], kind, NAMED_DTYPES[dtype]))
        elif call is not None and word == "smelt_carry":
            initial, dtype = (literal(arg, self.source) for arg in call.args)
            self._add(Carry(names[0], NAMED_DTYPES[dtype], initial))
        else:
            note = node.annotation if isinstance(node, ast.AnnAssign) else None
            if isinstance(note, ast.Subscript) and word_of(note.value) == "let":
                note = note.slice
            self._name(names[0], value, None if note is None else self.reader.dtype(note))

    def _name(self, name: str, value: ast.expr, dtype: torch.dtype | None) -> None:
        """``x = value``: a name for it, from here on in this block."""
        found = self.reader.read(value, dtype)
        if not isinstance(found, Index) or dtype not in (None, torch.int32, torch.int64):
            found = self.reader.value(found, dtype, value)
        self.reader.names[name] = found

    def _match(self, name: str, call: ast.Call) -> None:
        given = {str(each.arg): each.value for each in call.keywords}
        first = call.args[0] if call.args else call
        if isinstance(first, ast.Subscript):
            self._region(name, first, call.args[1] if len(call.args) > 1 else given.get("shape"), call)
            return
        handle = word_of(first)
        if handle not in self.handles:
            what = f"{handle or ast.unparse(first)} is no handle among the parameters"
            raise self.source.error("SM1205", what, first, remedy=near(handle, self.handles))
        self.handles[handle] = name
        self._buffer(name, call.args[1:], call.keywords, call)

    def _region(self, name: str, node: ast.Subscript, shape: ast.expr | None, call: ast.Call) -> None:
        """``A = T.match_buffer(B[0:4, i], (4, 1))``: a view."""
        base = self.reader.buffer(node.value)
        region = self._span(base, node)
        sizes = tuple(extent for _, extent in region) if shape is None else self._shape(shape)
        view = region_view(base, region, sizes)
        if view is None:
            what = f"the region has the shape {tuple(extent for _, extent in region)}, not {sizes}"
            raise self.source.error("SM1204", what, call)
        self.reader.buffers[name] = view

    def _span(self, base: Buffer, node: ast.Subscript) -> list[tuple[Expr, Expr]]:
        """The begin and the extent of a region in each dimension."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(parts) != len(base.shape):
            what = f"{ast.unparse(node.value)} has {len(base.shape)} dimensions, {len(parts)} are given"
            raise self.source.error("SM1206", what, node)
        region = []
        for part, size in zip(parts, base.shape):
            if not isinstance(part, ast.Slice):
                region.append((self.reader.index(part), Integer(1)))
                continue
            if part.step is not None and not (isinstance(part.step, ast.Constant) and part.step.value == 1):
                raise self.source.error("SM1204", "a region has no steps", part.step)
            begin = self.reader.index(part.lower) if part.lower else Integer(0)
            end = self.reader.index(part.upper) if part.upper else size
            region.append((begin, sympy.expand(end - begin)))
        return region

    def _alloc(self, name: str, call: ast.Call, word: str) -> None:
        given = {each.arg: each.value for each in call.keywords}
        shape = self._shape(call.args[0] if call.args else given["shape"])
        dtype = self._dtype(call.args[1] if len(call.args) > 1 else given.get("dtype"))
        if word == "decl_buffer" and "data" in given:
            self._view(name, given, shape, dtype, call)
            return
        scope = str(literal(given["scope"], self.source)) if "scope" in given else ""
        padding = literal(given["smelt_padding"], self.source) if "smelt_padding" in given else ()
        if name in self.declared:
            raise self.source.error("SM1204", f"{name} is allocated twice", call)
        self.declared.add(name)
        taken = {buffer.memory for buffer in self.reader.buffers.values()}
        memory, number = name, 0
        while memory in taken:
            number += 1
            memory = f"{name}_{number}"
        self.reader.buffers[name] = Buffer(dtype, shape, memory)
        alloc = Alloc(memory, dtype, shape, "" if scope == "global" else scope, tuple(padding))
        looped = {symbol for size in shape for symbol in size.free_symbols} & self.loops.keys()
        if word == "sblock_alloc_buffer" and not looped:
            (self.stage or self.root).allocs.append(alloc)
        else:
            self._add(alloc)

    def _view(
        self,
        name: str,
        given: Mapping[str | None, ast.expr],
        shape: tuple[Expr, ...],
        dtype: torch.dtype,
        call: ast.Call,
    ) -> None:
        """``A = T.decl_buffer((256,), data=B.data)``: a view."""
        data = given["data"]
        if word_of(data) in self.handles:
            self.handles[word_of(data)] = name
            self._buffer(name, [], call.keywords, call)
            return
        base = self.reader.buffer(data.value if isinstance(data, ast.Attribute) else data)
        if base.dtype != dtype:
            what = f"a view of {dtype} on memory of {base.dtype}"
            raise self.source.error("SM1207", what, call)
        offset = self.reader.index(given["elem_offset"]) if "elem_offset" in given else Integer(0)
        self.reader.buffers[name] = flat_view(base, shape, self._strides(given, shape), offset)

    def _axes(self, names: Sequence[str], call: ast.Call, word: str) -> None:
        if self.stage is None:
            raise self.source.error("SM1204", "an axis outside of a block", call)
        if word != "remap":
            if len(call.args) != 2:
                raise self.source.error("SM1204", "an axis is a size and a value", call, remedy="128, i")
            extent, value = call.args
            begin, size = Integer(0), Integer(0)
            if isinstance(extent, ast.Tuple):
                begin, end = (self.reader.index(each) for each in extent.elts)
                size = end - begin
            else:
                size = self.reader.index(extent)
            self._axis(names[0], size, self.reader.index(value), _AXES[word], begin, call)
            return
        letters, values = str(literal(call.args[0], self.source)), call.args[1]
        nodes = self.reader.spread([values])
        if not len(letters) == len(nodes) == len(names):
            what = f"{len(names)} axes, {len(letters)} kinds, {len(nodes)} values"
            raise self.source.error("SM1204", what, call)
        for name, letter, node in zip(names, letters, nodes):
            value = self.reader.index(node)
            loop = self.loops.get(value) if isinstance(value, Symbol) else None
            if loop is None or letter not in _AXES:
                what = f"{ast.unparse(node)} is no loop" if loop is None else f"{letter!r} is no kind of axis"
                raise self.source.error("SM1204", what, node, remedy="S, R or O, and a loop around the block")
            self._axis(name, loop.end - loop.begin, value, _AXES[letter], loop.begin, node)

    def _axis(self, name: str, extent: Expr, value: Expr, kind: AxisKind, begin: Expr, node: ast.AST) -> None:
        assert self.stage is not None
        if name in (axis.label for axis in self.stage.axes):
            raise self.source.error("SM1204", f"{name} is an axis already", node)
        var = self.fresh(name)
        self.reader.names[name] = Index(var)
        self.stage.axes.append(Axis(var, extent, value, kind, begin, label=name))

    def _store(self, target: ast.Subscript, value: ast.expr) -> None:
        dtype = self.reader.buffer(target.value).dtype
        name, index = self.reader.place(target)
        self.written.add(name)
        mode, rest = _accumulated(target, value)
        if mode is not None:
            value = rest
        found = self.reader.value(self.reader.read(value, dtype), dtype, value)
        if found.dtype != dtype:
            found = self.reader.cast(found, dtype)
        self._add(Store(name, index, found.name, mode))

    def _call(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return
        word = word_of(node.func) if isinstance(node, ast.Call) else ""
        if word == "evaluate" and isinstance(node, ast.Call) and len(node.args) == 1:
            self._call(node.args[0])
            return
        if word in _SAID:
            return
        if not isinstance(node, ast.Call):
            self._evaluate(node)
            return
        if word in _ONCE:
            said = self.stage.said if self.stage else self.root.said
            if (self.stage is None and not self.explicit) or word in said:
                what = f"T.{word} outside of a block" if word not in said else f"T.{word} is said twice"
                raise self.source.error("SM1204", what, node)
            said.add(word)
        macro = self.reader.macro(node.func)
        if macro is not None:
            result = self._inline(macro, node)
            if result is not None:
                self._call(result)
            return
        if word == "func_attr":
            found = literal(node.args[0], self.source)
            self.attrs.update((key.replace("tirx.", "tir."), value) for key, value in found.items())
        elif word == "where" and self.stage is not None:
            condition = self._known_truth(node.args[0])
            if condition is None:
                raise self.source.error("SM1204", "a condition over loops is wanted", node.args[0])
            self.stage.where += [each for each in sympy.And.make_args(condition) if each != sympy.true]
        elif word in ("reads", "writes"):
            for region in self.reader.spread(node.args):
                if isinstance(region, ast.Subscript):
                    self._span(self.reader.buffer(region.value), region)
                elif not _is_empty(region):
                    self.reader.buffer(region)
        elif word in ("block_attr", "sblock_attr") and (self.stage is not None or self.explicit):
            buffers = {name: Word(name) for name in self.reader.buffers}
            source = replace(self.source, outside={**self.source.outside, **buffers})
            notes = literal(node.args[0], source)
            root = self.attrs.setdefault("smelt.root_attr", {}) if self.stage is None else {}
            self._note(root if self.stage is None else self.stage.notes, notes, node)
        elif word == "bind" and any(each.arg == "var" for each in node.keywords):
            (name,) = (word_of(each.value) for each in node.keywords if each.arg == "var")
            self._name(name, node.args[0], None)
        elif word == "smelt_update":
            self._update(node)
        elif word == "smelt_advance":
            value = self.reader.value(self.reader.read(node.args[1]), None, node.args[1])
            self._add(Advance(word_of(node.args[0]), value.name))
        elif word == "smelt_prefetch":
            place = node.args[0]
            assert isinstance(place, ast.Subscript)
            self._add(Prefetch(*self.reader.place(place)))
        elif word == "smelt_sort_row":
            self._sort(node)
        elif word == "smelt_store":
            place = node.args[0]
            assert isinstance(place, ast.Subscript)
            dtype = self.reader.buffer(place.value).dtype
            value = self.reader.value(self.reader.read(node.args[1], dtype), dtype, node.args[1])
            name, index = self.reader.place(place)
            self.written.add(name)
            self._add(Store(name, index, value.name, str(literal(node.args[2], self.source))))
        else:
            self._evaluate(node)

    def _evaluate(self, node: ast.expr) -> None:
        """A value that nothing uses; the number 0, TVM's word for nothing, is none."""
        before = len(self.reader.stmts)
        found = self.reader.read(node)
        position = isinstance(found, Index) and self.reader.stmts[before:] and found.expr.is_Symbol
        if not position and not (isinstance(found, Index) and found.expr == 0):
            self.reader.value(found, None, node)

    def _note(self, notes: dict[str, Any], added: Mapping[str, Any], node: ast.AST) -> None:
        for key, value in added.items():
            known = notes.get(key, value)
            if isinstance(value, dict) and isinstance(known, dict):
                known = dict(known)
                self._note(known, value, node)
                value = known
            elif known != value:
                raise self.source.error("SM1204", f"{key} is {known!r} already", node)
            notes[key] = value

    def _inline(self, macro: Macro, call: ast.Call) -> ast.expr | None:
        """The statements of a function in place of its call, and what it returns."""
        try:
            body, result = macro.at(call, self.reader.spread)
        except TypeError as error:
            raise self.source.error("SM1204", str(error), call) from None
        self._statements(body)
        return result  # type: ignore[no-any-return]

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
            return self.reader.place(part)

        source, start = place(node.args[0])
        results = {str(each.arg): place(each.value) for each in node.keywords}
        into = next(iter(results.values()))[1]
        self.written |= {name for name, _ in results.values()}
        length, limit = (self.reader.index(arg) for arg in node.args[1:3])
        descending = bool(literal(node.args[3], self.source))
        values, positions = (results.get(key, (None, ()))[0] for key in ("values", "positions"))
        self._add(SortRow(source, start, length, limit, descending, values, positions, into))


def _plain(stmt: ast.AugAssign) -> ast.Assign:
    """``x[i] = x[i] + v`` of ``x[i] += v``."""
    return ast.copy_location(ast.Assign([stmt.target], augmented(stmt)), stmt)


def _thread(target: ast.expr, call: ast.Call, body: Sequence[ast.stmt]) -> ast.For:
    """``i = T.launch_thread("blockIdx.x", 64)`` → ``for i in T.thread_binding(64, "blockIdx.x")``."""
    tag, extent = call.args
    made = ast.Call(ast.Name("thread_binding", ast.Load()), [extent, tag], [])
    return ast.copy_location(ast.For(target, ast.copy_location(made, call), list(body), []), call)


def _is_macro(node: ast.AST) -> bool:
    return word_of(node.func if isinstance(node, ast.Call) else node) in _MACROS


def _symbols(block: Block) -> set[Symbol]:
    """The symbols of all expressions of a block."""
    found: set[Symbol] = set()

    def note(expr: Expr) -> Expr:
        found.update(expr.free_symbols)
        return expr

    map_exprs(block, note)
    return found


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
