"""Programs that assume something of the numbers they compute, and run otherwise where that is wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

Call = Callable[[list[Any]], Sequence[Any]]


def or_otherwise(call: Call, compile_otherwise: Callable[[], Call]) -> Call:
    """``call``, whose last output is a tensor with one bool: where it is true the others do not count, and
    what ``compile_otherwise`` gives runs in its place, from then on. The bool is not among the results.

    >>> import torch
    >>> def small(args): return args[0] % 10, torch.tensor(args[0] >= 10)
    >>> call = or_otherwise(small, lambda: lambda args: (args[0],))
    >>> call([2]), call([12]), call([2])
    ((2,), (12,), (2,))
    """
    lock = threading.Lock()
    other: Call | None = None

    def checked(args: list[Any]) -> Sequence[Any]:
        nonlocal other
        if other is None:
            kept = [*args]
            *results, wrong = call(args)
            if not wrong.item():
                return tuple(results)
            with lock:
                if other is None:
                    other = compile_otherwise()
            args[:] = kept
            kept.clear()
        return other(args)

    checked._boxed_call = True  # type: ignore[attr-defined]
    return checked
