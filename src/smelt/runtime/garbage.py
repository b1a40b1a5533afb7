"""When Python may look for garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


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
