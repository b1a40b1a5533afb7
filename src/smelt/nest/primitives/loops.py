"""Primitives that change the loops themselves: their number, their extents, their order in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import sympy
from sympy import Expr, Symbol

from smelt.nest.dependence import conflict
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
    Stmt,
    Store,
)
from smelt.nest.primitives.common import ONE, ScheduleError, exprs_of, fresh_var, inner_loop
from smelt.nest.tree import (
    accesses,
    find,
    indirect_symbols,
    local_buffers,
    loops,
    map_exprs,
    replace_loop,
    substitute,
    walk,
    with_body,
)
from smelt.records import replace
from smelt.symbolic import flatten, free_symbols, least, same, span
from smelt.symbolic.affine import divided, expand, linear, remainder, replaced, symbols_in, times, total
from smelt.symbolic.index import simplify


def flatten_accesses(kernel: Kernel) -> Kernel:
    """Every access by one flat index.

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
            if isinstance(stmt, (For, Masked, Guard)):
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


def merges_cleanly(kernel: Kernel, var: Symbol) -> bool:
    """Whether merging the loop over ``var`` with the one inside leaves no division in any flat index."""
    outer = find(kernel.body, var)
    inner = inner_loop(outer)
    if inner is None or outer.kind is not inner.kind or outer.step != 1 or inner.step != 1:
        return False
    if outer.begin != 0 or inner.begin != 0 or inner.end.has(var):
        return False
    for expr in exprs_of(inner.body):
        if symbols_in(expr).isdisjoint((var, inner.var)):
            continue
        a, rest = linear(expr, var)
        b, rest = linear(rest, inner.var)
        if not same(a, times(b, inner.end)) or not symbols_in(rest).isdisjoint((var, inner.var)):
            return False
    return True


def merge(kernel: Kernel, var: Symbol) -> Kernel:
    """Make one loop of two perfectly nested ones.

    for i0 in 8: for i1 in 64: p0[i0*64 + i1] = …   →   for i0 in 512: p0[i0] = …

    Raises:
        ScheduleError: the loops are not perfectly nested, or of different kinds.
    """
    outer = find(kernel.body, var)
    inner = inner_loop(outer)
    if inner is None:
        raise ScheduleError(f"merge({var})", "the loop's body is not exactly one loop")
    if outer.kind is not inner.kind or inner.end.has(var):
        raise ScheduleError(
            f"merge({var})", "the two loops are of different kinds, or the inner one's end varies"
        )
    clean = merges_cleanly(kernel, var)
    size = inner.end
    turns = outer.end * size

    def rewrite(expr: Expr) -> Expr:
        if symbols_in(expr).isdisjoint((var, inner.var)):
            return expr
        if clean:
            _, rest = linear(expr, var)
            step, rest = linear(rest, inner.var)
            return total([rest, times(var, step)])
        apart = replaced(expr, {var: divided(var, size), inner.var: remainder(var, size)})
        return simplify(apart, {var: turns})

    body = map_exprs(inner.body, rewrite)
    merged = replace(outer, end=turns, body=body, independent=outer.independent and inner.independent)
    return with_body(kernel, replace_loop(kernel.body, var, lambda loop: (merged,)))


def split(kernel: Kernel, var: Symbol, factor: int) -> tuple[Kernel, Symbol]:
    """Cut a loop into blocks of ``factor``; returns the kernel and the new inner loop's variable.

    for i0 in 100: A   →   for i0 in 4: for i1 in i0*32 … min(100, i0*32 + 32): A[i0 := i1]
    """
    loop = find(kernel.body, var)
    if loop.begin != 0:
        raise ScheduleError(f"split({var}, {factor})", "the loop does not begin at 0")
    inner = fresh_var(kernel)
    count = simplify(divided(loop.end + factor - 1, sympy.Integer(factor)), {})
    even = loop.end.is_Integer and int(loop.end) % factor == 0
    end = var * factor + factor if even else least(loop.end, var * factor + factor)
    body = substitute(loop.body, {var: inner})
    new = replace(
        loop, end=count, body=Block((replace(loop, var=inner, begin=var * factor, end=end, body=body),))
    )
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (new,))), inner


def peel(kernel: Kernel, var: Symbol, count: int) -> tuple[Kernel, Symbol]:
    """Cut a loop's last turns off; returns the kernel and the variable of the loop that runs them.

    for i in 100: A   →   for i in 96: A; for i' in 96 … 100: A[i := i']
    """
    loop = find(kernel.body, var)
    if loop.begin != 0 or not loop.end.is_Integer or not 0 < count < int(loop.end):
        raise ScheduleError(f"peel({var}, {count})", f"the loop runs from {loop.begin} to {loop.end}")
    first, last = replace(loop, end=sympy.Integer(count)), replace(loop, begin=sympy.Integer(count))
    kernel = with_body(kernel, replace_loop(kernel.body, var, lambda _: (first,)))
    alone = with_body(kernel, Block((last,)))
    for inner in loops(alone.body):
        new = fresh_var(with_body(kernel, Block((*kernel.body.stmts, *alone.body.stmts))))
        alone = with_body(alone, replace_loop(alone.body, inner.var, partial(_over, var=new)))
    pieces = (first, *alone.body.stmts)
    rest = loops(alone.body)[0].var
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: pieces)), rest


def _over(loop: For, var: Symbol) -> tuple[For]:
    """The same loop with another variable."""
    return (replace(loop, var=var, body=substitute(loop.body, {loop.var: var})),)


def interchange(kernel: Kernel, var: Symbol) -> Kernel:
    """Swap a loop with the one that is its whole body.

    for i: for j: A   →   for j: for i: A

    Raises:
        ScheduleError: not perfectly nested, bounds that depend on the other loop, or turns that depend on
        each other.
    """
    outer = find(kernel.body, var)
    inner = inner_loop(outer)
    if inner is None:
        raise ScheduleError(f"interchange({var})", "the loop's body is not exactly one loop")
    if inner.begin.has(var) or inner.end.has(var):
        raise ScheduleError(f"interchange({var})", f"the bounds of {inner.var} depend on {var}")
    why = conflict(outer)
    if why is not None:
        raise ScheduleError(f"interchange({var})", why)
    swapped = replace(inner, body=Block((replace(outer, body=inner.body),)))
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (swapped,)))


def tile(kernel: Kernel, var: Symbol, rows: int, columns: int) -> tuple[Kernel, Symbol, Symbol]:
    """Walk two perfectly nested loops in tiles; returns the kernel and the two loops inside a tile.

    for i: for j: A   →   for i: for j: for i' in tile: for j' in tile: A
    """
    outer = find(kernel.body, var)
    inner = inner_loop(outer)
    if inner is None:
        raise ScheduleError(f"tile({var})", "the loop's body is not exactly one loop")
    kernel, within_rows = split(kernel, var, rows)
    kernel, within_columns = split(kernel, inner.var, columns)
    kernel = interchange(kernel, within_rows)
    return kernel, within_rows, within_columns


def hoist(kernel: Kernel) -> Kernel:
    """Move what a loop computes the same in every turn in front of it.

    for i: for j: v = sqrt(x[i]); y[i, j] = v   →   for i: v = sqrt(x[i]); for j: y[i, j] = v

    A load stays where the loop stores to the same buffer; checks and integer divisions stay where they are.
    What comes out of two loops of a block under one name comes out once.
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
