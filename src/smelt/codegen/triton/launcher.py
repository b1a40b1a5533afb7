"""Runs of printed kernels as C++ that launches them: a run is one native call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sympy import Expr, Symbol

from smelt.codegen.index import Names, index_text
from smelt.codegen.runs import run_parameters
from smelt.codegen.triton.unit import TritonKernel
from smelt.nest.ir import Call, InArena, Kernel, Run
from smelt.runtime.trampoline import MOST_ARGUMENTS

HEADER = r"""// smelt: launches of kernels
#include <stddef.h>
typedef long long i64;
typedef unsigned u32;
#define ENTRY __attribute__((visibility("default")))
typedef int (*launch_kernel)(void*, u32, u32, u32, u32, u32, u32, u32, void*, void**, void**);
struct table {
  launch_kernel launch;
  void** aligned;              // by kernel: the function for addresses that are multiples of 16
  void** general;              // the function for all addresses, 0 until it is compiled
  void* (*compile)(int);       // compiles it
  int* failed;                 // by call: the number of the check that failed
  int calls;                   // the number of calls in all runs
  const int* threads;          // of a block, by kernel
  const int* shared;           // bytes of a block, by kernel
  const int* scratch;          // bytes of memory that each block has for itself, by kernel
  int (*allocate)(void**, size_t, void*);  // memory on a stream
  int (*release)(void*, void*);
};
static table known;
extern "C" ENTRY void smelt_bind(const table* given) { known = *given; }

extern "C" ENTRY int smelt_failed() {
  for (int call = 0; call < known.calls; ++call)
    if (__atomic_load_n(known.failed + call, __ATOMIC_RELAXED)) return 1;
  return 0;
}

// Negative statuses: smelt.runtime.gpu.LAUNCH_ERRORS, or minus the driver's error.
static i64 launch(int kernel, i64 x, i64 y, i64 z, bool aligned, void* stream, void** args, void** own) {
  if (x <= 0 || y <= 0 || z <= 0) return 0;
  if (x > 2147483647 || y > 65535 || z > 65535) return -1000000;
  if (!aligned && !known.general[kernel]) known.general[kernel] = known.compile(kernel);
  void* function = aligned ? known.aligned[kernel] : known.general[kernel];
  if (!function) return -1000001;
  u32 threads = known.threads[kernel], shared = known.shared[kernel];
  size_t scratch = aligned ? (size_t)known.scratch[kernel] * x * y * z : 0;
  int status = scratch ? known.allocate(own, scratch, stream) : 0;
  if (status) return -status;
  status = known.launch(function, (u32)x, (u32)y, (u32)z, threads, 1, 1, shared, stream, args, 0);
  if (scratch) known.release(*own, stream);
  return -status;
}

static i64 error_of(int call) {
  int found = __atomic_load_n(known.failed + call, __ATOMIC_RELAXED);
  if (found) __atomic_store_n(known.failed + call, 0, __ATOMIC_RELAXED);
  return found;
}
"""


OWN = 4
"""Limit on the parameters that Triton adds: memory for descriptors, then nothing; a driver reads as many as a
kernel has.
"""


def launcher_text(runs: Sequence[Run], kernels: Mapping[Kernel, TritonKernel]) -> str:
    """C++ with a function for each run, which takes the stream after what `smelt.nest.ir.Run` says."""
    positions = {kernel: position for position, kernel in enumerate(kernels)}
    pieces, calls = [HEADER], 0
    for run in runs:
        parameters, sizes = run_parameters(run, "i64")
        parameters.append("void* stream")
        lines = []
        if len(parameters) > MOST_ARGUMENTS:
            lines = [
                f"  {kind} {name} = ({kind})values[{place}];"
                for place, (kind, name) in enumerate(each.rsplit(" ", 1) for each in parameters)
            ]
            parameters = ["const i64* values"]
        before = 0
        launches = []
        for number, call in enumerate(run.calls, calls):
            printed = kernels[call.kernel]
            if printed.errors:
                shift = f" + {before}" if before else ""
                lines.append(f"  if (i64 number = error_of({number})) return number{shift};")
            before += len(printed.errors)
            launches += _launch(number, call, positions[call.kernel], printed, sizes)
        calls += len(run.calls)
        head = f'extern "C" ENTRY i64 {run.name}({", ".join(parameters)}) {{'
        pieces.append("\n".join([head, *lines, *launches, "  return 0;", "}"]))
    return "\n\n".join(pieces) + "\n"


def _launch(
    number: int, call: Call, position: int, printed: TritonKernel, sizes: Mapping[Symbol, str]
) -> list[str]:
    names = Names(sizes)

    def text(expr: Expr | int) -> str:
        return str(expr) if isinstance(expr, int) else index_text(expr, names)

    pointers = [
        f"arena + {text(place.offset)}" if isinstance(place, InArena) else f"(char*)p{place.position}"
        for place in call.args
    ]
    count = len(pointers)
    lines = [f"  {{  // {printed.name}", f"    char* at[] = {{{', '.join([*pointers, '(char*)0'])}}};"]
    lines += [f"    i64 size{place} = {sizes[size]};" for place, size in enumerate(call.kernel.sizes)]
    lines += [f"    int* failed = known.failed + {number};", "    void* own = 0; void* nothing = 0;"]
    args = [f"at + {place}" for place in range(count)]
    args += [f"&size{place}" for place in range(len(call.kernel.sizes))]
    args += ["&failed", "&own", *["&nothing"] * (OWN - 1)]
    lines.append(f"    void* args[] = {{{', '.join(args)}}};")
    every = " | ".join(f"(i64)at[{place}]" for place in range(count)) or "0"
    lines.append(f"    bool aligned = !(({every}) & 15);")
    grid = ", ".join(map(text, printed.grid))
    lines.append(f"    i64 status = launch({position}, {grid}, aligned, stream, args, &own);")
    return [*lines, "    if (status) return status;", "  }"]
