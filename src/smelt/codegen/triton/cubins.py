"""Compiles printed kernels to machine code for NVIDIA GPUs; no GPU is needed for that."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from smelt.codegen.triton.unit import TritonKernel, module_text
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
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernels = list(kernels)
    with tempfile.TemporaryDirectory(prefix="smelt-triton-") as folder:
        path = Path(folder) / "unit.py"
        path.write_text(text := module_text(kernels))
        namespace: dict[str, Any] = {"__name__": "unit"}
        exec(compile(text, str(path), "exec"), namespace)
        found = []
        for each in kernels:
            kernel = each.kernel
            signature = {param.name: POINTERS[param.dtype] for param in kernel.params}
            signature |= {size.name: "i64" for size in kernel.sizes} | {"failed": "*i32"}
            source = ASTSource(fn=namespace[each.name], signature=signature, constexprs={})
            target = GPUTarget("cuda", architecture, 32)
            made = triton.compile(source, target=target, options={"enable_fp_fusion": False})
            (Path(folder) / "kernel.cubin").write_bytes(made.asm["cubin"])
            tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
            command = [str(tool), "-res-usage", str(Path(folder) / "kernel.cubin")]
            said = subprocess.run(command, capture_output=True, text=True, check=True)
            usage = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", said.stdout + said.stderr))
            stack = int(usage["STACK"]) + int(usage["LOCAL"])
            shared = int(made.metadata.shared)
            code = made.asm["ptx"], made.asm["cubin"]
            found.append(Cubin(each.name, *code, int(usage["REG"]), stack, shared))
    return found
