"""The trace of one graph: operators, loops, steps, nests and code, joined by their origins."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from smelt.capture import Program
from smelt.codegen.cpp.traced import traced
from smelt.contract.higher_order import BODIES, bodies_of, higher_order_name
from smelt.contract.where import STACK, frames, module_of
from smelt.loops.ir import Extern, Graph, Origin
from smelt.loops.printer import node_lines, type_text
from smelt.lowering.chosen import chosen
from smelt.nest.ir import Call, Kernel
from smelt.nest.origins import Sources
from smelt.nest.work import work
from smelt.passes import Pass, name_of
from smelt.pipeline import Remade
from smelt.records import dataclass, field
from smelt.reporting import CompileReport
from smelt.runtime.control import CONTROL
from smelt.runtime.externs import is_random, resolve
from smelt.runtime.plan import ExternStep, NativeStep, Plan
from smelt.schedule.grouping.apart import why_apart
from smelt.schedule.grouping.fusion import Group
from smelt.schedule.memory.execution import Execution
from smelt.tracing import parts
from smelt.tracing.assembly import of_kernel
from smelt.tracing.parts import Data


@dataclass(slots=True)
class Times:
    """Times of one run: seconds and calls of each call of a kernel, in the order of runs; of ATen's calls, in
    the order of steps: (target, seconds, operations, bytes). None: not measured. ``functions``: the C++
    function of each call of a kernel, in the shared ``library``.
    """

    kernels: Sequence[tuple[float, float]] | None = None
    functions: Sequence[str] = ()
    library: str | None = None
    aten: Sequence[tuple[str, float, int, int]] = ()


@dataclass(slots=True)
class _Seen:
    """What a watch has seen of a schedule."""

    program: Program | None = None
    films: dict[int, list[tuple[str, Kernel]]] = field(default_factory=dict)
    executions: dict[int, Execution] = field(default_factory=dict)

    def watch(self, moment: str, pass_: Pass, ir: Any) -> None:
        if isinstance(ir, Program):
            self.program = ir
        elif isinstance(ir, Execution) and moment == "after":
            self.executions[id(ir.scheduled.plan.steps)] = ir
        elif isinstance(ir, Kernel) and moment == "before":
            film = self.films.pop(id(ir), [("as fused", ir)])
            self.films[-1] = film
        elif isinstance(ir, Kernel):
            film = self.films.pop(-1)
            if film[-1][1] is not ir:
                film.append((name_of(pass_), ir))
            self.films[id(ir)] = film


class Numbers:
    """Files and names that are counted over all graphs of a trace."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.kinds: dict[str, int] = {}

    def file(self, path: str) -> int:
        return self.files.setdefault(path, len(self.files))

    def step(self, kind: str) -> str:
        """``k0``, ``k1`` … for kernels, ``a0`` … for ATen, ``e0`` … for PyTorch."""
        number = self.kinds[kind] = self.kinds.get(kind, -1) + 1
        return f"{kind[0]}{number}"


def graph_trace(report: CompileReport, times: Times, numbers: Numbers) -> Data | None:
    """The trace of a compiled graph; None if its program was dropped, or PyTorch runs it."""
    if report.again is None:
        return None
    seen = _Seen()
    remade: Remade = report.again(seen.watch)
    assert seen.program is not None
    return _Traced(report, remade, seen, seen.program, times, numbers).data()


class _Traced:
    def __init__(
        self,
        report: CompileReport,
        remade: Remade,
        seen: _Seen,
        program: Program,
        times: Times,
        numbers: Numbers,
    ) -> None:
        self.report, self.remade, self.seen, self.program = report, remade, seen, program
        self.times, self.numbers = times, numbers
        graphs = remade.scheduled.graph.with_bodies()
        named = {name for graph in graphs for node in graph.nodes for name in node.origin.nodes}
        every = dict(_nodes_of(program.graph_module))
        listed = {name: node for name, node in every.items() if node.op == "call_function" or name in named}
        self.names, self.nodes = list(listed), list(listed.values())
        self.positions = {name: place for place, name in enumerate(listed)}
        self.at = {node: place for place, node in enumerate(self.nodes)}
        self.nests: list[list[Data]] = []
        self.codes: list[Data] = []
        self.printed: dict[int, tuple[int, int]] = {}
        self.measured, self.functions = self._measured(), self._functions()
        self.aten = list(times.aten)
        self.writers = {
            name: place for place, node in enumerate(remade.graph.nodes) for name in node.outputs if name
        }

    def data(self) -> Data:
        report = self.report
        loops = self._loops(self.remade.graph)
        steps = list(self._steps(self.remade.scheduled.plan, {run.name: run for run in self._runs()}))
        return parts.graph(
            report.graph_name,
            report.kind,
            sizes=[str(each) for each in report.dynamic_sizes],
            guards=[str(each) for each in report.size_guards],
            operators=[self._operator(node, name) for node, name in zip(self.nodes, self.names)],
            loops=loops,
            steps=steps,
            nests=self.nests,
            codes=self.codes,
        )

    # -- operators and loops --------------------------------------------------------------------------------

    def _operator(self, node: FxNode, called: str) -> Data:
        overload = hasattr(node.target, "_schema")
        target = str(node.target) if overload else str(getattr(node.target, "__name__", node.target))
        name = target.removeprefix("aten.").partition(".")[0]
        args = ", ".join(_argument(each) for each in (*node.args, *node.kwargs.values()))
        stack = frames(node.meta.get(STACK) or "")
        return parts.operator(
            called,
            target,
            f"{called}: {_type(node.meta.get('val'))} = {name}({args})",
            inputs=[self.at[each] for each in node.all_input_nodes if each in self.at],
            lines=[[self.numbers.file(file), line, function] for file, line, function in reversed(stack)],
            module=module_of(node),
        )

    def _loops(self, graph: Graph) -> list[Data]:
        return [
            {"text": "\n".join(node_lines(node, graph)), "operators": self._places(node.origin)}
            for node in graph.nodes
        ]

    def _places(self, *origins: Origin) -> list[int]:
        names = (name for origin in origins for name in origin.nodes)
        return list(dict.fromkeys(self.positions[name] for name in names))

    # -- steps ----------------------------------------------------------------------------------------------

    def _runs(self) -> list[Any]:
        return self.remade.scheduled.runs

    def _measured(self) -> dict[str, list[tuple[float, float]]]:
        """Seconds and calls of each run's kernels, by the run's name."""
        if self.times.kernels is None:
            return {}
        remaining = iter(self.times.kernels)
        return {run.name: [next(remaining, (0.0, 0.0)) for _ in run.calls] for run in self._runs()}

    def _functions(self) -> dict[int, str]:
        """The C++ function of each kernel, by its identity."""
        calls = [call for run in self._runs() for call in run.calls]
        return {id(call.kernel): name for call, name in zip(calls, self.times.functions)}

    def _steps(self, plan: Plan, runs: Mapping[str, Any]) -> Iterator[Data]:
        """The steps of a plan in order, and after each ATen call those of its bodies."""
        execution = self.seen.executions.get(id(plan.steps))
        groups = [] if execution is None else list(execution.groups)
        ours = iter(_ours(execution, groups))
        calls = iter([group for group in groups if isinstance(group.items[0].body, Extern)])
        for step in plan.steps:
            if isinstance(step, NativeStep):
                times = iter(self.measured.get(step.function, ()))
                for call in runs[step.function].calls:
                    place = next(ours, None)
                    apart = None if place is None or execution is None else _apart(execution, place)
                    names = () if place is None else _names(groups[place])
                    yield self._kernel(call, step.function, next(times, None), apart, names)
            elif isinstance(step, ExternStep):
                yield self._extern(step, next(calls, None))
                for body in step.bodies:
                    yield from self._steps(body, runs)

    def _kernel(
        self,
        call: Call,
        run: str,
        time: tuple[float, float] | None,
        apart: str | None,
        names: Sequence[str],
    ) -> Data:
        kernel = call.kernel
        done = work(kernel, self.remade.graph.hints)
        count = 1.0 if time is None else time[1]
        nest, code = self._printed(kernel)
        places = [self._places(origin) for origin in call.origins]
        origins = [*(each[0] for each in places), *(more for each in places for more in each[1:])]
        loops = [self.writers[name] for name in names if name in self.writers]
        return parts.step(
            self.numbers.step("kernel"),
            "kernel",
            kernel.name,
            origins=origins,
            loops=list(dict.fromkeys(loops)) or self._loops_of(*call.origins),
            seconds=None if time is None else time[0],
            calls=count,
            operations=int(done.operations * count),
            moved=int(done.moved * count),
            parallel=parts.is_parallel(kernel),
            run=run,
            apart=apart,
            alternatives=self._alternatives(call.origins),
            nest=nest,
            code=code,
        )

    def _extern(self, step: ExternStep, group: Group | None) -> Data:
        origin = None if group is None else group.items[0].node.origin
        body = None if group is None else group.items[0].body
        place = next((n for n, each in enumerate(self.aten) if each[0] == step.target), None)
        time = None if place is None else self.aten.pop(place)
        reason = _why_aten(step.target)
        if isinstance(body, Extern) and body.reason is not None:
            reason = f"fallback: {body.reason}"
        elif origin is not None and (found := self._choice(origin)) is not None:
            reason = f"{reason}: {found.why}"
        origins = () if origin is None else (origin,)
        known = {} if time is None else {"seconds": time[1], "operations": time[2], "moved": time[3]}
        return parts.step(
            self.numbers.step("aten"),
            "aten",
            step.target,
            origins=self._places(*origins),
            loops=self._loops_of(*origins),
            reason=reason,
            alternatives=self._alternatives(origins),
            **known,
        )

    def _loops_of(self, *origins: Origin) -> list[int]:
        """The loop nodes of these origins: what the scheduler has made of them has other buffers."""
        return [place for place, node in enumerate(self.remade.graph.nodes) if node.origin in origins]

    def _choice(self, origin: Origin) -> Any:
        return next((each for each in self.report.choices if each.where == origin.where), None)

    def _alternatives(self, origins: Sequence[Origin]) -> str | None:
        texts = [each.times for origin in origins[:1] if (each := self._choice(origin)) is not None]
        return next(filter(None, texts), None)

    # -- nests and code -------------------------------------------------------------------------------------

    def _printed(self, kernel: Kernel) -> tuple[int, int]:
        """The positions of a kernel's film and code; equal kernels share them."""
        if id(kernel) not in self.printed:
            self.printed[id(kernel)] = len(self.nests), len(self.codes)
            film = self.seen.films.get(id(kernel), [("final", kernel)])
            self.nests.append([parts.frame(name, each, Sources(each).of) for name, each in film])
            self.codes.append(self._code(kernel))
        return self.printed[id(kernel)]

    def _code(self, kernel: Kernel) -> Data:
        more = []
        if self.times.library is not None and id(kernel) in self.functions:
            assembly = of_kernel(self.times.library, f"kernel_{self.functions[id(kernel)]}")
            if assembly:
                more.append(parts.code("asm", kernel.name, [(line, ()) for line in assembly]))
        return parts.code("c++", kernel.name, traced(kernel), more)


def _ours(execution: Execution | None, groups: Sequence[Group]) -> list[int]:
    """The positions of groups that are calls of kernels, in order."""
    if execution is None:
        return []
    return [
        place
        for place, group in enumerate(groups)
        if not group.is_extern and any(param.written for param in execution.built[place].kernel.params)
    ]


def _apart(execution: Execution, place: int) -> str | None:
    following = execution.groups[place + 1 :]
    after = next(
        (group for group in following if not group.is_extern or isinstance(group.items[0].body, Extern)), None
    )
    return None if after is None else why_apart(execution.work, execution.groups[place], after)


def _why_aten(target: str) -> str:
    """Why a call without a reason of its own is ATen's."""
    if target in CONTROL:
        return "control flow"
    overload = resolve(target)
    kind = chosen(overload)
    if kind is not None:
        return kind
    return "the seed of random numbers" if is_random(overload) else "an operator that has no lowering"


def _nodes_of(module: GraphModule, path: str = "") -> Iterator[tuple[str, FxNode]]:
    """The nodes of a graph by name, and after each call with bodies those of the bodies
    (`Origin.nodes`).
    """
    for node in module.graph.nodes:
        yield f"{path}{node.name}", node
        for body in bodies_of(node) if higher_order_name(node.target) in BODIES else ():
            inner = getattr(module, str(body.target))
            if isinstance(inner, GraphModule):
                yield from _nodes_of(inner, f"{path}{body.target}.")


def _names(group: Group) -> list[str]:
    """The buffers that a group computes, those that are computed where they are read among them."""
    written = [name for item in group.all_items for name in item.writes if name is not None]
    return [*(name for item in group.all_items for name in item.inlined), *written]


def _type(value: Any) -> str:
    """``f32[8, 768]``; a tuple of these for several results."""
    if isinstance(value, torch.Tensor):
        return f"{type_text(value.dtype)}[{', '.join(str(size) for size in value.shape)}]"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_type(each) for each in value)})"
    return type(value).__name__.lower() if value is not None else "none"


def _argument(value: Any) -> str:
    if isinstance(value, FxNode):
        return value.name
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_argument(each) for each in value)}]"
    return str(value)


def files_of(numbers: Numbers) -> list[Data]:
    """The source of the files, in order; one that cannot be read has no text."""
    return [
        {"path": path, "name": Path(path).name, "first": 1, "text": "".join(linecache.getlines(path))}
        for path in numbers.files
    ]
