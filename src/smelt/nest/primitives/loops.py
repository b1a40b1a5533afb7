"""Primitives that change how many loops there are, and their extents: split, fuse, partition.

``plain=True`` is the mode of smelt's own scheduler: loops without stages, with flat accesses. The first new
loop keeps the variable and kind of the old one, the others are numbered, and a remainder is in the bounds of
a loop, not in a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import sympy
from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import Alloc, Block, For, Guard, Kernel, Stage, Stmt
from smelt.nest.primitives.common import (
    ONE,
    ZERO,
    Numbered,
    ScheduleError,
    in_loops,
    inner_loop,
    is_asked_for,
    loop_place,
    refused,
    renewed,
)
from smelt.nest.regions import Facts
from smelt.nest.scopes import stage_names, unique_name
from smelt.nest.stages import Fresh, names_of
from smelt.nest.tree import (
    exprs_of,
    find,
    map_exprs,
    named,
    replace_loop,
    rewritten,
    trip_count,
    with_blocks,
    with_body,
)
from smelt.records import replace
from smelt.symbolic import least, same, simplify
from smelt.symbolic.affine import (
    as_integer,
    divided,
    expand,
    linear,
    remainder,
    replaced,
    symbols_in,
    times,
    total,
)

Factor: TypeAlias = int | Expr | None


# -- one loop → loops in one another -------------------------------------------------------------------------


def split(
    kernel: Kernel,
    var: Symbol,
    factors: Sequence[Factor],
    *,
    predicated: bool = True,
    plain: bool = False,
) -> tuple[Kernel, list[Symbol]]:
    """Splits a loop into several, the first outermost; one factor may be None and is inferred.

    for i in n: A   →   for i_0 in (n + 15)//16: for i_1 in 16: A[i := i_0*16 + i_1] where i_0*16 + i_1 < n
    plain:          →   for i in (n + 15)//16: for i1 in i*16 … min(n, i*16 + 16): A[i := i1]

    The condition, or the minimum, exists only where the factors do not divide the extent.

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1004, factors that are no positive numbers, or whose
            product is less than the extent, or (not ``predicated``) more, ``plain`` other factors than None
            and one more; SM1003, a ``plain`` loop does not begin at 0; SM1008, the loop is bound to a thread
            or has notes.
    """
    loop, _ = loop_place(kernel, var, "split")
    method = f"split with factors [{', '.join(map(str, factors))}]"
    unbound(kernel, loop, "split")
    extent = trip_count(loop)
    sizes = _sizes(kernel, loop, factors, method)
    whole = sympy.Mul(*sizes)
    even = same(whole, extent)
    if not even and not predicated:
        why = f"{whole} is not known to be the extent {extent} of {named(loop)}, and no condition is wanted"
        raise refused(kernel, method, var, why, code="SM1004", remedy="leave disable_predication out")
    if plain:
        return _split_plain(kernel, loop, sizes, even, method)
    fresh = Fresh(names_of(kernel))
    labels = [f"{named(loop)}_{number}" for number in range(len(sizes))]
    made = [fresh(label) for label in labels]
    weights = [sympy.Mul(*sizes[number + 1 :]) for number in range(len(sizes))]
    inside = total(expand(new * weight) for new, weight in zip(made, weights))
    body = _over(loop, total([loop.begin, inside]), dict(zip(made, sizes)))
    if not even:
        body = conditioned(body, sympy.Lt(inside, extent))
    new = [
        For(each, ZERO, size, Block(), label=label, proved=loop.proved)
        for each, size, label in zip(made, sizes, labels)
    ]
    return _put(kernel, loop, [in_loops(new, body)]), made


def _split_plain(
    kernel: Kernel, loop: For, sizes: Sequence[Expr], even: bool, method: str
) -> tuple[Kernel, list[Symbol]]:
    if loop.begin != 0:
        why = f"the loop does not begin at 0, but at {loop.begin}"
        raise refused(kernel, method, loop.var, why)
    if len(sizes) != 2:
        raise refused(kernel, method, loop.var, "a plain loop becomes two", code="SM1004")
    count, factor = sizes
    inner, first = Numbered(kernel)(""), loop.var * factor
    end = first + factor if even else least(loop.end, first + factor)
    new = [replace(loop, end=simplify(count, {})), replace(loop, var=inner, begin=first, end=end)]
    return _put(kernel, loop, [in_loops(new, _over(loop, inner, {}))]), [loop.var, inner]


def _sizes(kernel: Kernel, loop: For, factors: Sequence[Factor], method: str) -> list[Expr]:
    """The extents of the new loops."""
    extent = trip_count(loop)
    if not factors or sum(factor is None for factor in factors) > 1:
        why = "there are no factors" if not factors else "only one factor can be found from the others"
        raise refused(kernel, method, loop.var, why, code="SM1004")
    known = [as_integer(factor) for factor in factors if factor is not None]  # type: ignore[arg-type]
    for factor in known:
        if not factor.is_positive and not (factor.free_symbols and factor.is_positive is not False):
            why = f"the factor {factor} is no positive number"
            raise refused(kernel, method, loop.var, why, code="SM1004")
    whole = sympy.Mul(*known)
    found = divided(expand(extent + whole - 1), whole)
    if found == 0 and extent.is_Integer:
        found = ONE
    if None not in factors and not Facts().at_most(extent, whole):
        why = f"the product of the factors, {whole}, is less than the extent {extent} of {named(loop)}"
        remedy = f"make a factor None: it will be {found if len(known) < 2 else 'what is left'}"
        raise refused(kernel, method, loop.var, why, code="SM1004", remedy=remedy)
    return [found if factor is None else as_integer(factor) for factor in factors]  # type: ignore[arg-type]


def _over(loop: For, value: Expr, extents: dict[Symbol, Expr]) -> Block:
    """The body of a loop with its variable replaced by an expression of others."""

    def rewrite(expr: Expr) -> Expr:
        if loop.var not in symbols_in(expr):
            return expr
        found = replaced(expr, {loop.var: value})
        return found if isinstance(value, Symbol) else simplify(expand(found), extents)

    return map_exprs(loop.body, rewrite, (loop.var,))


def _put(kernel: Kernel, loop: For, stmts: Sequence[Stmt]) -> Kernel:
    """The kernel with a loop replaced by other statements."""
    return with_body(kernel, replace_loop(kernel.body, loop.var, lambda _: tuple(stmts)))


def conditioned(block: Block, condition: Boolean) -> Block:
    """The block under a condition: its stages get the condition, other statements a guard."""
    if not all(isinstance(stmt, (For, Guard, Stage, Alloc)) for stmt in block.stmts):
        return Block((Guard(condition, block),))
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if isinstance(stmt, Stage):
            stmts.append(replace(stmt, where=(*stmt.where, condition)))
        else:
            stmts.append(with_blocks(stmt, lambda inner: conditioned(inner, condition)))
    return Block(tuple(stmts))


# -- loops in one another → one loop -------------------------------------------------------------------------


def fuse(kernel: Kernel, variables: Sequence[Symbol], *, plain: bool = False) -> tuple[Kernel, Symbol]:
    """Fuses perfectly nested loops into one; they are given from the outermost to the innermost.

    for i in n: for j in m: A   →   for i_j_fused in n*m: A[i := i_j_fused//m, j := i_j_fused%m]

    An index in which i and j are contiguous (the step of i is the extent of j steps) has neither division nor
    remainder.

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1003, one is not the whole body of the one before, its
            extent depends on that, or ``plain`` loops run in different ways; SM1008, a loop is bound to a
            thread or has notes.
    """
    if not variables:
        raise ScheduleError("fuse()", "there are no loops", code="SM1003")
    chain = [loop_place(kernel, var, "fuse")[0] for var in variables]
    method = f"fuse({', '.join(map(named, chain))})"
    for loop in chain:
        unbound(kernel, loop, "fuse")
    for outer, inner in pairwise(chain):
        if inner_loop(outer) is not inner:
            why = f"{named(inner)} is not the whole body of {named(outer)}"
            remedy = "reorder them first, or take all loops between"
            raise refused(kernel, method, inner.var, why, remedy=remedy)
        if plain and (outer.kind, outer.step) != (inner.kind, inner.step):
            why = f"{named(outer)} is {outer.kind.value}, {named(inner)} is {inner.kind.value}"
            raise refused(kernel, method, inner.var, why)
        for each in chain[: chain.index(inner)]:
            if each.var in symbols_in(inner.begin) | symbols_in(inner.end):
                why = f"the bounds of {named(inner)} depend on {named(each)}"
                raise refused(kernel, method, inner.var, why)
    first = chain[0]
    label = "_".join(map(named, chain)) + "_fused"
    made = first.var if plain else Fresh(names_of(kernel))(label)
    trips = [trip_count(loop) for loop in chain]
    sizes = [ONE if count == 0 else count for count in trips]  # nothing is divided by 0
    empty = any(count == 0 for count in trips)
    values: dict[Symbol, Expr] = {loop.var: made for loop in chain} if empty else {}
    for number, loop in enumerate(() if empty else chain):
        below, whole = sympy.Mul(*sizes[number + 1 :]), sympy.Mul(*sizes[number:])
        place: Expr = made if number == 0 else remainder(made, whole)
        values[loop.var] = total([loop.begin, divided(place, below)])
    whole = expand(sympy.Mul(*trips))

    def rewrite(expr: Expr) -> Expr:
        if symbols_in(expr).isdisjoint(values):
            return expr
        if empty:  # nothing runs, but what is reduced over still says where it would be
            return replaced(expr, values)
        going_on = _contiguous_step(expr, chain, sizes)
        if going_on is not None:
            return total([going_on[1], times(made, going_on[0])])
        return simplify(expand(replaced(expr, values)), {made: whole})

    body = map_exprs(chain[-1].body, rewrite, values.keys())
    if plain:
        new = replace(first, begin=ZERO, end=whole, body=body, proved=all(loop.proved for loop in chain))
    else:
        new = For(made, ZERO, whole, body, label=label, proved=all(loop.proved for loop in chain))
    return _put(kernel, first, [new]), made


def fuses_cleanly(kernel: Kernel, var: Symbol) -> bool:
    """Whether fusing the loop over ``var`` with the one inside leaves no division in any flat index."""
    outer = find(kernel.body, var)
    inner = inner_loop(outer)
    if inner is None or outer.kind is not inner.kind or outer.step != 1 or inner.step != 1:
        return False
    if outer.begin != 0 or inner.begin != 0 or inner.end.has(var):
        return False
    chain, sizes, own = (outer, inner), (outer.end, inner.end), {var, inner.var}
    return all(
        symbols_in(expr).isdisjoint(own) or _contiguous_step(expr, chain, sizes) is not None
        for expr in exprs_of(inner.body)
    )


def _contiguous_step(expr: Expr, chain: Sequence[For], sizes: Sequence[Expr]) -> tuple[Expr, Expr] | None:
    """The step of an index per iteration of the innermost loop, and its remaining terms, where the loops of
    the chain are contiguous in it; None where they are not.
    """
    rest = expr
    steps = []
    for loop in chain:
        step, rest = linear(rest, loop.var)
        steps.append(step)
    variables = {loop.var for loop in chain}
    goes_on = all(same(one, times(other, size)) for (one, other), size in zip(pairwise(steps), sizes[1:]))
    if not goes_on or not symbols_in(rest).isdisjoint(variables) or any(loop.begin != 0 for loop in chain):
        return None
    return steps[-1], rest


def unbound(kernel: Kernel, loop: For, method: str) -> None:
    """Checks that a loop has no thread binding and no annotations.

    Raises:
        ScheduleError: SM1008, the loop has them, and they would be lost.
    """
    if loop.thread is not None:
        why = f"{named(loop)} is bound to {loop.thread}"
        raise refused(kernel, method, loop.var, why, code="SM1008", remedy=f"{method} first, then bind")
    if loop.notes:
        why = f"{named(loop)} has the note {loop.notes[0][0]!r}"
        raise refused(kernel, method, loop.var, why, code="SM1008", remedy=f"unannotate {named(loop)} first")


# -- one loop → loops that follow one another ----------------------------------------------------------------


def partition(
    kernel: Kernel, var: Symbol, factors: Sequence[Factor], *, plain: bool = False
) -> tuple[Kernel, list[Symbol]]:
    """Splits the iterations of a loop into consecutive ranges of the given sizes; one may be None for the
    rest.

    for i in 100: A   →   for i0 in 0 … 64: A_i0; for i1 in 64 … 100: A_i1      (factors 64, None)

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1004, factors that are no positive numbers or more
            than there are iterations, or an extent that is no number; SM1008, the loop is bound to a thread
            or has notes.
    """
    loop, _ = loop_place(kernel, var, "loop_partition")
    method = f"loop_partition with factors [{', '.join(map(str, factors))}]"
    unbound(kernel, loop, "loop_partition")
    extent = trip_count(loop)
    known = [as_integer(factor) for factor in factors if factor is not None]  # type: ignore[arg-type]
    why = None
    if not extent.is_Integer or not loop.begin.is_Integer or not all(each.is_Integer for each in known):
        why = f"the extent {extent} of {named(loop)} is no number"
    elif not factors or len(factors) - len(known) > 1 or any(each <= 0 for each in known):
        why = "one factor may be None, the others are positive numbers"
    elif total(known) > extent or (None in factors and total(known) == extent):
        why = f"the factors add up to {total(known)}, {named(loop)} has {extent} iterations"
    if why is not None:
        raise refused(kernel, method, var, why, code="SM1004")
    trips = [extent - total(known) if each is None else as_integer(each) for each in factors]  # type: ignore[arg-type]
    if None not in factors and total(known) < extent:
        trips.append(extent - total(known))
    fresh = Numbered(kernel) if plain else Fresh(names_of(kernel))
    used = stage_names(kernel)
    pieces: list[For] = []
    begin = loop.begin
    for number, count in enumerate(trips):
        piece = replace(loop, begin=begin, end=begin + count)
        if number or not plain:
            block = rewritten(renewed(piece, fresh), _suffixed(f"_{named(loop)}{number}", used))
            (piece,) = (stmt for stmt in block.stmts if isinstance(stmt, For))
        pieces.append(piece)
        begin = begin + count
    return _put(kernel, loop, pieces), [each.var for each in pieces]


def _suffixed(suffix: str, used: set[str]) -> Callable[[Stmt], Sequence[Stmt] | None]:
    def renamed(stmt: Stmt) -> Sequence[Stmt] | None:
        if not isinstance(stmt, Stage):
            return None
        name = unique_name(stmt.name + suffix, used)
        used.add(name)
        inside = with_blocks(stmt, lambda block: rewritten(block, renamed))
        return [replace(inside, name=name)]

    return renamed


def add_unit_loop(kernel: Kernel, target: Symbol | str) -> tuple[Kernel, Symbol]:
    """Puts a loop of one iteration around a loop or a stage.

    A   →   for u in 1: A
    """
    made = Fresh(names_of(kernel))("u")

    def around(stmt: Stmt) -> Sequence[Stmt] | None:
        unit = For(made, ZERO, ONE, Block((stmt,)), label="u")
        return [unit] if is_asked_for(stmt, target) else None

    return with_body(kernel, rewritten(kernel.body, around)), made
