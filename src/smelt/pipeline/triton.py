"""The Triton target: kernels for GPUs, or interpreted on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from sympy import Expr, Symbol

from smelt.codegen.triton.stand_in import Libdevice, amend_interpreter
from smelt.codegen.triton.unit import TritonKernel, functions_of, module_text, print_kernels
from smelt.errors import Unsupported
from smelt.nest.ir import Call, InArena, Kernel, Run
from smelt.pipeline.targets import Code
from smelt.runtime.library import PythonLibrary
from smelt.schedule import Target
from smelt.symbolic import evaluate


class Interpreted:
    """Kernels in Triton, run by its interpreter on the CPU: slow, and exactly what the text says.

    ``torch.compile(model, backend=smelt.backend.backend_for(Interpreted()))``
    """

    machine = Target(vector_bytes=4, blocks=True)
    choose = staticmethod(lambda *product: False)  # ATen has them

    def build(self, runs: Sequence[Run]) -> Code:
        """Raises:
        Unsupported: Triton has no text for something, or is not installed.
        """
        kernels = print_kernels(runs)
        text = module_text(list(kernels.values()))
        functions = _interpreted(text)
        bound = {run.name: _run(run, kernels, functions) for run in runs}
        errors = {
            run.name: tuple(e for call in run.calls for e in kernels[call.kernel].errors) for run in runs
        }
        return Code(text, PythonLibrary(bound), errors, "triton")


def _interpreted(text: str) -> Mapping[str, Any]:
    """The module's functions, as Triton's interpreter has them."""
    try:
        from triton.language import standard
    except ImportError as error:
        raise Unsupported("Triton is not installed") from error
    if not hasattr(standard.sum, "rewrite"):
        raise Unsupported("Triton interprets only where TRITON_INTERPRET=1 is set before it is imported")
    amend_interpreter()
    functions = functions_of(text)
    functions["libdevice"] = Libdevice()
    return functions


def _run(
    run: Run, kernels: Mapping[Kernel, TritonKernel], functions: Mapping[str, Any]
) -> Callable[..., int]:
    """A run as a function of the arena's address, those of buffers, and sizes."""
    launches = [
        partial(_launch, call, kernels[call.kernel], functions[kernels[call.kernel].name])
        for call in run.calls
    ]
    counts = [len(kernels[call.kernel].errors) for call in run.calls]

    def call(arena: int, *args: int) -> int:
        pointers, sizes = args[: len(run.arguments)], args[len(run.arguments) :]
        known = dict(zip(run.sizes, sizes, strict=True))
        before = 0
        for launch, count in zip(launches, counts, strict=True):
            failed = launch(arena, pointers, known)
            if failed:
                return before + failed
            before += count
        return 0

    return call


def _launch(
    call: Call,
    printed: TritonKernel,
    function: Any,
    arena: int,
    pointers: Sequence[int],
    sizes: Mapping[Symbol, int],
) -> int:
    """Run one kernel; returns the number of the check that failed, or 0."""
    args: list[Any] = []
    for param, place in zip(call.kernel.params, call.args, strict=True):
        address = (
            arena + evaluate(place.offset, sizes) if isinstance(place, InArena) else pointers[place.position]
        )
        args.append(_element(address, param.dtype))
    args += [sizes[symbol] for symbol in call.kernel.sizes]
    failed = torch.zeros(1, dtype=torch.int32)
    grid = tuple(_count(each, sizes) for each in printed.grid)
    if 0 not in grid:
        function[grid](*args, failed)
    return int(failed)


def _count(programs: Expr | int, sizes: Mapping[Symbol, int]) -> int:
    return programs if isinstance(programs, int) else evaluate(programs, sizes)


def _element(address: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose memory begins at an address: Triton takes the address alone. Empty ones have none."""
    if address == 0:
        return torch.empty(1, dtype=dtype)
    memory = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)
