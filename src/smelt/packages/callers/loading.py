"""Where a package's library lies for this machine. Packages have a copy of this file in ``python/NAME``."""

from __future__ import annotations

import platform
import sys
import sysconfig
from pathlib import Path


class ModelError(RuntimeError):
    """A call that the model refuses; ``code`` is the library's number for it (``smelt_model.h``), or 0."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class LoadError(ModelError):
    """No library for this machine, or weights that are missing, damaged or another model's."""


def library_path(folder: Path, name: str) -> Path:
    """The library of a package for the machine that this Python runs on."""
    ending = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    path = folder / "lib" / machine() / f"{'' if ending == '.dll' else 'lib'}{name}{ending}"
    if path.is_file():
        return path
    try:
        there = sorted(entry.name for entry in (folder / "lib").iterdir() if entry.is_dir())
    except OSError:
        there = []
    raise LoadError(
        f"{name} has no library for this machine, {machine()} ({path} is missing); "
        f"it has: {', '.join(there) or 'none'}. "
        f"Build it from the sources, `make -C {folder}`, or make the package with target={machine()!r}"
    )


def machine() -> str:
    """The target that this Python runs on, as packages name it: ``"x86_64-linux"``, ``"aarch64-macos"``, …"""
    cpu = platform.machine().lower()
    cpu = {"amd64": "x86_64", "arm64": "aarch64"}.get(cpu, cpu)
    system = {"darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
    musl = "musl" in str(sysconfig.get_config_var("HOST_GNU_TYPE"))
    return f"{cpu}-{system}{'-musl' if musl else ''}"
