"""Kernels under `torch.profiler`: each becomes a range with its name and the lines of the model.

A unit calls its watcher before each kernel and at the end of a run, if it has one: one branch where no
profiler is on. A program that is called under a profiler sets it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

from torch.autograd import profiler

from smelt.runtime.library import Library, PythonLibrary

WATCH = "smelt_watch"
"""The function of a unit that sets its watcher, a function of the number of a kernel's call, or -1."""

_watchers: dict[int, Any] = {}
"""The watcher that each library has, by its handle: it must live as long, whatever becomes of programs."""


class Watcher:
    """Opens and closes the ranges of the kernels of one program, called ``names``."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.library: Library | None = None
        self._range = threading.local()
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._next)

    def bind(self, library: Library | PythonLibrary) -> None:
        """Takes the program's library, which may come late."""
        if isinstance(library, Library) and hasattr(library.handle, WATCH):
            self.library = library

    def __call__(self) -> None:
        """Watches the library from now on, until it runs without a profiler."""
        if self.library is not None:
            _watchers[self.library.handle._handle] = self._callback
            self.library.function(WATCH)(self._callback)

    def _next(self, number: int) -> None:
        """The kernel before has ended, and another begins (-1: none)."""
        opened: Any = getattr(self._range, "opened", None)
        if opened is not None:
            self._range.opened = None
            opened.__exit__(None, None, None)
        if not profiler._is_profiler_enabled:
            assert self.library is not None, "a watcher is called by its library"
            self.library.function(WATCH)(None)
        elif number >= 0:
            name = self.names[number] if number < len(self.names) else f"constant {number}"
            self._range.opened = profiler.record_function(f"smelt::{name}")
            self._range.opened.__enter__()


def names_of(notes: dict[str, Any]) -> list[str]:
    """The names of a plan's kernels in the order of their calls: with the lines that they come from.

    >>> names_of({"kernels": ["fused_add_exp"], "fused": [["aten.add.Tensor at a.py:1 in f", "seed at ?"]]})
    ['fused_add_exp (a.py:1)']
    """
    found = []
    for kernel, origins in zip(notes.get("kernels", ()), notes.get("fused", ())):
        places = (each.partition(" at ")[2].partition(" in ")[0] for each in origins)
        lines = [place for place in dict.fromkeys(places) if place not in ("", "?")]
        more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
        found.append(f"{kernel} ({', '.join(lines[:3])}{more})" if lines else str(kernel))
    return found
