"""The passes that lower a scheduled kernel before it is printed: `PASSES`, in order.

No pass makes a scheduling decision. Stages become loops, conditions become bounds, sums in memory become sums
in registers where the loops around them ask for it, and loop kinds are legalized for the target.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from sympy import Expr
from sympy.logic.boolalg import Boolean
from torch.utils._sympy.functions import Min

from smelt.nest.conditions import bound_loops, uniform_in_lanes
from smelt.nest.initialization import hoist_initialization
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Block,
    Carry,
    For,
    Guard,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Stage,
    Stmt,
    Store,
    Update,
)
from smelt.nest.primitives import flatten_accesses, hoist, memories_of, not_parallel, not_turned, not_vector
from smelt.nest.primitives.compact import compact
from smelt.nest.primitives.turning import Memories
from smelt.nest.stages import KINDS, dissolve, guarded
from smelt.nest.tree import nested, rewritten, trip_count, walk, with_blocks, with_body
from smelt.passes import Watch, run
from smelt.records import replace
from smelt.symbolic import free_symbols
from smelt.symbolic.affine import symbols_in

MOST_SUMS = 32
"""Limit on the sums that registers hold at once (vectors in a vector loop)."""
MOST_UNROLLED = 64


def finish(kernel: Kernel, lanes: int, watch: Watch | None = None) -> Kernel:
    """The kernel, lowered for printing; ``lanes``: float32 elements of a vector register."""
    return run(PASSES, kernel, lanes, watch)


def dissolve_stages(kernel: Kernel, lanes: int) -> Kernel:
    """Replaces stages by the loops around them and the statements inside."""
    del lanes
    return dissolve(kernel)


def compact_buffers(kernel: Kernel, lanes: int) -> Kernel:
    """Shrinks buffers of a nest to the elements that are live at one time."""
    del lanes
    return compact(kernel)


# -- sums in registers ---------------------------------------------------------------------------------------


def sums_in_registers(kernel: Kernel, lanes: int) -> Kernel:
    """Accumulates sums in registers first, and then adds them to memory.

    for k: for i in 4: vector for j in 16: C[i, j] += a * b
        →   vector for j in 16: jam for i in 4: s = 0; for k: s = fma(a, b, s); C[i, j] += s

    Terms of one element keep their order. A partial tile at the edge is summed in memory."""

    def rewrite(stmt: Stmt) -> Sequence[Stmt] | None:
        if isinstance(stmt, Stage):  # with a text of its own
            return [stmt]
        return _in_registers(stmt, lanes) if isinstance(stmt, For) else None

    return with_body(kernel, rewritten(kernel.body, rewrite))


def _in_registers(loop: For, lanes: int) -> list[Stmt] | None:
    chain, held = nested(loop)
    *steps, store = held or (None,)
    if not isinstance(store, Store) or store.mode not in KINDS:
        return None
    if not all(isinstance(step, Let) and step.index is None for step in steps):
        return None
    if any(isinstance(step, Let) and step.op == "load" and step.args[0] == store.buffer for step in steps):
        return None
    where = {symbol for expr in store.index for symbol in symbols_in(expr)}
    summed = [each for each in chain if each.var not in where]
    kept = [each for each in chain if each.var in where]
    if loop not in summed or any(each.kind is LoopKind.PARALLEL for each in chain):
        return None
    variables = {each.var for each in chain}
    kept_variables = {each.var for each in kept}
    if any(not variables.isdisjoint(free_symbols([each.begin, each.end])) for each in kept):
        return None
    if any(not kept_variables.isdisjoint(free_symbols([each.begin, each.end])) for each in summed):
        return None
    whole = [_full(each) for each in kept if each.kind is not LoopKind.VECTOR]
    vectors = [each for each in kept if each.kind is LoopKind.VECTOR]
    count, conditions, jammed = 1, [], []
    for found in whole:
        if found is None:
            return None
        conditions.append(found[1])
        jammed.append(replace(found[0], kind=LoopKind.JAM))
        count *= int(trip_count(found[0]))
    if count > MOST_SUMS or len(vectors) > 1:
        return None
    body = Block(tuple(_summed(summed, [s for s in steps if isinstance(s, Let)], store)))
    for each in reversed(jammed):
        body = Block((replace(each, body=body),))
    for each in vectors:
        body = Block((replace(each, step=_step(trip_count(each), lanes, MOST_SUMS // count), body=body),))
    full = sympy.And(*conditions)
    rest = [] if full == sympy.true else guarded([sympy.Not(full)], Block((loop,)))
    return [*guarded([full], body), *rest]


def _full(loop: For) -> tuple[For, Boolean] | None:
    """The loop with its full number of iterations, where they are few, and the condition under which it has
    them all.
    """
    trips = trip_count(loop)
    if trips.is_Integer:
        return loop, sympy.true
    numbers = [e for e in loop.end.args if e.is_Integer] if isinstance(loop.end, Min) else []
    if loop.begin != 0 or len(numbers) != 1:
        return None
    others = [e for e in loop.end.args if e is not numbers[0]]
    return replace(loop, end=numbers[0]), sympy.And(*(sympy.Ge(other, numbers[0]) for other in others))


def _step(trips: Expr, lanes: int, most: int) -> int:
    """The lanes of a vector loop: whole registers where they divide its iterations, at most ``most``."""
    fitting = [n for n in (4, 2) if n <= most and trips.is_Integer and int(trips) % (n * lanes) == 0]
    return lanes * (fitting[0] if fitting else 1)


def _summed(loops: Sequence[For], steps: Sequence[Let], store: Store) -> list[Stmt]:
    """A sum over ``loops``, in a register, then added to memory."""
    *_, inner = loops
    lanes = inner.kind is LoopKind.VECTOR  # each has a part of the sum (`reduce_in_lanes`)
    made = next(step for step in steps if step.name == store.value)
    total, result = f"{store.value}_sum", f"{store.value}_total"
    uses = sum(store.value in step.args for step in steps)
    product = made.op == "mul" and made.dtype in (torch.float32, torch.float64) and not uses
    if product and store.mode == "add" and not lanes:
        before, after = f"{total}_before", f"{total}_after"
        sums: list[Stmt] = [step for step in steps if step is not made]
        sums.append(replace(made, name=before, op="read", args=(total, 0)))
        sums.append(replace(made, name=after, op="fma", args=(*made.args, before)))
        sums.append(Advance(total, after))
        opened: Stmt = Carry(total, made.dtype, 0.0)
    else:
        sums = [*steps, Update(total, store.value)]
        opened = Accumulate(total, KINDS[store.mode or ""], made.dtype)
    for each in reversed(loops):
        kind = LoopKind.SERIAL if each.kind is LoopKind.VECTOR and each is not inner else each.kind
        sums = [replace(each, kind=kind, body=Block(tuple(sums)))]
    read = replace(made, name=result, op="read", args=(total, 0))
    return [opened, *sums, read, replace(store, value=result)]


# -- kinds of loops ------------------------------------------------------------------------------------------


def kinds(kernel: Kernel, lanes: int) -> Kernel:
    """Legalizes loop kinds: vector loops get the target's lanes, and unsupported kinds become serial.

    A vector loop whose lanes would differ in more than stored values becomes serial; so does a parallel loop
    inside a parallel or a vector loop.
    """
    return with_body(kernel, _kinds(kernel.body, lanes, (), memories_of(kernel)))


def _kinds(block: Block, lanes: int, around: tuple[For, ...], memories: Memories) -> Block:
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if isinstance(stmt, For):
            kind = _kind(stmt, around, memories)
            step = max(lanes, stmt.step) if kind is LoopKind.VECTOR else 1
            found = replace(stmt, kind=kind, step=step)
            stmts.append(replace(found, body=_kinds(stmt.body, lanes, (*around, found), memories)))
        else:
            stmts.append(with_blocks(stmt, lambda inner: _kinds(inner, lanes, around, memories)))
    return Block(tuple(stmts))


def _kind(loop: For, around: tuple[For, ...], memories: Memories) -> LoopKind:
    if loop.kind is LoopKind.TURN:
        return LoopKind.SERIAL if not_turned(loop, around, memories) else LoopKind.TURN
    if loop.kind is LoopKind.VECTOR:
        if any(outer.kind is LoopKind.VECTOR for outer in around) or not_vector(loop) is not None:
            return LoopKind.SERIAL
        return LoopKind.VECTOR if all(map(_masks, _varying(loop))) else LoopKind.SERIAL
    if loop.kind is LoopKind.PARALLEL:
        kinds_around = [outer.kind for outer in around]
        within = LoopKind.PARALLEL in kinds_around and not _perfectly_parallel(around)
        if within or LoopKind.VECTOR in kinds_around or LoopKind.JAM in kinds_around:
            return LoopKind.SERIAL
        return loop.kind if not_parallel(loop) is None else LoopKind.SERIAL
    if loop.kind is LoopKind.UNROLL:
        trips = trip_count(loop)
        few = trips.is_Integer and int(trips) <= MOST_UNROLLED
        return loop.kind if few else LoopKind.SERIAL
    return loop.kind


def _varying(loop: For) -> list[Guard]:
    """The conditions in a loop whose truth may differ between its iterations."""
    varies = {loop.var} | {s.index for s in walk(loop.body) if isinstance(s, Let) and s.index is not None}
    guards = [stmt for stmt in walk(loop.body) if isinstance(stmt, Guard)]
    return [guard for guard in guards if not varies.isdisjoint(guard.condition.free_symbols)]


def _masks(guard: Guard) -> bool:
    """Whether the statements of a guard, values and stores, can be masked by lane."""
    return all(isinstance(stmt, (Let, Masked, Store, For, Guard)) for stmt in walk(guard.body))


def _perfectly_parallel(around: tuple[For, ...]) -> bool:
    """Whether all loops from the outermost parallel one on are parallel and perfectly nested."""
    first = next(place for place, outer in enumerate(around) if outer.kind is LoopKind.PARALLEL)
    return all(len(o.body.stmts) == 1 and o.kind is LoopKind.PARALLEL for o in around[first:])


def flatten_indices(kernel: Kernel, context: object) -> Kernel:
    """Replaces multi-dimensional accesses by one flat index each."""
    del context
    return flatten_accesses(kernel)


def hoist_invariants(kernel: Kernel, context: object) -> Kernel:
    """Moves statements out of the loops that they do not depend on."""
    del context
    return hoist(kernel)


PASSES = (
    hoist_initialization,
    dissolve_stages,
    compact_buffers,
    bound_loops,
    uniform_in_lanes,
    sums_in_registers,
    flatten_indices,
    kinds,
    hoist_invariants,
)
