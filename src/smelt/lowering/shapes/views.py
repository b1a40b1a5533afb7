"""Views: index transforms. No row here computes or stores anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.loops.ir import Extern, Node, StridedView
from smelt.lowering.builder import Builder
from smelt.lowering.dims import ZERO, broadcast_index, canonical_dim
from smelt.lowering.layouts import dense_order, shape_of
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.records import replace
from smelt.symbolic import FloorDiv, as_expr, contiguous_strides, flatten, numel, reshape_index, unflatten
from smelt.symbolic.affine import expand as expanded
from smelt.symbolic.bounds import is_nonnegative

aten, prims = torch.ops.aten, torch.ops.prims
Size: TypeAlias = "int | Expr"

# -- the same elements -------------------------------------------------------------------------------------


@lowers(aten.alias.default, aten.detach.default, aten.lift_fresh.default, prims.view_of.default)
def alias(ctx: Builder, x: Tensor) -> Tensor:
    return x


@lowers(
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    prims.reshape.default,
)
def view(ctx: Builder, x: Tensor, size: Sequence[Size], stride: Sequence[Size] = ()) -> Tensor:
    return reshape(x, ctx.shape)


def reshape(x: Tensor, shape: Sequence[Expr]) -> Tensor:
    """``x`` with another shape of as many elements, in row-major order."""
    old, new = x.shape, tuple(shape)
    if old == new:
        return x
    if any(size == 0 for size in new):
        empty = next(dim for dim, size in enumerate(new) if size == 0)
        return x.view(new, lambda index: [index[empty]] * len(old))  # never loaded
    base = x if x.reshaped is None else x.reshaped
    if base.shape == new:
        return base
    result = base.view(new, lambda index: reshape_index(base.shape, new, index))
    return replace(result, reshaped=base)


@lowers(aten.unsqueeze.default)
def unsqueeze(ctx: Builder, x: Tensor, dim: int) -> Tensor:
    dim = canonical_dim(dim, len(x.shape) + 1)
    return x.view(ctx.shape, lambda index: [*index[:dim], *index[dim + 1 :]])


@lowers(aten.squeeze.default)
def squeeze(ctx: Builder, x: Tensor) -> Tensor:
    return _without(x, [dim for dim, size in enumerate(x.shape) if size == 1])


@lowers(aten.squeeze.dim, aten.squeeze.dims, prims.squeeze.default)
def squeeze_dims(ctx: Builder, x: Tensor, dim: int | Sequence[int]) -> Tensor:
    if not x.shape:
        return x
    dims = [canonical_dim(d, len(x.shape)) for d in ([dim] if isinstance(dim, int) else dim)]
    return _without(x, [d for d in dims if x.shape[d] == 1])


def _without(x: Tensor, dims: Sequence[int]) -> Tensor:
    kept = [dim for dim in range(len(x.shape)) if dim not in dims]
    place = {dim: position for position, dim in enumerate(kept)}
    return x.view(
        [x.shape[dim] for dim in kept],
        lambda index: [index[place[dim]] if dim in place else ZERO for dim in range(len(x.shape))],
    )


# -- order of dimensions -----------------------------------------------------------------------------------


@lowers(aten.permute.default, prims.transpose.default)
def permute(ctx: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    order = [canonical_dim(dim, len(x.shape)) for dim in dims]
    place = {dim: position for position, dim in enumerate(order)}
    return x.view(
        [x.shape[dim] for dim in order],
        lambda index: [index[place[dim]] for dim in range(len(order))],
    )


@lowers(aten.transpose.int)
def transpose(ctx: Builder, x: Tensor, first: int, second: int) -> Tensor:
    if not x.shape:
        return x
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    return permute(ctx, x, order)


@lowers(aten.t.default)
def t(ctx: Builder, x: Tensor) -> Tensor:
    return transpose(ctx, x, 0, 1) if len(x.shape) == 2 else x


# -- broadcasting ------------------------------------------------------------------------------------------


@lowers(aten.expand.default)
def expand(ctx: Builder, x: Tensor, size: Sequence[Size], *, implicit: bool = False) -> Tensor:
    own = x.shape
    return x.view(ctx.shape, lambda index: broadcast_index(index, own))


@lowers(prims.broadcast_in_dim.default)
def broadcast_in_dim(ctx: Builder, x: Tensor, shape: Sequence[Size], dims: Sequence[int]) -> Tensor:
    own = x.shape
    return x.view(
        ctx.shape,
        lambda index: [ZERO if size == 1 else index[dim] for size, dim in zip(own, dims)],
    )


# -- parts -------------------------------------------------------------------------------------------------


def slice_view(x: Tensor, dim: int, start: Size, length: Size, step: Size = 1) -> Tensor:
    """``length`` elements of a dimension from ``start``, every ``step``-th."""
    shape = list(x.shape)
    shape[dim] = as_expr(length)
    first, stride = as_expr(start), as_expr(step)
    return x.view(shape, lambda index: _replaced(index, dim, first + index[dim] * stride))


def _replaced(index: Index, dim: int, position: Expr) -> list[Expr]:
    return [*index[:dim], position, *index[dim + 1 :]]


_NO_END = 2**62
"""An end of a slice that is at least this means no end."""


def clamped(position: Size | None, size: Expr, default: Size) -> Expr:
    """A slice's bound in ATen: negative ones count from the end, then it is clamped to ``[0, size]``.

    >>> clamped(-1, sympy.Integer(4), 0), clamped(9223372036854775807, sympy.Integer(4), 4)
    (3, 4)
    """
    if position is None:
        return as_expr(default)
    expr = as_expr(position)
    if expr.is_Integer and size.is_Integer:
        number = int(expr) + (int(size) if expr < 0 else 0)
        return sympy.Integer(min(max(number, 0), int(size)))
    if expr.is_Integer and int(expr) == 0:
        return expr
    if expr.is_Integer and int(expr) >= _NO_END:
        return size
    if expr.is_negative:
        expr = expanded(size + expr)
        return expr if expr.is_nonnegative else sympy.Max(0, expr)
    gap = expanded(size - expr)
    if expr.is_nonnegative and gap.is_nonnegative:
        return expr
    if expr.is_nonnegative:
        return size if (-gap).is_nonnegative else sympy.Min(expr, size)
    raise Unsupported(f"a slice from {expr}, whose sign is not known")


@lowers(aten.slice.Tensor)
def slice_(
    ctx: Builder, x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Size = 1
) -> Tensor:
    """The length is the metadata's, so only the start has to be computed."""
    dim = canonical_dim(dim, len(x.shape))
    if ctx.unbound:
        return _slice_by_data(ctx, x, dim, start, end, step)
    size, length = x.shape[dim], ctx.shape[dim]
    to_end = end is None or (isinstance(end, int) and end >= _NO_END)
    first = size - length if to_end and step == 1 else clamped(start, size, 0)
    return slice_view(x, dim, first, length, step)


def _slice_by_data(ctx: Builder, x: Tensor, dim: int, start: Any, end: Any, step: Size) -> Tensor:
    """A slice whose bounds depend on data: its length (and storage offset) have to be bound."""
    first, last = bounds_of_slice(ctx, x.shape[dim], start, end)
    length = ctx.unbound_size(dim)
    if length is not None:
        ctx.bind(length, FloorDiv(sympy.Max(last - first, 0) + as_expr(step) - 1, as_expr(step)))
    bind_offset(ctx, dim, first)
    return slice_view(x, dim, first, ctx.shape[dim], step)


def bounds_of_slice(ctx: Builder, size: Expr, start: Any, end: Any) -> tuple[Expr, Expr]:
    """The first position of a slice and the one after its last, for bounds of unknown sign too."""
    found = []
    for position, default in ((start, ZERO), (end, size)):
        try:
            found.append(clamped(position, size, default))
        except Unsupported:
            found.append(ctx.sized(_clamped_late(position, size, default)))
    return found[0], found[1]


def _clamped_late(position: Size | None, size: Expr, default: Expr) -> Expr:
    """`clamped` for a number about which nothing is known while compiling."""
    if position is None or (isinstance(position, int) and position >= _NO_END):
        return default
    expr = as_expr(position)
    if expr.is_Integer and size.is_Integer:
        return clamped(expr, size, default)
    from_end = sympy.Piecewise((expr + size, sympy.Lt(expr, 0)), (expr, True))
    return sympy.Max(0, sympy.Min(size, from_end))


def bind_offset(ctx: Builder, dim: int, first: Expr) -> None:
    """Bind the storage offset of a view, if it is unbound, to ``first`` elements of ``dim``."""
    symbol = ctx.unbound_offset()
    if symbol is not None and isinstance(ctx.operand, torch.Tensor):
        base, stride = as_expr(ctx.operand.storage_offset()), as_expr(ctx.operand.stride(dim))
        ctx.bind(symbol, base + first * stride)


@lowers(aten.narrow.default)
def narrow(ctx: Builder, x: Tensor, dim: int, start: Size, length: Size) -> Tensor:
    dim = canonical_dim(dim, len(x.shape))
    return slice_view(x, dim, clamped(start, x.shape[dim], 0), length)


@lowers(aten.select.int)
def select(ctx: Builder, x: Tensor, dim: int, index: Size) -> Tensor:
    dim = canonical_dim(dim, len(x.shape))
    position = position_of(ctx, index, x, dim)
    bind_offset(ctx, dim, position)
    shape = [*x.shape[:dim], *x.shape[dim + 1 :]]
    return x.view(shape, lambda at: [*at[:dim], position, *at[dim:]])


def position_of(ctx: Builder, index: Size, x: Tensor, dim: int) -> Expr:
    """A single position of a dimension; negative ones count from the end.

    Positions that depend on data are checked at run time: IndexError is raised, as in ATen.
    """
    expr, size = as_expr(index), x.shape[dim]
    if expr.is_Integer:
        return expr if expr.is_nonnegative else size + expr
    if expr.is_nonnegative and expanded(size - expr).is_positive:
        return expr
    message = f"select(): index out of range for a tensor of size {size} at dimension {dim}"
    ctx.check(sympy.And(-size <= expr, expr < size), message, "IndexError")
    if expr.is_nonnegative:
        return expr
    return ctx.sized(sympy.Piecewise((expr + size, sympy.Lt(expr, 0)), (expr, True)))


@lowers(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(ctx: Builder, x: Tensor, size: Size, dim: int = 0) -> tuple[Tensor, ...]:
    return _parts(ctx, x, dim)


@lowers(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(ctx: Builder, x: Tensor, sizes: Sequence[Size], dim: int = 0) -> tuple[Tensor, ...]:
    return _parts(ctx, x, dim)


@lowers(aten.chunk.default)
def chunk(ctx: Builder, x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    return _parts(ctx, x, dim)


def _parts(ctx: Builder, x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Consecutive parts of a dimension, with the lengths of the metadata."""
    dim = canonical_dim(dim, len(x.shape))
    parts, start = [], ZERO
    for meta in ctx.result:
        length = shape_of(meta)[dim]
        parts.append(slice_view(x, dim, start, length))
        start = start + length
    return tuple(parts)


@lowers(aten.unbind.int)
def unbind(ctx: Builder, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(select(ctx, x, dim, position) for position in range(len(ctx.result)))


@lowers(aten.diagonal.default)
def diagonal(ctx: Builder, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return diagonal_view(x, offset, dim1, dim2, ctx.shape[-1])


def diagonal_view(x: Tensor, offset: int, dim1: int, dim2: int, length: Expr) -> Tensor:
    """Elements ``(i, i + offset)`` of two dimensions, as the last dimension."""
    dim1, dim2 = canonical_dim(dim1, len(x.shape)), canonical_dim(dim2, len(x.shape))
    others = [dim for dim in range(len(x.shape)) if dim not in (dim1, dim2)]

    def transform(index: Index) -> list[Expr]:
        at = dict(zip(others, index))
        at[dim1] = index[-1] + max(-offset, 0)
        at[dim2] = index[-1] + max(offset, 0)
        return [at[dim] for dim in range(len(x.shape))]

    return x.view([*(x.shape[dim] for dim in others), length], transform)


@lowers(aten.unfold.default)
def unfold(ctx: Builder, x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows of a dimension; the position in the window is the last dimension."""
    if not x.shape:
        return x.view(ctx.shape, lambda index: [])
    dim = canonical_dim(dim, len(x.shape))
    return x.view(ctx.shape, lambda index: _replaced(index[:-1], dim, index[dim] * as_expr(step) + index[-1]))


@lowers(aten.as_strided.default)
def as_strided(
    ctx: Builder, x: Tensor, size: Sequence[Size], stride: Sequence[Size], offset: Size | None = None
) -> Tensor:
    """An index transform if the buffer is dense and the view stays inside it, else ATen's copy."""
    base = ctx.strided(x)
    if base.buffer != x.buffer:
        raise Unsupported("as_strided of a tensor that is no view of its memory")
    start = base.offset
    if offset is not None:
        start = as_expr(offset) - ctx.offsets.get(x.buffer, ZERO)
    strides = tuple(as_expr(s) for s in stride)
    return _strided_view(ctx, x, strides, start) or _strided_copy(
        ctx, StridedView(x.buffer, ctx.shape, strides, start), "as_strided that is no index transform"
    )


def _strided_view(ctx: Builder, x: Tensor, strides: Sequence[Expr], start: Expr) -> Tensor | None:
    """The view of a dense buffer: a place in memory is a row-major position in stride order."""
    buffer, shape = ctx.graph.buffers[x.buffer], ctx.shape
    order = dense_order(buffer.shape, buffer.strides)
    if order is None or any(size == 0 for size in (*shape, *buffer.shape)):
        return None
    dense = [buffer.shape[dim] for dim in order]
    last = start + sum((n - 1) * s for n, s in zip(shape, strides))
    beyond = expanded(numel(dense) - 1 - last)
    if not is_nonnegative(start, {}):
        return None
    if not is_nonnegative(beyond, {}):
        if beyond.is_number or x.buffer in ctx.graph.inputs or x.buffer in ctx.graph.constants:
            return None  # an input's memory may hold more
        ctx.check(sympy.Ge(beyond, 0), "as_strided: the view leaves the memory of its tensor")

    def transform(index: Index) -> list[Expr]:
        extents = {i: n for i, n in zip(index, shape) if isinstance(i, sympy.Symbol)}
        places = unflatten(flatten(index, strides, start), dense, extents)
        at = dict(zip(order, places))
        return [at.get(dim, ZERO) for dim in range(len(buffer.shape))]

    return Tensor(x.buffer, x.dtype, shape, transform)


def _strided_copy(ctx: Builder, view: StridedView, reason: str) -> Tensor:
    strides = contiguous_strides(view.shape)
    body = Extern("aten.clone.default", (view,), {"memory_format": torch.contiguous_format}, reason)
    buffer = ctx.new_buffer(ctx.dtype, view.shape, strides)
    ctx.graph.nodes.append(Node((buffer.name,), body, ctx.origin))
    return Tensor(buffer.name, ctx.dtype, view.shape)
