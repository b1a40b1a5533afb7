"""Primitives that set how a loop runs: on threads, in lanes, unrolled, jammed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sympy import Expr, Symbol

from smelt.nest.dependence import carried_updates, conflict, reduced_over
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Alloc,
    AxisKind,
    Block,
    Carry,
    For,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Prefetch,
    SortRow,
    Stage,
    Stmt,
    Store,
    Update,
)
from smelt.nest.primitives.common import (
    ScheduleError,
    is_asked_for,
    loop_place,
    refused,
    stage_place,
)
from smelt.nest.primitives.compact import own_buffers
from smelt.nest.scopes import members, place_of
from smelt.nest.stages import KINDS, dissolve
from smelt.nest.tree import (
    accesses,
    exprs_of,
    local_buffers,
    loops,
    named,
    replace_loop,
    rewritten,
    stages,
    substitute,
    trip_count,
    walk,
    with_body,
)
from smelt.records import replace
from smelt.symbolic import free_symbols

MOST_JAMMED = 64
"""Limit on jammed iterations: no machine has more registers."""

MOST_UNROLLED = 256

THREADS = (
    *(f"{kind}.{way}" for kind in ("blockIdx", "threadIdx", "vthread") for way in "xyz"),
    "vthread",
)


def parallelize(kernel: Kernel, var: Symbol, *, proved: bool = False) -> Kernel:
    """Runs the iterations of a loop on a thread team.

    for i0: A   →   parallel for i0: A

    ``proved``: the caller has asked `not_parallel`.

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1005, iterations write what others read or write, or
            add to one accumulator; SM1006, the loop is reduced over.
    """
    loop, _ = loop_place(kernel, var, "parallel")
    why = None if proved else not_parallel(loop, own_memory(kernel, loop))
    if why is not None:
        raise _dependent(kernel, "parallel", loop, why)
    return _set(kernel, loop, kind=LoopKind.PARALLEL)


def not_parallel(loop: For, private: frozenset[str] = frozenset()) -> str | None:
    """The reason why a loop's iterations cannot run at the same time; None where they can. ``private``:
    buffers that each iteration has a copy of.
    """
    carried = carried_updates(loop)
    if carried:
        return f"iterations of {named(loop)} add to the accumulator {carried[0].acc}"
    return conflict(loop, private)


def vectorize(kernel: Kernel, var: Symbol, lanes: int = 1, *, proved: bool = False) -> Kernel:
    """Computes ``lanes`` iterations of a loop at once; loops inside it run with all lanes in lockstep. With
    1, the target chooses the number of lanes.

    for i0 in n: A   →   vector(16) for i0 in n: A

    ``proved``: the caller has asked `not_vector`.

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1005, iterations depend on each other other than
            through accumulators, an inner bound depends on the loop, or an inner loop is parallel or vector
            already; SM1006, a stage reduces over the loop.
    """
    loop, _ = loop_place(kernel, var, "vectorize")
    why = None if proved else not_vector(loop)
    if why is not None:
        raise _dependent(kernel, "vectorize", loop, why)
    return _set(kernel, loop, kind=LoopKind.VECTOR, step=lanes)


def reduce_in_lanes(kernel: Kernel, var: Symbol) -> Kernel:
    """Reduces the iterations of a loop in lanes: each lane has a part of the result, and all are combined
    after the loop. The order in which elements are combined changes.

    for k: M[i] = max(M[i], x[k])   →   vector for k: M[i] = max(M[i], x[k])

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1007, it holds something else than one reduction
            over it, whose elements can be combined in any order.
    """
    loop, _ = loop_place(kernel, var, "reduce_in_lanes")
    why = not_reduced(loop)
    if why is not None:
        raise refused(kernel, "reduce_in_lanes", var, why, code="SM1007")
    return _set(kernel, loop, kind=LoopKind.VECTOR)


def not_reduced(loop: For) -> str | None:
    """The reason why lanes cannot reduce a loop's iterations; None where they can."""
    stmts = loop.body.stmts
    if len(stmts) == 1 and isinstance(stmts[0], Stage) and _reduces(stmts[0], loop):
        stmts = stmts[0].body.stmts
    *steps, store = stmts or (None,)
    if not isinstance(store, Store) or not all(isinstance(step, (Let, Masked)) for step in steps):
        return f"{named(loop)} holds something else than one block that reduces over it"
    read = {
        buffer for buffer, _, stored in accesses(Block(tuple(step for step in steps if step))) if not stored
    }
    if store.mode not in KINDS or store.buffer in read or loop.var in free_symbols(store.index):
        return f"what {named(loop)} reduces cannot be combined in any order"
    return None


def own_memory(kernel: Kernel, loop: For) -> frozenset[str]:
    """The buffers that each iteration of a loop can have a copy of, because it reads only elements that it
    has written.
    """
    if local_buffers(kernel.body) <= local_buffers(loop.body) and not stages(loop.body):
        return frozenset()
    return frozenset(own_buffers(dissolve(kernel), loop.var))


def _set(kernel: Kernel, loop: For, **fields: Any) -> Kernel:
    """The kernel with changed fields of a loop."""
    made = replace(loop, **fields)
    return with_body(kernel, replace_loop(kernel.body, loop.var, lambda _: (made,)))


def _dependent(kernel: Kernel, method: str, loop: For, why: str) -> ScheduleError:
    """The error for iterations that cannot run at the same time, with alternatives."""
    if reduced_over(loop) is None:
        return refused(kernel, method, loop.var, why, code="SM1005")
    (stage,) = [each for each in members(loop.body) if _reduces(each, loop)][:1]
    others = _others(kernel, stage)
    free = f", or {method} one of {', '.join(others)}" if others else ""
    remedy = f"rfactor({named(loop)}) first{free}"
    return refused(kernel, method, loop.var, why, code="SM1006", remedy=remedy)


def _reduces(stage: Stage, loop: For) -> bool:
    return any(axis.kind is AxisKind.REDUCE and axis.value.has(loop.var) for axis in stage.axes)


def _others(kernel: Kernel, stage: Stage) -> list[str]:
    """The loops around a stage that it does not reduce over."""
    place = place_of(kernel.body, lambda stmt: stmt is stage)
    return [] if place is None else [named(each) for each in place.loops if not _reduces(stage, each)]


def not_vector(loop: For) -> str | None:
    """The reason why a loop's iterations cannot be lanes of one vector; None where they can. Lanes share what
    iterations of a parallel loop have copies of.
    """
    for inner in loops(loop.body):
        if inner.kind in (LoopKind.PARALLEL, LoopKind.VECTOR):
            return f"the loop over {named(inner)} inside is {inner.kind.value}"
        if inner.begin.has(loop.var) or inner.end.has(loop.var):
            return f"the bounds of {named(inner)} depend on {named(loop)}"
    held = {type(stmt) for stmt in walk(loop.body)}
    if Alloc in held:
        return "the loop holds scratch memory of its own"
    if SortRow in held:
        return "the loop sorts rows"
    texts = [stage.text.name for stage in stages(loop.body) if stage.text is not None]
    if texts:
        return f"the loop holds the intrinsic {texts[0]}"
    if any(update.merge for update in carried_updates(loop)):
        return "the loop merges accumulators"
    return conflict(loop)


def unroll(kernel: Kernel, var: Symbol) -> Kernel:
    """Prints the iterations of a loop one after another (its extent must be a small number).

    for i0 in 4: A   →   unroll for i0 in 4: A

    Raises:
        ScheduleError: SM1008, the extent is no number, or too large.
    """
    loop, _ = loop_place(kernel, var, "unroll")
    trips = trip_count(loop)
    if not trips.is_Integer or int(trips) > MOST_UNROLLED:
        raise refused(
            kernel, "unroll", var, f"{trips} iterations", code="SM1008", remedy="split the loop first"
        )
    made = replace(loop, kind=LoopKind.UNROLL, thread=None)
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (made,)))


def bind(kernel: Kernel, var: Symbol, thread: str, *, proved: bool = False) -> Kernel:
    """Binds the iterations of a loop to an index of the GPU's threads.

    for i: A   →   for i on blockIdx.x: A

    The threads of a block (``threadIdx``) may add to one element: a reduction between threads. ``proved``:
    the caller knows that the iterations may run at the same time.

    Raises:
        ScheduleError: SM1008, no such index; SM1005 and SM1006 as `parallelize`.
    """
    loop, _ = loop_place(kernel, var, "bind")
    if thread not in THREADS:
        why = f"there is no thread index {thread!r}"
        raise refused(kernel, "bind", var, why, code="SM1008", remedy=f"one of {', '.join(THREADS)}")
    between = thread.startswith(("threadIdx", "vthread"))
    why_not = (
        None
        if proved or (between and reduced_over(loop) is not None)
        else not_parallel(loop, own_memory(kernel, loop))
    )
    if why_not is not None:
        raise _dependent(kernel, "bind", loop, why_not)
    made = replace(loop, kind=LoopKind.SERIAL, thread=thread)
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (made,)))


def annotate(kernel: Kernel, target: Symbol | str, key: str, value: Any) -> Kernel:
    """Annotates a loop or a stage; the annotation changes nothing.

    for i: A   →   for i, annotations={key: value}: A

    Raises:
        ScheduleError: SM1008, an annotation of that name exists.
    """
    notes = dict(_notes(kernel, target, "annotate"))
    if key in notes:
        why = f"there is a note {key!r} already: {notes[key]!r}"
        raise refused(kernel, "annotate", target, why, code="SM1008", remedy=f"unannotate {key!r} first")
    return _with_notes(kernel, target, {**notes, key: value})


def unannotate(kernel: Kernel, target: Symbol | str, key: str) -> Kernel:
    """Removes an annotation of a loop or a stage.

    for i, annotations={key: value}: A   →   for i: A

    Raises:
        ScheduleError: SM1008, there is no annotation of that name.
    """
    notes = dict(_notes(kernel, target, "unannotate"))
    if key not in notes:
        raise refused(kernel, "unannotate", target, f"there is no note {key!r}", code="SM1008")
    del notes[key]
    return _with_notes(kernel, target, notes)


def _notes(kernel: Kernel, target: Symbol | str, method: str) -> tuple[tuple[str, Any], ...]:
    if isinstance(target, Symbol):
        return loop_place(kernel, target, method)[0].notes
    return stage_place(kernel, target, method)[0].notes


def _with_notes(kernel: Kernel, target: Symbol | str, notes: Mapping[str, Any]) -> Kernel:
    def changed(stmt: Stmt) -> list[Stmt] | None:
        if not is_asked_for(stmt, target):
            return None
        assert isinstance(stmt, (For, Stage))
        return [replace(stmt, notes=tuple(notes.items()))]

    return with_body(kernel, rewritten(kernel.body, changed))


def jam(kernel: Kernel, var: Symbol, *, proved: bool = False) -> Kernel:
    """Interleaves the iterations of a short loop (unroll and jam): its statements are repeated for each
    iteration, inner loops run once.

    for i in 2: c = 0; for k: c = c + a[i, k] * b[k]   →   c, c' = 0, 0; for k: …; c = …; c' = …

    Values that do not depend on ``var`` are computed once. Register tiling relies on it: each iteration has
    accumulators of its own. ``proved``: the caller has asked `not_parallel`.

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1005, more than 64 iterations, iterations that depend
            on each other, or inner bounds that vary.
    """
    loop, _ = loop_place(kernel, var, "jam")
    why = not_jammed(loop) or (None if proved else not_parallel(loop))
    if why is not None:
        raise refused(kernel, "jam", var, why, code="SM1005")
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: side_by_side(loop).stmts))


def not_jammed(loop: For) -> str | None:
    """The reason why the iterations of a loop cannot be jammed, besides dependences; None where they
    can.
    """
    trips = trip_count(loop)
    if not trips.is_Integer or int(trips) > MOST_JAMMED:
        return f"{trips} iterations"
    for inner in loops(loop.body):
        if inner.begin.has(loop.var) or inner.end.has(loop.var):
            return f"the bounds of {named(inner)} depend on {named(loop)}"
    for stmt in walk(loop.body):
        if isinstance(stmt, (Alloc, SortRow)) or (isinstance(stmt, Masked) and loops(stmt.body)):
            return "the loop holds scratch memory, sorts or masked loops"
    return None


def side_by_side(loop: For) -> Block:
    """The statements of a loop whose iterations `jam` interleaves, with nested JAM loops expanded."""
    values = [loop.begin + number for number in range(int(trip_count(loop)))]
    return _jammed(without_jams(loop.body), loop.var, values, set())


def without_jams(block: Block) -> Block:
    """The block with its JAM loops expanded.

    >>> import sympy, torch
    >>> i, k, n = sympy.symbols("i k n", integer=True, nonnegative=True)
    >>> load = Let("v", torch.float32, "load", ("x", (4 * i + k,)))
    >>> inner = For(k, sympy.Integer(0), n, Block((load,)))
    >>> loop = For(i, sympy.Integer(0), sympy.Integer(2), Block((inner,)), LoopKind.JAM)
    >>> [(stmt.name, stmt.args[1]) for stmt in walk(without_jams(Block((loop,)))) if isinstance(stmt, Let)]
    [('v_0', (k,)), ('v_1', (k + 4,))]
    """
    if not any(isinstance(stmt, For) for stmt in block.stmts):
        return block
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if isinstance(stmt, For) and stmt.kind is LoopKind.JAM:
            stmts += side_by_side(stmt).stmts
        elif isinstance(stmt, For):
            stmts.append(replace(stmt, body=without_jams(stmt.body)))
        else:
            stmts.append(stmt)
    return Block(tuple(stmts))


def _jammed(block: Block, var: Symbol, values: Sequence[Expr], varying: set[str]) -> Block:
    """``varying``: the names that differ between iterations; they get a numeric suffix.

    Between inner loops, shared statements come first, then the iterations one after another, so that few
    values are live at the same time.
    """
    stmts: list[Stmt] = []
    together: list[Stmt] = []

    def flush() -> None:
        for number, value in enumerate(values):
            names = {name: f"{name}_{number}" for name in varying}
            stmts.extend(renamed(s, names) for s in substitute(Block(tuple(together)), {var: value}).stmts)
        together.clear()

    for stmt in block.stmts:
        if isinstance(stmt, For):
            flush()
            stmts.append(replace(stmt, body=_jammed(stmt.body, var, values, varying)))
        elif _same_in_all(stmt, var, varying):
            stmts.append(stmt)
        else:
            made = (Let, Carry, Accumulate, Masked)
            varying.update(each.name for each in walk(Block((stmt,))) if isinstance(each, made))
            together.append(stmt)
    flush()
    return Block(tuple(stmts))


def _same_in_all(stmt: Stmt, var: Symbol, varying: set[str]) -> bool:
    """Whether a statement does the same in all iterations: it computes one value, or prefetches one
    element.
    """
    if isinstance(stmt, Let):
        if stmt.op == "read" or stmt.index is not None:
            return False
        if any(isinstance(arg, str) and arg in varying for arg in stmt.args):
            return False
    elif not isinstance(stmt, Prefetch):
        return False
    return not any(expr.has(var) for expr in exprs_of(Block((stmt,))))


def renamed(stmt: Stmt, names: Mapping[str, str]) -> Stmt:
    """The statement with renamed values, carries and accumulators."""
    if isinstance(stmt, Let):
        args = stmt.args
        if stmt.op != "load":  # of a buffer, which may be called as a value is
            args = tuple(names.get(arg, arg) if isinstance(arg, str) else arg for arg in args)
        return replace(stmt, name=names.get(stmt.name, stmt.name), args=args)
    if isinstance(stmt, Store):
        return replace(stmt, value=names.get(stmt.value, stmt.value))
    if isinstance(stmt, Masked):
        body = Block(tuple(renamed(inner, names) for inner in stmt.body.stmts))
        mask, result = (names.get(each, each) for each in (stmt.mask, stmt.result))
        return replace(stmt, name=names.get(stmt.name, stmt.name), mask=mask, body=body, result=result)
    if isinstance(stmt, (Carry, Accumulate)):
        return replace(stmt, name=names[stmt.name])
    if isinstance(stmt, Advance):
        return replace(stmt, carry=names.get(stmt.carry, stmt.carry), value=names.get(stmt.value, stmt.value))
    if isinstance(stmt, Prefetch):
        return stmt
    assert isinstance(stmt, Update)
    return replace(stmt, acc=names.get(stmt.acc, stmt.acc), value=names.get(stmt.value, stmt.value))
