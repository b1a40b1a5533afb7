"""The width of a kernel's indices: 32 bits where sizes that are numbers prove that all of them fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import Min

from smelt.errors import Unsupported
from smelt.nest.ir import For, Kernel, Let, SortRow, Store, Update
from smelt.nest.tree import trip_count, walk
from smelt.symbolic import flatten

LIMIT = 2**31
FEWEST = 16
"""The fewest lanes of a block that is multiplied."""
Reaches = dict[Symbol, float]
_SMALLER = ("FloorDiv", "CleanDiv", "Mod", "PythonMod", "ModularIndexing")
"""Functions of numbers that are not larger than their largest argument."""


def index_bits(kernel: Kernel) -> int:
    """32 or 64. Everything counts: addresses, positions, the values of index expressions, and each sum and
    product inside of them; of lanes also those that are not active.

    >>> from smelt.nest.ir import Block, Param
    >>> i = sympy.Symbol("i", integer=True, nonnegative=True)
    >>> store = Block((Let("v0", None, "index_expr", (i * 2**20,)),))
    >>> loops = [For(i, sympy.Integer(0), sympy.Integer(n), store) for n in (2**10, 2**12)]
    >>> [index_bits(Kernel("k", (), (), Block((loop,)))) for loop in loops]
    [32, 64]
    """
    reaches: Reaches = {}
    return 32 if all(_reach(expr, reaches)[1] < LIMIT for expr in _indices(kernel, reaches)) else 64


def lanes_of(loop: For) -> tuple[int, bool]:
    """The number of lanes of a loop, a power of two, and whether all of them are always active.

    Raises:
        Unsupported: no number bounds its length.
    """
    found = [int(n) for end in ends_of(loop) if (n := sympy.expand(end - loop.begin)).is_Integer]
    if not found:
        raise Unsupported(f"lanes of a loop whose length is {trip_count(loop)}")
    width = 1 << max(0, min(found) - 1).bit_length()
    return width, len(ends_of(loop)) == 1 and width == found[0]


def ends_of(loop: For) -> Sequence[Expr]:
    """The numbers of which the least is the end of a loop."""
    return loop.end.args if isinstance(loop.end, (sympy.Min, Min)) else (loop.end,)


def _indices(kernel: Kernel, reaches: Reaches) -> Iterator[Expr]:
    """All index expressions, after what bounds their symbols has been noted."""
    strides = {param.name: param.strides for param in kernel.params}
    for stmt in walk(kernel.body):
        if isinstance(stmt, For):
            yield from (stmt.begin, stmt.end)
            bound = min(_reach(end, reaches)[0] for end in ends_of(stmt))
            in_lanes = str(stmt.thread).startswith("threadIdx")
            reaches[stmt.var] = bound + (max(lanes_of(stmt)[0], FEWEST) if in_lanes else 0)
        elif isinstance(stmt, Let):
            if stmt.index is not None:
                reaches[stmt.index] = _reach(stmt.args[1], reaches)[0]
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


def _reach(expr: Expr, reaches: Reaches) -> tuple[float, float]:
    """Bounds of the absolute value of an expression, and of that of every part of it; infinite if unknown."""
    if isinstance(expr, Symbol):
        bound = reaches.get(expr, math.inf)
        return bound, bound
    if expr.is_Rational:
        return abs(expr.p), abs(expr.p)
    parts = [_reach(arg, reaches) for arg in expr.args if isinstance(arg, Expr)]
    values = [value for value, _ in parts]
    value = _bound(expr, values)
    return value, max(value, *(largest for _, largest in parts))


def _bound(expr: Expr, values: Sequence[float]) -> float:
    if isinstance(expr, sympy.Add):
        return sum(values)
    if isinstance(expr, sympy.Mul):
        return math.prod(values)
    if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
        return values[0] ** int(expr.exp)
    kind, divisor = expr.func.__name__, expr.args[-1]
    if kind in ("FloorDiv", "CleanDiv") and divisor.is_Integer and divisor > 0:
        return values[0] / int(divisor) + 1
    if kind in ("Mod", "PythonMod", "ModularIndexing") and divisor.is_Integer and divisor > 0:
        return int(divisor)
    return max(values) if kind in ("Min", "Max", *_SMALLER) else math.inf
