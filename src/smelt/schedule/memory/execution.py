"""The state of a schedule with grouped items: the kernels built so far, and the storage of buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sympy import Expr, Symbol

from smelt.loops.dependencies import bound_symbols, views_in
from smelt.loops.ir import Contractions, Extern, Graph, Scatter, StridedView
from smelt.nest.ir import Kernel, Run
from smelt.records import dataclass, field, replace
from smelt.runtime.plan import Plan
from smelt.schedule.grouping.fusion import Group
from smelt.schedule.grouping.items import ZERO, Work
from smelt.schedule.memory.arena import Arena
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.groups import ProductKernels
from smelt.symbolic import free_symbols


@dataclass(slots=True)
class Scheduled:
    """The result of a schedule, for code generation, the runtime and reports.

    ``graph``: the scheduled graph, every contraction with its kernel. ``alone``: runs that are no step of the
    plan, each the kernels of one contraction or attention.
    """

    plan: Plan
    runs: list[Run]
    alone: list[tuple[Run, Contractions]] = field(default_factory=list)
    graph: Graph = field(default_factory=Graph)
    arena_size: Expr = ZERO
    plain: list[Kernel] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)

    @property
    def all_runs(self) -> list[Run]:
        """All runs to be printed."""
        return [*self.runs, *(run for run, _ in self.alone)]

    def followed_by(self, others: Sequence[Scheduled]) -> Scheduled:
        """The schedule with the runs and kernels of others (bodies, constants) appended."""
        return replace(
            self,
            runs=[*self.runs, *(run for each in others for run in each.runs)],
            plain=[*self.plain, *(kernel for each in others for kernel in each.plain)],
            kernels=[*self.kernels, *(kernel for each in others for kernel in each.kernels)],
        )


@dataclass(frozen=True, slots=True)
class Grouped:
    """Items in groups, each of which becomes a kernel, in an order in which they can run."""

    work: Work
    groups: list[Group]
    products: ProductKernels


@dataclass(frozen=True, slots=True)
class Execution:
    """Groups and the kernels that are built of them.

    ``bodies``: the schedule of each body of control flow, by the id of its graph. ``built``: kernels by their
    group's position. ``roots``: a buffer and the buffer whose memory it has. ``storage``: ``given`` (an input
    or constant), ``fresh`` (a new tensor), ``aten`` (made by ATen) or ``arena``, by buffer. ``late``: sizes
    that are known only once a part of the graph has run; ``late_buffers`` depend on those without
    a limit.
    """

    work: Work
    groups: list[Group]
    products: ProductKernels
    bodies: Mapping[int, Scheduled]
    inputs: frozenset[str]
    outputs: frozenset[str]
    late: frozenset[Symbol]
    late_buffers: frozenset[str]
    readers: Mapping[str, set[int]]
    built: Mapping[int, BuiltKernel] = field(default_factory=dict)
    roots: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)
    arena: Arena = field(default_factory=lambda: Arena({}, ZERO))
    scheduled: Scheduled = field(default_factory=lambda: Scheduled(Plan((), (), (), 0, (), (), ()), []))

    @property
    def graph(self) -> Graph:
        return self.work.graph

    def is_external(self, name: str, position: int) -> bool:
        if name in self.work.outside or name in self.inputs:
            return True
        return any(reader != position for reader in self.readers.get(name, ()))

    def used(self) -> Iterator[tuple[int, set[str]]]:
        """The buffers that each group uses."""
        for position, group in enumerate(self.groups):
            names = set(self.built[position].buffers) if position in self.built else set(group.writes)
            names |= {read.buffer for item in group.items for read in item.reads}
            yield position, {self.root(name) for name in names - {None}}

    def root(self, name: str) -> str:
        """The buffer whose memory a buffer uses."""
        while name in self.roots:
            name = self.roots[name]
        return name

    def place_of(self, name: str) -> Expr:
        """The byte offset in the arena of a buffer's first element, after its leading halo."""
        buffer = self.work.buffers[name]
        return self.arena.offsets[name] + buffer.first * buffer.dtype.itemsize


def execution_of(grouped: Grouped, bodies: Mapping[int, Scheduled]) -> Execution:
    """The initial state of the groups, before any kernel is built."""
    graph = grouped.work.graph
    late = frozenset(symbol for node in graph.nodes for symbol in bound_symbols(node))
    return Execution(
        grouped.work,
        grouped.groups,
        grouped.products,
        bodies,
        inputs=frozenset(name for name in graph.inputs if isinstance(name, str)),
        outputs=frozenset(view.buffer for view in graph.outputs if isinstance(view, StridedView)),
        late=late,
        late_buffers=_late_buffers(grouped.work, late - graph.limits.keys()),
        readers=_readers(grouped.groups),
    )


def _readers(groups: list[Group]) -> dict[str, set[int]]:
    readers: dict[str, set[int]] = {}
    for position, group in enumerate(groups):
        for item in group.all_items:
            names = {read.buffer for read in item.reads}
            if isinstance(item.body, Scatter):
                names.add(item.body.base)
            for name in names:
                readers.setdefault(name, set()).add(position)
    return readers


def _late_buffers(work: Work, late: frozenset[Symbol]) -> frozenset[str]:
    """Buffers that cannot be in the arena: their size (or that of a view that ATen takes) is known only after
    a part of the graph has run.
    """
    if not late:
        return frozenset()
    found = {
        name
        for name, buffer in work.buffers.items()
        if not late.isdisjoint(free_symbols([*buffer.shape, *buffer.strides]))
    }
    bodies = [item.body for item in work.items if isinstance(item.body, Extern)]
    for view in views_in([[body.args, list(body.kwargs.values())] for body in bodies]):
        if not late.isdisjoint(free_symbols([*view.shape, *view.strides, view.offset])):
            found.add(view.buffer)
    return frozenset(found)
