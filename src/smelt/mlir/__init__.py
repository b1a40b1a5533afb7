"""Programs as MLIR: Torch dialect, Linalg on tensors, StableHLO, TOSA."""

from __future__ import annotations

from typing import Any

from smelt.mlir.diagnostics import run_pipeline_with_repro_report

__all__ = ["fx", "run_pipeline_with_repro_report", "torchscript"]


def __getattr__(name: str) -> Any:
    """``smelt.mlir.fx`` and ``smelt.mlir.torchscript``, imported on first use."""
    import importlib

    if name in ("fx", "torchscript"):
        return importlib.import_module(f"smelt.mlir.{name}")
    raise AttributeError(f"module 'smelt.mlir' has no attribute {name!r}")
