"""Kernels that a run of op_db in Triton's interpreter has printed, compiled to machine code.

    python -m tests.conformance.cubins FOLDER ARCHITECTURE

A process that interprets kernels cannot compile them: it writes each distinct kernel to a file (`keep`), and
this one, without TRITON_INTERPRET, writes what it takes beside it.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from smelt.codegen.triton.unit import TritonKernel, functions_of, module_text


def keep(printed: TritonKernel, folder: Path) -> None:
    """Writes a kernel, unless one of the same text is there."""
    lines = [line for line in printed.text.splitlines() if not line.lstrip().startswith("#")]
    text = module_text([printed]).replace(printed.text, "\n".join(lines)).replace(printed.name, "kernel")
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
    if not path.exists():
        origins = [origin.partition(" at ")[0] for origin in printed.kernel.origins]
        kernel = {"text": text, "signature": _signature(printed), "warps": printed.warps}
        kernel["origins"] = origins
        path.write_text(json.dumps(kernel))


def _signature(printed: TritonKernel) -> dict[str, str]:
    from smelt.codegen.triton.cubins import POINTERS

    found = {param.name: POINTERS[param.dtype] for param in printed.kernel.params}
    return found | {size.name: "i64" for size in printed.kernel.sizes} | {"failed": "*i32"}


def compile_all(folder: Path, architecture: int) -> None:
    """Compiles the kernels of a folder that have not been compiled for the architecture before."""
    for path in sorted(folder.glob("*.json")):
        result = path.with_suffix(f".sm{architecture}")
        if result.exists():
            continue
        kernel = json.loads(path.read_text())
        try:
            said: dict[str, Any] = _compiled(kernel, architecture)
        except Exception as error:  # the compiler's, of any kind
            said = {"error": f"{type(error).__name__}: {error}"[:1000]}
        result.write_text(json.dumps({**said, "origins": kernel["origins"], "kernel": path.stem}))


def _compiled(kernel: dict[str, Any], architecture: int) -> dict[str, int]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = functions_of(kernel["text"])["kernel"]
    source = ASTSource(fn=function, signature=kernel["signature"], constexprs={})
    options = {"enable_fp_fusion": False, "num_warps": kernel["warps"]}
    target = GPUTarget("cuda", architecture, 32)
    made = triton.compile(source, target=target, options=options)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = subprocess.run(
            [str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    usage = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", said.stdout)}
    stack, shared = usage["STACK"] + usage["LOCAL"], int(made.metadata.shared)
    return {"registers": usage["REG"], "stack": stack, "shared": shared}


def results(folder: Path, architecture: int) -> list[dict[str, Any]]:
    """What each kernel takes: ``registers``, ``stack`` and ``shared``, or its ``error``."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"*.sm{architecture}"))]


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]), int(sys.argv[2]))
