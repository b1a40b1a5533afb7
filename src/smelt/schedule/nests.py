"""A fused group → its loop nest, plain: serial loops, every computation innermost.

A model's layers repeat: a group that is equal to an earlier one gets its nest, with buffers of its own.
`smelt.schedule.loops` transforms the loops.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sympy import Expr, Symbol

from smelt.loops.ir import Associative, Fold, Origin, Pointwise, Reduction, Scan, Scatter
from smelt.loops.ranges import relax_checks
from smelt.loops.record import RecordedValue, Recorder
from smelt.loops.straightline import MaskedInstruction, Recordable, prune
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Alloc,
    Block,
    Carry,
    Combination,
    For,
    Kernel,
    Let,
    Masked,
    Param,
    Stmt,
    Store,
    Update,
)
from smelt.nest.tree import names_in, symbols_of_params, variables_of
from smelt.records import dataclass, field, replace
from smelt.schedule.grouping.fusion import Group, Segment, loops_outside, writer_outer_space
from smelt.schedule.grouping.items import ZERO, Item, Work, extents_of, in_space, record_values
from smelt.schedule.names import kernel_name
from smelt.symbolic import contiguous_strides, flatten, free_symbols, loop_var, numel, reshape_index

SCRATCH_BYTES = 65536
"""Limit on the bytes of intermediate rows that one iteration of the shared loops keeps on the stack."""


@dataclass(slots=True)
class BuiltKernel:
    """A kernel and the graph buffer of each of its parameters.

    ``arranged``: its loops are final. ``origins``: `Call.origins`, where the kernel is shared.
    """

    kernel: Kernel
    buffers: tuple[str, ...]
    arranged: bool = False
    origins: tuple[Origin, ...] = ()


def spilled(work: Work, group: Group) -> set[str]:
    """Buffers used by the group alone that are too large (or of unknown size) for the stack."""
    found: set[str] = set()
    total = 0
    for name, shape in row_buffers(work, group).items():
        size = numel(shape) * work.buffers[name].dtype.itemsize
        if not size.is_Integer or total + int(size) > SCRATCH_BYTES:
            found.add(name)
        else:
            total += int(size)
    return found


def row_buffers(work: Work, group: Group) -> dict[str, tuple[Expr, ...]]:
    """The shape of each buffer that one iteration of the prefix writes and a later segment reads, if it has
    one.
    """
    rows = {}
    for number, segment in enumerate(group.segments):
        for item in segment.items:
            shape = writer_outer_space(item, group.space(item))[len(group.prefix) :]
            for name in item.writes:
                if name is None or not shape:
                    continue
                later = (m for s in group.segments[number + 1 :] for m in s.items)
                if any(read.buffer == name for member in later for read in member.reads):
                    rows[name] = tuple(shape)
    return rows


def notes_of(item: Item) -> tuple[tuple[str, Any], ...]:
    """The annotations of an item's innermost loop."""
    return (item.body.product or ()) if isinstance(item.body, Reduction) else ()


class Deduplicated:
    """Kernels by structure: equal computations on buffers of equal layout share one kernel."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.made: dict[Hashable, tuple[BuiltKernel, Sequence[str]]] = {}

    def key(self, what: Hashable, names: Sequence[str]) -> Hashable:
        """A key, equal for kernels of equal structure (``what``) on numbered buffers; ``names``: the buffers
        in order.
        """
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        buffers = [self.work.buffers[name] for name in numbers]
        lie = tuple((each.dtype, each.shape, each.strides, each.halo) for each in buffers)
        hold = tuple(self.work.contents.get(name) for name in numbers)
        return what, tuple(numbers[name] for name in names), lie, hold

    def kernel(
        self,
        what: Hashable,
        names: Sequence[str],
        title: str,
        origins: tuple[Origin, ...],
        build: Callable[[], BuiltKernel],
    ) -> BuiltKernel:
        """The kernel that ``build`` makes, or has made for an equal `key`, under a title of its own;
        ``names`` has all buffers that it may use.
        """
        key = self.key(what, names)
        if key not in self.made:
            self.made[key] = build(), names
        built, before = self.made[key]
        mine = dict(zip(before, names, strict=True))
        kernel = replace(built.kernel, name=title, origins=origins)
        return replace(built, kernel=kernel, buffers=tuple(mine[buffer] for buffer in built.buffers))


class Nests:
    """The nests of a graph's groups."""

    def __init__(self, work: Work) -> None:
        self.work, self.once = work, Deduplicated(work)

    def build(self, group: Group, stored: set[str]) -> BuiltKernel:
        """The nest of ``group``; ``stored``: the buffers that must be in memory after the run."""

        def what(item: Item) -> tuple[Any, ...]:
            written = tuple(None if name is None else name in stored for name in item.writes)
            return item.code, item.sizes, item.order, item.outer, written, notes_of(item)

        def build() -> BuiltKernel:
            return KernelBuilder(self.work, group, stored).build()

        segments = tuple((segment.sizes, tuple(map(what, segment.items))) for segment in group.segments)
        names = [name for segment in group.segments for item in segment.items for name in item.buffers]
        places = origins_of(self.work, group)
        numbers = tuple(places[each] for each in _each_origin(self.work, group))
        structure = (group.prefix, segments, numbers)
        return self.once.kernel(structure, names, kernel_name(places), tuple(places), build)


def origins_of(work: Work, group: Group) -> dict[Origin, int]:
    """The origins of the group's computations, and their positions."""
    return {origin: place for place, origin in enumerate(dict.fromkeys(_each_origin(work, group)))}


def _each_origin(work: Work, group: Group) -> Iterator[Origin]:
    for item in (item for segment in group.segments for item in segment.items):
        yield from (work.origins[name] for name in item.inlined)
        yield item.node.origin


class KernelBuilder:
    """Builds the nest of one group; see `Nests.build`."""

    def __init__(self, work: Work, group: Group, stored: set[str]) -> None:
        self.work, self.group = work, group
        self.stored = stored
        self.places = origins_of(work, group)
        self.rows = {name: shape for name, shape in row_buffers(work, group).items() if name not in stored}
        self.params: dict[str, str] = {}
        self.written: set[str] = set()
        self.scratch: dict[str, str] = {}
        self.prefix_vars = tuple(loop_var(f"i{d}") for d in range(len(group.prefix)))
        self.variables = len(group.prefix)
        self.values = 0
        self.available: dict[str, RecordedValue] = {}
        self.foreign: list[RecordedValue] = []
        self.dtypes = dict(work.dtypes) if self.rows else work.dtypes

    def build(self) -> BuiltKernel:
        stmts: list[Stmt] = []
        for segment in self.group.segments:
            stmts += self._segment(segment)
        allocs: list[Stmt] = [
            Alloc(local, self.work.buffers[buffer].dtype, self.rows[buffer])
            for buffer, local in self.scratch.items()
        ]
        body = Block((*allocs, *stmts))
        for variable, size in reversed(list(zip(self.prefix_vars, self.group.prefix))):
            body = Block((For(variable, ZERO, size, body),))
        params = []
        for buffer, param in self.params.items():
            info = self.work.buffers[buffer]
            params.append(Param(param, info.dtype, info.shape, info.strides, buffer in self.written))
        kernel = Kernel("", tuple(params), size_symbols(body, params), body)
        return BuiltKernel(kernel, tuple(self.params))

    # -- one segment ----------------------------------------------------------------------------------------

    def _segment(self, segment: Segment) -> list[Stmt]:
        inner = tuple(loop_var(f"i{self.variables + k}") for k in range(len(segment.sizes)))
        self.variables += len(inner)
        state = _SegmentState(segment, (*self.prefix_vars, *inner), (*self.group.prefix, *segment.sizes))
        recorder = Recorder(self.dtypes, extents_of(state.variables, state.space), first=self.values)
        for value in self.foreign:
            recorder.adopt(value)
        recorder.load_hook = lambda buffer, index: self._load(recorder, state, buffer, index)
        for item in segment.items:
            recorder.origin, recorder.of = item.node.origin, (self.places[item.node.origin],)
            state.item = item
            self._record(recorder, state, item)
        self.values = recorder.count
        scalar = len(self.group.prefix)
        needed = [e.value for e in state.effects if isinstance(e, (Store, Update, Advance))]
        needed += [value.name for value, depth in state.made.values() if depth == scalar]
        places = free_symbols(expr for e in state.effects if isinstance(e, Store) for expr in e.index)
        pruned = prune(recorder.instructions, needed, places)
        outside = [value.name for value in self.foreign]
        outside += [value.name for scan in state.scans for _, value, _ in scan.parts]
        relaxed = relax_checks(pruned, recorder.extents, self.work.contents, outside)
        lets = [to_statement(step, recorder.shared) for step in relaxed]
        handed: list[Stmt] = [
            Let(value.name, value.dtype, "read", (carry, 0), of=scan.of)
            for scan in state.scans
            for carry, value, _ in scan.parts
        ]
        body: tuple[Stmt, ...] = (*handed, *lets, *state.effects)
        body = self._finish(state, body, len(state.space))
        notes = tuple(note for item in segment.items for note in notes_of(item))
        for depth in range(len(state.space) - 1, len(self.group.prefix) - 1, -1):
            around = (state.variables[depth], ZERO, state.space[depth], Block(body))
            body = (For(*around, notes=notes),)
            notes = ()
            body = self._finish(state, body, depth)
        body = tuple(self._rename(stmt) for stmt in body)
        for buffer, (value, depth) in state.made.items():
            if depth == scalar:
                self.available[buffer] = value
                self.foreign.append(value)
        return list(body)

    def _record(self, recorder: Recorder, state: _SegmentState, item: Item) -> None:
        index = in_space(item, state.space, state.variables)
        index = [recorder.simplified(expr) for expr in index]
        body = item.body
        if isinstance(body, (Scan, Fold)):
            self._carrying(recorder, state, item, body, index)
            return
        value = record_values(item, index, recorder)
        if isinstance(body, Reduction):
            outer = len(writer_outer_space(item, state.space))
            acc = f"acc{self.values}_{len(state.reductions)}"
            position = None
            if body.kind in ("argmax", "argmin"):
                position = flatten(index[item.rank :], contiguous_strides(body.reduce_shape))
            state.effects.append(Update(acc, value.name, position))
            results = []
            for number, name in enumerate(item.writes):
                if name is None:
                    continue
                result = recorder.reserve(self.work.buffers[name].dtype)
                results.append((acc, number, name, result))
                state.made[name] = (result, outer)
            opened = Accumulate(acc, body.kind, value.dtype)
            state.reductions.append(_Open(opened, outer, results, tuple(index[: item.rank]), recorder.of))
            return
        name = item.writes[0]
        assert name is not None
        if isinstance(body, Scatter):
            place = recorder.run(body.place, tuple(index))
            state.effects.append(Store(name, tuple(place), value.name, body.mode))
            self.written.add(name)
            return
        assert isinstance(body, Pointwise)
        self._made(state, name, value, index)

    def _carrying(
        self, recorder: Recorder, state: _SegmentState, item: Item, body: Scan | Fold, index: Sequence[Expr]
    ) -> None:
        """An iteration of a scan or fold: its carried values, the new values, and the update."""
        number = len(state.scans)
        opened = _Carried(loops_outside(item, state.space), [], recorder.of)
        for part, (dtype, initial) in enumerate(body.state):
            carry = f"carry{self.values}_{number}_{part}"
            opened.parts.append((carry, recorder.reserve(dtype), initial))
        state.scans.append(opened)
        made = record_values(item, index, recorder, [value for _, value, _ in opened.parts])
        after, results = made if isinstance(body, Scan) else (made, ())
        by = _combination(recorder, body, opened, index, after)
        for (carry, _, _), part_after in zip(opened.parts, after, strict=True):
            state.effects.append(Advance(carry, part_after.name, by))
        if isinstance(body, Fold):
            kept = []
            for (carry, handed, _), written in zip(opened.parts, item.writes, strict=True):
                if written is not None:
                    last = recorder.reserve(handed.dtype)
                    kept.append((carry, 0, written, last))
                    state.made[written] = (last, opened.outer)
            state.reductions.append(_Open(None, opened.outer, kept, tuple(index[: item.rank]), recorder.of))
            return
        for name, result in zip(item.writes, results, strict=True):
            if name is not None:
                self._made(state, name, result, index)

    def _made(self, state: _SegmentState, name: str, value: RecordedValue, index: Sequence[Expr]) -> None:
        """An element of ``name`` computed in the innermost loops, and its destination."""
        state.made[name] = (value, len(state.space))
        if name in self.stored:
            state.effects.append(Store(name, tuple(index), value.name))
            self.written.add(name)
        elif name in self.rows:
            row = state.variables[len(self.group.prefix) :]
            state.effects.append(Store(self._scratch(name), tuple(row), value.name))

    def _finish(self, state: _SegmentState, body: tuple[Stmt, ...], depth: int) -> tuple[Stmt, ...]:
        """Puts the accumulators of reductions over the loops from ``depth`` on around the body, and stores
        their results.
        """
        opened: list[Stmt] = [
            Carry(carry, value.dtype, initial)
            for scan in state.scans
            if scan.outer == depth
            for carry, value, initial in scan.parts
        ]
        closed: list[Stmt] = []
        for open_ in state.reductions:
            if open_.outer != depth:
                continue
            if open_.accumulator is not None:
                opened.append(open_.accumulator)
            for source, number, name, result in open_.results:
                closed.append(Let(result.name, result.dtype, "read", (source, number), of=open_.of))
                if name in self.stored:
                    closed.append(Store(name, open_.index, result.name))
                    self.written.add(name)
                elif name in self.rows:
                    row = state.variables[len(self.group.prefix) : depth]
                    closed.append(Store(self._scratch(name), tuple(row), result.name))
        return (*opened, *body, *closed)

    # -- loads ----------------------------------------------------------------------------------------------

    def _load(self, recorder: Recorder, state: _SegmentState, buffer: str, index: tuple[Expr, ...]) -> Any:
        inlined = self.work.inlined.get(buffer)
        if inlined is not None:
            reader, recorder.of = recorder.of, (self.places[self.work.origins[buffer]],)
            value = recorder.inlined(buffer, index, inlined)
            recorder.of = reader
            return value
        if buffer in state.made and not isinstance(state.item.body, Scatter):
            return state.made[buffer][0]
        if buffer in self.available and buffer in self.group.writes:
            return self.available[buffer]
        if buffer in self.rows and buffer in self.scratch:
            writer = self.group.writes[buffer][0]
            row = self._row(writer, index, state)
            return recorder.load(self.scratch[buffer], row)
        return None

    def _row(self, writer: Item, index: tuple[Expr, ...], state: _SegmentState) -> tuple[Expr, ...]:
        """The scratch index of an element: its writer's coordinates inside the prefix."""
        writer_space = self.group.space(writer)
        outer_sizes = writer.written_sizes
        coordinates = writer.written_coordinates(index)
        space = writer_outer_space(writer, writer_space)
        if tuple(space) != tuple(outer_sizes):
            coordinates = reshape_index(
                space, outer_sizes, coordinates, extents_of(state.variables, state.space)
            )
        return tuple(coordinates[len(self.group.prefix) :])

    def _scratch(self, buffer: str) -> str:
        if buffer not in self.scratch:
            self.scratch[buffer] = f"row{len(self.scratch)}"
            self.dtypes[self.scratch[buffer]] = self.work.buffers[buffer].dtype
        return self.scratch[buffer]

    # -- names ----------------------------------------------------------------------------------------------

    def _rename(self, stmt: Stmt) -> Stmt:
        """Buffers → parameters, numbered in order of appearance so that equal kernels are equal."""
        if isinstance(stmt, For):
            return replace(stmt, body=Block(tuple(self._rename(s) for s in stmt.body.stmts)))
        if isinstance(stmt, Masked):
            body = Block(tuple(self._rename(s) for s in stmt.body.stmts))
            return Masked(stmt.name, stmt.dtype, stmt.mask, body, stmt.result, stmt.other)
        if isinstance(stmt, Store):
            return Store(self._param(stmt.buffer), stmt.index, stmt.value, stmt.mode)
        if isinstance(stmt, Let) and stmt.op == "load":
            return replace(stmt, args=(self._param(stmt.args[0]), stmt.args[1]))
        return stmt

    def _param(self, buffer: str) -> str:
        if buffer in self.scratch.values():
            return buffer
        if buffer not in self.params:
            self.params[buffer] = f"p{len(self.params)}"
        return self.params[buffer]


@dataclass(slots=True)
class _Open:
    """A reduction or fold under construction: its accumulator (a fold's carries are with the scans), the
    depth at which it is complete, its results (accumulator or carry, number, buffer, value).
    """

    accumulator: Accumulate | None
    outer: int
    results: list[tuple[str, int, str, RecordedValue]]
    index: tuple[Expr, ...]
    of: tuple[int, ...]


@dataclass(slots=True)
class _Carried:
    """A scan or fold under construction: the loops around its own; (carry, carried value, initial value)."""

    outer: int
    parts: list[tuple[str, RecordedValue, float | int | bool]]
    of: tuple[int, ...]


def _combination(
    recorder: Recorder,
    body: Scan | Fold,
    opened: _Carried,
    index: Sequence[Expr],
    after: Sequence[RecordedValue],
) -> Combination | None:
    """How an iteration's state comes about, if the values before it, of it and after it are all distinct."""
    if not isinstance(body.inner_fn, Associative):
        return None
    names = [value.name for value in after]
    elements = [value.name for value in recorder.run(body.inner_fn.element, tuple(index))]
    before = [value.name for _, value, _ in opened.parts]
    if len({*names, *elements, *before}) < 3 * len(names):
        return None
    carries = tuple(carry for carry, _, _ in opened.parts)
    return Combination(carries, tuple(elements), tuple(names), body.inner_fn.combine)


@dataclass(slots=True)
class _SegmentState:
    segment: Segment
    variables: tuple[Symbol, ...]
    space: tuple[Expr, ...]
    item: Item = None  # type: ignore[assignment]
    effects: list[Stmt] = field(default_factory=list)
    made: dict[str, tuple[RecordedValue, int]] = field(default_factory=dict)
    reductions: list[_Open] = field(default_factory=list)
    scans: list[_Carried] = field(default_factory=list)


def to_statement(step: Recordable, shared: Mapping[str, tuple[int, ...]] = MappingProxyType({})) -> Stmt:
    """A recorded instruction as a nest statement; ``shared``: `Recorder.shared`."""
    if isinstance(step, MaskedInstruction):
        body = Block(tuple(to_statement(inner, shared) for inner in step.body))
        return Masked(step.name, step.dtype, step.mask, body, step.result, step.other)
    return replace(step, of=shared[step.name]) if step.name in shared else step


def size_symbols(body: Block, params: Sequence[Param]) -> tuple[Symbol, ...]:
    """The size symbols that a kernel needs: all symbols that are neither loop variables nor indirect
    indices.
    """
    found = names_in(body).symbols | symbols_of_params(params)
    return tuple(sorted(found - variables_of(body), key=str))
