"""Measured peaks of the machine: float32 multiply-adds in a compiled loop, and memory copies."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from smelt.errors import ToolchainError
from smelt.runtime import toolchain

CHAINS = 12
"""Independent accumulators: more than latency times throughput of any machine's multiply-add units."""
STEPS = 1_000_000
COPIED_BYTES = 128 * 2**20

SOURCE = f"""
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
typedef float vector __attribute__((vector_size(BYTES)));

extern "C" int lanes() {{ return BYTES / sizeof(float); }}

extern "C" float multiply_adds(long steps, float factor, float term) {{
  const vector a = factor - (vector){{}}, b = term - (vector){{}};
  vector sums[{CHAINS}];  // all different: equal ones the compiler would compute once
  for (int chain = 0; chain < {CHAINS}; ++chain) sums[chain] = b * (float)chain;
  for (long step = 0; step < steps; ++step) {{
#pragma GCC unroll {CHAINS}
    for (int chain = 0; chain < {CHAINS}; ++chain) sums[chain] = sums[chain] * a + b;
  }}
  float total = 0;
  for (int chain = 0; chain < {CHAINS}; ++chain) total += sums[chain][chain % (BYTES / 4)];
  return total;
}}
"""


def measured(threads: int, seconds: float) -> dict[str, Any]:
    """Peak flop/s and bytes/s of ``threads`` threads, and the method of the first."""
    torch.set_num_threads(threads)
    try:
        run, operations = multiply_adds(threads)
        flops, how = operations / _best(run, seconds / 2), "multiply-add loop"
    except (OSError, ToolchainError, subprocess.CalledProcessError):
        flops, how = product_peak(seconds / 2), "matrix product (no C++ compiler)"
    return {"flops": flops, "flops_from": how, "bytes": copy_peak(seconds / 2)}


def processor() -> str:
    """The processor's name as Linux has it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def multiply_adds(threads: int) -> tuple[Callable[[], None], int]:
    """A function that runs multiply-adds in registers, on all threads at once, and its number of operations.

    Raises:
        ToolchainError: no C++ compiler.
        OSError: the compiler did not run.
        subprocess.CalledProcessError: the compiler refused the loop.
    """
    with tempfile.TemporaryDirectory(prefix="smelt-bench-peak-") as folder:
        source, library = Path(folder) / "peak.cpp", Path(folder) / "peak.so"
        source.write_text(SOURCE)
        compiler = toolchain.find()
        command = [*compiler.command, *compiler.tuning, "-O3", "-ffp-contract=fast", "-shared", "-fPIC"]
        subprocess.run([*command, str(source), "-o", str(library)], check=True, capture_output=True)
        code = ctypes.CDLL(str(library))
    loop = code.multiply_adds
    loop.argtypes, loop.restype = [ctypes.c_long, ctypes.c_float, ctypes.c_float], ctypes.c_float
    pool = ThreadPoolExecutor(threads)

    def all_threads() -> None:
        for done in [pool.submit(loop, STEPS, 0.999, 0.001) for _ in range(threads)]:
            done.result()

    return all_threads, 2 * CHAINS * code.lanes() * STEPS * threads


def product_peak(seconds: float) -> float:
    """Flop/s of ATen's product of two matrices of 2048 x 2048."""
    a, b = (torch.randn(2048, 2048) for _ in range(2))
    return 2 * 2048**3 / _best(lambda: torch.mm(a, b), seconds)


def copy_peak(seconds: float) -> float:
    """Bytes/s of a copy far larger than the caches: reads and writes both count."""
    source, target = (torch.ones(COPIED_BYTES // 4) for _ in range(2))
    return 2 * COPIED_BYTES / _best(lambda: target.copy_(source), seconds)


def _best(run: Callable[[], object], seconds: float) -> float:
    """The shortest of several runs, the first not counted."""
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    for least in range(1_000_000):
        start = time.perf_counter()
        run()
        stop = time.perf_counter()
        best = min(best, stop - start)
        if least >= 2 and stop >= end:
            break
    return best
