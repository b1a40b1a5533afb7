"""Sums, products, extremes and their positions, any and all.

Accumulation: float32 for float16 and bfloat16, int64 for integer sums and products; the result is rounded to
its dtype once, by a pointwise function after the reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import (
    canonical_dims,
    cast,
    compute_dtype,
    convert,
    load_as,
    unsqueezed,
)
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import numel

aten = torch.ops.aten

Dims = Sequence[int] | int | None


def reduce(
    ctx: Builder,
    kind: str,
    shape: Sequence[Expr],
    dims: Sequence[int],
    value: Callable[[Index], Any],
    dtype: torch.dtype,
    *,
    keepdim: bool = False,
) -> tuple[Tensor, ...]:
    """Reduce ``value(index)`` (of ``dtype``) over ``dims`` of ``shape``; one tensor per output of ``kind``.

    Dimensions of size 1 are not loops; with none left the result is elementwise.
    """
    kept = [dim for dim in range(len(shape)) if dim not in dims]
    reduced = [dim for dim in range(len(shape)) if dim in dims and shape[dim] != 1]

    def full_index(index: Index, rindex: Index) -> list[Expr]:
        full: list[Expr] = [sympy.Integer(0)] * len(shape)
        for dim, position in zip(kept, index, strict=True):
            full[dim] = position
        for dim, position in zip(reduced, rindex, strict=True):
            full[dim] = position
        return full

    kept_shape = [shape[dim] for dim in kept]
    if reduced:
        results = ctx.reduction(
            kind,
            lambda index, rindex: value(full_index(index, rindex)),
            shape=kept_shape,
            reduce_shape=[shape[dim] for dim in reduced],
            dtype=dtype,
        )
    else:
        results = tuple(
            ctx.pointwise(
                lambda index, of_one=of_one: of_one(value(full_index(index, ()))),  # type: ignore[misc]
                shape=kept_shape,
                dtype=torch.int64 if kind in ("argmax", "argmin") else dtype,
            )
            for of_one in _of_one(kind, dtype)
        )
    if not keepdim:
        return results
    full_shape = [sympy.Integer(1) if dim in dims else size for dim, size in enumerate(shape)]
    return tuple(unsqueezed(result, full_shape, kept) for result in results)


def _of_one(kind: str, dtype: torch.dtype) -> list[Callable[[Any], Any]]:
    """What each output of a reduction is when there is one element only."""
    if kind in ("argmax", "argmin"):
        return [lambda x: ops.constant(0, torch.int64)]
    if kind == "welford":
        return [lambda x: x, lambda x: ops.sub(x, x), lambda x: ops.constant(1.0, dtype)]
    if kind == "online_softmax":
        return [lambda x: x, lambda x: ops.exp(ops.sub(x, x))]
    return [lambda x: x]


def reduce_tensor(
    ctx: Builder, kind: str, x: Tensor, dims: Sequence[int], dtype: torch.dtype, *, keepdim: bool = False
) -> tuple[Tensor, ...]:
    """`reduce` over the elements of ``x``, converted to ``dtype``."""
    return reduce(ctx, kind, x.shape, dims, lambda index: load_as(x, index, dtype), dtype, keepdim=keepdim)


# -- sums and products ---------------------------------------------------------------------------------------


def _accumulate(
    ctx: Builder, kind: str, x: Tensor, dims: Sequence[int], keepdim: bool, dtype: torch.dtype | None
) -> Tensor:
    out = ctx.dtype
    if out is torch.bool:
        raise Unsupported(f"{kind} with a boolean result")
    inputs = x.dtype if dtype is None else dtype
    if x.dtype == out or not out.is_floating_point:
        inputs = out
    accumulator = compute_dtype(out) if out.is_floating_point else torch.int64

    def value(index: Index) -> Any:
        return convert(load_as(x, index, inputs), inputs, accumulator)

    return cast(ctx, reduce(ctx, kind, x.shape, dims, value, accumulator, keepdim=keepdim)[0], out)


@lowers(aten.sum.dim_IntList)
def sum_dims(
    ctx: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    return _accumulate(ctx, "sum", x, canonical_dims(dim, len(x.shape)), keepdim, dtype)


@lowers(aten.sum.default)
def sum_all(ctx: Builder, x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return _accumulate(ctx, "sum", x, canonical_dims(None, len(x.shape)), False, dtype)


@lowers(aten.prod.default)
def prod_all(ctx: Builder, x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return _accumulate(ctx, "prod", x, canonical_dims(None, len(x.shape)), False, dtype)


@lowers(aten.prod.dim_int)
def prod_dim(
    ctx: Builder, x: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    return _accumulate(ctx, "prod", x, canonical_dims(dim, len(x.shape)), keepdim, dtype)


@lowers(aten.mean.dim)
def mean_dims(
    ctx: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Sum and division both in the accumulation dtype, one rounding at the end (as ATen's CPU mean)."""
    out = ctx.dtype
    inputs = x.dtype if dtype is None else dtype
    if not inputs.is_floating_point:
        raise Unsupported(f"mean of {inputs}")
    accumulator = compute_dtype(out)
    dims = canonical_dims(dim, len(x.shape))
    count = numel(x.shape[d] for d in dims)

    def value(index: Index) -> Any:
        return convert(load_as(x, index, inputs), inputs, accumulator)

    (total,) = reduce(ctx, "sum", x.shape, dims, value, accumulator, keepdim=keepdim)

    def divide(index: Index) -> Any:
        return convert(ops.truediv(total.load(index), ops.index_expr(count, accumulator)), accumulator, out)

    return ctx.pointwise(divide)


@lowers(aten.mean.default)
def mean_all(ctx: Builder, x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return mean_dims(ctx, x, None, False, dtype=dtype)


# -- extremes ------------------------------------------------------------------------------------------------


def extreme(ctx: Builder, kind: str, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """``max`` or ``min`` of ``x`` over ``dims`` in its own dtype; NaN wins; on bool it is any or all."""
    if x.dtype is torch.bool:
        kind = "any" if kind == "max" else "all"
    accumulator = compute_dtype(x.dtype)
    return cast(ctx, reduce_tensor(ctx, kind, x, dims, accumulator, keepdim=keepdim)[0], x.dtype)


def extreme_position(ctx: Builder, kind: str, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """``argmax`` or ``argmin`` over ``dims``: the first of equals, the first NaN if there is one (int64)."""
    accumulator = torch.uint8 if x.dtype is torch.bool else compute_dtype(x.dtype)
    return reduce_tensor(ctx, kind, x, dims, accumulator, keepdim=keepdim)[0]


def require_elements(ctx: Builder, x: Tensor, dim: Dims, name: str) -> None:
    """IndexError at run time where a dimension that is reduced has no elements, and so no extreme.

    Where all dimensions are reduced since none is named, eager has other errors (``zero_numel_check_dims``).
    """
    if dim is None or dim == () or dim == []:
        kind = "IndexError" if name.startswith("arg") else "RuntimeError"
        message = f"{name}(): Expected reduction dim to be specified for input.numel() == 0."
        if kind == "RuntimeError":
            message += " Specify the reduction dim with the 'dim' argument."
        if name == "aminmax":
            message = (
                "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity."
            )
        ctx.check(sympy.Gt(numel(x.shape), 0), message, kind)
        return
    called = name if name == "aminmax" else f"{name}()"
    for each in canonical_dims(dim, len(x.shape)):
        message = f"{called}: Expected reduction dim {each} to have non-zero size."
        ctx.check(sympy.Gt(x.shape[each], 0), message, "IndexError")


@lowers(aten.amax.default)
def amax(ctx: Builder, x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    require_elements(ctx, x, dim, "amax")
    return extreme(ctx, "max", x, canonical_dims(dim, len(x.shape)), keepdim)


@lowers(aten.amin.default)
def amin(ctx: Builder, x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    require_elements(ctx, x, dim, "amin")
    return extreme(ctx, "min", x, canonical_dims(dim, len(x.shape)), keepdim)


@lowers(aten.max.default)
def max_all(ctx: Builder, x: Tensor) -> Tensor:
    require_elements(ctx, x, None, "max")
    return extreme(ctx, "max", x, canonical_dims(None, len(x.shape)), False)


@lowers(aten.min.default)
def min_all(ctx: Builder, x: Tensor) -> Tensor:
    require_elements(ctx, x, None, "min")
    return extreme(ctx, "min", x, canonical_dims(None, len(x.shape)), False)


@lowers(aten.max.dim)
def max_dim(ctx: Builder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    require_elements(ctx, x, dim, "max")
    dims = canonical_dims(dim, len(x.shape))
    return extreme(ctx, "max", x, dims, keepdim), extreme_position(ctx, "argmax", x, dims, keepdim)


@lowers(aten.min.dim)
def min_dim(ctx: Builder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    require_elements(ctx, x, dim, "min")
    dims = canonical_dims(dim, len(x.shape))
    return extreme(ctx, "min", x, dims, keepdim), extreme_position(ctx, "argmin", x, dims, keepdim)


def _require_numbers(x: Tensor, name: str) -> None:
    if x.dtype is torch.bool:
        raise Unsupported(f"eager's {name} takes no booleans")


@lowers(aten.argmax.default)
def argmax(ctx: Builder, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    _require_numbers(x, "argmax")
    require_elements(ctx, x, dim, "argmax")
    return extreme_position(ctx, "argmax", x, canonical_dims(dim, len(x.shape)), keepdim)


@lowers(aten.argmin.default)
def argmin(ctx: Builder, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    _require_numbers(x, "argmin")
    require_elements(ctx, x, dim, "argmin")
    return extreme_position(ctx, "argmin", x, canonical_dims(dim, len(x.shape)), keepdim)


# -- any and all ---------------------------------------------------------------------------------------------


def is_nonzero(x: Tensor, index: Index) -> Any:
    """Whether an element counts as true; NaN does."""
    value = x.load(index)
    if x.dtype is torch.bool:
        return value
    zero = ops.constant(0.0 if x.dtype.is_floating_point else 0, x.dtype)
    return ops.ne(value, zero)


def _test(ctx: Builder, kind: str, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    (found,) = reduce(
        ctx, kind, x.shape, dims, lambda index: is_nonzero(x, index), torch.bool, keepdim=keepdim
    )
    return cast(ctx, found, ctx.dtype)  # uint8 in, uint8 out


@lowers(aten.any.default)
def any_all(ctx: Builder, x: Tensor) -> Tensor:
    return _test(ctx, "any", x, canonical_dims(None, len(x.shape)), False)


@lowers(aten.any.dim)
def any_dim(ctx: Builder, x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return _test(ctx, "any", x, canonical_dims(dim, len(x.shape)), keepdim)


@lowers(aten.any.dims)
def any_dims(ctx: Builder, x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    return _test(ctx, "any", x, _tested_dims(dim, len(x.shape)), keepdim)


@lowers(aten.all.default)
def all_all(ctx: Builder, x: Tensor) -> Tensor:
    return _test(ctx, "all", x, canonical_dims(None, len(x.shape)), False)


@lowers(aten.all.dim)
def all_dim(ctx: Builder, x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return _test(ctx, "all", x, canonical_dims(dim, len(x.shape)), keepdim)


@lowers(aten.all.dims)
def all_dims(ctx: Builder, x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    return _test(ctx, "all", x, _tested_dims(dim, len(x.shape)), keepdim)


def _tested_dims(dims: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """As `canonical_dims`, but an empty list tests each element by itself (ATen's any.dims and all.dims)."""
    return () if dims is not None and not dims else canonical_dims(dims, rank)
