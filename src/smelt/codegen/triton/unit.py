"""Runs of kernels as one Triton module: the functions that kernels call, and the kernels."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from sympy import Expr

from smelt.codegen.triton.kernel import BlockText
from smelt.errors import Unsupported
from smelt.nest.ir import Kernel, Run
from smelt.nest.tree import last_call
from smelt.records import dataclass


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A printed kernel: its name and text, its programs along x, y and z, the errors of its checks, the warps
    of a block, and the blocks that are loaded ahead. ``general``: the text for addresses that are no
    multiples of 16, if it is another one.
    """

    kernel: Kernel
    name: str
    text: str
    grid: tuple[Expr | int, ...]
    errors: tuple[tuple[str, str], ...]
    warps: int = 4
    stages: int = 3
    general: str = ""


def print_kernels(runs: Sequence[Run], interpreted: bool = False) -> dict[Kernel, TritonKernel]:
    """Prints each kernel of the runs once; ``interpreted``: for Triton's interpreter.

    Raises:
        Unsupported: Triton has no text for something in one.
    """
    found: dict[Kernel, TritonKernel] = {}
    for run in runs:
        for call in run.calls:
            if call.kernel not in found:
                name = f"{call.kernel.name or 'kernel'}_{len(found)}"
                printer = BlockText(call.kernel, interpreted=interpreted)
                try:
                    text = printer.function(name)
                except Unsupported as error:
                    raise Unsupported(f"Triton: {error.reason}", last_call(call.kernel)) from error
                grid = tuple(printer.grid.get(axis, 1) for axis in range(3))
                errors, general = tuple(printer.errors), ""
                if printer.descriptors:
                    plain = BlockText(call.kernel, interpreted=interpreted, by_descriptor=False)
                    general = plain.function(name)
                about = (grid, errors, printer.warps, printer.stages, general)
                found[call.kernel] = TritonKernel(call.kernel, name, text, *about)
    return found


def functions_of(text: str) -> dict[str, Any]:
    """The names that the text of a module defines. Triton reads the source of a function from ``linecache``.

    Raises:
        ImportError: Triton is not installed.
    """
    file = f"<smelt triton {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": "unit"}
    exec(compile(text, file, "exec"), namespace)
    return namespace


def module_text(kernels: Sequence[TritonKernel]) -> str:
    """A module with all kernels, which depends on Triton alone."""
    return "\n\n".join([functions_text(), *(each.text for each in kernels)])


@lru_cache(maxsize=1)
def functions_text() -> str:
    """The functions that kernels call."""
    return (Path(__file__).parent / "functions.py").read_text()
