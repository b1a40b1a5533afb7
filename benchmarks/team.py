"""Contenders in processes of their own that take turns: all are ready, one works, the others sleep."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from contenders import BEFORE, CONTENDERS
from smelt.cli.fresh_cache import cache_variables
from smelt.cli.measure import LEAST_ROUNDS, Timing

HERE = Path(__file__).parent
TURN_SECONDS = 0.02
SETTLE_SECONDS = 0.01
"""Between turns: the threads of the one before stop spinning."""


PACE = "multiply-adds"
"""The program of a process that beats the time (`run.Pace`)."""


class FailedError(Exception):
    """A contender cannot go on; ``str`` is the reason, one line."""


class Turns(Protocol):
    """What `race` needs of a contender."""

    def turn(self, program: str, calls: int) -> float:
        """Seconds a call, or `FailedError`."""


Own = TypeVar("Own", bound="Process")


class Process:
    """A process that takes orders as lines of JSON, and answers each with one."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], patience: float) -> None:
        self.patience = patience
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (as long as the process)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            env=environment,
            text=True,
        )

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Give an order and wait for the answer.

        Raises:
            FailedError: the contender raised, died, or took longer than its patience.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise FailedError(self._end()) from None
        if not select.select([self.process.stdout], [], [], self.patience)[0]:
            self.process.kill()
            raise FailedError(f"no answer within {self.patience:g} s")
        line = self.process.stdout.readline()
        if not line:
            raise FailedError(self._end())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise FailedError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process: it reads the end of its orders, and is killed if that does not help."""
        try:
            self.process.communicate(timeout=10)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            self.process.kill()
            self.process.wait()
        self.said.close()

    def _end(self) -> str:
        code = self.process.wait()
        self.said.seek(0)
        lines = self.said.read().strip().splitlines()
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended with {cause}" + (f": {lines[-1][:200]}" if lines else "")


class Member(Process):
    """One contender's process; its caches are under ``folder``. `BEFORE` is the ``smelt`` of ``checkout``."""

    def __init__(
        self, name: str, threads: int, folder: str, patience: float, checkout: Path | None = None
    ) -> None:
        self.name = name
        worker = HERE / "worker.py"
        environment = {**os.environ, **cache_variables(os.path.join(folder, name))}
        environment |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        environment |= CONTENDERS[name].environment
        if name == BEFORE and checkout:
            name, worker = "smelt", checkout / "benchmarks" / "worker.py"
            environment["PYTHONPATH"] = str(checkout / "src")
        super().__init__([sys.executable, str(worker), name, str(threads)], environment, patience)

    def turn(self, program: str, calls: int) -> float:
        """One turn of ``calls`` calls."""
        seconds: float = self.ask("turn", program=program, calls=calls)["seconds"]
        return seconds


def race(
    members: Mapping[str, Turns], program: str, usual: Mapping[str, float], seconds: float
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Rounds of turns, A B, B A, …, for about ``seconds``; who fails leaves the race, with the reason."""
    calls = {name: max(1, math.ceil(TURN_SECONDS / max(usual[name], 1e-7))) for name in members}
    taken: dict[str, list[float]] = {name: [] for name in members}
    failures: dict[str, str] = {}
    order: Sequence[str] = list(members)
    rounds, end = 0, time.perf_counter() + seconds
    while order and (rounds < LEAST_ROUNDS or time.perf_counter() < end):
        for name in order:
            try:
                taken[name].append(members[name].turn(program, calls[name]))
            except FailedError as failed:
                failures[name] = f"while timed: {failed}"
            time.sleep(SETTLE_SECONDS)
        order = [name for name in reversed(order) if name not in failures]
        rounds += 1
    times = {name: Timing(tuple(taken[name]), calls[name]) for name in members if name not in failures}
    return times, failures
