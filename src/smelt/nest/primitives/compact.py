"""Moves scratch buffers into the loop that uses them, and shrinks them to the need of one iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
from sympy import Eq, Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import (
    Alloc,
    Block,
    For,
    Guard,
    Kernel,
    Let,
    LoopKind,
    Prefetch,
    SortRow,
    Stage,
    Stmt,
    Store,
)
from smelt.nest.regions import (
    Access,
    Box,
    Facts,
    box_of,
    covers,
    extent,
    found_accesses,
    is_dense,
    keeps_inside,
    touched,
    union,
)
from smelt.nest.scopes import position, unique_name
from smelt.nest.tree import redirected, rewritten, walk, with_body
from smelt.records import replace
from smelt.symbolic.affine import expand, symbols_in

ZERO = sympy.Integer(0)

Written = tuple[Box, frozenset[Boolean]]
"""A box that is written completely, and the conditions on the iteration under which that happens."""


def compact(kernel: Kernel) -> Kernel:
    """Moves each scratch buffer into the innermost loop whose iterations write all elements that they read,
    and shrinks it to the elements that an iteration touches.

    scratch B: f32[64, 64]                      for i in 64:
    for i in 64:                                    scratch B: f32[1, 64]
        for j in 64: B[i, j] = …           →        for j in 64: B[0, j] = …
        for j in 64: C[i, j] = f(B[i, j])           for j in 64: C[i, j] = f(B[0, j])

    A buffer with elements that one iteration writes and another reads stays in place. Nests that each write
    what they read have buffers of their own. Expects a kernel without stages (`smelt.nest.stages.dissolve`).
    """
    taken = {stmt.buffer for stmt in walk(kernel.body) if isinstance(stmt, Alloc)}
    taken |= {param.name for param in kernel.params}
    return with_body(kernel, _compacted(kernel.body, Facts(), taken))


def _compacted(block: Block, facts: Facts, taken: set[str]) -> Block:
    for alloc in [stmt for stmt in block.stmts if isinstance(stmt, Alloc)]:
        block, parts = _apart(block, alloc, facts, taken)
        for each in parts:
            around = home(block, each, facts)
            if around:
                block = _moved(block, each, around, facts, taken)
    return block


def _apart(block: Block, alloc: Alloc, facts: Facts, taken: set[str]) -> tuple[Block, list[Alloc]]:
    """The block with a buffer for each of its statements that use ``alloc``, if all of them can then be moved
    into these statements; and the buffers.
    """
    users = [stmt for stmt in block.stmts if _touches(stmt, alloc.buffer)]
    if len(users) < 2 or not all(home(Block((user,)), alloc, facts) for user in users):
        return block, [alloc]
    stmts, parts = list(block.stmts), [alloc]
    for user in users[1:]:
        name = unique_name(alloc.buffer, taken)
        taken.add(name)
        (renamed,) = redirected(Block((user,)), alloc.buffer, name).stmts
        stmts[position(stmts, user)] = renamed
        parts.append(replace(alloc, buffer=name))
    return Block((*parts[1:], *stmts)), parts


def home(block: Block, alloc: Alloc, facts: Facts) -> list[For | Guard]:
    """The loops and conditions down to the innermost block that a buffer can be moved to; empty for this
    block. ``facts``: the loops around the block.
    """
    buffer = alloc.buffer
    path: list[For | Guard] = []
    found: list[For | Guard] = []
    loops: list[For] = []
    while True:
        users = [stmt for stmt in block.stmts if _touches(stmt, buffer)]
        child = users[0] if len(users) == 1 else None
        if not isinstance(child, (For, Guard)):
            return found
        if isinstance(child, For):
            if child.kind in (LoopKind.VECTOR, LoopKind.JAM):
                return found
            loops.append(child)
        path.append(child)
        block = child.body
        if covered(block, alloc, facts.plus(loops), {}):
            found = list(path)


def _touches(stmt: Stmt, buffer: str) -> bool:
    for each in walk(Block((stmt,))):
        if isinstance(each, (Store, Prefetch)) and each.buffer == buffer:
            return True
        if isinstance(each, Let) and each.op == "load" and each.args[0] == buffer:
            return True
        if isinstance(each, SortRow) and buffer in (each.source, each.values, each.positions):
            return True
    return False


# -- does an iteration write what it reads? ------------------------------------------------------------------


def covered(block: Block, alloc: Alloc, facts: Facts, inner: Mapping[Symbol, Expr]) -> bool:
    """Whether every iteration of a block reads only elements of a buffer that it has written before.
    ``inner``: the loops around the block, inside the candidate block, and their begins.
    """
    have: list[Written] = []
    buffer = alloc.buffer
    for stmt in block.stmts:
        if not _touches(stmt, buffer):
            continue
        if not _reads_covered(stmt, buffer, facts, have):
            if isinstance(stmt, For):
                if not covered(stmt.body, alloc, facts.plus([stmt]), {**inner, stmt.var: stmt.begin}):
                    return False
            elif not isinstance(stmt, (Guard, Stage)) or not covered(stmt.body, alloc, facts, inner):
                return False
        have += _written(stmt, alloc, facts, inner)
    return True


def _reads_covered(stmt: Stmt, buffer: str, facts: Facts, have: Sequence[Written]) -> bool:
    for access in found_accesses(stmt):
        if access.buffer != buffer or (access.is_store and access.mode is None):
            continue
        if access.whole:
            return False
        box, guards = box_of(access, facts), frozenset(access.guards)
        if not any(under <= guards and covers(each, box, facts) for each, under in have):
            return False
    return True


def _written(stmt: Stmt, alloc: Alloc, facts: Facts, inner: Mapping[Symbol, Expr]) -> list[Written]:
    """The boxes that a statement writes completely, clipped to the buffer."""
    found: list[Written] = []
    for access in found_accesses(stmt):
        if access.buffer != alloc.buffer or not access.is_store or access.mode is not None or access.whole:
            continue
        begins = {var: low for var, (low, _) in access.loops}
        loops = begins.keys()
        guards = [each for each in access.guards if not _holds_at_first(each, access, {**inner, **begins})]
        guards = [each for each in guards if not keeps_inside(each, access, alloc.shape)]
        dense = is_dense(access, facts)
        if dense and all(loops.isdisjoint(each.free_symbols) for each in guards):
            box = box_of(access, facts)
            found.append((box, frozenset(guards)))
            same = [each for each, under in found[:-1] if under == frozenset(guards)]
            if same and covers(box, same[-1], facts):
                found.append((union(box, same[-1], facts), frozenset(guards)))
    return found


def _holds_at_first(condition: Boolean, access: Access, begins: Mapping[Symbol, Expr]) -> bool:
    """Whether a condition holds in the first iteration of the loops that an element's index does not use."""
    if not isinstance(condition, Eq):
        return False
    gap = expand(condition.lhs - condition.rhs)
    symbols = symbols_in(gap)
    if not symbols <= begins.keys() or any(not symbols.isdisjoint(symbols_in(expr)) for expr in access.index):
        return False
    return bool(expand(gap.xreplace({var: begins[var] for var in symbols})) == 0)


# -- moving and shrinking ------------------------------------------------------------------------------------


def _moved(block: Block, alloc: Alloc, path: Sequence[For | Guard], facts: Facts, taken: set[str]) -> Block:
    inside = path[-1].body
    facts = facts.plus([each for each in path if isinstance(each, For)])
    box = touched(inside, alloc.buffer, facts, shape=alloc.shape)
    assert box is not None
    lows: list[Expr] = []
    sizes: list[Expr] = []
    for span, size in zip(box, alloc.shape):
        count = size if span is None else extent(span, facts)
        fits = span is not None and symbols_in(count).isdisjoint(facts.extents) and facts.at_most(count, size)
        lows.append(span[0] if span is not None and fits else ZERO)
        sizes.append(count if fits else size)

    def shifted(index: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(expand(expr - low) for expr, low in zip(index, lows, strict=True))

    new = replace(alloc, shape=tuple(sizes))
    body = redirected(inside, alloc.buffer, alloc.buffer, shifted)
    body = _compacted(Block((new, *body.stmts)), facts, taken)

    def visit(stmt: Stmt) -> Sequence[Stmt] | None:
        if stmt is alloc:
            return ()
        return (replace(path[-1], body=body),) if stmt is path[-1] else None

    return rewritten(block, visit)
