"""Inlines a stage's value into its consumers, or into its producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
from sympy import Expr, Symbol
from sympy.core.relational import Ge, Lt
from sympy.logic.boolalg import Boolean
from torch.utils._sympy.functions import Mod

from smelt.nest.inside import open_bounds
from smelt.nest.ir import Alloc, Block, Kernel, Let, Masked, Prefetch, SortRow, Stage, Stmt, Store
from smelt.nest.primitives.common import refusal, stage_place
from smelt.nest.primitives.copies import Values, copied
from smelt.nest.primitives.places import (
    comparison,
    conditions_on_axes,
    conjunction,
    implied,
    may_load_only,
)
from smelt.nest.regions import Facts, Interval, found_accesses, interval
from smelt.nest.scopes import (
    Place,
    consumers,
    is_output,
    members,
    not_complete,
    not_reduction,
    position,
    producers,
    reads,
    scope_body,
    shapes_of,
    without,
    without_alloc,
    writes,
    written_again,
)
from smelt.nest.tree import (
    exchanged,
    map_condition,
    named,
    redirected,
    reduced_axes,
    rewritten,
    stages,
    walk,
    with_blocks,
    with_body,
)
from smelt.records import replace
from smelt.symbolic import simplify
from smelt.symbolic.affine import divided, expand, remainder, replaced, symbols_in

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


def compute_inline(kernel: Kernel, stage: str) -> Kernel:
    """Computes a producer where its consumers load it; the block and its buffer disappear.

    for i: B[i] = A[i] * 2
    for i: C[i] = B[i] + 1     →   for i: C[i] = A[i] * 2 + 1

    Raises:
        ScheduleError: SM1002 there is no such block; SM1028 it writes a result, is a reduction, stores more
        than one element, or not at its axes one by one, or an index that it loads at has to be checked at
        the call; SM1024 what it reads is written again before a consumer is computed; SM1029 a consumer does
        more than to load it.
    """
    what = f"compute_inline of {stage}"
    target, place = stage_place(kernel, stage, what)
    if place.scope is None and is_output(kernel, target):
        raise refusal(
            "SM1028", what, "it is an output block", "reverse_compute_inline puts it into its producer"
        )
    if target.init is not None or reduced_axes(target):
        raise refusal("SM1028", what, "it is a reduction, which has no value before all its terms are added")
    store, steps = _one_store(kernel, place, what)
    order = _plain_order(target, store, what)
    if conditions_on_axes(target):
        raise refusal("SM1028", what, "it is computed under a condition, and not everywhere")
    users = consumers(kernel, place)
    _check_stable(kernel, place, users, what)
    _check_loads(kernel, store.buffer, what)
    _check_open_bounds(kernel, target, store.buffer, what)
    values = Values(kernel)

    def put(block: Block) -> Block:
        stmts: list[Stmt] = []
        for stmt in block.stmts:
            if isinstance(stmt, Let) and stmt.op == "load" and stmt.args[0] == store.buffer:
                symbols: dict[Symbol, Expr] = {axis.var: axis.begin for axis in target.axes}
                symbols |= {var: stmt.args[1][dim] for dim, var in order.items()}
                stmts += copied(steps, {store.value: stmt.name}, symbols, values)
            else:
                stmts.append(with_blocks(stmt, put))
        return Block(tuple(stmts))

    def visit(stmt: Stmt) -> Sequence[Stmt] | None:
        return (with_blocks(stmt, put),) if isinstance(stmt, Stage) and store.buffer in reads(stmt) else None

    changed = with_body(kernel, rewritten(without(kernel.body, target), visit))
    return without_alloc(changed, store.buffer)


def reverse_compute_inline(kernel: Kernel, stage: str) -> Kernel:
    """Computes a consumer in its only producer, and stores the final value there; the intermediate buffer
    disappears.

    for i: B[i] = A[i] * 2
    for i: C[i] = B[i] + 1     →   for i: C[i] = A[i] * 2 + 1     (in the block of B)

    The consumer loads one element of the producer's buffer, at an invertible index. Where it does not use all
    elements, a condition leaves the others out. Only a copy can be inlined into a reduction.

    Raises:
        ScheduleError: SM1002 there is no such block; SM1028 it is a reduction, or stores more than one
        element; SM1029 it has not one producer, or that has other consumers, or writes a result; SM1030 its
        index is not invertible; SM1024 a statement in between accesses the same elements.
    """
    what = f"reverse_compute_inline of {stage}"
    target, place = stage_place(kernel, stage, what)
    if target.init is not None or reduced_axes(target):
        raise refusal("SM1028", what, "it is a reduction: its terms are not one element each")
    store, steps = _one_store(kernel, place, what)
    maker_place = _one_producer(kernel, place, what)
    maker = maker_place.stage
    buffer = _shared(kernel, maker_place, target, what)
    index, loads = _one_index(target, buffer, what)
    _check_order(kernel, place, maker, what)
    made = maker.body.stmts[-1]
    assert isinstance(made, Store)
    at = [simplify(expr, {axis.var: axis.begin + axis.extent for axis in maker.axes}) for expr in made.index]
    found = inverted(index, at, {axis.var: axis.extent for axis in target.axes if axis.begin == 0})
    if not isinstance(found, str):
        missing = [axis for axis in target.axes if axis.var not in found and axis.extent != 1]
        found = f"{named(missing[0])} is not in it" if missing else found
    if isinstance(found, str):
        raise refusal("SM1030", what, f"the index at which it loads {buffer} cannot be inverted: {found}")
    _check_all_made(kernel, target, maker, buffer, what)
    symbols = {axis.var: found.get(axis.var, axis.begin) for axis in target.axes}
    if maker.init is None:
        names: dict[str, str] = dict.fromkeys(loads, made.value)
        rest = _without_loads(steps, loads)
        tail = copied((*rest, store), names, symbols, Values(kernel))
        body, init = Block((*maker.body.stmts[:-1], *tail)), maker.init
    else:
        if len(steps) != 1 or store.value not in loads:
            why = f"{maker.name} is a reduction, and the block does more than to copy it"
            raise refusal("SM1029", what, why, "fuse_reduction_epilogue, where it adds something")
        body = _redirected(maker.body, buffer, store, symbols)
        init = _redirected(maker.init, buffer, store, symbols)
    where = [*maker.where, *_inside(maker, target, symbols)]
    conditions = conditions_on_axes(target)
    if isinstance(conditions, str):
        raise refusal("SM1026", what, conditions)
    values = {axis.var: axis.value for axis in maker.axes}
    for each in conditions:
        where.append(map_condition(each, lambda expr: replaced(replaced(expr, symbols), values)))
    new = replace(maker, where=conjunction(where), body=body, init=init)
    changed = exchanged(with_body(kernel, without(kernel.body, target)), maker, new)
    return without_alloc(changed, buffer)


# -- checks of both ------------------------------------------------------------------------------------------


def _one_store(kernel: Kernel, place: Place, what: str) -> tuple[Store, tuple[Stmt, ...]]:
    """The store of a stage that computes one element, and the steps before it."""
    stage = place.stage
    if stages(stage.body):
        raise refusal("SM1028", what, "it holds blocks of its own")
    why = not_complete(kernel, place)
    if why is not None:
        raise refusal("SM1028", what, f"it is not a complete block: {why}")
    *steps, store = stage.body.stmts or (None,)
    if not isinstance(store, Store) or not all(isinstance(step, (Let, Masked)) for step in steps):
        raise refusal("SM1028", what, "it does more than store one element")
    return store, tuple(each for each in steps if each is not None)


def _plain_order(stage: Stage, store: Store, what: str) -> dict[int, Symbol]:
    """The dimension that each axis indexes."""
    axes = {axis.var: axis for axis in stage.axes}
    order: dict[int, Symbol] = {}
    for dim, expr in enumerate(store.index):
        if isinstance(expr, Symbol) and expr in axes and expr not in order.values():
            order[dim] = expr
        elif not (expr.is_Integer or symbols_in(expr).isdisjoint(axes)):
            raise refusal("SM1028", what, f"it stores {store.buffer} at {expr}, which is no axis of its own")
    for var, axis in axes.items():
        if var not in order.values() and axis.extent != 1:
            raise refusal("SM1028", what, f"{named(axis)} is not in the index that it stores at")
    return order


def _check_stable(kernel: Kernel, place: Place, users: Sequence[Stage], what: str) -> None:
    """Checks that the inputs of the stage are still unchanged where its consumers run."""
    target = place.stage
    order = members(scope_body(kernel, place.scope))
    here = position(order, target)
    local = {each.buffer for each in walk(kernel.body) if isinstance(each, Alloc)}
    top = {each.buffer for each in kernel.body.stmts if isinstance(each, Alloc)}
    last = max((number for number, each in enumerate(order) for user in users if each is user), default=here)
    for name in reads(target):
        for other in order[here + 1 : last + 1]:
            if name in writes(other):
                raise refusal(
                    "SM1024", what, f"{other.name} writes {name} again, before a consumer is computed"
                )
        if name in local - top and place.scope is None:
            raise refusal("SM1024", what, f"{name} is memory of a loop's iteration")
    around = {each.var for each in place.loops}
    for other in order[:here]:
        again = written_again(other, reads(target), around)
        if again is not None:
            why = f"it reads {again}, which {other.name} gives other values in later iterations"
            raise refusal("SM1024", what, why)


def _check_loads(kernel: Kernel, buffer: str, what: str) -> None:
    for stmt in walk(kernel.body):
        name = stmt.source if isinstance(stmt, SortRow) else stmt.buffer if isinstance(stmt, Prefetch) else ""
        if name == buffer:
            raise refusal("SM1029", what, f"{buffer} is sorted or prefetched, not only loaded")


def _check_open_bounds(kernel: Kernel, target: Stage, buffer: str, what: str) -> None:
    """Refuses to move an access that is checked at the call to where it happens under a condition only: the
    check would be lost.
    """
    uses = [each for each in found_accesses(kernel.body) if each.buffer == buffer and not each.is_store]
    if not any(each.masked or each.guards for each in uses):
        return
    read = {each.own for each in found_accesses(target) if not each.is_store}
    for bound in open_bounds(kernel):
        if bound.index in read:
            why = f"{bound.element} is in bounds for some sizes only"
            raise refusal("SM1028", what, f"{why}, and {buffer} is loaded under a condition")


def _one_producer(kernel: Kernel, place: Place, what: str) -> Place:
    makers = producers(kernel, place)
    if len(makers) != 1:
        names = ", ".join(each.name for each in makers) or "none"
        raise refusal("SM1029", what, f"it has not a single producer: {names}")
    maker, found = stage_place(kernel, makers[0].name, what)
    if maker is not makers[0]:
        raise refusal("SM1002", what, f"there are two blocks {maker.name!r}")
    if stages(maker.body):
        raise refusal("SM1029", what, f"its producer {maker.name} holds blocks of its own")
    why = not_complete(kernel, found)
    if why is not None and not_reduction(kernel, found) is not None:
        raise refusal("SM1029", what, f"its producer {maker.name} is not a complete block: {why}")
    stores = sum(isinstance(each, Store) for each in walk(maker.body))
    if stores != 1 or len(writes(maker)) != 1 or not isinstance(maker.body.stmts[-1], Store):
        raise refusal("SM1029", what, f"its producer {maker.name} stores more than one element")
    return found


def _shared(kernel: Kernel, place: Place, target: Stage, what: str) -> str:
    """The intermediate buffer, which no other stage may use."""
    maker = place.stage
    (buffer,) = writes(maker)
    if buffer in {param.name for param in kernel.params}:
        raise refusal("SM1029", what, f"its producer {maker.name} is an output block: {buffer} is given back")
    others = [each.name for each in consumers(kernel, place) if each is not target]
    if others:
        raise refusal("SM1029", what, f"{buffer} has other consumers: {', '.join(others)}")
    return buffer


def _one_index(stage: Stage, buffer: str, what: str) -> tuple[tuple[Expr, ...], set[str]]:
    """The index at which a stage loads a buffer, and the names of the loaded values."""
    loads = [each for each in walk(stage.body) if isinstance(each, Let) and each.op == "load"]
    loads = [each for each in loads if each.args[0] == buffer]
    indices = {each.args[1] for each in loads}
    if len(indices) != 1:
        raise refusal("SM1030", what, f"it loads {buffer} at {len(indices)} places, not one")
    return indices.pop(), {each.name for each in loads}


def _without_loads(steps: Sequence[Stmt], loads: set[str]) -> list[Stmt]:
    kept: list[Stmt] = []
    for step in steps:
        if isinstance(step, Masked):
            body = Block(tuple(_without_loads(step.body.stmts, loads)))
            kept.append(replace(step, body=body))
        elif not (isinstance(step, Let) and step.name in loads):
            kept.append(step)
    return kept


def _check_all_made(kernel: Kernel, target: Stage, maker: Stage, buffer: str, what: str) -> None:
    """Checks that a consumer with a masked load has an element of the producer for each of its own
    elements.
    """
    loads = [each for each in found_accesses(target.body) if each.buffer == buffer]
    if not all(each.masked for each in loads):
        return
    limits = {axis.var: (axis.begin, axis.begin + axis.extent - 1) for axis in target.axes}
    ranges = [(axis.var, (axis.begin, axis.begin + axis.extent - 1)) for axis in maker.axes]
    stores = [replace(each, loops=(*ranges, *each.loops)) for each in found_accesses(maker.body)]
    whole = not conditions_on_axes(maker) and may_load_only(
        loads[0], limits, stores, shapes_of(kernel)[buffer]
    )
    if not whole:
        why = f"{maker.name} does not make an element of {buffer} for each of its own"
        raise refusal("SM1030", what, why)


def _check_order(kernel: Kernel, place: Place, maker: Stage, what: str) -> None:
    """Checks that no statement between the producer and the stage touches its outputs or writes its
    inputs.
    """
    target = place.stage
    order = members(scope_body(kernel, place.scope))
    first = position(order, maker)
    here = position(order, target)
    if here < first:
        raise refusal("SM1024", what, f"it runs before {maker.name}")
    for other in order[:here]:
        for name in writes(target):
            if name in reads(other):
                raise refusal("SM1024", what, f"{other.name} reads {name}, before the block writes it")


def _redirected(block: Block, buffer: str, store: Store, symbols: Mapping[Symbol, Expr]) -> Block:
    """The statements of a reduction, which now add to the element that its copy was stored to."""
    index = tuple(replaced(expr, symbols) for expr in store.index)
    return redirected(block, buffer, store.buffer, lambda _: index)


def _inside(maker: Stage, target: Stage, symbols: Mapping[Symbol, Expr]) -> list[Boolean]:
    """The conditions that keep the axes of the consumer in their ranges."""
    limits: dict[Symbol, Interval] = {
        axis.var: (axis.begin, axis.begin + axis.extent - 1) for axis in maker.axes
    }
    values = {axis.var: axis.value for axis in maker.axes}
    facts = Facts({axis.var: axis.begin + axis.extent for axis in maker.axes})
    found: list[Boolean] = []
    for axis in target.axes:
        expr = symbols[axis.var]
        for condition in (comparison(Ge, expr, axis.begin), comparison(Lt, expr, axis.begin + axis.extent)):
            if condition != sympy.true and not implied(condition, limits, facts):
                found.append(map_condition(condition, lambda each: expand(replaced(each, values))))
    return found


# -- inverting an index --------------------------------------------------------------------------------------


def inverted(
    index: Sequence[Expr], at: Sequence[Expr], extents: Mapping[Symbol, Expr]
) -> dict[Symbol, Expr] | str:
    """Inverts an index: axis values as expressions of ``at``; or the reason why that is not possible.

    >>> from smelt.symbolic import FloorDiv, loop_var
    >>> i, j, p, q = map(loop_var, "ijpq")
    >>> sixteen = sympy.Integer(16)
    >>> inverted((16 * i + j,), (p,), {i: sixteen, j: sixteen})
    {i: (p//16), j: Mod(p, 16)}
    >>> inverted((FloorDiv(i, 16), Mod(i, 16)), (p, q), {i: sympy.Integer(64)})
    {i: 16*p + q}
    >>> n = loop_var("n")
    >>> inverted((n * i + j,), (p,), {i: sixteen, j: n})
    {i: (p//n), j: Mod(p, n)}
    """
    known = [(simplify(expand(expr), extents), value) for expr, value in zip(index, at, strict=True)]
    found: dict[Symbol, Expr] = {}
    while known:
        before = known
        known = []
        for expr, value in _joined(before, extents):
            parts = _digits(expr, value, extents)
            for part, made in parts.items():
                if not isinstance(part, Symbol):
                    known.append((part, made))
                elif found.setdefault(part, made) != made:
                    return f"{part} is in two of its dimensions"
        known = [(expr, value) for expr, value in known if not symbols_in(expr) <= found.keys()]
        if known and set(known) == set(before):
            return f"{known[0][0]} is no sum of digits"
    return found


Known = list[tuple[Expr, Expr]]


def _joined(known: Known, extents: Mapping[Symbol, Expr]) -> Known:
    """``y + x // f`` and ``x % f`` become ``f * y + x``."""
    for number, (expr, value) in enumerate(known):
        if not isinstance(expr, Mod):
            continue
        base, modulus = expr.args
        wanted = simplify(divided(base, modulus), extents)
        for other, (quotient, above) in enumerate(known):
            rest = [pair for place, pair in enumerate(known) if place not in (number, other)]
            if other == number:
                continue
            if wanted in sympy.Add.make_args(quotient):
                whole = expand((quotient - wanted) * modulus + base)
                return _joined([*rest, (whole, expand(above * modulus + value))], extents)
            if isinstance(quotient, Mod) and quotient.args[0] == wanted and modulus.is_Integer:
                whole = Mod(base, quotient.args[1] * modulus)
                return _joined([*rest, (whole, expand(above * modulus + value))], extents)
    return known


def _digits(expr: Expr, value: Expr, extents: Mapping[Symbol, Expr]) -> dict[Expr, Expr]:
    """The digits of a sum, as expressions of its value; the sum itself where a term is no digit."""
    limits = {var: (ZERO, size - 1) for var, size in extents.items()}
    parts: list[tuple[Expr, Expr, Expr]] = []
    rest: list[Expr] = []
    for term in sympy.Add.make_args(expr):
        if symbols_in(term).isdisjoint(extents):
            rest.append(term)
            continue
        coefficient, part = term.as_independent(*extents, as_Add=False)
        span = interval(part, limits, Facts(extents))
        if span is None or span[0] != 0:
            return {expr: value}
        parts.append((coefficient, part, expand(span[1] + 1)))
    value = expand(value - sympy.Add(*rest))
    if len(parts) == 1 and abs(parts[0][0]) == 1:
        ((coefficient, part, _),) = parts
        return {part: expand(value * coefficient)}
    chain: list[tuple[Expr, Expr, Expr]] = []
    while parts:  # from the lowest digit up
        weight = expand(chain[-1][0] * chain[-1][2]) if chain else ONE
        fitting = [each for each in parts if each[0] == weight]
        if not fitting:
            return {expand(expr - sympy.Add(*rest)): value}
        chain.append(next((each for each in fitting if each[2] == 1), fitting[0]))
        parts.remove(chain[-1])
    found: dict[Expr, Expr] = {}
    for number, (coefficient, part, size) in enumerate(reversed(chain)):
        made = divided(value, coefficient)
        found[part] = remainder(made, size) if number else made
    return found
