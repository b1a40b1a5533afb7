"""Kernels that a run of op_db in Triton's interpreter has printed, compiled to machine code.

`keep` writes each distinct kernel to a file; `compile_all` writes what it takes beside it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from smelt.codegen.triton.cubins import Machine, Order, compile_orders, order_of
from smelt.codegen.triton.unit import TritonKernel
from smelt.errors import ToolchainError


def keep(printed: TritonKernel, folder: Path) -> None:
    """Writes a kernel, unless one of the same machine code is there."""
    order = order_of(printed)
    path = folder / f"{order.key[:20]}.json"
    if not path.exists():
        origins = [origin.op for origin in printed.kernel.origins]
        path.write_text(json.dumps({"order": order.as_data(), "origins": origins}))


def compile_all(folder: Path, architecture: int) -> None:
    """Compiles the kernels of a folder that have not been compiled for the architecture before."""
    paths = {path: path.with_suffix(f".sm{architecture}") for path in sorted(folder.glob("*.json"))}
    missing = {path: json.loads(path.read_text()) for path, result in paths.items() if not result.exists()}
    orders = {path: Order.of_data(kernel["order"]) for path, kernel in missing.items()}
    with suppress(ToolchainError):  # said below, for the kernel that it is about
        compile_orders(list(orders.values()), Machine("cuda", architecture))
    for path, kernel in missing.items():
        said = _resources(orders[path], architecture)
        paths[path].write_text(json.dumps({**said, "origins": kernel["origins"], "kernel": path.stem}))


def _resources(order: Order, architecture: int) -> dict[str, Any]:
    try:
        (cubin,) = compile_orders([order], Machine("cuda", architecture))
    except ToolchainError as error:
        return {"error": str(error)[:1000]}
    registers, stack = cubin.usage()
    return {"registers": registers, "stack": stack, "shared": cubin.shared}


def results(folder: Path, architecture: int) -> list[dict[str, Any]]:
    """What each kernel takes: ``registers``, ``stack`` and ``shared``, or its ``error``."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"*.sm{architecture}"))]
