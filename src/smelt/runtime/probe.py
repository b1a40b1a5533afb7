"""A probe of a few elements of many tensors: it notices most writes that do not change a version counter.

Fused optimizers, ``p.data.copy_(…)`` and NumPy views write to a parameter without incrementing its version.
They usually change nearly all elements, so a few of each tensor suffice. One native call reads a cache line
of each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from smelt.errors import SmeltError
from smelt.runtime import trampoline
from smelt.runtime.library import CompileJob, Library, helper

TEXT = r"""// smelt: a digest of a few elements of many tensors
typedef long long int64;
typedef unsigned long long word;
static word mixed(word hash, word more) { return (hash ^ more) * 0x9E3779B97F4A7C15ull + (hash >> 29); }

static word line(const unsigned char* from, int64 bytes, word hash) {
  word value;
  for (; bytes >= 8; bytes -= 8, from += 8) { __builtin_memcpy(&value, from, 8); hash = mixed(hash, value); }
  for (; bytes > 0; bytes--, from++) hash = mixed(hash, *from);
  return hash;
}

// `table` holds (address, bytes) of `count` places, and then 16 more that are only fetched
extern "C" __attribute__((visibility("default"))) int64 smelt_probe(int64 table, int64 count) {
  const int64* entry = (const int64*)table;
  word hash = 1;
  for (int64 i = 0; i < count; i++, entry += 2) {
    __builtin_prefetch((const void*)entry[32]);
    hash = line((const unsigned char*)entry[0], entry[1], hash);
  }
  return hash & 0x7FFFFFFFFFFFFFFFull;
}
"""

_LINE = 64
_FETCHED = 16
"""The prefetch distance, in tensors."""

Look = Callable[[int, int], int]


class Probe:
    """A digest of a few elements of these tensors, as they are at each call. It keeps them alive.

    >>> x = torch.zeros(1000)
    >>> probe = Probe([x])
    >>> before = probe()
    >>> _ = x.data.fill_(1.0)
    >>> before == probe()
    False
    """

    __slots__ = ("address", "count", "table", "tensors")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = [each.detach() for each in tensors]
        places = [_place(number, each) for number, each in enumerate(self.tensors) if each.numel() > 0]
        self.count = len(places)
        self.table = (ctypes.c_int64 * (2 * self.count + 2 * _FETCHED))(*(n for each in places for n in each))
        self.address = ctypes.addressof(self.table)

    def __call__(self) -> int:
        return _looker()(self.address, self.count)  # here: it may wait for the compiler


def _place(number: int, tensor: torch.Tensor) -> tuple[int, int]:
    """The address and the bytes to read of a tensor: one cache line, at a place that depends on the
    tensor.
    """
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    address, size = tensor.data_ptr(), (reach + 1) * tensor.element_size()
    if size <= 2 * _LINE:
        return address, size
    start = -address % _LINE
    lines = (size - start) // _LINE
    return address + start + (number * 7919 + lines // 2) % lines * _LINE, _LINE


def start() -> CompileJob | None:
    """Starts to compile (or load) `TEXT`; None if there is no toolchain."""
    return helper("probe", TEXT)


def native_library() -> Library | None:
    """The compiled `TEXT`; None if it cannot be compiled."""
    job = start()
    try:
        return None if job is None else job.result()
    except (SmeltError, OSError):
        return None


@lru_cache(maxsize=1)
def _looker() -> Look:
    """The native function; without it no write is noticed."""
    library = native_library()
    if library is None:
        return lambda address, count: 0
    fast = trampoline.fast_callable(library, "smelt_probe", 2)
    if fast is None:
        fast = library.function("smelt_probe")
        fast.argtypes = [ctypes.c_int64, ctypes.c_int64]
    return fast
