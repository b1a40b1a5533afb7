"""Measurement: contenders alternate, each long enough for the clock; medians, and ratios within a round."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LEAST_TURN_SECONDS = 0.002
LEAST_ROUNDS = 5
WARMUPS = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call of one contender over all rounds."""

    seconds: tuple[float, ...]
    calls_per_turn: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: seconds per call."""
        return {
            "median": self.median,
            "min": min(self.seconds),
            "max": max(self.seconds),
            "rounds": len(self.seconds),
            "calls_per_turn": self.calls_per_turn,
        }


def race(runs: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, Timing]:
    """Times each of ``runs`` for about ``seconds`` altogether: A B, B A, A B …

    >>> times = race({"a": lambda: sum(range(10))}, seconds=0.01)
    >>> times["a"].median > 0
    True
    """
    calls = {name: _calls_per_turn(run) for name, run in runs.items()}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        while len(taken[order[0]]) < LEAST_ROUNDS or time.perf_counter() < end:
            for name in order:
                taken[name].append(_round(runs[name], calls[name]))
            order.reverse()
    finally:
        if collecting:
            gc.enable()
    return {name: Timing(tuple(values), calls[name]) for name, values in taken.items()}


def ratio(base: Timing, other: Timing) -> float:
    """The speedup of the other over ``base``: the median of the ratios within a round."""
    return statistics.median(a / b for a, b in zip(base.seconds, other.seconds))


def _calls_per_turn(run: Callable[[], Any]) -> int:
    for _ in range(WARMUPS):
        run()
    once = min(_round(run, 1) for _ in range(3))
    return max(1, math.ceil(LEAST_TURN_SECONDS / max(once, 1e-7)))


def _round(run: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
