"""Tags that users give to computations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smelt.te.errors import refuse
from smelt.te.tensor import SCOPES

ELEMWISE, BROADCAST, INJECTIVE = "elemwise", "broadcast", "injective"
COMM_REDUCE, COMM_REDUCE_IDX = "comm_reduce", "comm_reduce_idx"


@contextmanager
def tag_scope(tag: str) -> Iterator[None]:
    """Computations inside the scope are tagged; it also decorates functions.

    Raises:
        SmeltError: SM1112, it is inside of another.
    """
    if SCOPES:
        refuse("SM1112", f"the tag {tag!r} inside of the tag {SCOPES[-1]!r}", remedy="one tag at a time")
    SCOPES.append(tag)
    try:
        yield
    finally:
        SCOPES.pop()
