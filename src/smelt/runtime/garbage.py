"""Control of Python's garbage collector and of freed memory around compilation."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

_waiting = False
"""Whether `garbage_waits` has frozen the heap."""


@contextlib.contextmanager
def garbage_waits() -> Iterator[None]:
    """Suspends garbage collection: compilation makes little garbage, and scanning a model's whole heap takes
    a third of the time.

    New objects are in the oldest generation afterwards: otherwise a collection would follow soon, while
    Dynamo is still at work. A heap that other code has frozen stays frozen: thawing would thaw all of it.
    """
    global _waiting
    wanted, outermost = gc.isenabled(), not _waiting and gc.get_freeze_count() == 0
    gc.disable()
    if outermost:
        gc.freeze()
        _waiting = True
    try:
        yield
    finally:
        if outermost:
            gc.unfreeze()
            _waiting = False
        if wanted:
            gc.enable()


@contextlib.contextmanager
def garbage_goes(*, traced: bool) -> Iterator[None]:
    """Collects the garbage made in the block at its end: IRs have reference cycles, 20 MiB for a large
    program. Only new objects are scanned, not a model's whole heap.

    ``traced``: the garbage of tracing is collected before, so that its memory is reused. It takes time, and
    is meant for training, whose gradients are the peak of memory.
    """
    if _waiting:
        if traced:
            gc.collect()
            give_back()
        gc.freeze()
    try:
        yield
    finally:
        if _waiting:
            gc.collect()
        give_back()


def give_back() -> None:
    """Returns free memory to the operating system: compilation, and the measurements of mode ``max``, leave
    tens of MiB in fragments in the C library (glibc only).
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
