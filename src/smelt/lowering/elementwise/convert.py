"""Copies and conversions: always a new buffer, as in eager; fusion decides whether it is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import broadcast_index, load_as
from smelt.lowering.dtypes import supported
from smelt.lowering.promotion import Operand, filled
from smelt.lowering.registry import lowers, lowers_named
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import FloorDiv, Mod, as_expr

aten, prims = torch.ops.aten, torch.ops.prims


@lowers(aten.clone.default, aten.contiguous.default, aten.lift_fresh_copy.default)
def clone(ctx: Builder, x: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor:
    return ctx.pointwise(x.load, shape=x.shape, dtype=x.dtype)


@lowers_named("prims::copy_strided")  # not in every supported PyTorch
def copy_strided(ctx: Builder, x: Tensor, stride: Any) -> Tensor:
    """A copy with given strides, which are also those of the result's metadata."""
    return ctx.pointwise(x.load, shape=x.shape, dtype=x.dtype)


@lowers(aten._to_copy.default)
def to_copy(ctx: Builder, x: Operand, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    """``x`` in another dtype. ATen also accepts a number here, which ``vmap`` passes."""
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


# -- the same bits as another dtype --------------------------------------------------------------------------

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers that hold the bits of elements, by their bytes."""


@lowers(aten.view.dtype)
def view_dtype(ctx: Builder, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same memory as another dtype; another width changes the size of the last dimension."""
    if not supported(dtype):
        raise Unsupported(f"view of {x.dtype} as {dtype}")
    mine, wanted = x.dtype.itemsize, dtype.itemsize
    load = x.load if mine == wanted else _split(x, wanted) if mine > wanted else _joined(x, wanted)
    source = x.dtype if mine == wanted else _WORDS[wanted]
    return ctx.pointwise(lambda index: _as_bits(load(index), source, dtype), shape=ctx.shape, dtype=dtype)


def _as_bits(value: Any, source: torch.dtype, target: torch.dtype) -> Any:
    """A value as another dtype of the same width; any byte that is not 0 is true."""
    if torch.bool in (source, target) and source != target:
        byte = ops.to_dtype(value, torch.uint8) if source is torch.bool else ops.bitcast(value, torch.uint8)
        return ops.to_dtype(byte, torch.bool) if target is torch.bool else ops.bitcast(byte, target)
    return ops.bitcast(value, target)


def _split(x: Tensor, width: int) -> Callable[[Index], Any]:
    """Loads words of ``width`` bytes from elements that each consist of several, lowest first."""
    count, wide = x.dtype.itemsize // width, _WORDS[x.dtype.itemsize]

    def load(index: Index) -> Any:
        place, part = FloorDiv(index[-1], as_expr(count)), Mod(index[-1], as_expr(count))
        word = _as_bits(x.load([*index[:-1], place]), x.dtype, wide)
        return ops.to_dtype(ops.rshift(word, ops.index_expr(8 * width * part, wide)), _WORDS[width])

    return load


def _joined(x: Tensor, width: int) -> Callable[[Index], Any]:
    """Loads words of ``width`` bytes that each consist of several elements, lowest first."""
    narrow, wide = _WORDS[x.dtype.itemsize], _WORDS[width]
    bits, count = 8 * x.dtype.itemsize, width // x.dtype.itemsize

    def load(index: Index) -> Any:
        word = None
        for part in range(count):
            element = x.load([*index[:-1], count * index[-1] + part])
            low = ops.to_dtype(_as_bits(element, x.dtype, narrow), wide)
            low = ops.bitwise_and(low, ops.constant((1 << bits) - 1, wide))
            shifted = ops.lshift(low, ops.constant(bits * part, wide))
            word = shifted if word is None else ops.bitwise_or(word, shifted)
        return word

    return load
