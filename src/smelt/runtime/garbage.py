"""When Python may look for garbage, and what becomes of memory that compiling has left."""

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
    """No garbage collection meanwhile: compiling leaves little, and looking through a model's whole heap for
    it takes a third of the time.

    What was made meanwhile is old afterwards: or else looking for what is left of it would come next, in the
    middle of what Dynamo still has to do, for half a second. A heap that somebody else has frozen stays as it
    is: thawing it would not tell theirs from ours.
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
    """What is made meanwhile and no longer needed goes at the end: IRs refer to themselves in circles, 20 MiB
    in all for a large program. Only what was made meanwhile is looked through, not a model's whole heap.

    ``traced``: what tracing has left goes before, so that its memory serves what comes. It takes a tenth of a
    second for a large program: for training, whose gradients are its peak of memory.
    """
    if _waiting:
        if traced:
            gc.collect()
            _give_back()
        gc.freeze()
    try:
        yield
    finally:
        if _waiting:
            gc.collect()
        _give_back()


def _give_back() -> None:
    """Let the operating system have what is free: compiling, and measuring in mode ``max``, has used tens
    of MiB, which the C library keeps in pieces. Takes less than a millisecond, or a few; glibc only.
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
