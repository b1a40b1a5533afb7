"""Makes a callable from a plan and a library, for any target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch

from smelt import logs
from smelt.capture import Program
from smelt.codegen.cpp import CLOCKS
from smelt.config import Config
from smelt.loops.ir import Graph, StridedView
from smelt.reporting import CompileReport
from smelt.runtime import executor
from smelt.runtime.clocks import Clocks
from smelt.runtime.deoptimize import or_deoptimized
from smelt.runtime.gpu import DeviceMemory
from smelt.runtime.library import Job, Library, PythonLibrary
from smelt.runtime.plan import ExternStep, NativeStep, Plan, Step
from smelt.runtime.recorded import Recorded, returned_inputs
from smelt.symbolic import size_hint

Compiled = Callable[[list[Any]], Sequence[Any]]

Errors = Mapping[str, tuple[tuple[str, str], ...]]
"""The exceptions of each run's error numbers (`smelt.pipeline.targets.Code`)."""

Again = Callable[[Program, Config], Compiled]
"""Compiles a program once more, for the same target."""


def runnable(
    plan: Plan,
    library: Library | PythonLibrary | Job | None,
    constants: Mapping[str, torch.Tensor],
    program: Program,
    config: Config,
    report: CompileReport,
    again: Again,
) -> Compiled:
    """The executor of the plan, which recompiles the program when needed."""
    with report.phase("executor"):
        report.keep_text("plan", lambda: executor.render(plan))
        thaw = partial(_thawed, program, config, again)
        built = executor.build(plan, library, constants, _clocks(plan, library, report), thaw)
        if "recorded" in plan.notes:
            built = _recorded(built, plan, library, report)
        return _checked(built, plan, program, config, again)


def _recorded(
    built: Compiled, plan: Plan, library: Library | PythonLibrary | Job | None, report: CompileReport
) -> Compiled:
    """The executor, whose launches are recorded if that is possible; the report says what became of it."""
    fixed, why = plan.notes["recorded"]
    if why is not None:
        report.recorded = f"no CUDA graph: {why}"
        return built

    @lru_cache(maxsize=1)
    def failed() -> Callable[[], int]:
        made = (
            library if library is None or isinstance(library, (Library, PythonLibrary)) else library.result()
        )
        return made.function("smelt_failed") if isinstance(made, Library) else lambda: 0

    def note(text: str) -> None:
        report.recorded = text

    memory = DeviceMemory(torch.device(str(plan.device)))
    return Recorded(built, fixed, returned_inputs(plan), memory, lambda: bool(failed()()), note)


def _checked(compiled: Compiled, plan: Plan, program: Program, config: Config, again: Again) -> Compiled:
    """The executor of the plan; a program without Winograd runs if the plan's last output asks for it."""
    if len(plan.outputs) == len(program.outputs):
        return compiled

    def compile_deoptimized() -> Compiled:
        logs.logger.info("smelt: %s: a convolution's result is not finite; compiled anew", program.name)
        return again(program, replace(config, winograd=False))

    return or_deoptimized(compiled, compile_deoptimized)


def _thawed(program: Program, config: Config, again: Again, changing: frozenset[int]) -> Compiled:
    """The program in which the inputs at these positions are no constants: they change from call to call."""
    names = ", ".join(program.inputs[position].name for position in sorted(changing))
    logs.logger.info("smelt: %s: %s change at every call; compiled anew", program.name, names)
    inputs = tuple(
        replace(each, static=each.static and position not in changing)
        for position, each in enumerate(program.inputs)
    )
    return again(replace(program, inputs=inputs), config)


def output_orders(graph: Graph, scheduled: Graph) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The memory order of the dimensions of outputs whose layout the scheduled graph has changed (`Plan`)."""
    found = []
    for position, (before, after) in enumerate(zip(graph.outputs, scheduled.outputs, strict=True)):
        if isinstance(after, StridedView) and before != after:
            steps = [size_hint(stride, graph.hints) for stride in after.strides]
            dims = [dim for dim, size in enumerate(after.shape) if size != 1]
            found.append((position, tuple(sorted(dims, key=lambda dim: -steps[dim]))))
    return tuple(found)


def in_orders(compiled: Compiled, orders: Sequence[tuple[int, tuple[int, ...]]]) -> Compiled:
    """``compiled`` with outputs in the layouts that AOTAutograd was told (`tell_orders`)."""
    if not orders:
        return compiled

    def call(args: list[Any]) -> Sequence[Any]:
        results = list(compiled(args))
        for output, order in orders:
            value, step = results[output], 1
            strides = list(value.stride())
            for dim in reversed(order):
                strides[dim] = step
                step *= value.shape[dim]
            results[output] = torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)
        return results

    return call


def _clocks(
    plan: Plan, built: Library | PythonLibrary | Job | None, report: CompileReport
) -> Callable[[str, Callable[..., Any]], Callable[..., Any]] | None:
    """The wrapper of ATen operators that measures their time (`CompileReport.clocks`), if wanted.

    Kernels that are launched have no counters.
    """
    if "clocks" not in plan.notes or plan.device is not None or isinstance(built, PythonLibrary):
        return None
    clocks = Clocks(CLOCKS, [tuple(each) for each in plan.notes["clocks"]])
    clocks.library = built
    report.clocks, report.counters = clocks.read, clocks
    return clocks.timed


def with_errors(plan: Plan, errors: Errors, device: str | None = None) -> Plan:
    """The plan with the errors of its native steps, and of those of its bodies, on a ``device``."""
    steps: list[Step] = []
    for step in plan.steps:
        if isinstance(step, NativeStep):
            step = replace(step, errors=tuple(errors.get(step.function, ())))
        elif isinstance(step, ExternStep) and step.bodies:
            step = replace(step, bodies=tuple(with_errors(body, errors, device) for body in step.bodies))
        steps.append(step)
    folded = tuple(replace(each, plan=with_errors(each.plan, errors, device)) for each in plan.folded)
    return replace(plan, steps=tuple(steps), folded=folded, device=device)
