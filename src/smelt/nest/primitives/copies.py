"""Copies of a stage's statements with fresh names and index variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def value_names(kernel: Kernel) -> set[str]:
    """The names of a kernel's values, accumulators and carries."""
    kinds = (Let, Masked, Accumulate, Carry)
    return {stmt.name for stmt in walk(kernel.body) if isinstance(stmt, kinds)}


class Values:
    """Fresh names for values of a kernel, and fresh symbols."""

    def __init__(self, kernel: Kernel) -> None:
        self.used = value_names(kernel)
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
    """A stage in loops of its own that copies one element in each iteration.

    for ax0: target[…] = source[…]
    """
    value = values()
    body = Block((Let(value, dtype, "load", source), Store(*target, value)))
    return in_loops(around, Stage(name, tuple(axes), body, where=conjunction(where)))


def copied(
    stmts: Sequence[Stmt],
    names: dict[str, str],
    symbols: dict[Symbol, Expr],
    values: Values,
    element: Callable[[str, tuple[Expr, ...]], Element] | None = None,
) -> list[Stmt]:
    """A copy of the statements: substituted symbols in their indices, fresh names for their results, and
    other buffer elements where ``element`` gives them.

    ``names`` receives the new names; names that it already contains are used. ``symbols`` receives the
    symbols of new indirect positions.
    """

    def said(expr: Expr) -> Expr:
        return replaced(expr, symbols)

    def at(buffer: str, index: tuple[Expr, ...]) -> Element:
        index = tuple(map(said, index))
        return (buffer, index) if element is None else element(buffer, index)

    def bound(name: str) -> str:
        names[name] = names.get(name) or values()
        return names[name]

    made: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Masked):
            body = Block(tuple(copied(stmt.body.stmts, names, symbols, values, element)))
            mask, result = names.get(stmt.mask, stmt.mask), names.get(stmt.result, stmt.result)
            made.append(replace(stmt, name=bound(stmt.name), mask=mask, body=body, result=result))
        elif isinstance(stmt, Store):
            buffer, index = at(stmt.buffer, stmt.index)
            made.append(replace(stmt, buffer=buffer, index=index, value=names.get(stmt.value, stmt.value)))
        elif isinstance(stmt, Let):
            args: tuple[Any, ...] = stmt.args
            if stmt.op == "load":
                args = at(*args)
            elif stmt.op != "constant":
                args = tuple(said(arg) if isinstance(arg, Expr) else names.get(arg, arg) for arg in args)
            position = stmt.index
            if position is not None:
                symbols[position] = position = values.symbol(position.name)
            made.append(replace(stmt, name=bound(stmt.name), args=args, index=position))
        else:
            raise TypeError(f"a {type(stmt).__name__} is not copied")
    return made
