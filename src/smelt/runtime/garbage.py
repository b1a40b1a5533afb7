"""When Python may look for garbage, and what becomes of memory that compiling has left."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from functools import lru_cache
from typing import Any


@contextlib.contextmanager
def garbage_waits() -> Iterator[None]:
    """No garbage collection meanwhile: compiling leaves little, and looking through a model's whole heap for
    it takes a third of the time.

    What was made meanwhile is old afterwards: or else looking for what is left of it would come next, in the
    middle of what Dynamo still has to do, for half a second.
    """
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            if gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@contextlib.contextmanager
def garbage_goes() -> Iterator[None]:
    """What is made meanwhile and no longer needed goes at the end: IRs refer to themselves in circles, 20 MiB
    in all for a large program. Only what was made meanwhile is looked through, not a model's whole heap.
    """
    if gc.get_freeze_count():  # somebody has frozen a heap: thawing it would not tell theirs from ours
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()


def give_back() -> None:
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
