"""Output besides results: progress on stderr, and an error as one clear line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from smelt.errors import SmeltError


def out() -> Console:
    """The console of results (made anew, so that a redirected ``sys.stdout`` is respected)."""
    return Console(file=sys.stdout, width=_width(sys.stdout), highlight=False)


def err() -> Console:
    """The console of progress and errors."""
    return Console(file=sys.stderr, width=_width(sys.stderr), highlight=False)


def _width(stream: object) -> int | None:
    """The console width: None lets rich ask the terminal; a file or a pipe gets tables as wide as needed."""
    isatty = getattr(stream, "isatty", None)
    return None if isatty is not None and isatty() else 140


def check_folder(option: str, file: str | None) -> None:
    """Checks, before long work, that the folder of an option's file exists; ``-`` is standard output.

    Raises:
        SmeltError: SM0907, it does not.
    """
    if file not in (None, "-") and not Path(str(file)).resolve().parent.is_dir():
        raise SmeltError("SM0907", f"no such folder for {option}: {Path(str(file)).parent}")


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Shows that ``text`` is in progress: a spinner with the seconds on a terminal, one plain line
    elsewhere. Gives a function that shows the step that has begun.
    """
    console = err()
    if not console.is_terminal:
        console.print(f"{text} …", markup=False)
        yield lambda step: console.print(f"  {step} …", markup=False)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text)
        yield lambda step: bar.update(task, description=f"{text}: {step}")


def inner_error(error: BaseException) -> BaseException:
    """The exception of a backend, if Dynamo has wrapped it in an exception of its own."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, SmeltError) else error


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
