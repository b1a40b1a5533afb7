"""The errors of a schedule: `ScheduleError`, with suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from smelt.nest.primitives.common import ScheduleError

__all__ = ["ScheduleError", "unknown"]


def unknown(what: str, name: str, known: Iterable[str], code: str = "SM1001") -> ScheduleError:
    """The error of an unknown name, with the nearest known one.

    >>> print(unknown("block", "matmull", ["matmul", "relu"]))
    SM1001: get_block('matmull'): there is no block 'matmull'; did you mean 'matmul'?
      do: choose one of matmul, relu
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    remedy = f"choose one of {', '.join(names)}" if names else None
    return ScheduleError(
        f"get_{what}({name!r})", f"there is no {what} {name!r}{guess}", code=code, remedy=remedy
    )
