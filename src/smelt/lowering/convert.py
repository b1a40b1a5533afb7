"""Copies and conversions: always a new buffer, as in eager; fusion decides whether it is stored."""

from __future__ import annotations

from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import broadcast_index, load_as
from smelt.lowering.dtypes import supported
from smelt.lowering.promotion import Operand, filled
from smelt.lowering.registry import lowers, lowers_named
from smelt.lowering.tensor import Tensor
from smelt.ops import ops

aten, prims = torch.ops.aten, torch.ops.prims


@lowers(aten.clone.default, aten.contiguous.default, aten.lift_fresh_copy.default)
def clone(ctx: Builder, x: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor:
    return ctx.pointwise(x.load, shape=x.shape, dtype=x.dtype)


@lowers_named("prims::copy_strided")  # not in every supported PyTorch
def copy_strided(ctx: Builder, x: Tensor, stride: Any) -> Tensor:
    """A copy whose strides are given: results have those of their metadata."""
    return ctx.pointwise(x.load, shape=x.shape, dtype=x.dtype)


@lowers(aten._to_copy.default)
def to_copy(ctx: Builder, x: Operand, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    """``x`` in another dtype. ATen takes a number for a tensor here, as ``vmap`` gives it one."""
    return to_dtype(ctx, x, dtype or x.dtype) if isinstance(x, Tensor) else filled(ctx, x)


@lowers(prims.convert_element_type.default, aten.to.dtype)
def to_dtype(ctx: Builder, x: Tensor, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Tensor:
    if not supported(dtype):
        raise Unsupported(f"conversion to {dtype}")
    return ctx.pointwise(lambda index: load_as(x, index, dtype), shape=x.shape, dtype=dtype)


@lowers(aten.copy.default)
def copy(ctx: Builder, x: Tensor, source: Operand, non_blocking: bool = False) -> Tensor:
    """``source`` broadcast to ``x``'s shape, in its dtype."""
    if not isinstance(source, Tensor):
        return filled(ctx, source)
    return ctx.pointwise(
        lambda index: load_as(source, broadcast_index(index, source.shape), x.dtype),
        shape=x.shape,
        dtype=x.dtype,
    )


@lowers(aten.view.dtype)
def view_dtype(ctx: Builder, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bits as another dtype of the same width."""
    if not supported(dtype) or dtype.itemsize != x.dtype.itemsize or torch.bool in (dtype, x.dtype):
        raise Unsupported(f"view of {x.dtype} as {dtype}")
    return ctx.pointwise(lambda index: ops.bitcast(x.load(index), dtype), shape=x.shape, dtype=dtype)
