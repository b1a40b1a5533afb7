"""TOSA from the loop graph, through whole arrays; and its way to Linalg, for running it."""

from smelt.mlir.tosa.emit import CAPABILITIES, emit
from smelt.mlir.tosa.run import executable

__all__ = ["CAPABILITIES", "emit", "executable"]
