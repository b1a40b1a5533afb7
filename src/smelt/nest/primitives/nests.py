"""Primitives on loops of stages, as a person calls them: split, fuse, reorder, fission, join, partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import sympy
from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.nest.dependence import apart, commutes, not_placed
from smelt.nest.ir import Alloc, Block, For, Guard, Kernel, Stage, Stmt
from smelt.nest.primitives.common import (
    ONE,
    ZERO,
    ScheduleError,
    inner_loop,
    loop_place,
    refused,
)
from smelt.nest.regions import Facts, found_accesses
from smelt.nest.scopes import Place, members, stage_names, unique_name
from smelt.nest.stages import Fresh, names_of
from smelt.nest.tree import (
    loops,
    map_exprs,
    named,
    replace_loop,
    rewritten,
    stages,
    substitute,
    trip_count,
    walk,
    with_blocks,
    with_body,
    with_variables,
)
from smelt.records import replace
from smelt.symbolic import same, simplify
from smelt.symbolic.affine import as_integer, divided, expand, remainder, replaced, symbols_in, total

Factor: TypeAlias = int | Expr | None


# -- split and fuse ------------------------------------------------------------------------------------------


def divide(
    kernel: Kernel, var: Symbol, factors: Sequence[Factor], predicated: bool = True
) -> tuple[Kernel, list[Symbol]]:
    """Make several loops of one, the first the outermost; one factor may be None: as many turns as it takes.

    for i in n: A   →   for i_0 in (n + 15)//16: for i_1 in 16: A[i := i_0*16 + i_1] where i_0*16 + i_1 < n

    The condition is there only where the factors do not divide the extent. `smelt.nest.primitives.split` says
    the same by the bounds of the inner loop, which stages cannot.

    Raises:
        ScheduleError: SM1004, factors that are no positive numbers, or whose product is less than the extent,
            or (not ``predicated``) more; SM1008, the loop is bound to a thread or has notes.
    """
    loop, _ = loop_place(kernel, var, "split")
    given = ", ".join(map(str, factors))
    method = f"split with factors [{given}]"
    _unbound(kernel, loop, "split")
    extent = trip_count(loop)
    sizes = _sizes(kernel, loop, factors, method)
    whole = sympy.Mul(*sizes)
    even = same(whole, extent)
    if not even and not predicated:
        why = f"{whole} turns are not known to be the {extent} of {named(loop)}, and no condition is wanted"
        raise refused(kernel, method, var, why, code="SM1004", remedy="leave disable_predication out")
    fresh = Fresh(names_of(kernel))
    labels = [f"{named(loop)}_{number}" for number in range(len(sizes))]
    made = [fresh(label) for label in labels]
    weights = [sympy.Mul(*sizes[number + 1 :]) for number in range(len(sizes))]
    inside = total(expand(new * weight) for new, weight in zip(made, weights))
    body = _over(loop, total([loop.begin, inside]), dict(zip(made, sizes)))
    if not even:
        body = conditioned(body, sympy.Lt(inside, extent))
    for new, size, label in reversed(list(zip(made, sizes, labels))):
        body = Block((For(new, ZERO, size, body, label=label, independent=loop.independent),))
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: body.stmts)), made


def _sizes(kernel: Kernel, loop: For, factors: Sequence[Factor], method: str) -> list[Expr]:
    """The extents of the loops that factors make."""
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
    """The body of a loop where its variable is an expression of others."""

    def rewrite(expr: Expr) -> Expr:
        if loop.var not in symbols_in(expr):
            return expr
        return simplify(expand(replaced(expr, {loop.var: value})), extents)

    return map_exprs(loop.body, rewrite)


def conditioned(block: Block, condition: Boolean) -> Block:
    """The block where a condition holds: its stages get it, other statements a guard."""
    if not all(isinstance(stmt, (For, Guard, Stage, Alloc)) for stmt in block.stmts):
        return Block((Guard(condition, block),))
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if isinstance(stmt, Stage):
            stmts.append(replace(stmt, where=(*stmt.where, condition)))
        else:
            stmts.append(with_blocks(stmt, lambda inner: conditioned(inner, condition)))
    return Block(tuple(stmts))


def fuse(kernel: Kernel, variables: Sequence[Symbol]) -> tuple[Kernel, Symbol]:
    """Make one loop of perfectly nested ones, given from the outermost to the innermost.

    for i in n: for j in m: A   →   for i_j_fused in n*m: A[i := i_j_fused//m, j := i_j_fused%m]

    Raises:
        ScheduleError: SM1003, one is not the whole body of the one before, or its extent depends on that;
            SM1008, a loop is bound to a thread or has notes.
    """
    if not variables:
        raise ScheduleError("fuse()", "there are no loops", code="SM1003")
    chain = [loop_place(kernel, var, "fuse")[0] for var in variables]
    names = ", ".join(map(named, chain))
    method = f"fuse({names})"
    for loop in chain:
        _unbound(kernel, loop, "fuse")
    for outer, inner in pairwise(chain):
        if inner_loop(outer) is not inner:
            around = f"{named(inner)} is not the whole body of {named(outer)}"
            remedy = "reorder them first, or take all loops between"
            raise _refused(kernel, method, inner, around, remedy)
        for each in chain[: chain.index(inner)]:
            if each.var in symbols_in(inner.begin) | symbols_in(inner.end):
                why = f"the bounds of {named(inner)} depend on {named(each)}"
                raise _refused(kernel, method, inner, why)
    label = "_".join(map(named, chain)) + "_fused"
    made = Fresh(names_of(kernel))(label)
    turns = [trip_count(loop) for loop in chain]
    sizes = [
        ONE if count == 0 else count for count in turns
    ]  # nothing runs then, and nothing is divided by 0
    values: dict[Symbol, Expr] = {}
    for number, loop in enumerate(chain):
        below, whole = sympy.Mul(*sizes[number + 1 :]), sympy.Mul(*sizes[number:])
        place: Expr = made if number == 0 else remainder(made, whole)
        values[loop.var] = total([loop.begin, divided(place, below)])
    extents = {made: sympy.Mul(*sizes)}

    def rewrite(expr: Expr) -> Expr:
        if symbols_in(expr).isdisjoint(values):
            return expr
        return simplify(expand(replaced(expr, values)), extents)

    body = map_exprs(chain[-1].body, rewrite)
    whole = expand(sympy.Mul(*turns))
    new = For(made, ZERO, whole, body, label=label, independent=all(loop.independent for loop in chain))
    return with_body(kernel, replace_loop(kernel.body, chain[0].var, lambda _: (new,))), made


def _refused(
    kernel: Kernel, method: str, loop: For, why: str, remedy: str | None = None, code: str = "SM1003"
) -> ScheduleError:
    """The error of a method that was given several loops."""
    inside = stages(Block((loop,)))
    what = f"{method} of {inside[0].name}" if inside else method
    return ScheduleError(what, why, code=code, remedy=remedy, kernel=kernel, mark=loop.var)


def _unbound(kernel: Kernel, loop: For, method: str) -> None:
    """
    Raises:
        ScheduleError: SM1008, the loop is bound to a thread or has notes, which would be lost.
    """
    if loop.thread is not None:
        why = f"{named(loop)} is bound to {loop.thread}"
        raise refused(kernel, method, loop.var, why, code="SM1008", remedy=f"{method} first, then bind")
    if loop.notes:
        why = f"{named(loop)} has the note {loop.notes[0][0]!r}"
        raise refused(kernel, method, loop.var, why, code="SM1008", remedy=f"unannotate {named(loop)} first")


def add_unit_loop(kernel: Kernel, target: Symbol | str) -> tuple[Kernel, Symbol]:
    """Put a loop of one turn around a loop or a stage.

    A   →   for u in 1: A
    """
    made = Fresh(names_of(kernel))("u")

    def around(stmt: Stmt) -> Sequence[Stmt] | None:
        if (isinstance(stmt, For) and stmt.var == target) or (
            isinstance(stmt, Stage) and stmt.name == target
        ):
            return [For(made, ZERO, ONE, Block((stmt,)), label="u")]
        return None

    return with_body(kernel, rewritten(kernel.body, around)), made


def shift(kernel: Kernel, var: Symbol, begin: Expr | int) -> Kernel:
    """Let a loop begin elsewhere.

    for i in 2 … 10: A   →   for i in 0 … 8: A[i := i + 2]
    """
    loop, _ = loop_place(kernel, var, "shift")
    first = as_integer(begin)
    body = _over(loop, total([var, loop.begin, -first]), {})
    made = replace(loop, begin=first, end=expand(loop.end - loop.begin + first), body=body)
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (made,)))


# -- order ---------------------------------------------------------------------------------------------------


def reorder(kernel: Kernel, variables: Sequence[Symbol], parting: bool = False) -> Kernel:
    """Put loops of one nest into another order: those given take the places that they have among them, in the
    order given.

    for i: for j: for k: A   →   for k: for j: for i: A      (reorder(k, i))

    ``parting``: where a loop between them holds other statements too, it is parted from those (`fission`).

    Raises:
        ScheduleError: SM1003, a loop twice, loops that are not around one another, with something else
            between them, in stages of their own, or whose bounds depend on one another; SM1005, turns that
            depend on one another, or axes of which that cannot be known.
    """
    found = [loop_place(kernel, var, "reorder") for var in variables]
    names = ", ".join(named(loop) for loop, _ in found)
    method = f"reorder({names})"
    if len(set(variables)) < len(variables):
        again = next(loop for loop, _ in found if list(variables).count(loop.var) > 1)
        raise _refused(kernel, method, again, f"{named(again)} is there twice")
    if len(variables) < 2:
        return kernel
    chain = _chain(kernel, found, method)
    for outer, inner in pairwise(chain):
        if inner_loop(outer) is inner:
            continue
        if not parting:
            why = f"{named(outer)} holds more than {named(inner)}"
            remedy = f"fission({named(outer)}) first, or reorder(…, parting=True)"
            raise _refused(kernel, method, outer, why, remedy)
        return reorder(_parted(kernel, outer, inner), variables, parting)
    places = [number for number, loop in enumerate(chain) if loop.var in variables]
    ordered = list(chain)
    for place, (loop, _) in zip(places, found):
        ordered[place] = loop
    for number, loop in enumerate(ordered):
        for later in ordered[number:]:
            if later.var in symbols_in(loop.begin) | symbols_in(loop.end):
                why = f"the bounds of {named(loop)} depend on {named(later)}"
                raise _refused(kernel, method, loop, why)
    moving = [loop.var for loop in [*chain, *loops(chain[-1].body)]]
    for stage in members(chain[-1].body):
        why_not = not_placed(stage, moving)
        if why_not is not None:
            raise _refused(kernel, method, chain[places[0]], why_not, code="SM1005")
    _swap(kernel, chain, ordered, method)
    body = chain[-1].body
    for loop in reversed(ordered):
        body = Block((replace(loop, body=body),))
    return with_body(kernel, replace_loop(kernel.body, chain[0].var, lambda _: body.stmts))


def _chain(kernel: Kernel, found: Sequence[tuple[For, Place]], method: str) -> list[For]:
    """The loops from the outermost given one down to the innermost."""
    innermost, place = max(found, key=lambda each: len(each[1].around))
    around = [*place.loops, innermost]
    for loop, other in found:
        if loop in around:
            continue
        if loop in place.around:
            why = f"{named(loop)} and {named(innermost)} are in different stages"
        elif other.scope is not place.scope:
            why = f"{named(loop)} and {named(innermost)} are not in the same stage"
        else:
            names = [stages(Block((each,))) for each in (loop, innermost)]
            of = [f" of {each[0].name}" if each else "" for each in names]
            why = f"{named(loop)}{of[0]} is not around {named(innermost)}{of[1]}, nor inside"
        raise _refused(kernel, method, loop, why)
    first = min(around.index(loop) for loop, _ in found)
    return around[first:]


def _swap(kernel: Kernel, chain: Sequence[For], ordered: Sequence[For], method: str) -> None:
    """
    Raises:
        ScheduleError: SM1005, two loops that change places have turns that cannot.
    """
    current = [replace(loop) for loop in chain]
    body = chain[-1].body
    wanted = {loop.var: place for place, loop in enumerate(ordered)}
    changed = True
    while changed:
        changed = False
        for place in range(len(current) - 1):
            outer, inner = current[place], current[place + 1]
            if wanted[outer.var] < wanted[inner.var]:
                continue
            for first, second in ((place, place + 1), (place + 1, place)):
                nest = body
                rest = [each for n, each in enumerate(current[place:], place) if n not in (first, second)]
                for each in reversed([current[second], *rest]):
                    nest = Block((replace(each, body=nest),))
                why = commutes(replace(current[first], body=nest))
                if why is not None:
                    raise _refused(kernel, method, current[first], why, code="SM1005")
            current[place], current[place + 1] = inner, outer
            changed = True


# -- several statements in one loop --------------------------------------------------------------------------


def fission(kernel: Kernel, var: Symbol, after: int = 1) -> tuple[Kernel, Symbol, Symbol]:
    """Make two loops of one, the first with the first ``after`` statements of the body.

    for i: A; B   →   for i: A; for i': B

    Raises:
        ScheduleError: SM1003, there are not so many statements, or they share values; SM1005, B of a turn
            touches what A of a later one does.
    """
    loop, _ = loop_place(kernel, var, "fission")
    stmts = loop.body.stmts
    if not 0 < after < len(stmts):
        why = f"the body has {len(stmts)} statements, none is left after {after}"
        raise refused(kernel, "fission", var, why)
    parts = Block(stmts[:after]), Block(stmts[after:])
    if not all(isinstance(stmt, (For, Stage, Guard)) for stmt in stmts):
        raise refused(kernel, "fission", var, "the statements share values or memory")
    for one in found_accesses(parts[0]):
        for other in found_accesses(parts[1]):
            shared = one.buffer == other.buffer and (one.is_store or other.is_store)
            if shared and not apart(one, other, loop):
                why = f"a turn may touch what a later one does of {one.buffer}"
                raise refused(kernel, "fission", var, why, code="SM1005")
    fresh = Fresh(names_of(kernel))
    second = _renewed(Block((replace(loop, body=parts[1]),)), fresh, keep_axes=True)
    assert isinstance(second.stmts[0], For)
    pieces = (replace(loop, body=parts[0]), *second.stmts)
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: pieces)), var, second.stmts[0].var


def _renewed(block: Block, fresh: Fresh, keep_axes: bool = False) -> Block:
    """The tree with new variables for its outermost loop, or for all loops and axes."""
    found = loops(block)
    outer = found[:1] if keep_axes else found
    names = {loop.var: fresh(named(loop)) for loop in outer}
    if not keep_axes:
        for stage in stages(block):
            names.update({axis.var: fresh(axis.label or axis.var.name) for axis in stage.axes})
    return substitute(with_variables(block, names), names)


def _parted(kernel: Kernel, outer: For, inner: For) -> Kernel:
    """The kernel with a loop around another one that holds nothing else."""
    stmts = outer.body.stmts
    at = next(n for n, stmt in enumerate(stmts) if stmt is inner or _around(stmt, inner))
    var = outer.var
    if at + 1 < len(stmts):
        kernel, _, _ = fission(kernel, var, at + 1)
    if at > 0:
        # the loop that is asked for keeps its variable: what comes before gets another one
        kernel, first, second = fission(kernel, var, at)
        swap = {first: second, second: first}
        body = rewritten(
            kernel.body,
            lambda stmt: (
                [replace(stmt, var=swap[stmt.var], body=substitute(stmt.body, {stmt.var: swap[stmt.var]}))]
                if isinstance(stmt, For) and stmt.var in swap
                else None
            ),
        )
        kernel = with_body(kernel, body)
    return kernel


def _around(stmt: Stmt, loop: For) -> bool:
    return any(each is loop for each in walk(Block((stmt,))))


def join(kernel: Kernel, variables: Sequence[Symbol]) -> tuple[Kernel, Symbol]:
    """Make one loop of loops that follow one another and have as many turns. Loops further in take those
    around them along, up to where they meet.

    for i: A; for j: B   →   for i_m: A; B[j := i_m]

    Raises:
        ScheduleError: SM1003, they do not follow one another, hold something else on the way, or have other
            extents; SM1005, B of a turn touches what A of a later one does.
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
        _unbound(kernel, loop, "merge")
        if not path or len(path) != len(rest[0]) or not all(isinstance(each, For) for each in path):
            raise _refused(kernel, method, loop, f"{named(loop)} is not as far in as {named(found[0][0])}")
        for outer, inner in pairwise(path):
            assert isinstance(outer, For) and isinstance(inner, For)
            if inner_loop(outer) is not inner:
                raise _refused(kernel, method, outer, f"{named(outer)} holds more than {named(inner)}")
        for each, first in zip(path, rest[0]):
            assert isinstance(each, For) and isinstance(first, For)
            if each.begin != 0 or first.begin != 0 or not same(each.end, first.end):
                why = f"{named(each)} has {each.end} turns, {named(first)} has {first.end}"
                raise _refused(kernel, method, each, why)
    holder = paths[0][common - 1] if common else None
    block = kernel.body if holder is None else holder.body
    places = [next(n for n, stmt in enumerate(block.stmts) if stmt is path[0]) for path in rest]
    if places != list(range(places[0], places[0] + len(places))):
        raise _refused(kernel, method, found[1][0], "they do not follow one another")
    fresh = Fresh(names_of(kernel))
    levels = [each for each in rest[0] if isinstance(each, For)]
    made = [fresh(f"{named(each)}_m") for each in levels]
    bodies = []
    for path, (loop, _) in zip(rest, found):
        vars_of = [each.var for each in path if isinstance(each, For)]
        bodies.append(substitute(loop.body, dict(zip(vars_of, made))))
    nest = Block(tuple(stmt for body in bodies for stmt in body.stmts))
    for number in reversed(range(len(levels))):
        level = For(made[number], ZERO, levels[number].end, nest, label=f"{named(levels[number])}_m")
        _meet(
            kernel, method, level, [_below(body, made[number + 1 :], levels) for body in bodies], found[1][0]
        )
        nest = Block((level,))
    stmts = (*block.stmts[: places[0]], *nest.stmts, *block.stmts[places[-1] + 1 :])

    def visit(each: Block) -> Block:
        if each is block:
            return Block(stmts)
        return Block(tuple(with_blocks(stmt, visit) for stmt in each.stmts))

    return with_body(kernel, visit(kernel.body)), made[-1]


def _below(body: Block, inner: Sequence[Symbol], levels: Sequence[For]) -> Block:
    """One of the joined bodies in the joined loops inside of the one that is looked at."""
    ends = [each.end for each in levels[len(levels) - len(inner) :]]
    for var, end in reversed(list(zip(inner, ends))):
        body = Block((For(var, ZERO, end, body),))
    return body


def _meet(kernel: Kernel, method: str, level: For, bodies: Sequence[Block], loop: For) -> None:
    for number, first in enumerate(bodies):
        for second in bodies[number + 1 :]:
            for one in found_accesses(first):
                for other in found_accesses(second):
                    shared = one.buffer == other.buffer and (one.is_store or other.is_store)
                    if shared and not apart(one, other, level):
                        why = f"a turn may touch what a later one does of {one.buffer}"
                        raise _refused(kernel, method, loop, why, code="SM1005")


def partition(kernel: Kernel, var: Symbol, factors: Sequence[Factor]) -> tuple[Kernel, list[Symbol]]:
    """Make several loops of one, one after the other, of so many turns; one may be None: what is left.

    for i in 100: A   →   for i0 in 0 … 64: A_i0; for i1 in 64 … 100: A_i1      (factors 64, None)

    Raises:
        ScheduleError: SM1004, factors that are no positive numbers or more than there are turns, or an extent
            that is no number; SM1008, the loop is bound to a thread or has notes.
    """
    loop, _ = loop_place(kernel, var, "loop_partition")
    given = ", ".join(map(str, factors))
    method = f"loop_partition with factors [{given}]"
    _unbound(kernel, loop, "loop_partition")
    extent = trip_count(loop)
    known = [as_integer(factor) for factor in factors if factor is not None]  # type: ignore[arg-type]
    why = None
    if not extent.is_Integer or not loop.begin.is_Integer or not all(each.is_Integer for each in known):
        why = f"the extent {extent} of {named(loop)} is no number"
    elif not factors or len(factors) - len(known) > 1 or any(each <= 0 for each in known):
        why = "one factor may be None, the others are positive numbers"
    elif total(known) > extent or (None in factors and total(known) == extent):
        why = f"the factors add up to {total(known)}, {named(loop)} has {extent} turns"
    if why is not None:
        raise refused(kernel, method, var, why, code="SM1004")
    turns = [extent - total(known) if each is None else as_integer(each) for each in factors]  # type: ignore[arg-type]
    if None not in factors and total(known) < extent:
        turns.append(extent - total(known))
    fresh, used = Fresh(names_of(kernel)), stage_names(kernel)
    pieces: list[Stmt] = []
    made: list[Symbol] = []
    begin = loop.begin
    for number, count in enumerate(turns):
        piece = _renewed(Block((replace(loop, begin=begin, end=begin + count),)), fresh)
        piece = rewritten(piece, _suffixed(f"_{named(loop)}{number}", used))
        assert isinstance(piece.stmts[0], For)
        pieces += piece.stmts
        made.append(piece.stmts[0].var)
        begin = begin + count
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: tuple(pieces))), made


def _suffixed(suffix: str, used: set[str]) -> Callable[[Stmt], Sequence[Stmt] | None]:
    def renamed(stmt: Stmt) -> Sequence[Stmt] | None:
        if not isinstance(stmt, Stage):
            return None
        name = unique_name(stmt.name + suffix, used)
        used.add(name)
        inside = with_blocks(stmt, lambda block: rewritten(block, renamed))
        return [replace(inside, name=name)]

    return renamed
