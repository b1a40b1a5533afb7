"""Expressions that are nonnegative for all values of their symbols, mostly found without SymPy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from smelt.symbolic.affine import as_integer, difference, symbols_in

MUCH = 2**40


@lru_cache(maxsize=16384)
def never_negative(expr: Expr) -> bool:
    """Whether an expression is nonnegative under the assumptions on its symbols. SymPy takes milliseconds for
    that.

    >>> i, j = (Symbol(name, integer=True, nonnegative=True) for name in "ij")
    >>> never_negative(2 * i + FloorDiv(j, 2)), never_negative(2 * i - 1), never_negative(i - j)
    (True, False, False)
    """
    known = plainly_nonnegative(expr)
    return bool(expr.is_nonnegative) if known is None else known


def plainly_nonnegative(expr: Expr) -> bool | None:
    """Whether an expression is nonnegative; None if SymPy has to decide."""
    if expr.is_Integer:
        return int(expr) >= 0
    if _grows(expr):
        return True
    symbols = symbols_in(expr)
    if not all(symbol.is_nonnegative for symbol in symbols):
        return None
    least = {symbol: int(bool(symbol.is_positive)) for symbol in symbols}
    much = dict.fromkeys(symbols, MUCH)
    points = (
        least,
        much,
        *({**at, symbol: end} for symbol in symbols for at, end in ((least, MUCH), (much, least[symbol]))),
    )
    values = (_value(expr, at) for at in points)
    return False if any(value is not None and value < 0 for value in values) else None


def _value(expr: Expr, at: Mapping[Symbol, int]) -> int | None:
    """The value of an expression at the given values of its symbols; None for unsupported expressions."""
    if expr.is_Integer:
        return int(expr)
    if isinstance(expr, Symbol):
        return at[expr]
    args = [_value(arg, at) for arg in expr.args]
    values = [arg for arg in args if arg is not None]
    if len(values) < len(args):
        return None
    if expr.is_Add or expr.is_Mul:
        return sum(values) if expr.is_Add else math.prod(values)
    if expr.is_Pow and values[1] >= 0:
        return int(values[0] ** values[1])
    if isinstance(expr, (Max, Min)):
        return max(values) if isinstance(expr, Max) else min(values)
    if isinstance(expr, (FloorDiv, Mod)) and values[1] > 0:
        return values[0] // values[1] if isinstance(expr, FloorDiv) else values[0] % values[1]
    return None


def _grows(expr: Expr) -> bool:
    """Whether an expression consists of sums, products, powers, quotients, remainders and extremes of
    nonnegative parts: SymPy need not be asked.
    """
    if expr.is_Add or expr.is_Mul or expr.is_Pow or isinstance(expr, (FloorDiv, Mod, Max, Min)):
        return all(map(_grows, expr.args))
    return bool(expr.is_Atom and expr.is_nonnegative)


@lru_cache(maxsize=4096)
def least(left: Expr, right: Expr | int) -> Expr:
    """``Min(left, right)``: PyTorch's own does many comparisons, which signs often decide.

    >>> i = Symbol("i", integer=True, nonnegative=True)
    >>> least(16 * i + 16, 40), least(16 * i, 16 * i + 16)
    (Min(40, 16*i + 16), 16*i)
    """
    right = as_integer(right)
    for one, other in ((left, right), (right, left)):
        if never_negative(difference(other, one)):
            return one
    return Min(left, right, evaluate=False)
