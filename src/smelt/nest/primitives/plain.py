"""Primitives on plain loops without stages: flat accesses, and hoisting of invariants."""

from __future__ import annotations

from collections.abc import Sequence

from sympy import Expr, Symbol

from smelt.nest.ir import (
    Accumulate,
    Alloc,
    Block,
    For,
    Guard,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Prefetch,
    SortRow,
    Stage,
    Stmt,
    Store,
)
from smelt.nest.primitives.common import ONE, loop_place
from smelt.nest.tree import accesses, indirect_symbols, local_buffers, loops, replace_loop, walk, with_body
from smelt.records import replace
from smelt.symbolic import flatten, free_symbols, span
from smelt.symbolic.affine import expand, replaced, symbols_in
from smelt.symbolic.index import simplify


def flatten_accesses(kernel: Kernel) -> Kernel:
    """Flattens the index of every access.

    p0[i0, i1]  →  p0[i0*64 + i1]      (p0: f32[8, 64] becomes f32[512])
    """
    strides = {param.name: param.strides for param in kernel.params}
    for stmt in walk(kernel.body):
        if isinstance(stmt, Alloc):
            strides[stmt.buffer] = stmt.strides
    extents = {loop.var: loop.end for loop in loops(kernel.body)}

    def flat(buffer: str, index: Sequence[Expr]) -> tuple[Expr, ...]:
        return (simplify(expand(flatten(tuple(index), strides[buffer])), extents),)

    def visit(block: Block) -> Block:
        stmts: list[Stmt] = []
        for stmt in block.stmts:
            if isinstance(stmt, (For, Masked, Guard, Stage)):
                stmts.append(replace(stmt, body=visit(stmt.body)))
            elif isinstance(stmt, (Store, Prefetch)):
                stmts.append(replace(stmt, index=flat(stmt.buffer, stmt.index)))
            elif isinstance(stmt, Let) and stmt.op == "load":
                stmts.append(replace(stmt, args=(stmt.args[0], flat(stmt.args[0], stmt.args[1]))))
            elif isinstance(stmt, SortRow):
                result = stmt.values or stmt.positions
                into = flat(result, stmt.into) if result else stmt.into
                stmts.append(replace(stmt, start=flat(stmt.source, stmt.start), into=into))
            elif isinstance(stmt, Alloc):
                stmts.append(replace(stmt, shape=(stmt.count,), aligned=()))
            else:
                stmts.append(stmt)
        return Block(tuple(stmts))

    params = tuple(
        replace(param, shape=(span(param.shape, param.strides),), strides=(ONE,)) for param in kernel.params
    )
    return replace(kernel, params=params, body=visit(kernel.body))


def prefetch(kernel: Kernel, buffer: str, var: Symbol, ahead: Symbol) -> Kernel:
    """Prefetches the first element that each load of a buffer in an iteration of a loop reads, in the next
    iteration of a loop around it.

    for j: for k: v = p[j*64 + k]; …   →   for j: for k: prefetch p[j*64 + k + 64]; v = p[j*64 + k]; …

    Raises:
        ScheduleError: SM1002, there is no such loop.
    """
    loop, _ = loop_place(kernel, var, "prefetch")
    first: dict[Symbol, Expr] = {inner.var: inner.begin for inner in loops(loop.body)}
    read = [index for name, index, stored in accesses(loop.body) if name == buffer and not stored]
    places = dict.fromkeys(tuple(replaced(at, {**first, ahead: ahead + 1}) for at in index) for index in read)
    body = Block((*(Prefetch(buffer, place) for place in places), *loop.body.stmts))
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (replace(loop, body=body),)))


def hoist(kernel: Kernel) -> Kernel:
    """Hoists loop-invariant statements in front of the loop.

    for i: for j: v = sqrt(x[i]); y[i, j] = v   →   for i: v = sqrt(x[i]); for j: y[i, j] = v

    A load stays where the loop stores to the same buffer; checks and integer divisions stay where they are. A
    statement hoisted from two loops of a block under one name appears once.
    """
    return with_body(kernel, _hoist_block(kernel.body))


_STAYS = ("indirect_index", "read", "fmod", "remainder", "floordiv", "truncdiv")


def _hoist_block(block: Block) -> Block:
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if not isinstance(stmt, For):
            stmts.append(stmt)
            continue
        loop = replace(stmt, body=_hoist_block(stmt.body))
        moved, kept = _invariant(loop)
        stmts += [each for each in moved if each not in stmts]
        stmts.append(replace(loop, body=Block(tuple(kept))) if moved else loop)
    return Block(tuple(stmts))


def _invariant(loop: For) -> tuple[list[Stmt], list[Stmt]]:
    """Split a loop's own statements into those that do not vary with it and the rest."""
    if loop.kind is LoopKind.PARALLEL:
        return [], list(loop.body.stmts)
    stored = {buffer for buffer, _, is_store in accesses(loop.body) if is_store} | local_buffers(loop.body)
    inside = {s.name for s in walk(loop.body) if isinstance(s, (Let, Masked, Accumulate))}
    symbols = {loop.var} | indirect_symbols(loop.body)
    moved: list[Stmt] = []
    kept: list[Stmt] = []
    for stmt in loop.body.stmts:
        if isinstance(stmt, Let) and _fixed(stmt, inside, symbols, stored):
            inside.discard(stmt.name)
            moved.append(stmt)
        else:
            kept.append(stmt)
    return moved, kept


def _fixed(stmt: Let, inside: set[str], symbols: set[Symbol], stored: set[str]) -> bool:
    if stmt.op in _STAYS and not (stmt.dtype.is_floating_point and stmt.op != "read"):
        return False
    if stmt.op == "load":
        return stmt.args[0] not in stored and symbols.isdisjoint(free_symbols(stmt.args[1]))
    if stmt.op == "index_expr":
        return symbols_in(stmt.args[0]).isdisjoint(symbols)
    return not any(isinstance(arg, str) and arg in inside for arg in stmt.args)
