"""The compilation of a program, as one visible list of passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch

from smelt.capture import Program, tell_orders
from smelt.capture.sizes import explain_sizes
from smelt.clusters import in_clusters
from smelt.codegen.cpp import UnitPrinter, header_text, once_text
from smelt.config import Config
from smelt.contract import (
    Denied,
    clustered,
    contracted,
    devices_of,
    graph_key,
    has_kernel,
    unsupported,
)
from smelt.contract.facts import REFUSED, data_sizes
from smelt.contract.higher_order import BODIES, bodies_of, higher_order_name
from smelt.errors import CacheError, SmeltError
from smelt.loops.ir import Graph
from smelt.loops.printer import print_graph
from smelt.lowering import tables
from smelt.nest.ir import Kernel
from smelt.nest.origins import verify as verify_origins
from smelt.nest.printer import print_run
from smelt.nest.verify import verify as verify_kernel
from smelt.nest.verify import verify_blocks, verify_run
from smelt.passes import Watch
from smelt.pipeline.built import Again, Compiled, in_orders, output_orders, runnable, with_errors
from smelt.pipeline.notes import Unit, choices, notes_of, work_of
from smelt.pipeline.passes import lowered, watched
from smelt.pipeline.targets import CachedTarget, Code, CodeTarget, MeasuredTarget, machine_target
from smelt.reporting import LOG, CompileReport
from smelt.runtime import cache, library, plan_json, probe, process, toolchain, trampoline
from smelt.runtime.deoptimize import at_first_call
from smelt.runtime.garbage import garbage_goes, garbage_waits
from smelt.runtime.library import CompileJob
from smelt.runtime.made_with import source_digest
from smelt.runtime.plan import Plan
from smelt.runtime.precompiled import Precompiled, precompiled
from smelt.runtime.recorded import why_not_recorded
from smelt.runtime.toolchain import Toolchain
from smelt.schedule import Choose, Scheduled, Target, schedule
from smelt.schedule.graph.ordered import not_strict
from smelt.tuning import Measurements, Tuning

Instead = Callable[[Program, SmeltError], Compiled]
"""The function that runs a program whose compilation fails at its first call, given the error; it may raise
that error.
"""

PHASES = ("contract", "key", "lowering", "tuning", "schedule", "codegen", "compile", "executor", "wait")
"""The phases in order, as in ``CompileReport.phase_seconds``; their passes are in `smelt.pipeline.passes`.

A cache hit goes from ``key`` to ``executor``. ``tuning`` (mode ``max``) looks up the faster kernel; missing
measurements are made after ``codegen``, or at the first call, while the C++ compiler runs.
"""

_PLAN, _CODE = "plan.json", "code.json"

Deoptimize = Callable[[SmeltError], Compiled]
"""`Instead`, bound to one program."""

Restore = Callable[[cache.Entry], Code]
"""Makes the code that an entry of the cache holds."""

Refused = Mapping[tuple[str, str | None], str]
"""Calls that PyTorch runs, by operator and source line, and the reason."""


def compile_program(
    program: Program,
    config: Config,
    *,
    called_next: bool = False,
    instead: Instead | None = None,
    refused: Refused | None = None,
    target: CodeTarget | None = None,
) -> Compiled:
    """Compile one captured program; returns a function of ONE list of arguments (which it empties).

    The C++ compiler runs in parallel to Python: the first call of the result waits for it, and raises its
    errors, unless ``instead`` has something else to run. ``called_next``: that call is this thread's next use
    of it, so the measurements of mode ``max`` may wait for it as well (and the report is complete after it).
    If smelt does not support some calls, or they are ``refused``, the program is compiled in clusters
    (`smelt.contract.clusters`), each with a report of its own. ``target``: the target of kernels, by default
    this machine's CPU through C++; its results are not cached.

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
            contracts = contracted(program, partial(_stays, config, refused or {}, target), watch)
            reasons = unsupported(contracts) | _refused(contracts, config, refused or {})
            devices = devices_of(contracts.graph_module.graph.nodes)
            apart = bool(reasons) or len(devices) > 1
            parts = clustered(contracts, reasons, config.min_cluster) if apart else None
            if parts is None and target is None and devices and devices[0].type != "cpu":
                target = _gpu_target(devices[0])
        again = partial(_again, otherwise, target)
        if config.ordered and (parts is not None or target is not None):
            found = [reason for each in reasons.values() for reason in each]
            raise not_strict(program.name, found[0] if found else "a device or target other than this CPU")
        if parts is not None:
            each = partial(compile_program, called_next=called_next, instead=instead, target=target)
            compiled = in_clusters(parts, config, report, each)
        elif target is not None:
            compiled = _compile_for(target, contracts, config, report, watch, otherwise, again)
        else:
            compiled = _compile(contracts, config, report, watch, called_next, otherwise, again)
        report.keep_texts_with(compiled)
        return compiled


def _gpu_target(device: torch.device) -> CodeTarget:
    """The target of a device; its modules are not imported where there are only CPUs."""
    from smelt.pipeline import triton

    return triton.gpu_target(device)


def _stays(config: Config, refused: Refused, target: CodeTarget | None, node: torch.fx.Node) -> bool:
    """Whether a higher-order call is not inlined: it is denied, or there is a kernel of ours for it."""
    reason = Denied.of(config).reason(node)
    if reason is not None:
        node.meta[REFUSED] = reason
        return True
    failed = (str(node.target), node.meta.get("where")) in refused
    return (
        config.contractions and not failed and has_kernel(node, target is not None and target.machine.blocks)
    )


def _refused(program: Program, config: Config, refused: Refused) -> dict[torch.fx.Node, list[str]]:
    """Marks calls for PyTorch, also in control flow; returns those that no ATen call can replace."""
    found: dict[torch.fx.Node, list[str]] = {}
    denied = Denied.of(config)

    def mark(module: torch.fx.GraphModule, around: torch.fx.Node | None) -> None:
        for node in (each for each in module.graph.nodes if each.op == "call_function"):
            reason = refused.get((str(node.target), node.meta.get("where"))) or denied.reason(node)
            if reason is not None and isinstance(node.target, torch._ops.HigherOrderOperator):
                found[around or node] = [reason]
            elif reason is not None:
                node.meta[REFUSED] = reason
            for body in bodies_of(node) if higher_order_name(node.target) in BODIES else ():
                mark(getattr(module, str(body.target)), around or node)

    if denied or refused:
        mark(program.graph_module, None)
    return found


def _compile(
    program: Program,
    config: Config,
    report: CompileReport,
    watch: Watch | None,
    called_next: bool,
    otherwise: Deoptimize | None,
    again: Again,
) -> Compiled:
    with report.phase("contract"):
        if program.kind != "backward":
            report.dynamic_sizes, report.size_guards = explain_sizes(program)
            report.dynamic_sizes += data_sizes(program.graph_module.graph)
    with report.phase("key"):
        tools = replace(toolchain.find(), seconds=config.compiler_seconds)
        target = machine_target(tools)
        store = cache.open_cache()
        threads = torch.get_num_threads() if config.mode == "max" else 0  # measurements depend on them
        key = cache.key_of(
            *(graph_key(program), config.key(), tools.identity, torch.__version__, source_digest()),
            str(threads),
        )
        report.entry = key
    if config.keep_text:
        _keep_texts(report, program, config, target)
    kept = (_loaded, program, config, report, otherwise, again)
    found = None if config.print_passes else _from_cache(store, key, *kept)
    if found is not None:
        return found
    process.check(tools.command, tools.seconds)
    header = _header(tools, store)
    with report.phase("lowering"):
        graph = lowered(program, config, target, watch)
    tuning = None
    if config.mode == "max" and config.contractions:
        with report.phase("tuning"):
            tuning = Tuning(config, target, tools, store, source_digest())
            tuning.look_up(graph)
    about = (program, config, report, watch, target, tools, store, key, header, graph, tuning)
    rest = _Rest(*about, otherwise, again)
    unit = rest.unit()
    if tuning is None or not tuning.unknown:
        return rest.finished(unit)
    job = rest.job(unit)
    if not called_next or program.kind != "inference":  # AOTAutograd asks now for the layout of saved outputs
        return rest.measured(tuning, unit, job)

    def measured() -> Compiled:
        with garbage_waits(), garbage_goes(traced=False):
            return _or(otherwise, partial(rest.measured, tuning, unit, job))

    return at_first_call(measured)


@dataclass(frozen=True, slots=True)
class Remade:
    """A program, its loops and its schedule, made once more for people to look at."""

    program: Program
    graph: Graph
    scheduled: Scheduled
    config: Config


@dataclass(frozen=True, slots=True)
class _Rest:
    """The remaining phases of a program that is lowered."""

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
    again: Again

    def unit(self) -> Unit:
        """The graph as kernels and text; compilers start with the finished parts of it."""
        config, report, tuning = self.config, self.report, self.tuning
        objects = library.Objects(self.tools, self.store, self.header)
        with report.phase("schedule"):
            choose, alone = (tuning.choose, tuning.alone) if tuning else (None, ())
            if tuning and config.keep_text:
                _keep_texts(report, self.program, config, self.target, choose)
            if config.clocks:
                alone = ()  # they would count the runs of measurements
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
            plan = with_errors(scheduled.plan, cpp.errors)
        return Unit(scheduled, plan, cpp, objects)

    def job(self, unit: Unit, extra: Mapping[str, bytes] | None = None) -> CompileJob | None:
        """The unit's compilation, with ``extra`` files for its cache entry; None if there is no kernel.

        An entry without a plan is incomplete: another process compiles it again.
        """
        if not unit.scheduled.runs:
            return None
        text, parts = unit.cpp.text, unit.cpp.parts
        return library.compile_unit(text, self.tools, self.store, self.key, extra, parts, unit.objects)

    def measured(self, tuning: Tuning, unit: Unit, job: CompileJob | None) -> Compiled:
        """The executor of the unit that ``job`` compiles, or a faster one by measurement against ATen's
        calls.
        """
        with self.report.phase("tuning"):
            otherwise = tuning.measure(unit.scheduled, job)
        return self.finished(self.unit() if otherwise else unit)

    def finished(self, unit: Unit) -> Compiled:
        """The executor of the unit; the report describes it."""
        program, config, report = self.program, self.config, self.report
        about = (program, config, report, self.target, self.graph, self.tuning)
        plan, constants = _noted(*about, unit.scheduled, unit.plan)
        report.constants = WeakValueDictionary(constants)
        if config.clocks:
            plan.notes["clocks"] = work_of(unit)
        report.keep_text("cpp", unit.cpp.text)
        with report.phase("compile"):
            job = self.job(unit, {_PLAN: plan_json.to_json(plan).encode()})
            if job is not None:
                job.on_ready = report.compiled
        built = runnable(plan, job, constants, program, config, report, self.again)
        return built if job is None else _once_there(built, job, plan, self.otherwise)


def _compile_for(
    target: CodeTarget,
    program: Program,
    config: Config,
    report: CompileReport,
    watch: Watch | None,
    otherwise: Deoptimize | None,
    again: Again,
) -> Compiled:
    """Compiles a program for another target than C++."""
    machine = target.machine
    if machine.device != "CPU":
        config = replace(config, freezing=False)  # its checks read the memory of parameters
    if torch.are_deterministic_algorithms_enabled():
        config = replace(config, deterministic=True)
    if config.keep_text:
        _keep_texts(report, program, config, machine, target.choose)
    store, key = cache.open_cache(), ""
    if isinstance(target, CachedTarget):
        with report.phase("key"):
            made = (target.identity, torch.__version__, source_digest())
            key = cache.key_of("launched", graph_key(program), config.key(), *made)
        kept = (_restored(target), program, config, report, otherwise, again)
        found = None if config.print_passes else _from_cache(store, key, *kept)
        if found is not None:
            return found
    with report.phase("lowering"):
        graph = lowered(program, config, machine, watch)
    choose, tuning = target.choose, None
    if isinstance(target, MeasuredTarget) and config.mode == "max" and config.contractions:
        with report.phase("tuning"):
            tuning = target.measured(graph, config, store, source_digest())
            choose = tuning.choose
    with report.phase("schedule"):
        scheduled = schedule(graph, config, machine, choose=choose, watch=watch)
        if config.verify:
            _verify_kernels(scheduled, machine.blocks)
    with report.phase("codegen"):
        code = target.build(scheduled.all_runs)
    plan = with_errors(scheduled.plan, code.errors, code.device)
    plan, constants = _noted(program, config, report, machine, graph, tuning, scheduled, plan)
    if isinstance(target, MeasuredTarget) and target.records and config.mode == "max":
        plan.notes["recorded"] = _fixed(program, graph), why_not_recorded(plan)
    if key and code.stored is not None:
        with suppress(CacheError):  # no room: the next process compiles again
            store.put(key, {_PLAN: plan_json.to_json(plan).encode(), _CODE: code.stored})
    built = runnable(plan, code.library, constants, program, config, report, again)
    return _kept(code, plan, built, report, otherwise)


def _fixed(program: Program, graph: Graph) -> list[int]:
    """The positions of inputs that stay where they are: parameters, buffers, and those that are written."""
    written = {each.target for each in graph.mutations}
    places = [place for place, name in enumerate(graph.inputs) if name in written]
    return sorted({*places, *program.static_inputs})


def _kept(
    code: Code, plan: Plan, built: Compiled, report: CompileReport, otherwise: Deoptimize | None
) -> Compiled:
    """The executor ``built`` of a plan, once its library is there; the report keeps the texts of the code."""
    report.keep_text(code.stage, code.text)
    if code.assembly is not None:
        report.keep_text("ptx", code.assembly)
    if isinstance(code.library, (library.Library, library.PythonLibrary)):
        return built
    return _once_there(built, code.library, plan, otherwise)


def _restored(target: CachedTarget) -> Restore:
    """Makes the code of a target from an entry."""
    return lambda entry: target.restored(entry.read(_CODE))


def _loaded(entry: cache.Entry) -> Code:
    """The code of this machine's CPU that an entry holds."""
    return Code(entry.read(library.SOURCE).decode(), library.load_entry(entry), {})


def _noted(
    program: Program,
    config: Config,
    report: CompileReport,
    target: Target,
    graph: Graph,
    tuning: Measurements | None,
    scheduled: Scheduled,
    plan: Plan,
) -> tuple[Plan, dict[str, torch.Tensor]]:
    """The plan with the data of the report and the cache, and its constants. AOTAutograd is told the layout
    of the outputs.
    """
    constants = {name: tensor for each in graph.with_bodies() for name, tensor in each.constants.items()}
    orders = output_orders(graph, scheduled.graph)
    tell_orders(program, orders)
    notes = notes_of(scheduled, constants)
    with report.phase("schedule"):
        notes["choices"] = choices(graph, scheduled.graph, config, target, tuning)
    report.fill(notes)
    return replace(plan, notes=notes, orders=orders), constants


def _once_there(compiled: Compiled, job: library.Job, plan: Plan, otherwise: Deoptimize | None) -> Compiled:
    """``compiled``, once its library exists; ``otherwise`` if it cannot be made."""
    if otherwise is None:
        return compiled

    def finish() -> Compiled:
        try:
            job.result()
        except SmeltError as error:
            return in_orders(otherwise(error), plan.orders)
        return compiled

    return at_first_call(finish)


def _or(otherwise: Deoptimize | None, make: Callable[[], Compiled]) -> Compiled:
    """The result of ``make``, or that of ``otherwise`` for its error."""
    try:
        return make()
    except SmeltError as error:
        if otherwise is None:
            raise
        return otherwise(error)


def _again(
    otherwise: Deoptimize | None, target: CodeTarget | None, program: Program, config: Config
) -> Compiled:
    instead = None if otherwise is None else lambda _, error: otherwise(error)
    return _or(otherwise, partial(compile_program, program, config, instead=instead, target=target))


def _verify_kernels(scheduled: Scheduled, blocks: bool = False) -> None:
    for kernel in scheduled.plain:
        verify_kernel(kernel)
    for run in scheduled.all_runs:
        verify_run(run)
    verify_origins(call for run in scheduled.all_runs for call in run.calls)
    if blocks:
        verify_blocks(call.kernel for run in scheduled.all_runs for call in run.calls)


def _from_cache(
    store: cache.Cache,
    key: str,
    restore: Restore,
    program: Program,
    config: Config,
    report: CompileReport,
    otherwise: Deoptimize | None,
    again: Again,
) -> Compiled | None:
    """The compiled program that an earlier process left in the cache, or None."""
    with report.phase("cache"):
        entry = store.get(key)
        if entry is None or _PLAN not in entry.digests:
            return None
    try:
        with report.phase("cache"):
            plan = plan_json.from_json(entry.read(_PLAN))
            code = restore(entry)
        constants = {
            name: _attribute(program.graph_module, path) for name, path in plan.notes["constants"].items()
        }
        built = runnable(plan, code.library, constants, program, config, report, again)
        CompileReport(report.kind, report.graph_name).fill(plan.notes)
    except Exception:  # any error of a stored entry: the program is compiled again
        store.remove(key)
        return None
    report.cache_hit = True
    tell_orders(program, plan.orders)
    report.fill(plan.notes)
    report.constants = WeakValueDictionary(constants)
    return _kept(code, plan, built, report, otherwise)


def _attribute(module: torch.nn.Module, path: str) -> torch.Tensor:
    if path.startswith(tables.PREFIX):
        return tables.made(path)
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value.detach()


def _keep_texts(
    report: CompileReport, program: Program, config: Config, target: Target, choose: Choose | None = None
) -> None:
    """Prints stages on demand; loops and nest are then made again, also after a cache hit."""

    def again(watch: Watch | None = None) -> Remade:
        graph = lowered(program, config, target, watch)
        return Remade(program, graph, schedule(graph, config, target, choose=choose, watch=watch), config)

    report.keep_text("contract", lambda: program.graph_module.print_readable(print_output=False))
    report.keep_text("loops", lambda: print_graph(lowered(program, config, target)))
    report.keep_text("nest", lambda: "\n\n".join(print_run(run) for run in again().scheduled.runs))
    report.keep_again(again)


def start_helpers() -> None:
    """Starts to compile what each program needs, the first time on a machine, while others trace one."""
    trampoline.start()
    probe.start()
    with suppress(SmeltError):  # no compiler: whoever compiles the program says so
        _header(toolchain.find(), cache.open_cache())


def _header(tools: Toolchain, store: cache.Cache) -> Precompiled | None:
    return precompiled(header_text(once=False), once_text(), tools, store)
