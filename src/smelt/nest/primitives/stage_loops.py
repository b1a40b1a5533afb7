"""Loops around stages: cut, joined, put in another order, given another kind.

Every primitive checks that it is legal, in the names that people see, and gives a new kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import sympy
from sympy import Expr, Symbol

from smelt.nest.dependence import conflict
from smelt.nest.ir import (
    Alloc,
    Axis,
    AxisKind,
    Block,
    For,
    Guard,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Stage,
    Stmt,
    Store,
)
from smelt.nest.primitives import flatten_accesses
from smelt.nest.primitives.copies import Values, copied
from smelt.nest.primitives.refusals import Refused, loop_place, named, stage_of, stage_place
from smelt.nest.scopes import buffer_names, unique_name
from smelt.nest.stages import Fresh, dissolve, names_of
from smelt.nest.tree import find, loops, map_exprs, replace_loop, rewritten, substitute, walk, with_body
from smelt.records import replace
from smelt.symbolic import numel, simplify
from smelt.symbolic.affine import divided, expand, remainder, symbols_in
from smelt.symbolic.bounds import less_than

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


def split(
    kernel: Kernel, var: Symbol, factors: Sequence[int | Expr | None]
) -> tuple[Kernel, tuple[Symbol, ...]]:
    """Cut a loop into as many as there are factors, the outermost first; gives their variables.

    for i in 100: S: v = i   →   for i_0 in 7: for i_1 in 16: S where 16*i_0 + i_1 < 100: v = 16*i_0 + i_1

    One factor may be None: as many turns as are needed. Where the factors give more turns than the loop has,
    what is inside runs in those that it has.

    Raises:
        ScheduleError: SM1001 there is no such loop, it does not begin at 0, has a kind, a thread or a note
        already, or the factors are too few, or no numbers above 0.
    """
    place = loop_place(kernel, var, f"split({var})")
    loop = place.stmt
    assert isinstance(loop, For)
    inside = _inside(loop)
    what = f"split({named(loop)}){inside}"
    if loop.begin != 0:
        raise Refused("SM1001", what, f"it begins at {loop.begin}, not at 0")
    if loop.thread is not None or loop.notes or loop.kind is not LoopKind.SERIAL:
        has = loop.thread or loop.kind.value if not loop.notes else f"the note {loop.notes[0][0]!r}"
        raise Refused("SM1001", what, f"it is {has} already", "split first")
    known = [sympy.sympify(each) for each in factors if each is not None]
    if len(factors) - len(known) > 1:
        raise Refused("SM1001", what, "more than one factor is None")
    if not factors or any(each.is_Integer and each <= 0 for each in known):
        raise Refused("SM1001", what, f"factors are numbers above 0, not {list(factors)}")
    product = numel(known)
    rest = simplify(divided(loop.end + product - 1, product), {})
    sizes = [rest if each is None else sympy.sympify(each) for each in factors]
    turns = numel(sizes)
    gap = expand(turns - loop.end)
    if None not in factors and gap.is_Integer and gap < 0:
        why = f"the product of the factors is {turns}, it has {loop.end} turns"
        raise Refused("SM1001", what, why, "one factor may be None: as many as are needed")
    fresh = Fresh(names_of(kernel))
    label = named(loop)
    made = [fresh(f"{label}_{number}") for number in range(len(sizes))]
    value: Expr = ZERO
    for each, size in zip(made, sizes):
        value = value * size + each
    value = expand(value)
    body = substitute(loop.body, {var: value})
    even = (None in factors and expand(rest * product - loop.end) == 0) or gap == 0
    if not even and not less_than(value, loop.end, dict(zip(made, sizes))):
        body = limited(body, sympy.StrictLessThan(value, loop.end))
    for number, (each, size) in reversed(list(enumerate(zip(made, sizes)))):
        body = Block((For(each, ZERO, size, body, label=f"{label}_{number}"),))
    return _instead(kernel, var, body), tuple(made)


def limited(block: Block, condition: Any) -> Block:
    """The block where a condition holds: stages have it among theirs, all else is guarded."""

    def visit(stmt: Stmt) -> Sequence[Stmt] | None:
        if isinstance(stmt, Stage):
            return [replace(stmt, where=(*stmt.where, condition))]
        return None if isinstance(stmt, (For, Guard)) else [Guard(condition, Block((stmt,)))]

    return rewritten(block, visit)


def fuse(kernel: Kernel, variables: Sequence[Symbol]) -> tuple[Kernel, Symbol]:
    """Make one loop of several, each the whole body of the one before; gives its variable.

    for i in 8: for j in 4: S: v = i, w = j   →   for i_j_fused in 32: S: v = i_j_fused//4, w = i_j_fused%4

    Raises:
        ScheduleError: SM1002 they do not lie in one another, something is between them, the end of one
        depends on another, or they do not begin at 0.
    """
    found = [loop_place(kernel, var, "fuse").stmt for var in variables]
    chain = [each for each in found if isinstance(each, For)]
    what = f"fuse({', '.join(map(named, chain))}){_inside(chain[0])}"
    for outer, inner in pairwise(chain):
        only = outer.body.stmts[0] if len(outer.body.stmts) == 1 else None
        if only is not inner:
            between = named(only) if isinstance(only, For) else "other statements"
            raise Refused("SM1002", what, f"{between} lies between {named(outer)} and {named(inner)}")
        if not symbols_in(inner.end).isdisjoint(variables):
            raise Refused("SM1002", what, f"the end of {named(inner)} depends on another of them")
    for each in chain:
        if each.begin != 0:
            raise Refused("SM1002", what, f"{named(each)} begins at {each.begin}, not at 0")
        if each.thread is not None or each.notes:
            raise Refused("SM1002", what, f"{named(each)} is bound or annotated already")
        if each.kind is not chain[0].kind:
            raise Refused("SM1002", what, f"{named(each)} is {each.kind.value}")
    label = "_".join([*map(named, chain), "fused"])
    var = Fresh(names_of(kernel))(label)
    turns = numel([each.end for each in chain])
    values: dict[Symbol, Expr] = {}
    for number, each in enumerate(chain):
        below = numel([other.end for other in chain[number + 1 :]])
        part = divided(var, below)
        values[each.var] = part if number == 0 else remainder(part, each.end)
    body = substitute(chain[-1].body, values)
    extents = {var: turns}
    body = _simplified(body, var, extents)
    fused = replace(chain[0], var=var, end=turns, body=body, label=label)
    return _instead(kernel, chain[0].var, Block((fused,))), var


def _simplified(block: Block, var: Symbol, extents: dict[Symbol, Expr]) -> Block:
    return map_exprs(block, lambda e: simplify(e, extents) if var in symbols_in(e) else e)


def reorder(kernel: Kernel, variables: Sequence[Symbol]) -> Kernel:
    """Put loops that lie in one another in another order; others between them stay where they are.

    for i: for j: for k: S   →   reorder(k, i):   for k: for j: for i: S

    Raises:
        ScheduleError: SM1003 they do not lie in one another, something else lies between, bounds depend on
        a loop that would come to be inside, or turns of a loop have to go in order.
    """
    places = [loop_place(kernel, var, "reorder") for var in variables]
    named_loops = [each.stmt for each in places if isinstance(each.stmt, For)]
    what = f"reorder({', '.join(map(named, named_loops))}){_inside(named_loops[0])}"
    if len(set(variables)) != len(variables):
        raise Refused("SM1003", what, "a loop is given twice")
    deepest = max(places, key=lambda each: len(each.around))
    path = [*deepest.around, deepest.stmt]
    for each in named_loops:
        if not any(each is other for other in path):
            why = f"{named(each)}{_inside(each)} and {named(deepest.stmt)}"  # type: ignore[arg-type]
            why += f"{_inside(deepest.stmt)} do not lie in one another"  # type: ignore[arg-type]
            raise Refused("SM1003", what, why)
    first = min(number for number, stmt in enumerate(path) if any(stmt is each for each in named_loops))
    chain: list[For] = []
    for stmt in path[first:]:
        if not isinstance(stmt, For):
            raise Refused("SM1003", what, f"a {type(stmt).__name__.lower()} lies between the loops")
        if stmt is not path[-1] and len(stmt.body.stmts) != 1:
            raise Refused("SM1003", what, f"{named(stmt)} holds more than one statement", "fission, or split")
        chain.append(stmt)
    spots = [n for n, each in enumerate(chain) if any(each is other for other in named_loops)]
    order = list(chain)
    for spot, each in zip(spots, named_loops):
        order[spot] = each
    inner: set[Symbol] = set()
    for each in reversed(order):
        bounds = symbols_in(each.begin) | symbols_in(each.end)
        if not bounds.isdisjoint(inner):
            raise Refused(
                "SM1003", what, f"the bounds of {named(each)} depend on a loop that would be inside"
            )
        inner.add(each.var)
    moved = [a for a, b in zip(order, chain) if a is not b]
    for each in moved:
        reason = _ordered(kernel, each)
        if reason is not None:
            raise Refused("SM1003", what, reason)
    body = chain[-1].body
    for each in reversed(order):
        body = Block((replace(each, body=body),))
    return _instead(kernel, chain[0].var, body)


def _ordered(kernel: Kernel, loop: For) -> str | None:
    """Why the turns of a loop have to stay in order with those of others; None where they need not.

    One stage: along a spatial axis each turn writes another element, along a reduce axis all add to one in
    any order.
    """
    inside = _outermost(loop.body)
    for stage in inside:
        for axis in stage.axes:
            if axis.kind is AxisKind.OPAQUE and loop.var in axis.value.free_symbols:
                return f"{axis.label or axis.var} of {stage.name} goes in order"
    if len(inside) == 1 and not _others(loop.body):
        return None
    why = conflict(find(_plain(kernel).body, loop.var))
    return None if why is None else _told(why, loop)


def _others(block: Block) -> bool:
    return any(isinstance(stmt, Store) for stmt in _outside_stages(block))


def _outside_stages(block: Block) -> list[Stmt]:
    found: list[Stmt] = []
    for stmt in block.stmts:
        if isinstance(stmt, (For, Guard)):
            found += _outside_stages(stmt.body)
        elif not isinstance(stmt, Stage):
            found.append(stmt)
    return found


def _outermost(block: Block) -> list[Stage]:
    """The stages of a block that lie in no other."""
    found: list[Stage] = []
    for stmt in block.nested:
        if isinstance(stmt, Stage):
            found.append(stmt)
        elif isinstance(stmt, (For, Guard)):
            found += _outermost(stmt.body)
    return found


def _plain(kernel: Kernel) -> Kernel:
    return flatten_accesses(dissolve(kernel))


# -- kinds ---------------------------------------------------------------------------------------------------


def with_kind(kernel: Kernel, var: Symbol, kind: LoopKind, thread: str | None = None) -> Kernel:
    """Run the turns of a loop at the same time, as lanes of vectors, or written out.

    for i: S   →   parallel for i: S

    Raises:
        ScheduleError: SM1004 turns of the loop depend on each other, or it is something else already.
    """
    place = loop_place(kernel, var, kind.value)
    loop = place.stmt
    assert isinstance(loop, For)
    word = {LoopKind.VECTOR: "vectorize", LoopKind.PARALLEL: "parallel"}.get(kind, kind.value)
    word = f"bind({named(loop)}, {thread})" if thread is not None else f"{word}({named(loop)})"
    what = f"{word}{_inside(loop)}"
    if kind is not LoopKind.UNROLL:
        why, remedy = _dependent(kernel, loop)
        if why is not None:
            raise Refused("SM1004", what, why, remedy)
    return with_body(
        kernel,
        replace_loop(
            kernel.body,
            var,
            lambda found: (replace(found, kind=kind if thread is None else found.kind, thread=thread),),
        ),
    )


def _dependent(kernel: Kernel, loop: For) -> tuple[str | None, str | None]:
    """Why the turns of a loop depend on each other, and what to do; None where they do not."""
    for stage in _outermost(loop.body):
        for axis in stage.axes:
            if loop.var not in axis.value.free_symbols or axis.kind is AxisKind.SPATIAL:
                continue
            if axis.kind is AxisKind.OPAQUE:
                return f"{axis.label or axis.var} of {stage.name} goes in order", None
            around = [named(each) for each in loops(kernel.body) if _is_spatial(each, stage)]
            others = f", or {' or '.join(around)} instead" if around else ""
            told = f"{named(loop)} is reduced over: its turns add to {_element(stage)}"
            return told, f"rfactor({named(loop)}) first{others}"
    why = conflict(find(_plain(kernel).body, loop.var))
    return (None, None) if why is None else (_told(why, loop), None)


def _is_spatial(loop: For, stage: Stage) -> bool:
    kinds = {axis.kind for axis in stage.axes if loop.var in axis.value.free_symbols}
    return kinds == {AxisKind.SPATIAL}


def _element(stage: Stage) -> str:
    """What a stage stores, by the labels of its axes: ``C[v_i, v_j]``."""
    store = next(stmt for stmt in walk(stage.body) if isinstance(stmt, Store))
    labels = {axis.var: Symbol(axis.label or axis.var.name) for axis in stage.axes}
    return f"{store.buffer}[{', '.join(str(e.xreplace(labels)) for e in store.index)}]"


def _told(why: str, loop: For) -> str:
    return why.replace(f"turns of {loop.var}", f"turns of {named(loop)}")


def annotate(kernel: Kernel, where: Symbol | str, key: str, value: Any) -> Kernel:
    """Write a note beside a loop (its variable) or a stage (its name)."""
    return _noted(kernel, where, lambda notes: (*(n for n in notes if n[0] != key), (key, value)))


def unannotate(kernel: Kernel, where: Symbol | str, key: str) -> Kernel:
    """Take a note away.

    Raises:
        ScheduleError: SM1005 there is none of that key.
    """

    def without(notes: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        if key not in dict(notes):
            raise Refused("SM1005", f"unannotate({where})", f"there is no note {key!r}")
        return tuple(note for note in notes if note[0] != key)

    return _noted(kernel, where, without)


def _noted(kernel: Kernel, where: Symbol | str, change: Callable[[Any], Any]) -> Kernel:
    def visit(stmt: Stmt) -> Sequence[Stmt] | None:
        own = stmt.var if isinstance(stmt, For) else stmt.name if isinstance(stmt, Stage) else None
        return [replace(stmt, notes=change(stmt.notes))] if own == where else None  # type: ignore[union-attr]

    return with_body(kernel, rewritten(kernel.body, visit))


# -- more loops ----------------------------------------------------------------------------------------------


def add_unit_loop(kernel: Kernel, where: Symbol | str) -> tuple[Kernel, Symbol]:
    """A loop of one turn around a loop or a stage; gives its variable.

    S   →   for u in 1: S
    """
    var = Fresh(names_of(kernel))("u")

    def visit(stmt: Stmt) -> Sequence[Stmt] | None:
        own = stmt.var if isinstance(stmt, For) else stmt.name if isinstance(stmt, Stage) else None
        return [For(var, ZERO, ONE, Block((stmt,)), label="u")] if own == where else None

    return with_body(kernel, rewritten(kernel.body, visit)), var


def loop_partition(
    kernel: Kernel, var: Symbol, factors: Sequence[int | None]
) -> tuple[Kernel, tuple[Symbol, ...]]:
    """Cut a loop into loops one after another, of so many turns each; gives their variables.

    for i in 100: S   →   for i_0 in 64: S; for i_1 in 64 … 100: S

    Raises:
        ScheduleError: SM1006 the loop does not begin at 0, or the parts are not its turns.
    """
    loop = loop_place(kernel, var, "loop_partition").stmt
    assert isinstance(loop, For)
    what = f"loop_partition({named(loop)}){_inside(loop)}"
    if loop.begin != 0 or loop.kind is not LoopKind.SERIAL:
        raise Refused("SM1006", what, "it does not begin at 0, or has a kind already")
    known = sum(each for each in factors if each is not None)
    sizes = [expand(loop.end - known) if each is None else sympy.Integer(each) for each in factors]
    if [each for each in factors if each is None][1:] or expand(sum(sizes) - loop.end) != 0:
        raise Refused("SM1006", what, f"parts of {list(factors)} turns are not its {loop.end}")
    values = Values(kernel)
    fresh = values.symbol
    begin: Expr = ZERO
    parts: list[Stmt] = []
    made = []
    for number, size in enumerate(sizes):
        own = fresh(f"{named(loop)}_{number}")
        body = substitute(loop.body, {var: own})
        body = body if number == 0 else _once_more(body, values, f"_{number}")
        label = f"{named(loop)}_{number}"
        parts.append(For(own, begin, expand(begin + size), body, label=label))
        made.append(own)
        begin = expand(begin + size)
    return _instead(kernel, var, Block(tuple(parts))), tuple(made)


def _once_more(block: Block, values: Values, suffix: str) -> Block:
    """The block with other loops, axes and values, and stages of other names."""
    names: dict[str, str] = {}
    symbols: dict[Symbol, Expr] = {}

    def visit(inner: Block) -> Block:
        made: list[Stmt] = []
        for stmt in inner.stmts:
            if isinstance(stmt, For):
                symbols[stmt.var] = new = values.symbol(stmt.var.name)
                begin, end = stmt.begin.xreplace(symbols), stmt.end.xreplace(symbols)
                made.append(replace(stmt, var=new, begin=begin, end=end, body=visit(stmt.body)))
            elif isinstance(stmt, Stage):
                axes = tuple(
                    replace(axis, var=values.symbol(axis.var.name), value=axis.value.xreplace(symbols))
                    for axis in stmt.axes
                )
                symbols.update({old.var: new.var for old, new in zip(stmt.axes, axes)})
                where = tuple(each.xreplace(symbols) for each in stmt.where)
                init = None if stmt.init is None else visit(stmt.init)
                name = f"{stmt.name}{suffix}"
                made.append(Stage(name, axes, visit(stmt.body), init, where, stmt.notes))
            elif isinstance(stmt, Guard):
                made.append(Guard(stmt.condition.xreplace(symbols), visit(stmt.body)))
            else:
                made += copied([stmt], names, symbols, values)
        return Block(tuple(made))

    return visit(block)


# -- reductions ----------------------------------------------------------------------------------------------


def decompose_reduction(kernel: Kernel, name: str, var: Symbol) -> tuple[Kernel, str]:
    """Initialize a reduction before a loop; gives the name of the stage that does, ``C_init``.

    for i: for k: C: init: C[i] = 0; C[i] += x   →   for i: C_init: C[i] = 0; for k: C_update: C[i] += x

    with a loop for each one inside that goes through a spatial axis.

    Raises:
        ScheduleError: SM1007 the stage has no init, the loop is not around it, a loop further out is
        reduced over, or other statements lie between.
    """
    place = stage_place(kernel, name, f"decompose_reduction({name})")
    stage = stage_of(place)
    found = [each for each in place.around if isinstance(each, For)]
    at = next((number for number, each in enumerate(found) if each.var == var), None)
    what = f"decompose_reduction({name})"
    if stage.init is None:
        raise Refused("SM1007", what, "it has no init")
    if at is None:
        raise Refused("SM1007", what, "the loop is not around it")
    what = f"decompose_reduction({name}, {named(found[at])})"
    for each in found[:at]:
        if _reduces(each, stage):
            why = f"{named(each)} further out is reduced over: its turns would begin anew"
            raise Refused("SM1007", what, why, f"decompose at {named(each)}")
    chain = found[at:]
    for outer, inner in zip(chain, (*chain[1:], stage)):
        if outer.body.stmts != (inner,):
            raise Refused("SM1007", what, f"{named(outer)} holds more than {name}")
    fresh = Fresh(names_of(kernel))
    kept = [each for each in chain if any(_goes(each, axis) for axis in _spatial(stage))]
    renamed = {each.var: fresh(f"{named(each)}_init") for each in kept}
    own = {axis.var: fresh(f"{axis.label or axis.var.name}_init") for axis in _spatial(stage)}
    axes = tuple(
        replace(
            axis,
            var=own[axis.var],
            value=axis.value.xreplace(renamed),
            label=f"{axis.label or axis.var.name}",
        )
        for axis in _spatial(stage)
    )
    dropped = {each.var for each in chain} - set(renamed)
    where = tuple(each.xreplace(renamed) for each in stage.where if dropped.isdisjoint(each.free_symbols))
    made = f"{name}_init"
    body = Block((Stage(made, axes, substitute(stage.init, own), None, where),))
    for each in reversed(kept):
        kind = LoopKind.SERIAL if each.kind is LoopKind.PARALLEL else each.kind
        fitted = replace(each, var=renamed[each.var], kind=kind, label=f"{named(each)}_init", notes=())
        body = Block((replace(fitted, body=body),))
    update = replace(stage, name=f"{name}_update", init=None)

    def visit(stmt: Stmt) -> Sequence[Stmt] | None:
        if stmt is found[at]:
            inside = rewritten(Block((stmt,)), lambda each: [update] if each is stage else None)
            return [*body.stmts, *inside.stmts]
        return None

    return with_body(kernel, rewritten(kernel.body, visit)), made


def rfactor(kernel: Kernel, name: str, var: Symbol, factor_axis: int = 0) -> tuple[Kernel, str]:
    """Make a reduction in parts, one for each turn of a loop, and add the parts up; gives the name of the
    stage that makes them, ``C_rf``.

    for i: for k_0: for k_1: C[i] += x   →   for i: for k_0: for k_1: C_rf[k_0, i] += x
                                             for i: for k_0: C[i] += C_rf[k_0, i]

    ``factor_axis``: which dimension of the parts is the loop's.

    Raises:
        ScheduleError: SM1008 the stage is no reduction with an init, the loop is not one that it reduces
        over, or others lie between.
    """
    place = stage_place(kernel, name, f"rfactor({name})")
    stage = stage_of(place)
    chain = [each for each in place.around if isinstance(each, For)]
    loop = next((each for each in chain if each.var == var), None)
    what = f"rfactor({named(loop) if loop is not None else var}) of {name}"
    store = next((s for s in reversed(stage.body.stmts) if isinstance(s, Store)), None)
    if stage.init is None or store is None or store.mode is None:
        raise Refused("SM1008", what, "it is no reduction with an init")
    if loop is None:
        raise Refused("SM1008", what, "the loop is not around it")
    for outer, inner in zip(chain, (*chain[1:], stage)):
        if outer.body.stmts != (inner,):
            raise Refused("SM1008", what, f"{named(outer)} holds more than {name}")
    if not _reduces(loop, stage) or any(_goes(loop, axis) for axis in _spatial(stage)):
        raise Refused("SM1008", what, f"{named(loop)} is not reduced over", "a loop of a reduce axis")
    if not symbols_in(loop.end).isdisjoint({each.var for each in chain}):
        raise Refused("SM1008", what, f"the end of {named(loop)} varies")
    rank = len(store.index)
    if not -rank - 1 <= factor_axis <= rank:
        raise Refused("SM1008", what, f"factor_axis {factor_axis} is none of {rank + 1} dimensions")
    at = factor_axis % (rank + 1)
    return _parts_added_up(kernel, stage, chain, loop, store, at)


def _parts_added_up(
    kernel: Kernel, stage: Stage, chain: list[For], loop: For, store: Store, at: int
) -> tuple[Kernel, str]:
    values = Values(kernel)
    fresh = values.symbol
    made, buffer = f"{stage.name}_rf", unique_name(f"{store.buffer}_rf", buffer_names(kernel))
    shape = list(_shape_of(kernel, store.buffer))
    dtype = next(s.dtype for s in walk(stage.body) if isinstance(s, (Let, Masked)) and s.name == store.value)
    shape.insert(at, loop.end)
    # the parts: what a reduce axis was is what its loops say, of which this one is now spatial
    part = Axis(fresh(f"v_{named(loop)}"), loop.end, loop.var, label=f"v_{named(loop)}")
    inside: dict[Symbol, Expr] = {}
    axes: list[Axis] = []
    for axis in stage.axes:
        if axis.kind is AxisKind.SPATIAL or not _goes(loop, axis):
            axes.append(axis)
            continue
        own: dict[Symbol, Expr] = {loop.var: part.var}
        for each in chain:
            if each is not loop and _goes(each, axis):
                label = f"v_{named(each)}"
                new = Axis(fresh(label), each.end, each.var, AxisKind.REDUCE, label=label)
                axes.append(new)
                own[each.var] = new.var
        inside[axis.var] = axis.value.xreplace(own)
    index = list(store.index)
    index.insert(at, part.var)

    def moved(block: Block) -> Block:
        return rewritten(
            substitute(block, inside),
            lambda stmt: (
                [replace(stmt, buffer=buffer, index=tuple(index))]
                if isinstance(stmt, Store) and stmt.buffer == store.buffer
                else None
            ),
        )

    assert stage.init is not None
    parts = replace(stage, name=made, axes=(part, *axes), body=moved(stage.body), init=moved(stage.init))
    # their sum: the loops of spatial axes, and this one
    kept = [each for each in chain if each is loop or any(_goes(each, axis) for axis in _spatial(stage))]
    again = {each.var: fresh(named(each)) for each in kept}
    renamed = {axis.var: fresh(axis.label or axis.var.name) for axis in _spatial(stage)}
    over = fresh(part.label)
    spatial = [
        replace(axis, var=renamed[axis.var], value=axis.value.xreplace(again)) for axis in _spatial(stage)
    ]
    summed = Axis(over, loop.end, again[loop.var], AxisKind.REDUCE, label=part.label)
    target = tuple(e.xreplace(renamed) for e in store.index)
    source = list(target)
    source.insert(at, over)
    value = values()
    body = Block(
        (
            Let(value, dtype, "load", (buffer, tuple(source))),
            replace(store, index=target, value=value),
        )
    )
    first = copied(stage.init.stmts, {}, renamed, values)
    dropped = {each.var for each in chain} - set(again)
    where = tuple(each.xreplace(again) for each in stage.where if dropped.isdisjoint(each.free_symbols))
    total = Block((Stage(stage.name, (*spatial, summed), body, Block(tuple(first)), where),))
    for each in reversed(kept):
        fitted = replace(each, var=again[each.var], kind=LoopKind.SERIAL, notes=(), label=named(each))
        total = Block((replace(fitted, body=total),))

    def visit(stmt: Stmt) -> Sequence[Stmt] | None:
        if stmt is chain[0]:
            inner = rewritten(Block((stmt,)), lambda each: [parts] if each is stage else None)
            return [*inner.stmts, *total.stmts]
        return None

    body = rewritten(kernel.body, visit)
    return with_body(kernel, Block((Alloc(buffer, dtype, tuple(shape)), *body.stmts))), made


def _shape_of(kernel: Kernel, buffer: str) -> tuple[Expr, ...]:
    for param in kernel.params:
        if param.name == buffer:
            return param.shape
    return next(s.shape for s in walk(kernel.body) if isinstance(s, Alloc) and s.buffer == buffer)


def _spatial(stage: Stage) -> list[Axis]:
    return [axis for axis in stage.axes if axis.kind is AxisKind.SPATIAL]


def _goes(loop: For, axis: Axis) -> bool:
    return loop.var in axis.value.free_symbols


def _reduces(loop: For, stage: Stage) -> bool:
    return any(_goes(loop, axis) for axis in stage.axes if axis.kind is AxisKind.REDUCE)


def _inside(loop: For) -> str:
    """`` of C``: the stages in a loop, for messages."""
    names = [stage.name for stage in _outermost(loop.body)]
    return f" of {', '.join(names[:3])}" if names else ""


def _instead(kernel: Kernel, var: Symbol, body: Block) -> Kernel:
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: tuple(body.stmts)))
