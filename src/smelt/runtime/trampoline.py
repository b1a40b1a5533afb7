"""Fast calls of native code without ctypes: one small C++ function that CPython calls directly.

ctypes takes much longer per argument (docs/benchmarks.md). The source declares the few functions of CPython's
stable ABI that it needs by itself, so it compiles without Python's headers, once per machine, and is kept in
the cache like any unit. It is optional: if it cannot be compiled or loaded, the executor uses ctypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache

from smelt.errors import SmeltError
from smelt.runtime.library import CompileJob, Library, helper

MOST_ARGUMENTS = 256
"""Limit on the arguments of a native function; with more it takes one pointer to a table of them."""

TEXT = r"""// smelt: calls a native function with integers from Python
typedef struct _object PyObject;
typedef long long int64;
struct Method { const char* name; void* function; int flags; const char* doc; };
extern "C" {
int64 PyLong_AsLongLong(PyObject*);
PyObject* PyLong_FromLongLong(int64);
PyObject* PyErr_Occurred(void);
PyObject* PyCFunction_NewEx(Method*, PyObject*, PyObject*);
void* PyEval_SaveThread(void);
void PyEval_RestoreThread(void*);
void* malloc(unsigned long);
void free(void*);
}

template <int... I> struct Indices {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> { typedef Indices<I...> type; };
template <int> struct Integer { typedef int64 type; };

// A function may be called with more arguments than it takes: on x86-64 and AArch64 the caller cleans up.
template <int... I> static int64 apply(int64 address, const int64* values, Indices<I...>) {
  return ((int64 (*)(typename Integer<I>::type...))address)(values[I]...);
}

static bool read(int64* values, PyObject* const* arguments, long count) {
  for (long i = 0; i < count; i++) {
    values[i] = PyLong_AsLongLong(arguments[i]);
    if (__builtin_expect(values[i] == -1, 0) && PyErr_Occurred()) return false;
  }
  return true;
}

template <int N> static PyObject* call(PyObject* self, PyObject* const* arguments, long count) {
  int64 values[N] = {};
  if (count > N) __builtin_trap();
  if (!read(values, arguments, count)) return 0;
  int64 address = PyLong_AsLongLong(self);
  void* thread = PyEval_SaveThread();
  int64 status = apply(address, values, typename Count<N>::type());
  PyEval_RestoreThread(thread);
  return PyLong_FromLongLong(status);
}

static PyObject* call_table(PyObject* self, PyObject* const* arguments, long count) {
  int64* values = (int64*)malloc(count * sizeof(int64));
  if (!values) __builtin_trap();
  if (!read(values, arguments, count)) { free(values); return 0; }
  int64 address = PyLong_AsLongLong(self);
  void* thread = PyEval_SaveThread();
  int64 status = ((int64 (*)(const int64*))address)(values);
  PyEval_RestoreThread(thread);
  free(values);
  return PyLong_FromLongLong(status);
}

static const int FASTCALL = 0x80;
static Method methods[] = {
  {"native", (void*)call<4>, FASTCALL, 0}, {"native", (void*)call<8>, FASTCALL, 0},
  {"native", (void*)call<16>, FASTCALL, 0}, {"native", (void*)call<32>, FASTCALL, 0},
  {"native", (void*)call<64>, FASTCALL, 0}, {"native", (void*)call<128>, FASTCALL, 0},
  {"native", (void*)call<256>, FASTCALL, 0},
};
static Method table = {"native", (void*)call_table, FASTCALL, 0};

// A Python callable for the function at `address` (a Python int) that takes `count` integers.
extern "C" __attribute__((visibility("default"))) PyObject* smelt_callable(PyObject* address, int64 count) {
  int size = 4;
  for (Method& method : methods) {
    if (count <= size) return PyCFunction_NewEx(&method, address, 0);
    size *= 2;
  }
  return PyCFunction_NewEx(&table, address, 0);
}
"""


def start() -> CompileJob | None:
    """Starts to compile (or load) the trampoline; None if there is no toolchain."""
    return helper("trampoline", TEXT)


def fast_callable(library: Library, function: str, count: int) -> Callable[..., int] | None:
    """The function as a Python callable that takes ``count`` integers; None if only ctypes can call it.

    Both release the GIL while the function runs.
    """
    maker = _maker()
    if maker is None:
        return None
    return maker(library.address(function), count)


@lru_cache(maxsize=1)
def _maker() -> Callable[[int, int], Callable[..., int]] | None:
    job = start()
    if job is None:
        return None
    try:
        path = job.result().path
        handle = ctypes.PyDLL(str(path))  # PyDLL: makes Python objects, so it must keep the GIL
        maker = handle.smelt_callable
    except (SmeltError, OSError, AttributeError):
        return None
    maker.restype = ctypes.py_object
    maker.argtypes = [ctypes.py_object, ctypes.c_int64]
    return maker
