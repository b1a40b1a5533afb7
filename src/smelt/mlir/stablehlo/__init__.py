"""StableHLO from the loop graph, by evaluation on whole arrays; and its reference interpreter."""

from functools import partial

from smelt.mlir.program import emit as emit_program
from smelt.mlir.stablehlo.artifact import portable_artifact
from smelt.mlir.stablehlo.dialect import StableHlo
from smelt.mlir.stablehlo.run import evaluate_module, executable

CAPABILITIES = StableHlo.capabilities
emit = partial(emit_program, StableHlo)

__all__ = ["CAPABILITIES", "StableHlo", "emit", "evaluate_module", "executable", "portable_artifact"]
