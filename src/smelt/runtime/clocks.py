"""Run times of the parts of a compiled graph: kernels (counted by the library) and ATen calls (wrapped
here).
"""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from smelt.reporting import PartTime
from smelt.runtime.library import Job, Library

Call = Callable[..., Any]

MOST_CALLS = 100_000
"""Limit on the calls of ATen that are remembered one by one."""


class Clocks:
    """``array``: the library's counters (calls and nanoseconds for each of ``kernels``: name, operations and
    bytes of one call).
    """

    def __init__(self, array: str, kernels: Sequence[tuple[str, int, int]]) -> None:
        self.array, self.kernels = array, kernels
        self.library: Library | Job | None = None
        self._aten: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0, 0])
        self.calls: deque[tuple[str, float, int, int]] = deque(maxlen=MOST_CALLS)
        """Target, seconds, operations and bytes of ATen's calls, in the order in which they ended."""

    def timed(self, target: str, call: Call) -> Call:
        """Wraps an ATen operator to count calls, time, arithmetic (where PyTorch knows it) and bytes.

        >>> clocks = Clocks("none", ())
        >>> product = clocks.timed("aten.mm.default", torch.ops.aten.mm.default)
        >>> part, = (product(torch.ones(2, 3), torch.ones(3, 4)), clocks.read())[1]
        >>> part.name, part.calls, part.operations, part.moved
        ('aten.mm.default', 1, 48, 104)
        """
        packet = getattr(call, "overloadpacket", None) or getattr(torch.ops.aten, target.split(".")[1], None)
        count = flop_registry.get(packet)

        def clocked(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = call(*args, **kwargs)
            taken = time.perf_counter() - begin
            operations = 0 if count is None else _arithmetic(count, args, kwargs, result)
            tensors = tree_leaves((args, {k: v for k, v in kwargs.items() if k != "out"}, result))
            moved = sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
            counted = self._aten[target]
            for place, value in enumerate((1, taken, operations, moved)):
                counted[place] += value
            self.calls.append((target, taken, operations, moved))
            return result

        return clocked

    def read(self) -> list[PartTime]:
        """The counts so far: equal kernels and equal ATen operators are added up."""
        found: dict[str, PartTime] = {}
        for (name, operations, moved), (calls, nanoseconds) in zip(self.kernels, self.counters()):
            part = found.setdefault(name, PartTime(name, "kernel"))
            part.calls += calls
            part.seconds += nanoseconds * 1e-9
            part.operations += calls * operations
            part.moved += calls * moved
        for target, (called, seconds, done, touched) in self._aten.items():
            found[target] = PartTime(target, "aten", int(called), seconds, int(done), int(touched))
        return list(found.values())

    @property
    def file(self) -> str | None:
        """The path of the library, whose functions are called ``kernel_NAME``."""
        loaded = (
            self.library
            if self.library is None or isinstance(self.library, Library)
            else self.library.result()
        )
        return None if loaded is None else str(loaded.handle._name)

    def counters(self) -> list[tuple[int, int]]:
        """Runs and nanoseconds of each call of a kernel, in print order."""
        if self.library is None or not self.kernels:
            return []
        loaded = self.library if isinstance(self.library, Library) else self.library.result()
        values = (ctypes.c_int64 * (2 * len(self.kernels))).in_dll(loaded.handle, self.array)
        return list(zip(values[::2], values[1::2]))


def _arithmetic(count: Call, args: Any, kwargs: Any, result: Any) -> int:
    """The number of additions and multiplications of a call."""
    try:
        return int(count(*args, **{k: v for k, v in kwargs.items() if k != "out"}, out_val=result))
    except Exception:  # a counter for another form of the call: the number is unknown
        return 0
