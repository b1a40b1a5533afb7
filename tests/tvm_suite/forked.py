"""Runs each test of some files in a process of its own, forked from one that has collected them all.

``python forked.py OUT.jsonl FOLDER_OF_SHIM|- TESTS_FOLDER FILE…`` knows nothing of smelt: the same file runs
TVM's tests on the apache-tvm wheel (the denominator) and on smelt behind the import shim. OUT.jsonl gets a
line ``[node id, outcome, reason]`` as soon as a test is done; tests that it has already are not run again.
An outcome is passed, failed, skipped, crashed or timeout; a reason is the message of the exception.
"""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

SECONDS = 120


class Forked:
    """A plugin of pytest that runs each test in a process forked where the tests have been collected.

    ``out``: the file of outcomes; ``known``: the outcome of each test, and of each file that could not be
    imported.
    """

    def __init__(self, out: Path) -> None:
        lines = out.read_text().splitlines() if out.exists() else []
        self.known: dict[str, str] = {node: outcome for node, outcome, _ in map(json.loads, lines)}
        self.out = out.open("a")
        self.running: dict[int, tuple[str, Any]] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            reason = str(report.longrepr).strip().splitlines()[-1]
            self.tell(report.nodeid, "failed", f"not collected: {reason}")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        trees_once(session)
        gc.collect()
        gc.freeze()  # so that the collector of a child copies no pages of its parent
        left = [item for item in session.items if item.nodeid not in self.known]
        self.count = len(self.known) + len(left)
        for item in left:
            while len(self.running) >= (os.cpu_count() or 1):
                self.wait()
            self.start(item)
        while self.running:
            self.wait()
        return True

    def start(self, item: pytest.Item) -> None:
        answer = tempfile.NamedTemporaryFile("r", suffix=".json")  # noqa: SIM115  (closed by wait)
        child = os.fork()
        if child:
            self.running[child] = item.nodeid, answer
            return
        signal.alarm(SECONDS)
        try:
            Path(answer.name).write_text(json.dumps(outcome(runtestprotocol(item, log=False))))
        finally:
            os._exit(0)

    def wait(self) -> None:
        child, status = os.wait()
        node, answer = self.running.pop(child)
        with answer:
            text = answer.read()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            late = number == signal.SIGALRM
            self.tell(node, *(("timeout", f"{SECONDS} s") if late else ("crashed", f"signal {number}")))
        else:
            self.tell(node, *(json.loads(text) if text else ("crashed", "the process ended")))
        counts = ", ".join(f"{number} {name}" for name, number in Counter(self.known.values()).items())
        print(f"{len(self.known)} of {self.count}: {counts}; {node}", file=sys.__stderr__, flush=True)

    def tell(self, node: str, outcome: str, reason: str) -> None:
        """Puts an outcome into the file at once."""
        self.known[node] = outcome
        self.out.write(json.dumps([node, outcome, reason]) + "\n")
        self.out.flush()


def outcome(reports: list[pytest.TestReport]) -> tuple[str, str]:
    """The outcome of a test: of its set-up, itself and its end."""
    found, reason = "skipped", ""
    for report in reports:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            return "failed", (crash.message if crash else str(report.longrepr)).strip()[:2000]
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            found = "passed"
        elif report.skipped:
            reason = str(report.longrepr)[-200:]
    return found, reason


def trees_once(session: pytest.Session) -> None:
    """Parses each file once: ``inspect`` parses all of it whenever it looks for the source of a class."""
    if sys.version_info >= (3, 13):  # a class knows its line
        return
    inspect.ast = SimpleNamespace(**{**vars(ast), "parse": functools.lru_cache(ast.parse)})  # type: ignore[attr-defined]
    for path in {item.path for item in session.items}:
        inspect.ast.parse("".join(inspect.linecache.getlines(str(path))))  # type: ignore[attr-defined]


def main(out: str, shim: str, folder: str, *files: str) -> None:
    if shim != "-":
        sys.path.insert(0, shim)
    os.chdir(folder)
    import torch
    import tvm
    import tvm.relax.frontend.torch  # noqa: F401

    torch.set_num_threads(1)
    forked = Forked(Path(out))
    flags = ["-q", "--noconftest", "-p", "no:cacheprovider", "-W", "ignore", f"--rootdir={folder}"]
    pytest.main([*flags, "-c", os.devnull, *files], plugins=[forked])


if __name__ == "__main__":
    main(*sys.argv[1:])
