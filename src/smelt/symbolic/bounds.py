"""Bounds of an index, from the extents of its loop variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Mod

from smelt.symbolic.affine import expand, times, total
from smelt.symbolic.expr import free_symbols
from smelt.symbolic.signs import plainly_nonnegative

Extents = Mapping[Symbol, Expr]
Known = tuple[tuple[Symbol, Expr], ...]
Bounds = tuple[Expr | None, Expr | None]

ZERO = sympy.Integer(0)
UNKNOWN: Bounds = (None, None)


def known_extents(exprs: Iterable[Expr], extents: Extents | None) -> Known:
    """The part of ``extents`` that the expressions depend on, as a cache key."""
    if not extents:
        return ()
    symbols = free_symbols(exprs)
    return tuple((symbol, extent) for symbol, extent in extents.items() if symbol in symbols)


def bounds(expr: Expr, extents: Extents) -> Bounds:
    """The least and the largest value of ``expr``, both inclusive; None where unknown.

    A symbol in ``extents`` is in ``[0, extent)``; another is a size and bounds itself if never negative.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> bounds(4 * i - j, {i: sympy.Integer(3), j: sympy.Integer(4)})
    (-3, 8)
    """
    if expr.is_Integer:
        return expr, expr
    if isinstance(expr, Symbol):
        extent = extents.get(expr)
        if extent is not None:
            return ZERO, extent - 1
        return (expr, expr) if expr.is_nonnegative else UNKNOWN
    return _bounds(expr, known_extents((expr,), extents))


@lru_cache(maxsize=16384)
def _bounds(expr: Expr, known: Known) -> Bounds:
    extents = dict(known)
    if isinstance(expr, sympy.Add):
        return _sum(expr, extents)
    if isinstance(expr, sympy.Mul):
        return _product(expr, extents)
    if isinstance(expr, (FloorDiv, Mod)):
        divisor = expr.args[1]
        if not divisor.is_positive:
            return UNKNOWN
        low, high = bounds(expr.args[0], extents)
        if isinstance(expr, Mod):
            inside = low is not None and high is not None and _never_negative(low)
            return ZERO, high if inside and _never_negative(divisor - 1 - high) else divisor - 1
        low = None if low is None else _floor(low, divisor)
        return low, None if high is None else _floor(high, divisor)
    if expr.func.__name__ in ("Max", "Min"):
        return _extreme(expr, extents)
    return (ZERO, None) if expr.is_nonnegative else UNKNOWN


def _extreme(expr: Expr, extents: Extents) -> Bounds:
    """Bounds of Max and Min: Max is at least each part's least, Min at most each part's largest; only numbers
    are compared.
    """
    parts = [bounds(arg, extents) for arg in expr.args]  # type: ignore[arg-type]
    lows = [low for low, _ in parts if low is not None and low.is_Integer]
    highs = [high for _, high in parts if high is not None and high.is_Integer]
    every_low, every_high = len(lows) == len(parts), len(highs) == len(parts)
    if expr.func.__name__ == "Max":
        return max(lows, default=None), max(highs) if every_high else None
    return min(lows) if every_low else None, min(highs, default=None)


def _floor(number: Expr, divisor: Expr) -> Expr | None:
    if number.is_Integer and divisor.is_Integer:
        return sympy.Integer(int(number) // int(divisor))
    return FloorDiv(number, divisor) if _never_negative(number) else None


def _sum(expr: sympy.Add, extents: Extents) -> Bounds:
    lows: list[Expr | None] = []
    highs: list[Expr | None] = []
    for term in expr.args:
        low, high = bounds(term, extents)
        lows.append(low)
        highs.append(high)
    return (
        None if None in lows else total(lows),  # type: ignore[arg-type]
        None if None in highs else total(highs),  # type: ignore[arg-type]
    )


def _product(expr: sympy.Mul, extents: Extents) -> Bounds:
    coefficient, rest = expr.as_coeff_Mul()
    if not coefficient.is_Integer:
        return UNKNOWN
    low: Expr | None = sympy.Integer(1)
    high: Expr | None = sympy.Integer(1)
    for factor in sympy.Mul.make_args(rest):
        below, above = bounds(factor, extents)
        if below is None or not _never_negative(below):
            return UNKNOWN
        low = times(below, low)
        high = None if high is None or above is None else high * above
    if coefficient < 0:
        return None if high is None else coefficient * high, coefficient * low
    return coefficient * low, None if high is None else coefficient * high


def _never_negative(expr: Expr) -> bool:
    known = plainly_nonnegative(expr)
    if known is not None:
        return known
    if expr.is_nonnegative or (expr := expand(expr)).is_nonnegative:
        return True
    least = sympy.Add(*map(_at_least, sympy.Add.make_args(expr)))
    return least != expr and _never_negative(least)


def _at_least(term: Expr) -> Expr:
    """``-6*(x//3)`` is at least ``-2*x``; any other term is itself."""
    coefficient, quotient = term.as_coeff_Mul()
    if not isinstance(quotient, FloorDiv) or not coefficient.is_negative:
        return term
    dividend, divisor = quotient.args
    if not divisor.is_Integer or coefficient % divisor != 0:
        return term
    return coefficient / divisor * dividend


def is_nonnegative(expr: Expr, extents: Extents) -> bool:
    """Whether an index is known never to be negative."""
    if expr.is_Integer:
        return int(expr) >= 0
    low = bounds(expr, extents)[0]
    return low is not None and _never_negative(low)


def less_than(expr: Expr, bound: Expr, extents: Extents) -> bool:
    """Whether ``0 <= expr < bound`` is known to hold."""
    if expr.is_Integer and bound.is_Integer:
        return 0 <= int(expr) < int(bound)
    low, high = bounds(expr, extents)
    if low is None or high is None or not _never_negative(low):
        return False
    return _never_negative(bound - high - 1)
