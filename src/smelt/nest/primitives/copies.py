"""Copies of a stage's statements, with names and positions of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import Accumulate, Axis, Block, Carry, For, Kernel, Let, Masked, Stage, Stmt, Store
from smelt.nest.primitives.common import ZERO, in_loops
from smelt.nest.primitives.places import conjunction
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

    def loop(self, number: int, end: Expr, begin: Expr = ZERO) -> For:
        """A new loop without a body: ``ax0``, ``ax1`` …"""
        return For(self.symbol(f"ax{number}"), begin, end, Block(), label=f"ax{number}")

    def __call__(self) -> str:
        while f"v{self.number}" in self.used:
            self.number += 1
        self.used.add(f"v{self.number}")
        return f"v{self.number}"


Element = tuple[str, tuple[Expr, ...]]
"""A buffer, and an index in it."""


def copying(
    name: str,
    around: Sequence[For],
    axes: Sequence[Axis],
    source: Element,
    target: Element,
    dtype: torch.dtype,
    values: Values,
    where: Sequence[Boolean] = (),
) -> Stmt:
    """A stage in loops of its own that copies one element in each turn.

    for ax0: target[…] = source[…]
    """
    value = values()
    body = Block((Let(value, dtype, "load", source), Store(*target, value)))
    return in_loops(around, Stage(name, tuple(axes), body, where=conjunction(where)))


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
