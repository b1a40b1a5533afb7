"""Whole-array evaluation of loop functions, against a small abstract dialect of array operations."""

from smelt.mlir.arrays.bodies import ArrayBodies
from smelt.mlir.arrays.dialect import Array, ArrayDialect, Dot
from smelt.mlir.arrays.evaluate import EvaluatedArrays

__all__ = ["Array", "ArrayBodies", "ArrayDialect", "Dot", "EvaluatedArrays"]
