"""Which indices sizes decide to be inside of their buffers, and whether sizes of a call do so.

An index that nothing bounds is inside or not by the sizes alone, where it happens under no condition and each
variable stands in it once: then its ends over all turns are what it reaches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy
from sympy import Eq, Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Max, Min

from smelt.errors import SmeltError
from smelt.nest.ir import Alloc, Guard, Kernel, Let
from smelt.nest.regions import Access, Facts, Interval, found_accesses, relaxed, slack
from smelt.nest.tree import rewritten, walk
from smelt.records import dataclass
from smelt.symbolic.affine import expand, symbols_in
from smelt.symbolic.expr import evaluate_on


@dataclass(frozen=True, slots=True)
class Bound:
    """``index[dim]`` of a buffer goes from ``low`` to ``high``, and ``size`` is the first that is outside;
    none of it happens where one of ``turns`` is below 1. All are expressions of sizes.
    """

    buffer: str
    index: tuple[Expr, ...]
    dim: int
    low: Expr
    high: Expr
    size: Expr
    turns: tuple[Expr, ...]

    def why_outside(self, sizes: Mapping[Symbol, Any]) -> str | None:
        """Why the index is outside at sizes; None where it is inside, or nothing happens."""
        if any(evaluate_on(each, sizes) < 1 for each in self.turns):
            return None
        low, high, size = (evaluate_on(each, sizes) for each in (self.low, self.high, self.size))
        if high >= size:
            return f"index reaches {high}, {self.buffer} has {size}"
        return f"index begins at {low}, {self.buffer} at 0" if low < 0 else None


def open_bounds(kernel: Kernel) -> tuple[Bound, ...]:
    """The indices of a kernel that are not known to be inside of their buffers, and that sizes decide."""
    shapes = {param.name: param.shape for param in kernel.params}
    shapes |= {stmt.buffer: stmt.shape for stmt in walk(kernel.body) if isinstance(stmt, Alloc)}
    found: dict[tuple[str, tuple[Expr, ...], int], Bound] = {}
    always = rewritten(kernel.body, lambda stmt: () if isinstance(stmt, Guard) else None)
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
    """The bound of one index; None where it is inside, or more than sizes decides that."""
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
    turns = [high - low + 1 for _, (low, high) in (*access.loops, *access.limits)]
    turns = [each for each in dict.fromkeys(turns) if symbols_in(each) <= known and not each.is_positive]
    return Bound(access.buffer, access.own, dim, Max(*lows), Min(*highs), size, tuple(turns))


def ends_of(index: Expr, ranges: Mapping[Symbol, Interval], known: Iterable[Symbol]) -> Interval | None:
    """The least and the largest value of an index, both of which it has; None where they are not plain, or
    are no expressions of what is ``known``.

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
            element = f"{bound.buffer}[{', '.join(map(str, bound.index))}]"
            given = ", ".join(f"{size} = {sizes[size]}" for size in kernel.sizes)
            what = f"{kernel.name}: {element}: {why}{where}"
            remedy = "other sizes; T.if_then_else(condition, value, other) where only some indices are inside"
            raise SmeltError("SM1048", what, why=f"at {given}" if given else None, remedy=remedy)


__all__ = ["Bound", "check_bounds", "ends_of", "open_bounds"]
