"""Indices that are in bounds for some sizes only, and their check at a call.

The check by sizes alone is exact for an access without conditions whose index contains each variable once:
then it reaches its least and largest value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy
from sympy import Eq, Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Max, Min

from smelt.errors import SmeltError
from smelt.nest.ir import Alloc, Kernel, Let
from smelt.nest.regions import Access, Facts, Interval, found_accesses, relaxed, slack
from smelt.nest.tree import walk, without_guards
from smelt.records import dataclass
from smelt.symbolic.affine import expand, symbols_in
from smelt.symbolic.expr import evaluate_on


@dataclass(frozen=True, slots=True)
class Bound:
    """The range of ``index[dim]`` of a buffer, ``low`` to ``high``; ``size`` is the first index out of
    bounds. The access does not happen where one of ``trips`` is below 1. All are expressions of sizes.
    """

    buffer: str
    index: tuple[Expr, ...]
    dim: int
    low: Expr
    high: Expr
    size: Expr
    trips: tuple[Expr, ...]

    @property
    def element(self) -> str:
        return f"{self.buffer}[{', '.join(map(str, self.index))}]"

    def why_outside(self, sizes: Mapping[Symbol, Any]) -> str | None:
        """The reason why the index is out of bounds at the given sizes; None where it is in bounds, or not
        used.
        """
        if any(evaluate_on(each, sizes) < 1 for each in self.trips):
            return None
        low, high, size = (evaluate_on(each, sizes) for each in (self.low, self.high, self.size))
        if high >= size:
            return f"index reaches {high}, {self.buffer} has {size}"
        return f"index begins at {low}, {self.buffer} at 0" if low < 0 else None


def open_bounds(kernel: Kernel) -> tuple[Bound, ...]:
    """The indices of a kernel that are in bounds for some sizes only."""
    shapes = {param.name: param.shape for param in kernel.params}
    shapes |= {stmt.buffer: stmt.shape for stmt in walk(kernel.body) if isinstance(stmt, Alloc)}
    found: dict[tuple[str, tuple[Expr, ...], int], Bound] = {}
    always = without_guards(kernel.body)
    data = {stmt.index for stmt in walk(always) if isinstance(stmt, Let)}
    for access in found_accesses(always):
        if access.whole or access.masked:
            continue
        for dim, size in enumerate(shapes[access.buffer]):
            bound = _bound(access, dim, size, set(kernel.sizes))
            if bound is not None and data.isdisjoint(symbols_in(access.own[dim])):
                found.setdefault((access.buffer, access.own, dim), bound)
    return tuple(found.values())


def _bound(access: Access, dim: int, size: Expr, known: set[Symbol]) -> Bound | None:
    """The bound of one index; None if it is always in bounds, or depends on more than sizes."""
    at, loops = access.index[dim], dict(access.loops)
    spans = (ends_of(at, loops, known), ends_of(access.own[dim], dict(access.limits), known))
    ends = [span for span in spans if span is not None]
    if not ends or not symbols_in(size) <= known:
        return None
    lows, highs = [low for low, _ in ends], [high for _, high in ends]
    for condition in access.guards:
        gap = slack(condition)
        if isinstance(condition, Eq) or symbols_in(condition).isdisjoint(symbols_in(at) & loops.keys()):
            continue
        if gap is not None and symbols_in(most := expand(at + gap)) <= known:
            highs.append(most)
        elif gap is not None and symbols_in(least := expand(at - gap)) <= known:
            lows.append(least)
        else:
            return None
    if any(map(Facts().nonnegative, lows)) and any(Facts().nonnegative(size - 1 - high) for high in highs):
        return None
    trips = [high - low + 1 for _, (low, high) in (*access.loops, *access.limits)]
    trips = [each for each in dict.fromkeys(trips) if symbols_in(each) <= known and not each.is_positive]
    return Bound(access.buffer, access.own, dim, Max(*lows), Min(*highs), size, tuple(trips))


def ends_of(index: Expr, ranges: Mapping[Symbol, Interval], known: Iterable[Symbol]) -> Interval | None:
    """The least and the largest value of an index, both attained; None where they are unknown, or no
    expressions of ``known``.

    >>> i, n, m = sympy.symbols("i n m", integer=True, nonnegative=True)
    >>> ends_of(2 * i + m, {i: (sympy.Integer(0), n - 1)}, (n, m))
    (m, m + 2*n - 2)
    """
    used = {var: ranges[var] for var in symbols_in(index) if var in ranges}
    parts = list(sympy.preorder_traversal(index))
    if any(parts.count(var) > 1 for var in used):
        return None
    if any(each.args and not isinstance(each, (sympy.Add, sympy.Mul, FloorDiv, Max, Min)) for each in parts):
        return None
    found = relaxed(index, tuple(used.items()), Facts())
    return found if found is not None and symbols_in(found[0] + found[1]) <= set(known) else None


def check_bounds(kernel: Kernel, bounds: Iterable[Bound], sizes: Mapping[Symbol, Any]) -> None:
    """
    Raises:
        SmeltError: SM1048, an index is outside of its buffer at these sizes.
    """
    for bound in bounds:
        why = bound.why_outside(sizes)
        if why is not None:
            where = f" (dimension {bound.dim})" if len(bound.index) > 1 else ""
            given = ", ".join(f"{size} = {sizes[size]}" for size in kernel.sizes)
            what = f"{kernel.name}: {bound.element}: {why}{where}"
            remedy = "other sizes; T.if_then_else(condition, value, other) where only some indices are inside"
            raise SmeltError("SM1048", what, why=f"at {given}" if given else None, remedy=remedy)


__all__ = ["Bound", "check_bounds", "ends_of", "open_bounds"]
