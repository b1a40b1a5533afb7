"""Arenas: memory for a graph's intermediate buffers and the torch tensors in it, reused by later calls.

All executors share idle arenas: a forward graph, its backward graph and the other parts of a program run one
after the other, and the memory of one is still in the caches when the next one starts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from smelt.runtime.pages import prefer_large

ALIGNMENT = 64
KEPT = 2
"""Number of idle arenas that are kept: for the calling thread, and for a second thread or a nested call."""

Key = tuple[int, ...]
"""The values of the symbols that the sizes in an arena depend on."""
Tensors = Callable[[torch.UntypedStorage, int, Key], tuple[torch.Tensor, ...]]
"""(storage, the arena's byte offset in it, symbol values) → the tensors over the arena."""


class Arena:
    """A piece of memory, 64-byte aligned at ``address``, ``start`` bytes into its storage. It only grows."""

    __slots__ = ("__weakref__", "address", "capacity", "start", "storage")

    def __init__(self) -> None:
        self.storage = torch.UntypedStorage(0)
        self.address = self.start = 0
        self.capacity = -1

    def grow(self, size: int) -> None:
        """Grows to ``size`` bytes; the contents are lost."""
        self.capacity = -1
        self.storage.resize_(0)  # the old piece goes before the new one comes
        self.storage.resize_(size + ALIGNMENT)
        self.start = -self.storage.data_ptr() % ALIGNMENT
        self.address = self.storage.data_ptr() + self.start
        self.capacity = size
        prefer_large(self.address, size)


class _Idle(list[Arena]):
    """Unused arenas. The list lives as long as any executor."""


_idle: weakref.ref[_Idle] | None = None


def _shared() -> _Idle:
    global _idle
    found = _idle() if _idle is not None else None
    if found is None:
        found = _Idle()
        _idle = weakref.ref(found)
    return found


class ArenaPool:
    """Provides arenas to one executor. ``acquire`` and ``release`` may be called from any thread, and nest.

    ``size`` gives the bytes for the symbols' values; ``make`` builds the tensors over the arena.

    >>> pool, other = ArenaPool(lambda key: 128), ArenaPool(lambda key: 256)
    >>> first, second = pool.acquire(), pool.acquire()
    >>> first.address % 64, first is second
    (0, False)
    >>> pool.release(first)
    >>> other.acquire() is first
    True
    """

    def __init__(self, size: Callable[[Key], int], make: Tensors | None = None) -> None:
        self._size, self._make = size, make
        self._idle = _shared()
        self._known: tuple[Key | None, int] = (None, 0)
        self._made: weakref.WeakKeyDictionary[Arena, tuple[Key, int, tuple[torch.Tensor, ...]]]
        self._made = weakref.WeakKeyDictionary()

    def acquire(self, key: Key = ()) -> Arena:
        """An unused arena, large enough for the symbols' values ``key``."""
        known, size = self._known
        if known != key:
            size = self._size(key)
            self._known = (key, size)
        try:
            arena = self._idle.pop()  # one bytecode under the GIL, and atomic without it: no lock
        except IndexError:
            arena = Arena()
        if arena.capacity < size:
            arena.grow(size)
        return arena

    def tensors(self, arena: Arena, key: Key = ()) -> tuple[torch.Tensor, ...]:
        """The tensors over an arena that was acquired for these values; cached by the values."""
        made = self._made.get(arena)
        if made is None or made[:2] != (key, arena.start):
            assert self._make is not None
            # tensors made here serve later calls in every mode: they must not be inference tensors
            with torch.inference_mode(False), torch.no_grad():
                made = (key, arena.start, self._make(arena.storage, arena.start, key))
            self._made[arena] = made
        return made[2]

    def release(self, arena: Arena) -> None:
        """Returns an arena to the pool."""
        if len(self._idle) < KEPT:
            self._idle.append(arena)


def tensor_at(
    storage: torch.UntypedStorage, offset: int, dtype: torch.dtype, shape: Any, strides: Any
) -> torch.Tensor:
    """A tensor over ``storage`` at ``offset`` bytes, which must be a multiple of the element size."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(
        storage, offset // dtype.itemsize, shape, strides
    )
