"""Linalg on tensors, from loop functions: every body is a ``linalg.generic`` or a named operation."""

from functools import partial

from smelt.mlir.execute import executable
from smelt.mlir.linalg.dialect import Linalg
from smelt.mlir.program import emit as emit_program

CAPABILITIES = Linalg.capabilities
emit = partial(emit_program, Linalg)

__all__ = ["CAPABILITIES", "Linalg", "emit", "executable"]
