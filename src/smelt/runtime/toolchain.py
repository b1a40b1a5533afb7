"""The C++ compiler: detection, capabilities, and the flags of its calls."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from smelt.errors import CacheError, ToolchainError
from smelt.runtime import process
from smelt.runtime.cache import key_of, open_cache

COMPILERS = ("g++", "clang++")
INSTALL = "install g++ (apt install g++, dnf install gcc-c++) or set CXX to a C++17 compiler"

FLAGS = (
    "-std=c++17",
    "-pipe",
    "-w",
    "-fPIC",
    "-fno-math-errno",  # sqrt becomes one instruction; errno is never read
    "-fno-trapping-math",  # the floating-point exception flags are never read
    "-ffp-contract=off",  # eager rounds after each operator; fused multiply-add is `ops.fma` only
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-fno-plt",
    "-fno-semantic-interposition",
    "-fvisibility=hidden",
    "-nostdinc++",
)
"""Flags for compilation. No ``-ffast-math``: NaN, inf and signed zero are eager's."""

GCC_FLAGS = (
    "-O1",  # the useful part of -O2 follows; all of it compiles slower, and kernels are no faster
    "-fgcse",  # constants of exp and its like stay in registers
    "-fexpensive-optimizations",
    "-fschedule-insns2",
    "-ftree-slp-vectorize",  # lanes loaded backwards become one load
    "-fno-tree-bit-ccp",  # a tenth of g++'s time for tiles, and nothing gained
    "-fira-region=one",  # or else it spills the operands of register tiles, half of the registers being free
)
CLANG_FLAGS = ("-O2",)

LINK_FLAGS = ("-shared", "-nostdlib", "-Wl,--as-needed")
LIBRARIES = ("-lm", "-lc", "-lgcc")
_TUNING = ("-march=native", "-mcpu=native")
PROBE_SECONDS = 60.0
"""The time limit of a compiler for reporting its version."""

_ISAS = (
    ("avx512", 64, {"__AVX512F__", "__AVX512BW__", "__AVX512DQ__", "__AVX512VL__"}),
    ("avx2", 32, {"__AVX2__"}),
    ("avx", 32, {"__AVX__"}),
    ("sse2", 16, {"__SSE2__"}),
    ("neon", 16, {"__ARM_NEON"}),
    ("scalar", 8, set[str]()),
)
"""Instruction sets, best first: name, bytes of a vector, and required macros."""
_MATRIX_TILES = {"__AMX_BF16__", "__AMX_TILE__"}
_REQUEST_TILES = (158, 0x1023, 18)
"""The numbers of Linux' `arch_prctl`, its `ARCH_REQ_XCOMP_PERM`, and the state of matrix registers."""
_DOT_PRODUCTS = {
    "bfloat16": {"__AVX512BF16__", "__AMX_BF16__", "__ARM_FEATURE_BF16"},
    "int8": {"__AVX512VNNI__"},
    "float16": {"__AVX512FP16__", "__AMX_FP16__", "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC"},
}
"""dtypes that a processor multiplies and adds itself if any of the macros is defined."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A working C++ compiler, and its calling conventions.

    ``command``: the program and the further words of ``$CXX``; ``isa``: ``avx512``, ``avx2``, ``avx``,
    ``sse2``, ``neon`` or ``scalar``; ``vector_bytes``: the widest vector; ``openmp``: whether ``#pragma omp``
    makes threads on the OpenMP runtime that torch has loaded (``openmp_runtime``, a path; None where torch
    has none). ``dot_products``: of ``bfloat16``, ``float16`` and ``int8`` those that the processor multiplies
    and adds itself; ``matrix_tiles``: it has matrix registers for bfloat16 (AMX), and the system lets this
    process use them. ``multiply_adds``: the number of vector multiply-adds that it starts each cycle.
    ``seconds``: the time limit for one file.
    """

    command: tuple[str, ...]
    family: str
    version: str
    isa: str
    vector_bytes: int
    tuning: tuple[str, ...]
    cpu: str
    openmp: bool
    openmp_runtime: str | None
    dot_products: tuple[str, ...] = ()
    multiply_adds: int = 1
    matrix_tiles: bool = False
    seconds: float = process.SECONDS

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """The flags for compiling a source to an object."""
        own = GCC_FLAGS if self.family == "gcc" else CLANG_FLAGS
        return (*FLAGS, *own, *self.tuning, *(("-fopenmp",) if self.openmp else ()))

    @property
    def identity(self) -> str:
        """All inputs that determine the compiler's output for a source: part of every cache key."""
        parts = (*self.command, self.family, self.version, *self.compile_flags, *LINK_FLAGS, *LIBRARIES)
        capabilities = (*self.dot_products, *(("matrix_tiles",) if self.matrix_tiles else ()))
        return " ".join((*parts, Path(self.openmp_runtime or "").name, f"cpu:{self.cpu}", *capabilities))

    def build_command(self, source: str, output: str) -> list[str]:
        """The command line that makes the shared library ``output`` of the file ``source``."""
        return self.link_command([*self.compile_flags, source], output)

    def object_command(self, source: str, output: str) -> list[str]:
        """The command line that makes the object file ``output`` of the file ``source``."""
        return [*self.command, *self.compile_flags, "-c", source, "-o", output]

    def header_command(self, source: str, output: str) -> list[str]:
        """The command line that makes GCC's precompiled ``output`` of the header ``source``."""
        return [*self.command, *self.compile_flags, "-x", "c++-header", source, "-o", output]

    def link_command(self, objects: Sequence[str], output: str) -> list[str]:
        """The command line that makes the shared library ``output`` of object files."""
        runtime = (self.openmp_runtime,) if self.openmp_runtime else (("-fopenmp",) if self.openmp else ())
        return [*self.command, *objects, "-o", output, *LINK_FLAGS, *runtime, *LIBRARIES]


def find() -> Toolchain:
    """The compiler of this process: ``$CXX`` if set, else the first of g++ and clang++ in ``$PATH``.

    The result is cached in the process by ``$CXX`` and ``$PATH``, on disk by the compiler's file.

    Raises:
        ToolchainError: SM0201 there is no compiler, SM0202 ``$CXX`` names none, SM0203 it does not run,
            SM0507 it does not end.
    """
    return _find(os.environ.get("CXX", "").strip(), os.environ.get("PATH", os.defpath))


@lru_cache(maxsize=16)
def _find(cxx: str, path: str) -> Toolchain:
    command = _command(cxx, path)
    found = _remembered(command)
    runtime = openmp_runtime()
    # GCC calls GOMP_*, which libgomp, libomp and libiomp5 have; Clang calls __kmpc_*, which libgomp lacks.
    openmp = found.family == "gcc" or (runtime is not None and "gomp" not in Path(runtime).name)
    tiles = found.matrix_tiles and may_use_matrix_tiles()
    return replace(found, openmp=openmp, openmp_runtime=runtime, matrix_tiles=tiles)


def _command(cxx: str, path: str) -> tuple[str, ...]:
    if cxx:
        try:
            words = shlex.split(cxx)
        except ValueError as error:
            raise ToolchainError(
                "SM0202",
                f"CXX is set to {cxx!r}, which cannot be split into words",
                why=str(error).lower(),
                remedy="correct CXX (a quote that is part of a name needs a backslash) or unset it",
            ) from error
        program = shutil.which(words[0], path=path)
        if program is None:
            raise ToolchainError(
                "SM0202",
                f"CXX is set to {cxx!r}, and there is no such program",
                remedy="correct CXX or unset it",
            )
        return (program, *words[1:])
    for name in COMPILERS:
        program = shutil.which(name, path=path)
        if program is not None:
            return (program,)
    raise ToolchainError(
        "SM0201", "no C++ compiler found", why=f"no {' or '.join(COMPILERS)} in PATH", remedy=INSTALL
    )


def _remembered(command: tuple[str, ...]) -> Toolchain:
    """`_probe`, cached on disk by path, size and time of the compiler, so that a warm process starts none."""
    file = os.stat(os.path.realpath(command[0]))
    cpu = hashlib.sha256("\n".join(_processor()).encode()).hexdigest()[:16]
    made_of = (str(file.st_size), str(file.st_mtime_ns), cpu, *FLAGS, *_TUNING, *_DOT_PRODUCTS)
    key = key_of("toolchain", *(field.name for field in fields(Toolchain)), *command, *made_of)
    try:
        cache = open_cache()
        entry = cache.get(key)
        if entry is not None:
            return _read(json.loads(entry.read("toolchain.json")), command, cpu)
    except (CacheError, ValueError, KeyError, TypeError):
        return _probe(command, cpu)
    found = _probe(command, cpu)
    with suppress(CacheError):
        cache.put(key, {"toolchain.json": json.dumps(asdict(found)).encode()})
    return found


def _read(data: dict[str, Any], command: tuple[str, ...], cpu: str) -> Toolchain:
    """The stored description of this compiler, which never names another program to run."""
    dot_products = tuple(data["dot_products"])
    plain = (
        data["family"] in ("gcc", "clang")
        and isinstance(data["version"], str)
        and (data["isa"], data["vector_bytes"]) in {(isa, width) for isa, width, _ in _ISAS}
        and tuple(data["tuning"]) in ((), *((flag,) for flag in _TUNING))
        and set(dot_products) <= _DOT_PRODUCTS.keys()
        and data["multiply_adds"] in (1, 2)
        and data["matrix_tiles"] in (False, True)
    )
    if not plain:
        raise ValueError("no description of a compiler")
    return Toolchain(
        command=command,
        family=data["family"],
        version=data["version"],
        isa=data["isa"],
        vector_bytes=data["vector_bytes"],
        tuning=tuple(data["tuning"]),
        cpu=cpu,
        openmp=False,
        openmp_runtime=None,
        dot_products=dot_products,
        multiply_adds=data["multiply_adds"],
        matrix_tiles=data["matrix_tiles"],
    )


def _probe(command: tuple[str, ...], cpu: str) -> Toolchain:
    """Reads the compiler's predefined macros: version and instruction set in one run."""
    process.check(command, PROBE_SECONDS)
    refusal = ""
    for tuning in (*((flag,) for flag in _TUNING), ()):
        words = [*command, *tuning, "-std=c++17", "-dM", "-E", "-x", "c++", os.devnull]
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        try:
            run = subprocess.Popen(words, stdin=none, stdout=pipe, stderr=pipe, start_new_session=True)
        except (OSError, ValueError) as error:
            raise ToolchainError(
                "SM0203", f"the C++ compiler {command[0]} does not run", why=str(error), remedy=INSTALL
            ) from error
        out, errors = (said.decode(errors="replace") for said in process.wait(run, command, PROBE_SECONDS))
        if run.returncode == 0 and "__VERSION__" in out:
            return _describe(command, tuning, out, cpu)
        refusal = errors.strip() or out.strip()
    first = refusal.splitlines()[0] if refusal else "it printed nothing"
    raise ToolchainError("SM0203", f"the C++ compiler {command[0]} does not work", why=first, remedy=INSTALL)


def _describe(command: tuple[str, ...], tuning: tuple[str, ...], text: str, cpu: str) -> Toolchain:
    macros = dict(line.split(" ", 2)[1:] for line in text.splitlines() if line.count(" ") >= 2)
    isa, width = isa_of(set(macros))
    return Toolchain(
        command=command,
        family="clang" if "__clang__" in macros else "gcc",
        version=macros["__VERSION__"].strip('"'),
        isa=isa,
        vector_bytes=width,
        tuning=tuning,
        cpu=cpu,
        openmp=False,
        openmp_runtime=None,
        dot_products=dot_products_of(set(macros)),
        multiply_adds=multiply_adds_of(isa, _processor()),
        matrix_tiles=set(macros) >= _MATRIX_TILES,
    )


def isa_of(macros: set[str]) -> tuple[str, int]:
    """Name and vector width in bytes of the instruction set, from a compiler's macros.

    >>> isa_of({"__SSE2__", "__AVX__", "__AVX2__"})
    ('avx2', 32)
    """
    return next((isa, width) for isa, width, needed in _ISAS if needed <= macros)


def dot_products_of(macros: set[str]) -> tuple[str, ...]:
    """The short dtypes that the processor multiplies and adds itself, by a compiler's macros.

    >>> dot_products_of({"__AVX512F__", "__AVX512BF16__"})
    ('bfloat16',)
    """
    return tuple(dtype for dtype, any_of in _DOT_PRODUCTS.items() if any_of & macros)


@lru_cache(maxsize=1)
def may_use_matrix_tiles() -> bool:
    """Asks the system, once, to let this process use matrix registers (AMX): Linux saves these only for
    processes that have asked.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    return ctypes.CDLL(None).syscall(*_REQUEST_TILES) == 0


def openmp_runtime() -> str | None:
    """The OpenMP library that torch has loaded into this process.

    Kernels are linked with that very file, so that there is one team of threads and ``torch.set_num_threads``
    applies to it.
    """
    import torch  # noqa: F401  (loads it)

    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/") and "omp" in line}
    except OSError:
        return None
    known = ("libgomp", "libomp", "libiomp5")
    return min(
        (path for path in paths if Path(path).name.startswith(known) and os.path.exists(path)), default=None
    )


def multiply_adds_of(isa: str, processor: Sequence[str]) -> int:
    """The number of vector multiply-adds that a processor starts each cycle, by `/proc/cpuinfo`.

    It is two, except that AMD's Zen 4 (family 25) splits those of AVX-512 in halves.

    >>> multiply_adds_of("avx512", ("vendor_id\t: AuthenticAMD", "cpu family\t: 25"))
    1
    >>> multiply_adds_of("avx512", ("vendor_id\t: GenuineIntel", "cpu family\t: 6"))
    2
    """
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in processor)}
    halves = said.get("vendor_id") == "AuthenticAMD" and said.get("cpu family") == "25"
    return 1 if isa == "avx512" and halves else 2


@lru_cache(maxsize=1)
def _processor() -> tuple[str, ...]:
    """The processor's part of the meaning of ``-march=native``: lines of `/proc/cpuinfo`."""
    lines = [sys.platform, platform.machine()]
    wanted = (
        "vendor_id",
        "cpu family",
        "model",
        "stepping",
        "flags",
        "Features",
        "CPU implementer",
        "CPU part",
    )
    try:
        with open("/proc/cpuinfo") as info:
            for line in info:
                if not line.strip() and len(lines) > 2:
                    break  # the first processor is enough, and the file is slow to make on big machines
                if line.startswith(wanted):
                    lines.append(line.strip())
    except OSError:
        lines.append(platform.processor())
    return tuple(lines)
