"""Shapes, strides and dtypes of buffers for tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from sympy import Expr
from torch.utils._sympy.functions import FloorDiv, Max, Mod

from smelt.loops.ir import Buffer, Shape, StridedView
from smelt.lowering.tensor import Tensor
from smelt.records import replace
from smelt.symbolic import as_expr, is_one, is_zero, same
from smelt.symbolic.affine import expand


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the parts of complex numbers; other dtypes are unchanged.

    >>> real_dtype(torch.complex64), real_dtype(torch.int8)
    (torch.float32, torch.int8)
    """
    return dtype.to_real() if dtype.is_complex else dtype


def buffer_of(name: str, dtype: torch.dtype, shape: Shape, strides: Shape) -> Buffer:
    """A buffer for a tensor of this dtype and layout; complex numbers are stored as pairs."""
    if not dtype.is_complex:
        return Buffer(name, dtype, shape, strides)
    steps = (*(2 * step for step in strides), sympy.Integer(1))
    return Buffer(name, dtype.to_real(), (*shape, sympy.Integer(2)), steps, paired=True)


def shape_of(meta: torch.Tensor) -> tuple[Expr, ...]:
    return tuple(as_expr(size) for size in meta.shape)


def strides_of(meta: torch.Tensor) -> tuple[Expr, ...]:
    """The strides; ``Max(1, n)`` differs from ``n`` only for empty tensors and counts as ``n``."""
    return tuple(_without_max(as_expr(stride)) for stride in meta.stride())


def _without_max(stride: Expr) -> Expr:
    if not stride.has(Max):
        return stride
    return stride.replace(Max, lambda *args: args[1] if len(args) == 2 and args[0] == 1 else Max(*args))


def is_dense(shape: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether the strides are a permutation of row-major ones: every element has its own place, no holes."""
    return dense_order(shape, strides) is not None


def dense_order(shape: Sequence[Expr], strides: Sequence[Expr]) -> list[int] | None:
    """The dimensions of more than one element from the largest stride to the smallest; None unless dense.

    >>> two, three = sympy.Integer(2), sympy.Integer(3)
    >>> dense_order([two, three], [sympy.Integer(1), two]), dense_order([two, three], [three, three])
    ([1, 0], None)
    """
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    remaining = {strides[d]: d for d in dims}
    if len(remaining) != len(dims):
        return None
    expected: Expr = sympy.Integer(1)
    order: list[int] = []
    for _ in dims:
        match = next((d for stride, d in remaining.items() if same(stride, expected)), None)
        if match is None:
            return None
        del remaining[strides[match]]
        expected = expand(expected * shape[match])
        order.insert(0, match)
    return order


def contiguous(meta: Any) -> Any:
    """Metadata of row-major tensors of the same shapes."""
    if isinstance(meta, torch.Tensor):
        return meta.clone(memory_format=torch.contiguous_format)
    return [contiguous(item) for item in meta] if isinstance(meta, (list, tuple)) else meta


def same_layout(shape: Sequence[Expr], left: Sequence[Expr], right: Sequence[Expr]) -> bool:
    """Whether two strides reach the same elements: strides of dimensions of one element may differ."""
    if any(is_zero(size) for size in shape):
        return True
    return all(is_one(size) or same(a, b) for size, a, b in zip(shape, left, right))


def with_strides(view: StridedView, wanted: Sequence[Expr]) -> StridedView:
    """The view with the strides ``wanted`` if these reach the same elements.

    ATen chooses memory formats by the strides of dimensions of one element too.
    """
    return replace(view, strides=tuple(wanted)) if same_layout(view.shape, view.strides, wanted) else view


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    """The elements 0 and 1 of the last dimension, as views."""

    def element(number: int) -> Tensor:
        return x.view(x.shape[:-1], lambda index: [*index, sympy.Integer(number)])

    return element(0), element(1)


def rejoined(flat: Expr) -> Expr:
    """Simplifies ``d*(x//d) + x%d``, the index of a split dimension that is flattened again, to ``x``."""
    if flat.has(Mod):
        flat = flat.replace(Mod, lambda x, d: x - d * FloorDiv(x, d))
    return expand(flat)
