"""What people see besides results: progress on stderr, and an error as one clear line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from smelt.errors import SmeltError


def out() -> Console:
    """Where results go (made anew, so that a redirected ``sys.stdout`` is respected)."""
    return Console(file=sys.stdout, width=_width(sys.stdout), highlight=False)


def err() -> Console:
    """Where progress and errors go."""
    return Console(file=sys.stderr, width=_width(sys.stderr), highlight=False)


def _width(stream: object) -> int | None:
    """None lets rich ask the terminal; into a file or a pipe a table may be as wide as it needs."""
    isatty = getattr(stream, "isatty", None)
    return None if isatty is not None and isatty() else 140


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show that ``text`` is going on: a spinner with the seconds on a terminal, one plain line elsewhere."""
    console = err()
    if not console.is_terminal:
        console.print(f"{text} …", markup=False)
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        bar.add_task(text)
        yield


def inner_error(error: BaseException) -> BaseException:
    """What a backend raised, where Dynamo has wrapped it in an exception of its own."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, SmeltError) else error


INPUT_ERRORS = (
    *("SM01", "SM0201", "SM0202", "SM0203", "SM03", "SM0507", "SM0508", "SM0601", "SM0602"),
    *("SM0521", "SM0522", "SM0523", "SM0524", "SM0525"),
    *("SM0710", "SM0711", "SM0716", "SM0721", "SM0722", "SM0723", "SM09"),
)
"""How the codes begin of what is the user's or the machine's doing: the others are bugs of smelt."""


def is_input(error: SmeltError) -> bool:
    """Whether an error is about what was given, and not a bug.

    >>> is_input(SmeltError("SM0201", "no C++ compiler found"))
    True
    """
    return error.code.startswith(INPUT_ERRORS)


def one_line(error: SmeltError) -> str:
    """An error on one line (verifiers' errors, which list several problems, keep their lines).

    >>> one_line(SmeltError("SM0001", "no C++ compiler", remedy="install g++"))
    'SM0001: no C++ compiler; install g++'
    """
    if "\n" in error.what:
        return str(error)
    parts = [f"{error.code}: {error.what}"]
    if error.where:
        parts[0] += f" (at {error.where})"
    parts += [part for part in (error.why, error.remedy) if part]
    return "; ".join(parts)
