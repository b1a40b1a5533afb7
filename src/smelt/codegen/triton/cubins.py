"""Compiles printed kernels to machine code for NVIDIA GPUs; no GPU is needed for that."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from smelt.codegen.triton.unit import TritonKernel, functions_of, module_text
from smelt.records import dataclass

POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
"""Triton's names of pointer element types."""


@dataclass(frozen=True, slots=True)
class Cubin:
    """A kernel for one architecture: PTX and machine code, the resources of a thread (``registers``;
    ``stack``: spilled bytes) and of a block (``shared``, bytes).
    """

    name: str
    ptx: str
    binary: bytes
    registers: int
    stack: int
    shared: int


def cubins(kernels: Iterable[TritonKernel], architecture: int) -> list[Cubin]:
    """Compiles kernels for ``sm_<architecture>`` (80, 90, 100), without contraction of products and sums.

    Raises:
        ImportError: Triton is not installed.
    """
    kernels = list(kernels)
    functions = functions_of(module_text(kernels))
    return [_cubin(each, functions[each.name], architecture) for each in kernels]


def _cubin(printed: TritonKernel, function: Any, architecture: int) -> Cubin:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {param.name: POINTERS[param.dtype] for param in printed.kernel.params}
    signature |= {size.name: "i64" for size in printed.kernel.sizes} | {"failed": "*i32"}
    source = ASTSource(fn=function, signature=signature, constexprs={})
    target = GPUTarget("cuda", architecture, 32)
    made = triton.compile(source, target=target, options={"enable_fp_fusion": False})
    usage = _usage(made.asm["cubin"], Path(triton.__file__).parent)
    stack, shared = usage["STACK"] + usage["LOCAL"], int(made.metadata.shared)
    return Cubin(printed.name, made.asm["ptx"], made.asm["cubin"], usage["REG"], stack, shared)


def _usage(binary: bytes, triton: Path) -> dict[str, int]:
    """The registers and bytes of a thread, as ``cuobjdump`` reads them from machine code."""
    tool = triton / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(prefix="smelt-", suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", said.stdout)}
