"""TOSA from the loop graph, by evaluation on whole arrays; and its lowering to Linalg for execution."""

from functools import partial

from smelt.mlir.program import emit as emit_program
from smelt.mlir.tosa.dialect import Tosa
from smelt.mlir.tosa.run import executable

CAPABILITIES = Tosa.capabilities
emit = partial(emit_program, Tosa)

__all__ = ["CAPABILITIES", "Tosa", "emit", "executable"]
