"""The width of a kernel's indices: 32 bits where sizes that are numbers prove that all of them fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import sympy
from sympy import Expr, Symbol

from smelt.nest.ir import For, Kernel, Let, SortRow, Store, Update
from smelt.nest.tree import walk
from smelt.symbolic import flatten

LIMIT = 2**31
_LARGEST = {"FloorDiv", "CleanDiv", "Mod", "PythonMod", "ModularIndexing", "Min", "Max"}
"""Functions of numbers that are not larger than their largest argument."""


def index_bits(kernel: Kernel) -> int:
    """32 or 64. Everything counts: addresses, positions, the values of index expressions, and each sum and
    product inside of them; of lanes also those that are not active.

    >>> from smelt.nest.ir import Block, Param
    >>> i = sympy.Symbol("i", integer=True, nonnegative=True)
    >>> store = Block((Let("v0", None, "index_expr", (i * 2**20,)),))
    >>> loops = [For(i, sympy.Integer(0), sympy.Integer(n), store) for n in (2**10, 2**11)]
    >>> [index_bits(Kernel("k", (), (), Block((loop,)))) for loop in loops]
    [32, 64]
    """
    reaches: dict[Symbol, float] = {}
    return 32 if all(_reach(expr, reaches) < LIMIT for expr in _indices(kernel, reaches)) else 64


def _indices(kernel: Kernel, reaches: dict[Symbol, float]) -> Iterator[Expr]:
    """All index expressions, after what bounds their symbols has been noted."""
    strides = {param.name: param.strides for param in kernel.params}
    for stmt in walk(kernel.body):
        if isinstance(stmt, For):
            yield from (stmt.begin, stmt.end)
            longest = _reach(stmt.end, reaches) + _reach(stmt.begin, reaches)
            reaches[stmt.var] = 2 * longest if stmt.thread else longest
        elif isinstance(stmt, Let):
            if stmt.index is not None:
                reaches[stmt.index] = _reach(stmt.args[1], reaches)
            if stmt.op == "load" and stmt.args[0] in strides:
                yield flatten(stmt.args[1], strides[stmt.args[0]])
            elif stmt.op in ("index_expr", "load"):
                yield from _exprs(stmt.args)
        elif isinstance(stmt, Store):
            yield flatten(stmt.index, strides.get(stmt.buffer, (1,) * len(stmt.index)))
        elif isinstance(stmt, SortRow):
            for buffer, place in (
                (stmt.source, stmt.start),
                (stmt.values, stmt.into),
                (stmt.positions, stmt.into),
            ):
                if buffer is not None:
                    yield flatten(place, strides[buffer]) + 2 * stmt.length
        elif isinstance(stmt, Update) and stmt.position is not None:
            yield stmt.position


def _exprs(args: Iterable[Any]) -> Iterator[Expr]:
    for arg in args:
        if isinstance(arg, tuple):
            yield from _exprs(arg)
        elif isinstance(arg, Expr):
            yield arg


def _reach(expr: Expr, reaches: dict[Symbol, float]) -> float:
    """A bound of the absolute value of an expression and of all parts of it; infinity where there is none."""
    if isinstance(expr, Symbol):
        return reaches.get(expr, math.inf)
    if expr.is_Rational:
        return abs(expr.p)
    parts = [_reach(arg, reaches) for arg in expr.args if isinstance(arg, Expr)]
    if isinstance(expr, sympy.Add):
        return sum(parts)
    if isinstance(expr, sympy.Mul):
        return math.prod(parts)
    if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
        return parts[0] ** int(expr.exp)
    return max(parts) if expr.func.__name__ in _LARGEST else math.inf
