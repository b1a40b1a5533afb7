"""Whole-array evaluation of loop functions, against a small abstract dialect of array operations."""

from smelt.mlir.arrays.bodies import evaluate_arrays
from smelt.mlir.arrays.dialect import Array, ArrayDialect, ConvolutionGeometry, Dot

__all__ = ["Array", "ArrayDialect", "ConvolutionGeometry", "Dot", "evaluate_arrays"]
