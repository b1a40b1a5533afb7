"""Assembly and rearrangement of tensors with a copy: cat, flip, roll, repeat, the scatters of views, tril."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any, TypeAlias

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import ZERO, broadcast_index, canonical_dim, fold, load_as
from smelt.lowering.layouts import shape_of, strides_of
from smelt.lowering.numbers import constant
from smelt.lowering.promotion import Operand, loader
from smelt.lowering.registry import TABLE, lowers
from smelt.lowering.shapes import views
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import FloorDiv, Mod, as_expr, is_zero

aten, prims = torch.ops.aten, torch.ops.prims
Size: TypeAlias = "int | Expr"
Load = Callable[[Index], Any]
Piece: TypeAlias = "tuple[Expr, Expr, Load]"
"""(begin, end, loader) of a part of a tensor along a dimension."""

MOST_PIECES = 64
"""The largest number of pieces for which each element is compared with every piece."""

PIECES_AT_ONCE = 32
"""The number of pieces that are joined in one step if there are more."""

# -- conditions on an index --------------------------------------------------------------------------------


def compare(name: str, left: Expr, right: Expr) -> Any:
    """``lt``, ``ge``, ``eq`` … of two index expressions, as a bool value."""
    return getattr(ops, name)(ops.index_expr(left, torch.int64), ops.index_expr(right, torch.int64))


def both(conditions: Sequence[Any]) -> Any:
    """The conjunction of at least one condition (values may be anything, None too)."""
    return fold(ops.logical_and, conditions)


# -- concatenation -----------------------------------------------------------------------------------------


@lowers(aten.cat.default, prims.cat.default)
def cat(ctx: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenated pieces: each is loaded only if the index is within it.

    Empty 1-d tensors are left out whatever the others' rank is (ATen's legacy rule).
    """
    shape, dtype = ctx.shape, ctx.dtype
    dim = canonical_dim(dim, len(shape))
    pieces: list[Piece] = []
    start = ZERO
    for tensor in tensors:
        if len(tensor.shape) == 1 and is_zero(tensor.shape[0]):
            continue
        size = tensor.shape[dim]
        if not is_zero(size):
            pieces.append((start, start + size, _shifted(tensor, dim, start, dtype)))
        start = start + size
    return _pieced(ctx, dim, pieces)


def _shifted(tensor: Tensor, dim: int, start: Expr, dtype: torch.dtype) -> Load:
    def load(index: Index) -> Any:
        at = list(index)
        at[dim] = index[dim] - start
        return load_as(tensor, at, dtype)

    return load


def _pieced(ctx: Builder, dim: int, pieces: Sequence[Piece]) -> Tensor:
    """The pieces as one buffer. Many pieces are joined in steps: no element is compared with all of them."""
    dtype = ctx.dtype
    if not pieces:
        return ctx.pointwise(lambda index: constant(0, dtype))
    while len(pieces) > MOST_PIECES:
        groups = (pieces[first : first + PIECES_AT_ONCE] for first in range(0, len(pieces), PIECES_AT_ONCE))
        pieces = [_joined(ctx, dim, group) for group in groups]
    return ctx.pointwise(_chosen(dim, dtype, pieces))


def _joined(ctx: Builder, dim: int, pieces: Sequence[Piece]) -> Piece:
    """Neighbouring pieces as one piece, a buffer."""
    first, end = pieces[0][0], pieces[-1][1]

    def moved(load: Load) -> Load:
        return lambda index: load([*index[:dim], index[dim] + first, *index[dim + 1 :]])

    inside = [(start - first, stop - first, moved(load)) for start, stop, load in pieces]
    shape = [*ctx.shape[:dim], end - first, *ctx.shape[dim + 1 :]]
    joined = ctx.pointwise(_chosen(dim, ctx.dtype, inside), shape=shape)
    return first, end, _shifted(joined, dim, first, ctx.dtype)


def _chosen(dim: int, dtype: torch.dtype, pieces: Sequence[Piece]) -> Load:
    """Loads an element from the piece that contains it."""
    if len(pieces) == 1:
        return pieces[0][2]

    def inner(index: Index) -> Any:
        position, last = index[dim], len(pieces) - 1
        start, _, load = pieces[last]
        result = _loaded(dtype, index, load, [compare("ge", position, start)])
        for start, end, load in reversed(pieces[1:last]):
            before_end = compare("lt", position, end)
            value = _loaded(dtype, index, load, [compare("ge", position, start), before_end])
            result = ops.where(before_end, value, result)
        before_end = compare("lt", position, pieces[0][1])
        return ops.where(before_end, _loaded(dtype, index, pieces[0][2], [before_end]), result)

    return inner


def _loaded(dtype: torch.dtype, index: Index, load: Load, conditions: Sequence[Any]) -> Any:
    return ops.masked(both(conditions), lambda: load(index), constant_of(dtype))


def constant_of(dtype: torch.dtype, value: float | int | bool = 0) -> float | int | bool:
    """A number of the dtype's kind, for ``ops.masked``."""
    return bool(value) if dtype is torch.bool else float(value) if dtype.is_floating_point else int(value)


@lowers(aten.stack.default)
def stack(ctx: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dim, dtype = canonical_dim(dim, len(ctx.shape)), ctx.dtype
    pieces = [
        (as_expr(number), as_expr(number + 1), _without_dim(tensor, dim, dtype))
        for number, tensor in enumerate(tensors)
    ]
    return _pieced(ctx, dim, pieces)


def _without_dim(tensor: Tensor, dim: int, dtype: torch.dtype) -> Load:
    return lambda index: load_as(tensor, [*index[:dim], *index[dim + 1 :]], dtype)


# -- another order of elements -----------------------------------------------------------------------------


@lowers(aten.flip.default, prims.rev.default)
def flip(ctx: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    flipped = {canonical_dim(dim, len(x.shape)) for dim in dims}
    return ctx.pointwise(
        lambda index: x.load([x.shape[d] - 1 - i if d in flipped else i for d, i in enumerate(index)])
    )


def _numel(x: Tensor) -> Expr:
    result = as_expr(1)
    for size in x.shape:
        result = result * size
    return result


@lowers(aten.repeat.default)
def repeat(ctx: Builder, x: Tensor, repeats: Sequence[Size]) -> Tensor:
    return ctx.pointwise(_tiled(x, ctx.shape, repeats).load)


def _tiled(x: Tensor, shape: Sequence[Expr], repeats: Sequence[Size]) -> Tensor:
    offset = len(shape) - len(x.shape)

    def transform(index: Index) -> list[Expr]:
        at: list[Expr] = []
        for dim, size in enumerate(x.shape):
            position = index[offset + dim]
            once = as_expr(repeats[offset + dim]) == 1
            at.append(ZERO if size == 1 else position if once or is_zero(size) else Mod(position, size))
        return at

    return x.view(shape, transform)


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(ctx: Builder, x: Tensor, factor: int) -> Tensor:
    """``(*, c * f * f, h, w)`` → ``(*, c, h * f, w * f)``."""
    *batch, _, height, width = x.shape
    channels = ctx.shape[-3]
    wide = views.reshape(x, [*batch, channels, as_expr(factor), as_expr(factor), height, width])
    b = len(batch)
    order = [*range(b), b, b + 3, b + 1, b + 4, b + 2]
    return ctx.pointwise(views.reshape(views.permute(ctx, wide, order), ctx.shape).load)


@lowers(aten.native_channel_shuffle.default)
def channel_shuffle(ctx: Builder, x: Tensor, groups: Size) -> Tensor:
    batch, channels, *rest = x.shape
    wide = views.reshape(x, [batch, as_expr(groups), channels / as_expr(groups), *rest])
    order = [0, 2, 1, *range(3, len(rest) + 3)]
    return ctx.pointwise(views.reshape(views.permute(ctx, wide, order), ctx.shape).load)


# -- writing a part ----------------------------------------------------------------------------------------


@lowers(aten.slice_scatter.default)
def slice_scatter(
    ctx: Builder, x: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Size = 1
) -> Tensor:
    _refuse_windows(ctx)
    dim = canonical_dim(dim, len(x.shape))
    first, last = views.bounds_of_slice(ctx, x.shape[dim], start, end)
    stride = as_expr(step)

    def inner(index: Index) -> Any:
        position = index[dim]
        conditions = []
        if first != 0:
            conditions.append(compare("ge", position, first))
        if last != x.shape[dim]:
            conditions.append(compare("lt", position, last))
        if stride != 1:
            conditions.append(compare("eq", Mod(position - first, stride), ZERO))
        at = [*index[:dim], _quotient(position - first, stride), *index[dim + 1 :]]
        if not conditions:
            return load_as(src, broadcast_index(at, src.shape), x.dtype)
        mask = both(conditions)
        return _overlaid(x, index, mask, lambda: load_as(src, broadcast_index(at, src.shape), x.dtype))

    return ctx.pointwise(inner)


def _quotient(expr: Expr, divisor: Expr) -> Expr:
    return expr if divisor == 1 else FloorDiv(expr, divisor)


def _refuse_windows(ctx: Builder) -> None:
    """Refuse an ``x`` whose elements share memory: eager's copy has its strides, and is written twice."""
    if overlaps(shape_of(ctx.operand), strides_of(ctx.operand)):
        raise Unsupported("the tensor's elements share memory, which eager writes through")


def overlaps(shape: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether two dimensions reach the same memory, as in `Tensor.unfold` (strides of 0 do not count).

    >>> overlaps([as_expr(4), as_expr(2)], [as_expr(1), as_expr(1)])
    True
    >>> overlaps([as_expr(4), as_expr(2)], [as_expr(2), as_expr(1)])
    False
    """
    dims = [(stride, size) for stride, size in zip(strides, shape) if size != 1 and stride != 0]
    for (left, count), (right, _) in permutations(dims, 2):
        if left == right:
            return True
        within = left.is_Integer and right.is_Integer and left < right
        if within and not (count.is_Integer and left * count <= right):
            return True
    return False


def _overlaid(x: Tensor, index: Index, mask: Any, load: Callable[[], Any]) -> Any:
    """``load()`` if the mask holds, else ``x``."""
    return ops.where(mask, ops.masked(mask, load, constant_of(x.dtype)), x.load(index))


@lowers(aten.select_scatter.default)
def select_scatter(ctx: Builder, x: Tensor, src: Tensor, dim: int, index: Size) -> Tensor:
    _refuse_windows(ctx)
    dim = canonical_dim(dim, len(x.shape))
    position = views.position_of(ctx, index, x, dim)

    def inner(at: Index) -> Any:
        mask = compare("eq", at[dim], position)
        return _overlaid(x, at, mask, lambda: load_as(src, [*at[:dim], *at[dim + 1 :]], x.dtype))

    return ctx.pointwise(inner)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    ctx: Builder, x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    _refuse_windows(ctx)
    dim1, dim2 = canonical_dim(dim1, len(x.shape)), canonical_dim(dim2, len(x.shape))

    def inner(at: Index) -> Any:
        row, column = at[dim1] + max(offset, 0), at[dim2] + max(-offset, 0)
        mask = compare("eq", row, column)
        others = [i for dim, i in enumerate(at) if dim not in (dim1, dim2)]
        place = at[dim1] if offset >= 0 else at[dim2]
        return _overlaid(x, at, mask, lambda: load_as(src, [*others, place], x.dtype))

    return ctx.pointwise(inner)


@lowers(aten.tril.default)
def tril(ctx: Builder, x: Tensor, diagonal: Size = 0) -> Tensor:
    return _triangle(ctx, x, "le", as_expr(diagonal))


@lowers(aten.triu.default)
def triu(ctx: Builder, x: Tensor, diagonal: Size = 0) -> Tensor:
    return _triangle(ctx, x, "ge", as_expr(diagonal))


def _triangle(ctx: Builder, x: Tensor, name: str, diagonal: Expr) -> Tensor:
    """``x`` if ``column (name) row + diagonal``, else 0."""
    dtype = x.dtype

    def inner(index: Index) -> Any:
        mask = compare(name, index[-1], index[-2] + diagonal)
        return ops.where(mask, x.load(index), constant(0, dtype))

    return ctx.pointwise(inner)


@lowers(prims.fill.default)
def fill(ctx: Builder, x: Tensor, value: Operand) -> Tensor:
    return ctx.pointwise(loader(value, ctx.dtype, ctx.dtype))


# -- copies of views ---------------------------------------------------------------------------------------


def _register_copies() -> None:
    """Register ``aten.select_copy`` and the like: the view's row, then a copy of each result."""
    pairs = {
        aten.select_copy.int: aten.select.int,
        aten.slice_copy.Tensor: aten.slice.Tensor,
        aten.expand_copy.default: aten.expand.default,
        aten.diagonal_copy.default: aten.diagonal.default,
        aten.permute_copy.default: aten.permute.default,
        aten.transpose_copy.int: aten.transpose.int,
        aten.t_copy.default: aten.t.default,
        aten.view_copy.default: aten.view.default,
        aten.alias_copy.default: aten.alias.default,
        aten.detach_copy.default: aten.alias.default,
        aten.squeeze_copy.default: aten.squeeze.default,
        aten.squeeze_copy.dim: aten.squeeze.dim,
        aten.squeeze_copy.dims: aten.squeeze.dims,
        aten.unsqueeze_copy.default: aten.unsqueeze.default,
        aten.unfold_copy.default: aten.unfold.default,
        aten.split_copy.Tensor: aten.split.Tensor,
        aten.split_with_sizes_copy.default: aten.split_with_sizes.default,
        aten.unbind_copy.int: aten.unbind.int,
        aten.narrow_copy.default: aten.narrow.default,
    }
    for overload, viewing in pairs.items():
        lowers(overload)(_copied(TABLE[viewing]))


def _copied(row: Callable[..., Any]) -> Callable[..., Any]:
    def copied(ctx: Builder, *args: Any, **kwargs: Any) -> Any:
        result = row(ctx, *args, **kwargs)
        if isinstance(result, Tensor):
            return ctx.pointwise(result.load, shape=result.shape, dtype=result.dtype)
        return tuple(ctx.pointwise(part.load, shape=part.shape, dtype=part.dtype) for part in result)

    return copied


_register_copies()


@lowers(aten.repeat_interleave.self_int)
def repeat_interleave(
    ctx: Builder, x: Tensor, repeats: Size, dim: int | None = None, *, output_size: Any = None
) -> Tensor:
    """Element ``i`` of the dimension comes from ``i // repeats``; without a dim the tensor is flattened."""
    if is_zero(as_expr(repeats)):
        raise Unsupported("repeat_interleave by 0")
    flat = views.reshape(x, [_numel(x)]) if dim is None else x
    where = 0 if dim is None else canonical_dim(dim, len(x.shape))

    def inner(index: Index) -> Any:
        return flat.load([*index[:where], _quotient(index[where], as_expr(repeats)), *index[where + 1 :]])

    return ctx.pointwise(inner)
