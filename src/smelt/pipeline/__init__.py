"""The way of a program through the compiler, as one visible list of passes."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from smelt import logs
from smelt.capture import Program, tell_orders
from smelt.capture.sizes import explain_sizes
from smelt.clusters import in_clusters
from smelt.codegen.cpp import CLOCKS, CppUnit, UnitPrinter, header_text, once_text
from smelt.config import Config
from smelt.contract import (
    Denied,
    clustered,
    contracted,
    graph_key,
    has_kernel,
    unsupported,
)
from smelt.contract.facts import REFUSED, data_sizes
from smelt.errors import SmeltError
from smelt.loops.ir import Graph, StridedView
from smelt.loops.printer import print_graph
from smelt.nest.ir import Kernel
from smelt.nest.printer import print_run
from smelt.nest.verify import verify as verify_kernel
from smelt.nest.verify import verify_run
from smelt.passes import Watch
from smelt.pipeline.notes import Unit, choices, fill_report, notes_of, work_of
from smelt.pipeline.passes import lowered, watched
from smelt.reporting import LOG, CompileReport
from smelt.runtime import cache, executor, library, plan_json, process, toolchain
from smelt.runtime.cache import key_of
from smelt.runtime.clocks import Clocks
from smelt.runtime.deoptimize import at_first_call, or_deoptimized
from smelt.runtime.garbage import garbage_goes, garbage_waits
from smelt.runtime.library import CompileJob, Library
from smelt.runtime.plan import ExternStep, NativeStep, Plan, Step
from smelt.runtime.precompiled import Precompiled, precompiled
from smelt.runtime.toolchain import Toolchain
from smelt.schedule import Scheduled, Target, schedule
from smelt.symbolic import size_hint
from smelt.tuning import Tuning

Compiled = Callable[[list[Any]], Sequence[Any]]
Instead = Callable[[Program, SmeltError], Compiled]
"""What runs a program that turns out at its first call not to be compiled, and why; it may raise that error.
"""

PHASES = ("contract", "key", "lowering", "tuning", "schedule", "codegen", "compile", "executor", "wait")
"""The phases in order, as in ``CompileReport.phase_seconds``; their passes are in `smelt.pipeline.passes`.

A cache hit goes from ``key`` to ``executor``. ``tuning`` (mode ``max``) looks up who is faster; what nobody
has measured it measures behind ``codegen``, or at the first call, waiting for the C++ compiler.
"""

_PLAN = "plan.json"

Deoptimize = Callable[[SmeltError], Compiled]
"""`Instead` of one program."""


Refused = Mapping[tuple[str, str | None], str]
"""Calls that PyTorch is to run, by operator and source line, and why."""


def compile_program(
    program: Program,
    config: Config,
    *,
    called_next: bool = False,
    instead: Instead | None = None,
    refused: Refused | None = None,
) -> Compiled:
    """Compile one captured program; returns a function of ONE list of arguments (which it empties).

    The C++ compiler runs beside Python: the first call of the result waits for it, and raises what it says,
    unless ``instead`` has something else to run.
    ``called_next``: that call is the next thing this thread does with it, so what mode ``max`` measures may
    wait for it as well (and the report is complete after it).
    Where smelt cannot have some calls, or they are ``refused``, the program is compiled in clusters
    (`smelt.contract.clusters`), each with a report of its own.

    Raises:
        VerificationError: the program or an IR made from it breaks its rules.
        ToolchainError: SM0201 there is no C++ compiler, SM0202, SM0203, SM0507 it cannot be used.
        Unsupported: smelt cannot compile the program at all (its reason says why).
    """
    with garbage_waits(), garbage_goes(traced=program.kind == "forward"):
        report = CompileReport(program.kind, program.name)
        LOG.add(report)
        otherwise = None if instead is None else partial(instead, program)
        if config.keep_text:
            report.keep_text("fx", lambda: program.graph_module.print_readable(print_output=False))
        watch = watched(config, report)
        with report.phase("contract"):
            contracts = contracted(program, partial(_stays, config, refused or {}), watch)
            reasons = unsupported(contracts) | _refused(contracts, config, refused or {})
            parts = clustered(contracts, reasons, config.min_cluster) if reasons else None
        if parts is None:
            compiled = _compile(contracts, config, report, watch, called_next, otherwise)
        else:
            each = partial(compile_program, called_next=called_next, instead=instead)
            compiled = in_clusters(parts, config, report, each)
        report.keep_texts_with(compiled)
        return compiled


def _stays(config: Config, refused: Refused, node: torch.fx.Node) -> bool:
    """Whether a higher-order call stays whole: it is denied, or there is a kernel of ours for it."""
    reason = Denied.of(config).reason(node)
    if reason is not None:
        node.meta[REFUSED] = reason
        return True
    failed = (str(node.target), node.meta.get("where")) in refused
    return config.contractions and not failed and has_kernel(node)


def _refused(program: Program, config: Config, refused: Refused) -> dict[torch.fx.Node, list[str]]:
    """Mark the calls that PyTorch is to run; those are given back that no ATen call can stand for."""
    found: dict[torch.fx.Node, list[str]] = {}
    denied = Denied.of(config)
    if not denied and not refused:
        return found
    for node in program.graph_module.graph.nodes:
        if node.op == "call_function":
            reason = refused.get((str(node.target), node.meta.get("where"))) or denied.reason(node)
            if reason is not None and isinstance(node.target, torch._ops.HigherOrderOperator):
                found[node] = [reason]
            elif reason is not None:
                node.meta[REFUSED] = reason
    return found


def _compile(
    program: Program,
    config: Config,
    report: CompileReport,
    watch: Watch | None,
    called_next: bool,
    otherwise: Deoptimize | None,
) -> Compiled:
    with report.phase("contract"):
        if program.kind != "backward":
            report.dynamic_sizes, report.size_guards = explain_sizes(program)
            report.dynamic_sizes += data_sizes(program.graph_module.graph)
    with report.phase("key"):
        tools = replace(toolchain.find(), seconds=config.compiler_seconds)
        dotted = tuple(getattr(torch, name) for name in tools.dot_products)
        target = Target(tools.vector_bytes, dotted, tools.multiply_adds)
        store = cache.open_cache()
        threads = torch.get_num_threads() if config.mode == "max" else 0  # what is measured depends on them
        key = cache.key_of(
            *(graph_key(program), config.key(), tools.identity, torch.__version__, source_digest()),
            str(threads),
        )
    if config.keep_text:
        _keep_texts(report, program, config, target)
    found = None if config.print_passes else _from_cache(store, key, program, config, report, otherwise)
    if found is not None:
        return found
    process.check(tools.command, tools.seconds)
    header = precompiled(header_text(once=False), once_text(), tools, store)
    with report.phase("lowering"):
        graph = lowered(program, config, target, watch)
    tuning = None
    if config.mode == "max" and config.contractions:
        with report.phase("tuning"):
            tuning = Tuning(config, target, tools, store, source_digest())
            tuning.look_up(graph)
    rest = _Rest(program, config, report, watch, target, tools, store, key, header, graph, tuning, otherwise)
    unit = rest.unit()
    if tuning is None or not tuning.unknown:
        return rest.finished(unit)
    job = rest.job(unit)
    if not called_next or program.kind != "inference":  # AOTAutograd asks now how saved outputs lie
        return rest.measured(tuning, unit, job)

    def measured() -> Compiled:
        with garbage_waits(), garbage_goes(traced=False):
            return _or(otherwise, partial(rest.measured, tuning, unit, job))

    return at_first_call(measured)


@dataclass(frozen=True, slots=True)
class _Rest:
    """What is left to do for a program that is lowered."""

    program: Program
    config: Config
    report: CompileReport
    watch: Watch | None
    target: Target
    tools: Toolchain
    store: cache.Cache
    key: str
    header: Precompiled | None
    graph: Graph
    tuning: Tuning | None
    otherwise: Deoptimize | None

    def unit(self) -> Unit:
        """The graph as kernels and text; compilers begin with what there is of it."""
        config, report, tuning = self.config, self.report, self.tuning
        objects = library.Objects(self.tools, self.store, self.header)
        with report.phase("schedule"):
            choose, alone = (tuning.choose, tuning.alone) if tuning else (None, ())
            if config.clocks:
                alone = ()  # they would count what is run to be measured
            printer = UnitPrinter(objects)

            def ready(kernel: Kernel) -> None:
                with report.phase("codegen"):
                    printer.add(kernel)

            scheduled = schedule(self.graph, config, self.target, "", choose, alone, ready, self.watch)
            if config.verify:
                _verify_kernels(scheduled)
        with report.phase("codegen"):
            cpp = printer.finish(scheduled.all_runs, library.compilers(), config.clocks)
            objects.start_rest(cpp.parts)  # here: the thread that waits for them would come late to it
            plan = with_errors(scheduled.plan, cpp)
        return Unit(scheduled, plan, cpp, objects)

    def job(self, unit: Unit, extra: Mapping[str, bytes] | None = None) -> CompileJob | None:
        """The unit's compilation, with ``extra`` files for its entry of the cache; None where there is no
        kernel.

        An entry without a plan is no program yet: another process compiles it again.
        """
        if not unit.scheduled.runs:
            return None
        text, parts = unit.cpp.text, unit.cpp.parts
        return library.compile_unit(text, self.tools, self.store, self.key, extra, parts, unit.objects)

    def measured(self, tuning: Tuning, unit: Unit, job: CompileJob | None) -> Compiled:
        """What runs the unit that ``job`` compiles; another one where that is slower than ATen's calls."""
        with self.report.phase("tuning"):
            otherwise = tuning.measure(unit.scheduled, job)
        return self.finished(self.unit() if otherwise else unit)

    def finished(self, unit: Unit) -> Compiled:
        """What runs the unit; the report says how."""
        program, report, graph = self.program, self.report, self.graph
        constants = {name: tensor for each in graph.with_bodies() for name, tensor in each.constants.items()}
        orders = _orders(graph, unit.scheduled.graph)
        plan = replace(unit.plan, notes=notes_of(unit, constants), orders=orders)
        tell_orders(program, plan.orders)
        with report.phase("schedule"):
            found = choices(graph, unit.scheduled.graph, self.config, self.target, self.tuning)
            plan.notes["choices"] = found
        if self.config.clocks:
            plan.notes["clocks"] = work_of(unit)
        fill_report(report, plan.notes)
        report.keep_text("cpp", unit.cpp.text)
        with report.phase("compile"):
            job = self.job(unit, {_PLAN: plan_json.to_json(plan).encode()})
            if job is not None:
                job.on_ready = lambda job: report.phase_seconds.update(wait=job.waited)
        with report.phase("executor"):
            report.keep_text("plan", lambda: executor.render(plan))
            thaw = partial(_thawed, program, self.config, self.otherwise)
            built = executor.build(plan, job, constants, _clocks(plan, job, report), thaw)
            checked = _checked(built, plan, program, self.config, self.otherwise)
        return checked if job is None else _once_there(checked, job, plan, self.otherwise)


def _once_there(compiled: Compiled, job: CompileJob, plan: Plan, otherwise: Deoptimize | None) -> Compiled:
    """``compiled``, once its library is there; ``otherwise`` where that cannot be had."""
    if otherwise is None:
        return compiled

    def finish() -> Compiled:
        try:
            job.result()
        except SmeltError as error:
            return _in_orders(otherwise(error), plan.orders)
        return compiled

    return at_first_call(finish)


def _or(otherwise: Deoptimize | None, make: Callable[[], Compiled]) -> Compiled:
    """What ``make`` makes; where it cannot, what ``otherwise`` has for the error."""
    try:
        return make()
    except SmeltError as error:
        if otherwise is None:
            raise
        return otherwise(error)


def _in_orders(compiled: Compiled, orders: Sequence[tuple[int, tuple[int, ...]]]) -> Compiled:
    """``compiled`` with outputs that lie as AOTAutograd was told (`tell_orders`)."""
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


def _checked(
    compiled: Compiled, plan: Plan, program: Program, config: Config, otherwise: Deoptimize | None
) -> Compiled:
    """What runs the plan; without Winograd where the plan's last output, which the program lacks, asks so."""
    if len(plan.outputs) == len(program.outputs):
        return compiled

    def compile_deoptimized() -> Compiled:
        logs.logger.info("smelt: %s: a convolution's result is not finite; compiled anew", program.name)
        return _again(program, replace(config, winograd=False), otherwise)

    return or_deoptimized(compiled, compile_deoptimized)


def _thawed(
    program: Program, config: Config, otherwise: Deoptimize | None, changing: frozenset[int]
) -> Compiled:
    """The program for which the inputs at these positions are no constants: they change from call to call."""
    names = ", ".join(program.inputs[position].name for position in sorted(changing))
    logs.logger.info("smelt: %s: %s change at every call; compiled anew", program.name, names)
    inputs = tuple(
        replace(each, static=each.static and position not in changing)
        for position, each in enumerate(program.inputs)
    )
    return _again(replace(program, inputs=inputs), config, otherwise)


def _again(program: Program, config: Config, otherwise: Deoptimize | None) -> Compiled:
    again = None if otherwise is None else lambda _, error: otherwise(error)
    return _or(otherwise, partial(compile_program, program, config, instead=again))


def _orders(graph: Graph, scheduled: Graph) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """How the scheduled graph's memory has the dimensions of outputs that it lays out otherwise (`Plan`)."""
    found = []
    for position, (before, after) in enumerate(zip(graph.outputs, scheduled.outputs, strict=True)):
        if isinstance(after, StridedView) and before != after:
            steps = [size_hint(stride, graph.hints) for stride in after.strides]
            dims = [dim for dim, size in enumerate(after.shape) if size != 1]
            found.append((position, tuple(sorted(dims, key=lambda dim: -steps[dim]))))
    return tuple(found)


def _clocks(
    plan: Plan, built: Library | CompileJob | None, report: CompileReport
) -> Callable[[str, Callable[..., Any]], Callable[..., Any]] | None:
    """What makes of an ATen operator one that counts its time (`CompileReport.clocks`), where wanted."""
    if "clocks" not in plan.notes:
        return None
    clocks = Clocks(CLOCKS, [tuple(each) for each in plan.notes["clocks"]])
    clocks.library = built
    report.clocks = clocks.read
    return clocks.timed


def with_errors(plan: Plan, cpp: CppUnit) -> Plan:
    """The plan with what its native steps, and those of its bodies, may raise."""
    steps: list[Step] = []
    for step in plan.steps:
        if isinstance(step, NativeStep):
            step = replace(step, errors=tuple(cpp.errors.get(step.function, ())))
        elif isinstance(step, ExternStep) and step.bodies:
            step = replace(step, bodies=tuple(with_errors(body, cpp) for body in step.bodies))
        steps.append(step)
    folded = tuple(replace(each, plan=with_errors(each.plan, cpp)) for each in plan.folded)
    return replace(plan, steps=tuple(steps), folded=folded)


def _verify_kernels(scheduled: Scheduled) -> None:
    for kernel in scheduled.plain:
        verify_kernel(kernel)
    for run in scheduled.all_runs:
        verify_run(run)


def _from_cache(
    store: cache.Cache,
    key: str,
    program: Program,
    config: Config,
    report: CompileReport,
    otherwise: Deoptimize | None,
) -> Compiled | None:
    """The compiled program that an earlier process left, where there is one."""
    with report.phase("cache"):
        entry = store.get(key)
        if entry is None or _PLAN not in entry.digests:
            return None
    try:
        with report.phase("cache"):
            plan = plan_json.from_json(entry.read(_PLAN))
            compiled = library.load_entry(entry)
            text = entry.read(library.SOURCE).decode()
        with report.phase("executor"):
            constants = {
                name: _attribute(program.graph_module, path) for name, path in plan.notes["constants"].items()
            }
            thaw = partial(_thawed, program, config, otherwise)
            built = executor.build(plan, compiled, constants, _clocks(plan, compiled, report), thaw)
            fill_report(CompileReport(report.kind, report.graph_name), plan.notes)
    except Exception:  # whatever is wrong with what was stored: it is compiled again
        store.remove(key)
        return None
    report.keep_text("plan", lambda: executor.render(plan))
    report.cache_hit = True
    tell_orders(program, plan.orders)
    fill_report(report, plan.notes)
    report.keep_text("cpp", text)
    return _checked(built, plan, program, config, otherwise)


def _attribute(module: torch.nn.Module, path: str) -> torch.Tensor:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value.detach()


def _keep_texts(report: CompileReport, program: Program, config: Config, target: Target) -> None:
    """Stages are printed when somebody asks; loops and nest are then made again, also after a cache hit."""

    def nest_text() -> str:
        scheduled = schedule(lowered(program, config, target), config, target)
        return "\n\n".join(print_run(run) for run in scheduled.runs)

    report.keep_text("contract", lambda: program.graph_module.print_readable(print_output=False))
    report.keep_text("loops", lambda: print_graph(lowered(program, config, target)))
    report.keep_text("nest", nest_text)


def made_with() -> dict[str, str]:
    """What the keys of stored programs depend on besides the program: elsewhere they are useless.

    Raises:
        ToolchainError: there is no compiler that could have made them.
    """
    tools = toolchain.find()
    return {
        "smelt": source_digest()[:16],
        "torch": torch.__version__,
        "system": f"{sys.platform} {platform.machine()}",
        "cpu": f"{tools.isa} {tools.cpu}",
        "compiler": f"{tools.family} {tools.version} {key_of(tools.identity)[:16]}",
    }


@lru_cache(maxsize=1)
def source_digest() -> str:
    """A digest of smelt's own source: another compiler makes another program."""
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".h"):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
