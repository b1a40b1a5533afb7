"""Arenas: memory for a graph's intermediate buffers and the torch tensors in it, reused call after call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ALIGNMENT = 64
KEPT = 2
"""How many idle arenas a pool keeps: for the thread that calls, and for a second thread or a nested call."""

Views = Callable[[torch.UntypedStorage, int, tuple[int, ...]], tuple[torch.Tensor, ...]]
"""(storage, where the arena begins in it in bytes, symbol values) → the tensors over the arena."""


class Arena:
    """A piece of memory, 64-byte aligned at ``address``.

    ``views``: the tensors over it for the symbols' values ``key``.
    """

    __slots__ = ("address", "capacity", "key", "memory", "start", "views")

    def __init__(self) -> None:
        self.memory: torch.Tensor | None = None
        self.address = 0
        self.start = 0
        self.capacity = -1
        self.key: tuple[int, ...] | None = None
        self.views: tuple[torch.Tensor, ...] = ()

    def fit(self, size: int, key: tuple[int, ...], views: Views | None) -> None:
        """Make room for ``size`` bytes (it only grows) and build the tensors for ``key``."""
        # tensors made here serve later calls in every mode: they must not be inference tensors
        with torch.inference_mode(False), torch.no_grad():
            if size > self.capacity:
                self.views = ()
                self.memory = None  # the old piece goes before the new one comes
                self.memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
                self.start = -self.memory.data_ptr() % ALIGNMENT
                self.address = self.memory.data_ptr() + self.start
                self.capacity = size
            if views is not None:
                assert self.memory is not None
                self.views = views(self.memory.untyped_storage(), self.start, key)
        self.key = key


class ArenaPool:
    """The arenas of one executor. ``acquire`` and ``release`` may be called from any thread, and nest.

    ``size`` gives the bytes for the symbols' values; ``views`` builds the tensors over the arena, if any.

    >>> pool = ArenaPool(lambda key: 128, None)
    >>> first, second = pool.acquire(), pool.acquire()
    >>> first.address % 64, first is second
    (0, False)
    >>> pool.release(first)
    >>> pool.acquire() is first
    True
    """

    def __init__(self, size: Callable[[tuple[int, ...]], int], views: Views | None) -> None:
        self._size, self._views = size, views
        self._free: list[Arena] = []

    def acquire(self, key: tuple[int, ...] = ()) -> Arena:
        """An arena that nobody else uses, with its tensors for the symbols' values ``key``."""
        try:
            arena = self._free.pop()  # one bytecode under the GIL, and atomic without it: no lock
        except IndexError:
            arena = Arena()
        if arena.key != key:
            arena.fit(self._size(key), key, self._views)
        return arena

    def release(self, arena: Arena) -> None:
        """Give an arena back."""
        if len(self._free) < KEPT:
            self._free.append(arena)


def tensor_at(
    storage: torch.UntypedStorage, offset: int, dtype: torch.dtype, shape: Any, strides: Any
) -> torch.Tensor:
    """A tensor over ``storage`` at ``offset`` bytes, which must be a multiple of the element size."""
    return torch.empty(0, dtype=dtype).set_(storage, offset // dtype.itemsize, shape, strides)
