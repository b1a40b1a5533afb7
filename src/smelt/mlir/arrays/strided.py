"""Strided views of a buffer's memory as index expressions."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
from sympy import Expr, Symbol

from smelt.errors import Unsupported
from smelt.loops.ir import Buffer, StridedView
from smelt.symbolic import flatten, is_one, same, unflatten
from smelt.symbolic.affine import expand
from smelt.symbolic.bounds import less_than
from smelt.symbolic.index import divide

ZERO = sympy.Integer(0)


def index_of_view(view: StridedView, buffer: Buffer, variables: Sequence[Symbol]) -> list[Expr]:
    """The index into ``buffer`` of the element at ``variables`` of a view of its memory.

    >>> from smelt.symbolic import loop_var
    >>> n = sympy.Integer
    >>> buffer = Buffer("x", None, (n(3), n(4)), (n(4), n(1)))
    >>> i, j = loop_var("i"), loop_var("j")
    >>> index_of_view(StridedView("x", (n(4), n(2)), (n(1), n(8)), n(0)), buffer, [i, j])
    [2*j, i]

    Raises:
        Unsupported: no index transform gives the positions of the view's elements.
    """
    if is_whole(view, buffer):
        return [ZERO if is_one(size) else v for v, size in zip(variables, view.shape)]
    extents = dict(zip(variables, view.shape))
    used = [0 if is_one(size) else 1 for size in view.shape]
    strides = [stride if keep else ZERO for stride, keep in zip(view.strides, used)]
    order = _dense_order(buffer)
    if order is not None:
        dense = [buffer.shape[d] for d in order]
        flat = flatten(variables, strides, view.offset)
        places = dict(zip(order, unflatten(flat, dense, extents)))
        return [places.get(d, ZERO) for d in range(len(buffer.shape))]
    return _by_stride(view, buffer, variables, strides)


def parts_of_view(view: StridedView) -> tuple[StridedView, StridedView]:
    """Real and imaginary parts of a view of complex numbers, as views of the same memory.

    >>> import torch
    >>> n = sympy.Integer
    >>> parts_of_view(StridedView("z", (n(3),), (n(1),), n(4), torch.complex64))[1]
    StridedView(buffer='z', shape=(3,), strides=(2,), offset=9, dtype=None)
    """
    real, imaginary = (
        StridedView(
            view.buffer, view.shape, tuple([2 * step for step in view.strides]), 2 * view.offset + part
        )
        for part in range(2)
    )
    return real, imaginary


def is_whole(view: StridedView, buffer: Buffer) -> bool:
    """Whether the view is the whole buffer with the buffer's layout."""
    if view.offset != 0 or len(view.shape) != len(buffer.shape):
        return False
    if not all(same(a, b) for a, b in zip(view.shape, buffer.shape)):
        return False
    if any(size == 0 for size in view.shape):
        return True
    return all(is_one(size) or same(a, b) for size, a, b in zip(view.shape, view.strides, buffer.strides))


def _dense_order(buffer: Buffer) -> list[int] | None:
    """The dimensions of more than one element, by decreasing stride, if they fill the memory without gaps."""
    dims = [d for d, size in enumerate(buffer.shape) if not is_one(size)]
    order: list[int] = []
    step: Expr = sympy.Integer(1)
    while dims:
        found = next((d for d in reversed(dims) if same(buffer.strides[d], step)), None)
        if found is None:
            return None
        dims.remove(found)
        order.append(found)
        step = expand(step * buffer.shape[found])
    return order[::-1]


def _by_stride(
    view: StridedView, buffer: Buffer, variables: Sequence[Symbol], strides: Sequence[Expr]
) -> list[Expr]:
    """The index for memory with gaps: each stride of the view is a multiple of a stride of the buffer."""
    extents = dict(zip(variables, view.shape))
    dims = [d for d, size in enumerate(buffer.shape) if not is_one(size) and buffer.strides[d] != 0]
    dims.sort(key=lambda d: (not buffer.strides[d].is_Integer, _number(buffer.strides[d])), reverse=True)
    places: list[Expr] = [ZERO] * len(buffer.shape)
    for variable, stride in [*zip(variables, strides), (sympy.Integer(1), view.offset)]:
        if stride == 0:
            continue
        for d in dims:
            quotient = divide(stride, buffer.strides[d])
            if quotient is not None and quotient != 0:
                places[d] = places[d] + quotient * variable
                break
        else:
            raise Unsupported("a strided view of memory with gaps")
    if not all(less_than(e, size, extents) for e, size in zip(places, buffer.shape)):
        raise Unsupported("a strided view of memory with gaps")
    return places


def _number(expr: Expr) -> int:
    return int(expr) if expr.is_Integer else 0
