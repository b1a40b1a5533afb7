"""TOSA modules as Linalg, for running them."""

from __future__ import annotations

from typing import Any

from smelt.mlir.diagnostics import run_pipeline_with_repro_report

_TO_LINALG = (
    "builtin.module(tosa-to-scf,func.func("
    "tosa-to-linalg-named,tosa-to-linalg,tosa-to-arith{include-apply-rescale=true},tosa-to-tensor,canonicalize))"
)


def to_linalg(module: Any) -> None:
    """Bring a TOSA module to Linalg, in place, through the upstream passes.

    Raises:
        PipelineError: SM0712, an operation has no way to Linalg.
    """
    run_pipeline_with_repro_report(module, _TO_LINALG, "bringing TOSA to Linalg")
