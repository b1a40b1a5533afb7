"""Runs of kernels as one Triton module: the functions that kernels call, and the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sympy import Expr

from smelt.codegen.triton.kernel import BlockText
from smelt.nest.ir import Kernel, Run
from smelt.records import dataclass


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A printed kernel: its function's name and text, its programs along x, y and z, and what its checks say."""

    kernel: Kernel
    name: str
    text: str
    grid: tuple[Expr | int, ...]
    errors: tuple[tuple[str, str], ...]


def print_kernels(runs: Sequence[Run]) -> dict[Kernel, TritonKernel]:
    """Each kernel of the runs once.

    Raises:
        Unsupported: Triton has no text for something in one.
    """
    found: dict[Kernel, TritonKernel] = {}
    for run in runs:
        for call in run.calls:
            if call.kernel not in found:
                name = f"{call.kernel.name or 'kernel'}_{len(found)}"
                printer = BlockText(call.kernel)
                text = printer.function(name)
                grid = tuple(printer.grid.get(axis, 1) for axis in range(3))
                found[call.kernel] = TritonKernel(call.kernel, name, text, grid, tuple(printer.errors))
    return found


def module_text(kernels: Sequence[TritonKernel]) -> str:
    """A module with all kernels, which needs nothing but Triton."""
    functions = (Path(__file__).parent / "functions.py").read_text()
    return "\n\n".join([functions, *(each.text for each in kernels)])
