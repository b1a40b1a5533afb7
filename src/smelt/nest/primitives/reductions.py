"""Primitives that split reductions: their initialization, or their terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import sympy
from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.nest.dependence import carried_updates, not_initialized_once, not_placed
from smelt.nest.disjoint import disjoint
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Alloc,
    Axis,
    AxisKind,
    Block,
    Carry,
    For,
    Kernel,
    Let,
    LoopKind,
    Param,
    Stage,
    Stmt,
    Store,
    Update,
)
from smelt.nest.primitives.combiners import Combiner, combiner_of
from smelt.nest.primitives.common import in_loops, inner_loop, listed, loop_place, refused, stage_place
from smelt.nest.primitives.copies import value_names
from smelt.nest.primitives.kinds import renamed
from smelt.nest.regions import found_accesses, slack
from smelt.nest.scopes import (
    buffer_names,
    buffers,
    members,
    position,
    reads,
    shapes_of,
    stage_names,
    unique_name,
    with_alloc,
    writes,
)
from smelt.nest.stages import Fresh, names_of
from smelt.nest.tree import (
    exchanged,
    find,
    map_condition,
    named,
    nested,
    other_axes,
    reduced_axes,
    replace_loop,
    rewritten,
    substitute,
    trip_count,
    walk,
    with_body,
)
from smelt.records import replace
from smelt.symbolic import same
from smelt.symbolic.affine import expand, replaced, symbols_in
from smelt.symbolic.bounds import is_nonnegative
from smelt.symbolic.text import python_text


def cascade(kernel: Kernel, var: Symbol) -> Kernel:
    """Gives each iteration of a reduced loop accumulators of its own, which are added to the outer ones at
    its end.

    for i: for j: acc += x   →   for i: part = 0; for j: part += x; acc += part

    Sums stay accurate, because no accumulator takes more than one iteration's terms.

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1007, an accumulator is not a plain sum.
    """
    loop, _ = loop_place(kernel, var, "cascade")
    kinds = {s.name: s for s in walk(kernel.body) if isinstance(s, Accumulate)}
    outside = {update.acc for update in carried_updates(loop)}
    for name in outside:
        if kinds[name].kind != "sum":
            why = f"{name} is a {kinds[name].kind}, not a sum"
            raise refused(kernel, "cascade", var, why, code="SM1007")
    parts = {name: f"{name}_part{len(kinds)}" for name in sorted(outside)}
    of = {s.args[0]: s.of for s in walk(kernel.body) if isinstance(s, Let) and s.op == "read"}

    def redirect(stmt: Stmt) -> Sequence[Stmt] | None:
        if isinstance(stmt, Update) and stmt.acc in parts:
            return [replace(stmt, acc=parts[stmt.acc])]
        return None

    opened = [Accumulate(part, "sum", kinds[name].dtype) for name, part in parts.items()]
    folded: list[Stmt] = []
    for name, part in parts.items():
        folded.append(Let(f"{part}_sum", kinds[name].dtype, "read", (part, 0), of=of.get(name, ())))
        folded.append(Update(name, f"{part}_sum"))
    body = Block((*opened, *rewritten(loop.body, redirect).stmts, *folded))
    return with_body(kernel, replace_loop(kernel.body, var, lambda found: (replace(found, body=body),)))


def accumulate_in_lanes(kernel: Kernel, variables: Sequence[Symbol]) -> Kernel:
    """Sums products over some loops, one in another, for each iteration of the innermost one separately; it
    becomes the outermost, and its iterations can be lanes.

    for g: for j: v = a * b; acc += v   →   for j: s = 0; for g: s = fma(a, b, s); acc += s

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1003, the loops are not perfectly nested; SM1007, the
            innermost one does something else than to add products to accumulators.
    """
    found = [loop_place(kernel, var, "accumulate_in_lanes")[0] for var in variables]
    outer, lane = found[0], found[-1]
    if any(inner_loop(around) is not inner for around, inner in pairwise(found)):
        raise refused(kernel, "accumulate_in_lanes", outer.var, "the loops hold something else")
    kinds = {s.name: s for s in walk(kernel.body) if isinstance(s, Accumulate)}
    made = {s.name: s for s in lane.body.stmts if isinstance(s, Let) and s.op == "mul"}
    updates = [s for s in walk(lane.body) if isinstance(s, Update)]
    plain = all(s.value in made and kinds[s.acc].kind == "sum" and s in lane.body.stmts for s in updates)
    if not plain or len({s.acc for s in updates}) < len(updates):
        why = "its iterations do something else than to add one product to each of some sums"
        raise refused(kernel, "accumulate_in_lanes", lane.var, why, code="SM1007")
    body: list[Stmt] = []
    opened: list[Stmt] = []
    folded: list[Stmt] = []
    for stmt in lane.body.stmts:
        if not isinstance(stmt, Update):
            body.append(stmt)
            continue
        total, product = f"{stmt.acc}_lanes", made[stmt.value]
        opened.append(Carry(total, product.dtype, 0.0))
        before = replace(product, name=f"{total}_before", op="read", args=(total, 0))
        body += [before, replace(product, name=f"{total}_after", op="fma", args=(*product.args, before.name))]
        body.append(Advance(total, f"{total}_after"))
        folded.append(replace(before, name=f"{total}_sum"))
        folded.append(Update(stmt.acc, f"{total}_sum"))
    read = {arg for s in walk(Block(tuple(body))) if isinstance(s, Let) for arg in s.args}
    kept = Block(tuple(s for s in body if s not in made.values() or s.name in read))  # type: ignore[union-attr]
    nest = in_loops(found[:-1], kept)
    whole = replace(lane, body=Block((*opened, nest, *folded)))
    return with_body(kernel, replace_loop(kernel.body, outer.var, lambda _: (whole,)))


def decompose_reduction(kernel: Kernel, name: str, var: Symbol) -> tuple[Kernel, str, str]:
    """Stores the identity of a reduction in loops of its own, before a loop around it. Returns the kernel and
    the names of the two stages.

    for i: for k: C (init: C[i] = 0; C[i] += A[i, k])
        →   for i: { C_init: C[i] = 0; for k: C_update: C[i] += A[i, k] }      (before k)

    Raises:
        ScheduleError: SM1007, the stage has no init, or a loop further out is reduced over; SM1003, the loop
            is not around the stage.
    """
    stage, place = stage_place(kernel, name, "decompose_reduction")
    loop, _ = loop_place(kernel, var, "decompose_reduction")
    method = f"decompose_reduction at {named(loop)}"
    if stage.init is None:
        raise refused(kernel, method, name, "it is no reduction: it has no init", code="SM1007")
    if loop not in place.loops:
        raise refused(kernel, method, name, f"{named(loop)} is not around it in its scope")
    at = place.loops.index(loop)
    reduced = {s for axis in reduced_axes(stage) for s in symbols_in(axis.value)}
    for outer in place.loops[:at]:
        if outer.var in reduced:
            why = (
                f"{named(outer)} around {named(loop)} is reduced over: its iterations would initialize again"
            )
            remedy = f"take {named(outer)}, or a loop around it"
            raise refused(kernel, method, name, why, code="SM1007", remedy=remedy)
    again = not_initialized_once(stage, place.loops[at:]) or _used_before(stage, place.loops[at:])
    if again is not None:
        raise refused(kernel, method, name, again, code="SM1007")
    needed = spatial_loops(stage)
    for condition in stage.where:
        over = condition.free_symbols & {each.var for each in place.loops[at:]}
        if over - needed and not needed.isdisjoint(condition.free_symbols):
            why = f"the condition {python_text(condition)} mixes reduce axes and others"
            raise refused(kernel, method, name, why, code="SM1007")
    used = stage_names(kernel)
    begun = unique_name(f"{name}_init", used)
    nest = first_values(stage, begun, place.loops[at:], Fresh(names_of(kernel)))
    rest = replace(stage, name=unique_name(f"{name}_update", used), init=None)
    kernel = exchanged(kernel, stage, rest)
    found = find(kernel.body, var)
    kernel = with_body(kernel, replace_loop(kernel.body, var, lambda _: (nest, found)))
    return kernel, begun, rest.name


def spatial_loops(stage: Stage) -> set[Symbol]:
    """The loops (and sizes) in the values of a stage's spatial axes."""
    return {symbol for axis in other_axes(stage) for symbol in symbols_in(axis.value)}


def first_values(stage: Stage, name: str, around: Sequence[For], fresh: Callable[[str], Symbol]) -> Stmt:
    """The initialization of a reduction as a stage of its own, in copies of those of the loops ``around``
    that its spatial axes need. Conditions on other loops are left out.

    for i: for k: C (init: C[i] = 0; C[i] += A[i, k])   →   for i_init: C[i_init] = 0
    """
    assert stage.init is not None
    needed = spatial_loops(stage)
    for each in reversed(around):
        if each.var in needed:
            needed |= symbols_in(each.begin) | symbols_in(each.end)
    inside = [each for each in around if each.var in needed or each.thread is not None]
    new = {each.var: fresh(f"{named(each)}_init") for each in inside}
    dropped = {each.var for each in around} - set(new)
    spatial = other_axes(stage)
    axes = [_copy(axis, fresh, new, "_init") for axis in spatial]
    renamed = {axis.var: made.var for axis, made in zip(spatial, axes)}
    where = [each for each in stage.where if dropped.isdisjoint(each.free_symbols)]
    where = [map_condition(each, lambda expr: replaced(expr, new)) for each in where]
    begun = Stage(name, tuple(axes), substitute(stage.init, renamed), where=tuple(where), notes=stage.notes)
    return in_loops([_again(each, new, "_init") for each in inside], begun)


def _used_before(stage: Stage, around: Sequence[For]) -> str | None:
    """The reason why another stage in the loops around a reduction may touch an element before it is
    initialized; None where none does.
    """
    for loop in around:
        inside = members(loop.body)
        here = position(inside, stage)
        for buffer in writes(stage):
            users = [n for n, each in enumerate(inside) if buffer in (*reads(each), *writes(each))]
            others = [number for number in users if number != here]
            if not others:
                continue
            found = [access for access in found_accesses(loop.body) if access.buffer == buffer]
            known = all(disjoint(one, other, loop) for one in found for other in found)
            if min(others) < here or not known:
                return f"{inside[min(others)].name} uses {buffer} in the same loop over {named(loop)}"
    return None


def rfactor(kernel: Kernel, var: Symbol, factor_axis: int) -> tuple[Kernel, str]:
    """Splits a reduction by one of its loops: each iteration computes a partial sum, then the partial sums
    are added. Returns the kernel and the name of the stage of partial sums.

    for i: for k0: for k1: C[i] += A[i, k0*4 + k1]      (over k0)
        →   for i: for k0: for k1: C_rf[i, k0] += A[i, k0*4 + k1]
            for i: for k0: C[i] += C_rf[i, k0]

    ``factor_axis``: the dimension of C_rf that belongs to the loop. A stage that combines several values
    (argmax: position and value) has a buffer of partial results for each; ties may be broken differently.
    Partial sums run under the conditions of the stage.

    Raises:
        ScheduleError: SM1007, the stage is no such reduction, or its loops are not; SM1003, the loop holds
            more than one stage; SM1004, there is no such dimension.
    """
    loop, place = loop_place(kernel, var, "rfactor")
    chain, held = nested(loop)
    stage = held[0] if len(held) == 1 else None
    if not isinstance(stage, Stage):
        raise refused(kernel, "rfactor", var, f"{named(loop)} holds more than one stage alone")
    around = [*place.loops, *chain]
    declared = buffers(kernel)
    of = combiner_of(stage, {name: each.dtype for name, each in declared.items()})
    if isinstance(of, str):
        raise refused(kernel, "rfactor", var, of, code="SM1007")
    over = {symbol for axis in reduced_axes(stage) for symbol in symbols_in(axis.value)}
    dropped = [each for each in around if each.var in over and each is not loop]
    why, where = _not_splittable(kernel, stage, of, around, loop), not_empty(stage, around, dropped)
    if where is None and why is None:
        why = f"a part of {stage.name} may be initialized in a later iteration than its first"
    if why is not None:
        raise refused(kernel, "rfactor", var, why, code="SM1007")
    dims = len(of.index)
    if not -dims - 1 <= factor_axis <= dims:
        why = f"factor_axis is {factor_axis}, {of.stores[0].buffer} has {dims} dimensions"
        remedy = f"from {-dims - 1} to {dims}"
        raise refused(kernel, "rfactor", var, why, code="SM1004", remedy=remedy)
    at = factor_axis % (dims + 1)
    fresh, names = Fresh(names_of(kernel)), Fresh(value_names(kernel))
    spatial = other_axes(stage)

    # the parts
    new_loops = {each.var: fresh(named(each)) for each in around}
    own = Axis(
        fresh(f"v_{named(loop)}"), trip_count(loop), new_loops[var] - loop.begin, label=f"v_{named(loop)}"
    )
    axes, meant, by_loop = [own], {}, {var: own.var + loop.begin}
    for axis in spatial:
        axes.append(_copy(axis, fresh, new_loops))
        meant[axis.var] = axes[-1].var
    for axis in reduced_axes(stage):
        if not axis.value.has(var):
            axes.append(_copy(axis, fresh, new_loops))
            meant[axis.var] = axes[-1].var
            continue
        for each in dropped:
            if axis.value.has(each.var) and each.var not in by_loop:
                label = f"v_{named(each)}"
                value = new_loops[each.var] - each.begin
                axes.append(Axis(fresh(label), trip_count(each), value, AxisKind.REDUCE, label=label))
                by_loop[each.var] = axes[-1].var + each.begin
        meant[axis.var] = replaced(axis.value, by_loop)
    used, parts = buffer_names(kernel), dict[str, str]()
    for store in of.stores:
        parts[store.buffer] = unique_name(f"{store.buffer}_rf", used)
        used.add(parts[store.buffer])
    part_name = unique_name(f"{stage.name}_rf", stage_names(kernel))

    def index(own_var: Symbol, where: Mapping[Symbol, Expr]) -> tuple[Expr, ...]:
        found = [replaced(expr, where) for expr in of.index]
        return (*found[:at], own_var, *found[at:])

    still = any(axis.kind is AxisKind.REDUCE for axis in axes)
    element = index(own.var, meant)
    body, begin = _parts_body(of, parts, element, meant, names, still)
    kept = tuple(map_condition(each, lambda expr: replaced(expr, new_loops)) for each in stage.where)
    part = Stage(part_name, tuple(axes), body, begin, kept, stage.notes)
    nest = in_loops([_again(each, new_loops) for each in around], part)

    # their sum
    number = Axis(fresh(own.label), own.extent, var - loop.begin, AxisKind.REDUCE, label=own.label)
    rest = replace(
        stage,
        axes=(number, *spatial),
        body=_sum_body(of, parts, index(number.var, {}), declared, names),
        where=where or (),
    )
    kernel = exchanged(kernel, stage, rest)
    for each in dropped:
        kernel = with_body(kernel, replace_loop(kernel.body, each.var, lambda found: found.body.stmts))
    outer = find(kernel.body, next(each.var for each in around if each not in dropped))
    allocs = []
    for name, each_part in parts.items():
        dtype, shape = declared[name].dtype, declared[name].shape
        allocs.append(Alloc(each_part, dtype, (*shape[:at], own.extent, *shape[at:])))
    if place.scope is None:
        body = replace_loop(kernel.body, outer.var, lambda _: (nest, outer))
        return with_body(kernel, with_alloc(body, *allocs)), part_name
    kernel = with_body(kernel, replace_loop(kernel.body, outer.var, lambda _: (*allocs, nest, outer)))
    return kernel, part_name


def _parts_body(
    of: Combiner,
    parts: Mapping[str, str],
    element: tuple[Expr, ...],
    meant: Mapping[Symbol, Expr],
    names: Fresh,
    still: bool,
) -> tuple[Block, Block | None]:
    """The body and initialization of a partial reduction; the terms themselves, where each has one term."""
    if not still:
        plain = substitute(Block(of.term_steps()), meant).stmts
        stores = [Store(parts[s.buffer], element, term) for s, term in zip(of.stores, of.terms)]
        return Block((*plain, *stores)), None
    states = dict(of.states)

    def moved(stmt: Stmt) -> list[Stmt] | None:
        if isinstance(stmt, Let) and stmt.name in states:
            return [replace(stmt, args=(parts[stmt.args[0]], element))]
        return None

    stmts = rewritten(substitute(Block(of.steps), meant), moved).stmts
    stores = [replace(s, buffer=parts[s.buffer], index=element) for s in of.stores]
    firsts = [replace(first, name=names(first.name).name) for first in of.firsts]
    begun = [Store(s.buffer, element, first.name) for s, first in zip(stores, firsts)]
    return Block((*stmts, *stores)), Block((*firsts, *begun))


def _sum_body(
    of: Combiner,
    parts: Mapping[str, str],
    element: tuple[Expr, ...],
    declared: Mapping[str, Param | Alloc],
    names: Fresh,
) -> Block:
    """The statements that combine the partial results."""
    loads, known = [], dict[str, str]()
    for store, term in zip(of.stores, of.terms):
        part, dtype = parts[store.buffer], declared[store.buffer].dtype
        loads.append(Let(names(f"{part}_value").name, dtype, "load", (part, element)))
        known[term] = loads[-1].name
    for state, buffer in of.states:
        name, place = names(f"{buffer}_value").name, (buffer, of.index)
        loads.append(Let(name, declared[buffer].dtype, "load", place))
        known[state] = name
    steps = []
    for step in of.combining:
        known[step.name] = names(step.name).name
        steps.append(renamed(step, known))
    stores = [replace(store, value=known[store.value]) for store in of.stores]
    return Block((*loads, *steps, *stores))


def not_empty(stage: Stage, around: Sequence[For], dropped: Sequence[For]) -> tuple[Boolean, ...] | None:
    """The conditions under which a partial reduction has terms: those of its first iteration; None where a
    condition may become true in a later iteration.
    """
    begins = {each.var: each.begin for each in dropped}
    shifted = {each.var: each.begin + each.var for each in around}
    trips = {each.var: trip_count(each) for each in around}
    found = []
    for condition in stage.where:
        first = map_condition(condition, lambda expr: replaced(expr, begins))
        if first == sympy.true:
            continue
        now, later = slack(condition), slack(first)
        if now is None or later is None or not is_nonnegative(expand(replaced(later - now, shifted)), trips):
            return None
        if not is_nonnegative(expand(replaced(later, shifted)), trips):
            found.append(first)
    return tuple(found)


def _copy(
    axis: Axis, fresh: Callable[[str], Symbol], loops_of: Mapping[Symbol, Symbol], suffix: str = ""
) -> Axis:
    """A copy of an axis with another variable, over copies of loops."""
    label = f"{named(axis)}{suffix}"
    return replace(axis, var=fresh(label), value=replaced(axis.value, loops_of), label=label)


def _again(loop: For, loops_of: Mapping[Symbol, Symbol], suffix: str = "") -> For:
    """A copy of a loop with another variable, in copies of loops."""
    begin, end = replaced(loop.begin, loops_of), replaced(loop.end, loops_of)
    return replace(loop, var=loops_of[loop.var], begin=begin, end=end, label=f"{named(loop)}{suffix}")


def _not_splittable(
    kernel: Kernel, stage: Stage, of: Combiner, around: Sequence[For], loop: For
) -> str | None:
    """The reason why a reduction cannot be split by a loop; None where it can."""
    reduced = {axis.var for axis in reduced_axes(stage)}
    label = {axis.var: named(axis) for axis in stage.axes}
    if any(not reduced.isdisjoint(symbols_in(expr)) for expr in of.index):
        return f"the index at which {stage.name} stores depends on a reduce axis"
    if loop.kind is not LoopKind.SERIAL or loop.thread is not None:
        return f"{named(loop)} is {loop.thread or loop.kind.value}"
    why = not_placed(stage, [each.var for each in around]) or not_initialized_once(stage, around)
    if why is not None:
        return why
    for each in around:
        uses = [axis for axis in stage.axes if axis.value.has(each.var)]
        kinds_of = {axis.kind for axis in uses}
        if each is loop and AxisKind.SPATIAL in kinds_of:
            return f"{named(loop)} is not reduced over: it is in {label[uses[0].var]}"
        if each is not loop and len(kinds_of) > 1:
            return f"{named(each)} is in {listed(label[axis.var] for axis in uses)}, one of them reduced over"
        if kinds_of == {AxisKind.REDUCE} and len(each.body.stmts) != 1:
            return f"{named(each)}, which is reduced over too, holds more than {stage.name}"
    if not any(axis.value.has(loop.var) for axis in stage.axes) and trip_count(loop) != 1:
        return f"{named(loop)} is not reduced over: no axis of {stage.name} depends on it"
    needed = set(reads(stage))
    for other in members(Block((around[0],))):
        made = needed & set(writes(other))
        if other is not stage and made:
            return f"{stage.name} reads {min(made)}, which {other.name} writes in the same loop"
    extents, shapes = {axis.var: axis.extent for axis in stage.axes}, shapes_of(kernel)
    scratch = {stmt.buffer for stmt in walk(kernel.body) if isinstance(stmt, Alloc)}
    for store in of.stores:
        sizes = [(extents.get(expr, size), size) for expr, size in zip(store.index, shapes[store.buffer])]
        if store.buffer in scratch and not all(same(extent, size) for extent, size in sizes):
            return f"{stage.name} makes only a part of {store.buffer}"
    return None
