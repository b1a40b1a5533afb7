"""Records a trace: compiles and runs a program with clocks, and joins times and graphs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import smelt
from smelt.contract.where import frames
from smelt.errors import SmeltError
from smelt.reporting import CompileReport, Region
from smelt.tracing import parts, workload
from smelt.tracing.about import VERSION, about, peaks_of
from smelt.tracing.graphs import Numbers, Times, files_of, graph_trace
from smelt.tracing.parts import Data
from smelt.tracing.program import Program

SHORTEST = 0.002
"""Limit in seconds below which the time between two parts of a compilation is not told."""


def record(
    program: Program, setup: workload.Setup, *, title: str, command: str, seconds: float = 1.0
) -> Data:
    """The trace of a program: it is compiled anew, with clocks, and runs for ``seconds``; 0: it runs only
    once, and nothing is timed.

    Raises:
        SmeltError: SM0930, nothing of it was compiled, so that there is nothing to show.
    """
    run = workload.clocked(program, setup)
    begin = time.perf_counter()
    run()
    end = time.perf_counter()
    reports = smelt.reports()
    spans = compile_spans(reports, begin, end)
    run_seconds, times = _measured(run, reports, seconds) if seconds > 0 else (None, {})
    numbers = Numbers()
    graphs: list[Data] = []
    for report in reports:
        if report.regions:
            graphs.append(_regions(report, numbers))
            continue
        found = graph_trace(report, times.get(id(report), Times()), numbers)
        if found is not None:
            graphs.append(found)
    if not graphs:
        why = "; ".join(str(each) for report in reports for each in report.fallbacks[:1]) or "no graph"
        raise SmeltError("SM0930", f"there is nothing of {title} to show", why=why)
    return {
        "schema": "smelt.trace",
        "version": VERSION,
        "title": title,
        "made": about({name: value for name, value in setup.options if name != "clocks"}, command),
        "peaks": peaks_of() if seconds > 0 else None,
        "run_seconds": run_seconds,
        "files": files_of(numbers),
        "compile": spans,
        "graphs": graphs,
    }


# -- times -------------------------------------------------------------------------------------------------


def _measured(
    run: Callable[[], Any], reports: Sequence[CompileReport], seconds: float
) -> tuple[float, dict[int, Times]]:
    """Seconds of one run, and the times of each graph's parts, by the report's identity."""
    for _ in range(3):
        run()
    counted = [report for report in reports if report.counters is not None]
    before = {id(report): report.counters.counters() for report in counted}
    for report in counted:
        report.counters.calls.clear()
    for report in reports:
        for region in report.regions:
            region.seconds = 0.0
    runs, begin = 0, time.perf_counter()
    while runs < 3 or time.perf_counter() - begin < seconds:
        run()
        runs += 1
    taken = (time.perf_counter() - begin) / runs
    for report in reports:
        for region in report.regions:
            region.seconds /= runs
    found = {}
    for report in counted:
        after = report.counters.counters()
        kernels = [
            ((late[1] - early[1]) * 1e-9 / runs, (late[0] - early[0]) / runs)
            for early, late in zip(before[id(report)] or [(0, 0)] * len(after), after)
        ]
        names = [name for name, *_ in report.counters.kernels]
        calls = _averaged(list(report.counters.calls), runs)
        found[id(report)] = Times(kernels, names, report.counters.file, calls)
    return taken, found


def _averaged(calls: Sequence[tuple[str, float, int, int]], runs: int) -> list[tuple[str, float, int, int]]:
    """The calls of one run, with the mean of their times, if all runs made the same ones."""
    count, rest = divmod(len(calls), runs)
    one = calls[:count]
    if rest or any(calls[n][0] != one[n % count][0] for n in range(len(calls))):
        return []
    return [
        (target, sum(calls[n + turn * count][1] for turn in range(runs)) / runs, operations, moved)
        for n, (target, _, operations, moved) in enumerate(one)
    ]


def compile_spans(reports: Sequence[CompileReport], begin: float, end: float) -> list[Data]:
    """The parts of a first call between two times: Dynamo, AOTAutograd, smelt's phases and passes, the C++
    compiler, the first run; each with the number of spans around it.
    """
    listed = sorted(
        ((name, first, last) for report in reports for name, first, last in report.spans if last > first),
        key=lambda span: (span[1], -span[2]),
    )
    own = [span for span in listed if span[0] != "C++ compiler"]
    gaps, at = [], begin
    for _, first, last in own:
        if first > at + SHORTEST:
            gaps.append(("Dynamo" if at == begin else "PyTorch", at, first))
        at = max(at, last)
    if own and end > at:
        gaps.append(("first run", at, end))
    found: list[Data] = []
    around: list[float] = []
    for name, first, last in sorted([*own, *gaps], key=lambda span: (span[1], -span[2])):
        while around and around[-1] < last - 1e-9:
            around.pop()
        found.append({"name": name, "begin": first - begin, "seconds": last - first, "depth": len(around)})
        around.append(last)
    compilers = [span for span in listed if span[0] == "C++ compiler"]
    deepest = max((span["depth"] for span in found), default=0)
    found += [
        {"name": name, "begin": first - begin, "seconds": last - first, "depth": deepest + 1}
        for name, first, last in compilers
    ]
    return found


# -- the rest ----------------------------------------------------------------------------------------------


def _regions(report: CompileReport, numbers: Numbers) -> Data:
    """A program in clusters: its regions in order; clusters have graphs of their own."""
    return parts.graph(
        report.graph_name,
        "eager",
        sizes=[str(each) for each in report.dynamic_sizes],
        guards=[str(each) for each in report.size_guards],
        operators=[_operator(each, numbers) for each in report.regions],
        steps=[_region(each, report.graph_name, numbers, place) for place, each in enumerate(report.regions)],
    )


def _operator(region: Region, numbers: Numbers) -> Data:
    """The calls of a region as one operator, with the line of the first."""
    stack = reversed(frames(region.stack))
    name = ", ".join(region.ops) or region.name
    lines = [[numbers.file(file), line, function] for file, line, function in stack]
    return parts.operator(region.name, name, f"{region.name}: {name}", lines=lines)


def _region(region: Region, graph: str, numbers: Numbers, place: int) -> Data:
    seconds = region.seconds or None
    if region.is_native:
        return parts.step(numbers.step("cluster"), "cluster", f"{graph} {region.name}", seconds=seconds)
    name = ", ".join(region.ops) or region.name
    reason = f"{region.reason} (at {region.where})" if region.where else region.reason
    about = {"origins": [place], "seconds": seconds, "reason": reason}
    return parts.step(numbers.step("eager"), "eager", name, **about)
