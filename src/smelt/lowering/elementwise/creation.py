"""Tensors from numbers: full and its variants, arange, eye, linspace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import compute_dtype, convert, load_as
from smelt.lowering.layouts import is_dense, shape_of, strides_of
from smelt.lowering.promotion import Number, Operand, filled, loader
from smelt.lowering.registry import lowers
from smelt.lowering.shapes.structural import compare
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import as_expr, is_zero

aten, prims = torch.ops.aten, torch.ops.prims

# -- one number everywhere ---------------------------------------------------------------------------------


@lowers(aten.full.default, aten.full_like.default, prims.full.default, prims.full_like.default)
def full(ctx: Builder, like: Any, value: Operand, **kwargs: Any) -> Tensor:
    return filled(ctx, value)


@lowers(aten.scalar_tensor.default, prims.scalar_tensor.default)
def scalar_tensor(ctx: Builder, value: Operand, **kwargs: Any) -> Tensor:
    return filled(ctx, value)


@lowers(
    aten.empty.memory_format,
    *(aten.empty_strided.default, aten.new_empty_strided.default, aten.empty_permuted.default),
    *(prims.empty_strided.default, prims.empty_permuted.default),
)
def empty(ctx: Builder, *args: Any, **kwargs: Any) -> Tensor:
    """Zeros instead of uninitialized memory, so that each run gives the same.

    ATen runs the call if the strides leave holes or elements share memory, since it then knows the storage
    size.
    """
    shape, strides = shape_of(ctx.result), strides_of(ctx.result)
    if not is_dense(shape, strides) and not any(is_zero(size) for size in shape):
        raise Unsupported("a new tensor whose elements do not lie side by side")
    return filled(ctx, 0)


# -- ranges ------------------------------------------------------------------------------------------------


@lowers(aten.arange.default)
def arange(ctx: Builder, end: Any, **kwargs: Any) -> Tensor:
    return _range(ctx, 0, 1)


@lowers(aten.arange.start)
def arange_start(ctx: Builder, start: Any, end: Any, **kwargs: Any) -> Tensor:
    return _range(ctx, start, 1)


@lowers(aten.arange.start_step)
def arange_step(ctx: Builder, start: Any, end: Any, step: Any = 1, **kwargs: Any) -> Tensor:
    return _range(ctx, start, step)


@lowers(prims.iota.default)
def iota(ctx: Builder, length: Any, *, start: Any, step: Any, **kwargs: Any) -> Tensor:
    return _range(ctx, start, step)


def _range(ctx: Builder, start: Any, step: Any) -> Tensor:
    """``start + i * step``, in int64 for integers, else in the accumulation dtype (``at::arange``)."""
    dtype = ctx.dtype
    if not dtype.is_floating_point:
        if not all(isinstance(x, int) or (isinstance(x, Expr) and x.is_integer) for x in (start, step)):
            start, step = _truncated(start), _truncated(step)
        first, stride = as_expr(start), as_expr(step)
        return ctx.pointwise(
            lambda index: _converted(ops.index_expr(first + index[0] * stride, torch.int64), dtype)
        )
    wide = torch.float64
    first, stride = loader(start, wide, wide), loader(step, wide, wide)

    def inner(index: Index) -> Any:
        position = ops.index_expr(index[0], wide)
        return ops.to_dtype(ops.add(first(index), ops.mul(position, stride(index))), dtype)

    return ctx.pointwise(inner)


def _truncated(value: Any) -> Any:
    if isinstance(value, Expr) and not value.is_integer:
        raise Unsupported(f"a range of integers from {value}")
    return int(value) if isinstance(value, (int, float)) else value


def _converted(value: Any, dtype: torch.dtype) -> Any:
    return value if dtype is torch.int64 else ops.to_dtype(value, dtype)


@lowers(aten.linspace.default)
def linspace(ctx: Builder, start: Number, end: Number, steps: int, **kwargs: Any) -> Tensor:
    """Computes each half from its own end, so that both ends are exact (``at::linspace``)."""
    value, compute = evenly_spaced(ctx, start, end, steps)
    dtype = ctx.dtype
    return ctx.pointwise(lambda index: convert(value(index), compute, dtype))


def evenly_spaced(
    ctx: Builder, start: Number | Tensor, end: Number | Tensor, steps: int
) -> tuple[Callable[[Index], Any], torch.dtype]:
    """``steps`` numbers from ``start`` to ``end``, and the dtype that they are computed in.

    Either end may be a 0-d tensor.
    """
    dtype = ctx.dtype
    if not dtype.is_floating_point:
        raise Unsupported(f"evenly spaced numbers in {dtype}")
    if any(isinstance(x, Expr) for x in (start, end, steps)):
        raise Unsupported("evenly spaced numbers of dynamic count")
    compute = compute_dtype(dtype)
    first, last = _end(start, compute), _end(end, compute)
    if steps == 1:
        return first, compute
    numbers = not isinstance(start, Tensor) and not isinstance(end, Tensor)
    known = (end - start) / (steps - 1) if numbers and steps > 1 else 0.0  # type: ignore[operator]

    def step(index: Index) -> Any:
        if numbers:
            return ops.constant(float(known), compute)
        count = ops.constant(float(max(steps - 1, 1)), compute)
        return ops.truediv(ops.sub(last(index), first(index)), count)

    def inner(index: Index) -> Any:
        position = ops.index_expr(index[0], compute)
        back = ops.index_expr(steps - 1 - index[0], compute)
        up = ops.fma(step(index), position, first(index))
        down = ops.fma(ops.neg(step(index)), back, last(index))
        return ops.where(compare("lt", index[0], as_expr(steps // 2)), up, down)

    return inner, compute


def _end(value: Number | Tensor, compute: torch.dtype) -> Callable[[Index], Any]:
    if isinstance(value, Tensor):
        return lambda index: load_as(value, (), compute)
    return loader(float(value), compute, compute)
