"""Reductions that no loop function says, as stages: what they begin with, and how a value changes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sympy import Expr, Integer

from smelt.loops.ir import Graph, Index, Origin
from smelt.loops.record import Recorder
from smelt.loops.reductions import MODES, identity
from smelt.nest.ir import Axis, AxisKind, Block, For, Kernel, Let, Masked, Stage, Stmt, Store
from smelt.nest.stages import Fresh, Names, names_of, statements
from smelt.nest.tree import walk
from smelt.ops import ops
from smelt.records import dataclass, replace
from smelt.te.reductions import Combined
from smelt.te.value import Place


@dataclass(frozen=True, slots=True)
class Explicit:
    """A reduction into ``outs``, one for each output."""

    name: str
    outs: Sequence[str]
    of: Combined
    shape: tuple[Expr, ...]
    reduce_shape: tuple[Expr, ...]
    place: Callable[[Index, Index], Place]
    labels: Names


def nest_of(what: Explicit, kernel: Kernel, graph: Graph) -> Stmt:
    """The stage in loops of its own; its names are none of the kernel's."""
    fresh = Fresh(names_of(kernel))
    axes = [
        Axis(fresh(f"v_{label}"), extent, Integer(0), kind, label=f"v_{label}")
        for labels, extents, kind in (
            (what.labels.spatial, what.shape, AxisKind.SPATIAL),
            (what.labels.reduce, what.reduce_shape, AxisKind.REDUCE),
        )
        for label, extent in zip(labels, extents)
    ]
    index = [axis.var for axis in axes if axis.kind is AxisKind.SPATIAL]
    at = [axis.var for axis in axes if axis.kind is AxisKind.REDUCE]
    extents = {axis.var: axis.extent for axis in axes}
    dtypes = {buffer.name: buffer.dtype for buffer in graph.buffers.values()}
    count = _values(kernel)

    def block(values: Callable[[], Sequence[Any]], mode: str | None = None) -> Block:
        nonlocal count
        recorder = Recorder(dtypes, extents, origin=Origin(f"te.{what.name}"), first=count)
        results = recorder.run(values)
        steps = statements(recorder.instructions)
        count = recorder.count
        stores = [Store(out, tuple(index), result.name, mode) for out, result in zip(what.outs, results)]
        return Block((*steps, *stores))

    nothing = [Integer(0)] * len(at)
    init = block(lambda: [first.run(what.place(index, nothing)) for first in what.of.initial])
    kind = what.of.kind if len(what.outs) == 1 else None
    body = block(lambda: _next(what, index, at, kind), MODES[kind] if kind else None)
    axes = [replace(axis, value=fresh(axis.label.removeprefix("v_"))) for axis in axes]
    nest: Stmt = Stage(what.name, tuple(axes), body, init)
    for axis in reversed(axes):
        assert axis.value.is_Symbol
        nest = For(axis.value, Integer(0), axis.extent, Block((nest,)), label=axis.label.removeprefix("v_"))  # type: ignore[arg-type]
    return nest


def _next(what: Explicit, index: Index, at: Index, kind: str | None) -> Sequence[Any]:
    """What is stored: with a mode the value itself, else what the combiner makes of it and what is there."""
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
    """A number that no value of the kernel has in its name."""
    names = [s.name for s in walk(kernel.body) if isinstance(s, (Let, Masked))]
    return max((int(name[1:]) + 1 for name in names if name[1:].isdigit()), default=0)
