"""``smelt explain``: the compilation of a program: graphs, breaks, kernels, ATen calls, fallbacks, stages."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from smelt.cli import spec as specs
from smelt.cli.console import out, progress
from smelt.cli.fresh_cache import cache_in, temporary_folder
from smelt.errors import SmeltError

_TIMED_RUNS = 5


@dataclass(frozen=True, slots=True)
class Break:
    """A graph break of Dynamo."""

    reason: str
    where: str | None


def explain(
    spec: str,
    *,
    train: bool,
    stage: str | None,
    moments: list[str],
    dynamic: bool | None,
    options: dict[str, Any],
    gpu: str | None = None,
) -> None:
    """Compiles in an empty cache (a cached graph has no text of its stages), runs once, and prints the
    result. ``gpu``: the architecture to compile for; PyTorch runs the program then.

    ``moments``: ``before NAME`` and ``after NAME`` for passes whose IR is printed instead.

    Raises:
        SmeltError: a bad SPEC, a model that raises in eager (SM0906), a missing compiler.
    """
    specs.split(spec)
    if moments:
        options = {**options, "print_passes": ";".join(each.split()[1] for each in moments)}
    with progress(f"compiling {spec}"):
        reports, breaks = _compile(spec, train, dynamic, options, gpu)
    wanted = moments if stage is None else [stage, *moments]
    for text in wanted:
        _print_stage(reports, text)
    if wanted:
        return
    from smelt.cli import report_tables

    console = out()
    kinds = "forward and backward" if train else "inference"
    graphs = sum(not each.is_cluster for each in reports)
    console.print(f"[bold]{spec}[/] ({kinds}): {graphs} graph(s), {len(breaks)} graph break(s)")
    for each in breaks:
        console.print(
            Text(f"  break: {each.reason}" + (f"  (at {each.where})" if each.where else ""), "yellow")
        )
    console.print()
    console.print(report_tables.graph_tables(reports))
    console.print(report_tables.overview(reports))


def passes() -> None:
    """Prints the passes of the compiler, in order."""
    from rich.table import Table

    from smelt.passes import name_of, summary_of
    from smelt.pipeline.passes import PASSES

    for about, listed in PASSES:
        table = Table(title=about, title_justify="left", show_header=False, box=None)
        for pass_ in listed:
            table.add_row(f"[bold]{name_of(pass_)}[/]", summary_of(pass_))
        out().print(table, "")


def _print_stage(reports: list[Any], stage: str) -> None:
    """Prints plain text, so that it can be piped, compared, kept."""
    for report in reports:
        if len(reports) > 1:
            sys.stdout.write(f"=== {report.graph_name} ({report.kind})\n")
        if report.kind == "eager" and stage not in report.stages():
            sys.stdout.write(f"PyTorch runs this graph: {report.fallbacks[0].reason}\n")
            continue
        sys.stdout.write(report.text(stage).rstrip("\n") + "\n")


def _compile(
    spec: str, train: bool, dynamic: bool | None, options: dict[str, Any], gpu: str | None
) -> tuple[list[Any], list[Break]]:
    import torch

    import smelt
    from smelt.runtime import toolchain
    from smelt.tracing import workload

    toolchain.find()
    setup = workload.Setup(train, dynamic, tuple(sorted(options.items())))
    torch.manual_seed(workload.SEED)
    program = specs.load(spec)
    workload.prepare(program, setup)
    with specs.in_eager(spec):
        workload.runner(program, program.call, setup)()
    with temporary_folder("explain") as folder, cache_in(folder):
        smelt.reset()
        torch._dynamo.utils.counters.clear()
        call = (
            workload.compiled("smelt", program.call, setup) if gpu is None else _for_gpu(program, setup, gpu)
        )
        workload.runner(program, call, setup)()
        reports = smelt.reports()
        if gpu is None and any(report.regions for report in reports):
            _time_regions(reports, program, setup)
        broken = bool(torch._dynamo.utils.counters["graph_break"])
    return reports, _breaks(program, train) if broken else []


def _for_gpu(program: specs.Program, setup: Any, architecture: str) -> Any:
    """The program compiled for a GPU that need not be there; PyTorch runs it."""
    import torch

    from smelt.backend import backend_for
    from smelt.capture import by_pytorch
    from smelt.pipeline.triton import absent_target

    def instead(program: Any, error: SmeltError) -> Any:
        if error.code not in ("SM0208", "SM0209"):
            raise error
        return by_pytorch(program)

    backend = backend_for(absent_target(architecture), instead)
    return torch.compile(program.call, backend=backend, dynamic=setup.dynamic, options=dict(setup.options))


def _time_regions(reports: list[Any], program: specs.Program, setup: Any) -> None:
    """Measures the run time of each region: the program is compiled once more, with clocks."""
    import smelt
    from smelt.tracing import workload

    run = workload.clocked(program, setup)
    run()
    again = [report for report in smelt.reports() if report.regions]
    for region in (region for report in again for region in report.regions):
        region.seconds = 0.0  # the first run compiles
    for _ in range(_TIMED_RUNS):
        run()
    for report, timed in zip([report for report in reports if report.regions], again, strict=True):
        for region, each in zip(report.regions, timed.regions, strict=True):
            region.seconds = each.seconds / _TIMED_RUNS


def _breaks(program: specs.Program, train: bool) -> list[Break]:
    """Traces once more, only to find the reasons and lines of breaks."""
    import torch

    with torch.set_grad_enabled(train):
        explained = torch._dynamo.explain(program.call)(*program.args, **program.kwargs)
    breaks = []
    for reason in explained.break_reasons:
        frame = reason.user_stack[-1] if reason.user_stack else None
        where = f"{frame.filename}:{frame.lineno} in {frame.name}" if frame else None
        breaks.append(Break(next(iter(reason.reason.splitlines()), ""), where))
    return breaks
