"""Runs of equal elements, and counts of numbers: results whose size depends on data."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.checks import as_traced, at_least
from smelt.lowering.dims import canonical_dim, fill, load_as, result_shape
from smelt.lowering.indexing.data_sizes import bind_count, chosen_positions, compacted, counted, flat
from smelt.lowering.numbers import constant
from smelt.lowering.registry import lowers
from smelt.lowering.shapes.structural import compare
from smelt.lowering.shapes.views import reshape
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import as_expr

aten = torch.ops.aten


# -- runs ----------------------------------------------------------------------------------------------------


@lowers(aten.unique_consecutive.default)
def unique_consecutive(
    ctx: Builder, x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The first of each run of equal elements (slices along ``dim``), the run of each element, run lengths.

    NaN equals nothing, as in eager.
    """
    if dim is None:
        x, dim = flat(ctx, x), 0
    dim = canonical_dim(dim, len(x.shape))
    if not x.shape or any(size == 0 for size in x.shape):
        raise Unsupported("runs in a tensor without elements or dimensions")
    first = _first_of_run(ctx, x, dim)
    size = bind_count(ctx, first, dim, 0)
    where = chosen_positions(ctx, first, size)
    last = x.shape[dim]

    def element(index: Index) -> Any:
        place = ops.indirect_index(where.load([index[dim]]), last, wrap=False, check=False)
        return x.load([*index[:dim], place, *index[dim + 1 :]])

    shape = [*x.shape[:dim], size, *x.shape[dim + 1 :]]
    values = ctx.pointwise(element, shape=shape, dtype=x.dtype)
    return values, *runs(ctx, first, where, size, return_inverse, return_counts)


def runs(
    ctx: Builder, first: Tensor, where: Tensor, size: Expr, return_inverse: bool, return_counts: bool
) -> tuple[Tensor, Tensor]:
    """Results 1 and 2 of the unique family: each element's run, and the lengths of the ``size`` runs."""
    inverse_shape, counts_shape = result_shape(ctx, 1), result_shape(ctx, 2)
    inverse = fill(ctx, inverse_shape, torch.int64, 0)
    counts = fill(ctx, counts_shape, torch.int64, 0)
    count = first.shape[0]
    if return_inverse:
        line = run_of_each(ctx, first)
        inverse = reshape(line, inverse_shape)
    if return_counts:

        def length(index: Index) -> Any:
            follows = compare("lt", index[0] + 1, size)
            end = ops.where(
                follows,
                ops.masked(follows, lambda: where.load([index[0] + 1]), 0),
                ops.index_expr(count, torch.int64),
            )
            return ops.sub(end, where.load(index))

        counts = ctx.pointwise(length, shape=(size,), dtype=torch.int64)
    return inverse, counts


def run_of_each(ctx: Builder, first: Tensor) -> Tensor:
    """The number of each element's run; ``first`` is true at the start of a run."""
    _, before = counted(ctx, first)

    def number(index: Index) -> Any:
        own = ops.to_dtype(first.load(index), torch.int64)
        return ops.sub(ops.add(before.load(index), own), constant(1, torch.int64))

    return ctx.pointwise(number, shape=first.shape, dtype=torch.int64)


def _first_of_run(ctx: Builder, x: Tensor, dim: int) -> Tensor:
    """Whether each slice along ``dim`` differs from the previous one; true for the first slice."""
    others = [size for d, size in enumerate(x.shape) if d != dim]

    def differs(place: Expr, rest: Index) -> Any:
        def there(position: Expr) -> Any:
            return x.load([*rest[:dim], position, *rest[dim:]])

        is_later = compare("gt", place, as_expr(0))
        return ops.masked(is_later, lambda: ops.ne(there(place), there(place - 1)), True)

    shape = (x.shape[dim],)
    if not others:
        return ctx.pointwise(lambda index: differs(index[0], ()), shape=shape, dtype=torch.bool)
    return ctx.reduction(
        "any",
        lambda index, rindex: differs(index[0], rindex),
        shape=shape,
        reduce_shape=others,
        dtype=torch.bool,
    )[0]


@lowers(aten._unique2.default)
def unique2(
    ctx: Builder, x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The runs of the sorted elements, also without ``sorted``: ATen's kernel always sorts."""
    return (*_unique(ctx, x, return_inverse), *_counts_of(ctx, x, return_counts))


@lowers(aten._unique.default)
def unique(
    ctx: Builder, x: Tensor, sorted: bool = True, return_inverse: bool = False
) -> tuple[Tensor, Tensor]:
    return _unique(ctx, x, return_inverse)


def _sorted(ctx: Builder, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The elements in order, the original position of each, and whether it begins a run."""
    found = ctx.memo.get(("sorted", x))
    if found is None:
        if any(size == 0 for size in x.shape):
            raise Unsupported("distinct elements of a tensor without elements")
        line = flat(ctx, x)
        values, order = ctx.sort(line.load, shape=line.shape, dtype=x.dtype)
        found = ctx.memo["sorted", x] = values, order, _first_of_run(ctx, values, 0)
    return found


def _unique(ctx: Builder, x: Tensor, return_inverse: bool) -> tuple[Tensor, Tensor]:
    values, order, first = _sorted(ctx, x)
    distinct = compacted(ctx, first, values.load, x.dtype, bind_count(ctx, first, 0, 0))
    inverse = fill(ctx, result_shape(ctx, 1), torch.int64, 0)
    if return_inverse:
        runs = run_of_each(ctx, first)
        count = first.shape[0]

        def place(index: Index) -> list[Expr]:
            return [ops.indirect_index(order.load(index), count, wrap=False, check=False)]

        back = ctx.scatter(fill(ctx, (count,), torch.int64, 0), runs.load, place, shape=(count,))
        inverse = reshape(back, result_shape(ctx, 1))
    return distinct, inverse


def _counts_of(ctx: Builder, x: Tensor, return_counts: bool) -> tuple[Tensor]:
    first = _sorted(ctx, x)[2]
    size = as_expr(ctx.result[0].shape[0])
    where = chosen_positions(ctx, first, size) if return_counts else first
    return (runs(ctx, first, where, size, False, return_counts)[1],)


# -- how often numbers occur ---------------------------------------------------------------------------------


@lowers(aten.bincount.default)
def bincount(ctx: Builder, x: Tensor, weights: Tensor | None = None, minlength: Any = 0) -> Tensor:
    """The number of occurrences (or the sum of weights) of each number.

    The numbers are 0 to the largest or ``minlength - 1``. RuntimeError is raised if one is negative.
    """
    symbol, out = ctx.unbound_size(0), ctx.dtype

    def extreme(kind: str) -> Expr:
        def value(index: Index, rindex: Index) -> Any:
            return load_as(x, rindex, torch.int64)

        (found,) = ctx.reduction(kind, value, shape=(), reduce_shape=x.shape, dtype=torch.int64)
        return ctx.item(found)

    message = "bincount only supports 1-d non-negative integral inputs."
    ctx.check(sympy.Or(at_least(extreme("min"), 0), sympy.Eq(as_expr(x.shape[0]), 0)), message)
    length, size = sympy.Max(extreme("max") + 1, as_expr(minlength), 0), ctx.shape[0]
    if symbol is None:
        as_traced(ctx, length, size)
    else:
        ctx.bind(symbol, length)

    def place(index: Index) -> list[Expr]:
        return [ops.indirect_index(load_as(x, index, torch.int64), size, wrap=False, check=False)]

    def value(index: Index) -> Any:
        return constant(1, out) if weights is None else load_as(weights, index, out)

    return ctx.scatter(fill(ctx, [size], out, 0), value, place, shape=x.shape, mode="add")
