"""Programs as MLIR: Torch dialect, Linalg on tensors, StableHLO, TOSA."""

from smelt.mlir.diagnostics import run_pipeline_with_repro_report

__all__ = ["run_pipeline_with_repro_report"]
