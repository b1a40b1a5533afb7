"""Programs that are finished at their first call."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from smelt.runtime.deoptimize import at_first_call


class Finish:
    """Makes a program that doubles; raises the first ``fails`` times."""

    def __init__(self, fails: int = 0) -> None:
        self.fails, self.asked = fails, 0

    def __call__(self) -> Any:
        self.asked += 1
        if self.asked <= self.fails:
            raise ValueError("not yet")

        def double(args: list[Any]) -> Sequence[Any]:
            return (2 * args[0],)

        return double


def test_what_raises_is_asked_again() -> None:
    finish = Finish(fails=1)
    call = at_first_call(finish)
    with pytest.raises(ValueError, match="not yet"):
        call([1])
    assert [call([2]), call([3])] == [(4,), (6,)]
    assert finish.asked == 2


def test_threads_finish_it_once() -> None:
    finish, results = Finish(), []
    call, together = at_first_call(finish), threading.Barrier(4)

    def run() -> None:
        together.wait()
        results.append(call([1]))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(2,)] * 4
    assert finish.asked == 1


def test_what_finished_it_is_let_go() -> None:
    """It holds a program's IR, tens of MiB."""
    finish = Finish()
    held, call = weakref.ref(finish), at_first_call(finish)
    del finish
    assert held() is not None
    call([1])
    assert held() is None
