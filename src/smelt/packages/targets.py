"""The targets of packages: a system with its instruction sets, and the compilers' flags for each.

A library holds the kernels of several levels of instructions, each compiled with flags of its own, and takes
the best that the processor has when a model is created. `smelt.packages.build` compiles for these targets;
`smelt.packages.build_files` writes the same table down for CMake and make.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence

import torch

from smelt.errors import SmeltError
from smelt.records import dataclass
from smelt.runtime import toolchain
from smelt.schedule import Target

NATIVE = "native"


@dataclass(frozen=True, slots=True)
class Level:
    """Instructions that kernels may use, by the name that the runtime knows (``smelt_levels.c``); the
    scheduler's ``target``. ``flags`` of g++ and Clang, and ``zig``: the same as zig names a processor.
    """

    name: str
    target: Target
    flags: tuple[str, ...] = ()
    zig: str = ""

    @property
    def machine(self) -> str:
        """The kind of processor; empty: any."""
        return {"x": "x86_64", "a": "aarch64"}.get(self.name[0], "")

    @property
    def identifier(self) -> str:
        """The part of names of files and of C that says the level.

        >>> LEVELS["x86-64-v4+vnni"].identifier
        'x86_64_v4_vnni'
        """
        return re.sub(r"\W", "_", self.name)


def _x86(features: str, macros: str, target: Target, zig: str) -> Level:
    """A level from AVX-512 on, with further ``features``; ``macros``: the same as flags."""
    flags = ("-march=x86-64-v4", "-mprefer-vector-width=512", *(f"-m{each}" for each in macros.split()))
    return Level(f"x86-64-v4{features}", target, flags, f"x86_64_v4{zig}")


_AMX = Target(64, (torch.bfloat16, torch.int8), 2, matrix_tiles=True)
LEVELS = {
    level.name: level
    for level in (
        _x86(
            "+vnni+bf16+amx",
            "avx512vnni avx512bf16 amx-tile amx-bf16 amx-int8",
            _AMX,
            "+avx512vnni+avx512bf16+amx_tile+amx_bf16+amx_int8",
        ),
        _x86("+vnni", "avx512vnni", Target(64, (torch.int8,), 2), "+avx512vnni"),
        _x86("", "", Target(64, (), 2), ""),
        Level("x86-64-v3", Target(32, (), 2), ("-march=x86-64-v3",), "x86_64_v3"),
        Level("x86-64", Target(16, (), 2), ("-march=x86-64",), "x86_64"),
        Level("aarch64", Target(16, (), 2, registers=32), ("-march=armv8-a",), "generic"),
        Level("generic", Target(16)),
    )
}
"""All levels, the best of each kind of processor first."""

DEFAULT_LEVELS = {
    "x86_64": ("x86-64-v4", "x86-64-v3", "x86-64"),
    "aarch64": ("aarch64",),
    "riscv64": ("generic",),
    "wasm32": ("generic",),
}
"""The levels of a package by the processor, if nobody asks for others."""


@dataclass(frozen=True, slots=True)
class PackageTarget:
    """A processor and a system. ``name``: the folder of its libraries; ``zig``: the name that zig has for it,
    with the oldest C library that its programs run on; ``macros``: the processor in C's preprocessor.
    """

    name: str
    machine: str
    system: str
    zig: str

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Flags of every file: code for Windows is position independent anyway."""
        return {"windows": (), "wasi": ("-msimd128",)}.get(self.system, ("-fPIC",))

    @property
    def least(self) -> Level:
        """The level that all its processors have."""
        return LEVELS[DEFAULT_LEVELS[self.machine][-1]]

    def libraries(self, name: str) -> tuple[str | None, str]:
        """The names of a model's shared and static library; WebAssembly has no shared ones.

        >>> TARGETS["x86_64-linux"].libraries("minilm"), TARGETS["x86_64-windows"].libraries("minilm")
        (('libminilm.so', 'libminilm.a'), ('minilm.dll', 'libminilm.a'))
        """
        shared = {"linux": f"lib{name}.so", "macos": f"lib{name}.dylib", "windows": f"{name}.dll"}
        return shared.get(self.system), f"lib{name}.a"

    def link_flags(self, name: str, folder: str) -> tuple[str, ...]:
        """Flags that make a model's shared library in a folder: it names all that it needs, which is the C
        library, has no executable stack, and nothing of the day or the folder in which it was made.
        """
        return ("-shared", *(flag.format(name=name, folder=folder) for flag in LINK[self.system]))


LINK = {
    "linux": (
        "-Wl,-z,defs",
        "-Wl,-z,noexecstack",
        "-Wl,-z,relro",
        "-Wl,--as-needed",
        "-Wl,--gc-sections",
        "-Wl,--build-id=none",
        "-Wl,-soname,lib{name}.so",
        "-s",
    ),
    "macos": ("-Wl,-dead_strip", "-Wl,-install_name,@rpath/lib{name}.dylib", "-s"),
    "windows": ("-Wl,--out-implib,{folder}/{name}.lib", "-s"),
}
LINK_LIBRARIES = {"linux": ("-lm", "-lpthread"), "macos": (), "windows": ()}
"""``-lpthread``: a part of the C library since glibc 2.34, and of musl."""

TARGETS = {
    target.name: target
    for target in (
        PackageTarget("x86_64-linux", "x86_64", "linux", "x86_64-linux-gnu.2.34"),
        PackageTarget("x86_64-linux-musl", "x86_64", "linux", "x86_64-linux-musl"),
        PackageTarget("aarch64-linux", "aarch64", "linux", "aarch64-linux-gnu.2.34"),
        PackageTarget("aarch64-linux-musl", "aarch64", "linux", "aarch64-linux-musl"),
        PackageTarget("aarch64-macos", "aarch64", "macos", "aarch64-macos"),
        PackageTarget("x86_64-macos", "x86_64", "macos", "x86_64-macos"),
        PackageTarget("x86_64-windows", "x86_64", "windows", "x86_64-windows-gnu"),
        PackageTarget("aarch64-windows", "aarch64", "windows", "aarch64-windows-gnu"),
        PackageTarget("riscv64-linux", "riscv64", "linux", "riscv64-linux-gnu.2.34"),
        PackageTarget("riscv64-linux-musl", "riscv64", "linux", "riscv64-linux-musl"),
        PackageTarget("wasm32-wasi", "wasm32", "wasi", "wasm32-wasi"),
    )
}

_SYSTEMS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}

C_FLAGS = (
    "-std=gnu11",
    "-O2",
    "-w",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-asynchronous-unwind-tables",
    "-ffunction-sections",
    "-fdata-sections",
)
"""Flags of files of C."""

_NOT_EVERYWHERE = {"-pipe", "-fPIC", "-fno-plt", "-fno-semantic-interposition"}
KERNEL_FLAGS = (
    *(flag for flag in toolchain.FLAGS if flag not in _NOT_EVERYWHERE),
    "-fno-threadsafe-statics",
    "-ffunction-sections",
    "-fdata-sections",
)
"""Flags of kernels: as this machine's own kernels have them, without those that are for ELF files alone."""


def native() -> PackageTarget:
    """The target that this machine is.

    Raises:
        SmeltError: SM1410, there is none.
    """
    system = _SYSTEMS.get(sys.platform)
    said = platform.machine().lower()
    musl = "-musl" if system == "linux" and platform.libc_ver()[0] != "glibc" else ""
    return _known(f"{_MACHINES.get(said, said)}-{system or sys.platform}{musl}")


def find_target(name: str) -> PackageTarget:
    """The target of a name; `NATIVE` is this machine.

    Raises:
        SmeltError: SM1410, there is none of that name.
    """
    return native() if name == NATIVE else _known(name)


def _known(name: str) -> PackageTarget:
    if name not in TARGETS:
        remedy = f"give one of {', '.join(TARGETS)} or {NATIVE}; others build from a package's sources"
        raise SmeltError("SM1410", f"there is no target {name!r} of packages", remedy=remedy)
    return TARGETS[name]


def levels_of(machine: str, names: Sequence[str] | None = None) -> tuple[Level, ...]:
    """The levels of a processor, the best first: those of ``names`` that are its, or the usual ones. The one
    that all its processors have is always among them; sources of a level ``generic`` serve other processors.

    >>> [level.name for level in levels_of("x86_64", ["x86-64-v3", "aarch64"])]
    ['x86-64-v3', 'x86-64']

    Raises:
        SmeltError: SM1411, there is no level of a name.
    """
    wanted = DEFAULT_LEVELS[machine] if names is None else names
    for name in wanted:
        if name not in LEVELS:
            remedy = f"give some of {', '.join(LEVELS)}"
            raise SmeltError("SM1411", f"there is no level {name!r}", remedy=remedy)
    kept = {DEFAULT_LEVELS[machine][-1], *wanted}
    return tuple(level for name, level in LEVELS.items() if name in kept and level.machine in (machine, ""))
