"""A look at a few elements of many tensors: notices most writes that no version counter counts.

Fused optimizers, ``p.data.copy_(…)`` and NumPy views write to a parameter without counting its version up.
They change nearly all elements as a rule; a few of each tensor tell. One native call reads a cache line of
each.
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

// For `smelt.runtime.watch`: whether arguments are the tensors that they were.
typedef struct _object PyObject;
struct Method { const char* name; void* function; int flags; const char* doc; };
extern "C" {
int64 PyLong_AsLongLong(PyObject*);
PyObject* PyLong_FromLongLong(int64);
PyObject* PyBool_FromLong(long);
char* PyBytes_AsString(PyObject*);
PyObject* PyList_GetItem(PyObject*, long);
PyObject* PyCFunction_NewEx(Method*, PyObject*, PyObject*);
}
struct Layout { int64 object, storage, offset, counter, version; };
struct Entry { int64 position, tensor, storage, offset, counter, version; };
struct Table { int64 count, places, places_count; Layout at; Entry entries[]; };
template <typename T> static T read(int64 base, int64 offset) { return *(const T*)(base + offset); }

// The digest of the content that the table's places have, or -1 where something else has changed.
static PyObject* watch(PyObject* self, PyObject* arguments) {
  const Table& table = *(const Table*)PyLong_AsLongLong(self);
  const Layout& at = table.at;
  const Entry* end = table.entries + table.count;
  for (const Entry* each = table.entries; each < end; each++) {
    PyObject* object = PyList_GetItem(arguments, each->position);
    if (!object) return 0;
    if (const Entry* soon = each + 8; soon < end) {
      __builtin_prefetch((const void*)(soon->tensor + at.storage));
      __builtin_prefetch((const void*)(soon->tensor + at.offset));
      __builtin_prefetch((const void*)(soon->tensor + at.counter));
      __builtin_prefetch((const void*)(soon->counter + at.version));
    }
    int64 tensor = read<int64>((int64)object, at.object);
    bool same = tensor == each->tensor && read<int64>(tensor, at.storage) == each->storage
        && read<int64>(tensor, at.offset) == each->offset && read<int64>(tensor, at.counter) == each->counter
        && (!each->counter || read<unsigned>(each->counter, at.version) == each->version);
    if (!same) return PyLong_FromLongLong(-1);
  }
  return PyLong_FromLongLong(smelt_probe(table.places, table.places_count));
}

static const int ONE_ARGUMENT = 8, NO_ARGUMENT = 4;
static Method watch_method = {"watch", (void*)watch, ONE_ARGUMENT, 0};
extern "C" __attribute__((visibility("default"))) PyObject* smelt_watch(PyObject* table) {
  return PyCFunction_NewEx(&watch_method, table, 0);
}

// For `smelt.runtime.unchanged`: whether places hold the words that they held, in this order.
// `self` is a bytes object: the number of places, the places, 16 more that are only fetched, the words.
struct Place { int64 address, count; };
struct Places { int64 count; Place at[]; };
static PyObject* unchanged(PyObject* self, PyObject*) {
  const Places& places = *(const Places*)PyBytes_AsString(self);
  const int64* expected = (const int64*)(places.at + places.count + 16);
  for (const Place* each = places.at; each < places.at + places.count; each++) {
    const int64* soon = (const int64*)each[16].address;
    __builtin_prefetch(soon);
    __builtin_prefetch(soon + 8);
    __builtin_prefetch(soon + each[16].count);
    const int64* found = (const int64*)each->address;
    for (int64 i = 0; i < each->count; i++) {
      if (found[i] != *expected++) return PyBool_FromLong(0);
    }
  }
  return PyBool_FromLong(1);
}

static Method unchanged_method = {"unchanged", (void*)unchanged, NO_ARGUMENT, 0};
extern "C" __attribute__((visibility("default"))) PyObject* smelt_unchanged(PyObject* places) {
  return PyCFunction_NewEx(&unchanged_method, places, 0);
}
"""

_LINE = 64
_FETCHED = 16
"""How many places ahead are fetched."""

Look = Callable[[int, int], int]


class Probe:
    """A digest of a few elements of these tensors, as they are whenever it is asked for. It keeps them alive.

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
    """Where to look in a tensor, and at how many bytes: one cache line, for each tensor another one."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    address, size = tensor.data_ptr(), (reach + 1) * tensor.element_size()
    if size <= 2 * _LINE:
        return address, size
    start = -address % _LINE
    lines = (size - start) // _LINE
    return address + start + (number * 7919 + lines // 2) % lines * _LINE, _LINE


def start() -> CompileJob | None:
    """Start compiling (or loading) `TEXT`; None where there is no toolchain."""
    return helper("probe", TEXT)


def native_library() -> Library | None:
    """The compiled `TEXT`; None where it cannot be had."""
    job = start()
    try:
        return None if job is None else job.result()
    except (SmeltError, OSError):
        return None


@lru_cache(maxsize=1)
def _looker() -> Look:
    """The native function; where it cannot be had nothing is seen."""
    library = native_library()
    if library is None:
        return lambda address, count: 0
    fast = trampoline.fast_callable(library, "smelt_probe", 2)
    if fast is None:
        fast = library.function("smelt_probe")
        fast.argtypes = [ctypes.c_int64, ctypes.c_int64]
    return fast
