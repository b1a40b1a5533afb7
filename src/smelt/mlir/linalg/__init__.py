"""Linalg on tensors, from loop functions: every body is a ``linalg.generic`` or a named operation."""

from smelt.mlir.linalg.emit import CAPABILITIES, emit

__all__ = ["CAPABILITIES", "emit"]
