"""Large outputs in memory that earlier ones have given back.

A large piece of fresh memory is expensive on its first use: the operating system hands it out, zeroed, a page
at a time (0.4 ms per MiB were seen on a virtual machine, 15 times what writing it takes). A training step
makes its gradients anew each time. So the memory of large outputs stays here when nobody holds it any more,
and serves the next one of its size; what has been idle for a while is given back.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from smelt.runtime.pages import prefer_large

SMALLEST = 1 << 18
"""Bytes from which on memory is kept. What is smaller leaves holes that other small things fill."""
IDLE_SECONDS = 20.0
"""Memory that has served nobody for so long is given back, when next some is asked for."""
LOOK_SECONDS = 5.0
MOST_FORMS = 1024
"""How many sizes and layouts are remembered; there are more where sizes change with each call."""

Sizes = tuple[int, ...]
Form = tuple[Sizes, Sizes, torch.dtype]

_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)
_view: Any = getattr(getattr(torch._C._dynamo, "guards", None), "_reinterpret_tensor", None)


@dataclass(slots=True)
class _Block:
    """Memory, and what tells that nobody but us holds it: how many references there are then to the storage
    (``holders``) and to its Python object.
    """

    base: torch.Tensor
    storage: torch.UntypedStorage
    address: int
    holders: int
    references: int
    served: float

    def is_free(self) -> bool:
        """Whether no tensor, array or storage outside is on this memory any more."""
        if (
            _use_count(self.storage._cdata) != self.holders
            or sys.getrefcount(self.storage) != self.references
        ):
            return False
        return self.base.data_ptr() == self.address  # no: somebody has moved or resized the storage


class _Shelf:
    """Blocks of one size. A step takes many, one after the other: looking goes on where it has ended."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self._last = 0

    def free(self) -> _Block | None:
        """The first block, where nobody holds it: it may be in the caches still. Else another one."""
        if not self.blocks:
            return None
        for place in chain((0,), range(self._last + 1, len(self.blocks)), range(1, self._last + 1)):
            if self.blocks[place].is_free():
                self._last = place
                return self.blocks[place]
        return None

    def add(self, block: _Block) -> None:
        """Keep a block, which is used at once."""
        self._last = len(self.blocks)
        self.blocks.append(block)

    def drop(self, before: float) -> None:
        """Keep only what has served since."""
        self.blocks = [block for block in self.blocks if block.served > before]
        self._last = 0


class Recycler:
    """Memory by size. May be called from any thread.

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
        self._shelves: dict[tuple[int, torch.dtype], _Shelf] = defaultdict(_Shelf)
        self._known: dict[Form, _Shelf | None] = {}
        self._lock = threading.RLock()  # a finalizer may run compiled code in between
        self._looked = time.monotonic()

    def empty(self, shape: Sizes, strides: Sizes, dtype: torch.dtype) -> torch.Tensor:
        """A new tensor whose elements may hold anything, as ``torch.empty_strided``."""
        form = shape, strides, dtype
        now = time.monotonic()
        with self._lock:
            if now - self._looked > LOOK_SECONDS:
                self._give_back(now)
            shelf = self._known[form] if form in self._known else self._shelf(form)
            if shelf is None:
                return torch.empty_strided(shape, strides, dtype=dtype)
            block = shelf.free()
            if block is None:
                block = _new(dtype.itemsize * math.prod(shape), dtype)
                shelf.add(block)
            block.served = now
            made: torch.Tensor = _view(block.base, shape, strides, 0)
        return made

    def clear(self) -> None:
        """Keep nothing: what is in use goes when its last holder goes."""
        with self._lock:
            self._shelves.clear()
            self._known.clear()

    def _shelf(self, form: Form) -> _Shelf | None:
        """Where memory for such tensors is, if any is kept."""
        shape, strides, dtype = form
        size = dtype.itemsize * math.prod(shape)
        reach = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
        dense = reach * dtype.itemsize == size
        kept = size >= SMALLEST and dense and _use_count is not None and _view is not None
        if len(self._known) >= MOST_FORMS:
            self._known.clear()
        shelf = self._known[form] = self._shelves[size, dtype] if kept else None
        return shelf

    def _give_back(self, now: float) -> None:
        self._looked = now
        self._known.clear()
        for size, shelf in list(self._shelves.items()):
            shelf.drop(now - IDLE_SECONDS)
            if not shelf.blocks:
                del self._shelves[size]


def _new(size: int, dtype: torch.dtype) -> _Block:
    # tensors over it serve later calls in every mode: it must not be an inference tensor
    with torch.inference_mode(False), torch.no_grad():
        base = torch.empty(size // dtype.itemsize, dtype=dtype)
        prefer_large(base.data_ptr(), size)
    storage = base.untyped_storage()
    block = _Block(base, storage, base.data_ptr(), 0, 0, 0.0)
    del storage
    block.holders, block.references = _use_count(block.storage._cdata), sys.getrefcount(block.storage)
    return block


RECYCLER = Recycler()
