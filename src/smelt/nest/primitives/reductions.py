"""Primitives that part reductions: their beginning, or their terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sympy import Symbol

from smelt.nest.apart import apart
from smelt.nest.dependence import carried_updates, not_begun_once, not_placed
from smelt.nest.ir import (
    Accumulate,
    Alloc,
    Axis,
    AxisKind,
    Block,
    For,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Stage,
    Stmt,
    Store,
    Update,
)
from smelt.nest.primitives.common import in_loops, listed, loop_place, refused, stage_place
from smelt.nest.regions import found_accesses
from smelt.nest.scopes import (
    buffer_names,
    buffers,
    members,
    position,
    reads,
    renamed_stage,
    stage_names,
    unique_name,
    with_alloc,
    writes,
)
from smelt.nest.stages import KINDS, Fresh, identity, names_of
from smelt.nest.tree import (
    find,
    map_condition,
    named,
    replace_loop,
    substitute,
    trip_count,
    walk,
    with_body,
)
from smelt.records import replace
from smelt.symbolic import same
from smelt.symbolic.affine import replaced, symbols_in
from smelt.symbolic.text import python_text


def cascade(kernel: Kernel, var: Symbol) -> Kernel:
    """Give each turn of a reduced loop accumulators of its own, folded into the outer ones at its end.

    for i: for j: acc += x   →   for i: part = 0; for j: part += x; acc += part

    Sums stay accurate, because no accumulator takes more than one turn's terms.

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

    def redirect(block: Block) -> Block:
        stmts: list[Stmt] = []
        for stmt in block.stmts:
            if isinstance(stmt, For):
                stmts.append(replace(stmt, body=redirect(stmt.body)))
            elif isinstance(stmt, Update) and stmt.acc in parts:
                stmts.append(replace(stmt, acc=parts[stmt.acc]))
            else:
                stmts.append(stmt)
        return Block(tuple(stmts))

    opened = [Accumulate(part, "sum", kinds[name].dtype) for name, part in parts.items()]
    folded: list[Stmt] = []
    for name, part in parts.items():
        folded.append(Let(f"{part}_sum", kinds[name].dtype, "read", (part, 0)))
        folded.append(Update(name, f"{part}_sum"))
    body = Block((*opened, *redirect(loop.body).stmts, *folded))
    return with_body(kernel, replace_loop(kernel.body, var, lambda found: (replace(found, body=body),)))


def decompose_reduction(kernel: Kernel, name: str, var: Symbol) -> tuple[Kernel, str, str]:
    """Store the identity of a reduction in loops of its own, before a loop around it. Returns the kernel and
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
    reduced = {s for axis in _reduce_axes(stage) for s in symbols_in(axis.value)}
    for outer in place.loops[:at]:
        if outer.var in reduced:
            why = f"{named(outer)} around {named(loop)} is reduced over: each of its turns would begin anew"
            remedy = f"take {named(outer)}, or a loop around it"
            raise refused(kernel, method, name, why, code="SM1007", remedy=remedy)
    again = not_begun_once(stage, place.loops[at:]) or _used_before(stage, place.loops[at:])
    if again is not None:
        raise refused(kernel, method, name, again, code="SM1007")
    needed = spatial_loops(stage)
    for condition in stage.where:
        over = condition.free_symbols & {each.var for each in place.loops[at:]}
        if over - needed and not needed.isdisjoint(condition.free_symbols):
            why = f"the condition {python_text(condition)} is about what is reduced and what is not"
            raise refused(kernel, method, name, why, code="SM1007")
    used = stage_names(kernel)
    begun = unique_name(f"{name}_init", used)
    nest = first_values(stage, begun, place.loops[at:], Fresh(names_of(kernel)))
    rest = replace(stage, name=unique_name(f"{name}_update", used), init=None)
    kernel = renamed_stage(kernel, stage, rest)
    found = find(kernel.body, var)
    kernel = with_body(kernel, replace_loop(kernel.body, var, lambda _: (nest, found)))
    return kernel, begun, rest.name


def spatial_loops(stage: Stage) -> set[Symbol]:
    """The loops (and sizes) that the spatial axes of a stage are made of."""
    spatial = (axis for axis in stage.axes if axis.kind is not AxisKind.REDUCE)
    return {symbol for axis in spatial for symbol in symbols_in(axis.value)}


def first_values(stage: Stage, name: str, around: Sequence[For], fresh: Callable[[str], Symbol]) -> Stmt:
    """What a reduction begins with, as a stage of its own, in copies of those of the loops ``around`` that
    its spatial axes need. Conditions on others are left out.

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
    spatial = [axis for axis in stage.axes if axis.kind is not AxisKind.REDUCE]
    axes = [_copy(axis, fresh, new, "_init") for axis in spatial]
    renamed = {axis.var: made.var for axis, made in zip(spatial, axes)}
    where = [each for each in stage.where if dropped.isdisjoint(each.free_symbols)]
    where = [map_condition(each, lambda expr: replaced(expr, new)) for each in where]
    begun = Stage(name, tuple(axes), substitute(stage.init, renamed), where=tuple(where), notes=stage.notes)
    return in_loops([_again(each, new, "_init") for each in inside], begun)


def _used_before(stage: Stage, around: Sequence[For]) -> str | None:
    """Why another stage in the loops around a reduction may touch an element before it is begun."""
    for loop in around:
        inside = members(loop.body)
        here = position(inside, stage)
        for buffer in writes(stage):
            users = [n for n, each in enumerate(inside) if buffer in (*reads(each), *writes(each))]
            others = [number for number in users if number != here]
            if not others:
                continue
            found = [access for access in found_accesses(loop.body) if access.buffer == buffer]
            known = all(apart(one, other, loop) for one in found for other in found)
            if min(others) < here or not known:
                return f"{inside[min(others)].name} uses {buffer} in the same loop over {named(loop)}"
    return None


def _reduce_axes(stage: Stage) -> list[Axis]:
    return [axis for axis in stage.axes if axis.kind is AxisKind.REDUCE]


def rfactor(kernel: Kernel, var: Symbol, factor_axis: int) -> tuple[Kernel, str]:
    """Part a reduction by one of its loops: each turn sums for itself, then the sums are added. Returns the
    kernel and the name of the stage of the parts.

    for i: for k0: for k1: C[i] += A[i, k0*4 + k1]      (over k0)
        →   for i: for k0: for k1: C_rf[i, k0] += A[i, k0*4 + k1]
            for i: for k0: C[i] += C_rf[i, k0]

    ``factor_axis``: the dimension of C_rf that tells the turns apart.

    Raises:
        ScheduleError: SM1007, the stage is no such reduction, or its loops are not; SM1003, the loop holds
            more than one stage; SM1004, there is no such dimension.
    """
    loop, place = loop_place(kernel, var, "rfactor")
    inside, chain = members(loop.body), _only(loop)
    if chain is None or len(inside) != 1 or chain[-1] is not inside[0]:
        raise refused(kernel, "rfactor", var, f"{named(loop)} holds more than one stage alone")
    (stage,) = inside
    around = [*place.loops, *(each for each in chain if isinstance(each, For))]
    store, first = _sum_of(kernel, stage, var)
    why = _not_parted(kernel, stage, store, around, loop)
    if why is not None:
        raise refused(kernel, "rfactor", var, why, code="SM1007")
    dims = len(store.index)
    if not -dims - 1 <= factor_axis <= dims:
        why = f"factor_axis is {factor_axis}, {store.buffer} has {dims} dimensions"
        remedy = f"from {-dims - 1} to {dims}"
        raise refused(kernel, "rfactor", var, why, code="SM1004", remedy=remedy)
    at = factor_axis % (dims + 1)
    fresh, names = Fresh(names_of(kernel)), Fresh(_values(kernel))
    spatial = [axis for axis in stage.axes if axis.kind is not AxisKind.REDUCE]
    over = {symbol for axis in _reduce_axes(stage) for symbol in symbols_in(axis.value)}
    dropped = [each for each in around if each.var in over and each is not loop]

    # the parts
    new_loops = {each.var: fresh(named(each)) for each in around}
    own = Axis(
        fresh(f"v_{named(loop)}"), trip_count(loop), new_loops[var] - loop.begin, label=f"v_{named(loop)}"
    )
    axes, meant, by_loop = [own], {}, {var: own.var + loop.begin}
    for axis in spatial:
        axes.append(_copy(axis, fresh, new_loops))
        meant[axis.var] = axes[-1].var
    for axis in _reduce_axes(stage):
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
    used = buffer_names(kernel)
    parts = unique_name(f"{store.buffer}_rf", used)
    part_name = unique_name(f"{stage.name}_rf", stage_names(kernel))
    index = [replaced(expr, meant) for expr in store.index]
    index.insert(at, own.var)
    still = any(axis.kind is AxisKind.REDUCE for axis in axes)
    steps = substitute(Block(stage.body.stmts[:-1]), meant)
    part_store = Store(parts, tuple(index), store.value, store.mode if still else None)
    begin = None
    if still:
        constant = replace(first, name=names(first.name).name)
        begin = Block((constant, Store(parts, tuple(index), constant.name)))
    part = Stage(part_name, tuple(axes), Block((*steps.stmts, part_store)), begin, notes=stage.notes)
    nest = in_loops([_again(each, new_loops) for each in around], part)

    # their sum
    number = Axis(fresh(own.label), own.extent, var - loop.begin, AxisKind.REDUCE, label=own.label)
    read = list(store.index)
    read.insert(at, number.var)
    summed = buffers(kernel)[store.buffer]
    load = Let(names(f"{parts}_value").name, summed.dtype, "load", (parts, tuple(read)))
    rest = replace(
        stage, axes=(number, *spatial), body=Block((load, replace(store, value=load.name))), where=()
    )
    kernel = renamed_stage(kernel, stage, rest)
    for each in dropped:
        kernel = with_body(kernel, replace_loop(kernel.body, each.var, lambda found: found.body.stmts))
    outer = find(kernel.body, next(each.var for each in around if each not in dropped))
    whole = list(summed.shape)
    whole.insert(at, own.extent)
    alloc = Alloc(parts, summed.dtype, tuple(whole))
    if place.scope is None:
        body = replace_loop(kernel.body, outer.var, lambda _: (nest, outer))
        return with_body(kernel, with_alloc(body, alloc)), part_name
    kernel = with_body(kernel, replace_loop(kernel.body, outer.var, lambda _: (alloc, nest, outer)))
    return kernel, part_name


def _copy(
    axis: Axis, fresh: Callable[[str], Symbol], loops_of: Mapping[Symbol, Symbol], suffix: str = ""
) -> Axis:
    """An axis with another variable, over copies of loops."""
    label = f"{axis.label or axis.var.name}{suffix}"
    return replace(axis, var=fresh(label), value=replaced(axis.value, loops_of), label=label)


def _again(loop: For, loops_of: Mapping[Symbol, Symbol], suffix: str = "") -> For:
    """A loop with another variable, in copies of loops."""
    begin, end = replaced(loop.begin, loops_of), replaced(loop.end, loops_of)
    return replace(loop, var=loops_of[loop.var], begin=begin, end=end, label=f"{named(loop)}{suffix}")


def _only(loop: For) -> list[Stmt] | None:
    """What a loop holds, from it down to a stage, where each holds nothing else."""
    found: list[Stmt] = [loop]
    while isinstance(found[-1], For):
        if len(found[-1].body.stmts) != 1:
            return None
        found.append(found[-1].body.stmts[0])
    return found if isinstance(found[-1], Stage) else None


def _sum_of(kernel: Kernel, stage: Stage, var: Symbol) -> tuple[Store, Let]:
    """The store of a plain reduction, and the constant that it begins with.

    Raises:
        ScheduleError: SM1007, the stage is none.
    """
    why = None
    *steps, store = stage.body.stmts
    if stage.init is None:
        why = f"{stage.name} is no reduction: it has no init"
    elif stage.where:
        why = f"{stage.name} runs only where {python_text(stage.where[0])}"
    elif not isinstance(store, Store) or store.mode is None or store.mode not in KINDS:
        why = f"{stage.name} does not add, multiply, or take the larger or the smaller"
    elif not all(isinstance(step, (Let, Masked)) for step in steps):
        why = f"{stage.name} stores more than one value"
    else:
        first = _begins(stage, store)
        start = identity(KINDS[store.mode], buffers(kernel)[store.buffer].dtype)
        if first is None:
            why = f"{stage.name} does not begin where it goes on"
        elif first.args[0] != start:
            why = f"{stage.name} does not begin with {start}"
        else:
            return store, first
    remedy = "split into factors that divide the extent" if stage.where else None
    raise refused(kernel, "rfactor", var, why, code="SM1007", remedy=remedy)


def _begins(stage: Stage, store: Store) -> Let | None:
    """The constant that the init of a stage stores where its body does; None where it does not."""
    if stage.init is None or len(stage.init.stmts) != 2:
        return None
    first, begun = stage.init.stmts
    if not isinstance(first, Let) or first.op != "constant" or not isinstance(begun, Store):
        return None
    return first if (begun.buffer, begun.index) == (store.buffer, store.index) else None


def _not_parted(kernel: Kernel, stage: Stage, store: Store, around: Sequence[For], loop: For) -> str | None:
    """Why a reduction cannot be parted by a loop; None where it can."""
    reduced = {axis.var for axis in _reduce_axes(stage)}
    label = {axis.var: axis.label or axis.var.name for axis in stage.axes}
    if any(not reduced.isdisjoint(symbols_in(expr)) for expr in store.index):
        return f"where {stage.name} stores depends on what it reduces over"
    if any(isinstance(s, Let) and s.op == "load" and s.args[0] == store.buffer for s in walk(stage.body)):
        return f"{stage.name} reads {store.buffer} besides adding to it"
    if loop.kind is not LoopKind.SERIAL or loop.thread is not None:
        return f"{named(loop)} is {loop.thread or loop.kind.value}"
    why = not_placed(stage, [each.var for each in around]) or not_begun_once(stage, around)
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
    shape = buffers(kernel)[store.buffer].shape
    extents = {axis.var: axis.extent for axis in stage.axes}
    shared = any(stmt.buffer == store.buffer for stmt in walk(kernel.body) if isinstance(stmt, Alloc))
    parts = [(extents.get(expr, size), size) for expr, size in zip(store.index, shape)]
    if shared and not all(same(extent, size) for extent, size in parts):
        return f"{stage.name} makes only a part of {store.buffer}"
    return None


def _values(kernel: Kernel) -> set[str]:
    return {stmt.name for stmt in walk(kernel.body) if isinstance(stmt, (Let, Masked, Accumulate))}
