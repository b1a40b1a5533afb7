"""Moves scratch buffers into the loop that uses them, and shrinks them to the need of one iteration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import sympy
from sympy import Eq, Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import (
    Alloc,
    Block,
    For,
    Guard,
    Kernel,
    LoopKind,
    Stage,
    Stmt,
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
from smelt.nest.scopes import place_of_loop, position, unique_name
from smelt.nest.tree import blocks_of, local_buffers, names_in, redirected, rewritten, walk, with_body
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


def own_buffers(kernel: Kernel, var: Symbol) -> set[str]:
    """The scratch buffers of which each iteration of a loop has a copy after `compact`: those that the kernel
    declares outside of all loops and `compact` moves into the loop, and those declared in the loop.
    """
    place = place_of_loop(kernel.body, var)
    assert place is not None and isinstance(place.stmt, For)
    found = local_buffers(place.stmt.body)
    path = [*place.around, place.stmt]
    for alloc in kernel.body.stmts:
        if isinstance(alloc, Alloc) and _touches(place.stmt, alloc.buffer):
            found |= {alloc.buffer} if _moves_into(kernel.body, alloc, path) else set()
    return found


def _moves_into(block: Block, alloc: Alloc, path: Sequence[Stmt]) -> bool:
    """Whether `compact` moves a buffer from a block to the innermost of the statements ``path``."""
    facts = Facts()
    for number, child in enumerate(path):
        users = [stmt for stmt in block.stmts if _touches(stmt, alloc.buffer)]
        if not isinstance(child, (For, Guard)) or (isinstance(child, For) and _in_lockstep(child)):
            return False
        if len(users) > 1 and not (
            (number == 0 or covered(block, alloc, facts, {}))
            and all(_has_home(user, alloc, facts) for user in users)
        ):
            return False
        block, facts = child.body, facts.plus([child] if isinstance(child, For) else [])
    return covered(block, alloc, facts, {})


def _in_lockstep(loop: For) -> bool:
    """Whether iterations run together, and share memory."""
    return loop.kind in (LoopKind.VECTOR, LoopKind.JAM)


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
    if len(users) < 2 or not all(_has_home(user, alloc, facts) for user in users):
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
    return max(_homes(block, alloc, facts), key=len, default=[])


def _homes(block: Block, alloc: Alloc, facts: Facts) -> Iterator[list[For | Guard]]:
    """The loops and conditions down to each block that a buffer can be moved to, the outermost first."""
    buffer = alloc.buffer
    path: list[For | Guard] = []
    loops: list[For] = []
    while True:
        users = [stmt for stmt in block.stmts if _touches(stmt, buffer)]
        child = users[0] if len(users) == 1 else None
        if not isinstance(child, (For, Guard)):
            return
        if isinstance(child, For):
            if _in_lockstep(child):
                return
            loops.append(child)
        path.append(child)
        block = child.body
        if covered(block, alloc, facts.plus(loops), {}):
            yield list(path)


def _has_home(stmt: Stmt, alloc: Alloc, facts: Facts) -> bool:
    return any(True for _ in _homes(Block((stmt,)), alloc, facts))


def _touches(stmt: Stmt, buffer: str) -> bool:
    inside = blocks_of(stmt)
    if inside:
        return any(buffer in names_in(each).buffers for each in inside)
    return not isinstance(stmt, Alloc) and buffer in names_in(Block((stmt,))).buffers


# -- does an iteration write what it reads? ------------------------------------------------------------------


def covered(block: Block, alloc: Alloc, facts: Facts, inner: Mapping[Symbol, Expr]) -> bool:
    """Whether every iteration of a block reads only elements of a buffer that it has written before.
    ``inner``: the loops around the block, inside the candidate block, and their begins.
    """
    have: list[Written] = []
    users = [stmt for stmt in block.stmts if _touches(stmt, alloc.buffer)]
    for number, stmt in enumerate(users):
        found = [access for access in found_accesses(stmt) if access.buffer == alloc.buffer]
        if not _reads_covered(found, facts, have):
            if isinstance(stmt, For):
                if not covered(stmt.body, alloc, facts.plus([stmt]), {**inner, stmt.var: stmt.begin}):
                    return False
            elif not isinstance(stmt, (Guard, Stage)) or not covered(stmt.body, alloc, facts, inner):
                return False
        if number < len(users) - 1:
            for each in _written(found, alloc, facts, inner):
                _add(have, each, facts)
    return True


def _add(have: list[Written], new: Written, facts: Facts) -> None:
    """Adds a box, joined with boxes that it continues in one dimension, as tiles at the edges of a matrix."""
    box, guards = new
    for other, under in have:
        joined = _joined(box, other, facts) if under == guards else None
        if joined is not None:
            have.remove((other, under))
            _add(have, (joined, guards), facts)
            return
    have.append(new)


def _joined(one: Box, other: Box, facts: Facts) -> Box | None:
    """The box that two boxes make up together; None if they leave something out."""
    differ = [dim for dim, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    if len(differ) != 1:
        return None
    a, b = one[differ[0]], other[differ[0]]
    if a is None or b is None or not (facts.at_most(a[0], b[1] + 1) and facts.at_most(b[0], a[1] + 1)):
        return None
    return union(one, other, facts)


def _reads_covered(accesses: Iterable[Access], facts: Facts, have: Sequence[Written]) -> bool:
    for access in accesses:
        if access.is_store and access.mode is None:
            continue
        guards = frozenset(access.guards)
        there = [each for each, under in have if under <= guards]
        if access.whole or not there:
            return False
        box = box_of(access, facts)
        if not any(covers(each, box, facts) for each in there):
            return False
    return True


def _written(
    accesses: Iterable[Access], alloc: Alloc, facts: Facts, inner: Mapping[Symbol, Expr]
) -> list[Written]:
    """The boxes that accesses write completely, clipped to the buffer."""
    found: list[Written] = []
    for access in accesses:
        if not access.is_store or access.mode is not None or access.whole or not is_dense(access, facts):
            continue
        begins = {var: low for var, (low, _) in access.loops}
        loops = begins.keys()
        guards = [each for each in access.guards if not _holds_at_first(each, access, {**inner, **begins})]
        guards = [each for each in guards if not keeps_inside(each, access, alloc.shape)]
        if all(loops.isdisjoint(each.free_symbols) for each in guards):
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
