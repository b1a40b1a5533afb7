"""Compiles a package's sources to libraries, for this machine or, through zig's Clang, for another one."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath

from smelt.errors import ToolchainError
from smelt.packages.targets import (
    C_FLAGS,
    KERNEL_FLAGS,
    LEVELS,
    LINK_LIBRARIES,
    NATIVE,
    Level,
    PackageTarget,
    find_target,
)
from smelt.records import dataclass
from smelt.runtime import process, toolchain
from smelt.runtime.library import compilers, start_compiler

INSTALL = "pip install ziglang"
_C_DRIVERS = (("clang++", "clang"), ("g++", "gcc"), ("c++", "cc"))
_OF_LEVEL = re.compile(r"kernels_(\w+)_\d+\.cpp|program_(\w+)\.c")
_SHOWN_LINES = 8


@dataclass(frozen=True, slots=True)
class Compilers:
    """The commands that compile C and C++, and make an archive. ``family``: ``gcc``, ``clang`` or ``zig``."""

    c: tuple[str, ...]
    cpp: tuple[str, ...]
    archive: tuple[str, ...]
    family: str

    def flags(self, source: Path, target: PackageTarget) -> tuple[str, ...]:
        """The flags of a source file: those of its level as well, if it has kernels."""
        zig = ("-s", "-fno-sanitize=all") if self.family == "zig" else ()
        if source.suffix == ".c":
            return (*C_FLAGS, *target.compile_flags, *zig, *self._level_flags(target.least))
        own: tuple[str, ...] = toolchain.GCC_FLAGS if self.family == "gcc" else toolchain.CLANG_FLAGS
        level = level_of(source)
        own += self._level_flags(level) if level else ()
        return (*KERNEL_FLAGS, *own, *target.compile_flags, *zig)

    def _level_flags(self, level: Level) -> tuple[str, ...]:
        if self.family != "zig":
            return level.flags
        tuned = [flag for flag in level.flags if flag.startswith("-mprefer")]
        return (f"-mcpu={level.zig}", *tuned) if level.zig else ()


def build_library(
    sources: Path, name: str, target: str, into: Path, *, seconds: float = process.SECONDS
) -> tuple[Path, ...]:
    """Compiles the files of C and C++ in ``sources`` to the shared and the static library of the model
    ``name``, in the folder ``into``. Returns their paths (for Windows also that of the import library).

    ``kernels_LEVEL_N.cpp`` is compiled with its level's flags; files of levels of other processors are left
    out. The same sources and compiler give the same bytes. ``seconds``: the time limit for one file.

    Raises:
        SmeltError: SM1410 there is no such target.
        ToolchainError: SM1412 zig is missing, SM1413 a compiler refused a file; SM0201, SM0202, SM0203 there
            is no compiler on this machine; SM0507 one did not end.
    """
    made_for = find_target(target)
    tools = compilers_for(target, made_for)
    files = sorted(
        (file for pattern in ("*.c", "*.cpp") for file in sources.glob(pattern) if is_for(file, made_for)),
        key=lambda file: (-file.stat().st_size, file.name),
    )
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="smelt-package-") as temporary:
        folder = Path(temporary)

        include = f"-I{sources.parent / 'include'}"

        def compiled(source: Path) -> str:
            driver = tools.c if source.suffix == ".c" else tools.cpp
            made = folder / f"{source.name}.o"
            flags = (*tools.flags(source, made_for), include)
            run_tool([*driver, *flags, "-c", str(source), "-o", str(made)], folder, source.name, seconds)
            return str(made)

        with ThreadPoolExecutor(compilers()) as pool:
            objects = sorted(pool.map(compiled, files))
        shared, static = made_for.libraries(name)
        made = [folder / library for library in (shared, static) if library is not None]
        if shared is not None:
            libraries = ("-static-libgcc",) if tools.family == "gcc" else ()
            link = [*tools.c, *objects, "-o", str(made[0]), *made_for.link_flags(name, temporary)]
            run_tool([*link, *LINK_LIBRARIES[made_for.system], *libraries], folder, shared, seconds)
        run_tool([*tools.archive, "rcsD", str(made[-1]), *objects], folder, static, seconds)
        made += folder.glob("*.lib")
        return tuple(Path(shutil.copy(file, into / file.name)) for file in made)


def level_of(source: PurePath) -> Level | None:
    """The level of a file of kernels or of a program; None for other files.

    >>> level_of(Path("kernels_x86_64_v3_0.cpp")).name, level_of(Path("program_x86_64.c")).name
    ('x86-64-v3', 'x86-64')
    """
    found = _OF_LEVEL.fullmatch(source.name)
    return next(
        (each for each in LEVELS.values() if found and each.identifier == found[found.lastindex or 0]), None
    )


def is_for(source: Path, target: PackageTarget) -> bool:
    """Whether a file is of a processor's library: it has no level, or one of that processor."""
    level = level_of(source)
    return level is None or level.machine == target.least.machine


def compilers_for(name: str, target: PackageTarget) -> Compilers:
    """The compilers of a target: this machine's for `NATIVE`, zig's for all names.

    Raises:
        ToolchainError: SM1412 zig is missing; SM0201, SM0202, SM0203 there is no compiler on this machine.
    """
    if name == NATIVE:
        found = toolchain.find()
        return Compilers(_c_driver(found.command), found.command, ("ar",), found.family)
    if importlib.util.find_spec("ziglang") is None:
        raise ToolchainError(
            "SM1412",
            f"packages for {name} are compiled by zig's Clang, which is not installed",
            remedy=f"{INSTALL}; or build the package's sources on such a machine, with its CMakeLists.txt",
        )
    zig = (sys.executable, "-m", "ziglang")
    c, cpp = ((*zig, driver, "-target", target.zig) for driver in ("cc", "c++"))
    return Compilers(c, cpp, (*zig, "ar"), "zig")


def _c_driver(command: Sequence[str]) -> tuple[str, ...]:
    """The compiler of C that belongs to one of C++, which links no library of C++.

    >>> _c_driver(["/nowhere/ccache", "/nowhere/g++-12"])
    ('/nowhere/ccache', '/nowhere/g++-12')
    """
    for cpp, c in _C_DRIVERS:
        words = [re.sub(rf"{re.escape(cpp)}(?=[-.\d]*$)", c, word) for word in command]
        if words != list(command) and all(shutil.which(word) for word in words if not word.startswith("-")):
            return tuple(words)
    return tuple(command)


def run_tool(command: Sequence[str], folder: Path, what: str, seconds: float) -> None:
    """Runs a compiler, linker or archiver.

    Raises:
        ToolchainError: SM1413 it failed, SM0507 it did not end.
    """
    variables = {"SOURCE_DATE_EPOCH": "0", "ZERO_AR_DATE": "1"}
    try:
        run = start_compiler(command, folder, subprocess.PIPE, variables)
    except OSError as error:
        raise _refused(command, what, str(error)) from error
    _, output = process.wait(run, command, seconds)
    if run.returncode:
        raise _refused(command, what, output.decode(errors="replace") or f"exit status {run.returncode}")


def _refused(command: Sequence[str], what: str, said: str) -> ToolchainError:
    lines = said.strip().splitlines()
    errors = [line for line in lines if "error" in line.lower()] or lines
    return ToolchainError(
        "SM1413",
        f"{os.path.basename(command[0])} failed to make {what} of a package",
        why="\n       ".join(errors[:_SHOWN_LINES]),
        remedy="report this as a bug of smelt, if the compiler works and the disk is not full",
    )
