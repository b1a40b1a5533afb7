"""Matrix products and convolutions in TOSA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.lowering.products.contractions import Geometry
from smelt.mlir.arrays.convolutions import plain_padding, regrouped
from smelt.mlir.arrays.dialect import Array, Shape
from smelt.mlir.bindings import ir
from smelt.mlir.tosa.operations import Operations

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


def matmul(tosa: Operations, lhs: Array, rhs: Array) -> Array:
    """``tosa.matmul``: ``[b, m, k] x [b, k, n]``."""
    shape = (lhs.shape[0], lhs.shape[1], rhs.shape[2])
    dtype = lhs.dtype
    if any(size == 0 for size in (*lhs.shape, *rhs.shape)):
        return tosa.full(0, dtype, shape)
    if dtype is torch.uint8:
        wide = matmul(tosa, tosa.convert(lhs, torch.int32), tosa.convert(rhs, torch.int32))
        return tosa.convert(wide, dtype)
    zero = tosa.full(0, dtype, (ONE,)).value
    return tosa.write("matmul", [tosa.solid(lhs).value, tosa.solid(rhs).value, zero, zero], dtype, shape)


def convolution(tosa: Operations, x: Array, weight: Array, geometry: Geometry, shape: Shape) -> Array | None:
    """``tosa.conv2d`` (also for one dimension), ``tosa.conv3d`` or ``tosa.depthwise_conv2d``, channels last.

    A transposed convolution convolves its input, with zeros between the elements, with the reversed weight.
    """
    rank = x.rank - 2
    known = [*weight.shape, *x.shape[1:], *shape[1:]]
    if x.dtype not in _TYPES or rank not in (1, 2, 3) or not all(size.is_Integer for size in known):
        return None
    if any(size == 0 for size in (*x.shape, *weight.shape, *shape)):
        return None
    pads = [(p, p) for p in geometry.padding]
    stride = geometry.stride
    if geometry.transposed:
        x, weight, pads = _turned(tosa, x, weight, geometry)
        stride = (1,) * rank
    x, pads = _fitting(tosa, x, weight, pads, stride, geometry.dilation)
    made = _Convolution(tosa, stride, pads, geometry.dilation)
    last = (0, *range(2, x.rank), 1)
    data = tosa.transpose(x, last)
    out = (shape[0], *shape[2:], shape[1])
    if geometry.groups == 1:
        found = made.plain(data, tosa.transpose(weight, last), out)
    else:
        found = made.grouped(data, weight, geometry.groups, out)
    return tosa.transpose(found, (0, rank + 1, *range(1, rank + 1)))


def _turned(
    tosa: Operations, x: Array, weight: Array, geometry: Geometry
) -> tuple[Array, Array, list[tuple[int, int]]]:
    """Input, weight (O, C / groups, *taps) and padding of the plain form of a transposed convolution."""
    weight = regrouped(tosa, tosa.reverse(weight, range(2, weight.rank)), geometry.groups)
    for d, step in enumerate(geometry.stride):
        x = _spread(tosa, x, 2 + d, step)
    return x, weight, plain_padding(geometry, weight.shape[2:])


def _spread(tosa: Operations, x: Array, dim: int, step: int) -> Array:
    """Insert ``step - 1`` zeros between the elements of a dimension."""
    size = x.shape[dim]
    if step == 1 or size == 1:
        return x
    column = tosa.reshape(x, (*x.shape[: dim + 1], ONE, *x.shape[dim + 1 :]))
    high = [ZERO] * column.rank
    high[dim + 1] = sympy.Integer(step - 1)
    column = tosa.pad(column, (ZERO,) * column.rank, tuple(high), 0)
    whole = tosa.reshape(column, (*x.shape[:dim], size * step, *x.shape[dim + 1 :]))
    return tosa.part(whole, dim, ZERO, size * step - (step - 1))


def _fitting(
    tosa: Operations,
    x: Array,
    weight: Array,
    pads: list[tuple[int, int]],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Array, list[tuple[int, int]]]:
    """Input and nonnegative padding without elements that no window reaches, which TOSA forbids."""
    fitted = []
    for d, (low, high) in enumerate(pads):
        dim = 2 + d
        size = int(x.shape[dim])
        spare = (size + low + high - dilation[d] * (int(weight.shape[dim]) - 1) - 1) % stride[d]
        high -= spare
        start, end = max(0, -low), size - max(0, -high)
        if (start, end) != (0, size):
            x = tosa.part(x, dim, sympy.Integer(start), sympy.Integer(end - start))
        fitted.append((max(0, low), max(0, high)))
    return x, fitted


class _Convolution:
    """Channels-last convolutions of one geometry."""

    def __init__(
        self,
        tosa: Operations,
        stride: Sequence[int],
        pads: Sequence[tuple[int, int]],
        dilation: Sequence[int],
    ) -> None:
        self.tosa = tosa
        self.flat = len(stride) == 1  # one dimension becomes two; the second has one element
        more = 1 if self.flat else 0
        self.stride = [*stride, *[1] * more]
        self.dilation = [*dilation, *[1] * more]
        self.pads = [number for pair in [*pads, *[(0, 0)] * more] for number in pair]

    def _in_two(self, x: Array, rank: int) -> Array:
        if not self.flat:
            return x
        return self.tosa.reshape(x, (*x.shape[:rank], ONE, *x.shape[rank:]))

    def _write(self, name: str, x: Array, weight: Array, channels: Expr, shape: Shape) -> Array:
        tosa, dtype = self.tosa, x.dtype
        zero = tosa.full(0, dtype, (ONE,)).value
        bias = tosa.full(0, dtype, (ONE,)).value
        out = (*shape[:-2], shape[-2], ONE, shape[-1]) if self.flat else shape
        found = tosa.write(
            name,
            [tosa.solid(x).value, tosa.solid(weight).value, bias, zero, zero],
            dtype,
            out,
            pad=ir.DenseI64ArrayAttr.get(self.pads),
            stride=ir.DenseI64ArrayAttr.get(self.stride),
            dilation=ir.DenseI64ArrayAttr.get(self.dilation),
            acc_type=ir.TypeAttr.get(tosa.element(torch.float32)),
        )
        return tosa.reshape(found, shape)

    def plain(self, x: Array, weight: Array, shape: Shape) -> Array:
        """x (N, *, C), weight (O, *taps, C)."""
        name = "conv3d" if len(self.stride) == 3 else "conv2d"
        return self._write(name, self._in_two(x, 2), self._in_two(weight, 2), shape[-1], shape)

    def grouped(self, x: Array, weight: Array, groups: int, shape: Shape) -> Array:
        """x (N, *, C), weight (O, C / groups, *taps)."""
        tosa, count = self.tosa, sympy.Integer(groups)
        if weight.shape[1] == 1 and len(self.stride) == 2:
            each = weight.shape[0] / count
            taps = weight.shape[2:]
            parts = tosa.reshape(weight, (count, each, *taps))
            lying = tosa.transpose(parts, (*range(2, 2 + len(taps)), 0, 1))
            return self._write(
                "depthwise_conv2d", self._in_two(x, 2), self._in_two(lying, 1), shape[-1], shape
            )
        width, made = x.shape[-1] / count, shape[-1] / count
        last = (0, *range(2, weight.rank), 1)
        parts_of = []
        for group in range(groups):
            data = tosa.part(x, x.rank - 1, group * width, width)
            taps_of = tosa.transpose(tosa.part(weight, 0, group * made, made), last)
            parts_of.append(self.plain(data, taps_of, (*shape[:-1], made)))
        return tosa.concatenate(parts_of, x.rank - 1)


_TYPES: dict[torch.dtype, Any] = {torch.float32: "f32"}
"""The dtypes that TOSA convolves; others use products and sums."""
