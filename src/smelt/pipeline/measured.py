"""Mode ``max`` on GPUs: tiles of products, and attentions, are measured once against ATen's calls.

Each candidate is compiled here; another process (`smelt.pipeline.measurer`) runs it and says how long it
took. A candidate that cannot be compiled, gives something else than ATen, or ends or blocks that process is
lost, and nothing else: a new process measures the rest. Results are cached as a CPU's are (`smelt.tuning`).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, Protocol

import torch
from sympy import Symbol

from smelt.config import Config
from smelt.errors import SmeltError
from smelt.loops.ir import Attentions, Graph
from smelt.pipeline.built import with_errors
from smelt.pipeline.targets import Code, CodeTarget
from smelt.runtime import plan_json, process
from smelt.runtime.cache import Cache
from smelt.runtime.library import compilers
from smelt.schedule import Target, schedule
from smelt.schedule.attention.lanes import has_blocks
from smelt.schedule.graph.contractions import extents_of
from smelt.schedule.products.operands import Product
from smelt.schedule.tilings import Tiles, candidates
from smelt.symbolic import size_hint
from smelt.tuning import Measurements, Timing, Trial

START_SECONDS, SECONDS = 120.0, 20.0
"""Time limits of a process until its first candidate, and of each candidate."""
ATEN = "ATen"

Way = bool | Tiles
"""A candidate: tiles of a product, a kernel without (an attention), or ATen's call (False)."""


class MeasuringTarget(CodeTarget, Protocol):
    """A target of launches, and the command that measures on its device."""

    @property
    def identity(self) -> str: ...

    @property
    def measurer(self) -> Sequence[str] | None: ...


def measured(
    graph: Graph, config: Config, store: Cache, version: str, target: MeasuringTarget
) -> LaunchedMeasurements:
    """The measurements of a graph's contractions, those of the cache and new ones."""
    found = LaunchedMeasurements(config, store, version, target)
    found.look_up(graph)
    if target.measurer is not None and found.unknown:
        found.measure(target.measurer)
    return found


class LaunchedMeasurements(Measurements):
    """The measurements on a GPU."""

    def __init__(self, config: Config, store: Cache, version: str, target: MeasuringTarget) -> None:
        flags = (torch.get_float32_matmul_precision(), str(torch.backends.cudnn.allow_tf32))
        super().__init__(config, target.machine, store, (target.identity, version, *flags))
        self.made_for = target

    def is_possible(self, product: Product | Attentions, graph: Graph) -> bool:
        """Whether there is a recipe, and the dtype is one that a GPU multiplies."""
        if not isinstance(product, Product):
            return has_blocks(product)
        dtype = product.body.dtype
        return dtype.is_floating_point and dtype.itemsize <= 4

    def choose(self, product: Product | Attentions, graph: Graph, target: Target) -> Way:
        """The fastest tiles, or ATen; the target's own choice if there is no measurement."""
        timing = self.timing(product, graph)
        if timing is None:
            usual = self.made_for.choose
            return usual is not None and usual(product, graph, target)
        return timing.native < timing.aten and (timing.tiles or True)

    def measure(self, command: Sequence[str]) -> None:
        """Measures all that is unknown."""
        jobs: list[_Job] = []
        for key, trial in self.unknown.items():
            ways = _ways(trial, self.target)
            jobs += [_Job(key, trial, way, len(jobs) + number) for number, way in enumerate(ways)]
        with tempfile.TemporaryDirectory(prefix="smelt-") as folder:
            with ThreadPoolExecutor(compilers()) as threads:
                waiting = [threads.submit(job.build(self)) for job in jobs]
                ready = [job for job, each in zip(jobs, waiting, strict=True) if each.result()]
            _run(ready, command, Path(folder))
        for key in self.unknown:
            mine = [job for job in jobs if job.key == key]
            aten, ours = (next(job for job in mine if not job.way), [job for job in mine if job.way])
            best = min(ours, key=lambda job: job.seconds)
            lost = tuple((job.name, job.why) for job in ours if job.why)
            if aten.seconds < inf:
                tiles = best.way if isinstance(best.way, Tiles) and best.seconds < inf else None
                self.remember(key, Timing(best.seconds, aten.seconds, tiles, lost))


def _ways(trial: Trial, target: Target) -> Iterator[Way]:
    yield False
    if not isinstance(trial.product, Product):
        yield True
        return
    extents = extents_of(trial.product, trial.whole)
    yield from candidates(extents, target.multiprocessors, target.descriptors, trial.body.reduce_shape)


class _Job:
    """A candidate, its plan and launches, and what became of it: ``seconds``, or ``why`` it was lost."""

    def __init__(self, key: str, trial: Trial, way: Way, number: int) -> None:
        self.key, self.trial, self.way, self.number = key, trial, way, number
        self.name = str(way) if isinstance(way, Tiles) else "the rule's kernel" if way else ATEN
        self.seconds, self.why = inf, ""
        self.about: dict[str, Any] = {}

    def build(self, known: LaunchedMeasurements) -> Callable[[], bool]:
        """Makes the plan, and starts the compiler; the result waits for it, and says whether it succeeded."""
        graph, target = self.trial.graph(False), known.made_for
        prefix = f"try{self.number}_"
        try:
            scheduled = schedule(
                graph, known.config, target.machine, prefix, lambda product, graph, target: self.way
            )
            code = target.build(scheduled.all_runs)
        except SmeltError as error:
            return partial(self._lost, error)
        plan = with_errors(scheduled.plan, code.errors, code.device)
        self.about = {
            "number": self.number,
            "trial": self.key,
            "aten": not self.way,
            "operands": [_described(each, graph) for each in graph.inputs],
            "plan": plan_json.to_json(plan),
            "code": None if code.stored is None else code.stored.decode(),
        }
        return partial(self._is_compiled, code)

    def _is_compiled(self, code: Code) -> bool:
        try:
            if code.assembly is not None:
                code.assembly()
        except SmeltError as error:
            return self._lost(error)
        return True

    def _lost(self, error: SmeltError) -> bool:
        self.why = str(error).splitlines()[0]
        return False


def _described(each: Any, graph: Graph) -> Any:
    if each is None or isinstance(each, Symbol):
        return None if each is None else size_hint(each, graph.hints)
    buffer = graph.buffers[each]
    shape, strides = ([size_hint(e, graph.hints) for e in part] for part in (buffer.shape, buffer.strides))
    return [shape, strides, str(buffer.dtype).removeprefix("torch.")]


def _run(jobs: Sequence[_Job], command: Sequence[str], folder: Path) -> None:
    """Runs jobs by processes, one after another, until all are done or lost."""
    left = {job.number: job for job in jobs}
    for number in count():
        before = len(left)
        current, why = _one_process(jobs, left, command, folder / str(number))
        if not left:
            return
        if current is not None:
            current.why = why
            del left[current.number]
        elif len(left) == before:  # no candidate has begun
            for job in left.values():
                job.why = why
            return


def _one_process(
    jobs: Sequence[_Job], left: dict[int, _Job], command: Sequence[str], place: Path
) -> tuple[_Job | None, str]:
    """Takes what is done from ``left``; returns the job at which the process ended too early, and why."""
    request, errors = place.with_suffix(".json"), place.with_suffix(".txt")
    flags = {"precision": torch.get_float32_matmul_precision(), "tf32": torch.backends.cudnn.allow_tf32}
    wanted = [{**job.about, "wanted": job.number in left} for job in jobs]
    request.write_text(json.dumps({"jobs": wanted, **flags}))
    with errors.open("wb") as said:
        run = subprocess.Popen(
            [*command, str(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
    current = None
    try:
        lines = _Lines(run)
        while line := lines.read(START_SECONDS if current is None else SECONDS):
            result = json.loads(line)
            job = left[result["number"]]
            if len(result) == 1:
                current = job
                continue
            job.seconds, job.why = result["seconds"] or inf, result["why"]
            del left[job.number]
            current = None
        status = run.wait(SECONDS)
        last = errors.read_text(errors="replace").strip().splitlines()[-1:]
        how = f"by signal {-status}" if status < 0 else f"with code {status}"
        return current, ": ".join([f"its process ended {how}", *last])
    except (TimeoutError, subprocess.TimeoutExpired) as late:
        return current, str(late)
    finally:
        process.end(run)


class _Lines:
    """The lines that a process prints."""

    def __init__(self, run: subprocess.Popen[bytes]) -> None:
        assert run.stdout is not None
        self.pipe, self.rest = run.stdout, b""

    def read(self, seconds: float) -> bytes:
        """The next line; nothing at the end.

        Raises:
            TimeoutError: there is none in time.
        """
        end = time.monotonic() + seconds
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.pipe], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"no result within {seconds:g} seconds")
            more = os.read(self.pipe.fileno(), 65536)
            if not more:
                return b""
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line
