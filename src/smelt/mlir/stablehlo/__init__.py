"""StableHLO from the loop graph, through whole arrays; and its reference interpreter."""

from smelt.mlir.stablehlo.artifact import portable_artifact
from smelt.mlir.stablehlo.emit import CAPABILITIES, emit
from smelt.mlir.stablehlo.run import evaluate_module

__all__ = ["CAPABILITIES", "emit", "evaluate_module", "portable_artifact"]
