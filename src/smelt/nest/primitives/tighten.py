"""Conditions of blocks that the known ranges of the loops around them decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import Block, For, Kernel, Stage, Stmt
from smelt.nest.primitives.common import loop_place
from smelt.nest.regions import Facts, Interval, interval, slack
from smelt.nest.tree import replace_loop, rewritten, substitute, with_blocks, with_body
from smelt.records import replace
from smelt.symbolic.affine import divided, expand, linear, plus, symbols_in

Ranges = Mapping[Symbol, Interval]


def tighten(kernel: Kernel, var: Symbol) -> Kernel:
    """Decides conditions of the blocks in a loop by the ranges of that loop and the loops inside.

    for i in 6 … 7: for j in 16: A[16*i + j] where 16*i + j < 100   →   for i in 6 … 7: for j in 4: A[96 + j]

    Loops end where the conditions of all of their blocks have stopped to hold, conditions that always hold
    are gone, and the variable of a single iteration is its value. After `partition` the last tile has its own
    size.

    Raises:
        ScheduleError: SM1002, there is no such loop.
    """
    loop, _ = loop_place(kernel, var, "tighten")
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (_settled(loop, {}),)))


def _settled(stmt: Stmt, ranges: Ranges) -> Stmt:
    if isinstance(stmt, Stage):
        where = tuple([each for each in stmt.where if not _holds(each, ranges)])
        return stmt if len(where) == len(stmt.where) else replace(stmt, where=where)
    if isinstance(stmt, For):
        end = _end(stmt, ranges)
        stmt = stmt if end == stmt.end else replace(stmt, end=end)
        if end == plus(stmt.begin, 1):
            stmt = replace(stmt, body=substitute(stmt.body, {stmt.var: stmt.begin}))
        ranges = {**ranges, stmt.var: (stmt.begin, plus(end, -1))}
    return with_blocks(stmt, lambda block: rewritten(block, lambda each: (_settled(each, ranges),)))


def _holds(condition: Boolean, ranges: Ranges) -> bool:
    gap = slack(condition)
    span = None if gap is None else interval(gap, ranges, Facts())
    return span is not None and bool(span[0].is_Integer and span[0] >= 0)


def _end(loop: For, ranges: Ranges) -> Expr:
    """The first iteration from which on no block of a loop runs."""
    blocks = _conditions(loop.body)
    if not any(blocks or ()):
        return loop.end
    inside = dict(ranges)
    for each in _loops(loop.body):
        inside[each.var] = (each.begin, plus(each.end, -1))
    stops = [_stop(loop, each, inside) for each in blocks or ()]
    return max(stops) if all(stop.is_Integer for stop in stops) else loop.end


def _stop(loop: For, conditions: Sequence[Boolean], inside: Ranges) -> Expr:
    """The first iteration from which on not all conditions can hold."""
    end = loop.end
    for condition in conditions:
        gap = slack(condition)
        if gap is None:
            continue
        step, rest = linear(gap, loop.var)
        if not step.is_Integer or step >= 0 or loop.var in symbols_in(rest):
            continue
        most = interval(expand(rest), inside, Facts())
        if most is None or not most[1].is_Integer or not end.is_Integer:
            continue
        stop = divided(most[1], -step) + 1
        if loop.begin.is_Integer and loop.begin < stop < end:
            end = stop
    return end


def _loops(block: Block) -> list[For]:
    return [inner for stmt in block.stmts if isinstance(stmt, For) for inner in (stmt, *_loops(stmt.body))]


def _conditions(block: Block) -> list[tuple[Boolean, ...]] | None:
    """The conditions of each block; None if there is more than blocks."""
    found: list[tuple[Boolean, ...]] = []
    for stmt in block.stmts:
        if isinstance(stmt, Stage):
            found.append(stmt.where)
        elif not isinstance(stmt, For) or (inner := _conditions(stmt.body)) is None:
            return None
        else:
            found += inner
    return found
