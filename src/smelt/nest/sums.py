"""The index of an access as sums: multiples of the variables that differ between iterations of a loop, with
the range of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import TypeAlias

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from smelt.nest.ir import For
from smelt.nest.regions import Access, Facts, Interval, interval
from smelt.records import dataclass
from smelt.symbolic import same, simplify
from smelt.symbolic.affine import (
    MINUS_ONE,
    difference,
    divided,
    expand,
    linear,
    replaced,
    symbols_in,
    times,
    total,
)

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)

Number: TypeAlias = int | Expr
"""A number, or an expression of sizes and of variables around the loop."""

Range: TypeAlias = tuple[Number, Number]
"""The least and the largest value, both inclusive."""


@dataclass(frozen=True, slots=True)
class Sum:
    """An index of one dimension: multiples of variables, and a constant.

    A variable is a digit of the loop, the variable of a loop inside it, or any other term that is only known
    by its range: ``min(i, 127)``.
    """

    steps: Mapping[Expr, Number]
    constant: Expr


@dataclass(frozen=True, slots=True)
class Side:
    """An access in an iteration: its index by dimension (None: it may be anything), and the range of each
    variable. ``whole``: the sums that quotients and remainders in it are of; ``fixed``: further sums, whose
    values are known numbers wherever the access happens; ``pieces``: variables that have other values in each
    iteration, and the bounds of these.
    """

    index: Sequence[Sum | None]
    ranges: Mapping[Expr, Range]
    whole: Mapping[Expr, Sum]
    fixed: Sequence[tuple[Sum, int]]
    pieces: Mapping[Expr, Interval]


Spans: TypeAlias = dict[Symbol, Interval | None]
"""The range of each variable that differs between iterations; None where nothing is known of it."""

WAYS = range(4)
"""What the variable of a loop that does not begin at a number stands for: the distance from the loop's begin,
if that depends on the loop in question or on something outside of it (0), or on the former (1); or always
itself (2), and loops around are variables too. (3) is as (0), with a block's offset in the variable of the
loop inside it: `_joint`.
"""


def side_of(
    access: Access, loop: For, digits: Mapping[Symbol, tuple[Expr, Expr]], way: int, around: Sequence[For]
) -> Side:
    """An access as sums of digits and of the variables of inner loops."""
    values: dict[Symbol, Expr] = {}
    spans: Spans = {loop.var: (loop.begin, loop.end - 1)}
    if loop.var not in digits:
        values[loop.var] = total(times(digit, weight) for digit, (weight, _) in digits.items())
        spans = {digit: (ZERO, extent - 1) for digit, (_, extent) in digits.items()}
    if way == 2:
        spans |= _around(around)
    for var, (low, high) in access.loops:
        low, high = replaced(low, values), replaced(high, values)
        symbols = symbols_in(low)
        if _counts_from_begin(symbols, spans, digits, way):
            values[var] = total([low, var])
            low, high = ZERO, expand(high - low)
        joint = _joint(low, high, spans, digits) if way == 3 else None
        if joint is not None:
            values[var] = difference(total([values.get(var, var)]), joint[0])
            high = joint[1]
        spans[var] = _range(low, high, spans)
    known = {var: span[1] + 1 for var, span in spans.items() if span is not None and span[0] == 0}
    ranges: dict[Expr, Range] = {}
    whole: dict[Expr, Sum] = {}

    def placed(expr: Expr) -> Sum | None:
        if expr.has(Min):
            expr = _without_minima(expr, access)
        return _sum(simplify(expand(replaced(expr, values)), known), spans, ranges)

    index = [placed(expr) for expr in access.index]
    for variable in list(ranges):
        base = piece(variable)[0]
        if base != variable and base not in whole:
            found = _sum(base, spans, ranges)
            if found is not None:
                whole[base] = found
    reach = _reach(access, loop, around)
    if loop.var in digits and loop.var in reach:
        ranges[loop.var] = reach[loop.var]
    fixed = [(placed(var), first) for var, (first, last) in reach.items() if first == last]
    known_sums = [(each, value) for each, value in fixed if each is not None]
    return Side(index, ranges, whole, known_sums, dict(_pieces(access, loop)) if way == 2 else {})


def _without_minima(expr: Expr, access: Access) -> Expr:
    """The expression without the minima that are always one of their arguments, by the bounds of loops.

    for i in min(6, 9 - 6*b): min(8, 6*b + i)   →   6*b + i
    """
    found: dict[Expr, Expr] = {}
    for each in expr.atoms(Min):
        for arg in each.args:
            if all(_never_above(difference(arg, other), access) for other in each.args if other is not arg):
                found[each] = arg
    return expand(expr.xreplace(found)) if found else expr


def _never_above(expr: Expr, access: Access) -> bool:
    """Whether an expression is never above 0, by the bounds of the loops around an access."""
    for var, (low, high) in reversed(access.loops):
        step, rest = linear(expr, var)
        if step == 0:
            continue
        if not step.is_Integer or var in symbols_in(rest):
            return False
        bounds = _upper_bounds(high) if step > 0 else [low]
        exprs = [total([rest, times(bound, step)]) for bound in bounds]
        expr = next((each for each in exprs if each.is_number), exprs[-1])
    return at_least(times(expr, MINUS_ONE), ZERO)


def _around(around: Sequence[For]) -> Spans:
    """The ranges of the variables of loops around a loop, where they are known."""
    found: Spans = {}
    for each in around:
        span = _range(each.begin, each.end - 1, found)
        if span is not None:
            found[each.var] = span
    return found


def _counts_from_begin(symbols: Set[Symbol], spans: Spans, digits: Collection[Symbol], way: int) -> bool:
    """Whether a loop's variable stands for the distance from a begin with these symbols."""
    return (way != 2 and not symbols.isdisjoint(digits)) or (way in (0, 3) and not symbols <= spans.keys())


def _joint(low: Expr, high: Expr, spans: Spans, digits: Collection[Symbol]) -> tuple[Expr, Expr] | None:
    """The offset that a variable from 0 on never exceeds a bound together with, and that bound.

    for b in …: for i in min(8, n - 8*b): …   →   i + 8*b is at most n - 1
    """
    if low != 0:
        return None
    for bound in _upper_bounds(high):
        moving = [term for term in sympy.Add.make_args(bound) if not symbols_in(term).isdisjoint(spans)]
        offset = times(total(moving), MINUS_ONE)
        symbols = symbols_in(offset)
        if moving and symbols.isdisjoint(digits) and symbols <= spans.keys() and at_least(offset, ZERO):
            return offset, total([bound, offset])
    return None


def _interval(expr: Expr, spans: Spans) -> Interval | None:
    """The range of an expression over all iterations."""
    if isinstance(expr, Min):
        return _interval_of_minimum(expr, spans)
    moving = {symbol: spans[symbol] for symbol in symbols_in(expr) if symbol in spans}
    ranges = {symbol: span for symbol, span in moving.items() if span is not None}
    return interval(expr, ranges, Facts()) if len(ranges) == len(moving) else None


def _interval_of_minimum(expr: Min, spans: Spans) -> Interval | None:
    """The range of a minimum: at most a number, or an argument that is the same in all iterations."""
    parts = [_interval(arg, spans) for arg in expr.args]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    lows, highs = [low for low, _ in known], [high for _, high in known]
    numbers = [high for high in highs if high.is_Integer]
    same_in_all = [arg for arg in expr.args if symbols_in(arg).isdisjoint(spans)]
    high = min(numbers, key=int) if numbers else (same_in_all or [Min(*highs)])[0]
    return ZERO if all(at_least(low, ZERO) for low in lows) else Min(*lows), high


def _range(low: Expr, high: Expr, spans: Spans) -> Interval | None:
    """The range of a variable between two bounds over all iterations of the loops around it."""
    least = _interval(low, spans)
    most = [_interval(each, spans) for each in _upper_bounds(high)]
    ends = [each[1] for each in most if each is not None]
    if least is None or not ends:
        return None
    return least[0], min((each for each in ends if each.is_Integer), key=int, default=ends[0])


def _upper_bounds(expr: Expr) -> list[Expr]:
    """Expressions that a sum does not exceed: with a minimum's arguments in place of the minimum."""
    for term in sympy.Add.make_args(expr):
        whole = term.args[0] if isinstance(term, FloorDiv) else term
        parts = [part for part in sympy.Add.make_args(whole) if isinstance(part, Min)]
        if parts and (term is not whole or term is parts[0]):
            rest = difference(expr, term)
            bounds = [total([difference(whole, parts[0]), arg]) for arg in parts[0].args]
            if term is not whole:
                bounds = [simplify(divided(bound, term.args[1]), {}) for bound in bounds]
            return [each for bound in bounds for each in _upper_bounds(total([rest, bound]))]
    return [expr]


def _sum(expr: Expr, spans: Spans, ranges: dict[Expr, Range]) -> Sum | None:
    """The expression as a sum; the ranges of its variables are added to ``ranges``."""
    steps: dict[Expr, Number] = {}
    constant: list[Expr] = []
    for term in sympy.Add.make_args(expr):
        factors = sympy.Mul.make_args(term)
        moving = [each for each in factors if not symbols_in(each).isdisjoint(spans)]
        if not moving:
            constant.append(term)
            continue
        variable = moving[0] if len(moving) == 1 else sympy.Mul(*moving)
        step = ONE if len(moving) == len(factors) else sympy.Mul(*(f for f in factors if f not in moving))
        steps[variable] = steps.get(variable, 0) + number(step)
        if variable not in ranges:
            span = _interval(variable, spans)
            if span is None:
                return None
            ranges[variable] = number(span[0]), number(span[1])
    return Sum(steps, total(constant))


def _reach(access: Access, loop: For, around: Sequence[For]) -> dict[Symbol, tuple[int, int]]:
    """The ranges that the variables of a loop and of those inside have wherever an access happens, where they
    are numbers: a loop inside may have no iteration for other values.

    for i in range(a, min(131, a + 4)): for j in range(130, i + 1): …   →   i is 130
    """
    spans = _around(around)
    found: dict[Symbol, tuple[int, int]] = {}
    for var, (low, high) in ((loop.var, (loop.begin, loop.end - 1)), *access.loops):
        spans[var] = span = _range(low, high, spans)
        if span is None or not span[0].is_Integer or not span[1].is_Integer:
            continue
        found[var] = least, most = int(span[0]), int(span[1])
        for outer in found.keys() & (symbols_in(low) | symbols_in(high)):
            for beyond in (difference(bound, outer) for bound in _upper_bounds(high)):
                if beyond.is_Integer:
                    found[outer] = max(found[outer][0], least - int(beyond)), found[outer][1]
            beyond = difference(low, outer)
            if beyond.is_Integer:
                found[outer] = found[outer][0], min(found[outer][1], most - int(beyond))
    return found


def _pieces(access: Access, loop: For) -> Iterator[tuple[Symbol, Interval]]:
    """The inner loops' variables whose range ends before that of the loop's next iteration begins.

    for a in 4: for j in range(7*a//4, (7*a + 7)//4): …   →   j, from 7*a//4 to (7*a + 7)//4 - 1
    """
    spans: Spans = {}
    for var, (low, high) in access.loops:
        if loop.var in symbols_in(low):
            first, last = _interval(low, spans), _interval(high, spans)
            if first is not None and last is not None and _grows(first[0], loop.var):
                following = simplify(expand(replaced(first[0], {loop.var: loop.var + 1})), {})
                if at_least(following, simplify(last[1] + 1, {})):
                    yield var, (first[0], last[1])
        spans[var] = _range(low, high, spans)


def _grows(expr: Expr, var: Symbol) -> bool:
    """Whether an expression is plainly never less for a larger value of a variable."""
    if isinstance(expr, FloorDiv):
        return bool(expr.args[1].is_positive) and _grows(expr.args[0], var)
    if isinstance(expr, sympy.Add):
        return all(_grows(each, var) for each in expr.args)
    step, rest = linear(expr, var)
    return var not in symbols_in(rest) and var not in symbols_in(step) and at_least(step, ZERO)


def piece(expr: Expr) -> tuple[Expr, Expr, Expr | None]:
    """A quotient or remainder as a number's digit: the number, and the weights that it lies between.

    >>> from smelt.symbolic import loop_var
    >>> f = loop_var("f")
    >>> piece(Mod(FloorDiv(f, 4), 7)), piece(FloorDiv(f, 28))
    ((f, 4, 28), (f, 28, None))
    """
    if not isinstance(expr, (FloorDiv, Mod)):
        return expr, ONE, None
    base, low, high = piece(expr.args[0])
    beyond = expand(low * expr.args[1])
    if isinstance(expr, Mod):
        return base, low, beyond
    return base, beyond, high


# -- numbers -------------------------------------------------------------------------------------------------


def number(expr: Expr) -> Number:
    return int(expr) if expr.is_Integer else expr


def multiplied(left: Number, right: Number) -> Number:
    made = left * right
    return made if isinstance(made, int) else number(expand(made))


def added(left: Number, right: Number) -> Number:
    made = left + right
    return made if isinstance(made, int) else number(expand(made))


def equal(left: Number, right: Number) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return same(sympy.sympify(left), sympy.sympify(right))


def larger(left: Number, right: Number) -> Number:
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    return left if left == right else number(Max(left, right))


def never_less(left: Number, right: Number) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left >= right
    return at_least(sympy.sympify(left), sympy.sympify(right))


def at_least(left: Expr, right: Expr) -> bool:
    """Whether an expression is never less than another one."""
    gap = expand(left - right)
    if gap.is_number:
        return bool(gap >= 0)
    return bool(gap.is_nonnegative) or _is_sum_of_products(gap)


@lru_cache(maxsize=4096)
def _is_sum_of_products(expr: Expr) -> bool:
    """Whether an expression is a sum of products of what is not negative, for each positive symbol one less
    than it: a*b - a is (a - 1)*(b - 1) + (b - 1).
    """
    least = {symbol: symbol + 1 for symbol in symbols_in(expr) if symbol.is_positive}
    if not least or expr.has(FloorDiv, Mod, Min, Max):
        return False
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(sympy.expand(expr.xreplace(least)))]
    return all(count >= 0 and bool(rest.is_nonnegative) for count, rest in terms)
