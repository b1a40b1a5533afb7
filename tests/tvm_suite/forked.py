"""Runs each test of some files in a process of its own, forked from one that has imported the heavy packages.

``python forked.py OUT.json FOLDER_OF_SHIM|- TESTS_FOLDER FILE…`` knows nothing of smelt: the same file runs
TVM's tests on the apache-tvm wheel (the denominator) and on smelt behind the import shim. OUT.json holds
``{node id: [outcome, reason]}``: an outcome is passed, failed, skipped, crashed or timeout; a reason is the
message of the exception.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SECONDS = 120


class Collected:
    """The node ids of the files, and what pytest could not import."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.errors: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.ids = [item.nodeid for item in items]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors[report.nodeid] = str(report.longrepr).strip().splitlines()[-1]


class Outcome:
    """The outcome of the one test of this process."""

    def __init__(self) -> None:
        self.outcome, self.reason = "skipped", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.outcome, self.reason = "failed", (crash.message if crash else str(report.longrepr)).strip()
        elif report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self.outcome = "passed"
        elif report.skipped:
            self.reason = str(report.longrepr)[-200:]


def options(folder: str) -> list[str]:
    return [
        "-q",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        f"--rootdir={folder}",
        "-c",
        os.devnull,
    ]


def alone(node: str, folder: str) -> tuple[str, str]:
    """Runs one test in a forked process."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            outcome = Outcome()
            try:
                pytest.main([*options(folder), node], plugins=[outcome])
                Path(answer.name).write_text(json.dumps([outcome.outcome, outcome.reason[:2000]]))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return (
                ("timeout", f"{SECONDS} s") if number == signal.SIGALRM else ("crashed", f"signal {number}")
            )
        text = answer.read()
        return tuple(json.loads(text)) if text else ("crashed", "the process ended")


def main(out: str, shim: str, folder: str, *files: str) -> None:
    if shim != "-":
        sys.path.insert(0, shim)
    os.chdir(folder)
    import torch
    import tvm
    import tvm.relax.frontend.torch  # noqa: F401

    torch.set_num_threads(1)
    collected = Collected()
    pytest.main([*options(folder), "--collect-only", "-qq", *files], plugins=[collected])
    answers = {node: ("failed", f"not collected: {reason}") for node, reason in collected.errors.items()}
    with ThreadPoolExecutor(max(os.cpu_count() or 1, 1)) as pool:
        for done, (node, answer) in enumerate(
            zip(collected.ids, pool.map(lambda node: alone(node, folder), collected.ids)), 1
        ):
            answers[node] = answer
            print(f"\r{done}/{len(collected.ids)} {node[:90]:90}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    Path(out).write_text(json.dumps(answers, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
