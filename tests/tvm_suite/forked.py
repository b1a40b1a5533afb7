"""Runs each test of some files in a process of its own, forked from one that has collected them all.

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
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

SECONDS = 120


class Forked:
    """A plugin of pytest that runs each test in a process forked where the tests have been collected.

    ``answers``: the outcome and the reason of each test, and of each file that could not be imported.
    """

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, str]] = {}
        self.running: dict[int, tuple[str, Any]] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            reason = str(report.longrepr).strip().splitlines()[-1]
            self.answers[report.nodeid] = "failed", f"not collected: {reason}"

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
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
            self.answers[node] = ("timeout", f"{SECONDS} s") if late else ("crashed", f"signal {number}")
        else:
            self.answers[node] = tuple(json.loads(text)) if text else ("crashed", "the process ended")
        print(f"\r{len(self.answers)} {node[:90]:90}", end="", file=sys.__stderr__, flush=True)


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


def main(out: str, shim: str, folder: str, *files: str) -> None:
    if shim != "-":
        sys.path.insert(0, shim)
    os.chdir(folder)
    import torch
    import tvm
    import tvm.relax.frontend.torch  # noqa: F401

    torch.set_num_threads(1)
    forked = Forked()
    flags = ["-q", "--noconftest", "-p", "no:cacheprovider", "-W", "ignore", f"--rootdir={folder}"]
    pytest.main([*flags, "-c", os.devnull, *files], plugins=[forked])
    print(file=sys.stderr)
    Path(out).write_text(json.dumps(forked.answers, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
