"""The measuring process: ``python -m smelt.cli.worker JOB.json RESULT.json``.

Each cold or warm compile is measured in a process of its own, so that contenders do not warm each other up;
the race and the comparison with float64 alternate between all contenders in one process.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smelt.cli import spec as specs
from smelt.cli.console import inner_error
from smelt.cli.spec import Program, describe, in_eager

PROFILE_SECONDS = 2.0


def main(job_file: str, result_file: str) -> int:
    """Does the job and writes ``{"result": …}`` or ``{"error": …}``; returns 0 if that was written."""
    job = json.loads(Path(job_file).read_text())
    try:
        answer: dict[str, Any] = {"result": _TASKS[job["task"]](job)}
    except Exception as raised:
        error = inner_error(raised)
        names = ("code", "what", "where", "why", "remedy")
        fields = {name: getattr(error, name, None) for name in names}
        answer = {"error": {**fields, "traceback": traceback.format_exc()}}
    Path(result_file).write_text(json.dumps(answer))
    return 0


def _set_up(job: dict[str, Any]) -> tuple[Program, Any, Callable[[], Any]]:
    """The program, its setup, and its eager runner, which has run twice (first-call costs are paid)."""
    import torch

    from smelt.runtime import toolchain
    from smelt.tracing import workload

    if "smelt" in job["contenders"]:
        toolchain.find()  # no compiler: better said now than measured as eager
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    setup = workload.Setup(job["train"], job["dynamic"], tuple(sorted(job["options"].items())))
    torch.manual_seed(workload.SEED)
    program = specs.on_device(specs.load(job["spec"]), job["device"])
    workload.prepare(program, setup)
    eager = workload.runner(program, program.call, setup)
    with in_eager(job["spec"]):
        for _ in range(2):
            eager()
    return program, setup, eager


def compile_once(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the first call beyond a usual one, by phase, for the first of the job's contenders.

    ``own_seconds`` excludes Dynamo and AOTAutograd; the import of torch._dynamo is never counted.
    """
    program, setup, _ = _set_up(job)
    import torch._dynamo  # noqa: F401  (so that no compile time includes it)

    from smelt.tracing import workload

    contender = job["contenders"][0]
    start = time.perf_counter()
    run = workload.runner(program, workload.compiled(contender, program.call, setup), setup)
    run()
    first = time.perf_counter() - start
    usual = min(_timed(run) for _ in range(2))
    total = max(first - usual, 0.0)
    own, phases, summary = _own_phases(contender)
    return {
        "seconds": total,
        "own_seconds": own,
        "phases": phases,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "report": summary,
    }


def _own_phases(contender: str) -> tuple[float | None, dict[str, float], dict[str, Any] | None]:
    """The contender's own seconds, its phases and (for smelt) its report; None if it does not measure
    them.
    """
    if contender == "smelt":
        import smelt
        from smelt.cli import report_tables

        reports = smelt.reports()
        phases = report_tables.total_phases(reports)
        return sum(phases.values()), phases, report_tables.summary(reports)
    from torch._dynamo.utils import compilation_time_metrics

    spent = {name: sum(times) for name, times in compilation_time_metrics.items()}
    inner = [name for name in spent if name.endswith("compile_fx_inner") or name == "inductor_compile"]
    return (spent[inner[0]] if inner else None), {}, None


def compare(job: dict[str, Any]) -> dict[str, Any]:
    """All contenders in one process: numerical errors against float64, then the race."""
    program, setup, eager = _set_up(job)
    from smelt.cli import accuracy, measure
    from smelt.tracing import workload

    exact = accuracy.reference(program, setup)
    ours = accuracy.run_eager(program, setup)
    verdicts: dict[str, Any] = {}
    failures: dict[str, str] = {}
    runs: dict[str, Callable[[], Any]] = {"eager": eager}
    for contender in job["contenders"]:
        try:
            call = workload.compiled(contender, program.call, setup)
            values = accuracy.run_once(program, call, setup)
        except Exception as error:
            if contender == job["contenders"][0]:
                raise
            failures[contender] = describe(error)
            continue
        verdicts[contender] = accuracy.compare(ours, values, exact).as_dict()
        runs[contender] = workload.runner(program, call, setup)
    times = measure.race(runs, job["seconds"])
    return {
        "times": {name: timing.as_dict() for name, timing in times.items()},
        "ratios": {name: measure.ratio(times["eager"], timing) for name, timing in times.items()},
        "accuracy": verdicts,
        "failures": failures,
        "machine": _machine(),
    }


def profile(job: dict[str, Any]) -> dict[str, Any]:
    """The time of smelt's compilation and of the compiled program, by function and part."""
    program, setup, _ = _set_up(job)
    import torch
    import torch._dynamo

    from smelt.cli.profile import measure

    return measure(program, setup, min(job["seconds"], PROFILE_SECONDS), torch.get_num_threads(), job["to"])


def _machine() -> dict[str, Any]:
    import platform

    import torch

    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def package(job: dict[str, Any]) -> dict[str, Any]:
    """A package and the compiled model it was made from, in turns."""
    from smelt.cli.package_bench import compared

    return compared(job)


_TASKS = {"compile": compile_once, "compare": compare, "profile": profile, "package": package}

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
