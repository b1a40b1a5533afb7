"""Tests whether the iterations of a loop depend on one another: the legality check of the primitives.

Plain loops are tested by flat index, loops of stages by dimension: two iterations of a loop touch different
elements if each digit of the loop's number (a fused loop has several) can be read from some dimension of the
index, whatever the loops inside do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import sympy
from sympy import Expr, Symbol
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean
from torch.utils._sympy.functions import FloorDiv, Min, Mod

from smelt.nest.disjoint import at_least, coefficients_of, disjoint
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Alloc,
    AxisKind,
    Block,
    Carry,
    For,
    SortRow,
    Stage,
    Stmt,
    Update,
)
from smelt.nest.regions import Access, found_accesses, slack
from smelt.nest.scopes import members, place_of
from smelt.nest.tree import accesses, indirect_symbols, loops, named, reduced_axes, stages, trip_count, walk
from smelt.symbolic import loop_var
from smelt.symbolic.affine import expand, linear, replaced, symbols_in
from smelt.symbolic.text import python_text

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


def carried_updates(loop: For) -> list[Update]:
    """Updates in the loop of accumulators that are declared outside it: a reduction over the loop."""
    within = walk(loop.body)
    inside = {stmt.name for stmt in within if type(stmt) is Accumulate}
    return [stmt for stmt in within if type(stmt) is Update and stmt.acc not in inside]


def carried_state(loop: For) -> list[Advance]:
    """Advances in the loop of carries that are declared outside it: its iterations run in order."""
    within = walk(loop.body)
    inside = {stmt.name for stmt in within if type(stmt) is Carry}
    return [stmt for stmt in within if type(stmt) is Advance and stmt.carry not in inside]


def conflict(loop: For, private: Collection[str] = ()) -> str | None:
    """The reason why two iterations of the loop may touch the same element, with one of them writing; None
    where they cannot.

    Expects flattened accesses, or stages. Conservative: what it cannot show to be safe counts as a conflict.
    Accumulators are ignored (`carried_updates`); state that iterations carry is not. ``private``: buffers
    that each iteration has a copy of.
    """
    if stages(loop.body):
        return reduced_over(loop) or overlap(loop, private) or _not_digits(loop)
    handed = carried_state(loop)
    if handed:
        return f"every iteration of {loop.var} hands {handed[0].carry} on to the next"
    if loop.independent:
        return None
    private = {stmt.buffer for stmt in walk(loop.body) if isinstance(stmt, Alloc)}
    touched: dict[str, tuple[set[tuple[Expr, ...]], bool]] = {}
    for buffer, index, is_store in accesses(loop.body):
        if buffer in private:
            continue
        indices, stored = touched.setdefault(buffer, (set(), False))
        indices.add(index)
        touched[buffer] = (indices, stored or is_store)
    if any(isinstance(stmt, SortRow) for stmt in walk(loop.body)):
        return f"iterations of {loop.var} sort rows"
    within, moved = _inner_extents(loop)
    indirect = indirect_symbols(loop.body)
    for buffer, (indices, stored) in touched.items():
        if not stored:
            continue
        placed = {tuple(expr.xreplace(moved) for expr in index) for index in indices} if moved else indices
        if not all(_separated(index, loop, within, indirect) for index in placed):
            return f"two iterations of {loop.var} may write the same element of {buffer}"
        if len(placed) > 1 and not _same_digit(placed, loop, within, indirect):
            return (
                f"{buffer} is written at one index and read or written at another in iterations of {loop.var}"
            )
    return None


Extents = dict[Symbol, list[Expr]]


def _inner_extents(loop: For) -> tuple[Extents, dict[Symbol, Expr]]:
    """Upper bounds of the width of each inner loop's range, and the offset of its variable that depends on
    ``loop``.

    A loop that a split has made begins at ``factor * loop.var``: its variable is that offset plus a variable
    from 0 on.
    """
    extents: Extents = {}
    moved: dict[Symbol, Expr] = {}
    for inner in loops(loop.body):
        begin = inner.begin.xreplace(moved)
        ends = [
            end.xreplace(moved) for end in (inner.end.args if isinstance(inner.end, Min) else (inner.end,))
        ]
        widths = [expand(end - begin) for end in ends]
        if begin.has(loop.var):
            moved[inner.var] = begin + inner.var
        elif not begin.has(*extents) and not begin.is_number:
            widths += ends
        extents[inner.var] = [width for width in widths if not width.has(loop.var)]
    return extents, moved


def _separated(index: tuple[Expr, ...], loop: For, within: Extents, indirect: set[Symbol]) -> bool:
    """Whether different iterations give different flat indices for any values of the inner loops (a mixed
    radix argument).
    """
    if len(index) != 1:
        return any(_is_offset_of(expr, loop.var, within, indirect) for expr in index)
    found = coefficients_of(index[0], [loop.var, *within, *indirect])
    if found is None:
        return False
    coefficients, _ = found
    own = coefficients.pop(loop.var, None)
    if own is None or own == 0:
        return False
    span: Expr = sympy.Integer(0)
    larger: list[tuple[Expr, list[Expr]]] = []
    for variable, coefficient in coefficients.items():
        fitting = [width for width in within.get(variable, ()) if at_least(own, coefficient * width)]
        if fitting and not at_least(coefficient, own * trip_count(loop)):
            span = span + coefficient * (fitting[0] - 1)
        else:
            larger.append((coefficient, within.get(variable, [])))
    if not at_least(own, span + 1):
        return False
    reach = span + own * (trip_count(loop) - 1) + 1
    return all(at_least(coefficient, reach) for coefficient, _ in larger) and not _within_reach(larger, reach)


def _within_reach(larger: Sequence[tuple[Expr, list[Expr]]], reach: Expr) -> bool:
    """Whether two sums of larger steps, all numbers, may differ by less than ``reach``: 5*j and 6*k may
    differ by 1.
    """
    if not all(step.is_Integer for step, _ in larger) or not reach.is_Integer:
        return False
    if math.gcd(*(int(step) for step, _ in larger)) >= int(reach):
        return False
    covered = int(reach)
    for step, widths in sorted(larger, key=lambda each: int(each[0])):
        if int(step) < covered:
            return True
        known = [int(width) for width in widths if width.is_Integer]
        covered += int(step) * (min(known) - 1) if known else 0
    return False


def _is_offset_of(expr: Expr, var: Symbol, within: Extents, indirect: set[Symbol]) -> bool:
    """Whether the index of one dimension is the loop variable plus a term that no inner loop changes."""
    rest = expand(expr - var)
    return not (rest.free_symbols & ({var} | within.keys() | indirect))


def _same_digit(indices: set[tuple[Expr, ...]], loop: For, within: Extents, indirect: set[Symbol]) -> bool:
    """Whether the loop variable has the same role in all indices: one coefficient, one offset, one set of
    larger coefficients.
    """
    seen: set[tuple[Expr, Expr, tuple[str, ...]]] = set()
    for index in indices:
        found = coefficients_of(index[0], [loop.var, *within, *indirect]) if len(index) == 1 else None
        if found is None:
            return False
        coefficients, rest = found
        own = coefficients.pop(loop.var, sympy.Integer(0))
        larger = sorted(str(c) for c in coefficients.values() if not at_least(own, c))
        seen.add((own, expand(rest), tuple(larger)))
    return len(seen) == 1


# -- loops of stages -----------------------------------------------------------------------------------------


def reduced_over(loop: For) -> str | None:
    """The reason why all iterations of the loop add to one element; None where no stage reduces over it."""
    for stage in members(loop.body):
        for axis in stage.axes:
            if axis.kind is AxisKind.REDUCE and axis.value.has(loop.var):
                return f"{named(loop)} is reduced over: its iterations add to {_stored_text(stage)}"
    return None


def _stored_text(stage: Stage) -> str:
    """The element that a stage stores to, as error texts name it."""
    labels = {axis.var: loop_var(named(axis)) for axis in stage.axes}
    for access in found_accesses(stage):
        if access.is_store:
            index = ", ".join(python_text(replaced(expr, labels)) for expr in access.own)
            return f"{access.buffer}[{index}]"
    return stage.name


def commutes(loop: For) -> str | None:
    """The reason why the iterations of a loop cannot run in another order; None where they can.

    In loops of stages, independent iterations may change order, iterations of a reduction as well, and those
    of a stage that computes each element from its index alone: recomputing an element gives the same value.
    """
    if not stages(loop.body):
        return conflict(loop)
    members_of = members(loop.body)
    users: dict[str, list[Stage]] = {}
    for stage in members_of:
        for axis in stage.axes:
            if axis.kind is AxisKind.OPAQUE:
                return f"of the axis {named(axis)} of {stage.name} nothing is known"
        for buffer in {buffer for buffer, _, _ in accesses(Block((stage,)))}:
            users.setdefault(buffer, []).append(stage)
    excused = set()
    for buffer, found in users.items():
        if len(found) == 1 and (_only_adds(found[0], loop) or _depends_on_index_only(found[0], buffer)):
            excused.add(buffer)
    return overlap(loop, excused)


def _only_adds(stage: Stage, loop: For) -> bool:
    """Whether a loop changes only the terms that a stage sums, not the element that it adds to."""
    over = [axis for axis in stage.axes if axis.value.has(loop.var)]
    if not all(axis.kind is AxisKind.REDUCE for axis in over):
        return False
    found = found_accesses(stage)
    stores = [access for access in found if access.is_store]
    reduced = {axis.var for axis in reduced_axes(stage)}
    if any(not reduced.isdisjoint(symbols_in(expr)) for access in stores for expr in access.own):
        return False
    modes = {access.mode for access in stores} - {None}
    loads = {access.buffer for access in found if not access.is_store}
    if len(modes) != 1 or not loads.isdisjoint(access.buffer for access in stores):
        return False
    return not_initialized_once(stage, [loop, *_loops_to(loop.body, stage)]) is None


def _loops_to(block: Block, stage: Stage) -> tuple[For, ...]:
    """The loops of a block around a stage inside it."""
    place = place_of(block, lambda stmt: stmt is stage)
    return () if place is None else place.loops


def not_initialized_once(stage: Stage, around: Sequence[For]) -> str | None:
    """The reason why loops around a reduction may initialize one of its elements twice, or in a later
    iteration than the first; None where they cannot. ``around``: from an outer loop down to the stage, each
    inside the previous one.

    If None, all initial values can be stored before the loops, and terms added in any order.
    """
    reduced = reduced_axes(stage)
    over = {symbol for axis in reduced for symbol in symbols_in(axis.value)}
    values = {axis.var: axis.value for axis in stage.axes}
    begins = {each.var: each.begin for each in around}
    for axis in reduced:
        first = expand(replaced(axis.value, begins) - axis.begin)
        if (first.is_number and first != 0) or not _rises(axis.value, begins.keys()):
            label = named(axis)
            return f"{label} = {python_text(axis.value)} of {stage.name} does not start at its first value"
    for condition in stage.where:
        for each in around:
            if each.var in over & condition.free_symbols and not _falls(condition, each.var):
                text = python_text(condition)
                return f"{text} may exclude the first iteration of {stage.name}"
    if stage.init is None:
        return None
    for access in found_accesses(stage):
        if not access.is_store:
            continue
        index = tuple(replaced(expr, values) for expr in access.own)
        if any(not over.isdisjoint(symbols_in(expr)) for expr in index):
            return f"the index at which {stage.name} stores depends on a reduce axis"
        place = (*index, *(axis.value for axis in reduced))
        for number, each in enumerate(around):
            inner = tuple((inside.var, (inside.begin, inside.end - 1)) for inside in around[number + 1 :])
            one = Access(access.buffer, place, place, True, None, inner, ())
            if trip_count(each) != 1 and not disjoint(one, one, each):
                return f"iterations of {named(each)} may initialize an element of {access.buffer} twice"
    return None


def _rises(value: Expr, variables: Collection[Symbol]) -> bool:
    """Whether a sum of digits has its minimum where all variables have their first values."""
    for term in sympy.Add.make_args(expand(value)):
        factors = [each for each in sympy.Mul.make_args(term) if symbols_in(each).isdisjoint(variables)]
        if not symbols_in(term).isdisjoint(variables) and not at_least(sympy.Mul(*factors), ZERO):
            return False
    return True


def _falls(condition: Boolean, var: Symbol) -> bool:
    """Whether a condition that holds for one value of a loop variable also holds for all smaller values."""
    left = slack(condition)
    if left is None:
        return False
    step, rest = linear(left, var)
    return not rest.has(var) and bool(step.is_nonpositive)


def _not_digits(loop: For) -> str | None:
    """An axis of a stage in a loop that is no sum of digits of this loop and inner loops; None where all
    are.
    """
    moving = {loop.var, *(inner.var for inner in loops(loop.body))}
    for stage in members(loop.body):
        for axis in stage.axes:
            if not _is_sum_of_digits(axis.value, moving):
                name = f"{named(axis)} = {python_text(axis.value)}"
                return f"{name} of {stage.name} is no sum of digits of loops"
    return None


def _depends_on_index_only(stage: Stage, buffer: str) -> bool:
    """Whether a stage computes the same value for an element of a buffer, however often it is computed."""
    if stage.init is not None or any(isinstance(stmt, (For, Stage)) for stmt in walk(stage.body)):
        return False
    if any(axis.kind is not AxisKind.SPATIAL for axis in stage.axes):
        return False
    found = [access for access in found_accesses(stage) if access.buffer == buffer]
    if not all(access.is_store for access in found):
        return True
    if len(found) > 1:
        return False
    moving = [axis.var for axis in stage.axes if axis.extent != 1]
    return all(each.mode is None and all(_is_told(var, each.own) for var in moving) for each in found)


def _is_told(var: Symbol, index: Sequence[Expr]) -> bool:
    """Whether an index says which value a variable has: it has the variable, or its quotient and remainder.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> [_is_told(each, (FloorDiv(i, 4), i + j, Mod(i, 4))) for each in (i, j)]
    [True, False]
    """
    divisors = [each.args[1] for each in index if isinstance(each, Mod) and each.args[0] == var]
    return var in index or any(FloorDiv(var, divisor) in index for divisor in divisors)


def overlap(loop: For, private: Collection[str] = ()) -> str | None:
    """The reason why two iterations of a loop of stages may touch the same element, with one of them writing;
    None where they cannot. Buffers in ``private`` are ignored.
    """
    own = {stmt.buffer for stmt in walk(loop.body) if isinstance(stmt, Alloc)} | set(private)
    touched: dict[str, list[Access]] = {}
    for access in found_accesses(loop.body):
        if access.buffer not in own:
            touched.setdefault(access.buffer, []).append(access)
    for buffer, found in touched.items():
        found = list({(each.index, each.is_store, each.loops): each for each in found}.values())
        for number, one in enumerate(found):
            for other in found[number:]:
                if (one.is_store or other.is_store) and not disjoint(one, other, loop):
                    what = "write" if one.is_store and other.is_store else "write and read"
                    return f"two iterations of {named(loop)} may {what} the same element of {buffer}"
    return None


def clash(first: Stmt | Block, second: Stmt | Block, loop: For) -> str | None:
    """The reason why two parts of a loop's body may not be fissioned, nor two such loops fused: an iteration
    of one part may touch elements that a later iteration of the other touches. None where that cannot happen.
    """
    for one in found_accesses(first):
        for other in found_accesses(second):
            shared = one.buffer == other.buffer and (one.is_store or other.is_store)
            if shared and not disjoint(one, other, loop):
                return f"an iteration may touch the same element as a later one of {one.buffer}"
    return None


def not_placed(stage: Stage, moving: Collection[Symbol]) -> str | None:
    """The reason why the mapping from loop iterations to the elements of a stage is not quasi-affine; None
    where it is.

    Quasi-affine (a word of TVM): axis values are sums of digits of loops, the smallest with weight 1, and
    each condition bounds one axis.
    """
    for axis in stage.axes:
        name = f"{named(axis)} = {python_text(axis.value)}"
        if axis.kind is AxisKind.OPAQUE:
            return f"of the axis {named(axis)} of {stage.name} nothing is known"
        if not _is_sum_of_digits(axis.value, moving):
            return f"{name} of {stage.name} is no sum of digits of loops"
        steps = [linear(axis.value, var)[0] for var in symbols_in(axis.value) & set(moving)]
        numbers = [abs(int(step)) for step in steps if step.is_Integer and step != 0]
        if numbers and len(numbers) == len(steps) and min(numbers) > 1:
            return f"{name} of {stage.name} leaves out values between"
    for condition in stage.where:
        if not any(_bounds(condition, axis.value, moving) for axis in stage.axes):
            return f"the condition {python_text(condition)} of {stage.name} is no bound of one axis"
    return None


def _is_sum_of_digits(expr: Expr, moving: Collection[Symbol]) -> bool:
    for term in sympy.Add.make_args(expand(expr)):
        factors = [each for each in sympy.Mul.make_args(term) if not symbols_in(each).isdisjoint(moving)]
        if len(factors) > 1 or not all(isinstance(each, (FloorDiv, Mod, Symbol)) for each in factors):
            return False
        for each in factors:
            if isinstance(each, (FloorDiv, Mod)) and not (
                symbols_in(each.args[1]).isdisjoint(moving) and _is_sum_of_digits(each.args[0], moving)
            ):
                return False
    return True


def _bounds(condition: Boolean, value: Expr, moving: Collection[Symbol]) -> bool:
    if not isinstance(condition, Relational):
        return False
    gap = expand(condition.lhs - condition.rhs)
    return any(symbols_in(expand(gap - sign * value)).isdisjoint(moving) for sign in (1, -1))
