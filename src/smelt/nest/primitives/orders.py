"""Primitives that change the order and the bodies of loops: reorder, tile, fission, join."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from sympy import Symbol

from smelt.nest.dependence import clash, commutes, not_placed
from smelt.nest.ir import Block, For, Guard, Kernel, Stage, Stmt
from smelt.nest.primitives.common import (
    ZERO,
    ScheduleError,
    in_loops,
    inner_loop,
    loop_place,
    refused,
    renewed,
)
from smelt.nest.primitives.loops import split, unbound
from smelt.nest.scopes import Place, members, position
from smelt.nest.stages import Fresh, names_of
from smelt.nest.tree import (
    exchanged,
    loops,
    named,
    replace_loop,
    stages,
    substitute,
    walk,
    with_body,
    with_variables,
)
from smelt.records import replace
from smelt.symbolic import same
from smelt.symbolic.affine import symbols_in

# -- order ---------------------------------------------------------------------------------------------------


def reorder(
    kernel: Kernel, variables: Sequence[Symbol], parting: bool = False, *, proved: bool = False
) -> Kernel:
    """Reorders loops of one nest: the given loops take the positions that they have now, in the given order.

    for i: for j: for k: A   →   for k: for j: for i: A      (reorder(k, i))

    ``parting``: a loop between them with other statements in its body is fissioned first (`fission`).
    ``proved``: the caller knows that the iterations may be reordered.

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1003, a loop twice, loops that are not around one
            another, with something else between them, in stages of their own, or whose bounds depend on one
            another; SM1005, iterations that depend on one another, or axes of which that cannot be known.
    """
    found = [loop_place(kernel, var, "reorder") for var in variables]
    method = f"reorder({', '.join(named(loop) for loop, _ in found)})"
    if len(set(variables)) < len(variables):
        again = next(loop for loop, _ in found if list(variables).count(loop.var) > 1)
        raise refused(kernel, method, again.var, f"{named(again)} is there twice")
    if len(variables) < 2:
        return kernel
    chain = _chain(kernel, found, method)
    for outer, inner in pairwise(chain):
        if inner_loop(outer) is inner:
            continue
        if not parting:
            why = f"{named(outer)} holds more than {named(inner)}"
            remedy = f"fission({named(outer)}) first, or reorder(…, parting=True)"
            raise refused(kernel, method, outer.var, why, remedy=remedy)
        return reorder(_isolated(kernel, outer, inner), variables, parting, proved=proved)
    places = [number for number, loop in enumerate(chain) if loop.var in variables]
    ordered = list(chain)
    for place, (loop, _) in zip(places, found):
        ordered[place] = loop
    for number, loop in enumerate(ordered):
        bounds = symbols_in(loop.begin) | symbols_in(loop.end)
        for later in ordered[number:] if bounds else ():
            if later.var in bounds:
                why = f"the bounds of {named(loop)} depend on {named(later)}"
                raise refused(kernel, method, loop.var, why)
    if not proved:
        _check_interchange(kernel, chain, ordered, chain[places[0]], method)
    nest = in_loops(ordered, chain[-1].body)
    return with_body(kernel, replace_loop(kernel.body, chain[0].var, lambda _: (nest,)))


def interchange(kernel: Kernel, var: Symbol, *, proved: bool = False) -> Kernel:
    """Interchanges a loop with the loop that is its whole body: `reorder` of the two.

    for i: for j: A   →   for j: for i: A

    Raises:
        ScheduleError: as `reorder`.
    """
    return reorder(kernel, [_inside(kernel, var, "interchange").var, var], proved=proved)


def tile(
    kernel: Kernel, var: Symbol, rows: int, columns: int, *, proved: bool = False
) -> tuple[Kernel, Symbol, Symbol]:
    """Tiles two perfectly nested plain loops; returns the kernel and the loops inside a tile.

    for i: for j: A   →   for i: for j: for i' in tile: for j' in tile: A

    Raises:
        ScheduleError: as `split` and `reorder`.
    """
    inner = _inside(kernel, var, "tile")
    kernel, (_, within_rows) = split(kernel, var, [None, rows], plain=True)
    kernel, (_, within_columns) = split(kernel, inner.var, [None, columns], plain=True)
    return interchange(kernel, within_rows, proved=proved), within_rows, within_columns


def _inside(kernel: Kernel, var: Symbol, method: str) -> For:
    """The loop that is the whole body of another one."""
    inner = inner_loop(loop_place(kernel, var, method)[0])
    if inner is None:
        raise refused(kernel, method, var, "the loop's body is not exactly one loop")
    return inner


def _chain(kernel: Kernel, found: Sequence[tuple[For, Place]], method: str) -> list[For]:
    """The loops from the outermost given one down to the innermost."""
    innermost, place = max(found, key=lambda each: len(each[1].around))
    around = [*place.loops, innermost]
    for loop, other in found:
        if any(each is loop for each in around):
            continue
        if any(each is loop for each in place.around):
            why = f"{named(loop)} and {named(innermost)} are in different stages"
        elif other.scope is not place.scope:
            why = f"{named(loop)} and {named(innermost)} are not in the same stage"
        else:
            names = [stages(each.body) for each in (loop, innermost)]
            of = [f" of {each[0].name}" if each else "" for each in names]
            why = f"{named(loop)}{of[0]} is not around {named(innermost)}{of[1]}, nor inside"
        raise refused(kernel, method, loop.var, why)
    wanted = {loop.var for loop, _ in found}
    first = next(number for number, each in enumerate(around) if each.var in wanted)
    return around[first:]


def _check_interchange(
    kernel: Kernel, chain: Sequence[For], ordered: Sequence[For], first: For, method: str
) -> None:
    """
    Raises:
        ScheduleError: SM1005, two loops cannot be interchanged.
    """
    current, body = list(chain), chain[-1].body
    moving = [loop.var for loop in [*chain, *loops(body)]]
    inside = members(body)
    for stage in inside:
        why = not_placed(stage, moving)
        if why is not None:
            raise refused(kernel, method, first.var, why, code="SM1005")
    wanted = {loop.var: place for place, loop in enumerate(ordered)}
    changed = True
    while changed:
        changed = False
        for place in range(len(current) - 1):
            outer, inner = current[place], current[place + 1]
            if wanted[outer.var] < wanted[inner.var]:
                continue
            below = current[place + 2 :]
            for one, other in ((outer, inner), (inner, outer)) if inside else ((outer, inner),):
                nest = in_loops([one, other, *below], body)
                assert isinstance(nest, For)
                why = commutes(nest)
                if why is not None:
                    raise refused(kernel, method, one.var, why, code="SM1005")
            current[place], current[place + 1] = inner, outer
            changed = True


# -- several statements in one loop --------------------------------------------------------------------------


def fission(kernel: Kernel, var: Symbol, after: int = 1) -> tuple[Kernel, Symbol, Symbol]:
    """Splits a loop into two, the first with the first ``after`` statements of the body.

    for i: A; B   →   for i: A; for i': B

    Raises:
        ScheduleError: SM1003, there are not so many statements, or they share values; SM1005, B of an
            iteration touches what A of a later one does.
    """
    loop, _ = loop_place(kernel, var, "fission")
    stmts = loop.body.stmts
    if not 0 < after < len(stmts):
        few = f"the body has {len(stmts)} statements, none is left after {after}"
        raise refused(kernel, "fission", var, few)
    parts = Block(stmts[:after]), Block(stmts[after:])
    if not all(isinstance(stmt, (For, Stage, Guard)) for stmt in stmts):
        raise refused(kernel, "fission", var, "the statements share values or memory")
    why = clash(*parts, loop)
    if why is not None:
        raise refused(kernel, "fission", var, why, code="SM1005")
    second = renewed(replace(loop, body=parts[1]), Fresh(names_of(kernel)), outermost=True)
    assert isinstance(second.stmts[0], For)
    pieces = (replace(loop, body=parts[0]), *second.stmts)
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: pieces)), var, second.stmts[0].var


def _isolated(kernel: Kernel, outer: For, inner: For) -> Kernel:
    """The kernel in which a loop around another one contains nothing else."""
    stmts = outer.body.stmts
    at = next(n for n, stmt in enumerate(stmts) if stmt is inner or _around(stmt, inner))
    var = outer.var
    if at + 1 < len(stmts):
        kernel, _, _ = fission(kernel, var, at + 1)
    if at > 0:
        # the requested loop keeps its variable, the first one gets another
        kernel, first, second = fission(kernel, var, at)
        swap = {first: second, second: first}
        body = with_variables(substitute(kernel.body, swap), swap)
        kernel = with_body(kernel, body)
    return kernel


def _around(stmt: Stmt, loop: For) -> bool:
    return any(each is loop for each in walk(Block((stmt,))))


def join(kernel: Kernel, variables: Sequence[Symbol]) -> tuple[Kernel, Symbol]:
    """Fuses consecutive loops of equal extents into one (loop fusion). The loops around them, up to their
    common scope, are fused too.

    for i: A; for j: B   →   for i_m: A; B[j := i_m]

    Raises:
        ScheduleError: SM1003, they do not follow one another, hold something else on the way, or have other
            extents; SM1005, B of an iteration touches what A of a later one does.
    """
    found = [loop_place(kernel, var, "merge") for var in variables]
    names = ", ".join(named(loop) for loop, _ in found)
    method = f"merge({names})"
    if len(found) < 2 or len(set(variables)) < len(variables):
        raise ScheduleError(method, "two different loops are wanted at least", code="SM1003")
    paths = [[*place.around, loop] for loop, place in found]
    common = 0
    while len({id(path[common]) for path in paths if common < len(path)}) == 1:
        common += 1
    rest = [path[common:] for path in paths]
    for path, (loop, _) in zip(rest, found):
        unbound(kernel, loop, "merge")
        if not path or len(path) != len(rest[0]) or not all(isinstance(each, For) for each in path):
            raise refused(kernel, method, loop.var, f"{named(loop)} is not as far in as {named(found[0][0])}")
        for outer, inner in pairwise(path):
            assert isinstance(outer, For) and isinstance(inner, For)
            if inner_loop(outer) is not inner:
                raise refused(kernel, method, outer.var, f"{named(outer)} holds more than {named(inner)}")
        for each, first in zip(path, rest[0]):
            assert isinstance(each, For) and isinstance(first, For)
            if each.begin != 0 or first.begin != 0 or not same(each.end, first.end):
                why = f"{named(each)} has {each.end} iterations, {named(first)} has {first.end}"
                raise refused(kernel, method, each.var, why)
    holder = paths[0][common - 1] if common else None
    block = kernel.body if holder is None else holder.body
    places = [position(block.stmts, path[0]) for path in rest]
    if places != list(range(places[0], places[0] + len(places))):
        raise refused(kernel, method, found[1][0].var, "they do not follow one another")
    fresh = Fresh(names_of(kernel))
    levels = [each for each in rest[0] if isinstance(each, For)]
    made = [
        For(fresh(f"{named(each)}_m"), ZERO, each.end, Block(), label=f"{named(each)}_m") for each in levels
    ]
    bodies = []
    for path, (loop, _) in zip(rest, found):
        vars_of = [each.var for each in path if isinstance(each, For)]
        bodies.append(substitute(loop.body, dict(zip(vars_of, [each.var for each in made]))))
    for number, level in reversed(list(enumerate(made))):
        parts = [in_loops(made[number + 1 :], body) if made[number + 1 :] else body for body in bodies]
        for one, other in combinations(parts, 2):
            later = clash(one, other, level)
            if later is not None:
                raise refused(kernel, method, found[1][0].var, later, code="SM1005")
    nest = in_loops(made, Block(tuple(stmt for body in bodies for stmt in body.stmts)))
    first, *others = (path[0] for path in rest)
    for other in others:
        kernel = exchanged(kernel, other)
    return exchanged(kernel, first, nest), made[-1].var
