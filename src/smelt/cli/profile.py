"""``smelt bench --profile``: the time of the compiler's functions, and of the compiled program's parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from smelt.cli import sampling
from smelt.cli.spec import Program

FUNCTIONS, PARTS = 25, 25
"""Limits on the rows of the tables."""
PEAK_SECONDS = 1.0
_ROOT = str(Path(__file__).resolve().parents[1])


def measure(program: Program, setup: Any, seconds: float, threads: int, to: str | None) -> dict[str, Any]:
    """The profile as plain data; ``to``: a file for the compiler's profile (``.prof`` or ``.json``).

    The program is compiled twice: once sampled, and once more with clocks around its kernels and ATen calls.
    """
    from smelt.tracing import peaks

    compiling, clocked = _compiled(program, setup, to), parts(program, setup, seconds)
    return {"compile": compiling, "parts": clocked, "peaks": peaks.measured(threads, PEAK_SECONDS)}


def _compiled(program: Program, setup: Any, to: str | None) -> dict[str, Any]:
    import smelt
    from smelt.cli import report_tables
    from smelt.pipeline import compile_program
    from smelt.tracing import workload

    run = workload.runner(program, workload.compiled("smelt", program.call, setup), setup)
    with sampling.Sampler() as sampler:
        run()
    own = sampling.below(sampler.samples, sampling.Function.of(compile_program.__code__))
    if to is not None:
        sampling.write(own, Path(to), "smelt: compiling")
    spent = sampling.by_own_time(sampling.folded(own, _ROOT))
    return {
        "seconds": sum(sampler.samples.values()),
        "own_seconds": sum(own.values()),
        "phases": report_tables.total_phases(smelt.reports()),
        "functions": [
            {
                "name": each.function.name,
                "file": str(Path(each.function.file).relative_to(Path(_ROOT).parent)),
                "line": each.function.line,
                "own": each.own,
                "total": each.total,
            }
            for each in spent
        ],
    }


def parts(program: Program, setup: Any, seconds: float) -> dict[str, Any]:
    """Each kernel and ATen operator, the longest first: its time and work in one run of the program.

    The program is compiled anew, with clocks; it runs for ``seconds``.
    """

    import smelt
    from smelt.tracing import workload

    run = workload.clocked(program, setup)
    for _ in range(3):
        run()
    reports = [report for report in smelt.reports() if report.clocks is not None]
    before = [_read(report.clocks) for report in reports]
    runs, begin = 0, time.perf_counter()
    while runs < 3 or time.perf_counter() - begin < seconds:
        run()
        runs += 1
    taken = time.perf_counter() - begin
    found: list[dict[str, Any]] = []
    for report, earlier in zip(reports, before):
        for name, part in _read(report.clocks).items():
            counted = {key: value - earlier[name][key] for key, value in part.items()}
            if counted["calls"]:
                each = {key: value / runs for key, value in counted.items()}
                found.append({"graph": report.graph_name, "name": name[1], "kind": name[0], **each})
    found.sort(key=lambda part: -part["seconds"])
    return {"run_seconds": taken / runs, "runs": runs, "rows": found}


def _read(clocks: Callable[[], list[Any]] | None) -> dict[tuple[str, str], dict[str, float]]:
    assert clocks is not None
    return {
        (part.kind, part.name): {
            "calls": part.calls,
            "seconds": part.seconds,
            "operations": part.operations,
            "moved": part.moved,
        }
        for part in clocks()
    }


# -- tables -------------------------------------------------------------------------------------------------


def show(profile: dict[str, Any], console: Console) -> None:
    """The profile as three tables."""
    compiling, clocked, peak = profile["compile"], profile["parts"], profile["peaks"]
    total, own = _ms(compiling["seconds"]), _ms(compiling["own_seconds"])
    console.print(f"[italic]compiling: {total} ms of one processor, {own} of them smelt's[/]")
    console.print(_phase_table(compiling))
    console.print("[italic]smelt's functions while compiling (own: with the library functions they call)[/]")
    console.print(_function_table(compiling))
    console.print(
        f"[italic]running: {_ms(clocked['run_seconds'])} ms a run, "
        f"{_ms(sum(row['seconds'] for row in clocked['rows']))} of them in kernels and ATen calls; peaks: "
        f"{peak['flops'] / 1e9:,.0f} GFLOP/s ({peak['flops_from']}), {peak['bytes'] / 1e9:,.1f} GB/s[/]"
    )
    console.print(_part_table(clocked, peak))


def _table(*headings: str) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("", "where") else "right")
    return table


def _phase_table(compiling: dict[str, Any]) -> Table:
    table = _table("", "ms")
    for phase, seconds in sorted(compiling["phases"].items(), key=lambda item: -item[1]):
        table.add_row("wait for the C++ compiler" if phase == "wait" else phase, _ms(seconds))
    return table


def _function_table(compiling: dict[str, Any]) -> Table:
    table = _table("", "own ms", "all ms", "share", "where")
    own = max(compiling["own_seconds"], 1e-9)
    for each in compiling["functions"][:FUNCTIONS]:
        where = f"{each['file']}:{each['line']}"
        share = f"{each['own'] / own:.1%}"
        table.add_row(Text(each["name"]), _ms(each["own"]), _ms(each["total"]), share, Text(where))
    return table


def _part_table(clocked: dict[str, Any], peak: dict[str, Any]) -> Table:
    table = _table("", "calls", "µs a call", "ms a run", "share", "Gop/s", "GB/s", "of the peaks")
    for row in clocked["rows"][:PARTS]:
        seconds = max(row["seconds"], 1e-12)
        rates = row["operations"] / seconds, row["moved"] / seconds
        best = max(rates[0] / peak["flops"], rates[1] / peak["bytes"])
        name = row["name"] if row["kind"] == "aten" else f"kernel {row['name']}"
        table.add_row(
            Text(name),
            f"{row['calls']:g}",
            f"{seconds / row['calls'] * 1e6:,.1f}",
            _ms(seconds),
            f"{seconds / max(clocked['run_seconds'], 1e-12):.1%}",
            f"{rates[0] / 1e9:,.1f}" if row["operations"] else "–",
            f"{rates[1] / 1e9:,.1f}",
            f"{best:.0%}" if row["operations"] or row["kind"] == "kernel" else "–",
        )
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"
