"""Recognition of contractions that are convolutions: ATen's arguments, read in one place for all targets."""

from __future__ import annotations

from typing import Any

from smelt.loops.ir import Extern, StridedView
from smelt.mlir.arrays.dialect import ConvolutionGeometry

FORWARD = "aten.convolution.default"
_OPERANDS = {FORWARD: (0, 1), "aten.convolution_backward.default": (0, 1, 2)}
"""Convolution operator → the positions of input and weight among its arguments (in the backward operator
after the result's gradient)."""


def convolution_of(call: Extern) -> tuple[tuple[StridedView, ...], ConvolutionGeometry] | None:
    """The tensors and the geometry of a contraction's call; None if it is no convolution or its geometry is
    unknown."""
    if call.target not in _OPERANDS:
        return None
    operands = tuple(call.args[place] for place in _OPERANDS[call.target])
    first = len(operands) + 1  # the geometry comes after the bias, or its sizes
    stride, padding, dilation, transposed, behind, groups = call.args[first : first + 6]
    if not all(isinstance(each, StridedView) for each in operands):
        return None
    rank = len(operands[-1].shape) - 2
    numbers = [*stride, *padding, *dilation, *behind, groups]
    known = all(isinstance(number, int) or getattr(number, "is_Integer", False) for number in numbers)
    if not known or any(len(each.shape) != rank + 2 for each in operands):
        return None

    def spread(values: Any) -> tuple[int, ...]:
        return tuple(map(int, values)) * (rank if len(values) == 1 else 1)

    geometry = ConvolutionGeometry(
        spread(stride), spread(padding), spread(dilation), bool(transposed), spread(behind), int(groups)
    )
    return operands, geometry
