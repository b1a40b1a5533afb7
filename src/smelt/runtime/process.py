"""Compilers as child processes with a time limit: at its end they are killed with all their children.

This process does not start a compiler again that did not end in time: every graph would wait as long.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from smelt.errors import ToolchainError

SECONDS = 300.0
"""The default time limit of a compiler for one file."""

_hung: dict[tuple[str, ...], float] = {}
"""Compilers that did not end, and their time limits."""


def check(program: Sequence[str], seconds: float) -> None:
    """Checks that this compiler has not exceeded at least this time limit before.

    Raises:
        ToolchainError: SM0507.
    """
    if _hung.get(tuple(program), 0.0) >= seconds:
        raise _did_not_end(program, seconds)


def wait(run: subprocess.Popen[bytes], program: Sequence[str], seconds: float) -> tuple[bytes, bytes]:
    """The output of ``program``, running as ``run`` in a session of its own, after its end.

    Raises:
        ToolchainError: SM0507, it did not end in time; it was ended.
    """
    try:
        out, errors = run.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as late:
        end(run)
        _hung[tuple(program)] = seconds
        raise _did_not_end(program, seconds) from late
    return out or b"", errors or b""


def end(run: subprocess.Popen[bytes]) -> None:
    """Ends a process that leads its session, and its children; does nothing if it has ended."""
    if run.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(run.pid, signal.SIGKILL)
        run.kill()
        run.wait()
    for pipe in (run.stdout, run.stderr):
        if pipe is not None:
            pipe.close()


def _did_not_end(program: Sequence[str], seconds: float) -> ToolchainError:
    return ToolchainError(
        "SM0507",
        f"the C++ compiler {program[0]} did not end within {seconds:g} seconds",
        why="it hangs, or the machine is too busy; this process does not ask it again",
        remedy="see whether it compiles a small file; the option compiler_seconds gives it longer",
    )
