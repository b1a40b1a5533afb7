"""Compilers as child processes that end: each is waited for so long, then ended with all that it has started.

A compiler that did not end in time is not asked again by this process: every graph would wait as long.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from smelt.errors import ToolchainError

SECONDS = 300.0
"""How long a compiler may take for one file, unless the configuration says otherwise."""

_hung: dict[tuple[str, ...], float] = {}
"""Compilers that did not end, and how long they were waited for."""


def check(program: Sequence[str], seconds: float) -> None:
    """Nothing, unless this compiler has had as much time before and did not end.

    Raises:
        ToolchainError: SM0507.
    """
    if _hung.get(tuple(program), 0.0) >= seconds:
        raise _did_not_end(program, seconds)


def wait(run: subprocess.Popen[bytes], program: Sequence[str], seconds: float) -> tuple[bytes, bytes]:
    """What ``program``, running as ``run`` in a session of its own, says until it ends.

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
    """End a process that leads its session, and its children with it; nothing where it has ended."""
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
