"""Proves that two accesses touch different elements in different iterations of a loop, by the digits of its
number.

Two iterations of a loop touch different elements if each digit of the loop's number (a fused loop has
several) can be read from some dimension of the index, whatever the loops inside do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Mod

from smelt.nest.ir import For
from smelt.nest.regions import Access, Facts, Interval, interval
from smelt.symbolic import loop_var, same, simplify
from smelt.symbolic.affine import difference, divided, expand, linear, replaced, symbols_in, times, total
from smelt.symbolic.index import has_division

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)

Spans = dict[Symbol, Interval]


def disjoint(one: Access, other: Access, loop: For) -> bool:
    """Whether two iterations of the loop never touch the same element by these accesses."""
    if one.whole or other.whole or len(one.index) != len(other.index):
        return False
    digits = _digits([*one.index, *other.index], loop)
    if digits is None:
        return False
    number = total(times(var, weight) for var, (weight, _) in digits.items())
    extents = {var: extent for var, (_, extent) in digits.items()}
    sides = []
    for access in (one, other):
        spans = _spans(access, loop, number, extents)
        if spans is None:
            return False
        known = {**extents, **{var: high + 1 for var, (low, high) in spans.items() if low == 0}}
        index = [simplify(expand(replaced(expr, {loop.var: number})), known) for expr in access.index]
        sides.append((index, spans))
    (left, spans), (right, others) = sides
    wholes, those = _wholes(left), _wholes(right)
    pairs = [*zip(left, right), *((wholes[dims], those[dims]) for dims in wholes if dims in those)]
    return all(
        any(_determines_digit(digit, extents, each, spans, that, others) for each, that in pairs)
        for digit in extents
        if extents[digit] != 1
    )


def _wholes(index: Sequence[Expr]) -> dict[tuple[int, ...], Expr]:
    """The numbers whose quotient and remainder are in an index, by dimensions: if both are equal in two
    accesses, so are the numbers.

    p//12, p//4 % 3, p % 4: p//4 of the first two, p of all three
    """
    known: dict[tuple[int, ...], Expr] = {
        (dim,): expr for dim, expr in enumerate(index) if has_division(expr)
    }
    found: dict[tuple[int, ...], Expr] = {}
    while True:
        new: dict[tuple[int, ...], Expr] = {
            (*high, *low): remainder.args[0]
            for low, remainder in known.items()
            if isinstance(remainder, Mod)
            for high, quotient in known.items()
            if quotient == divided(*remainder.args)
        }
        if not new.keys() - found.keys():
            return found
        found |= new
        known |= new


def _spans(access: Access, loop: For, number: Expr, extents: Mapping[Symbol, Expr]) -> Spans | None:
    """The range of each loop around an access, over all iterations of the outer loops."""
    spans: Spans = {digit: (ZERO, extent - 1) for digit, extent in extents.items()}
    for var, (low, high) in access.loops:
        low, high = (replaced(bound, {loop.var: number}) for bound in (low, high))
        least, most = interval(low, spans, Facts()), interval(high, spans, Facts())
        if least is None or most is None:
            return None
        spans[var] = (least[0], most[1])
    return spans


def _digits(exprs: Sequence[Expr], loop: For) -> dict[Symbol, tuple[Expr, Expr]] | None:
    """The digits of a loop's number in expressions, lowest first, as (weight, number of values); None where
    they are not digits of one number.

    f//8 and f%8 of f in 40: the digits (1, 8) and (8, 5)
    """
    cuts: set[Expr] = set()
    for expr in filter(has_division, exprs):
        for part in sympy.preorder_traversal(expr):
            if isinstance(part, (FloorDiv, Mod)) and part.has(loop.var):
                cuts |= _cuts(part, loop.var)
    ordered: list[Expr] = [ONE]
    for cut in sorted(cuts - {ONE}, key=lambda cut: (len(cut.free_symbols), sympy.default_sort_key(cut))):
        if not _divides(ordered[-1], cut):
            return None
        ordered.append(cut)
    trips = expand(loop.end - loop.begin)
    if loop.begin != 0 and len(ordered) > 1:
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


def _determines_digit(
    digit: Symbol, digits: Mapping[Symbol, Expr], one: Expr, spans: Spans, other: Expr, others: Spans
) -> bool:
    """Whether equal values of two index expressions of one dimension imply that the digit is equal."""
    found, that = coefficients_of(one, spans), coefficients_of(other, others)
    if found is None or that is None:
        return False
    own = found[0].pop(digit, ZERO)
    if own == 0 or not same(own, that[0].pop(digit, ZERO)):
        return False
    low = high = expand(found[1] - that[1])
    steps: list[Expr] = []
    for (coefficients, _), ranges, sign in ((found, spans, 1), (that, others, -1)):
        for variable, step in coefficients.items():
            if at_least(step, own * digits[digit]):
                steps.append(step)
                continue
            step = step * sign
            first, last = (step * each for each in ranges[variable])
            if at_least(ZERO, step):
                first, last = last, first
            elif not at_least(step, ZERO):
                return False
            low, high = expand(low + first), expand(high + last)
    if not at_least(own, high + 1) or not at_least(own, 1 - low):
        return False
    if not steps:
        return True
    whole = sympy.gcd_list(steps) if all(step.is_Integer for step in steps) else steps[0]
    if not all(_divides(whole, step) for step in steps):
        return False
    reach = own * (digits[digit] - 1) + 1
    return at_least(whole, expand(reach + high)) and at_least(whole, expand(reach - low))


def coefficients_of(expr: Expr, variables: Iterable[Symbol]) -> tuple[dict[Symbol, Expr], Expr] | None:
    """Coefficients of an affine expression, and the constant term; None where it is not affine in the
    variables.
    """
    rest = expanded = expand(expr)
    result: dict[Symbol, Expr] = {}
    symbols = symbols_in(expanded)
    for variable in variables:
        if variable in symbols:
            result[variable] = linear(expanded, variable)[0]
            rest = linear(rest, variable)[1]
    names = set(result)
    if not all(names.isdisjoint(symbols_in(each)) for each in (rest, *result.values())):
        return None
    return result, rest


def at_least(left: Expr, right: Expr) -> bool:
    gap = expand(difference(left, right))
    if gap.is_Integer:
        return int(gap) >= 0
    if gap.is_number:
        return bool(gap >= 0)
    return bool(gap.is_nonnegative)
