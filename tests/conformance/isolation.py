"""Jobs in processes of their own: one that crashes or hangs costs that job, and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Job = TypeVar("Job")

START = 120.0
"""How many seconds a process may take until it can work."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A job without a result: ``outcome`` is ``crash`` or ``timeout``."""

    outcome: str
    message: str


def run_isolated(
    jobs: Sequence[Job],
    handle: Callable[[Job], Any],
    *,
    workers: int = 2,
    timeout: float = 120.0,
    jobs_per_process: int = 60,
) -> Iterator[tuple[Job, Any]]:
    """``(job, handle(job))`` for every job, in the order in which they end.

    ``handle`` is a function of a module (it is looked up by name in the worker process). A job that takes
    more than ``timeout`` seconds is killed, a worker that dies is replaced: the result is then a `Lost`. What
    ``handle`` raises is a ``crash`` too: it should not raise.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    done: queue.SimpleQueue[tuple[Job, Any]] = queue.SimpleQueue()
    stop = threading.Event()

    def feed() -> None:
        worker = None
        served = 0
        while not stop.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                break
            if worker is None or served >= jobs_per_process:
                if worker is not None:
                    worker.close()
                worker, served = _Worker(handle), 0
            result = worker.run(job, timeout)
            served += 1
            if isinstance(result, Lost):
                worker.close()
                worker = None
            done.put((job, result))
        if worker is not None:
            worker.close()

    threads = [threading.Thread(target=feed, daemon=True) for _ in range(max(1, min(workers, len(jobs))))]
    for thread in threads:
        thread.start()
    try:
        for _ in jobs:
            yield done.get()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class _Worker:
    """One process that handles jobs as they come."""

    def __init__(self, handle: Callable[[Any], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, handle), daemon=True)
        with _one_thread():
            self.process.start()
        theirs.close()
        self.started = False

    def run(self, job: Any, timeout: float) -> Any:
        try:
            if not self.started:  # importing takes no job's time
                if not self.connection.poll(START):
                    return Lost("timeout", f"the process did not begin within {START:g} s")
                self.started = self.connection.recv()
            self.connection.send(job)
            if not self.connection.poll(timeout):
                return Lost("timeout", f"no result after {timeout:g} s")
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join(5)
            return Lost("crash", f"the process ended with exit code {self.process.exitcode}")

    def close(self) -> None:
        self.connection.close()
        self.process.join(0.5)
        self.process.kill()
        self.process.join()


_environment = threading.Lock()


class _one_thread:  # noqa: N801  (a context manager, used like a function)
    """Workers share the cores: each gets one, by the environment that OpenMP reads when it is loaded."""

    def __enter__(self) -> None:
        _environment.acquire()
        self.before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = self.before or "1"

    def __exit__(self, *_: object) -> None:
        if self.before is None:
            del os.environ["OMP_NUM_THREADS"]
        _environment.release()


def _serve(connection: Connection, handle: Callable[[Any], Any]) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # what operators and Dynamo print belongs to nobody
        os.dup2(nothing, descriptor)
    connection.send(True)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(handle(job))
