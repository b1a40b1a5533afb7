"""Columns that lanes of a vector loop compute, stored as rows: vectors are transposed in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from sympy import Symbol

from smelt.nest.ir import FEW_COLUMNS, Alloc, For, Kernel, Let, LoopKind, Masked, Param, Store
from smelt.nest.primitives.common import loop_place, refused
from smelt.nest.scopes import place_of_loop
from smelt.nest.stages import dissolve
from smelt.nest.tree import accesses, named, replace_loop, trip_count, walk, with_body
from smelt.records import replace
from smelt.symbolic import flatten, simplify
from smelt.symbolic.affine import linear, symbols_in

TURNED = (4, 8, 16)
"""Numbers of columns that are transposed, by vectors of as many lanes."""

Memories = Mapping[str, Param | Alloc]
"""The buffers of a kernel by name."""


def turn(kernel: Kernel, var: Symbol) -> Kernel:
    """Stores the columns that a loop computes in the lanes of a vector loop around it as rows.

    vector for i in 16: for j in 16: C[i, j] = A[j, i]   →   vector for i in 16: turn for j in 16: …

    The loop has as many iterations as a vector has lanes (4, 8 or 16), or 2 to 4 that fill the rows. Vectors
    are transposed in registers, where no lane is masked; no iteration reads what one of them stores.

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1005, it is no loop of that kind.
    """
    loop, _ = loop_place(kernel, var, "turn")
    plain = dissolve(kernel)
    place = place_of_loop(plain.body, var)
    assert place is not None and isinstance(place.stmt, For)
    why = not_turned(place.stmt, place.loops, memories_of(plain))
    if why is not None:
        raise refused(kernel, "turn", var, why, code="SM1005")
    made = replace(loop, kind=LoopKind.TURN)
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (made,)))


def memories_of(kernel: Kernel) -> Memories:
    """The buffers of a kernel."""
    local = {stmt.buffer: stmt for stmt in walk(kernel.body) if isinstance(stmt, Alloc)}
    return {**{param.name: param for param in kernel.params}, **local}


def not_turned(loop: For, around: Sequence[For], memories: Memories) -> str | None:
    """The reason why the columns of a loop cannot be stored as rows; None where they can.

    ``loop``: holds no stages; ``around``: the loops around it, outermost first.
    """
    vector = next((each for each in reversed(around) if each.kind is LoopKind.VECTOR), None)
    if vector is None:
        return f"no vector loop is around {named(loop)}"
    *before, store = loop.body.stmts or (None,)
    if not isinstance(store, Store) or not all(isinstance(stmt, (Let, Masked)) for stmt in before):
        return f"{named(loop)} holds something else than values and a store"
    memory = memories[store.buffer]
    if store.mode is not None or memory.dtype not in (torch.float32, torch.int32):
        return f"{named(loop)} adds to {store.buffer}, or its elements do not have four bytes"
    if any(buffer == store.buffer and not stored for buffer, _, stored in accesses(loop.body)):
        return f"{named(loop)} reads {store.buffer} too"
    extents = {each.var: each.end for each in (*around, loop)}
    flat, trips = simplify(flatten(store.index, memory.strides), extents), trip_count(loop)
    along, rest = linear(flat, loop.var)
    if along != 1 or loop.var in symbols_in(rest):
        return f"iterations of {named(loop)} do not store adjacent elements"
    down, rest = linear(rest, vector.var)
    varying = {stmt.index for stmt in before if isinstance(stmt, Let) and stmt.index is not None}
    if down in (0, 1) or not symbols_in(rest).isdisjoint({vector.var, *varying}):
        return f"lanes of {named(vector)} do not store rows at one distance"
    if trips in FEW_COLUMNS and down == trips and not varying:
        return None
    if any(isinstance(stmt, Masked) for stmt in before):
        return f"{named(loop)} holds masked values"
    if trips not in TURNED or vector.step not in (1, trips):
        return f"{named(loop)} has {trips} iterations, not as many as a vector has lanes"
    return None
