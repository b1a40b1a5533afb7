"""smelt compiles PyTorch programs: ``torch.compile(model, backend="smelt")``, or ``smelt.compile(model)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smelt.api import compile, reports, reset
    from smelt.contract.outside import decomposes, lowers
    from smelt.errors import SmeltError
    from smelt.generation import Generator
    from smelt.mlir.export import Exported, export
    from smelt.packages.loaded import load
    from smelt.quantized.convert import quantize
    from smelt.quantized.gguf import load_gguf
    from smelt.reporting import CompileReport, Fallback
    from smelt.te.building import build
    from smelt.tracing.show import view

__version__ = "0.1.0"

__all__ = [
    "CompileReport",
    "Exported",
    "Fallback",
    "Generator",
    "SmeltError",
    "build",
    "compile",
    "decomposes",
    "export",
    "load",
    "load_gguf",
    "lowers",
    "package",
    "quantize",
    "reports",
    "reset",
    "view",
]

_HOMES = {
    "compile": "smelt.api",
    "reports": "smelt.api",
    "reset": "smelt.api",
    "view": "smelt.tracing.show",
    "lowers": "smelt.contract.outside",
    "decomposes": "smelt.contract.outside",
    "export": "smelt.mlir.export",
    "load": "smelt.packages.loaded",
    "package": "smelt.packages.api",
    "Generator": "smelt.generation",
    "quantize": "smelt.quantized.convert",
    "load_gguf": "smelt.quantized.gguf",
    "Exported": "smelt.mlir.export",
    "SmeltError": "smelt.errors",
    "build": "smelt.te.building",
    "CompileReport": "smelt.reporting",
    "Fallback": "smelt.reporting",
}


def __getattr__(name: str) -> Any:
    """Imports on first use: ``smelt --help`` and ``smelt cache`` need no torch."""
    import importlib

    if name in ("capture", "mlir", "relax", "script", "te", "testing", "tir", "tools", "topi"):
        return importlib.import_module(f"smelt.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'smelt' has no attribute {name!r}")
