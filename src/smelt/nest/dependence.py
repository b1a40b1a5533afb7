"""Tests whether the iterations of a loop depend on one another: the legality check of the primitives."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

import sympy
from sympy import Expr, Symbol
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean
from torch.utils._sympy.functions import FloorDiv, Mod

from smelt.nest.disjoint import Known, disjoint, plainly_apart
from smelt.nest.ir import (
    Accumulate,
    Advance,
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
from smelt.nest.sums import at_least
from smelt.nest.tree import (
    accesses,
    indirect_symbols,
    local_buffers,
    loops,
    named,
    reduced_axes,
    stages,
    trip_count,
    walk,
)
from smelt.symbolic import loop_var
from smelt.symbolic.affine import difference, expand, linear, replaced, symbols_in, total
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

    Conservative: what it cannot show to be safe counts as a conflict.
    Accumulators are ignored (`carried_updates`); state that iterations carry is not. ``private``: buffers
    that each iteration has a copy of.
    """
    if stages(loop.body):
        return reduced_over(loop) or overlap(loop, private) or _not_digits(loop)
    handed = carried_state(loop)
    if handed:
        return f"every iteration of {loop.var} hands {handed[0].carry} on to the next"
    return None if loop.proved else overlap(loop, private)


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


def overlap(
    loop: For,
    private: Collection[str] = (),
    repeated: Collection[Symbol] | None = None,
    around: Sequence[For] = (),
) -> str | None:
    """The reason why two iterations of a loop may touch the same element, with one of them writing; None
    where they cannot. Buffers in ``private`` are ignored.

    ``repeated``: a store may meet itself in another iteration, if no loop but those over these variables is
    around it. ``around``: the loops around this one, as far as they are known.
    """
    own = {*local_buffers(loop.body), *private}
    if not stages(loop.body):
        own |= _plainly_apart(loop, own)
        if all(buffer in own for buffer, _, _ in accesses(loop.body)):
            return None
    touched: dict[str, list[Access]] = {}
    for access in found_accesses(loop.body):
        if access.buffer not in own:
            touched.setdefault(access.buffer, []).append(access)
    for buffer, found in touched.items():
        if not any(access.is_store for access in found):
            continue
        found = list({(each.index, each.is_store, each.loops): each for each in found}.values())
        known = Known(around)
        for number, one in enumerate(found):
            for other in found[number:]:
                if not one.is_store and not other.is_store:
                    continue
                if one is other and repeated is not None and all(var in repeated for var, _ in one.loops):
                    continue
                if not disjoint(one, other, loop, known):
                    what = "write" if one.is_store and other.is_store else "write and read"
                    return f"two iterations of {named(loop)} may {what} the same element of {buffer}"
    return None


def _plainly_apart(loop: For, private: Set[str]) -> set[str]:
    """The buffers of plain loops at which indices visibly have other values in each iteration, and those
    without stores.
    """
    touched: dict[str, set[tuple[Expr, ...]]] = {}
    stored = set()
    for buffer, index, is_store in accesses(loop.body):
        if buffer not in private:
            touched.setdefault(buffer, set()).add(index)
            if is_store:
                stored.add(buffer)
    found = touched.keys() - stored
    if any(isinstance(stmt, SortRow) for stmt in walk(loop.body)):
        return found
    inner: dict[Symbol, int | None] = dict.fromkeys(indirect_symbols(loop.body))
    values: dict[Symbol, Expr] = {}
    for each in loops(loop.body):
        trips = difference(each.end, each.begin)
        count = int(trips) if trips.is_Integer else None
        inner[each.var] = count if inner.get(each.var, count) == count else None
        moved = total([replaced(each.begin, values), each.var])  # its variable is the distance from there
        if values.setdefault(each.var, moved) != moved:
            return found
    for buffer in stored:
        places = {tuple(replaced(expr, values) for expr in index) for index in touched[buffer]}
        if plainly_apart(places, loop, inner):
            found.add(buffer)
    return found


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
