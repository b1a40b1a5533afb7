"""Transposed convolutions as plain ones, shared by several targets."""

from __future__ import annotations

import sympy

from smelt.lowering.products.contractions import Geometry
from smelt.mlir.arrays.dialect import Array, ArrayDialect, Shape


def regrouped(dialect: ArrayDialect, weight: Array, groups: int) -> Array:
    """(C, O / groups, *taps) → (O, C / groups, *taps)."""
    into, out, *taps = weight.shape
    parts = dialect.reshape(weight, (sympy.Integer(groups), into / groups, out, *taps))
    order = [0, 2, 1, *range(3, 3 + len(taps))]
    return dialect.reshape(dialect.transpose(parts, order), (out * groups, into / groups, *taps))


def plain_padding(geometry: Geometry, taps: Shape) -> list[tuple[int, int]]:
    """The padding, before and after, of the plain form of a transposed convolution; it may be negative."""
    pads = []
    for d, size in enumerate(taps):
        low = geometry.dilation[d] * (int(size) - 1) - geometry.padding[d]
        pads.append((low, low + geometry.output_padding[d]))
    return pads
