"""The region of a buffer that a piece of a nest touches: a box over all iterations of the loops inside the
piece.

An unknown bound is None, the whole dimension. Boxes are never too small."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import sympy
from sympy import Eq, Expr, Symbol
from sympy.core.relational import Ge, Gt, Le, Lt
from sympy.logic.boolalg import Boolean
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from smelt.nest.ir import Axis, Block, For, Guard, Let, SortRow, Stage, Stmt, Store
from smelt.nest.tree import blocks_of, map_condition, reduced_axes
from smelt.records import dataclass, field, replace
from smelt.symbolic import evaluate, loop_var, simplify
from smelt.symbolic.affine import (
    difference,
    divided,
    expand,
    linear,
    plus,
    replaced,
    symbols_in,
    times,
    total,
)
from smelt.symbolic.bounds import bounds, is_nonnegative

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)

Interval = tuple[Expr, Expr]
"""The least and the largest value, both inclusive."""

Box = tuple[Interval | None, ...]
"""An interval for each dimension; None where the whole dimension may be touched."""

ROW = loop_var("_row")
"""The position in a row that is sorted."""

MOST_POINTS = 4096
"""Limit on the values of the outer loops that are tried to find the width of an interval."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Known ranges of symbols: each is in ``[0, extent)``; sizes are never negative."""

    extents: Mapping[Symbol, Expr] = field(default_factory=dict)

    def nonnegative(self, expr: Expr) -> bool:
        """Whether an expression is known never to be negative."""
        if expr.is_Integer:
            return int(expr) >= 0
        expr = simplify(expand(expr), self.extents)
        if is_nonnegative(expr, self.extents):
            return True
        low = bounds(expr, self.extents)[0]
        return low is not None and low != expr and is_nonnegative(expand(low), {})

    def at_most(self, left: Expr, right: Expr) -> bool:
        return left is right or self.nonnegative(difference(right, left))

    def simple(self, expr: Expr) -> Expr:
        return simplify(expand(expr), self.extents)

    def plus(self, loops: Iterable[For]) -> Facts:
        return Facts({**self.extents, **{loop.var: loop.end for loop in loops}})


@lru_cache(maxsize=16384)
def slack(condition: Boolean) -> Expr | None:
    """An expression that is nonnegative where an inequality of integers holds; None for other conditions.

    >>> i, n = sympy.symbols("i n", integer=True)
    >>> slack(Lt(i, n)), slack(Ge(i, 3)), slack(Eq(i, n))
    (-i + n - 1, i - 3, None)
    """
    if isinstance(condition, (Le, Lt)):
        return expand(plus(difference(condition.rhs, condition.lhs), -int(isinstance(condition, Lt))))
    if isinstance(condition, (Ge, Gt)):
        return expand(plus(difference(condition.lhs, condition.rhs), -int(isinstance(condition, Gt))))
    return None


# -- intervals -----------------------------------------------------------------------------------------------


def interval(expr: Expr, ranges: Mapping[Symbol, Interval], facts: Facts) -> Interval | None:
    """Lower and upper bound of an expression where each symbol of ``ranges`` takes its range; the bounds are
    expressions of other symbols.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> eight = {j: (ZERO, sympy.Integer(7))}
    >>> interval(8 * i + j + 2, eight, Facts()), interval(FloorDiv(j, 4) - i, eight, Facts())
    ((8*i + 2, 8*i + 9), (-i, 1 - i))
    """
    if symbols_in(expr).isdisjoint(ranges):
        return expr, expr
    if isinstance(expr, Symbol):
        return ranges[expr]
    if isinstance(expr, sympy.Add):
        parts = [interval(term, ranges, facts) for term in expr.args]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return total(low for low, _ in known), total(high for _, high in known)
    if isinstance(expr, sympy.Mul):
        return _product(expr, ranges, facts)
    if isinstance(expr, FloorDiv) and facts.nonnegative(expr.args[1] - 1):
        inner, divisor = interval(expr.args[0], ranges, facts), expr.args[1]
        if inner is None or not symbols_in(divisor).isdisjoint(ranges):
            return None
        return facts.simple(divided(inner[0], divisor)), facts.simple(divided(inner[1], divisor))
    if isinstance(expr, Mod) and facts.nonnegative(expr.args[1] - 1):
        inner, divisor = interval(expr.args[0], ranges, facts), expr.args[1]
        if not symbols_in(divisor).isdisjoint(ranges):
            return None
        if inner is not None:
            low, high = (facts.simple(divided(each, divisor)) for each in inner)
            if low == high:
                first, last = (facts.simple(expand(each - low * divisor)) for each in inner)
                return first, last
        return ZERO, divisor - 1
    if isinstance(expr, (Max, Min)):
        parts = [interval(arg, ranges, facts) for arg in expr.args]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return expr.func(*(low for low, _ in known)), expr.func(*(high for _, high in known))
    return None


def _product(expr: sympy.Mul, ranges: Mapping[Symbol, Interval], facts: Facts) -> Interval | None:
    coefficient, rest = expr.as_coeff_Mul()
    if not coefficient.is_Integer:
        return None
    low: Expr = ONE
    high: Expr = ONE
    for factor in sympy.Mul.make_args(rest):
        part = interval(factor, ranges, facts)
        if part is None or not facts.nonnegative(part[0]):
            return None
        low, high = expand(low * part[0]), expand(high * part[1])
    low, high = times(low, coefficient), times(high, coefficient)
    return (low, high) if coefficient > 0 else (high, low)


def relaxed(expr: Expr, loops: Sequence[tuple[Symbol, Interval]], facts: Facts) -> Interval | None:
    """Lower and upper bound of an expression over all iterations of loops, given the outermost first: bounds
    of a loop may depend on the loops around it.
    """
    start = facts.simple(expr)
    found: Interval = (start, start)
    for var, span in reversed(loops):
        low, high = interval(found[0], {var: span}, facts), interval(found[1], {var: span}, facts)
        if low is None or high is None:
            return None
        found = facts.simple(low[0]), facts.simple(high[1])
    return found


def intersection(one: Interval, other: Interval, facts: Facts) -> Interval:
    """The intersection of two intervals, or a superset: a bound of ``one`` where the other's is not known to
    be tighter.
    """
    low = other[0] if facts.at_most(one[0], other[0]) else one[0]
    high = other[1] if facts.at_most(other[1], one[1]) else one[1]
    return low, high


def hull(one: Interval, other: Interval, facts: Facts) -> Interval:
    """The smallest interval that contains both."""
    (a, b), (c, d) = one, other
    low = a if facts.at_most(a, c) else c if facts.at_most(c, a) else Min(a, c)
    high = b if facts.at_most(d, b) else d if facts.at_most(b, d) else Max(b, d)
    return low, high


def extent(span: Interval, facts: Facts) -> Expr:
    """The number of integers in an interval: its maximum over all outer loops where that is known."""
    low, high = span
    count = facts.simple(high - low + 1)
    if count.is_Integer or symbols_in(count).isdisjoint(facts.extents):
        return count
    return most(count, facts) or count


def most(expr: Expr, facts: Facts) -> Expr | None:
    """The maximum of an expression, found by trial of all values of its symbols; None where there are too
    many.
    """
    symbols = sorted(symbols_in(expr), key=lambda symbol: symbol.name)
    ends = [facts.extents.get(symbol, symbol) for symbol in symbols]
    if not all(end.is_Integer for end in ends) or math.prod(map(int, ends)) > MOST_POINTS:
        return None
    points = itertools.product(*(range(int(end)) for end in ends))
    return sympy.Integer(max((evaluate(expr, dict(zip(symbols, point))) for point in points), default=0))


# -- accesses ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Access:
    """An access to a buffer. ``index`` is in terms of loops, ``own`` in terms of the innermost stage's axes
    and the loops in it. ``loops``: the loops and axes around the access within the piece, outermost first,
    with ranges; ``limits``: the ranges of the symbols in ``own``; ``guards``: the conditions under which it
    happens. ``whole``: the access may touch more than the element; ``masked``: it happens only where a mask
    holds.
    """

    buffer: str
    index: tuple[Expr, ...]
    own: tuple[Expr, ...]
    is_store: bool
    mode: str | None
    loops: tuple[tuple[Symbol, Interval], ...]
    limits: tuple[tuple[Symbol, Interval], ...]
    whole: bool = False
    guards: tuple[Boolean, ...] = ()
    masked: bool = False


def span_of(axis: Axis) -> Interval:
    """The first and the last value of an axis."""
    return axis.begin, total([axis.begin, plus(axis.extent, -1)])


def found_accesses(piece: Stmt | Block) -> list[Access]:
    """Every access in a piece of a nest, in program order."""
    found: list[Access] = []
    _collect(piece if isinstance(piece, Block) else Block((piece,)), {}, (), (), (), found)
    return found


Ranges = tuple[tuple[Symbol, Interval], ...]


def _collect(
    block: Block,
    values: dict[Symbol, Expr],
    loops: Ranges,
    limits: Ranges,
    guards: tuple[Boolean, ...],
    found: list[Access],
    masked: bool = False,
) -> None:
    def placed(expr: Expr) -> Expr:
        return replaced(expr, values) if values else expr

    def keep(buffer: str, index: Sequence[Expr], is_store: bool, mode: str | None = None) -> None:
        at = tuple(map(placed, index)) if values else tuple(index)
        found.append(Access(buffer, at, tuple(index), is_store, mode, loops, limits, False, guards, masked))

    def keep_row(buffer: str, start: Sequence[Expr], count: Expr, is_store: bool) -> None:
        at = (*start[:-1], start[-1] + ROW)
        own, row = (*limits, (ROW, (ZERO, count - 1))), (*loops, (ROW, (ZERO, placed(count) - 1)))
        found.append(Access(buffer, tuple(map(placed, at)), at, is_store, None, row, own, True, guards))

    for stmt in block.stmts:
        if isinstance(stmt, For):
            own = (stmt.begin, plus(stmt.end, -1))
            span = (placed(own[0]), placed(own[1]))
            around = (*loops, (stmt.var, span)), (*limits, (stmt.var, own))
            _collect(stmt.body, values, *around, guards, found)
        elif isinstance(stmt, Stage) and values:
            _collect_stage(stmt, values, loops, limits, guards, found)
        elif isinstance(stmt, Stage):
            for each in _of_stage(stmt):
                inside = (*loops, *each.loops), (*limits, *each.limits)
                found.append(replace(each, loops=inside[0], limits=inside[1], guards=(*guards, *each.guards)))
        elif isinstance(stmt, Guard):
            parts = sympy.And.make_args(map_condition(stmt.condition, placed))
            _collect(stmt.body, values, loops, limits, (*guards, *parts), found)
        elif isinstance(stmt, Store):
            keep(stmt.buffer, stmt.index, True, stmt.mode)
        elif isinstance(stmt, Let):
            if stmt.op == "load":
                keep(stmt.args[0], stmt.args[1], False)
            elif stmt.index is not None:
                span = (ZERO, placed(stmt.args[1] - 1))
                loops, limits = (*loops, (stmt.index, span)), (*limits, (stmt.index, span))
        elif isinstance(stmt, SortRow):
            for name, start, count in (
                (stmt.source, stmt.start, stmt.length),
                (stmt.values, stmt.into, stmt.limit),
                (stmt.positions, stmt.into, stmt.limit),
            ):
                if name is not None:
                    keep_row(name, start, count, name != stmt.source)
        else:
            for part in blocks_of(stmt):
                _collect(part, values, loops, limits, guards, found, True)


def _collect_stage(
    stage: Stage,
    values: dict[Symbol, Expr],
    loops: Ranges,
    limits: Ranges,
    guards: tuple[Boolean, ...],
    found: list[Access],
) -> None:
    def placed(expr: Expr) -> Expr:
        return replaced(expr, values)

    inner = {**values, **{axis.var: placed(axis.value) for axis in stage.axes}}
    limits = (*limits, *((axis.var, span_of(axis)) for axis in stage.axes))
    where = (*guards, *(map_condition(each, placed) for each in stage.where))
    if stage.init is not None:
        first = [Eq(inner[axis.var], axis.begin) for axis in reduced_axes(stage)]
        _collect(stage.init, inner, loops, limits, (*where, *first), found)
    _collect(stage.body, inner, loops, limits, where, found)


def _of_stage(stage: Stage) -> Sequence[Access]:
    """The accesses of a stage alone."""
    if stage.found is None:
        found: list[Access] = []
        _collect_stage(stage, {}, (), (), (), found)
        object.__setattr__(stage, "found", tuple(found))
    return stage.found or ()


def box_of(access: Access, facts: Facts, shape: Sequence[Expr] | None = None) -> Box:
    """The box that an access touches over all iterations of the loops of its piece, within the buffer."""
    if access.whole:
        return tuple(None for _ in access.index)
    inside = Facts({**facts.extents, **{var: plus(high, 1) for var, (_, high) in access.loops}})
    limits = Facts({var: plus(high, 1) for var, (_, high) in access.limits})
    box: list[Interval | None] = []
    for dim, (expr, own) in enumerate(zip(access.index, access.own)):
        span = relaxed(expr, access.loops, inside)
        limit = relaxed(own, access.limits, limits) if access.limits else None
        if limit is not None and not symbols_in(limit[0]).union(symbols_in(limit[1])).isdisjoint(
            dict(access.limits)
        ):
            limit = None
        if span is not None and limit is not None:
            span = intersection(span, limit, facts)
        span = span or limit
        if span is not None:
            span = _guarded(span, expr, access, facts)
        if span is not None and shape is not None:
            span = intersection(span, (ZERO, plus(shape[dim], -1)), facts)
        box.append(span)
    return tuple(box)


def _guarded(span: Interval, expr: Expr, access: Access, facts: Facts) -> Interval:
    """An interval, narrowed by the conditions of an access on its index."""
    loops = {var for var, _ in access.loops}
    for condition in access.guards:
        left = slack(condition)
        if left is None:
            continue
        below, above = expand(difference(expr, left)), expand(total([expr, left]))
        if symbols_in(below).isdisjoint(loops):
            span = intersection(span, (below, span[1]), facts)
        elif symbols_in(above).isdisjoint(loops):
            span = intersection(span, (span[0], above), facts)
    return span


def union(one: Box, other: Box, facts: Facts) -> Box:
    """A box that contains both."""
    return tuple(
        None if a is None or b is None else hull(a, b, facts) for a, b in zip(one, other, strict=True)
    )


def touched(
    piece: Stmt | Block,
    buffer: str,
    facts: Facts,
    *,
    stores: bool | None = None,
    shape: Sequence[Expr] | None = None,
) -> Box | None:
    """The box of all accesses of a piece to a buffer, or of its stores or loads alone; None where there are
    none. Loops around the piece stay in the bounds; ``facts`` has their extents.

    >>> import torch
    >>> from smelt.symbolic import loop_var
    >>> i, j = loop_var("i"), loop_var("j")
    >>> load = Let("v", torch.float32, "load", ("A", (8 * i + j, j + 2)))
    >>> touched(For(j, ZERO, sympy.Integer(8), Block((load,))), "A", Facts({i: sympy.Integer(4)}))
    ((8*i, 8*i + 7), (2, 9))
    """
    result: Box | None = None
    for access in found_accesses(piece):
        if access.buffer == buffer and stores in (None, access.is_store):
            box = box_of(access, facts, shape)
            result = box if result is None else union(result, box, facts)
    return result


def covers(outer: Box, inner: Box, facts: Facts, shape: Sequence[Expr] | None = None) -> bool:
    """Whether ``inner``, clipped to a buffer of that shape, is known to be within ``outer``."""
    for dim, (one, other) in enumerate(zip(outer, inner, strict=True)):
        whole = None if shape is None else (ZERO, plus(shape[dim], -1))
        one, other = one or whole, other or whole
        if one is None or other is None:
            return False
        low, high = other
        if whole is not None:
            low, high = intersection(other, whole, facts)
        if not facts.at_most(one[0], low) or not facts.at_most(high, one[1]):
            return False
    return True


# -- is all of a box touched? --------------------------------------------------------------------------------


def keeps_inside(condition: Boolean, access: Access, shape: Sequence[Expr]) -> bool:
    """Whether a condition only excludes indices out of bounds: it holds for every index from 0 to ``size -
    1`` of a dimension.
    """
    left = slack(condition)
    if left is None:
        return False
    ends = [(left - expr, left + expr - size + 1) for expr, size in zip(access.index, shape, strict=True)]
    return any(bool(rest.is_Integer and rest >= 0) for each in ends for rest in map(expand, each))


def is_dense(access: Access, facts: Facts) -> bool:
    """Whether the loops of an access visit every element of its box."""
    seen: set[Symbol] = set()
    inside = Facts({**facts.extents, **{var: plus(high, 1) for var, (_, high) in access.loops}})
    spans = dict(access.loops)
    for expr in access.index:
        rest, parts = inside.simple(expr), []
        for var in [each for each in spans if each in symbols_in(rest)]:
            step, rest = linear(rest, var)
            low, high = spans[var]
            count = expand(high - low + 1)
            if var in seen or not step.is_Integer or step <= 0 or not symbols_in(low).isdisjoint(spans):
                return False
            seen.add(var)
            parts.append((step, count))
        if not symbols_in(rest).isdisjoint(spans):
            return False
        reach: Expr = ONE
        for step, count in sorted(parts, key=lambda part: int(part[0])):
            if not facts.at_most(step, reach):
                return False
            reach = expand(reach + step * (count - 1))
    return True


# -- from regions back to axes -------------------------------------------------------------------------------


def solved(
    first: Expr, last: Expr, span: Interval, limits: Mapping[Symbol, Interval], facts: Facts
) -> dict[Symbol, Interval]:
    """The values of its variables for which an index in ``first`` … ``last`` can meet ``span``.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> n = sympy.Symbol("n", integer=True, nonnegative=True)
    >>> solved(4 * i, 4 * i + 3, (8 * n, 8 * n + 7), {i: (ZERO, sympy.Integer(99))}, Facts())
    {i: (2*n, 2*n + 1)}
    """
    found: dict[Symbol, Interval] = {}
    for var in sorted(symbols_in(first) & limits.keys(), key=lambda symbol: symbol.name):
        part = _solved_for(var, first, last, span, limits, facts)
        if part is not None:
            found[var] = part
    return found


def _solved_for(
    var: Symbol,
    first: Expr,
    last: Expr,
    span: Interval,
    limits: Mapping[Symbol, Interval],
    facts: Facts,
) -> Interval | None:
    if first == var == last:
        return span
    if isinstance(first, FloorDiv) and isinstance(last, FloorDiv) and first.args[1] == last.args[1]:
        divisor = first.args[1]
        low, high = expand(span[0] * divisor), expand(span[1] * divisor + divisor - 1)
        return _solved_for(var, first.args[0], last.args[0], (low, high), limits, facts)
    first, last = expand(first), expand(last)
    own = [term for term in sympy.Add.make_args(first) if var in symbols_in(term)]
    if len(own) != 1 or own != [term for term in sympy.Add.make_args(last) if var in symbols_in(term)]:
        return None
    coefficient, factor = own[0].as_coeff_Mul()
    if isinstance(factor, sympy.Mul) and var in factor.args:  # a size times the axis
        coefficient, factor = own[0] / var, var
    if factor == own[0] and factor != var and not isinstance(factor, FloorDiv):
        return None
    rest = interval(expand(first - own[0]), limits, facts), interval(expand(last - own[0]), limits, facts)
    if rest[0] is None or rest[1] is None or (coefficient.is_number and not coefficient.is_Integer):
        return None
    below, above = rest[0][0], rest[1][1]
    if facts.nonnegative(coefficient - 1):
        low, high = _ceiling(span[0] - above, coefficient), divided(expand(span[1] - below), coefficient)
    elif facts.nonnegative(-coefficient - 1):
        low, high = _ceiling(below - span[1], -coefficient), divided(expand(above - span[0]), -coefficient)
    else:
        return None
    return _solved_for(var, factor, factor, (facts.simple(low), facts.simple(high)), limits, facts)


def _ceiling(expr: Expr, divisor: Expr) -> Expr:
    return divided(expand(expr + divisor - 1), divisor)
