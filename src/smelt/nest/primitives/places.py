"""Moves a stage to a loop of its consumers, or to a loop of its producers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
from sympy import Expr, Symbol
from sympy.core.relational import Ge, Lt, Relational
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import Alloc, Axis, Block, For, Kernel, LoopKind, Stage, Stmt
from smelt.nest.primitives.common import in_loops, loop_place, refusal, stage_place
from smelt.nest.regions import (
    Access,
    Box,
    Facts,
    Interval,
    box_of,
    covers,
    extent,
    found_accesses,
    hull,
    intersection,
    interval,
    is_dense,
    keeps_inside,
    relaxed,
    slack,
    solved,
    span_of,
    union,
)
from smelt.nest.scopes import (
    Place,
    consumers,
    is_output,
    members,
    not_complete,
    not_reduction,
    position,
    producers,
    reads,
    scope_body,
    shapes_of,
    without,
    writes,
    written_again,
)
from smelt.nest.stages import Fresh, names_of
from smelt.nest.tree import map_condition, named, reduced_axes, replace_loop, trip_count, walk, with_body
from smelt.records import dataclass, replace
from smelt.symbolic.affine import expand, linear, replaced, symbols_in

ZERO = sympy.Integer(0)

Spans = dict[Symbol, Interval]


def compute_at(
    kernel: Kernel, stage: str, loop: Symbol, preserve_unit_loops: bool = False, index: int = -1
) -> Kernel:
    """Computes a producer in each iteration of a loop of its consumers: the part of it that the iteration
    reads.

    for i, j: B[i, j] = …              for i:
    for i, j: C[i, j] = f(B[i, j])  →      for ax0: B[i, ax0] = …
                                           for j: C[i, j] = f(B[i, j])

    ``preserve_unit_loops``: loops of one iteration are made as well. ``index``: the position in the loop's
    body, -1 as late and -2 as early as possible. The region that an iteration reads is a box; where it
    exceeds the elements that the stage computes, a condition clips it.

    Raises:
        ScheduleError: SM1002 there is no such block or loop; SM1021 they are in different scopes, or the loop
        is around the block; SM1022 the block writes a result, or is no complete or reduction block; SM1023 a
        consumer is not under the loop; SM1024 what the block reads is written in between; SM1025 no such
        place; SM1026 a condition of the block cannot be expressed in its axes, or the loop is a vector.
    """
    return _moved(kernel, stage, loop, preserve_unit_loops, index, back=False)


def reverse_compute_at(
    kernel: Kernel, stage: str, loop: Symbol, preserve_unit_loops: bool = False, index: int = -1
) -> Kernel:
    """Computes a consumer in each iteration of a loop of its producers: the part of it that uses the
    iteration's values.

    for i, j: B[i, j] = …              for i:
    for i, j: C[i, j] = f(B[i, j])  →      for j: B[i, j] = …
                                           for ax0: C[i, ax0] = f(B[i, ax0])

    Raises:
        ScheduleError: as `compute_at`, SM1023 where a producer is not under the loop; SM1027 a reduction
        would add something twice, or iterations of a parallel loop would write the same element.
    """
    return _moved(kernel, stage, loop, preserve_unit_loops, index, back=True)


@dataclass(frozen=True, slots=True)
class _Move:
    """A stage to move, and its target. ``what``: the beginning of messages."""

    kernel: Kernel
    stage: Stage
    place: Place
    loop: For
    target: Place
    back: bool
    what: str

    @property
    def around(self) -> tuple[For, ...]:
        """The loops that will be around the stage, the target last."""
        return (*(each for each in self.target.around if isinstance(each, For)), self.loop)


def _moved(kernel: Kernel, name: str, var: Symbol, preserve: bool, index: int, back: bool) -> Kernel:
    verb = "reverse_compute_at" if back else "compute_at"
    stage, place = stage_place(kernel, name, verb)
    target, at = loop_place(kernel, var, f"{verb} of {name}")
    move = _Move(kernel, stage, place, target, at, back, f"{verb}({named(target)}) of {name}")
    _check_scopes(move)
    _check_stage(move)
    _check_between(move)
    position = _position(move, index)
    stage, loops = _regenerated(move, preserve)
    nest = in_loops(loops, stage)
    if back:
        _check_once(move, stage, loops, nest)

    # the target keeps its children in their places: the stage is not among them
    def put(target: For) -> tuple[Stmt, ...]:
        body = (*target.body.stmts[:position], nest, *target.body.stmts[position:])
        return (replace(target, body=Block(body)),)

    return with_body(kernel, replace_loop(without(kernel.body, move.stage), var, put))


# -- legality ------------------------------------------------------------------------------------------------


def _check_scopes(move: _Move) -> None:
    if move.loop in move.place.around:
        raise refusal("SM1021", move.what, "the loop is an ancestor of block " + move.stage.name)
    if move.place.scope is not move.target.scope:
        inside = move.target.scope.name if move.target.scope else move.kernel.name
        raise refusal(
            "SM1021", move.what, f"the two are not in the same block scope; the loop is in {inside}"
        )
    for each in move.around:
        if each.kind in (LoopKind.VECTOR, LoopKind.JAM):
            raise refusal("SM1026", move.what, f"the loop {named(each)} is {each.kind.value}", "do that last")


def _check_stage(move: _Move) -> None:
    stage = move.stage
    if not move.back and move.place.scope is None and is_output(move.kernel, stage):
        why = f"it is an output block: {_outputs(move)} is given back"
        raise refusal("SM1022", move.what, why, "reverse_compute_at moves consumers")
    whys = not_complete(move.kernel, move.place), not_reduction(move.kernel, move.place)
    if None not in whys:
        reason = whys[0] if stage.init is None else whys[1]
        raise refusal("SM1022", move.what, f"it is neither a complete block nor a reduction block: {reason}")
    others = producers if move.back else consumers
    inside = members(Block((move.loop,)))
    for other in others(move.kernel, move.place):
        if not any(other is each for each in inside):
            kind = "producers" if move.back else "consumers"
            why = f"requires all the {kind} to be under the loop, {other.name} is not"
            raise refusal("SM1023", move.what, why)
    if not others(move.kernel, move.place):
        kind = "reads what no block under the loop makes" if move.back else "is read by no block"
        raise refusal("SM1023", move.what, f"it {kind}")


def _outputs(move: _Move) -> str:
    given = {param.name for param in move.kernel.params}
    return next(name for name in writes(move.stage) if name in given)


def _check_between(move: _Move) -> None:
    """Checks that no statement between the old place and the new one conflicts with the accesses of the
    stage.
    """
    stage, order = move.stage, members(scope_body(move.kernel, move.place.scope))
    branch = next(
        (each for each in (*move.target.around, move.loop) if each not in move.place.around), move.loop
    )
    inside = members(Block((branch,)))
    here = position(order, stage)
    places = [position(order, each) for each in inside] or [here]
    if move.back:
        if here < max(places):
            raise refusal("SM1024", move.what, f"it runs before {order[max(places)].name}, under the loop")
        between = order[min(places) : here]
        for other in between:
            shared = [name for name in writes(stage) if name in reads(other)]
            if shared:
                why = f"{other.name} reads {shared[0]}, before the block writes it"
                raise refusal("SM1024", move.what, why)
        return
    if here > min(places):
        raise refusal("SM1024", move.what, f"it runs after {order[min(places)].name}, under the loop")
    for other in order[here + 1 : max(places) + 1]:
        shared = [name for name in writes(other) if name in reads(stage)]
        if shared:
            raise refusal("SM1024", move.what, f"{other.name} writes {shared[0]}, which it reads")
    lost = {
        each.var for each in move.place.around if isinstance(each, For) and each not in move.target.around
    }
    for other in order[:here]:
        again = written_again(other, reads(stage), lost)
        if again is not None:
            why = f"it reads {again}, which {other.name} gives other values in later iterations"
            raise refusal("SM1024", move.what, why)


def _position(move: _Move, index: int) -> int:
    """The position of the stage in the loop's body."""
    makers, users = producers(move.kernel, move.place), consumers(move.kernel, move.place)
    children = move.loop.body.stmts
    first, last = 0, len(children)
    for number, child in enumerate(children):
        inside = members(Block((child,)))
        if any(each is maker for each in inside for maker in makers):
            first = number + 1
    for number in reversed(range(len(children))):
        inside = members(Block((children[number],)))
        if any(each is user for each in inside for user in users):
            last = number
    if index in (-1, -2) and first <= last:
        return last if index == -1 else first
    if not first <= index <= last:
        raise refusal("SM1025", move.what, f"it can come before statement {first} to {last}, not {index}")
    return index


def _check_once(move: _Move, stage: Stage, loops: Sequence[For], nest: Stmt) -> None:
    """Checks that a consumer may be computed repeatedly: a reduction whose terms come in several iterations
    may not, nor may parallel iterations write the same elements.
    """
    all_loops = (*move.around, *loops)
    moved = {each.var for each in move.around}
    if any(not moved.isdisjoint(axis.value.free_symbols) for axis in reduced_axes(stage)):
        trips = expand(sympy.Mul(*(each.end - each.begin for each in all_loops)))
        points = expand(sympy.Mul(*(axis.extent for axis in stage.axes)))
        if stage.where or trips != points:
            why = f"iterations of the loops around would add terms to {writes(stage)[0]} twice"
            raise refusal(
                "SM1027", move.what, why, "choose a loop in whose iterations all its terms are made"
            )
    for number, each in enumerate(all_loops[: len(move.around)]):
        if each.kind is not LoopKind.PARALLEL or trip_count(each) == 1:
            continue
        inner = in_loops(all_loops[number : len(move.around)], nest)
        assert isinstance(inner, For)
        for buffer in writes(stage):
            if not disjoint_iterations(inner, buffer, Facts().plus(all_loops)):
                why = f"two iterations of the parallel loop {named(each)} would write one element of {buffer}"
                raise refusal("SM1027", move.what, why)


def disjoint_iterations(loop: For, buffer: str, facts: Facts) -> bool:
    """Whether different iterations of a loop are known to touch different elements of a buffer."""
    boxes = [box_of(each, facts) for each in found_accesses(loop.body) if each.buffer == buffer]
    if not boxes:
        return True
    box: Box = boxes[0]
    for each in boxes[1:]:
        box = union(box, each, facts)
    for span in box:
        if span is None or loop.var not in symbols_in(span[0]):
            continue
        step, rest = linear(span[0], loop.var)
        if loop.var in symbols_in(rest) | symbols_in(step) or not facts.nonnegative(step - 1):
            continue
        if facts.nonnegative(step - 1 - (span[1] - span[0])):
            return True
    return False


# -- the new loops -------------------------------------------------------------------------------------------


def _regenerated(move: _Move, preserve: bool) -> tuple[Stage, list[For]]:
    """The stage with its axes at the new place, and its new loops."""
    stage = move.stage
    facts = Facts().plus(move.around)
    loose: set[Symbol] = set()
    spans = _needed(move, facts, loose)
    conditions = conditions_on_axes(stage)
    if isinstance(conditions, str):
        raise refusal("SM1026", move.what, conditions)
    fresh = Fresh(names_of(move.kernel))
    loops: list[For] = []
    axes: list[Axis] = []
    where: list[Boolean] = []
    for axis in stage.axes:
        low, count, limits = _clamped(spans.get(axis.var), axis, facts, axis.var in loose)
        value = low
        if preserve or count != 1:
            loop = For(fresh(f"ax{len(loops)}"), ZERO, count, Block(), label=f"ax{len(loops)}")
            loops.append(loop)
            value = low + loop.var
        axes.append(replace(axis, value=value))
        end = axis.begin + axis.extent
        where += [comparison(Ge, value, axis.begin)] if limits[0] else []
        where += [comparison(Lt, value, end)] if limits[1] else []
    values = {axis.var: axis.value for axis in axes}
    where += [map_condition(each, lambda expr: replaced(expr, values)) for each in conditions]
    return replace(stage, axes=tuple(axes), where=conjunction(where)), loops


def _clamped(
    span: Interval | None, axis: Axis, facts: Facts, loose: bool
) -> tuple[Expr, Expr, tuple[bool, bool]]:
    """The begin of an axis in an iteration, its extent, and whether it has to be clipped to the axis's range.
    A ``loose`` interval is only taken where it is smaller.
    """
    whole = span_of(axis)
    if span is None:
        return axis.begin, axis.extent, (False, False)
    span = intersection(span, whole, facts)
    count = extent(span, facts)
    if span == whole or (loose and facts.at_most(axis.extent, count)):
        return axis.begin, axis.extent, (False, False)
    low, last = span[0], span[0] + count - 1
    return low, count, (not facts.at_most(whole[0], low), not facts.at_most(last, whole[1]))


def _needed(move: _Move, facts: Facts, loose: set[Symbol]) -> Spans:
    """The values of each axis that an iteration of the loop needs; axes of which all values are needed are
    left out. ``loose`` receives the axes whose interval depends on other axes.
    """
    stage, shapes = move.stage, shapes_of(move.kernel)
    scopes = {each.buffer: each.scope for each in walk(move.kernel.body) if isinstance(each, Alloc)}
    others = found_accesses(move.loop.body)
    own = found_accesses(stage.body) + (found_accesses(stage.init) if stage.init else [])
    limits = {axis.var: span_of(axis) for axis in stage.axes}
    result: Spans | None = None
    used: list[Access] = []
    for buffer in reads(stage) if move.back else writes(stage):
        outside: Box | None = None
        for access in others:
            if access.buffer == buffer and access.is_store is move.back:
                spread = replace(
                    access, loops=(*_threads(move.around, scopes.get(buffer, "")), *access.loops)
                )
                box = box_of(spread, facts, shapes[buffer])
                outside = box if outside is None else union(outside, box, facts)
        if outside is None:
            continue
        for access in own:
            if access.buffer == buffer and access.is_store is not move.back:
                used.append(access)
                found = _solution(access, outside, limits, facts, loose)
                result = found if result is None else _either(result, found, facts)
    if move.back and result and all(each.masked for each in used):
        _check_reached(move, used, limits, shapes)
    return result or {}


def _check_reached(
    move: _Move,
    used: Sequence[Access],
    limits: Mapping[Symbol, Interval],
    shapes: Mapping[str, Sequence[Expr]],
) -> None:
    """Checks that masked loads stay within the region that is computed under the loop: otherwise some
    elements would never be computed.
    """
    top = move.target.loops[0] if move.target.loops else move.loop
    for access in used:
        if may_load_only(access, limits, found_accesses(top), shapes[access.buffer]):
            return
    why = f"elements that load nothing of {used[0].buffer} would not be computed"
    raise refusal("SM1027", move.what, why)


def may_load_only(
    access: Access, limits: Mapping[Symbol, Interval], stores: Sequence[Access], shape: Sequence[Expr]
) -> bool:
    """Whether the index of an access, masked or not, is always that of a stored element."""
    axes = Facts({var: high + 1 for var, (_, high) in limits.items()})
    read = box_of(replace(access, loops=(*limits.items(), *access.loops), limits=()), axes)
    for store in stores:
        inside = all(keeps_inside(each, store, shape) for each in store.guards)
        dense = store.is_store and store.buffer == access.buffer and inside and is_dense(store, Facts())
        if dense and None not in read and covers(box_of(store, Facts()), read, Facts()):
            return True
    return False


def _threads(around: Sequence[For], scope: str) -> tuple[tuple[Symbol, Interval], ...]:
    """The loops whose iterations fill shared memory together: the threads of a block."""
    if not scope.startswith("shared"):
        return ()
    return tuple(
        (each.var, (each.begin, each.end - 1))
        for each in around
        if each.thread is not None and each.thread.startswith(("threadIdx", "vthread"))
    )


def _solution(
    access: Access, box: Box, limits: Mapping[Symbol, Interval], facts: Facts, loose: set[Symbol]
) -> Spans:
    """The axis values for which an access of the stage meets a box."""
    result: Spans = {}
    if access.whole:
        return result
    inside = Facts({**facts.extents, **{var: high + 1 for var, (_, high) in access.loops}})
    for expr, span in zip(access.index, box, strict=True):
        ends = relaxed(expr, access.loops, inside)
        if span is None or ends is None:
            continue
        for var, found in solved(ends[0], ends[1], span, limits, facts).items():
            if len(symbols_in(ends[0]) & limits.keys()) > 1:
                loose.add(var)
            have = result.get(var)
            result[var] = found if have is None else _tighter(have, found, facts)
    return result


def _tighter(one: Interval, other: Interval, facts: Facts) -> Interval:
    """The tighter of two intervals that both contain the wanted values, bound by bound, or the narrower
    one.
    """
    found = intersection(one, other, facts)
    if found == one and facts.nonnegative((one[1] - one[0]) - (other[1] - other[0])):
        return other
    return found


def _either(one: Spans, other: Spans, facts: Facts) -> Spans:
    return {var: hull(one[var], other[var], facts) for var in one if var in other}


# -- conditions ----------------------------------------------------------------------------------------------


def comparison(kind: type[Relational], left: Expr, right: Expr) -> Boolean:
    """A comparison with the variable part on its left and numbers on its right."""
    number, rest = expand(left).as_coeff_Add()
    return kind(rest, right - number)


def in_buffer(index: Sequence[Expr], shape: Sequence[Expr], facts: Facts) -> list[Boolean]:
    """The conditions under which an index is in bounds, without those known to hold."""
    found: list[Boolean] = []
    for at, size in zip(index, shape, strict=True):
        if not facts.at_most(at + 1, size):
            found.append(comparison(Lt, at, size))
        if not facts.nonnegative(at):
            found.append(comparison(Ge, at, ZERO))
    return found


def conjunction(conditions: Sequence[Boolean]) -> tuple[Boolean, ...]:
    """The conditions of a stage without duplicates, in canonical order."""
    found = sympy.And(*conditions)
    return () if found == sympy.true else tuple(sympy.ordered(sympy.And.make_args(found)))


def conditions_on_axes(stage: Stage) -> list[Boolean] | str:
    """The conditions of a stage in terms of its axes, without those that the axis ranges imply; or the reason
    why that is impossible.
    """
    found: list[Boolean] = []
    limits = {axis.var: span_of(axis) for axis in stage.axes}
    own = {axis.var for axis in stage.axes}
    for condition in [part for each in stage.where for part in sympy.And.make_args(each)]:
        if not isinstance(condition, Relational):
            return f"its condition {condition} is no comparison"
        gap = expand(condition.lhs - condition.rhs)
        for axis in stage.axes:
            gap = _in_terms_of(gap, axis)
        loops = set().union(*(axis.value.free_symbols for axis in stage.axes))
        if not symbols_in(gap).isdisjoint(loops - own):
            return f"its condition {condition} cannot be expressed in its axes"
        said = comparison(condition.func, gap, ZERO)
        if not implied(said, limits, Facts()):
            found.append(said)
    return found


def _in_terms_of(expr: Expr, axis: Axis) -> Expr:
    """An expression in which a multiple of the axis's value is replaced by the axis."""
    for symbol in symbols_in(axis.value):
        own, _ = linear(axis.value, symbol)
        there, rest = linear(expr, symbol)
        if own == 0 or there == 0 or not own.is_Integer or not there.is_Integer or there % own != 0:
            continue
        if symbol in symbols_in(rest):
            continue
        changed = expand(expr - (there / own) * (axis.value - axis.var))
        if len(symbols_in(changed) - {axis.var}) < len(symbols_in(expr)):
            return changed
    return expr


def implied(condition: Boolean, limits: Mapping[Symbol, Interval], facts: Facts) -> bool:
    """Whether a comparison holds for all values of its symbols."""
    left = slack(condition)
    span = None if left is None else interval(left, limits, facts)
    return condition == sympy.true if span is None else facts.nonnegative(span[0])
