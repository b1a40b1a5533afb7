"""The parser of functions: ``@T.prim_func`` → a kernel."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Integer
from sympy.logic.boolalg import Boolean

from smelt.loops.elementwise import ASSERTIONS
from smelt.nest.ir import (
    Alloc,
    Block,
    For,
    Guard,
    Kernel,
    LoopKind,
    Stage,
    Stmt,
    Store,
)
from smelt.nest.scopes import writes
from smelt.nest.tree import exprs_of, rewritten, symbols_of_params
from smelt.records import replace
from smelt.script.desugar import at, augmented, lanes, plain, stepped, threaded, without_continue
from smelt.script.expressions import Condition, Index
from smelt.script.inert import Word
from smelt.script.module import PrimFunc
from smelt.script.outside import Macro
from smelt.script.parse import FUNCTIONS, Source, is_private, literal, near, word_of
from smelt.script.parse_blocks import AXES, Stated
from smelt.script.parse_buffers import is_empty
from smelt.script.parse_own import Own
from smelt.script.words import NAMED_DTYPES
from smelt.symbolic import free_symbols

_LOOPS = {
    "range": LoopKind.SERIAL,
    "grid": LoopKind.SERIAL,
    "serial": LoopKind.SERIAL,
    "parallel": LoopKind.PARALLEL,
    "vectorized": LoopKind.VECTOR,
    "unroll": LoopKind.UNROLL,
    "smelt_jam": LoopKind.JAM,
    "smelt_turn": LoopKind.TURN,
    "thread_binding": LoopKind.SERIAL,
}
_BLOCKS = ("block", "sblock")
_ALLOCS = ("alloc_buffer", "sblock_alloc_buffer", "decl_buffer")
_SAID = ("assume", "pass")
"""Words without information that the kernel lacks."""
_ONCE = ("reads", "writes", "where")
"""Words that a block has at most once."""
_MACROS = ("inline", "macro")


class _Parser(Own):
    def __init__(self, function: ast.FunctionDef, source: Source) -> None:
        super().__init__(function, source)
        self.reader.inline = self._inline
        self.attrs: dict[str, Any] = {}
        self.root = Stated()
        self.aligned: dict[str, list[tuple[int, ...]]] = {}
        self.explicit = False
        """Whether the current block is one named root."""
        self.bound: dict[str, Any] = {}
        """The names bound in this block, and in each of the enclosing ones."""
        self.outer: list[dict[str, Any]] = []

    def run(self) -> PrimFunc:
        for arg in self.function.args.args:
            self.param(arg)
        body = self._block(self.function.body, root=True)
        body = Block((*self.hoisted[0], *body.stmts))
        if self.aligned:
            body = rewritten(body, self._aligned)
        for handle, buffer in self.handles.items():
            if not buffer:
                what = f"{handle} is never matched with a buffer"
                remedy = f"{handle[4:] or 'A'} = T.match_buffer({handle}, shape)"
                raise self.source.error("SM1204", what, self.function, remedy=remedy)
        order = [self.handles.get(arg.arg, arg.arg) for arg in self.function.args.args]
        order += [param.name for param in self.params if param.name not in order]
        given = sorted(self.params, key=lambda param: order.index(param.name))
        params = tuple(replace(param, written=param.name in self.written) for param in given)
        needed = free_symbols(exprs_of(body)) | symbols_of_params(params)
        sizes = tuple(size for size in self.sizes if size in needed or size not in self.free)
        scalars = tuple((order.index(each.name), each) for each in sizes if each.name in order)
        kernel = Kernel(self.function.name, params, sizes, body, scalars=scalars)
        private = is_private(self.function)
        if private and "global_symbol" in self.attrs:
            what = "a private function has no global symbol"
            raise self.source.error("SM1204", what, self.function)
        return PrimFunc(kernel, self.attrs, private)

    # -- statements --------------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], root: bool = False) -> Block:
        around, declared = self.reader.stmts, self.declared
        names, bound = dict(self.reader.names), self.bound
        self.reader.stmts, self.declared = [], set()
        if not root:
            self.outer.append(bound)
            self.bound = {}
        self._statements(body, root)
        found, self.reader.stmts = Block(tuple(self.reader.stmts)), around
        self.declared = declared
        if not root:
            self.reader.names, self.bound = names, self.outer.pop()
        return found

    def _statements(self, body: Sequence[ast.stmt], root: bool = False) -> None:
        for number, stmt in enumerate(body):
            around = self._around(stmt, body[number + 1 :])
            if around is not None:
                self._statement(around, root)
                return
            self._statement(stmt, root)

    def _around(self, stmt: ast.stmt, rest: Sequence[ast.stmt]) -> ast.stmt | None:
        """A statement that holds the rest of the block, in the form with a body of its own."""
        call = stmt.value if isinstance(stmt, (ast.Assign, ast.Expr)) else None
        if not isinstance(call, ast.Call):
            return None
        body = list(rest) or [at(ast.Pass(), stmt)]
        if isinstance(stmt, ast.Assign) and word_of(call.func) == "launch_thread" and len(call.args) == 2:
            return threaded(stmt.targets[0], call, body)
        if isinstance(stmt, ast.Expr) and word_of(call.func) == "attr":
            return ast.copy_location(ast.With([ast.withitem(call)], body), stmt)
        return None

    def _statement(self, stmt: ast.stmt, root: bool) -> None:
        vector = None
        if isinstance(stmt, (ast.Assign, ast.Expr, ast.AugAssign)):
            whole = plain(stmt) if isinstance(stmt, ast.AugAssign) else stmt
            vector = lanes(whole, self.source, self._count)
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
        elif isinstance(stmt, ast.Assert):
            self._assert(stmt)
        elif isinstance(stmt, ast.Return) and stmt.value is not None and stmt is self.function.body[-1]:
            self._return(stmt.value)
        elif (isinstance(stmt, ast.Return) and stmt.value is None) or isinstance(stmt, ast.Pass):
            return
        else:
            what = f"{type(stmt).__name__.lower()} is no statement of a function of loops"
            raise self.source.error("SM1204", what, stmt)

    def _count(self, node: ast.Slice) -> int:
        """The number of elements of a slice."""
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
        first, *rest = _conditions(stmt.test)
        if condition is None and rest and not stmt.orelse:
            # the right side is not evaluated if the left is false
            inner: list[ast.stmt] = list(stmt.body)
            for each in reversed(rest):
                inner = [ast.copy_location(ast.If(each, inner, []), stmt)]
            self._if(ast.copy_location(ast.If(first, inner, []), stmt))
            return
        if condition is None:
            condition = sympy.Ne(self.reader.truth(stmt.test), 0)
        for part, body in ((condition, stmt.body), (sympy.Not(condition), stmt.orelse)):
            if body and part != sympy.false:
                inner_block = self._block(body)
                self.add(*(inner_block.stmts if part == sympy.true else (Guard(part, inner_block),)))

    def _return(self, node: ast.expr) -> None:
        """``return x``: a number, which is stored to an additional buffer without dimensions."""
        if self.around or self.stage is not None:
            raise self.source.error("SM1204", "a function returns at its end", node)
        note = self.function.returns
        dtype = None if note is None or is_empty(note) else self.reader.dtype(note)
        value = self.reader.value(self.reader.read(node, dtype), dtype, node)
        name = "result"
        while name in self.reader.buffers or name in self.reader.names:
            name += "_"
        self.variable(name, value.dtype, number=False)
        self.written.add(name)
        self.add(Store(name, (), value.name))

    def _assert(self, stmt: ast.Assert) -> None:
        """``assert c, ("ValueError", ["n is ", "odd"])``."""
        said = "" if stmt.msg is None else literal(stmt.msg, self.source)
        kind, message = said if isinstance(said, tuple) else ("RuntimeError", said)
        if kind not in ASSERTIONS:
            remedy = f"one of {', '.join(ASSERTIONS)}"
            raise self.source.error("SM1204", f"{kind} is no error of an assertion", stmt, remedy=remedy)
        known = self._known_truth(stmt.test)
        test = (
            at(ast.Constant(known == sympy.true), stmt) if known in (sympy.true, sympy.false) else stmt.test
        )
        self.reader.check(test, f"{kind}: {message if isinstance(message, str) else ''.join(message)}")

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
            made.append(replace(loop, notes=tuple(notes.items())))
            self.loops[var] = made[-1]
        self._gather(stmt.target, labels)
        self.around += [loop.var for loop in made]
        body = self._block(without_continue(stmt.body))
        del self.around[-len(made) :]
        self.reader.names = names
        for loop in reversed(made):
            body = Block((replace(loop, body=body),))
        self.add(*body.stmts)

    def _labels(self, target: ast.expr, count: int) -> list[str]:
        """The labels of a statement's loops: ``i, j``, ``ij`` for both of them, ``*i, k``."""
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
        """Bind names that stand for several loops."""
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
            self._for(threaded(target or ast.Name("thread", ast.Store()), call, stmt.body))
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
        if root and (name == "root" or (not call.args and self._alone(stmt))) and not _has_axes(stmt.body):
            self.explicit = True
            self._statements(stmt.body, root)
            self.explicit = False
            return
        around, self.stage = self.stage, Stated()
        names = dict(self.reader.names)
        self.hoisted.append([])
        body = self._block(stmt.body)
        own = self.stage
        self.stage, self.reader.names = around, names
        body = Block((*self.hoisted.pop(), *body.stmts))
        stage = Stage(name, tuple(own.axes), body, own.init, tuple(own.where))
        if _is_alignment(own.notes.get("buffer_dim_align")):  # TVM's note, on the stage that writes
            stored = writes(stage)
            for number, *aligned in own.notes.pop("buffer_dim_align"):
                self.aligned.setdefault(stored[number], []).append(tuple(aligned))
        self.add(self.closed(replace(stage, notes=tuple(own.notes.items()))))

    def _aligned(self, stmt: Stmt) -> list[Stmt] | None:
        if not isinstance(stmt, Alloc) or stmt.buffer not in self.aligned:
            return None
        return [replace(stmt, aligned=tuple(sorted(self.aligned[stmt.buffer])))]  # type: ignore[arg-type]

    def _alone(self, stmt: ast.With) -> bool:
        """Whether a block is the function's whole body: TVM puts no root block around it."""
        others = (each for each in self.function.body if each is not stmt)
        return not any(isinstance(each, (ast.For, ast.If, ast.With, ast.While)) for each in others)

    def _attr(self, call: ast.Call, body: Sequence[ast.stmt]) -> None:
        """``T.attr(node, key, value)``: an annotation of each of the loops in it."""
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
        if (call is not None and word == "remap") or (word in AXES and _is_axis(value)):
            assert call is not None
            self.axes(names, call, word)
        elif call is not None and word in ("match_buffer", "buffer_decl"):
            self.match(names[0], call)
        elif call is not None and word in _ALLOCS:
            self.alloc(names[0], call, word)
        elif call is not None and word == "handle":
            self.handles[names[0]] = ""
        elif call is not None and (word == "var" or (word in NAMED_DTYPES and not call.args)):
            self.variable(names[0], NAMED_DTYPES.get(word, torch.int32))
        elif call is None or not self.own_name(names[0], call, word):
            note = node.annotation if isinstance(node, ast.AnnAssign) else None
            if isinstance(note, ast.Subscript) and word_of(note.value) == "let":
                note = note.slice
            self._name(names[0], value, None if note is None else self.reader.dtype(note))

    def _name(self, name: str, value: ast.expr, dtype: torch.dtype | None) -> None:
        """``x = value``: a name for it, from here on in this block.

        A name is no variable: the next iteration, or statements after a block, would not read the new value,
        so a name of an enclosing block cannot be bound again.
        """
        around = self.reader.names.get(name)
        if around is not None and any(bound.get(name) is around for bound in self.outer):
            what = f"{name} is a name for another value outside of this block"
            remedy = f'a buffer, which keeps what is stored: {name} = T.alloc_buffer((1,), "int32")'
            raise self.source.error("SM1204", what, value, remedy=remedy)
        found = self.reader.read(value, dtype)
        if not isinstance(found, Index) or dtype not in (None, torch.int32, torch.int64):
            found = self.reader.value(found, dtype, value)
        self.reader.names[name] = self.bound[name] = found

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
        self.add(Store(name, index, found.name, mode))

    def _call(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return
        word = word_of(node.func) if isinstance(node, ast.Call) else ""
        if word == "evaluate" and isinstance(node, ast.Call) and len(node.args) == 1:
            self._call(node.args[0])
            return
        if word in _SAID:
            return
        if word in ("Return", "ret") and isinstance(node, ast.Call) and len(node.args) == 1:
            self._return(node.args[0])
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
            for each in _conditions(node.args[0]):
                condition = self._known_truth(each)
                if condition is None:
                    raise self.source.error("SM1204", "a condition over loops is wanted", each)
                parts = sympy.ordered(sympy.And.make_args(condition))
                self.stage.where += [part for part in parts if part != sympy.true]
        elif word in ("reads", "writes"):
            before = len(self.reader.stmts)
            for region in self.reader.spread(node.args):
                if isinstance(region, ast.Subscript):
                    self.span(self.reader.buffer(region.value), region)
                elif not is_empty(region):
                    self.reader.buffer(region)
            del self.reader.stmts[before:]  # nobody computes the region's annotations
        elif word in ("block_attr", "sblock_attr") and (self.stage is not None or self.explicit):
            buffers = {name: Word(name) for name in self.reader.buffers}
            source = replace(self.source, outside={**self.source.outside, **buffers})
            notes = literal(node.args[0], source)
            root = self.attrs.setdefault("smelt.root_attr", {}) if self.stage is None else {}
            self.note(root if self.stage is None else self.stage.notes, notes, node)
        elif word == "bind" and any(each.arg == "var" for each in node.keywords):
            (name,) = (word_of(each.value) for each in node.keywords if each.arg == "var")
            self._name(name, node.args[0], None)
        elif not self.own(word, node):
            self._evaluate(node)

    def _evaluate(self, node: ast.expr) -> None:
        """A value that nothing uses; the number 0, TVM's no-op, is dropped."""
        before = len(self.reader.stmts)
        found = self.reader.read(node)
        position = isinstance(found, Index) and self.reader.stmts[before:] and found.expr.is_Symbol
        if not position and not (isinstance(found, Index) and found.expr == 0):
            self.reader.value(found, None, node)

    def _inline(self, macro: Macro, call: ast.Call) -> ast.expr | None:
        """Inline the statements of a function in place of its call; returns its result."""
        try:
            body, result = macro.at(call, self.reader.spread)
        except TypeError as error:
            raise self.source.error("SM1204", str(error), call) from None
        self._statements(body)
        return result  # type: ignore[no-any-return]


def _is_macro(node: ast.AST) -> bool:
    return word_of(node.func if isinstance(node, ast.Call) else node) in _MACROS


def _conditions(node: ast.expr) -> list[ast.expr]:
    """The conditions that ``and`` joins."""
    return node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else [node]


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
    """The function of loops in a Python function's text."""
    del known
    return _Parser(function, source).run()


FUNCTIONS["prim_func"] = parse
