"""Reductions of complex numbers other than sums: products, norms, variances, tests of all elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from smelt.lowering.builder import Builder
from smelt.lowering.complex import math as by_parts
from smelt.lowering.complex.elementwise import as_complex, pair_loader, real_elementwise, test
from smelt.lowering.dims import canonical_dim, canonical_dims, convert, unsqueezed
from smelt.lowering.layouts import real_dtype
from smelt.lowering.promotion import Constants
from smelt.lowering.registry import TABLE, lowers_complex
from smelt.lowering.running import associative_scan
from smelt.lowering.tensor import Complex, Index, Pair, Tensor
from smelt.ops import ops
from smelt.symbolic import numel, unflatten

aten, prims = torch.ops.aten, torch.ops.prims

# -- products ----------------------------------------------------------------------------------------------


def _product(ctx: Builder, x: Tensor | Complex, dims: Sequence[int], keepdim: bool) -> Complex:
    """Multiplies one factor after the other (`smelt.loops.ir.Fold`)."""
    dtype, shape = ctx.dtype, x.shape
    load = pair_loader(x, dtype)
    kept = [dim for dim in range(len(shape)) if dim not in dims]
    sizes = [shape[dim] for dim in dims]
    constants = Constants(dtype)

    def inner(index: Index, turn: Any, state: Sequence[Any]) -> Sequence[Any]:
        places = dict(zip(dims, unflatten(turn, sizes, {turn: numel(sizes)})))
        places.update(zip(kept, index))
        value = load([places[dim] for dim in range(len(shape))])
        return tuple(by_parts.mul(constants, Pair(*state), value))

    found = ctx.fold(
        inner, shape=[shape[dim] for dim in kept], turns=numel(sizes), state=[(dtype, 1.0), (dtype, 0.0)]
    )
    if keepdim:
        full = [sympy.Integer(1) if dim in dims else size for dim, size in enumerate(shape)]
        found = tuple(unsqueezed(part, full, kept) for part in found)
    return Complex(*found)


@lowers_complex(aten.prod.default)
def prod(ctx: Builder, x: Any, *, dtype: torch.dtype | None = None) -> Complex:
    return _product(ctx, x, range(len(x.shape)), False)


@lowers_complex(aten.prod.dim_int)
def prod_dim(
    ctx: Builder, x: Any, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Complex:
    return _product(ctx, x, canonical_dims(dim, len(x.shape)), keepdim)


@lowers_complex(aten.cumprod.default)
def cumprod(ctx: Builder, x: Any, dim: int, *, dtype: torch.dtype | None = None) -> Complex:
    """Accumulated in float64, as ATen does (``at::acc_type``)."""
    wide, out = torch.float64, ctx.dtype
    load, constants = pair_loader(x, wide), Constants(wide)
    if not x.shape:
        return Complex(*(ctx.pointwise(part.load, dtype=part.dtype) for part in as_complex(ctx, x).parts))

    return Complex(
        *associative_scan(
            ctx,
            load,
            lambda before, after: by_parts.mul(constants, Pair(*before), Pair(*after)),
            finish=lambda index, state: [convert(part, wide, out) for part in state],
            shape=x.shape,
            dim=canonical_dim(dim, len(x.shape)),
            state=[(wide, 1.0), (wide, 0.0)],
            dtypes=[out, out],
        )
    )


# -- by real numbers computed from each element ------------------------------------------------------------


@lowers_complex(aten.linalg_vector_norm.default)
def vector_norm(
    ctx: Builder, x: Complex, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The norm of the elements' lengths."""
    lengths = real_elementwise(ctx, by_parts.length, x, shape=x.shape)
    options = {} if dtype is None else {"dtype": real_dtype(dtype)}
    found: Tensor = TABLE[aten.linalg_vector_norm.default](ctx, lengths, order, dim, keepdim, **options)
    return found


@lowers_complex(aten.var.correction)
def var(ctx: Builder, x: Complex, *args: Any, **kwargs: Any) -> Tensor:
    """The sum of both parts' variances."""
    return _added(ctx, *(TABLE[aten.var.correction](ctx, part, *args, **kwargs) for part in x.parts))


@lowers_complex(aten.var_mean.correction)
def var_mean(ctx: Builder, x: Complex, *args: Any, **kwargs: Any) -> tuple[Tensor, Complex]:
    found = [TABLE[aten.var_mean.correction](ctx, part, *args, **kwargs) for part in x.parts]
    return _added(ctx, found[0][0], found[1][0]), Complex(found[0][1], found[1][1])


def _added(ctx: Builder, x: Tensor, y: Tensor) -> Tensor:
    return ctx.pointwise(lambda index: ops.add(x.load(index), y.load(index)), shape=x.shape, dtype=x.dtype)


def _of_truth(overload: torch._ops.OpOverload) -> None:
    """Register the row for booleans, applied to whether each element is not 0."""
    row: Callable[..., Any] = TABLE[overload]

    @lowers_complex(overload)
    def lowered(ctx: Builder, x: Complex, *args: Any, **kwargs: Any) -> Any:
        return row(ctx, test(ctx, by_parts.truth, x, shape=x.shape), *args, **kwargs)


for _overload in (
    *(aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims),
    *(aten.nonzero.default, aten.count_nonzero.default, aten.count_nonzero.dim_IntList),
):
    if _overload in TABLE:
        _of_truth(_overload)
