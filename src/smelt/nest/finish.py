"""What a kernel goes through that a person has scheduled, before it is printed: `PASSES`, in order.

Nothing is chosen here. Stages become loops, conditions become bounds, sums in memory become sums in
registers where the loops around say so, and kinds of loops are what a target can have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import sympy
from sympy import Expr, Symbol
from sympy.core.relational import GreaterThan, LessThan, StrictGreaterThan, StrictLessThan
from sympy.logic.boolalg import Boolean
from torch.utils._sympy.functions import Max, Min

from smelt.nest.ir import (
    Accumulate,
    Block,
    For,
    Guard,
    Kernel,
    Let,
    LoopKind,
    Stmt,
    Store,
    Update,
)
from smelt.nest.primitives import flatten_accesses, hoist, inner_loop, not_jammed, not_parallel, not_vector
from smelt.nest.stages import KINDS, dissolve, guarded
from smelt.nest.tree import rewritten, trip_count, walk, with_blocks, with_body
from smelt.records import replace
from smelt.symbolic.affine import divided, linear, symbols_in
from smelt.symbolic.bounds import is_nonnegative

MOST_SUMS = 32
"""Sums that registers hold at once (vectors, where a loop is a vector's)."""
MOST_UNROLLED = 64


def finish(kernel: Kernel, lanes: int) -> Kernel:
    """The kernel as it is to be printed; ``lanes``: float32 elements of a vector register."""
    for each in PASSES:
        kernel = each(kernel, lanes)
    return kernel


def _dissolve(kernel: Kernel, lanes: int) -> Kernel:
    del lanes
    return dissolve(kernel)


# -- conditions ----------------------------------------------------------------------------------------------


def bound_loops(kernel: Kernel, lanes: int) -> Kernel:
    """Conditions as bounds of loops; what always holds is dropped.

    for i: for j in 16: if 16*i + j < n: A   →   for i: for j in min(16, n - 16*i): A
    """
    del lanes
    return with_body(kernel, _bounded(kernel.body, {}))


def _bounded(block: Block, extents: Mapping[Symbol, Expr]) -> Block:
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if isinstance(stmt, For):
            stmts += _bounded_loop(stmt, extents)
        elif isinstance(stmt, Guard):
            open_ones = [each for each in conjuncts(stmt.condition) if not _holds(each, extents)]
            stmts += guarded(open_ones, _bounded(stmt.body, extents))
        else:
            stmts.append(with_blocks(stmt, lambda inner: _bounded(inner, extents)))
    return Block(tuple(stmts))


def _bounded_loop(loop: For, extents: Mapping[Symbol, Expr]) -> list[Stmt]:
    """The loop with what guards its whole body in its bounds, or around it."""
    inside = {**extents, loop.var: loop.end} if loop.begin == 0 else dict(extents)
    body = _bounded(loop.body, inside)
    only = body.stmts[0] if len(body.stmts) == 1 else None
    if not isinstance(only, Guard):
        return [replace(loop, body=body)]
    begin, end = loop.begin, loop.end
    around: list[Boolean] = []
    kept: list[Boolean] = []
    for condition in conjuncts(only.condition):
        if loop.var not in condition.free_symbols:
            around.append(condition)
            continue
        least, most = _bounds_of(condition, loop.var)
        if least is None and most is None:
            kept.append(condition)
        begin = begin if least is None else _at_least(begin, least)
        end = end if most is None else Min(end, most)
    found = replace(loop, begin=begin, end=end, body=Block(tuple(guarded(kept, only.body))))
    return guarded(around, Block((found,)))


def _at_least(begin: Expr, least: Expr) -> Expr:
    return least if begin == least or (begin == 0 and least.is_nonnegative) else Max(begin, least)


def conjuncts(condition: Boolean) -> list[Boolean]:
    """The conditions that have to hold all."""
    return (
        [each for part in condition.args for each in conjuncts(part)]
        if isinstance(condition, sympy.And)
        else [condition]
    )


def _gap(condition: Boolean) -> Expr | None:
    """What is not negative where the condition holds (of integers); None where it is no inequality."""
    if isinstance(condition, StrictLessThan):
        return sympy.expand(condition.rhs - condition.lhs - 1)
    if isinstance(condition, LessThan):
        return sympy.expand(condition.rhs - condition.lhs)
    if isinstance(condition, StrictGreaterThan):
        return sympy.expand(condition.lhs - condition.rhs - 1)
    if isinstance(condition, GreaterThan):
        return sympy.expand(condition.lhs - condition.rhs)
    return None


def _holds(condition: Boolean, extents: Mapping[Symbol, Expr]) -> bool:
    gap = _gap(condition)
    return gap is not None and is_nonnegative(gap, dict(extents))


def _bounds_of(condition: Boolean, var: Symbol) -> tuple[Expr | None, Expr | None]:
    """The first value of ``var`` for which an inequality holds, and the first for which it does not any more;
    None for none, both None where ``var`` is not a plain term of it.
    """
    gap = _gap(condition)
    if gap is None:
        return None, None
    step, rest = linear(gap, var)
    if not step.is_Integer or step == 0 or var in symbols_in(rest):
        return None, None
    if step < 0:  # rest - |step| * var >= 0
        return None, divided(rest, -step) + 1
    return -divided(rest, step), None  # var >= -rest / step, rounded up


# -- sums in registers ---------------------------------------------------------------------------------------


def sums_in_registers(kernel: Kernel, lanes: int) -> Kernel:
    """What loops add to elements of memory, added up in registers first.

    for k: for i in 4: vector for j in 16: C[i, j] += x
        →   jam for i in 4: vector for j in 16: s = 0; for k: s += x; C[i, j] += s

    Terms of one element keep their order.
    """

    def rewrite(stmt: Stmt) -> Sequence[Stmt] | None:
        return _in_registers(stmt, lanes) if isinstance(stmt, For) else None

    return with_body(kernel, rewritten(kernel.body, rewrite))


def _in_registers(loop: For, lanes: int) -> list[Stmt] | None:
    chain = [loop]
    while (inside := inner_loop(chain[-1])) is not None:
        chain.append(inside)
    *steps, store = chain[-1].body.stmts if chain[-1].body.stmts else [None]
    if not isinstance(store, Store) or store.mode not in KINDS or loop.kind is LoopKind.PARALLEL:
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
    variables = {each.var for each in summed}
    count = 1
    for each in kept:
        turns = trip_count(each)
        if not turns.is_Integer or not variables.isdisjoint(symbols_in(each.begin) | symbols_in(each.end)):
            return None
        count *= -(-int(turns) // lanes) if each.kind is LoopKind.VECTOR else int(turns)
    inner = {each.var for each in kept}
    if count > MOST_SUMS or any(
        not inner.isdisjoint(symbols_in(each.begin) | symbols_in(each.end)) for each in summed
    ):
        return None
    dtype = next(step.dtype for step in steps if isinstance(step, Let) and step.name == store.value)
    total = f"{store.value}_sum"
    nest: Stmt = Block((*steps, Update(total, store.value)))  # type: ignore[assignment]
    for each in reversed(summed):
        kind = LoopKind.SERIAL if each.kind is LoopKind.VECTOR else each.kind
        nest = replace(each, kind=kind, body=nest if isinstance(nest, Block) else Block((nest,)))
    result = f"{total}_read"
    body = Block(
        (
            Accumulate(total, KINDS[store.mode], dtype),
            nest,
            Let(result, dtype, "read", (total, 0)),
            replace(store, value=result),
        )
    )
    vectors = [each for each in kept if each.kind is LoopKind.VECTOR]
    others = [each for each in kept if each.kind is not LoopKind.VECTOR]
    for each in reversed([*others, *vectors]):
        made = each if each.kind is LoopKind.VECTOR else replace(each, kind=LoopKind.JAM)
        made = replace(made, body=body)
        if made.kind is LoopKind.JAM and not_jammed(made) is not None:
            return None
        body = Block((made,))
    return list(body.stmts)


# -- kinds of loops ------------------------------------------------------------------------------------------


def kinds(kernel: Kernel, lanes: int) -> Kernel:
    """Vector loops by as many lanes as the target has; what a loop cannot be it is not.

    A vector loop whose lanes would have to differ (in a condition, in the bounds of a loop inside) runs one
    turn after the other, so does a parallel loop inside a parallel one, or in a vector.
    """
    return with_body(kernel, _kinds(kernel.body, lanes, ()))


def _kinds(block: Block, lanes: int, around: tuple[For, ...]) -> Block:
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if isinstance(stmt, For):
            kind = _kind(stmt, around)
            step = lanes if kind is LoopKind.VECTOR else stmt.step
            found = replace(stmt, kind=kind, step=step)
            stmts.append(replace(found, body=_kinds(stmt.body, lanes, (*around, found))))
        else:
            stmts.append(with_blocks(stmt, lambda inner: _kinds(inner, lanes, around)))
    return Block(tuple(stmts))


def _kind(loop: For, around: tuple[For, ...]) -> LoopKind:
    if loop.kind is LoopKind.VECTOR:
        if any(outer.kind is LoopKind.VECTOR for outer in around) or not_vector(loop) is not None:
            return LoopKind.SERIAL
        varies = (g for g in walk(loop.body) if isinstance(g, Guard) and loop.var in g.condition.free_symbols)
        return LoopKind.SERIAL if any(varies) else LoopKind.VECTOR
    if loop.kind is LoopKind.PARALLEL:
        kinds_around = [outer.kind for outer in around]
        nested = LoopKind.PARALLEL in kinds_around and not _alone(loop, around)
        if nested or LoopKind.VECTOR in kinds_around or LoopKind.JAM in kinds_around:
            return LoopKind.SERIAL
        return loop.kind if not_parallel(loop) is None else LoopKind.SERIAL
    if loop.kind is LoopKind.UNROLL:
        turns = trip_count(loop)
        few = turns.is_Integer and int(turns) <= MOST_UNROLLED
        return loop.kind if few else LoopKind.SERIAL
    return loop.kind


def _alone(loop: For, around: tuple[For, ...]) -> bool:
    """Whether the parallel loops around are each other's whole bodies, down to ``loop``."""
    first = next(place for place, outer in enumerate(around) if outer.kind is LoopKind.PARALLEL)
    return all(len(o.body.stmts) == 1 and o.kind is LoopKind.PARALLEL for o in around[first:])


def _flat(kernel: Kernel, lanes: int) -> Kernel:
    del lanes
    return flatten_accesses(kernel)


def _hoisted(kernel: Kernel, lanes: int) -> Kernel:
    del lanes
    return hoist(kernel)


PASSES: tuple[Callable[[Kernel, int], Kernel], ...] = (
    _dissolve,
    bound_loops,
    sums_in_registers,
    _flat,
    kinds,
    _hoisted,
)
