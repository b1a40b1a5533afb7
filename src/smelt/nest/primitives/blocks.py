"""Turns a piece of a nest into one stage, and replaces a stage by an intrinsic."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import sympy
from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import (
    Alloc,
    Axis,
    AxisKind,
    Block,
    For,
    Guard,
    Kernel,
    Let,
    Masked,
    Operand,
    Stage,
    Stmt,
    Store,
    Text,
)
from smelt.nest.primitives.common import ScheduleError, in_loops, loop_place, refusal, stage_place
from smelt.nest.primitives.copies import Values, copied
from smelt.nest.primitives.layouts import ranges_of
from smelt.nest.primitives.places import in_buffer
from smelt.nest.primitives.reductions import first_values
from smelt.nest.regions import Facts
from smelt.nest.scopes import buffer_names, members, stage_names, unique_name
from smelt.nest.stages import dissolve
from smelt.nest.tree import (
    accesses,
    exchanged,
    loops,
    map_condition,
    map_exprs,
    named,
    nested,
    stages,
    trip_count,
    walk,
)
from smelt.records import dataclass, field, replace
from smelt.symbolic import simplify
from smelt.symbolic.affine import difference, divided, expand, linear, remainder, replaced, symbols_in

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


def blockize(
    kernel: Kernel, loop: Symbol, preserve_unit_iters: bool = True, *, whole: bool = False
) -> tuple[Kernel, str]:
    """Makes one block of a loop and its contents; returns the new block.

    for i0 in 8, i1 in 16: S: v = 16*i0 + i1   →   for i0 in 8: S_o: vo = i0
                                                       for i1 in 16: S: vi = i1, where v was 16*vo + vi

    A reduction's init runs in the new block, before all of its updates; with ``whole`` it stays where it is,
    in the block inside, which then has the whole reduction. ``preserve_unit_iters``: an axis of extent 1 of
    the new block keeps its binding expression.

    Raises:
        ScheduleError: SM1002 there is no such loop; SM1037 it holds more than one block, an axis of the block
        is no sum of a part outside of the loop and one inside, or ``whole`` and there are terms outside.
    """
    top, place = loop_place(kernel, loop, "blockize")
    what = f"blockize({named(top)})"
    inside, held = nested(top)
    if len(held) != 1:
        raise refusal("SM1037", what, f"the loop {named(inside[-1])} holds more than one block")
    (target,) = held
    if not isinstance(target, Stage):
        raise refusal("SM1037", what, f"the loop {named(inside[-1])} holds no block")
    what = f"{what} of {target.name}"
    values = Values(kernel)
    once = {each.var: each.begin for each in place.loops if trip_count(each) == 1 and each not in inside}
    parts = [_divided_axis(axis, inside, once, what) for axis in target.axes]
    outer, inner = [], []
    old: dict[Symbol, Expr] = {}
    for axis, (high, low, size, base) in zip(target.axes, parts):
        count = ONE if base else _count(axis, size, what)
        label = named(axis)
        label = f"{label}_o" if size != 1 or count == 1 else label
        out = Axis(
            values.symbol(label),
            count,
            high if preserve_unit_iters or count != 1 else ZERO,
            axis.kind,
            label=label,
        )
        outer.append(out)
        made: Expr = ZERO if count == 1 else out.var * size
        if size != 1:
            label = f"{named(axis)}_i"
            new = Axis(values.symbol(label), size, low, axis.kind, label=label)
            inner.append(new)
            made = made + new.var
        old[axis.var] = made + axis.begin + base
    within = {each.var for each in inside}
    where_in = tuple(each for each in target.where if not within.isdisjoint(each.free_symbols))
    where_out = tuple(each for each in target.where if within.isdisjoint(each.free_symbols))
    if where_in:  # what they leave out may be all of a new block
        facts = Facts(
            {axis.var: axis.begin + axis.extent for each in stages(kernel.body) for axis in each.axes}
        )
        reached = [axis.value for axis in outer], [axis.extent for axis in outer]
        where_out += tuple(in_buffer(*reached, facts.plus(place.loops)))
    where_in = _of_axes(where_in, parts, inside, outer, what)
    extents = {axis.var: axis.extent for axis in (*outer, *inner)}

    def placed(block: Block) -> Block:
        return map_exprs(block, lambda expr: simplify(expand(replaced(expr, old)), extents))

    name = unique_name(f"{target.name}_o", stage_names(kernel))
    new_stage = replace(target, axes=tuple(inner), body=placed(target.body), init=None, where=where_in)
    init = None
    if target.init is not None and whole:
        left = [axis for axis in outer if axis.kind is not AxisKind.SPATIAL and axis.extent != 1]
        if left:
            raise refusal("SM1037", what, f"terms of {named(left[0])} are added outside of it")
        new_stage = replace(new_stage, init=placed(target.init))
    nest = in_loops(inside, new_stage)
    if target.init is not None and not whole:
        begun = unique_name(f"{target.name}_init", stage_names(kernel))
        first = replace(new_stage, init=placed(target.init), notes=())
        init = Block((first_values(first, begun, inside, values.symbol),))
    return exchanged(kernel, top, Stage(name, tuple(outer), Block((nest,)), init, where_out)), name


_Parts = tuple[Expr, Expr, Expr, int]
"""The part of an axis by outer loops, the part by inner loops, its extent, and a number that is added."""


def _divided_axis(axis: Axis, inside: Sequence[For], once: Mapping[Symbol, Expr], what: str) -> _Parts:
    """An axis as ``high * size + low + base``. The base is a number alone, of an axis without outer loops.
    ``once``: the values of outer loops of one iteration.
    """
    within = {each.var: each for each in inside}
    value = expand(axis.value - axis.begin)
    if symbols_in(value).isdisjoint(within):
        return value, ZERO, ONE, 0
    low: Expr = ZERO
    rest = value
    for var in within:
        step, rest = linear(rest, var)
        low = low + step * var
    size: Expr = ONE
    terms = []
    for var, loop in within.items():
        step, left = linear(expand(low), var)
        if step == 0:
            continue
        if loop.begin != 0 or not symbols_in(step).isdisjoint(within) or var in symbols_in(left):
            raise refusal("SM1037", what, f"{named(axis)} is no sum of multiples of the loops inside")
        terms.append((step, loop.end))
    known = symbols_in(rest).isdisjoint(within) and all(
        symbols_in(end).isdisjoint(within) for _, end in terms
    )
    if not known:
        raise refusal("SM1037", what, f"{named(axis)} is no sum of multiples of the loops inside")
    if len(terms) == 1:
        ((step, end),) = terms
        if step != 1:
            raise refusal("SM1037", what, f"{named(axis)} goes in steps of {step} inside")
        size = end
    else:
        if not all(step.is_Integer for step, _ in terms):
            raise refusal("SM1037", what, f"{named(axis)} is no sum of digits")
        for step, end in sorted(terms, key=lambda term: int(term[0])):
            if step != size:
                raise refusal("SM1037", what, f"{named(axis)} is no sum of digits")
            size = expand(size * end)
    if size == 0:  # nothing runs, and nothing is divided by 0
        return expand(rest), expand(low), size, 0
    if remainder(expand(rest), size) != 0:
        rest = expand(replaced(rest, once))
    if rest.is_Integer and rest > 0:
        return ZERO, expand(low), size, int(rest)
    high = divided(expand(rest), size)
    if expand(high * size - rest) != 0 or (size.is_Integer and remainder(expand(rest), size) != 0):
        why = f"{named(axis)} does not begin at a multiple of {size} inside"
        raise refusal("SM1037", what, why)
    return high, expand(low), size, 0


def _count(axis: Axis, size: Expr, what: str) -> Expr:
    """The number of tiles of a size along an axis."""
    if size.is_Integer and size > 0:
        return expand(divided(axis.extent + size - 1, size))
    count = ONE if size in (axis.extent, ZERO) else expand(divided(axis.extent, size))
    if expand(count * size - axis.extent) != 0:
        name = named(axis)
        raise refusal("SM1037", what, f"nothing shows that parts of {size} make up {name}, of {axis.extent}")
    return count


def _of_axes(
    where: tuple[Boolean, ...],
    parts: Sequence[_Parts],
    inside: Sequence[For],
    outer: Sequence[Axis],
    what: str,
) -> tuple[Boolean, ...]:
    """Rewrites conditions in terms of the new block's axes and the loops in it."""
    within = {each.var for each in inside}
    found = []
    for condition in where:
        gap = expand(condition.args[0] - condition.args[1])  # type: ignore[operator]
        for (high, _, size, _), out in zip(parts, outer):
            for var in symbols_in(high) - within:
                own, _ = linear(high * size, var)
                there, _ = linear(gap, var)
                if own != 0 and there != 0 and own.is_Integer and there.is_Integer and there % own == 0:
                    gap = expand(gap - there / own * (high * size - size * out.var))
        if not symbols_in(gap) - within <= {axis.var for axis in outer} | _sizes(gap):
            raise refusal("SM1037", what, f"its condition {condition} is of loops outside and inside")
        found.append(condition.func(gap, ZERO))
    return tuple(found)


def _sizes(expr: Expr) -> set[Symbol]:
    return {symbol for symbol in symbols_in(expr) if symbol.is_positive}


# -- intrinsics ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """A replacement for a small kernel: ``impl`` computes the same as ``desc`` on the same parameters, as
    statements or as the text of a target.
    """

    name: str
    desc: Kernel
    impl: Kernel | Text


def tensorize(
    kernel: Kernel, target: str | Symbol, intrinsic: Intrinsic, preserve_unit_iters: bool = True
) -> Kernel:
    """Computes a block, or the body of a loop, by an intrinsic.

    for i1 in 16: C[16*vo + i1] += …   →   the statements of the intrinsic, on 16 elements from C[16*vo] on

    The block has to match the intrinsic's description statement by statement, at indices that differ by a
    base; buffers may have more leading dimensions, and sizes of the description are any. A description that
    initializes its sums matches loops that hold all of their terms. With the text of a target, the block's
    statements stay as the definition of the text.

    Raises:
        ScheduleError: SM1002 there is no such block or loop; SM1037 it cannot be made one block; SM1038 it
        does not compute what the description says.
    """
    if isinstance(target, Symbol):
        begun = any(each.init is not None for each in stages(intrinsic.desc.body))
        kernel, name = blockize(kernel, target, preserve_unit_iters, whole=begun)
    else:
        name = target
    what = f"tensorize of {name} by {intrinsic.name}"
    stage = stage_place(kernel, name, what)[0]
    match = _Match(intrinsic.desc, stage, ranges_of(kernel), what)
    match.blocks(_plain(intrinsic.desc.body), _plain(stage.body))
    bases = match.bases()
    notes = (*stage.notes, ("tensorized", intrinsic.name))
    if isinstance(intrinsic.impl, Text):
        _check_strides(kernel, intrinsic.impl, match.buffers, what)
        new = replace(stage, text=intrinsic.impl, notes=notes)
    else:
        body = _at(intrinsic.impl, bases, match.buffers, Values(kernel), name, kernel)
        new = replace(stage, body=body, notes=notes)
    return exchanged(kernel, stage, new)


def _check_strides(kernel: Kernel, text: Text, buffers: Mapping[str, str], what: str) -> None:
    strides = {param.name: param.strides for param in kernel.params}
    strides |= {stmt.buffer: stmt.strides for stmt in walk(kernel.body) if isinstance(stmt, Alloc)}
    for operand in text.operands:
        there = strides[buffers[operand.name]]
        for dim, (need, found) in enumerate(zip(operand.strides, there[len(there) - len(operand.loops) :])):
            if need is not None and found != need:
                what_is = f"{buffers[operand.name]} has {found}"
                why = f"the stride of dimension {dim} of {operand.name} is {need}, {what_is}"
                raise refusal("SM1038", what, why, remedy="transform_layout, or cache_read and set it there")


def text_of(
    name: str,
    desc: Kernel,
    source: str,
    strides: Mapping[str, Sequence[int | None]],
    requires: Sequence[str] = (),
) -> Text | str:
    """The text of a target for the computation of a kernel, or the reason why pointers and strides cannot
    express its operands.

    Each parameter's first use is an element ``[i, j]`` of loops from 0 on, a loop for each dimension.
    """
    body = dissolve(desc).body
    around = loops(body)
    numbers = {loop.var: number for number, loop in enumerate(around) if loop.begin == 0}
    ends = {loop.end: number for number, loop in enumerate(around)}
    counts = tuple((size.name, ends[size]) for size in desc.sizes if size in ends)
    found = list(accesses(body))
    operands = []
    for param in desc.params:
        access = next((n for n, (buffer, _, _) in enumerate(found) if buffer == param.name), None)
        if access is None:
            return f"nothing is done with {param.name}"
        index = found[access][1]
        used = [numbers.get(expr) for expr in index]
        if None in used or len(set(used)) != len(used):
            return f"the first use of {param.name} is no element of a loop for each of its dimensions"
        need = tuple(strides.get(param.name, (None,) * len(index)))
        if len(need) != len(index):
            return f"{param.name} has {len(index)} dimensions, {len(need)} strides are given"
        dims = tuple(number for number in used if number is not None)
        operands.append(Operand(param.name, param.dtype, param.written, access, dims, need))
    return Text(re.sub(r"\W", "_", name), source, tuple(operands), tuple(requires), counts=counts)


def _plain(block: Block) -> Block:
    """The block without a root stage that has no axes."""
    while len(block.stmts) == 1:
        (stage,) = block.stmts
        if (
            not isinstance(stage, Stage)
            or stage.axes
            or stage.init is not None
            or stage.where
            or not members(stage.body)
        ):
            break
        block = stage.body
    return block


@dataclass(slots=True)
class _Match:
    """The correspondence between a description and a block, found by a parallel traversal of both."""

    desc: Kernel
    stage: Stage
    extents: Mapping[Symbol, Expr]
    what: str
    symbols: dict[Symbol, Symbol] = field(default_factory=dict)
    sizes: dict[Symbol, Expr] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    found: dict[str, tuple[Expr, ...]] = field(default_factory=dict)
    units: dict[Symbol, Expr] = field(init=False)
    """The values of the description's axes of extent 1."""

    def __post_init__(self) -> None:
        self.units = {axis.var: axis.begin for axis in members_axes(self.desc) if axis.extent == 1}

    def differ(self, why: str) -> ScheduleError:
        return refusal("SM1038", self.what, f"it does not match {self.desc.name}: {why}")

    def blocks(self, one: Block, other: Block) -> None:
        if len(one.stmts) != len(other.stmts):
            raise self.differ(f"{len(other.stmts)} statements, not {len(one.stmts)}")
        for a, b in zip(one.stmts, other.stmts):
            self.stmts(a, b)

    def stmts(self, a: Stmt, b: Stmt) -> None:
        if type(a) is not type(b):
            raise self.differ(f"a {type(b).__name__.lower()}, not a {type(a).__name__.lower()}")
        if isinstance(a, For) and isinstance(b, For):
            end = a.end
            fixed = symbols_in(b.end).isdisjoint(self.symbols.values())
            if isinstance(end, Symbol) and end in self.desc.sizes and fixed:
                end = self.sizes.setdefault(end, b.end)
            if a.begin != b.begin or expand(difference(end, b.end)) != 0:
                raise self.differ(
                    f"the loop {named(b)} has {b.end - b.begin} iterations, not {a.end - a.begin}"
                )
            self.symbols[a.var] = b.var
            self.blocks(a.body, b.body)
        elif isinstance(a, Stage) and isinstance(b, Stage):
            self.axes(a, b)
            if a.where or b.where or (a.init is None) != (b.init is None):
                raise self.differ("conditions, or an init")
            if a.init is not None and b.init is not None:
                self.blocks(a.init, b.init)
            self.blocks(a.body, b.body)
        elif isinstance(a, Let) and isinstance(b, Let):
            self.lets(a, b)
        elif isinstance(a, Store) and isinstance(b, Store):
            if a.mode != b.mode or self.names.get(a.value) != b.value:
                raise self.differ(f"the value stored to {b.buffer}")
            self.access(a.buffer, a.index, b.buffer, b.index)
        elif isinstance(a, Masked) and isinstance(b, Masked):
            self.blocks(a.body, b.body)
            if (self.names.get(a.mask), self.names.get(a.result)) != (b.mask, b.result) or a.other != b.other:
                raise self.differ(f"the value {b.name}")
            self.names[a.name] = b.name
        elif isinstance(a, Guard) or a != b:
            raise self.differ(f"a {type(b).__name__.lower()}")

    def axes(self, a: Stage, b: Stage) -> None:
        """Matches axes by their loops; axes of extent 1 may be missing."""
        left = [axis for axis in a.axes if axis.extent != 1]
        right = [axis for axis in b.axes if axis.extent != 1]
        for one in left:
            value = replaced(one.value, self.symbols)
            other = next((axis for axis in right if expand(axis.value - value) == 0), None)
            extent = replaced(one.extent, self.sizes)
            if other is None or other.kind is not one.kind or other.extent != extent:
                raise self.differ(f"no axis of {b.name} is {named(one)}")
            self.symbols[one.var] = other.var
        if len(left) != len(right):
            raise self.differ(f"{b.name} has {len(right)} axes, not {len(left)}")

    def lets(self, a: Let, b: Let) -> None:
        self.names[a.name] = b.name
        if (
            a.op != b.op
            or a.dtype != b.dtype
            or len(a.args) != len(b.args)
            or (a.index is None) != (b.index is None)
        ):
            raise self.differ(f"{b.op} of {b.dtype}, not {a.op} of {a.dtype}")
        if a.op == "load":
            self.access(a.args[0], a.args[1], b.args[0], b.args[1])
            return
        if a.index is not None and b.index is not None:
            self.symbols[a.index] = b.index
        for one, other in zip(a.args, b.args):
            if isinstance(one, Expr):
                same = expand(self.said(one) - other) == 0
            else:
                same = one == other if a.op == "constant" else self.names.get(one, one) == other
            if not same:
                raise self.differ(f"the arguments of {b.op}")

    def said(self, expr: Expr) -> Expr:
        return replaced(replaced(expr, self.units), self.symbols)

    def access(self, name: str, index: Sequence[Expr], other: str, at: Sequence[Expr]) -> None:
        if self.buffers.setdefault(name, other) != other:
            raise self.differ(f"{name} is {self.buffers[name]} and {other}")
        front = len(at) - len(index)
        if front < 0:
            raise self.differ(f"{other} has {len(at)} dimensions, {name} has {len(index)}")
        base = [*at[:front], *(expand(difference(b, self.said(a))) for a, b in zip(index, at[front:]))]
        base = [simplify(expr, self.extents) for expr in base]
        visible = {axis.var for axis in self.stage.axes}
        inside = set(self.symbols.values())
        if any(symbols_in(expr) & inside - visible for expr in base):
            raise self.differ(f"where {other} is used")
        if self.found.setdefault(name, tuple(base)) != tuple(base):
            raise self.differ(f"{other} is used at two places")

    def bases(self) -> dict[str, tuple[Expr, ...]]:
        missing = [param.name for param in self.desc.params if param.name not in self.found]
        if missing:
            raise self.differ(f"nothing is {missing[0]}")
        return self.found


def members_axes(kernel: Kernel) -> list[Axis]:
    return [axis for stage in members(kernel.body) for axis in stage.axes]


def _at(
    impl: Kernel,
    bases: Mapping[str, tuple[Expr, ...]],
    buffers: Mapping[str, str],
    values: Values,
    name: str,
    kernel: Kernel,
) -> Block:
    """The statements of an implementation, at offsets in the given buffers and with fresh names."""
    names: dict[str, str] = {}
    symbols: dict[Symbol, Expr] = {}
    local: dict[str, str] = {}
    used, held = stage_names(kernel), buffer_names(kernel)

    def place(buffer: str, index: tuple[Expr, ...]) -> tuple[str, tuple[Expr, ...]]:
        if buffer in local:
            return local[buffer], index
        base = bases[buffer]
        front = len(base) - len(index)
        return buffers[buffer], (*base[:front], *(expand(a + b) for a, b in zip(base[front:], index)))

    def visit(block: Block) -> Block:
        return Block(tuple(one(stmt) for stmt in block.stmts))

    def said(expr: Expr) -> Expr:
        return replaced(expr, symbols)

    def one(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            begin, end = said(stmt.begin), said(stmt.end)
            symbols[stmt.var] = var = values.symbol(stmt.var.name)
            return replace(stmt, var=var, begin=begin, end=end, body=visit(stmt.body))
        if isinstance(stmt, Stage):
            where = tuple(map_condition(each, said) for each in stmt.where)
            fresh = [(axis, values.symbol(axis.var.name), said(axis.value)) for axis in stmt.axes]
            symbols.update({axis.var: var for axis, var, _ in fresh})
            axes = tuple(replace(axis, var=var, value=value) for axis, var, value in fresh)
            label = unique_name(f"{name}_{stmt.name}", used)
            used.add(label)
            init = None if stmt.init is None else visit(stmt.init)
            return replace(stmt, name=label, axes=axes, where=where, init=init, body=visit(stmt.body))
        if isinstance(stmt, Guard):
            return replace(stmt, condition=map_condition(stmt.condition, said), body=visit(stmt.body))
        if isinstance(stmt, Alloc):
            local[stmt.buffer] = unique_name(f"{name}_{stmt.buffer}", held)
            held.add(local[stmt.buffer])
            return replace(stmt, buffer=local[stmt.buffer])
        return copied((stmt,), names, symbols, values, place)[0]

    return visit(impl.body)
