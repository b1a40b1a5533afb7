"""Recycling of the memory of large outputs.

A large piece of fresh memory is expensive on its first use: the operating system provides it, zeroed, a page
at a time (docs/benchmarks.md). A training step makes its gradients anew each time. So the memory of large
outputs is kept when it is free, and reused for the next output of its size, or a slightly smaller one if
sizes change from call to call. Memory that is idle for a while is released, and so is memory beyond the peak
use.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from smelt.runtime.pages import prefer_large

SMALLEST = 1 << 18
"""The fewest bytes of memory that is kept: small pieces are fragments that other small objects use."""
IDLE_SECONDS = 20.0
"""Memory that is idle for so long is released at the next request."""
LOOK_SECONDS = 5.0
MOST_IDLE = 1 << 27
"""Bytes that may always be idle. The limit grows to the peak use, such as a step's gradients."""
STEPS = 8
"""Size classes for each power of two. A tensor may get memory that is larger by an eighth at most."""
MOST_FORMS = 1024
"""Number of sizes and layouts that are cached; there are more if sizes change with each call."""

Sizes = tuple[int, ...]
Form = tuple[Sizes, Sizes, torch.dtype]

_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)
_view: Any = getattr(getattr(torch._C._dynamo, "guards", None), "_reinterpret_tensor", None)


@dataclass(slots=True)
class _Block:
    """Memory, and the reference counts of the storage (``holders``) and its Python object that show that it
    is free.
    """

    base: torch.Tensor
    storage: torch.UntypedStorage
    address: int
    size: int
    holders: int
    references: int
    served: float

    def is_free(self) -> bool:
        """Whether no tensor, array or storage elsewhere uses this memory."""
        return (
            _use_count(self.storage._cdata) == self.holders
            and sys.getrefcount(self.storage) == self.references
        )

    def is_as_made(self) -> bool:
        """Whether a new tensor can use this memory: the storage was not moved, resized, or shared with NumPy,
        after which PyTorch cannot resize it.
        """
        storage = self.storage
        return storage.data_ptr() == self.address and storage.nbytes() == self.size and storage.resizable()


class _Shelf:
    """Blocks of one size. A step takes many, one after the other: the search continues where it ended."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.size, self.dtype = size, dtype
        self.blocks: list[_Block] = []
        self._last = 0

    def free(self) -> _Block | None:
        """The first block, if it is free: it may be in the caches still. Else another one."""
        if not self.blocks:
            return None
        spoilt = False
        found = None
        for place in chain((0,), range(self._last + 1, len(self.blocks)), range(1, self._last + 1)):
            block = self.blocks[place]
            if block.is_free():
                if block.is_as_made():
                    self._last, found = place, block
                    break
                spoilt = True
        if spoilt:
            self.keep(lambda block: block is found or not block.is_free() or block.is_as_made())
        return found

    def add(self, block: _Block) -> None:
        """Adds a block, which is in use."""
        self._last = len(self.blocks)
        self.blocks.append(block)

    def keep(self, wanted: Callable[[_Block], bool]) -> None:
        """Keeps only the wanted blocks."""
        self.blocks = [block for block in self.blocks if wanted(block)]
        self._last = 0


class Recycler:
    """Free memory by size. May be called from any thread.

    >>> recycler = Recycler()
    >>> first = recycler.empty((1024, 1024), (1024, 1), torch.float32)
    >>> address = first.data_ptr()
    >>> recycler.empty((1024, 1024), (1024, 1), torch.float32).data_ptr() == address
    False
    >>> del first
    >>> recycler.empty((1024, 1024), (1, 1024), torch.float32).data_ptr() == address
    True
    """

    def __init__(self) -> None:
        self._shelves: dict[tuple[int, torch.dtype], dict[int, _Shelf]] = {}
        """Size class and dtype → size → shelf."""
        self._most_used = 0
        self._look_beyond = MOST_IDLE
        self._known: dict[Form, _Shelf | None] = {}
        self._lock = threading.RLock()  # a finalizer may run compiled code in between
        self._looked = time.monotonic()

    def empty(self, shape: Sizes, strides: Sizes, dtype: torch.dtype) -> torch.Tensor:
        """A new uninitialized tensor, as ``torch.empty_strided``."""
        form = shape, strides, dtype
        now = time.monotonic()
        with self._lock:
            if now - self._looked > LOOK_SECONDS:
                self._give_back(now)
            shelf = self._known[form] if form in self._known else self._shelf(form)
            if shelf is None:
                return torch.empty_strided(shape, strides, dtype=dtype)
            block = shelf.free() or self._larger(shelf)
            if block is None:
                self._make_room(shelf.size)
                block = _new(shelf.size, dtype)
                shelf.add(block)
            block.served = now
            made: torch.Tensor = _view(block.base, shape, strides, 0)
        return made

    def clear(self) -> None:
        """Releases all memory; memory in use is freed with its last holder."""
        with self._lock:
            self._shelves.clear()
            self._known.clear()
            self._most_used, self._look_beyond = 0, MOST_IDLE

    def _shelf(self, form: Form) -> _Shelf | None:
        """The shelf of memory for tensors of this form, if any."""
        shape, strides, dtype = form
        size = dtype.itemsize * math.prod(shape)
        reach = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
        dense = reach * dtype.itemsize == size
        kept = size >= SMALLEST and dense and _use_count is not None and _view is not None
        if len(self._known) >= MOST_FORMS:
            self._known.clear()
        shelf = None
        if kept:
            shelves = self._shelves.setdefault((_class(size), dtype), {})
            shelf = shelves.get(size)
            if shelf is None:
                shelf = shelves[size] = _Shelf(size, dtype)
        self._known[form] = shelf
        return shelf

    def _all(self) -> Iterator[_Shelf]:
        return (shelf for shelves in self._shelves.values() for shelf in shelves.values())

    def _larger(self, shelf: _Shelf) -> _Block | None:
        """A free block that is larger by an eighth at most."""
        above = _class(shelf.size)
        for shelves in (self._shelves.get((each, shelf.dtype), {}) for each in range(above, above + 3)):
            for size in sorted(shelves):
                if shelf.size < size <= shelf.size + shelf.size // STEPS:
                    found = shelves[size].free()
                    if found is not None:
                        return found
        return None

    def _make_room(self, size: int) -> None:
        """Releases the memory that was idle longest, if idle memory plus ``size`` bytes exceed the limit."""
        total = size + sum(shelf.size * len(shelf.blocks) for shelf in self._all())
        if total <= self._look_beyond:
            return
        free = [(block, shelf) for shelf in self._all() for block in shelf.blocks if block.is_free()]
        idle = sum(shelf.size for _, shelf in free)
        self._most_used = max(self._most_used, total - idle)
        gone: set[int] = set()
        for block, shelf in sorted(free, key=lambda each: each[0].served):
            if idle <= max(MOST_IDLE, self._most_used - (total - idle)):
                break
            idle, total = idle - shelf.size, total - shelf.size
            gone.add(id(block))
        for shelf in {id(shelf): shelf for block, shelf in free if id(block) in gone}.values():
            shelf.keep(lambda block: id(block) not in gone)
        # looking at every block takes its time: the next time there is an eighth more
        self._look_beyond = max(MOST_IDLE, total + total // STEPS)

    def _give_back(self, now: float) -> None:
        self._looked = now
        self._known.clear()
        for key, shelves in list(self._shelves.items()):
            for size, shelf in list(shelves.items()):
                shelf.keep(lambda block: block.served > now - IDLE_SECONDS)
                if not shelf.blocks:
                    del shelves[size]
            if not shelves:
                del self._shelves[key]
        total = sum(shelf.size * len(shelf.blocks) for shelf in self._all())
        self._most_used = min(self._most_used, total)
        self._look_beyond = max(MOST_IDLE, min(self._look_beyond, total + total // STEPS))


def _class(size: int) -> int:
    """The size class of a size, among the `STEPS` of its power of two.

    >>> _class(1 << 20) + STEPS == _class(1 << 21), _class(1 << 20) + 1 == _class((1 << 20) + (1 << 17))
    (True, True)
    """
    power = size.bit_length() - 1
    return power * STEPS + (size - (1 << power)) * STEPS // (1 << power)


def _new(size: int, dtype: torch.dtype) -> _Block:
    # tensors over it serve later calls in every mode: it must not be an inference tensor
    with torch.inference_mode(False), torch.no_grad():
        base = torch.empty(size // dtype.itemsize, dtype=dtype)
        prefer_large(base.data_ptr(), size)
    storage = base.untyped_storage()
    block = _Block(base, storage, base.data_ptr(), storage.nbytes(), 0, 0, 0.0)
    del storage
    block.holders, block.references = _use_count(block.storage._cdata), sys.getrefcount(block.storage)
    return block


RECYCLER = Recycler()
