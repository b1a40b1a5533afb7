"""Copies of a stage's statements, with names and positions of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sympy import Expr, Symbol

from smelt.nest.ir import Accumulate, Carry, Kernel, Let, Masked, Stmt, Store
from smelt.nest.stages import Fresh, names_of
from smelt.nest.tree import walk
from smelt.records import replace
from smelt.symbolic.affine import replaced


class Values:
    """Names for values that a kernel does not have yet, and symbols likewise."""

    def __init__(self, kernel: Kernel) -> None:
        kinds = (Let, Masked, Accumulate, Carry)
        self.used = {stmt.name for stmt in walk(kernel.body) if isinstance(stmt, kinds)}
        self.symbol = Fresh(names_of(kernel))
        self.number = len(self.used)

    def __call__(self) -> str:
        while f"v{self.number}" in self.used:
            self.number += 1
        self.used.add(f"v{self.number}")
        return f"v{self.number}"


def copied(
    stmts: Sequence[Stmt],
    names: dict[str, str],
    symbols: Mapping[Symbol, Expr],
    values: Values,
    buffers: Mapping[str, str] | None = None,
) -> list[Stmt]:
    """The statements once more: other symbols in their indices, other buffers, new names for what they bind.

    ``names`` gets the new names; those that are in it already are taken.
    """
    symbols, buffers = dict(symbols), buffers or {}
    made: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Masked):
            body = copied(stmt.body.stmts, names, symbols, values, buffers)
            name = names.setdefault(stmt.name, "") or values()
            names[stmt.name] = name
            mask, result = names.get(stmt.mask, stmt.mask), names.get(stmt.result, stmt.result)
            made.append(
                replace(stmt, name=name, mask=mask, body=replace(stmt.body, stmts=tuple(body)), result=result)
            )
        elif isinstance(stmt, Store):
            index = tuple(replaced(expr, symbols) for expr in stmt.index)
            buffer = buffers.get(stmt.buffer, stmt.buffer)
            made.append(replace(stmt, buffer=buffer, index=index, value=names.get(stmt.value, stmt.value)))
        elif isinstance(stmt, Let):
            args = tuple(_arg(stmt, arg, names, symbols, buffers) for arg in stmt.args)
            name = names.setdefault(stmt.name, "") or values()
            names[stmt.name] = name
            position = stmt.index
            if position is not None:
                symbols[position] = position = values.symbol(position.name)
            made.append(replace(stmt, name=name, args=args, index=position))
        else:
            raise TypeError(f"a {type(stmt).__name__} is not copied")
    return made


def _arg(
    stmt: Let,
    arg: Any,
    names: Mapping[str, str],
    symbols: Mapping[Symbol, Expr],
    buffers: Mapping[str, str],
) -> Any:
    if stmt.op == "load":
        if isinstance(arg, tuple):
            return tuple(replaced(expr, symbols) for expr in arg)
        return buffers.get(arg, arg)
    if isinstance(arg, Expr):
        return replaced(arg, symbols)
    return names.get(arg, arg) if isinstance(arg, str) and stmt.op != "constant" else arg
