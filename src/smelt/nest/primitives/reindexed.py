"""Copies of buffers in a layout that the user chooses: indexed by a map of the block's axes."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
from sympy import Expr, Symbol
from sympy.core.relational import Lt
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import Alloc, Axis, AxisKind, For, Kernel, Stage, Stmt
from smelt.nest.primitives.caches import check_memory, chosen, insert_at, meeting
from smelt.nest.primitives.common import refusal, stage_place
from smelt.nest.primitives.copies import Values, copying
from smelt.nest.primitives.inline import inverted
from smelt.nest.primitives.layouts import IndexMap, indices_of, mapped, shape_of
from smelt.nest.primitives.places import comparison, in_buffer
from smelt.nest.regions import Facts, extent, relaxed
from smelt.nest.scopes import (
    Place,
    buffer_names,
    buffers,
    first_step,
    members,
    position,
    reads,
    scope_body,
    shapes_of,
    stage_names,
    unique_name,
    writes,
)
from smelt.nest.tree import exchanged, named, redirected, stages, with_blocks
from smelt.records import replace
from smelt.symbolic import loop_var
from smelt.symbolic.affine import replaced, symbols_in

ZERO = sympy.Integer(0)


def reindex_cache_read(
    kernel: Kernel, stage: str, buffer: int | str, scope: str, index_map: IndexMap
) -> tuple[Kernel, str]:
    """Makes a block read a copy of a buffer that is indexed by a map of the block's axes; returns the copy's
    block.

    for i, j: C[i, j] = B[i, j]   →   for ax0, ax1: B_shared[ax1, ax0 // 2, ax0 % 2] = B[ax0, ax1]
                                      for i, j: C[i, j] = B_shared[j, i // 2, i % 2]

    Raises:
        ScheduleError: SM1002 there is no such block; SM1031 it reads no such buffer, or at several places;
        SM1032 there is no such memory; SM1033 several blocks write the buffer; SM1035 the map is not
        injective on the elements that the block reads.
    """
    what = f"reindex_cache_read of {stage}"
    target, place = stage_place(kernel, stage, what)
    name = chosen(buffer, reads(target), "reads", what)
    return _reindexed(kernel, place, name, scope, index_map, what, stored=False)


def reindex_cache_write(
    kernel: Kernel, stage: str, buffer: int | str, scope: str, index_map: IndexMap
) -> tuple[Kernel, str]:
    """Makes a block write a buffer that is indexed by a map of the block's axes, and copies that; returns the
    copy's block.

    for i, j: B[i, j] = A[i, j]   →   for i, j: B_shared[j, i] = A[i, j]
                                      for ax0, ax1: B[ax0, ax1] = B_shared[ax1, ax0]

    Raises:
        ScheduleError: as `reindex_cache_read`.
    """
    what = f"reindex_cache_write of {stage}"
    target, place = stage_place(kernel, stage, what)
    name = chosen(buffer, writes(target), "writes", what)
    return _reindexed(kernel, place, name, scope, index_map, what, stored=True)


def _reindexed(
    kernel: Kernel, place: Place, buffer: str, scope: str, index_map: IndexMap, what: str, stored: bool
) -> tuple[Kernel, str]:
    target = place.stage
    check_memory(scope, what)
    limits = {axis.var: axis.begin + axis.extent for axis in target.axes}
    found = indices_of(target, buffer, limits)
    if len(found) != 1 or stages(target.body):
        raise refusal("SM1031", what, f"it does not use {buffer} at a single place")
    (index,) = found
    made, shape = _places(target, index, index_map, what)
    used = [axis for axis in target.axes if axis.var in symbols_in(sympy.Tuple(*index))]
    if stored and any(axis.kind is not AxisKind.SPATIAL for axis in used):
        raise refusal("SM1031", what, f"the index at which it writes {buffer} depends on a reduce axis")
    path, number = _location(kernel, place, buffer, what, stored)
    values = Values(kernel)
    name = unique_name(f"{buffer}_{scope.replace('.', '_')}", buffer_names(kernel) | stage_names(kernel))
    nest = _copy(kernel, place, buffer, name, index, made, used, path, values, stored)

    alloc = Alloc(name, buffers(kernel)[buffer].dtype, shape, "" if scope == "global" else scope)
    changed = insert_at(kernel, path, number, nest, place.scope, alloc)
    now, _ = stage_place(changed, target.name, what)
    new = with_blocks(now, lambda block: redirected(block, buffer, name, lambda _: made, stores=stored))
    return exchanged(changed, now, new), name


def _places(
    target: Stage, index: Sequence[Expr], index_map: IndexMap, what: str
) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """The index of the block's element under the map, and the shape that this needs."""
    own = [axis.var for axis in target.axes]
    try:
        made = mapped(index_map, own)
    except TypeError as error:
        raise refusal("SM1035", what, f"the index map does not take {len(own)} indices") from error
    used = symbols_in(sympy.Tuple(*index)) & set(own)
    if symbols_in(sympy.Tuple(*made)) & set(own) != used:
        names = ", ".join(named(axis) for axis in target.axes if axis.var in used)
        raise refusal("SM1035", what, f"the index map does not use the axes of its index: {names}")
    ends = {axis.var: (axis.begin, axis.begin + axis.extent - 1) for axis in target.axes}
    extents = {axis.var: axis.begin + axis.extent for axis in target.axes}
    shape = shape_of(made, ends, what)
    back = inverted(made, [loop_var(f"new{dim}") for dim in range(len(made))], extents)
    if isinstance(back, str) or any(extents[var] != 1 for var in used - back.keys()):
        raise refusal("SM1035", what, "the index map cannot be inverted")
    return made, shape


def _location(
    kernel: Kernel, place: Place, buffer: str, what: str, stored: bool
) -> tuple[list[For | Stage], int]:
    """The loops around the copy, and its position between the block and the others."""
    body, target = scope_body(kernel, place.scope), place.stage
    order = members(body)
    here = position(order, target)
    outer: list[For | Stage] = [place.scope] if place.scope is not None else []
    writers = [each for each in order if buffer in writes(each) and each is not target]
    if stored:
        if writers:
            raise refusal("SM1033", what, f"{buffer} has two producers: {writers[0].name} writes it too")
        users = [each for each in order[here + 1 :] if buffer in reads(each)]
        if not users:
            return outer, len(body.stmts)
        loops, number, _ = meeting(body, target, users)
        return [*outer, *loops], number
    before = [each for each in order[:here] if buffer in writes(each)]
    if len(before) > 1:
        raise refusal("SM1033", what, f"{buffer} has several producers")
    if not before:
        return outer, first_step(body)
    loops, number, _ = meeting(body, before[0], [target])
    return [*outer, *loops], number


def _copy(
    kernel: Kernel,
    place: Place,
    buffer: str,
    name: str,
    index: Sequence[Expr],
    made: Sequence[Expr],
    used: Sequence[Axis],
    path: Sequence[For | Stage],
    values: Values,
    stored: bool,
) -> Stmt:
    """The copying block over the axis values within its loops."""
    around = [each for each in path if isinstance(each, For)]
    below = tuple((each.var, (each.begin, each.end - 1)) for each in place.loops if each not in around)
    facts = Facts().plus(around)
    loops: list[For] = []
    axes: list[Axis] = []
    where: list[Boolean] = []
    for axis in used:
        span = relaxed(axis.value, below, facts.plus([each for each in place.loops if each not in around]))
        low, high = span or (axis.begin, axis.begin + axis.extent - 1)
        count = extent((low, high), facts)
        value = low
        if count != 1:
            loop = values.loop(len(loops), count)
            loops.append(loop)
            value = low + loop.var
        if not facts.at_most(low + count, axis.begin + axis.extent):
            where.append(comparison(Lt, value, axis.begin + axis.extent))
        label = f"v{len(axes)}"
        axes.append(replace(axis, var=values.symbol(label), value=value, kind=AxisKind.SPATIAL, label=label))
    renamed: dict[Symbol, Expr] = {axis.var: new.var for axis, new in zip(used, axes)}
    at = {axis.var: new.value for axis, new in zip(used, axes)}
    own = facts.plus(loops)  # an element that the block touches under a condition alone may not be there
    where += in_buffer([replaced(expr, at) for expr in index], shapes_of(kernel)[buffer], own)
    far = (buffer, tuple(replaced(expr, renamed) for expr in index))
    near = (name, tuple(replaced(expr, renamed) for expr in made))
    source, target = (near, far) if stored else (far, near)
    return copying(name, loops, axes, source, target, buffers(kernel)[buffer].dtype, values, where)
