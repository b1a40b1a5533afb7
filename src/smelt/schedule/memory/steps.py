"""Kernels and storage → the plan: the calls in order, with their tensors and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

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
    StridedView,
)
from smelt.nest.ir import Argument, Call, InArena, Run
from smelt.records import replace
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
from smelt.schedule.context import Context
from smelt.schedule.grouping.items import Item
from smelt.schedule.memory.execution import Execution
from smelt.schedule.nests import BuiltKernel
from smelt.symbolic import free_symbols, same
from smelt.symbolic.affine import expand
from smelt.symbolic.solving import Solution, solve_sizes
from smelt.symbolic.text import python_text


def write_plan(execution: Execution, context: Context) -> Execution:
    """Writes the runs of kernels, and the plan that calls them and ATen."""
    writer = _Writer(execution, context)
    runs, steps = writer.steps()
    alone = [
        (writer.native(f"{context.prefix}alone{number}", kernels)[0], body)
        for number, (body, kernels) in enumerate(writer.runs_alone())
    ]
    found = replace(
        execution.scheduled,
        plan=writer.plan(steps),
        runs=runs,
        alone=alone,
        arena_size=execution.arena.size,
    )
    return replace(execution, scheduled=found.followed_by(list(execution.bodies.values())))


class _Writer:
    def __init__(self, execution: Execution, context: Context) -> None:
        self.execution, self.context = execution, context
        self.work, self.graph, self.groups = execution.work, execution.graph, execution.groups
        self.built, self.storage, self.outputs = execution.built, execution.storage, execution.outputs
        self.arena_views: dict[tuple[str, tuple[Any, ...]], str] = {}
        self.arena_tensors: list[ArenaTensor] = []

    def plan(self, steps: Sequence[Step]) -> Plan:
        outputs = self._outputs()  # before the arena's tensors are listed: it may need some more
        return Plan(
            inputs=tuple(_input_name(each) for each in self.graph.inputs),
            symbols=tuple(sorted(symbol.name for symbol in self._symbols())),
            constants=tuple(self.graph.constants),
            arena_bytes=_size(self.execution.arena.size),
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

    # -- sizes ----------------------------------------------------------------------------------------------

    def _symbols(self) -> set[Symbol]:
        """Size symbols that the plan needs."""
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
        return free_symbols(exprs) | given | self.execution.late | solved

    def _solved(self) -> list[Solution]:
        """The sizes that are solved for from input sizes."""
        given = {each for each in self.graph.inputs if isinstance(each, Symbol)} | self.execution.late
        names = [name for name in self.graph.inputs if isinstance(name, str)]
        return solve_sizes([(name, self.work.buffers[name].shape) for name in names], given)

    def _shape_symbols(self) -> tuple[tuple[str, str, int], ...]:
        """The sizes that are read from a dimension of an input tensor."""
        return tuple(
            (each.symbol.name if each.is_plain else each.size.name, each.tensor, each.dim)
            for each in self._solved()
        )

    def _derived_sizes(self) -> list[SizeStep]:
        """The sizes that follow from those: ``h`` if the input tensor has ``2*h``."""
        return [SizeStep(each.symbol.name, _size(each.value)) for each in self._solved() if not each.is_plain]

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self) -> tuple[list[Run], list[Step]]:
        runs: list[Run] = []
        steps: list[Step] = []
        pending: list[BuiltKernel] = []
        made: set[str] = set()
        uses: list[set[str]] = []
        names = dict(self.execution.used())

        def flush() -> None:
            if not pending:
                return
            run, fresh = self.native(f"{self.context.prefix}run{len(runs)}", pending)
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
        """Drops dead tensors, so that ATen can reuse their memory."""
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
                    and self.storage.get(name) in ("aten", "given", "fresh")
                    and name not in self.graph.constants
                    and name not in self.outputs
                )
            )
            if done and number + 1 < len(steps):
                result.append(FreeStep(done))
        return result

    def native(self, name: str, kernels: Sequence[BuiltKernel]) -> tuple[Run, list[str]]:
        arguments: list[str] = []
        calls: list[Call] = []
        fresh: list[str] = []
        for built in kernels:
            args: list[InArena | Argument] = []
            for buffer in map(self.execution.root, built.buffers):
                if self.storage[buffer] == "arena":
                    args.append(InArena(self.execution.place_of(buffer)))
                    continue
                if buffer not in arguments:
                    arguments.append(buffer)
                    if self.storage[buffer] == "fresh":
                        fresh.append(buffer)
                args.append(Argument(arguments.index(buffer)))
            calls.append(Call(built.kernel, tuple(args), built.origins or built.kernel.origins))
        exprs = [arg.offset for call in calls for arg in call.args if isinstance(arg, InArena)]
        symbols = free_symbols(exprs).union(*(set(call.kernel.sizes) for call in calls))
        return Run(name, tuple(arguments), tuple(sorted(symbols, key=str)), tuple(calls)), fresh

    def runs_alone(self) -> Iterator[tuple[Contractions, list[BuiltKernel]]]:
        """The contractions of ``alone`` with kernels of ours, and these kernels: with those that copy their
        inputs, or finish their sums.
        """
        for position in self.built:
            core = self.groups[position].product or self.groups[position].items[0]
            found = next((each for each in self.context.alone if _is_same(each, core.body)), None)
            if found is not None:
                yield found, [self.built[each] for each in self.built if self._is_part(each, position, core)]

    def _is_part(self, place: int, position: int, core: Item) -> bool:
        """Whether the group at ``place`` computes a part of ``core`` at ``position``; another product that
        writes an input of ``core`` does not.
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
            name is not None and self.storage[name] == "arena" for name in item.writes
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
        """The plan of a body: its operands may have other layouts than at capture."""
        names = [name for name in graph.inputs if isinstance(name, str)]
        layouts = tuple(self._spec(graph.buffers[name]) for name in names)
        return replace(self.execution.bodies[id(graph)].plan, layouts=layouts)

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
        view = replace(view, buffer=self.execution.root(view.buffer), dtype=dtype)
        if self.storage[view.buffer] == "arena":
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
        """The name of an arena tensor for this view; one for each layout in which ATen takes a buffer."""
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
            offset = self.execution.place_of(view.buffer) + view.offset * dtype.itemsize
            self.arena_tensors.append(ArenaTensor(spec, _size(expand(offset))))
        return self.arena_views[key]

    def _outputs(self) -> tuple[Any, ...]:
        """The outputs of the plan: a whole buffer is returned as one tensor, other views of it are new
        tensors.
        """
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
    """Whether a body of the scheduled graph is the given body, with its kernel chosen."""
    if isinstance(wanted, Contraction):
        return isinstance(body, Contraction) and body.call is wanted.call and body.result == wanted.result
    return isinstance(body, Attentions) and body.call is wanted.call


def _whole(buffer: Buffer) -> StridedView:
    dtype, shape, strides = buffer.outside
    return StridedView(buffer.name, shape, strides, sympy.Integer(0), dtype)


def _covers(view: StridedView, shape: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether a view is the whole buffer (strides of dimensions of one element do not matter)."""
    if view.offset != 0 or len(view.shape) != len(shape):
        return False
    return all(
        same(a, b) and (a == 1 or same(s, t)) for a, b, s, t in zip(view.shape, shape, view.strides, strides)
    )
