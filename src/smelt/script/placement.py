"""The choice between inlining a block's value at its use and binding it at its statement."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeAlias

from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import (
    Accumulate,
    Advance,
    Block,
    For,
    Guard,
    Let,
    Masked,
    SortRow,
    Stage,
    Stmt,
    Store,
    Update,
)
from smelt.nest.tree import blocks_of, walk
from smelt.records import dataclass

Name: TypeAlias = "str | Symbol"
"""A value, or a position that is a value (`smelt.nest.ir.Let.index`)."""


@dataclass(slots=True)
class _Value:
    """A value of a block: the numbers of its statement and its last use; whether an inner loop uses it."""

    at: int
    last: int = -1
    inner: bool = False


def bound(block: Block) -> set[str]:
    """The values that must be bound at their statement.

    A store before their use changes them, or a loop within the block uses them: ``v = A[i]; A[i] = 0; B[i] =
    v`` is not ``A[i] = 0; B[i] = A[i]``.
    """
    found: set[str] = set()
    _collect(block, found)
    return found


def _collect(block: Block, found: set[str]) -> None:
    for stmt in block.stmts:
        if isinstance(stmt, (For, Guard, Stage)):
            for inner in blocks_of(stmt):
                _collect(inner, found)
    values = {stmt.name: _Value(at) for at, stmt in enumerate(block.stmts) if isinstance(stmt, (Let, Masked))}
    names: dict[Name, str] = {
        stmt.index: stmt.name for stmt in block.stmts if isinstance(stmt, Let) and stmt.index
    }
    writes: dict[str, list[int]] = defaultdict(list)
    for at, stmt in enumerate(block.stmts):
        for name in _written(stmt):
            writes[name].append(at)
    for at in reversed(range(len(block.stmts))):
        stmt = block.stmts[at]
        own = values.get(stmt.name) if isinstance(stmt, (Let, Masked)) else None
        held = isinstance(stmt, (Let, Masked)) and stmt.name in found
        last = at if own is None or held else max(own.last, at)
        inside = {each for inner in blocks_of(stmt) for s in inner.stmts for each in _needed(s)}
        for name in _needed(stmt):
            used = values.get(names.get(name, name))  # type: ignore[arg-type]
            if used is not None:
                used.last = max(used.last, last)
                used.inner |= isinstance(stmt, (For, Guard, Stage)) and (
                    name in inside or not isinstance(stmt, Guard)
                )
        if isinstance(stmt, (Let, Masked)) and own is not None:
            memory = _looked_at(block, stmt)
            changed = any(own.at < place < own.last for name in memory for place in writes[name])
            plain = isinstance(stmt, Let) and stmt.op in ("constant", "index_expr")
            if not plain and (changed or own.inner):
                found.add(stmt.name)


def _looked_at(block: Block, stmt: Let | Masked) -> set[str]:
    """The memory that a value and its operands read."""
    made: dict[Name, Stmt] = {each.name: each for each in block.stmts if isinstance(each, (Let, Masked))}
    made |= {each.index: each for each in block.stmts if isinstance(each, Let) and each.index is not None}
    seen: set[Name] = set()
    memory: set[str] = set()
    todo: list[Stmt] = [stmt]
    while todo:
        each = todo.pop()
        for inner in [each, *(walk(each.body) if isinstance(each, Masked) else ())]:
            if isinstance(inner, Let) and inner.op in ("load", "read"):
                memory.add(inner.args[0])
        for name in _needed(each):
            if name in made and name not in seen:
                seen.add(name)
                todo.append(made[name])
    return memory


def _written(stmt: Stmt) -> set[str]:
    found: set[str] = set()
    for each in [stmt, *(s for inner in blocks_of(stmt) for s in walk(inner))]:
        if isinstance(each, Store):
            found.add(each.buffer)
        elif isinstance(each, SortRow):
            found |= {name for name in (each.values, each.positions) if name}
        elif isinstance(each, Update):
            found.add(each.acc)
        elif isinstance(each, Advance):
            found.add(each.carry)
        elif isinstance(each, Accumulate):
            found.add(each.name)
    return found


def _needed(stmt: Stmt) -> set[Name]:
    """The values and symbols that a statement uses, including nested statements."""
    found: set[Name] = set()
    for each in [stmt, *(s for inner in blocks_of(stmt) for s in walk(inner))]:
        if isinstance(each, Let):
            values = each.args[1:] if each.op in ("load", "read") else each.args
            found |= {arg for arg in values if isinstance(arg, str)}
            _symbols(each.args, found)
        elif isinstance(each, Masked):
            found |= {each.mask, each.result}
        elif isinstance(each, (Store, Update, Advance)):
            found.add(each.value)
        for name in ("start", "into", "begin", "end", "condition", "where", "axes", "position"):
            _symbols(getattr(each, name, None), found)
        if not isinstance(each, Let):
            _symbols(getattr(each, "index", None), found)
    return found


def _symbols(part: Any, found: set[Name]) -> None:
    if isinstance(part, (Expr, Boolean)):
        found |= part.free_symbols  # type: ignore[arg-type]
    elif isinstance(part, tuple):
        for each in part:
            _symbols(each, found)
    elif hasattr(part, "value") and hasattr(part, "extent"):
        _symbols((part.value, part.extent, part.begin), found)


__all__ = ["bound"]
