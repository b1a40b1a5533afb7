"""One contender's process: it takes orders as lines of JSON, and answers each with one.

`python benchmarks/worker.py CONTENDER THREADS`, started by `team.Member`. What libraries print to standard
output goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo  # so that nobody's compile time has it

import architectures
import kernels
import zoo
from contenders import CONTENDERS, OURS
from smelt.cli import accuracy, profile
from smelt.cli.console import inner_error
from smelt.cli.spec import Program, describe
from smelt.runtime import toolchain
from smelt.tracing import peaks, workload
from smelt.tracing.workload import Setup
from team import PACE

Answer = dict[str, Any]


class Worker:
    """What is ready to run, by name of the program."""

    def __init__(self, contender: str, threads: int) -> None:
        self.contender = CONTENDERS[contender]
        self.threads = threads
        self.runs: dict[str, Callable[[], Any]] = {}
        torch.set_num_threads(threads)

    def ready(self) -> Answer:
        """All imports are done."""
        return {}

    def reference(self, program: str, train: bool, file: str) -> Answer:
        """Write eager's values and those in float64 for the other processes."""
        setup = Setup(train)
        made = _made(program, setup)
        eager = accuracy.run_eager(made, setup)
        torch.save((eager, accuracy.reference(made, setup)), file)
        return {}

    def prepare(self, program: str, train: bool, dynamic: bool | None, file: str) -> Answer:
        """Compile and run; seconds of the first call beyond a usual one, peak memory, numbers."""
        setup = self.contender.setup(train, dynamic)
        made = _made(program, setup)
        _first_costs(train)
        if self.contender.name in OURS:
            toolchain.find()  # no compiler: better said now than measured as eager
        before = _reset(self.contender.name)
        for module in self.contender.needs:
            importlib.import_module(module)
        start = time.perf_counter()
        call = self.contender.build(made, setup)
        run = workload.runner(made, call, setup)
        run()
        first = time.perf_counter() - start
        usual = min(_timed(run) for _ in range(3))
        used = {
            "peak_bytes": _peak(resource.RUSAGE_SELF),
            "compilers_peak_bytes": _peak(resource.RUSAGE_CHILDREN),
        }
        own, report = _told(self.contender.name, before)
        eager, exact = torch.load(file, weights_only=False)
        if train:  # steps have moved the parameters; the factories are seeded
            accuracy.restore(made, accuracy.state_of(_made(program, setup)))
        verdict = accuracy.compare(eager, accuracy.run_once(made, call, setup), exact).as_dict()
        del verdict["differences"]
        self.runs[program] = run
        compile_seconds = None if self.contender.name == "eager" else max(first - usual, 0.0)
        answer = {"usual": usual, "compile_seconds": compile_seconds, "own_seconds": own, "report": report}
        return {**answer, **used, "accuracy": verdict}

    def turn(self, program: str, calls: int) -> Answer:
        """Seconds a call; one call before that, for what the others left in the caches."""
        run = self.runs[program]
        with _same_processor(self.threads):
            run()
            start = time.perf_counter()
            for _ in range(calls):
                run()
            return {"seconds": (time.perf_counter() - start) / calls}

    def drop(self, program: str) -> Answer:
        """The program is not needed any more."""
        self.runs.pop(program, None)
        torch._dynamo.reset()
        return {}

    def inside(self, program: str, dynamic: bool | None, seconds: float) -> Answer:
        """Each kernel and ATen operator of a call, and its time: compiled once more, with clocks."""
        setup = self.contender.setup(train=False, dynamic=dynamic)
        return profile.parts(_made(program, setup), setup, seconds)

    def pace(self) -> Answer:
        """Make multiply-adds ready to take turns, as the program `PACE`."""
        run, operations = peaks.multiply_adds(self.threads)
        self.runs[PACE] = run
        return {"operations": operations, "usual": min(_timed(run) for _ in range(3))}

    def peaks(self, seconds: float) -> Answer:
        """What the machine can do with this many threads."""
        return peaks.measured(self.threads, seconds)


@contextmanager
def _same_processor(threads: int) -> Iterator[None]:
    """One thread runs where everybody's does: others leave one of a rented machine's processors more than
    another, and a process stays where it is. Threads that a library keeps for itself are not moved.
    """
    if threads != 1 or not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _made(name: str, setup: Setup) -> Program:
    torch.manual_seed(workload.SEED)
    if name in kernels.KERNELS:
        factory = kernels.KERNELS[name].program
    else:
        factory = architectures.FACTORIES.get(name) or getattr(zoo, name)
    program = Program(*factory())
    workload.prepare(program, setup)
    return program


def _first_costs(train: bool) -> None:
    """What a process pays once for a product, threads and gradients, before anybody's clock runs."""
    a = torch.ones(256, 256, requires_grad=train)
    result = (a @ a).relu().sum()
    if train:
        result.backward()


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _peak(who: int) -> int:
    return resource.getrusage(who).ru_maxrss * 1024


def _reset(contender: str) -> int:
    """Forget the compile times of earlier programs; how many reports smelt has of them."""
    if contender in OURS:
        import smelt

        return len(smelt.reports())
    from torch._dynamo.utils import compilation_time_metrics

    compilation_time_metrics.clear()
    return 0


def _told(contender: str, before: int) -> tuple[float | None, Answer | None]:
    """Seconds without Dynamo and AOTAutograd, and smelt's own report; None where there is no such thing."""
    if contender in OURS:
        import smelt
        from smelt.cli import report_tables

        reports = smelt.reports()[before:]
        return sum(report_tables.total_phases(reports).values()), report_tables.summary(reports)
    if not contender.startswith("inductor"):
        return None, None
    from torch._dynamo.utils import compilation_time_metrics

    spent = {name: sum(times) for name, times in compilation_time_metrics.items()}
    inner = [name for name in spent if name.endswith("compile_fx_inner") or name == "inductor_compile"]
    return (spent[inner[0]] if inner else None), None


def main(contender: str, threads: int) -> int:
    """Answer orders until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(contender, threads)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(worker, order.pop("do"))(**order)
        except Exception as raised:
            answer = {"error": describe(inner_error(raised))}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
