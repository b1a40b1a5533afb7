"""Moves conditions into loop bounds where possible, otherwise splits loops into ranges with a known
condition.

Two of the passes of `smelt.nest.finish`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
from sympy import Expr, Symbol
from sympy.core.relational import Eq, Ne, Relational
from sympy.logic.boolalg import Boolean
from torch.utils._sympy.functions import Max, Min

from smelt.nest.ir import Block, For, Guard, Kernel, Let, LoopKind, Stmt
from smelt.nest.regions import slack
from smelt.nest.stages import guarded
from smelt.nest.tree import rewritten, trip_count, walk, with_blocks, with_body
from smelt.records import replace
from smelt.symbolic.affine import divided, linear, symbols_in
from smelt.symbolic.bounds import is_nonnegative

MOST_PARTS = 4
"""Limit on the parts that a vector loop is split into by its conditions; beyond it, lanes are masked."""


def bound_loops(kernel: Kernel, lanes: int) -> Kernel:
    """Turns conditions into loop bounds; conditions that always hold are dropped, equal ones joined.

    for i: for j in 16: if 16*i + j < n: A   →   for i: for j in min(16, n - 16*i): A
    """
    del lanes
    return with_body(kernel, _bounded(kernel.body, {}))


def _bounded(block: Block, extents: Mapping[Symbol, Expr]) -> Block:
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if isinstance(stmt, For):
            stmts += (each for each in _bounded_loop(stmt, extents) if not _is_empty(each))
        elif isinstance(stmt, Guard):
            open_ones = [each for each in conjuncts(stmt.condition) if not holds(each, extents)]
            inner = _bounded(stmt.body, extents)
            stmts += guarded(open_ones, inner) if inner.stmts else []
        else:
            stmts.append(with_blocks(stmt, lambda inner: _bounded(inner, extents)))
    return Block(tuple(_joined(stmts)))


def _joined(stmts: Sequence[Stmt]) -> list[Stmt]:
    """The statements, with consecutive ones under the same condition under it together."""
    found: list[Stmt] = []
    for stmt in stmts:
        last = found[-1] if found else None
        if isinstance(stmt, Guard) and isinstance(last, Guard) and stmt.condition == last.condition:
            found[-1] = Guard(stmt.condition, Block((*last.body.stmts, *stmt.body.stmts)))
        else:
            found.append(stmt)
    return found


def _is_empty(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and not stmt.body.stmts


def _bounded_loop(loop: For, extents: Mapping[Symbol, Expr]) -> list[Stmt]:
    """The loop with the conditions on its whole body in its bounds, or in a guard around it."""
    trips = trip_count(loop)
    if trips.is_Integer and trips <= 0:  # invariant values would be read in front of it
        return []
    inside = {**extents, loop.var: loop.end} if loop.begin == 0 else dict(extents)
    body = _bounded(loop.body, inside)
    if not body.stmts:
        return []
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
    """The terms of a conjunction."""
    return (
        [each for part in condition.args for each in conjuncts(part)]
        if isinstance(condition, sympy.And)
        else [condition]
    )


def holds(condition: Boolean, extents: Mapping[Symbol, Expr]) -> bool:
    """Whether a condition always holds for variables from 0 to their extents."""
    gap = slack(condition)
    return gap is not None and is_nonnegative(gap, dict(extents))


def _bounds_of(condition: Boolean, var: Symbol) -> tuple[Expr | None, Expr | None]:
    """The first value of ``var`` for which an inequality holds, and the first for which it no longer holds;
    None for no bound, both None where the inequality is not linear in ``var``.
    """
    gap = slack(condition)
    if gap is None:
        return None, None
    step, rest = linear(gap, var)
    if not step.is_Integer or step == 0 or var in symbols_in(rest):
        return None, None
    if step < 0:  # rest - |step| * var >= 0
        return None, divided(rest, -step) + 1
    return -divided(rest, step), None  # var >= -rest / step, rounded up


# -- lanes in which a condition holds ------------------------------------------------------------------------


def uniform_in_lanes(kernel: Kernel, lanes: int) -> Kernel:
    """Splits vector loops so that a condition holds in all lanes of a part or in none.

    vector for i in 16: A; if 16*o + i < n: B
        →   vector for i in min(16, n - 16*o): A; B
            vector for i in min(16, n - 16*o) … 16: A

    A condition that is no (in)equality linear in the variable stays: its lanes are masked.
    """
    del lanes

    def rewrite(stmt: Stmt) -> Sequence[Stmt] | None:
        found = stmt if isinstance(stmt, For) and stmt.kind is LoopKind.VECTOR else None
        return None if found is None else _parts(found, MOST_PARTS)

    return with_body(kernel, rewritten(kernel.body, rewrite))


def _parts(loop: For, most: int) -> list[Stmt]:
    ends = _ends_of(loop)
    if ends is None or len(ends[1]) + 1 > most:
        return [loop]
    atom, places = ends
    begin, parts = loop.begin, []
    bounds = [_at_least(loop.begin, Min(loop.end, each)) for each in places]
    holds = _truths(atom, loop.var)
    for end, true in zip([*bounds, loop.end], holds, strict=True):
        body = _assuming(loop.body, atom, true)
        if body.stmts and end != begin:
            parts += _parts(replace(loop, begin=begin, end=end, body=body), most // 2)
        begin = end
    return parts


def _ends_of(loop: For) -> tuple[Relational, list[Expr]] | None:
    """A condition in a loop whose truth changes at known iterations, and the first iteration after each
    change.
    """
    inside = {stmt.var for stmt in walk(loop.body) if isinstance(stmt, For)}
    inside |= {s.index for s in walk(loop.body) if isinstance(s, Let) and s.index is not None}
    for guard in walk(loop.body):
        if not isinstance(guard, Guard):
            continue
        for atom in sorted(guard.condition.atoms(Relational), key=str):
            if loop.var not in atom.free_symbols or not inside.isdisjoint(atom.free_symbols):
                continue
            if isinstance(atom, (Eq, Ne)):
                step, rest = linear(sympy.expand(atom.lhs - atom.rhs), loop.var)
                if step in (1, -1) and loop.var not in symbols_in(rest):
                    place = sympy.expand(-rest * step)
                    return atom, [place, place + 1]
            least, most = _bounds_of(atom, loop.var)
            if (least is None) != (most is None):
                return atom, [most if least is None else least]
    return None


def _truths(atom: Relational, var: Symbol) -> list[bool]:
    """Whether a condition holds in each of the parts that `_ends_of` makes of a loop."""
    if isinstance(atom, (Eq, Ne)):
        equal = isinstance(atom, Eq)
        return [not equal, equal, not equal]
    below = _bounds_of(atom, var)[0] is None
    return [below, not below]


def _assuming(block: Block, atom: Relational, true: bool) -> Block:
    """The statements, simplified by the known truth of a condition."""

    def rewrite(stmt: Stmt) -> Sequence[Stmt] | None:
        if not isinstance(stmt, Guard) or not stmt.condition.has(atom):
            return None
        condition = stmt.condition.xreplace({atom: sympy.sympify(true)})
        return guarded([condition], _assuming(stmt.body, atom, true))

    return rewritten(block, rewrite)
