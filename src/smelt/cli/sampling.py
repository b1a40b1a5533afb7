"""A sampling profiler: it records the stack every half millisecond, at almost no cost.

A tracing profiler slows code with many small functions down, which distorts its result.
"""

from __future__ import annotations

import json
import marshal
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from smelt.errors import SmeltError

INTERVAL_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class Function:
    """A function, and its first line."""

    name: str
    file: str
    line: int

    @staticmethod
    def of(code: CodeType) -> Function:
        return Function(getattr(code, "co_qualname", code.co_name), code.co_filename, code.co_firstlineno)


Stack = tuple[Function, ...]
"""A call stack, outermost first."""
Samples = Mapping[Stack, float]
"""Processor seconds by stack."""


class Sampler:
    """Samples the main thread's stack inside the block; ``samples`` are that thread's processor seconds.

    The time of a C function counts for its caller, so PyTorch's for the line that called it.

    >>> with Sampler() as sampler:
    ...     spent = sum(range(3_000_000))
    >>> sum(sampler.samples.values()) > 0
    True

    Raises:
        SmeltError: SM0912, not in the main thread, or the system has no interval timers (Windows).
    """

    def __init__(self) -> None:
        self._taken: dict[tuple[CodeType, ...], float] = defaultdict(float)
        self._last, self._open = 0.0, False

    def __enter__(self) -> Sampler:
        if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
            raise SmeltError("SM0912", "no profile here", why="it takes interval timers and the main thread")
        self._before = signal.signal(signal.SIGALRM, self._look)
        signal.siginterrupt(signal.SIGALRM, False)
        self._open = True
        self._next()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, self._before)

    def _next(self) -> None:
        """Takes one sample at a time: a deep stack may take longer than the interval."""
        self._last = time.thread_time()
        if self._open:
            signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS)

    def _look(self, number: int, frame: FrameType | None) -> None:
        now = time.thread_time()
        codes = []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        self._taken[tuple(codes)] += now - self._last
        self._next()

    @property
    def samples(self) -> Samples:
        known: dict[CodeType, Function] = {}
        found: dict[Stack, float] = defaultdict(float)
        for codes, seconds in self._taken.items():
            for code in codes:
                if code not in known:
                    known[code] = Function.of(code)
            found[tuple(known[code] for code in reversed(codes))] += seconds
        return dict(found)


def below(samples: Samples, function: Function) -> Samples:
    """The samples inside of a function, with the stacks from that function on.

    >>> main, go, work = Function("main", "a.py", 1), Function("go", "b.py", 1), Function("work", "b.py", 9)
    >>> [len(stack) for stack in below({(main, go, work): 1.0, (main,): 2.0}, go)]
    [2]
    """
    found: dict[Stack, float] = defaultdict(float)
    for stack, seconds in samples.items():
        if function in stack:
            found[stack[stack.index(function) :]] += seconds
    return dict(found)


def folded(samples: Samples, root: str) -> Samples:
    """The samples with functions of files under ``root`` only: the time of others counts for their callers.

    So does the time of comprehensions and other code objects with names of their own.

    >>> f, g = Function("f", "/mine/a.py", 1), Function("g", "/theirs/b.py", 5)
    >>> [stack[-1].name for stack in folded({(f, g): 1.0}, "/mine")]
    ['f']
    """
    found: dict[Stack, float] = defaultdict(float)
    for stack, seconds in samples.items():
        kept = (each for each in stack if each.file.startswith(root) and not each.name.endswith(">"))
        found[tuple(kept)] += seconds
    return {stack: seconds for stack, seconds in found.items() if stack}


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds in a function itself, and with all functions that it called."""

    function: Function
    own: float
    total: float


def by_own_time(samples: Samples) -> list[Spent]:
    """The functions, sorted by their own time.

    >>> f, g = Function("f", "a.py", 1), Function("g", "a.py", 5)
    >>> [(spent.function.name, spent.own, spent.total) for spent in by_own_time({(f,): 1.0, (f, g): 2.0})]
    [('g', 2.0, 2.0), ('f', 1.0, 3.0)]
    """
    own: dict[Function, float] = defaultdict(float)
    total: dict[Function, float] = defaultdict(float)
    for stack, seconds in samples.items():
        own[stack[-1]] += seconds
        for function in set(stack):
            total[function] += seconds
    spent = [Spent(function, own[function], total[function]) for function in total]
    return sorted(spent, key=lambda each: (-each.own, -each.total))


def write(samples: Samples, path: Path, title: str) -> None:
    """Writes a profile: ``.prof`` for snakeviz and `pstats`, ``.json`` for https://www.speedscope.app."""
    if path.suffix == ".prof":
        path.write_bytes(marshal.dumps(as_pstats(samples)))
    else:
        path.write_text(json.dumps(as_speedscope(samples, title)))


def as_pstats(samples: Samples) -> dict[Any, Any]:
    """The data of `pstats`. Calls are not counted: a function has one for each of its callers."""
    spent = {each.function: each for each in by_own_time(samples)}
    callers: dict[Function, dict[Function, list[float]]] = defaultdict(dict)
    for stack, seconds in samples.items():
        for caller, function in set(pairwise(stack)):
            callers[function].setdefault(caller, [0.0, 0.0])[1] += seconds
        if len(stack) > 1:
            callers[stack[-1]][stack[-2]][0] += seconds

    def place(function: Function) -> tuple[str, int, str]:
        return function.file, function.line, function.name

    return {
        place(function): (
            max(1, len(callers[function])),
            max(1, len(callers[function])),
            each.own,
            each.total,
            {place(caller): (1, 1, own, total) for caller, (own, total) in callers[function].items()},
        )
        for function, each in spent.items()
    }


def as_speedscope(samples: Samples, title: str) -> dict[str, Any]:
    """The data of https://www.speedscope.app/file-format-schema.json: one sample for each stack, with its
    duration.
    """
    numbers: dict[Function, int] = {}
    for function in _functions(samples):
        numbers.setdefault(function, len(numbers))
    weights = list(samples.values())
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": f.name, "file": f.file, "line": f.line} for f in numbers]},
        "profiles": [
            {
                "type": "sampled",
                "name": title,
                "unit": "seconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [[numbers[function] for function in stack] for stack in samples],
                "weights": weights,
            }
        ],
        "exporter": "smelt",
    }


def _functions(samples: Samples) -> Iterable[Function]:
    return (function for stack in samples for function in stack)
