"""Reductions that loop functions cannot express, as stages: an initial value and an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sympy import Expr, Integer, Symbol

from smelt.loops.ir import Graph, Index, Origin
from smelt.loops.record import Recorder
from smelt.loops.reductions import MODES, identity
from smelt.nest.ir import Axis, AxisKind, Block, For, Kernel, Stage, Stmt, Store
from smelt.nest.primitives.copies import value_names
from smelt.nest.stages import Fresh, Names, names_of, statements
from smelt.ops import ops
from smelt.records import dataclass
from smelt.symbolic.affine import replaced, symbols_in
from smelt.te.reductions import Combined
from smelt.te.value import Place

ZERO, ONE = Integer(0), Integer(1)


@dataclass(frozen=True, slots=True)
class Explicit:
    """A reduction into ``outs``, one for each output.

    ``axes``: the symbols of the tensor's axes; extents of ``reduce_shape`` may depend on these and on one
    another.
    """

    name: str
    outs: Sequence[str]
    of: Combined
    axes: tuple[Symbol, ...]
    shape: tuple[Expr, ...]
    reduce_shape: tuple[Expr, ...]
    place: Callable[[Index, Index], Place]
    labels: Names


def nest_of(what: Explicit, kernel: Kernel, graph: Graph, name: Callable[[str], str]) -> Stmt:
    """The stage in loops of its own; its names are unique in the kernel, ``name`` maps names of buffers.

    An axis whose extent depends on others belongs to a stage inside theirs, which has each of theirs at one
    value.
    """
    fresh = Fresh(names_of(kernel))
    reduced = [axis.symbol for axis in what.of.axes]
    kinds = dict.fromkeys(what.axes, AxisKind.SPATIAL) | dict.fromkeys(reduced, AxisKind.REDUCE)
    extents = dict(zip((*what.axes, *reduced), (*what.shape, *what.reduce_shape), strict=True))
    labels = dict(zip(extents, (*what.labels.spatial, *what.labels.reduce), strict=True))
    depths: dict[Symbol, int] = {}
    for symbol, extent in extents.items():  # an axis is defined before those that depend on it
        depths[symbol] = max((depths[each] + 1 for each in symbols_in(extent) if each in depths), default=0)
    levels: list[tuple[Axis, ...]] = []
    known: dict[Symbol, Expr] = {}
    for depth in range(max(depths.values(), default=0) + 1):
        here: dict[Symbol, Axis] = {}
        for symbol, extent in extents.items():
            label, sort = f"v_{labels[symbol]}", kinds[symbol]
            if depths[symbol] < depth:
                begin = known[symbol]
                here[symbol] = Axis(fresh(label), ONE, begin, sort, begin, label)
            elif depths[symbol] == depth:
                var = fresh(label)
                here[symbol] = Axis(var, replaced(extent, known), fresh(labels[symbol]), sort, label=label)
        known = {symbol: axis.var for symbol, axis in here.items()}
        levels.append(tuple(here.values()))
    index, at = ([known[symbol] for symbol in symbols] for symbols in (what.axes, reduced))
    dtypes = {buffer.name: buffer.dtype for buffer in graph.buffers.values()}
    sizes = {axis.var: axis.extent for level in levels for axis in level if axis.begin == 0}
    count = _values(kernel)

    def block(at: Index, values: Callable[[], Sequence[Any]], mode: str | None = None) -> Block:
        nonlocal count
        recorder = Recorder(dtypes, sizes, origin=Origin(f"te.{what.name}"), first=count)
        results = recorder.run(values)
        steps = statements(recorder.instructions)
        count = recorder.count
        stores = [Store(out, tuple(at), result.name, mode) for out, result in zip(what.outs, results)]
        return Block((*steps, *stores))

    nothing = [ZERO] * len(at)
    first = min((depths[symbol] for symbol in reduced), default=0)
    begun = [axis.var for axis in levels[first] if axis.kind is AxisKind.SPATIAL]
    init = block(begun, lambda: [each.run(what.place(begun, nothing)) for each in what.of.initial])
    kind = what.of.kind if len(what.outs) == 1 else None
    body = block(index, lambda: _next(what, index, at, kind), MODES[kind] if kind else None)
    for depth in reversed(range(len(levels))):
        own = what.name if depth == len(levels) - 1 else name(f"{what.name}_outer")
        nest: Stmt = Stage(own, levels[depth], body, init if depth == first else None)
        for axis in reversed(levels[depth]):
            if axis.begin == 0:
                label = axis.label.removeprefix("v_")
                nest = For(axis.value, ZERO, axis.extent, Block((nest,)), label=label)  # type: ignore[arg-type]
        body = Block((nest,))
    return nest


def _next(what: Explicit, index: Index, at: Index, kind: str | None) -> Sequence[Any]:
    """The stored value: with a mode the value itself, else the combiner's result with the old element."""
    of, place = what.of, what.place(index, at)

    def values() -> list[Any]:
        return [value.run(place) for value in of.values]

    if kind is not None:
        (value,) = of.values
        if of.where is None:
            return values()
        nothing = identity(kind, value.kind)
        return [ops.masked(of.where.run(place), lambda: value.run(place.inside()), nothing)]
    before = [ops.load(out, tuple(index)) for out in what.outs]
    if of.where is None:
        after = of.combine(place, before, values())
    else:
        mask = of.where.run(place)
        others = [initial.value if hasattr(initial, "value") else 0 for initial in of.initial]
        given = [
            ops.masked(mask, lambda v=v: v.run(place.inside()), other) for v, other in zip(of.values, others)
        ]
        after = [ops.where(mask, new, old) for new, old in zip(of.combine(place, before, given), before)]
    return after


def _values(kernel: Kernel) -> int:
    """A number that occurs in no value's name of the kernel."""
    return max((int(name[1:]) + 1 for name in value_names(kernel) if name[1:].isdigit()), default=0)
