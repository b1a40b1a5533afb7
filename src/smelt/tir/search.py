"""A measured search for a schedule: `smelt.te.tune`.

Trial 0 is smelt's own schedule, so the result is never slower than that. The others are traces of steps on
the largest stage, sorted by a static cost; they are compiled while others are measured, and measured
alternately. The result is cached for this function and machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
from sympy import Symbol

from smelt.errors import SmeltError
from smelt.nest.ir import AxisKind, Kernel, Stage
from smelt.nest.primitives import ScheduleError
from smelt.nest.scopes import members
from smelt.nest.tree import reduced_axes, stages
from smelt.nest.work import work
from smelt.records import dataclass, field
from smelt.runtime import cache, toolchain
from smelt.runtime.cache import key_of
from smelt.script.equal import structural_hash
from smelt.script.module import IRModule, PrimFunc
from smelt.symbolic.expr import evaluate
from smelt.te.building import Built, built
from smelt.te.operators import as_torch
from smelt.tir.references import BlockRV, LoopRV
from smelt.tir.schedule import Schedule
from smelt.tir.trace import Trace

FILE = "schedule.json"
COMPILED_AHEAD = 4
"""Number of candidates that are compiled in parallel to measurements."""
SLOT = 0.02
"""Seconds of a measuring slot."""
REGISTERS = 28


@dataclass(slots=True)
class Trial:
    """A schedule and its cost: ``seconds`` a call, ``predicted`` in loads for each multiply-add."""

    sch: Schedule
    line: str
    predicted: float
    seconds: float = float("inf")
    reason: str | None = None
    """The reason why it was not measured."""

    def program(self) -> str:
        """The schedule as a Python function, ``def schedule(sch): …``."""
        return self.sch.trace.program()


@dataclass(slots=True)
class Found:
    """The result of a search. ``from_cache``: it was cached, nothing was measured."""

    trials: list[Trial]
    operations: int
    from_cache: bool = False
    skipped: list[str] = field(default_factory=list)

    @property
    def best(self) -> Trial:
        return min(self.trials, key=lambda trial: trial.seconds)

    @property
    def mod(self) -> IRModule:
        return self.best.sch.mod

    def __str__(self) -> str:
        rows = sorted(enumerate(self.trials), key=lambda row: row[1].seconds)
        lines = [f"{'trial':>5}  {'ms':>9}  {'Gop/s':>7}  schedule"]
        for number, trial in rows:
            known = trial.seconds < float("inf")
            rate = f"{self.operations / trial.seconds / 1e9:7.1f}" if known else "      –"
            said = f"{trial.seconds * 1e3:9.4f}" if known else "        –"
            note = "" if trial.reason is None else f" ({trial.reason})"
            lines.append(f"{number:>5}  {said}  {rate}  {trial.line}{note}")
        return "\n".join(lines)


def tune(
    func: PrimFunc | IRModule,
    seconds: float = 5.0,
    *,
    sizes: Mapping[str, int] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Found:
    """Searches for a fast schedule of a function of loops for the given seconds; the result is cached.

    ``sizes``: numbers for unknown sizes (default: 256). ``progress`` gets messages.

    Raises:
        SmeltError: SM1016 the seconds are not positive.
    """
    if seconds <= 0:
        raise SmeltError("SM1016", f"a search of {seconds} seconds")
    func = _only(func)
    kernel = func.kernel
    known = {size: (sizes or {}).get(size.name, 256) for size in kernel.sizes}
    tools, store = toolchain.find(), cache.open_cache()
    threads = torch.get_num_threads()
    said = [str(known[size]) for size in kernel.sizes]
    said += [stage.name for stage in stages(kernel.body)]  # the trace speaks of them
    key = "schedule-" + key_of(structural_hash(func), tools.identity, str(threads), *said)
    operations = work(kernel, known).operations
    remembered = _remembered(store, key, func, operations)
    if remembered is not None:
        return remembered
    found = _Search(func, known, operations, progress or (lambda line: None)).run(seconds)
    best = found.best
    data = {"trace": best.sch.trace.as_json(), "line": best.line, "seconds": best.seconds}
    data["first"] = found.trials[0].seconds
    with suppress(cache.CacheError):
        store.put(key, {FILE: json.dumps(data).encode()})
    return found


def tune_tir(
    mod: PrimFunc | IRModule, target: Any = "llvm", *, max_trials_global: int = 32, **options: Any
) -> Found:
    """`tune` by MetaSchedule's name: a trial counts as a quarter of a second."""
    del target
    return tune(mod, seconds=max_trials_global / 4, sizes=options.get("sizes"))


def _only(func: PrimFunc | IRModule) -> PrimFunc:
    if isinstance(func, PrimFunc):
        return func
    found = [each for each in func.functions.values() if isinstance(each, PrimFunc)]
    if len(found) != 1:
        raise SmeltError("SM1016", f"a search for {len(found)} functions", remedy="one at a time")
    return found[0]


def _remembered(store: Any, key: str, func: PrimFunc, operations: int) -> Found | None:
    entry = store.get(key)
    if entry is None:
        return None
    try:
        data = json.loads(entry.read(FILE))
        sch = Schedule(func)
        Trace.apply_json_to_schedule(data["trace"], sch)
        default = Trial(Schedule(func), "smelt's own", 0.0, float(data["first"]))
        if not sch.trace.insts:
            return Found([default], operations, from_cache=True)
        best = Trial(sch, str(data["line"]), 0.0, float(data["seconds"]))
        return Found([default, best], operations, from_cache=True)
    except (SmeltError, ValueError, KeyError, TypeError):
        return None


class _Search:
    def __init__(
        self, func: PrimFunc, known: Mapping[Symbol, int], operations: int, progress: Callable[[str], None]
    ) -> None:
        self.func, self.known, self.operations, self.progress = func, known, operations, progress
        generator = torch.Generator().manual_seed(0)
        self.buffers = []
        for param in func.kernel.params:
            shape = [evaluate(size, known) for size in param.shape]
            if param.dtype.is_floating_point:
                self.buffers.append(torch.randn(shape, generator=generator).to(param.dtype))
            else:
                self.buffers.append(torch.randint(0, 2, shape, generator=generator).to(param.dtype))
        self.written = [p for p, param in enumerate(func.kernel.params) if param.written]

    def run(self, seconds: float) -> Found:
        end = time.perf_counter() + seconds
        first = Trial(Schedule(self.func), "smelt's own", 0.0)
        trials = [first]
        skipped: list[str] = []
        default = self._built(first)
        default(*self.buffers)
        wanted = [self.buffers[place].clone() for place in self.written]
        first.seconds = self._timed(default)
        self.progress(f"smelt's own: {first.seconds * 1e3:.4f} ms")
        source = candidates(self.func, self.known)
        ready: list[tuple[Trial, Built]] = []
        while time.perf_counter() < end:
            for trial in islice(source, COMPILED_AHEAD - len(ready)):
                made = self._started(trial)
                trials.append(trial)
                if made is not None:
                    ready.append((trial, made))
            if not ready:
                break
            trial, made = ready.pop(0)
            self._measure(trial, made, wanted)
            skipped += [] if trial.reason is None else [f"{trial.line}: {trial.reason}"]
            self.progress(f"{trial.line}: {trial.seconds * 1e3:.4f} ms")
        for trial, _ in ready:
            trial.reason = "no time left"
        self._race(trials, default)
        return Found(trials, self.operations, skipped=skipped)

    def _race(self, trials: Sequence[Trial], default: Built) -> None:
        """Measures the fastest trial and smelt's own again, alternating: measurements at other times are not
        comparable.
        """
        best = min(trials, key=lambda trial: trial.seconds)
        if best is trials[0]:
            return
        other = self._built(best)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(5):
            times[0].append(self._timed(default))
            times[1].append(self._timed(other))
        trials[0].seconds, best.seconds = min(times[0]), min(times[1])

    def _built(self, trial: Trial) -> Built:
        return built(as_torch(trial.sch.func))

    def _started(self, trial: Trial) -> Built | None:
        try:
            made = self._built(trial)
            made.begin(*self.buffers)
        except SmeltError as error:
            trial.reason = str(error).splitlines()[0]
            return None
        return made

    def _measure(self, trial: Trial, made: Built, wanted: Sequence[torch.Tensor]) -> None:
        for place in self.written:
            if self.buffers[place].dtype.is_floating_point:
                self.buffers[place].fill_(float("nan"))
        try:
            made(*self.buffers)
        except SmeltError as error:
            trial.reason = str(error).splitlines()[0]
            return
        for place, value in zip(self.written, wanted):
            scale = value.double().abs().max().item() if value.numel() else 0.0
            close = torch.allclose(
                self.buffers[place].double(), value.double(), rtol=1e-4, atol=1e-5 * max(scale, 1e-30)
            )
            if not close:
                trial.reason = "other numbers than smelt's own: please report it"
                return
        trial.seconds = self._timed(made)

    def _timed(self, made: Built) -> float:
        """Seconds of a call: the fastest of several within a slot."""
        best, spent = float("inf"), 0.0
        while spent < SLOT:
            start = time.perf_counter()
            made(*self.buffers)
            taken = time.perf_counter() - start
            best, spent = min(best, taken), spent + taken
        return best


# -- the space -----------------------------------------------------------------------------------------------


def candidates(func: PrimFunc, known: Mapping[Symbol, int]) -> Iterator[Trial]:
    """Schedules of the stage with the most work, sorted by a static cost estimate."""
    stage = _largest(func.kernel, known)
    if stage is None:
        return
    lanes = toolchain.find().vector_bytes // 4
    spatial = [axis for axis in stage.axes if axis.kind is AxisKind.SPATIAL]
    reduced = reduced_axes(stage)
    if reduced and len(spatial) >= 2:
        made = _tiles(func, stage.name, lanes)
    elif reduced:
        made = _parts(func, stage.name, known)
    else:
        made = _lanes(func, stage.name, lanes)
    yield from made


def named_stage(kernel: Kernel, name: str) -> Stage:
    """The stage of that name."""
    return next(stage for stage in stages(kernel.body) if stage.name == name)


def _largest(kernel: Kernel, known: Mapping[Symbol, int]) -> Stage | None:
    found = members(kernel.body)

    def steps(stage: Stage) -> int:
        count = 1
        for axis in stage.axes:
            count *= max(evaluate(axis.extent, known), 1)
        return count

    return max(found, key=steps) if found else None


def _tiles(func: PrimFunc, name: str, lanes: int) -> Iterator[Trial]:
    """Register tiles of rows by vectors, inside blocks of the reduced loop."""
    choices = []
    for rows in (1, 2, 4, 6, 8, 12, 14):
        for vectors in (1, 2, 3, 4):
            if rows * vectors <= REGISTERS:
                choices.append(((rows + vectors) / (rows * vectors), rows, vectors))
    for cost, rows, vectors in sorted(choices):
        for block in (None, 64, 256):
            for outer in ("columns", "rows"):
                sch = Schedule(func)
                made = _tiled(sch, name, rows, vectors * lanes, block, outer)
                if made is not None:
                    line = f"tile {rows} x {vectors * lanes}, {block or 'all'} terms, {outer} outermost"
                    yield Trial(sch, line, cost)


def _tiled(
    sch: Schedule, name: str, rows: int, columns: int, block: int | None, outer: str
) -> Schedule | None:
    try:
        stage = sch.get_block(name)
        kinds = [axis.kind for axis in named_stage(sch.func.kernel, name).axes]
        around = sch.get_loops(stage)
        if len(around) != len(kinds):
            return None
        spatial = [loop for loop, kind in zip(around, kinds) if kind is AxisKind.SPATIAL]
        reduced = [loop for loop, kind in zip(around, kinds) if kind is AxisKind.REDUCE]
        *batch, i, j = spatial
        i_0, i_1 = sch.split(i, factors=[None, rows])
        j_0, j_1 = sch.split(j, factors=[None, columns])
        outer_terms: list[LoopRV] = []
        if block is not None:
            first, rest = sch.split(reduced[0], factors=[None, block])
            outer_terms, reduced = [first], [rest, *reduced[1:]]
        blocks = [j_0, i_0] if outer == "columns" else [i_0, j_0]
        sch.reorder(*batch, *blocks, *outer_terms, *reduced, i_1, j_1)
        at = blocks[-1]
        if torch.get_num_threads() > 1:
            sch.parallel(batch[0] if batch else blocks[0])
        sch.vectorize(j_1)
        sch.unroll(i_1)
        sch.decompose_reduction(stage, (outer_terms or reduced)[0])
        _epilogues(sch, stage, at)
    except ScheduleError:
        return None
    return sch


def _epilogues(sch: Schedule, stage: BlockRV, at: LoopRV) -> None:
    """Computes the consumers of the stage's result at the given loop."""
    consumers = sch.get_consumers(stage)
    if len(consumers) != 1 or sch.get_consumers(consumers[0]):
        return
    with suppress(ScheduleError):
        sch.reverse_compute_at(consumers[0], at)
        sch.vectorize(sch.get_loops(consumers[0])[-1])


def _parts(func: PrimFunc, name: str, known: Mapping[Symbol, int]) -> Iterator[Trial]:
    """A reduction split into partial sums, for threads or lanes."""
    del known
    for parts in (8, 16, 32, 64):
        for kind in ("vectorize", "parallel"):
            sch = Schedule(func)
            try:
                stage = sch.get_block(name)
                loop = sch.get_loops(stage)[-1]
                whole, part = sch.split(loop, factors=[None, parts])
                made = sch.rfactor(part, factor_axis=0)
                inside = sch.get_loops(made)
                if kind == "vectorize":
                    sch.reorder(*inside[:-2], inside[-2], inside[-1])
                    sch.vectorize(inside[-1])
                else:
                    sch.reorder(*inside[:-2], inside[-1], inside[-2])
                    sch.parallel(inside[-1])
            except (ScheduleError, ValueError):
                continue
            del whole
            yield Trial(sch, f"{parts} parts, {kind}d", 1.0 / parts)


def _lanes(func: PrimFunc, name: str, lanes: int) -> Iterator[Trial]:
    """Elementwise: one fused loop, vectorized, and divided among threads."""
    for vectors in (1, 2, 4, 16):
        for threads in (True, False) if torch.get_num_threads() > 1 else (False,):
            sch = Schedule(func)
            try:
                stage = sch.get_block(name)
                around = sch.get_loops(stage)
                fused = sch.fuse(*around) if len(around) > 1 else around[0]
                outer, inner = sch.split(fused, factors=[None, vectors * lanes])
                sch.vectorize(inner)
                if threads:
                    sch.parallel(outer)
            except ScheduleError:
                continue
            yield Trial(sch, f"{vectors * lanes} elements an iteration{', parallel' if threads else ''}", 1.0)
