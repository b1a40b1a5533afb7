"""Masks that are boxes: comparisons of index expressions as an interval for each loop variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sympy
from sympy import Expr, Symbol

from smelt.symbolic.affine import expand
from smelt.symbolic.index import floor_div

ZERO = sympy.Integer(0)

Test = tuple[str, Expr, Expr]
"""(``ge``, ``gt``, ``lt`` or ``le``, left, right)."""

Interval = tuple[Expr, Expr]
"""A half-open interval: from the first number up to, but without, the second."""


def box(tests: Iterable[Test], extents: Mapping[Symbol, Expr]) -> dict[Symbol, Interval] | None:
    """The interval of each loop variable in which all tests are true; None if these form no box, or the order
    of its bounds is unknown.

    >>> i = sympy.Symbol("i", integer=True, nonnegative=True)
    >>> box([("ge", i - 2, ZERO), ("lt", i, sympy.Integer(9))], {i: sympy.Integer(7)})
    {i: (2, 7)}
    """
    found: dict[Symbol, Interval] = {}
    for name, left, right in tests:
        gap = {
            "ge": left - right,
            "gt": left - right - 1,
            "lt": right - left - 1,
            "le": right - left,
        }[name]
        bound = _bound(expand(gap), extents)
        if bound is None:
            return None
        variable, low, high = bound
        before = found.get(variable, (ZERO, extents[variable]))
        start = before[0] if low is None else _larger(before[0], low)
        end = before[1] if high is None else _smaller(before[1], high)
        if start is None or end is None:
            return None
        found[variable] = (start, end)
    for start, end in found.values():
        if not expand(end - start).is_nonnegative:
            return None
    return found


def _bound(gap: Expr, extents: Mapping[Symbol, Expr]) -> tuple[Symbol, Expr | None, Expr | None] | None:
    """``gap >= 0`` as a lower or an exclusive upper bound of one loop variable."""
    used = [symbol for symbol in extents if gap.has(symbol)]
    if len(used) != 1:
        return None
    (variable,) = used
    factor = gap.coeff(variable, 1)
    rest = expand(gap - factor * variable)
    if not factor.is_Integer or factor == 0 or rest.has(variable):
        return None
    if factor > 0:
        return variable, -floor_div(rest, factor), None
    return variable, None, floor_div(rest, -factor) + 1


def _larger(one: Expr, other: Expr) -> Expr | None:
    gap = expand(one - other)
    if gap.is_nonnegative:
        return one
    return other if gap.is_nonpositive else None


def _smaller(one: Expr, other: Expr) -> Expr | None:
    gap = expand(one - other)
    if gap.is_nonpositive:
        return one
    return other if gap.is_nonnegative else None
