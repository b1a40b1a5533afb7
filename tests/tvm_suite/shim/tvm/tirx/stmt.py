"""``tvm.tirx.stmt``: the tree of a function, as the text that smelt prints of it says it.

TVM's tests look into trees: ``func.body.block.reads``. smelt's nest has another form, so that the nodes are
made from ``func.script()``: what a test finds here, the printer has said.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import sympy

from smelt.records import replace
from smelt.script import PrimFunc

KINDS = {"parallel": 1, "vectorized": 2, "unroll": 3, "thread_binding": 4}
NAMES = ("var", "block", "sblock", "init")


@dataclass
class Var:
    """A loop's variable, an axis's, or a size."""

    name: str


class BufferRegion:
    """The part of a buffer: the first element and the number of them, in each dimension."""

    def __init__(self, buffer: Any, region: Any) -> None:
        self.buffer = buffer
        self.region = [tuple(sympy.expand(each) for each in (part.min, part.extent)) for part in region]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BufferRegion) and (self.buffer.name, self.region) == (
            other.buffer.name,
            other.region,
        )

    __hash__ = None

    def __repr__(self) -> str:
        return f"{self.buffer.name}{self.region}"


class Node:
    """A piece of a script."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


class For(Node): ...


class SBlock(Node): ...


class SBlockRealize(Node): ...


class BufferStore(Node): ...


class AllocBuffer(Node): ...


class Evaluate(Node): ...


class Bind(Node): ...


class IfThenElse(Node): ...


class SeqStmt(Node):
    """Statements in order."""

    def __getitem__(self, number: int) -> Any:
        return self.seq[number]

    def __len__(self) -> int:
        return len(self.seq)


def _word(node: ast.AST | None) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "attr", getattr(node, "id", ""))


def _number(node: ast.AST) -> Any:
    text = ast.unparse(node)
    names = {each.id: sympy.Symbol(each.id) for each in ast.walk(node) if isinstance(each, ast.Name)}
    return sympy.expand(sympy.sympify(text.replace("//", "/"), locals=names)) if "T." not in text else text


def _region(node: ast.AST) -> BufferRegion:
    assert isinstance(node, ast.Subscript)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    found = []
    for part in parts:
        begin = _number(part.lower if isinstance(part, ast.Slice) else part)
        extent = _number(part.upper) - begin if isinstance(part, ast.Slice) else 1
        found.append(Node(min=begin, extent=extent))
    return BufferRegion(Var(ast.unparse(node.value)), found)


def _sequence(body: list[ast.stmt]) -> Any:
    nodes = [node for stmt in body for node in _statement(stmt)]
    return nodes[0] if len(nodes) == 1 else SeqStmt(seq=nodes) if nodes else Evaluate(value=0)


def _statement(stmt: ast.stmt) -> list[Any]:
    if isinstance(stmt, ast.For):
        return [_loop(stmt)]
    if isinstance(stmt, ast.With):
        return [_block(ast.literal_eval(stmt.items[0].context_expr.args[0]), stmt.body)]
    if isinstance(stmt, ast.If):
        return [IfThenElse(condition=ast.unparse(stmt.test), then_case=_sequence(stmt.body))]
    if isinstance(stmt, ast.AnnAssign):
        return [Bind(var=Var(ast.unparse(stmt.target)), value=ast.unparse(stmt.value))]
    if isinstance(stmt, ast.Assign) and isinstance(stmt.targets[0], ast.Subscript):
        return [BufferStore(value=ast.unparse(stmt.value))]
    if isinstance(stmt, ast.Assign) and "alloc_buffer" in _word(stmt.value):
        return [AllocBuffer(buffer=Var(ast.unparse(stmt.targets[0])))]
    return [Evaluate(value=stmt.value.args[0])] if _word(getattr(stmt, "value", None)) == "evaluate" else []


def _loop(stmt: ast.For) -> For:
    call, targets = stmt.iter, stmt.target.elts if isinstance(stmt.target, ast.Tuple) else [stmt.target]
    given = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    args = [_number(arg) for arg in call.args]
    spans = [(0, arg) for arg in args] if _word(call) == "grid" or len(args) == 1 else [tuple(args)]
    node: Any = _sequence(stmt.body)
    for target, (begin, end) in reversed(list(zip(targets, spans))):
        node = For(
            loop_var=Var(target.id),
            min=begin,
            extent=end - begin,
            kind=KINDS.get(_word(call), 0),
            thread_binding=Node(thread_tag=given["thread"]) if "thread" in given else None,
            annotations=given.get("annotations", {}),
            body=node,
        )
    return node


def _block(name: str, body: list[ast.stmt]) -> SBlockRealize:
    said = {_word(each.value): each.value.args for each in body if isinstance(each, ast.Expr)}
    axes = [each for each in body if isinstance(each, ast.Assign) and "T.axis." in ast.unparse(each.value)]
    init = [
        each for each in body if isinstance(each, ast.With) and _word(each.items[0].context_expr) == "init"
    ]
    names = [name for axis in axes for name in getattr(axis.targets[0], "elts", axis.targets)]
    skipped = [*axes, *init]
    rest = [each for each in body if each not in skipped]
    allocs = [each for each in rest if isinstance(each, ast.Assign) and "sblock_alloc" in _word(each.value)]
    block = SBlock(
        name_hint=name,
        iter_vars=[Node(var=sympy.Symbol(each.id)) for each in names],
        reads=[_region(each) for each in said.get("reads", ())],
        writes=[_region(each) for each in said.get("writes", ())],
        init=_sequence(init[0].body) if init else None,
        annotations=ast.literal_eval(said["sblock_attr"][0]) if "sblock_attr" in said else {},
        alloc_buffers=[Var(each.targets[0].id) for each in allocs],
        match_buffers=[],
        body=_sequence([each for each in rest if each not in allocs]),
    )
    return SBlockRealize(block=block, predicate=[ast.unparse(each) for each in said.get("where", ())])


def body(func: PrimFunc) -> Any:
    """``func.body``: a block called root around all, where there are blocks."""
    (function,) = ast.parse(func.script()).body
    heads = ("match_buffer", "func_attr", "int32", "int64")
    stmts = [each for each in function.body if _word(getattr(each, "value", None)) not in heads]
    blocks = any(isinstance(each, ast.With) for each in ast.walk(function)) or "sblock_alloc" in func.script()
    if not blocks and "smelt.root_attr" not in func.attrs:
        return _sequence(stmts)
    root = _block("root", stmts)
    root.block.annotations = func.attrs.get("smelt.root_attr", {})
    root.function = replace(func, attrs={}, private=True)
    return root


PrimFunc.body = property(body)

__all__ = [
    *("AllocBuffer", "Bind", "BufferRegion", "BufferStore", "Evaluate", "For", "IfThenElse"),
    *("SBlock", "SBlockRealize", "SeqStmt", "Var"),
]
