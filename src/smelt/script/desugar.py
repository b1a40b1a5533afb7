"""Rewrites of derived forms of the script: each maps Python's tree to Python's tree, before → after."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

from smelt.script.parse import Source, word_of

Node = TypeVar("Node", bound=ast.AST)

_LEAVES = ("continue_loop",)
_LANES = ("ramp", "Ramp")
_SAME = ("broadcast", "Broadcast")
_SAID = ("reads", "writes", "match_buffer")


DERIVED = {"exp10": "10.0 ** x", "ceildiv": "(x + (y - 1)) // y"}
"""Functions derived from others: x and y are their arguments."""


def at(node: Node, place: ast.AST) -> Node:
    """A created node, at the place of a parsed one."""
    for each in ast.walk(node):
        if hasattr(each, "lineno") or isinstance(each, (ast.expr, ast.stmt, ast.keyword)):
            ast.copy_location(each, place)
    return node


def call(word: str, *args: ast.expr) -> ast.Call:
    """``word(args)``."""
    return ast.Call(ast.Name(word, ast.Load()), list(args), [])


def augmented(stmt: ast.AugAssign) -> ast.expr:
    """``x[i] += v`` → ``x[i] + v``."""
    left = copy.deepcopy(stmt.target)
    left.ctx = ast.Load()
    return at(ast.BinOp(left, stmt.op, stmt.value), stmt)


def chosen(node: ast.IfExp) -> ast.Call:
    """``a if c else b`` → ``T.if_then_else(c, a, b)``."""
    return ast.copy_location(call("if_then_else", node.test, node.body, node.orelse), node)


def derived(text: str, args: Sequence[ast.expr], place: ast.AST) -> ast.expr:
    """``(x + (y - 1)) // y`` of a and b → ``(a + (b - 1)) // b``."""
    body = ast.parse(text, mode="eval").body
    function = ast.Lambda(ast.arguments([], [], None, [], [], None, []), body)
    _, result = inlined(function, dict(zip("xy", args)), None, place)
    assert result is not None
    return result


def stepped(stmt: ast.For, begin: ast.expr, end: ast.expr, step: ast.expr) -> ast.For:
    """``for i in serial(b, e, step=s)`` → ``for i in serial((e - b + s - 1) // s): i = b + i * s``."""
    loop = copy.copy(stmt)
    assert isinstance(stmt.iter, ast.Call) and isinstance(stmt.target, ast.Name)
    one = ast.Constant(1)
    span = ast.BinOp(ast.BinOp(ast.BinOp(end, ast.Sub(), begin), ast.Add(), step), ast.Sub(), one)
    count = at(ast.BinOp(span, ast.FloorDiv(), step), stmt.iter)
    options = [each for each in stmt.iter.keywords if each.arg != "step"]
    loop.iter = ast.copy_location(ast.Call(stmt.iter.func, [count], options), stmt.iter)
    name = ast.Name(stmt.target.id, ast.Load())
    value = ast.BinOp(begin, ast.Add(), ast.BinOp(name, ast.Mult(), step))
    loop.body = [at(ast.Assign([ast.Name(stmt.target.id, ast.Store())], value), stmt.target), *stmt.body]
    return loop


def threaded(target: ast.expr, call: ast.Call, body: Sequence[ast.stmt]) -> ast.For:
    """``i = T.launch_thread("blockIdx.x", 64)`` → ``for i in T.thread_binding(64, "blockIdx.x")``."""
    tag, extent = call.args
    made = ast.Call(ast.Name("thread_binding", ast.Load()), [extent, tag], [])
    return ast.copy_location(ast.For(target, ast.copy_location(made, call), list(body), []), call)


def plain(stmt: ast.AugAssign) -> ast.Assign:
    """``x[i] += v`` → ``x[i] = x[i] + v``."""
    return ast.copy_location(ast.Assign([stmt.target], augmented(stmt)), stmt)


def without_continue(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """``if c: a; continue`` and the rest of a loop's body → ``if c: a``, ``else:`` the rest."""
    for number, stmt in enumerate(body):
        if _is_continue(stmt):
            return list(body[:number])
        if isinstance(stmt, ast.If) and any(_is_continue(each) for each in (*stmt.body, *stmt.orelse)):
            rest = list(body[number + 1 :])
            made = copy.copy(stmt)
            left, right = (any(map(_is_continue, part)) for part in (stmt.body, stmt.orelse))
            made.body = without_continue([*stmt.body, *([] if left else rest)]) or [at(ast.Pass(), stmt)]
            made.orelse = without_continue([*stmt.orelse, *([] if right else rest)])
            return [*body[:number], made]
    return list(body)


def _is_continue(stmt: ast.stmt) -> bool:
    if isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call):
        inner = stmt.value
        if word_of(inner.func) == "evaluate" and inner.args and isinstance(inner.args[0], ast.Call):
            inner = inner.args[0]
        return word_of(inner.func) in _LEAVES
    return isinstance(stmt, ast.Continue)


def lanes(stmt: ast.stmt, source: Source, count: Callable[[ast.Slice], int]) -> ast.For | None:
    """A statement on ramps and slices → one element of each in a vector loop; None for one on elements.

    ``A[T.ramp(b, 2, 8)] = B[0:8] + T.broadcast(c, 8)`` → ``for lane in T.vectorized(8): A[b + lane * 2] =
    B[lane] + c``. ``count``: counts the elements of a slice.

    Raises:
        SmeltError: SM1204, they differ in length, or a lane reads an element that another one writes.
    """
    target = stmt.targets[0] if isinstance(stmt, ast.Assign) else None
    parts = [part for part in ast.walk(stmt) if _is_lanes(part)]
    if not parts or _says_regions(stmt):
        return None
    lengths = {count(part) if isinstance(part, ast.Slice) else _number(part, source) for part in parts}
    if len(lengths) != 1:
        said = " and ".join(map(str, sorted(lengths)))
        raise source.error("SM1204", f"vectors of {said} elements in one statement", stmt)
    if target is not None and not any(_is_lanes(part) for part in ast.walk(target)):
        raise source.error("SM1204", "a vector is stored to one element", stmt)
    if isinstance(target, ast.Subscript):
        _apart(target, stmt, source)
    name = ast.Name("lane", ast.Load())
    body = _Lanes(name).visit(copy.deepcopy(stmt))
    loop = ast.For(ast.Name("lane", ast.Store()), call("vectorized", ast.Constant(lengths.pop())), [body], [])
    return at(loop, stmt)


def _is_lanes(node: ast.AST) -> bool:
    return isinstance(node, ast.Slice) or (isinstance(node, ast.Call) and word_of(node.func) in _LANES)


def _says_regions(stmt: ast.stmt) -> bool:
    return any(isinstance(each, ast.Call) and word_of(each.func) in _SAID for each in ast.walk(stmt))


def _number(node: ast.AST, source: Source) -> int:
    if isinstance(node, ast.Call) and len(node.args) == 3:
        given = node.args[2]
        if isinstance(given, ast.Constant) and isinstance(given.value, int):
            return given.value
    remedy = "T.ramp(base, stride, 8)"
    raise source.error("SM1204", "a vector has a number of elements that is known", node, remedy=remedy)


def _apart(target: ast.Subscript, stmt: ast.stmt, source: Source) -> None:
    own = ast.unparse(target)
    assert isinstance(stmt, ast.Assign)
    for each in ast.walk(stmt.value):
        same = isinstance(each, ast.Subscript) and ast.unparse(each.value) == ast.unparse(target.value)
        if same and ast.unparse(each) != own:
            what = "a vector is read in another place than it is written in"
            raise source.error("SM1204", what, each, remedy="a loop, or two statements")


class _Lanes(ast.NodeTransformer):
    """Replaces vectors by the element of a lane."""

    def __init__(self, lane: ast.Name) -> None:
        self.lane = lane

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        word = word_of(node.func)
        if word in _LANES:
            return ast.BinOp(node.args[0], ast.Add(), ast.BinOp(self.lane, ast.Mult(), node.args[1]))
        return node.args[0] if word in _SAME else node

    def visit_Slice(self, node: ast.Slice) -> ast.AST:
        self.generic_visit(node)
        begin = node.lower or ast.Constant(0)
        return ast.BinOp(begin, ast.Add(), ast.BinOp(self.lane, ast.Mult(), node.step or ast.Constant(1)))


def inlined(
    function: ast.FunctionDef | ast.Lambda,
    given: Mapping[str, Any],
    outside: Mapping[str, Any] | None,
    place: ast.AST,
) -> tuple[list[ast.stmt], ast.expr | None]:
    """The statements of a function, and its result, with parameters replaced by arguments.

    ``given``: the argument of each parameter, a list of them, or a mapping. ``outside``: the values of other
    names in it, the caller's by default. Local names that occur in an argument get an underscore.
    """
    whole = function.body if isinstance(function, ast.FunctionDef) else [ast.Return(function.body)]
    body: list[ast.stmt] = [copy.deepcopy(stmt) for stmt in whole]
    own = {
        each.id for stmt in body for each in ast.walk(stmt) if isinstance(each, ast.Name) and _is_set(each)
    }
    nodes = [each for each in given.values() if isinstance(each, ast.AST)]
    nodes += [each for part in given.values() if isinstance(part, list) for each in part]
    used = {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}
    renamed = {name: f"{name}_" for name in own & used}
    change = _Inline(given, outside, own, renamed)
    body = [at(change.visit(stmt), place) for stmt in body]
    last = body[-1] if body and isinstance(body[-1], ast.Return) else None
    return (body[:-1] if last else body), (last.value if last else None)


def _is_set(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


class _Inline(ast.NodeTransformer):
    def __init__(
        self,
        given: Mapping[str, Any],
        outside: Mapping[str, Any] | None,
        own: set[str],
        renamed: Mapping[str, str],
    ) -> None:
        self.given, self.outside, self.own, self.renamed = given, outside, own, renamed

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.given:
            return self._argument(self.given[node.id])
        if node.id in self.own:
            return ast.Name(self.renamed.get(node.id, node.id), node.ctx)
        found = (self.outside or {}).get(node.id, node)
        return node if found is node or isinstance(found, (ModuleType, type)) else ast.Constant(found)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        found = self.given.get(word_of(node.value))
        if isinstance(found, (list, Mapping)) and isinstance(node.slice, ast.Constant):
            return self._argument(found[node.slice.value])  # type: ignore[index]
        return self.generic_visit(node)

    def _argument(self, found: Any) -> ast.AST:
        if isinstance(found, list):
            return ast.Tuple([copy.deepcopy(each) for each in found], ast.Load())
        return copy.deepcopy(found)


__all__ = [
    *("DERIVED", "at", "augmented", "call", "chosen", "derived", "inlined", "lanes", "plain"),
    *("stepped", "threaded", "without_continue"),
]
