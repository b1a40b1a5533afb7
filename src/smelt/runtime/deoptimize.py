"""Programs that change at run time: finished at the first call, or deoptimized by a check of the results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

Call = Callable[[list[Any]], Sequence[Any]]


def or_deoptimized(call: Call, compile_deoptimized: Callable[[], Call]) -> Call:
    """``call``, whose last output is a tensor with one bool: if it is true the other outputs are invalid, and
    the result of ``compile_deoptimized`` runs instead, from then on. The bool is not among the results.

    >>> import torch
    >>> def small(args): return args[0] % 10, torch.tensor(args[0] >= 10)
    >>> call = or_deoptimized(small, lambda: lambda args: (args[0],))
    >>> call([2]), call([12]), call([2])
    ((2,), (12,), (2,))
    """
    make_other = _once(compile_deoptimized)
    other: Call | None = None

    def checked(args: list[Any]) -> Sequence[Any]:
        nonlocal other
        if other is None:
            kept = [*args]
            *results, wrong = call(args)
            if not wrong.item():
                return tuple(results)
            other = make_other()
            args[:] = kept
            kept.clear()
        return other(args)

    checked._boxed_call = True  # type: ignore[attr-defined]
    return checked


def at_first_call(finish: Callable[[], Call]) -> Call:
    """The result of ``finish``, which runs at the first call; at the next one again, if it raises.

    >>> call = at_first_call(lambda: print("finished") or (lambda args: (args[0] + 1,)))
    >>> call([1]), call([2])
    finished
    ((2,), (3,))
    """
    make = _once(finish)
    finished: Call | None = None

    def call(args: list[Any]) -> Sequence[Any]:
        nonlocal finished
        if finished is None:
            finished = make()
        return finished(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _once(make: Callable[[], Call]) -> Callable[[], Call]:
    """``make`` as a function that runs it once for all threads, and again if it raised; then ``make`` is
    released.
    """
    lock = threading.Lock()
    todo, made = [make], []

    def get() -> Call:
        with lock:
            if todo:
                made.append(todo[0]())
                todo.clear()
            return made[0]

    return get
