"""Proves that two accesses touch different elements in different iterations of a loop, by the digits of its
number.

Two iterations of a loop touch different elements if each digit of the loop's number (a fused loop has
several) can be read from some dimension of the index, whatever the loops inside do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Mod

from smelt.nest.ir import For
from smelt.nest.regions import Access
from smelt.nest.sums import (
    WAYS,
    Number,
    Range,
    Side,
    Sum,
    added,
    equal,
    larger,
    multiplied,
    never_less,
    number,
    piece,
    side_of,
)
from smelt.records import dataclass, field
from smelt.symbolic import loop_var
from smelt.symbolic.affine import divided, expand, linear, symbols_in
from smelt.symbolic.index import has_division

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


@dataclass(slots=True)
class Known:
    """The loops around a loop, and results for the accesses in it, kept between calls of `disjoint`."""

    around: Sequence[For] = ()
    sides: dict[tuple[int, tuple[Expr, ...], int], Side] = field(default_factory=dict)


def disjoint(one: Access, other: Access, loop: For, known: Known | None = None) -> bool:
    """Whether two iterations of the loop never touch the same element by these accesses."""
    if len(one.index) != len(other.index):
        return False
    digits = _digits((*one.index, *other.index), loop)
    if digits is None:
        return False
    known = known or Known()
    weights = tuple(weight for weight, _ in digits.values())
    for way in WAYS:
        sides = []
        for access in (one, other):
            key = id(access), weights, way
            if key not in known.sides:
                known.sides[key] = side_of(access, loop, digits, way, known.around)
            sides.append(known.sides[key])
        if _differ(digits, sides[0], sides[1]):
            return True
        if not any(symbols_in(end) for access in (one, other) for _, span in access.loops for end in span):
            return False  # all ways are the same
    return False


def plainly_apart(
    places: Collection[tuple[Expr, ...]], loop: For, inner: Mapping[Symbol, int | None]
) -> bool:
    """Whether indices visibly have other values in each iteration of a loop: a dimension is its variable, or
    all steps are numbers. `disjoint` for the common case, in a fraction of its time. ``inner``: the variables
    that differ between iterations, with the number of values from 0 on where that is known.
    """
    trips = expand(loop.end - loop.begin)
    if len({len(index) for index in places}) != 1:
        return False
    if any(_is_own(exprs, loop.var, inner) for exprs in zip(*places)):
        return True
    return bool(trips.is_Integer) and any(
        _plainly_apart(exprs, loop.var, int(trips), inner) for exprs in zip(*places)
    )


def _is_own(exprs: Sequence[Expr], var: Symbol, inner: Mapping[Symbol, int | None]) -> bool:
    """Whether the index of a dimension is the variable, moved by what is the same in all iterations."""
    first = exprs[0]
    if var not in symbols_in(first) or any(expr != first for expr in exprs):
        return False
    step, rest = linear(first, var)
    return step == 1 and var not in symbols_in(rest) and inner.keys().isdisjoint(symbols_in(rest))


def _plainly_apart(
    exprs: Sequence[Expr], var: Symbol, trips: int, inner: Mapping[Symbol, int | None]
) -> bool:
    large, ends, same_in_all = 0, list[int](), None
    for expr in exprs:
        numbers = _numbers(expr)
        own = 0 if numbers is None else numbers[0].get(var, 0)
        if numbers is None or own < 1:
            return False
        steps, constant = numbers
        outer, small = {var: own}, 0
        for variable, step in steps.items():
            if variable == var:
                continue
            if variable not in inner:
                if var in symbols_in(variable) or not inner.keys().isdisjoint(symbols_in(variable)):
                    return False
                outer[variable] = step
            elif step >= own * trips:
                large = math.gcd(large, step)
            else:
                count = inner[variable]
                if count is None or step < 0:
                    return False
                small += step * (count - 1)
        if same_in_all not in (None, outer):
            return False
        same_in_all = outer
        ends += [constant, constant + small]
    reach = max(ends) - min(ends)
    return own > reach and (large == 0 or large > own * (trips - 1) + reach)


@lru_cache(maxsize=4096)
def _numbers(expr: Expr) -> tuple[dict[Expr, int], int] | None:
    """The numbers that symbols, and other terms as a whole, are multiplied by in a sum, and the number that
    is added; None for another expression.
    """
    found: dict[Expr, int] = {}
    constant = 0
    for term in expr.args if expr.is_Add else (expr,):
        if term.is_Integer:
            constant = int(term)
        elif term.is_Symbol:
            found[term] = 1
        elif term.is_Mul and len(term.args) == 2 and term.args[0].is_Integer:
            found[term.args[1]] = int(term.args[0])
        elif term.is_number:
            return None
        else:
            found[term] = 1
    return found, constant


# -- the digits of a loop ------------------------------------------------------------------------------------


def _digits(exprs: Sequence[Expr], loop: For) -> dict[Symbol, tuple[Expr, Expr]] | None:
    """The digits of a loop's number in expressions, lowest first, as (weight, number of values); None where
    they are not digits of one number. Without divisions the loop's variable is the only digit.

    f//8 and f%8 of f in 40: the digits (1, 8) and (8, 5)
    """
    trips = expand(loop.end - loop.begin)
    cuts: set[Expr] = set()
    for expr in exprs:
        if has_division(expr):
            for part in sympy.preorder_traversal(expr):
                if isinstance(part, (FloorDiv, Mod)) and part.has(loop.var):
                    cuts |= _cuts(part, loop.var)
    ordered: list[Expr] = [ONE]
    for cut in sorted(cuts - {ONE}, key=lambda cut: (len(cut.free_symbols), sympy.default_sort_key(cut))):
        if not _divides(ordered[-1], cut):
            return None
        ordered.append(cut)
    if len(ordered) == 1:
        return {loop.var: (ONE, trips)}
    if loop.begin != 0:
        return None
    found: dict[Symbol, tuple[Expr, Expr]] = {}
    for place, cut in enumerate(ordered):
        following = ordered[place + 1] if place + 1 < len(ordered) else None
        extent = divided(trips + cut - 1, cut) if following is None else sympy.cancel(following / cut)
        found[loop_var(f"_digit{place}")] = (cut, extent)
    return found


def _cuts(part: Expr, var: Symbol) -> set[Expr]:
    """The divisors and moduli at which quotients and remainders split a loop's number."""
    inner, divisor = part.args
    below: Expr = ONE
    while inner != var and isinstance(inner, (FloorDiv, Mod)):
        below = below * inner.args[1] if isinstance(inner, FloorDiv) else below
        inner = inner.args[0]
    step = linear(inner, var)[0]
    if inner != var and (step != 1 or not divisor.is_Integer):
        return set()
    return {expand(below * divisor)}


def _divides(one: Expr, other: Expr) -> bool:
    ratio = sympy.cancel(other / one)
    return bool(ratio.is_integer) and (not ratio.is_Integer or int(ratio) > 0)


# -- the proof -----------------------------------------------------------------------------------------------


def _differ(digits: Mapping[Symbol, tuple[Expr, Expr]], one: Side, other: Side) -> bool:
    """Whether the two indices are different in iterations that differ in a digit."""
    equal = [
        (this, that) for this, that in zip(one.index, other.index) if this is not None and that is not None
    ]
    equal += [(this, that) for this, value in one.fixed for that, known in other.fixed if value == known]

    def told(this: Expr, that: Expr) -> bool:
        return any(_determines(this, that, *pair, one.ranges, other.ranges) for pair in equal)

    missing = [digit for digit, (_, extent) in digits.items() if extent != 1 and not told(digit, digit)]
    if missing and one.whole:
        for base in one.whole:
            for that in other.whole:
                pieces = _all_pieces(base, that, one.ranges, other.ranges)
                if pieces and all(told(*each) for each in pieces):
                    equal.append((one.whole[base], other.whole[that]))
        missing = [digit for digit in missing if not told(digit, digit)]
    for this, bounds in one.pieces.items():
        if missing and any(bounds == that and told(this, each) for each, that in other.pieces.items()):
            missing = []
    return not missing or any(_never_meet(*pair, one.ranges, other.ranges) for pair in equal)


def _all_pieces(
    one: Expr, other: Expr, ranges: Mapping[Expr, Range], others: Mapping[Expr, Range]
) -> list[tuple[Expr, Expr]]:
    """The quotients and remainders that two numbers can be put together from; none where some are missing."""
    sides = []
    for base, known in ((one, ranges), (other, others)):
        pieces = {each: piece(each) for each in known}
        sides.append({low: (each, high) for each, (of, low, high) in pieces.items() if of == base})
    found: list[tuple[Expr, Expr]] = []
    at: Expr | None = ONE
    while at is not None:
        if at not in sides[0] or at not in sides[1] or len(found) > len(sides[0]):
            return []
        (this, beyond), (that, other_beyond) = sides[0][at], sides[1][at]
        if beyond != other_beyond:
            return []
        found.append((this, that))
        at = beyond
    return found


def _determines(
    this: Expr, that: Expr, one: Sum, other: Sum, ranges: Mapping[Expr, Range], others: Mapping[Expr, Range]
) -> bool:
    """Whether equal values of two sums imply equal values of a variable of each: ``this`` and ``that``.

    The difference of the two is ``own * (this - that) + small + large``. It is not zero for different values
    if the small terms stay below one step, and the large terms are together either zero or farther from zero
    than all the others reach.
    """
    own = one.steps.get(this, 0)
    if own == 0 or not equal(own, other.steps.get(that, 0)):
        return False
    sign = -1 if never_less(0, own) else 1
    own = own * sign
    low = high = number(expand((one.constant - other.constant) * sign))
    (least, most), (others_least, others_most) = ranges[this], others[that]
    away = larger(added(most, -others_least), added(others_most, -least))
    reach = multiplied(own, away)
    large: list[tuple[Number, Number]] = []
    for step, (first, last) in _differences(one, other, ranges, others, this, that).items():
        if never_less(step, added(reach, own)):
            large.append((step, larger(last, -first)))
        elif never_less(step, 0):
            first, last = (first, last) if sign == 1 else (-last, -first)
            low, high = added(low, multiplied(step, first)), added(high, multiplied(step, last))
        else:
            return False
    if not never_less(own, added(high, 1)) or not never_less(own, added(1, -low)):
        return False
    return not large or _apart(large, added(reach, larger(high, -low)))


def _never_meet(one: Sum, other: Sum, ranges: Mapping[Expr, Range], others: Mapping[Expr, Range]) -> bool:
    """Whether two sums have different values in all iterations: their difference is a multiple of large
    steps, and a rest that is none.
    """
    low = high = number(expand(one.constant - other.constant))
    found = _differences(one, other, ranges, others)
    if not isinstance(low, int) or not all(isinstance(step, int) for step in found):
        for step, (first, last) in found.items():
            if not never_less(step, 0):
                return False
            low, high = added(low, multiplied(step, first)), added(high, multiplied(step, last))
        return never_less(low, 1) or never_less(-1, high)
    steps = sorted(found, key=int)
    for place in range(len(steps) + 1):
        whole = math.gcd(*map(int, steps[place:]))
        if not isinstance(low, int) or not isinstance(high, int):
            return False
        if low > (high // whole * whole if whole else 0) or (whole == 0 and high < 0):
            return True
        if place < len(steps):
            first, last = found[steps[place]]
            low = added(low, multiplied(steps[place], first))
            high = added(high, multiplied(steps[place], last))
    return False


def _differences(
    one: Sum,
    other: Sum,
    ranges: Mapping[Expr, Range],
    others: Mapping[Expr, Range],
    this: Expr | None = None,
    that: Expr | None = None,
) -> dict[Number, Range]:
    """The difference of two sums without constants, and without the variables ``this`` and ``that``: the
    range of the multiple of each step.
    """
    found: dict[Number, Range] = {}
    for side, known, left_out, sign in ((one, ranges, this, 1), (other, others, that, -1)):
        for variable, step in side.steps.items():
            if variable == left_out:
                continue
            first, last = known[variable]
            if never_less(0, step):
                step, first, last = -step, -last, -first
            if sign == -1:
                first, last = -last, -first
            below, above = found.get(step, (0, 0))
            found[step] = added(below, first), added(above, last)
    found.pop(0, None)
    return found


def _apart(large: Sequence[tuple[Number, Number]], reach: Number) -> bool:
    """Whether a sum of large steps, each at most so many times, is either zero or farther from zero than
    ``reach``: 5*j and 6*k may differ by 1.
    """
    steps = [step for step, _ in large]
    if all(isinstance(step, int) for step in steps):
        if never_less(math.gcd(*steps), reach + 1):  # type: ignore[arg-type]
            return True
        covered = reach
        for step, times_at_most in sorted(large, key=lambda each: int(each[0])):
            if not never_less(step, covered + 1):
                return False
            covered = added(covered, multiplied(step, times_at_most))
        return True
    return any(
        all(_divides(sympy.sympify(whole), sympy.sympify(step)) for step in steps)
        and never_less(whole, reach + 1)
        for whole in steps
    )
