"""TOSA from the loop graph, through whole arrays; and its way to Linalg, for running it."""

from functools import partial

from smelt.mlir.program import emit as emit_program
from smelt.mlir.tosa.dialect import Tosa
from smelt.mlir.tosa.run import executable

CAPABILITIES = Tosa.capabilities
emit = partial(emit_program, Tosa)

__all__ = ["CAPABILITIES", "Tosa", "emit", "executable"]
