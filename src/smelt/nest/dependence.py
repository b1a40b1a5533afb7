"""Whether the turns of a loop depend on one another: the legality test of the primitives."""

from __future__ import annotations

from collections.abc import Iterable

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import Min

from smelt.nest.ir import Accumulate, Advance, Alloc, Carry, For, SortRow, Update
from smelt.nest.tree import accesses, indirect_symbols, loops, trip_count, walk
from smelt.symbolic.affine import expand, linear


def carried_updates(loop: For) -> list[Update]:
    """Updates in the loop of accumulators that are declared outside it: a reduction over the loop."""
    within = walk(loop.body)
    inside = {stmt.name for stmt in within if isinstance(stmt, Accumulate)}
    return [stmt for stmt in within if isinstance(stmt, Update) and stmt.acc not in inside]


def carried_state(loop: For) -> list[Advance]:
    """Advances in the loop of carries that are declared outside it: its turns go in order."""
    within = walk(loop.body)
    inside = {stmt.name for stmt in within if isinstance(stmt, Carry)}
    return [stmt for stmt in within if isinstance(stmt, Advance) and stmt.carry not in inside]


def conflict(loop: For) -> str | None:
    """Why two turns of the loop may touch the same element, one of them writing; None where they cannot.

    Expects flattened accesses. Conservative: what it cannot show to be safe counts as a conflict.
    Accumulators are not looked at (`carried_updates`), a state that is handed on is.
    """
    handed = carried_state(loop)
    if handed:
        return f"every turn of {loop.var} hands {handed[0].carry} on to the next"
    if loop.independent:
        return None
    private = {stmt.buffer for stmt in walk(loop.body) if isinstance(stmt, Alloc)}
    touched: dict[str, tuple[set[tuple[Expr, ...]], bool]] = {}
    for buffer, index, is_store in accesses(loop.body):
        if buffer in private:
            continue
        indices, stored = touched.setdefault(buffer, (set(), False))
        indices.add(index)
        touched[buffer] = (indices, stored or is_store)
    if any(isinstance(stmt, SortRow) for stmt in walk(loop.body)):
        return f"turns of {loop.var} sort rows"
    within, moved = _inner_extents(loop)
    indirect = indirect_symbols(loop.body)
    for buffer, (indices, stored) in touched.items():
        if not stored:
            continue
        placed = {tuple(expr.xreplace(moved) for expr in index) for index in indices} if moved else indices
        if not all(_separated(index, loop, within, indirect) for index in placed):
            return f"two turns of {loop.var} may write the same element of {buffer}"
        if len(placed) > 1 and not _same_digit(placed, loop, within, indirect):
            return f"{buffer} is written at one index and read or written at another in turns of {loop.var}"
    return None


Extents = dict[Symbol, list[Expr]]


def _inner_extents(loop: For) -> tuple[Extents, dict[Symbol, Expr]]:
    """For each loop inside, upper bounds of the width of its range; and how its variable moves with ``loop``.

    A loop that a split has made begins at ``factor * loop.var``: its variable is that plus one from 0 on.
    """
    extents: Extents = {}
    moved: dict[Symbol, Expr] = {}
    for inner in loops(loop.body):
        begin = inner.begin.xreplace(moved)
        ends = [
            end.xreplace(moved) for end in (inner.end.args if isinstance(inner.end, Min) else (inner.end,))
        ]
        widths = [expand(end - begin) for end in ends]
        if begin.has(loop.var):
            moved[inner.var] = begin + inner.var
        elif not begin.has(*extents) and not begin.is_number:
            widths += ends
        extents[inner.var] = [width for width in widths if not width.has(loop.var)]
    return extents, moved


def _coefficients(expr: Expr, variables: Iterable[Symbol]) -> tuple[dict[Symbol, Expr], Expr] | None:
    """Coefficients of an affine expression, and the rest; None where it is not affine in the variables."""
    rest = expanded = expand(expr)
    result: dict[Symbol, Expr] = {}
    for variable in variables:
        if expanded.has(variable):
            result[variable] = linear(expanded, variable)[0]
            rest = linear(rest, variable)[1]
    names = set(result)
    if rest.free_symbols & names or any(c.free_symbols & names for c in result.values()):
        return None
    return result, rest


def _separated(index: tuple[Expr, ...], loop: For, within: Extents, indirect: set[Symbol]) -> bool:
    """Whether different turns give different flat indices, whatever the inner loops do (a mixed radix
    argument).
    """
    if len(index) != 1:
        return any(_lone(expr, loop.var, within, indirect) for expr in index)
    found = _coefficients(index[0], [loop.var, *within, *indirect])
    if found is None:
        return False
    coefficients, _ = found
    own = coefficients.pop(loop.var, None)
    if own is None or own == 0:
        return False
    span: Expr = sympy.Integer(0)
    larger: list[Expr] = []
    for variable, coefficient in coefficients.items():
        fitting = [width for width in within.get(variable, ()) if _at_least(own, coefficient * width)]
        if fitting and not _at_least(coefficient, own * trip_count(loop)):
            span = span + coefficient * (fitting[0] - 1)
        else:
            larger.append(coefficient)
    if not _at_least(own, span + 1):
        return False
    reach = span + own * (trip_count(loop) - 1) + 1
    return all(_at_least(coefficient, reach) for coefficient in larger)


def _lone(expr: Expr, var: Symbol, within: Extents, indirect: set[Symbol]) -> bool:
    """Whether one dimension's index is the loop variable plus something that no inner loop changes."""
    rest = expand(expr - var)
    return not (rest.free_symbols & ({var} | within.keys() | indirect))


def _at_least(left: Expr, right: Expr) -> bool:
    gap = expand(left - right)
    if gap.is_number:
        return bool(gap >= 0)
    return bool(gap.is_nonnegative)


def _same_digit(indices: set[tuple[Expr, ...]], loop: For, within: Extents, indirect: set[Symbol]) -> bool:
    """Whether all indices have the loop variable at the same place: one coefficient, one offset, one set
    of larger ones.
    """
    seen: set[tuple[Expr, Expr, tuple[str, ...]]] = set()
    for index in indices:
        found = _coefficients(index[0], [loop.var, *within, *indirect]) if len(index) == 1 else None
        if found is None:
            return False
        coefficients, rest = found
        own = coefficients.pop(loop.var, sympy.Integer(0))
        larger = sorted(str(c) for c in coefficients.values() if not _at_least(own, c))
        seen.add((own, expand(rest), tuple(larger)))
    return len(seen) == 1
