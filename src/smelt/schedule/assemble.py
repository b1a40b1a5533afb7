"""Groups → native runs and the plan: which buffer lives where, what is called in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.config import Config
from smelt.loops.dependencies import bound_symbols, views_in
from smelt.loops.ir import (
    Attentions,
    Bind,
    Body,
    Buffer,
    Check,
    Contraction,
    Contractions,
    Extern,
    Graph,
    Native,
    Scatter,
    Sort,
    StridedView,
)
from smelt.nest.ir import Argument, Call, InArena, Kernel, Run
from smelt.nest.tree import accesses
from smelt.records import dataclass, field, replace
from smelt.runtime.externs import gives_fresh_memory, has_out_variant
from smelt.runtime.plan import (
    AllocStep,
    ArenaTensor,
    CheckStep,
    ExternStep,
    FreeStep,
    NativeStep,
    Plan,
    Ref,
    Size,
    SizeRef,
    SizeStep,
    Step,
    TensorSpec,
    ViewRef,
)
from smelt.schedule.attention import AttentionKernels
from smelt.schedule.borders import with_zeros
from smelt.schedule.fusion import Group
from smelt.schedule.items import ZERO, Item, Work
from smelt.schedule.loops import Target, arrange
from smelt.schedule.memory import Arena, Lifetime, plan_arena
from smelt.schedule.native import native_kernel
from smelt.schedule.nests import BuiltKernel, spilled
from smelt.schedule.product_groups import ProductKernels
from smelt.schedule.reuse import reuse_inputs
from smelt.schedule.sorts import sort_kernel
from smelt.symbolic import free_symbols, numel, same
from smelt.symbolic.affine import expand
from smelt.symbolic.solving import Solution, solve_sizes
from smelt.symbolic.text import python_text

STREAMED_BYTES = 2**24
"""Results of this size and more are stored past the caches: their beginning has left these at their end."""


@dataclass(slots=True)
class Scheduled:
    """What code generation and the runtime need, and what the report says about it.

    ``graph``: what was scheduled, every contraction with its kernel. ``alone``: runs that are no step of
    the plan, each of what one contraction or attention takes.
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
        """Everything to be printed."""
        return [*self.runs, *(run for run, _ in self.alone)]


class Assembler:
    """Turns fused groups into runs and a plan."""

    def __init__(
        self,
        work: Work,
        groups: list[Group],
        products: ProductKernels,
        config: Config,
        target: Target,
        bodies: Mapping[int, Scheduled] | None = None,
        prefix: str = "",
        alone: Sequence[Contractions] = (),
        ready: Callable[[Kernel], None] | None = None,
    ) -> None:
        """``bodies``: what was made of each body of control flow, by the id of its graph; ``prefix`` begins
        the names of this graph's runs; ``alone``: what gets a run of its own, besides; ``ready`` is called
        with kernels as soon as they are as they will run.
        """
        self.work, self.groups, self.products = work, groups, products
        self.config, self.target = config, target
        self.bodies, self.prefix, self.alone = bodies or {}, prefix, alone
        self.ready = ready or (lambda kernel: None)
        self.graph = work.graph
        self.inputs = {name for name in self.graph.inputs if isinstance(name, str)}
        self.outputs = {view.buffer for view in self.graph.outputs if isinstance(view, StridedView)}
        self.late = {symbol for node in self.graph.nodes for symbol in bound_symbols(node)}
        """Sizes that are known only once a part of the graph has run."""
        self.late_buffers = self._late_buffers()
        self.readers = self._readers()
        self.built: dict[int, BuiltKernel] = {}
        self.roots: dict[str, str] = {}
        self.arena_views: dict[tuple[str, tuple[Any, ...]], str] = {}
        self.arena_tensors: list[ArenaTensor] = []

    def run(self) -> Scheduled:
        attentions = AttentionKernels(self.work, self.target)
        for position, group in enumerate(self.groups):
            if group.is_extern:
                continue
            stored = {name for name in group.writes if self._is_external(name, position)}
            stored |= spilled(self.work, group) - stored
            if group.product is not None:
                self.built[position] = self.products.build(group, stored)
            elif isinstance(group.items[0].body, Attentions):
                self.built[position] = attentions.build(group.items[0], stored)
            elif isinstance(group.items[0].body, Sort):
                self.built[position] = sort_kernel(self.work, group.items[0])
            elif isinstance(group.items[0].body, Native):
                self.built[position] = native_kernel(group.items[0], self.target)
            else:
                self.built[position] = self.products.nests.build(group, stored)
            if self.built[position].arranged:
                self._fill_borders(position)
                self.ready(self.built[position].kernel)
        self._share_overwritten()
        self.homes = self._homes()
        self._reuse()
        self._stream()
        for position, built in self.built.items():
            if not built.arranged:
                self._fill_borders(position)
        self.arena = self._place()
        arranged: dict[Kernel, Kernel] = {}
        scheduled = Scheduled(Plan((), (), (), 0, (), (), ()), [])
        for built in self.built.values():
            plain = built.kernel
            key = replace(plain, name="")
            kernel = arranged.get(key)
            if kernel is None:
                scheduled.plain.append(plain)
                ready = built.arranged
                kernel = plain if ready else arrange(plain, self.target, self.config, self.graph.hints)
                arranged[key] = kernel
                scheduled.kernels.append(kernel)
                self.ready(kernel)
            built.kernel = kernel
        scheduled.arena_size = self.arena.size
        scheduled.runs, steps = self._steps()
        for number, (body, kernels) in enumerate(self._runs_alone()):
            run, _ = self._native(f"{self.prefix}alone{number}", kernels)
            scheduled.alone.append((run, body))
        for inner in self.bodies.values():
            scheduled.runs += inner.runs
            scheduled.plain += inner.plain
            scheduled.kernels += inner.kernels
        outputs = self._outputs()
        scheduled.plan = Plan(
            inputs=tuple(_input_name(each) for each in self.graph.inputs),
            symbols=tuple(sorted(symbol.name for symbol in self._symbols())),
            constants=tuple(self.graph.constants),
            arena_bytes=_size(self.arena.size),
            arena=tuple(self.arena_tensors),
            steps=(*self._derived_sizes(), *steps),
            outputs=outputs,
            shape_symbols=self._shape_symbols(),
            lazy=tuple(
                self._spec(self.graph.buffers[name])
                for name in self.graph.inputs
                if isinstance(name, str) and self.graph.buffers[name].paired
            ),
        )
        return scheduled

    def _fill_borders(self, position: int) -> None:
        self.built[position] = with_zeros(self.built[position], self.work.buffers, self.target)

    # -- who needs what --------------------------------------------------------------------------------------

    def _readers(self) -> dict[str, set[int]]:
        readers: dict[str, set[int]] = {}
        for position, group in enumerate(self.groups):
            for item in group.everything:
                names = {read.buffer for read in item.reads}
                if isinstance(item.body, Scatter):
                    names.add(item.body.base)
                for name in names:
                    readers.setdefault(name, set()).add(position)
        return readers

    def _is_external(self, name: str, position: int) -> bool:
        if name in self.work.outside or name in self.inputs:
            return True
        return any(reader != position for reader in self.readers.get(name, ()))

    def _symbols(self) -> set[Symbol]:
        """Size symbols that something in the plan needs."""
        exprs: list[Expr] = []
        for buffer in self.work.buffers.values():
            exprs += [*buffer.shape, *buffer.strides]
        for value in self.graph.outputs:
            if isinstance(value, StridedView):
                exprs += [*value.shape, *value.strides, value.offset]
            elif isinstance(value, Expr):
                exprs.append(value)
        given = {each for each in self.graph.inputs if isinstance(each, Symbol)}
        solved = {each.size for each in self._solved() if not each.is_plain}
        return free_symbols(exprs) | given | self.late | solved

    def _solved(self) -> list[Solution]:
        """The sizes that come with no input of their own, from those of the input tensors."""
        given = {each for each in self.graph.inputs if isinstance(each, Symbol)} | self.late
        names = [name for name in self.graph.inputs if isinstance(name, str)]
        return solve_sizes([(name, self.work.buffers[name].shape) for name in names], given)

    def _shape_symbols(self) -> tuple[tuple[str, str, int], ...]:
        """Where to read sizes: a dimension of an input tensor."""
        return tuple(
            (each.symbol.name if each.is_plain else each.size.name, each.tensor, each.dim)
            for each in self._solved()
        )

    def _derived_sizes(self) -> list[SizeStep]:
        """The sizes that follow from those: ``h``, where the input tensor has ``2*h``."""
        return [SizeStep(each.symbol.name, _size(each.value)) for each in self._solved() if not each.is_plain]

    # -- where buffers live
    # -----------------------------------------------------------------------------------

    def _homes(self) -> dict[str, str]:
        """Buffer → ``given`` (input, constant), ``fresh`` (a new tensor), ``aten`` (made by ATen) or
        ``arena``.
        """
        homes = dict.fromkeys((*self.inputs, *self.graph.constants), "given")
        for position, group in enumerate(self.groups):
            if group.is_extern:
                item = group.items[0]
                for name in item.writes:
                    if name in self.roots:
                        homes[name] = homes[self._root(name)]
                    elif name is not None:
                        homes[name] = "arena" if self._writes_out(item, name) else "aten"
            else:
                for name in self.built[position].buffers:
                    if name in group.writes and name not in homes:
                        alone = name in self.outputs or name in self.late_buffers
                        assert not (alone and self.work.buffers[name].border), f"{name} has no border here"
                        homes[name] = "fresh" if alone else "arena"
        return homes

    def _late_buffers(self) -> set[str]:
        """Buffers that cannot live in the arena: their size (or that of a view that ATen takes) is known only
        once a part of the graph has run.
        """
        if not self.late:
            return set()
        found = {
            name
            for name, buffer in self.work.buffers.items()
            if not self.late.isdisjoint(free_symbols([*buffer.shape, *buffer.strides]))
        }
        bodies = [item.body for item in self.work.items if isinstance(item.body, Extern)]
        for view in views_in([[body.args, list(body.kwargs.values())] for body in bodies]):
            if not self.late.isdisjoint(free_symbols([*view.shape, *view.strides, view.offset])):
                found.add(view.buffer)
        return found

    def _share_overwritten(self) -> None:
        """What a call overwrites and what it leaves there are one place in memory."""
        for item in self.work.items:
            body = item.body
            if isinstance(body, Extern) and body.overwrites:
                for before, after in zip(body.overwrites, item.writes[-len(body.overwrites) :]):
                    assert after is not None
                    if after == before:
                        continue  # an input that ATen overwrites
                    self.roots[after] = before
                    if after in self.outputs:
                        self.outputs.add(before)
                    if after in self.late_buffers:
                        self.late_buffers.add(before)

    def _writes_out(self, item: Item, name: str) -> bool:
        """Whether an ATen call can write its result into the arena."""
        body = item.body
        assert isinstance(body, Extern)
        if name in self.outputs or name in self.late_buffers:
            return False
        if len(item.writes) != 1 or body.reason is not None:
            return False
        if body.sizes:  # as long as what it finds, whatever tracing takes for granted
            return False
        return has_out_variant(body.target) and _is_contiguous(self.work.buffers[name])

    def _used(self) -> Iterator[tuple[int, set[str]]]:
        """The buffers that each group uses."""
        for position, group in enumerate(self.groups):
            names = set(self.built[position].buffers) if position in self.built else set(group.writes)
            names |= {read.buffer for item in group.items for read in item.reads}
            yield position, {self._root(name) for name in names - {None}}

    def _reuse(self) -> None:
        """Let kernels write where inputs lie that are dead after them."""
        last = {name: position for position, names in self._used() for name in names}
        first = {name: position for position, names in reversed(list(self._used())) for name in names}
        fresh = self._fresh_results()
        for position, built in self.built.items():

            def may_overwrite(result: str, source: str, position: int = position) -> bool:
                root = self._root(source)
                if not self._alike(result, root):
                    return False
                if last[root] != position or root in self.outputs or self.homes[result] == "given":
                    return False
                if first[result] != position:  # it holds something already, as what a scatter writes into
                    return False
                if self.homes[root] == "aten":
                    return root in fresh
                return self.homes[root] == "arena" and result not in self.outputs

            self.built[position], taken = reuse_inputs(built, may_overwrite)
            for result, source in taken.items():
                root = self._root(source)
                self.roots[result] = root
                self.homes[result] = self.homes[root]
                last[root] = last.pop(result)
                if result in self.outputs:
                    self.outputs.add(root)

    def _alike(self, left: str, right: str) -> bool:
        """Whether two buffers have the same border, if any: around one and the same shape."""
        a, b = self.work.buffers[left], self.work.buffers[right]
        return not (a.border or b.border) or (a.shape, a.strides, a.border) == (b.shape, b.strides, b.border)

    def _stream(self) -> None:
        """Have kernels store large results past the caches, where nothing in the graph reads them again."""
        for position, built in self.built.items():
            read = {buffer for buffer, _, stores in accesses(built.kernel.body) if not stores}
            params = tuple(
                replace(param, streamed=param.name not in read and self._is_streamed(buffer))
                for param, buffer in zip(built.kernel.params, built.buffers)
            )
            self.built[position] = replace(built, kernel=replace(built.kernel, params=params))

    def _is_streamed(self, name: str) -> bool:
        if self.homes.get(name) != "fresh" or name in self.readers or self._root(name) != name:
            return False
        buffer = self.work.buffers[name]
        return self.work.hint_product(buffer.shape) * buffer.dtype.itemsize >= STREAMED_BYTES

    def _fresh_results(self) -> set[str]:
        """What ATen calls give in memory that nothing else refers to."""
        return {
            name
            for group in self.groups
            if isinstance(body := group.items[0].body, Extern) and gives_fresh_memory(body.target)
            for name in group.writes
            if name is not None
        }

    def _root(self, name: str) -> str:
        """The buffer in whose place a buffer lies."""
        while name in self.roots:
            name = self.roots[name]
        return name

    def _place(self) -> Arena:
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for position, names in self._used():
            for name in sorted(names):
                if self.homes.get(name) == "arena":
                    first.setdefault(name, position)
                    last[name] = position
        lifetimes = []
        for name, start in first.items():
            buffer = self.work.buffers[name]
            size = expand(numel(buffer.whole_shape) * buffer.dtype.itemsize)
            lifetimes.append(Lifetime(name, size, start, last[name]))
        return plan_arena(lifetimes, self.graph.hints)

    def _place_of(self, name: str) -> Expr:
        """Where in the arena a buffer's first element is, in bytes: behind what its border has before it."""
        buffer = self.work.buffers[name]
        return self.arena.offsets[name] + buffer.first * buffer.dtype.itemsize

    # -- steps
    # ------------------------------------------------------------------------------------------------

    def _steps(self) -> tuple[list[Run], list[Step]]:
        runs: list[Run] = []
        steps: list[Step] = []
        pending: list[BuiltKernel] = []
        made: set[str] = set()
        uses: list[set[str]] = []
        names = dict(self._used())

        def flush() -> None:
            if not pending:
                return
            run, fresh = self._native(f"{self.prefix}run{len(runs)}", pending)
            for name in fresh:
                if name not in made:
                    made.add(name)
                    steps.append(AllocStep(self._spec(self.work.buffers[name])))
                    uses.append(set())
            runs.append(run)
            steps.append(NativeStep(run.name, run.arguments, tuple(symbol.name for symbol in run.sizes)))
            uses.append(set(run.arguments))
            pending.clear()

        for position, group in enumerate(self.groups):
            if not group.is_extern:
                if any(param.written for param in self.built[position].kernel.params):
                    pending.append(self.built[position])
                continue
            body = group.items[0].body
            if isinstance(body, Extern):
                flush()
            steps.append(self._host(group.items[0]))
            uses.append(names[position])
        flush()
        return runs, self._with_frees(steps, uses)

    def _with_frees(self, steps: list[Step], uses: list[set[str]]) -> list[Step]:
        """Drop tensors that nobody needs any more, so that ATen can have their memory for what comes."""
        last: dict[str, int] = {}
        for number, names in enumerate(uses):
            for name in names:
                last[name] = number
        result: list[Step] = []
        for number, step in enumerate(steps):
            result.append(step)
            done = tuple(
                sorted(
                    name
                    for name in uses[number]
                    if last[name] == number
                    and self.homes.get(name) in ("aten", "given", "fresh")
                    and name not in self.graph.constants
                    and name not in self.outputs
                )
            )
            if done and number + 1 < len(steps):
                result.append(FreeStep(done))
        return result

    def _native(self, name: str, kernels: Sequence[BuiltKernel]) -> tuple[Run, list[str]]:
        arguments: list[str] = []
        calls: list[Call] = []
        fresh: list[str] = []
        for built in kernels:
            args: list[InArena | Argument] = []
            for buffer in map(self._root, built.buffers):
                if self.homes[buffer] == "arena":
                    args.append(InArena(self._place_of(buffer)))
                    continue
                if buffer not in arguments:
                    arguments.append(buffer)
                    if self.homes[buffer] == "fresh":
                        fresh.append(buffer)
                args.append(Argument(arguments.index(buffer)))
            calls.append(Call(built.kernel, tuple(args)))
        exprs = [arg.offset for call in calls for arg in call.args if isinstance(arg, InArena)]
        symbols = free_symbols(exprs).union(*(set(call.kernel.sizes) for call in calls))
        return Run(name, tuple(arguments), tuple(sorted(symbols, key=str)), tuple(calls)), fresh

    def _runs_alone(self) -> Iterator[tuple[Contractions, list[BuiltKernel]]]:
        """Of ``alone`` what kernels of ours compute, and these: with those that lay out what it reads, or end
        what it sums.
        """
        for position in self.built:
            core = self.groups[position].product or self.groups[position].items[0]
            found = next((each for each in self.alone if _is_same(each, core.body)), None)
            if found is not None:
                yield found, [self.built[each] for each in self.built if self._is_part(each, position, core)]

    def _is_part(self, place: int, position: int, core: Item) -> bool:
        """Whether the group at ``place`` does a part of what ``core``, at ``position``, stands for; another
        product that leaves its result as ``core`` reads it does not.
        """
        group = self.groups[place]
        mine = group.product is None and any(item.node.origin is core.node.origin for item in group.items)
        before = mine and any(read.buffer in group.writes for read in core.reads)
        after = mine and any(name in group.reads for name in core.writes)
        return place == position or (before if place < position else after)

    def _host(self, item: Item) -> ExternStep | SizeStep | CheckStep:
        body = item.body
        if isinstance(body, Bind):
            return SizeStep(body.symbol.name, _size(body.value))
        if isinstance(body, Check):
            return CheckStep(python_text(body.condition), (body.kind, body.message))
        assert isinstance(body, Extern)
        out = not body.overwrites and any(
            name is not None and self.homes[name] == "arena" for name in item.writes
        )
        outputs = item.writes
        if out:
            assert outputs[0] is not None
            outputs = (self._arena_view(_whole(self.work.buffers[outputs[0]])),)
        elif body.overwrites:
            outputs = outputs[: -len(body.overwrites)]
        specs = tuple(None if n is None or out else self._spec(self.work.buffers[n]) for n in outputs)
        return ExternStep(
            body.target,
            tuple(self._argument(arg) for arg in body.args),
            {name: self._argument(value) for name, value in body.kwargs.items()},
            outputs,
            out,
            body.symbol.name if body.symbol is not None else None,
            specs,
            tuple((each.symbol.name, each.output, each.dim) for each in body.sizes),
            tuple(self._body(graph) for graph in body.bodies),
        )

    def _body(self, graph: Graph) -> Plan:
        """A body's plan: its operands may be laid out otherwise than they were while capturing."""
        names = [name for name in graph.inputs if isinstance(name, str)]
        layouts = tuple(self._spec(graph.buffers[name]) for name in names)
        return replace(self.bodies[id(graph)].plan, layouts=layouts)

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, StridedView):
            return self._view(arg)
        if isinstance(arg, (Expr, Boolean)):
            return int(arg) if arg.is_Integer else SizeRef(python_text(arg))
        if isinstance(arg, (list, tuple)):
            return [self._argument(each) for each in arg]
        return arg

    def _view(self, view: StridedView) -> Ref | ViewRef:
        dtype = view.dtype or self.work.buffers[view.buffer].dtype
        view = replace(view, buffer=self._root(view.buffer), dtype=dtype)
        if self.homes[view.buffer] == "arena":
            return Ref(self._arena_view(view))
        made, shape, strides = self.work.buffers[view.buffer].outside
        if made == dtype and _covers(view, shape, strides):
            return Ref(view.buffer)
        return self._view_ref(view)

    def _view_ref(self, view: StridedView) -> ViewRef:
        made, _, _ = self.work.buffers[view.buffer].outside
        dtype = view.dtype or self.work.buffers[view.buffer].dtype
        return ViewRef(
            view.buffer,
            tuple(_size(s) for s in view.shape),
            tuple(_size(s) for s in view.strides),
            _size(view.offset),
            None if made == dtype else _dtype(dtype),
        )

    def _arena_view(self, view: StridedView) -> str:
        """The name of an arena tensor that is this view; one for each layout in which ATen takes a buffer."""
        dtype = view.dtype or self.work.buffers[view.buffer].dtype
        key = (view.buffer, (dtype, view.shape, view.strides, view.offset))
        if key not in self.arena_views:
            name = f"{view.buffer}_{len(self.arena_views)}"
            self.arena_views[key] = name
            spec = TensorSpec(
                name,
                _dtype(dtype),
                tuple(_size(s) for s in view.shape),
                tuple(_size(s) for s in view.strides),
            )
            offset = self._place_of(view.buffer) + view.offset * dtype.itemsize
            self.arena_tensors.append(ArenaTensor(spec, _size(expand(offset))))
        return self.arena_views[key]

    def _outputs(self) -> tuple[Any, ...]:
        """What the plan returns: a whole buffer is that tensor once, other views of it are new tensors."""
        first: dict[str, StridedView] = {}
        found = []
        for value in self.graph.outputs:
            output = self._output(value)
            if (
                isinstance(value, StridedView)
                and isinstance(output, Ref)
                and first.setdefault(output.name, value) is not value
            ):
                output = self._view_ref(replace(value, buffer=output.name))
            found.append(output)
        return tuple(found)

    def _output(self, value: Any) -> Any:
        if isinstance(value, StridedView):
            return self._view(value)
        if isinstance(value, (Expr, Boolean)):
            return int(value) if value.is_Integer else SizeRef(python_text(value))
        return value

    def _spec(self, buffer: Buffer) -> TensorSpec:
        dtype, shape, strides = buffer.outside
        return TensorSpec(
            buffer.name,
            _dtype(dtype),
            tuple(_size(s) for s in shape),
            tuple(_size(s) for s in strides),
        )


def _size(expr: Expr) -> Size:
    return int(expr) if expr.is_Integer else python_text(expr)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _input_name(each: str | Symbol | None) -> str | None:
    return each.name if isinstance(each, Symbol) else each


def _is_same(wanted: Contractions, body: Body) -> bool:
    """Whether a body of the scheduled graph is one of the graph that was given, with its kernel chosen."""
    if isinstance(wanted, Contraction):
        return isinstance(body, Contraction) and body.call is wanted.call and body.result == wanted.result
    return isinstance(body, Attentions) and body.call is wanted.call


def _whole(buffer: Buffer) -> StridedView:
    dtype, shape, strides = buffer.outside
    return StridedView(buffer.name, shape, strides, sympy.Integer(0), dtype)


def _covers(view: StridedView, shape: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether a view is a buffer as it is (strides of dimensions of one element do not matter)."""
    if view.offset != 0 or len(view.shape) != len(shape):
        return False
    return all(
        same(a, b) and (a == 1 or same(s, t)) for a, b, s, t in zip(view.shape, shape, view.strides, strides)
    )


def _is_contiguous(buffer: Buffer) -> bool:
    """Whether the buffer is row-major without holes."""
    expected: Expr = sympy.Integer(1)
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.strides)):
        if size != 1 and not same(stride, expected):
            return False
        expected = expected * size
    return True
