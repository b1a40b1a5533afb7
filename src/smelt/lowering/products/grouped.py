"""Products of groups of rows with a matrix for each group, as in mixtures of experts.

    out[s, n] = sum over k of x[s, k] * weight[group(s), k, n]

``offsets`` holds the end of each group (``ATen/native/GroupedMMUtils.h``); rows after the last end are in no
group, and have zeros as result. transformers has its own operators for this product and its gradients.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.loops.ir import accumulator
from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert
from smelt.lowering.products.contractions import Sum, computes_named, factor, matrix_product, means
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops

aten = torch.ops.aten
ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


@means(aten._grouped_mm.default)
def grouped_product(
    ctx: Builder, x: Tensor, y: Tensor, offsets: Tensor | None = None, bias: Any = None, out_dtype: Any = None
) -> Sum:
    """The operands' ranks decide the grouped dimension: rows of ``x``, columns of ``y``, or the reduction."""
    if x.dtype != y.dtype:
        raise Unsupported("a product of two dtypes")
    if offsets is None:
        return matrix_product(ctx, x, y)
    if len(x.shape) == 2 and len(y.shape) == 2:
        return _terms(ctx, x, y, offsets)
    return _rows(ctx, x, y, offsets) if len(x.shape) == 2 else _columns(ctx, x, y, offsets)


@computes_named("transformers::grouped_mm_fallback")
def grouped_rows(ctx: Builder, x: Tensor, weight: Tensor, offsets: Tensor) -> Sum:
    """The product of each group of rows with its matrix."""
    return _rows(ctx, x, weight, offsets)


@computes_named("transformers::grouped_mm_fallback_backward")
def grouped_gradients(
    ctx: Builder, x: Tensor, weight: Tensor, offsets: Tensor, grad: Tensor
) -> tuple[Sum, Sum]:
    """The gradients of the rows and of the matrices."""
    return _rows(ctx, grad, _transposed(weight), offsets), _terms(ctx, _transposed(x), grad, offsets)


def _transposed(x: Tensor) -> Tensor:
    *batch, rows, columns = x.shape
    return x.view((*batch, columns, rows), lambda index: [*index[:-2], index[-1], index[-2]])


def _rows(ctx: Builder, x: Tensor, y: Tensor, offsets: Tensor) -> Sum:
    """``x[s, k] * y[group(s), k, n]``."""
    dtype, group = ctx.dtype, _groups(ctx, offsets, x.shape[0])

    def lhs(index: Index, rindex: Index) -> Any:
        return _in_group(group, index[0], offsets, lambda _: factor(x, [index[0], *rindex], dtype), dtype)

    def rhs(index: Index, rindex: Index) -> Any:
        return _in_group(group, index[0], offsets, lambda g: factor(y, [g, *rindex, index[1]], dtype), dtype)

    return Sum((x.shape[1],), lhs, rhs)


def _columns(ctx: Builder, x: Tensor, y: Tensor, offsets: Tensor) -> Sum:
    """``x[group(n), m, k] * y[k, n]``."""
    dtype, group = ctx.dtype, _groups(ctx, offsets, y.shape[1])

    def lhs(index: Index, rindex: Index) -> Any:
        return _in_group(group, index[1], offsets, lambda g: factor(x, [g, index[0], *rindex], dtype), dtype)

    def rhs(index: Index, rindex: Index) -> Any:
        return _in_group(group, index[1], offsets, lambda _: factor(y, [*rindex, index[1]], dtype), dtype)

    return Sum((y.shape[0],), lhs, rhs)


def _terms(ctx: Builder, x: Tensor, y: Tensor, offsets: Tensor) -> Sum:
    """The sum of ``x[m, s] * y[s, n]`` over each group's s; other terms count as zeros."""
    dtype, group = ctx.dtype, _groups(ctx, offsets, x.shape[1])

    def counts(index: Index, rindex: Index) -> Any:
        own = ops.index_expr(index[0], torch.int64)
        return ops.eq(group.load(rindex), own)

    def lhs(index: Index, rindex: Index) -> Any:
        return ops.masked(
            counts(index, rindex), lambda: factor(x, [index[1], *rindex], dtype), _nothing(dtype)
        )

    def rhs(index: Index, rindex: Index) -> Any:
        return ops.masked(
            counts(index, rindex), lambda: factor(y, [*rindex, index[2]], dtype), _nothing(dtype)
        )

    return Sum((x.shape[1],), lhs, rhs)


def _groups(ctx: Builder, offsets: Tensor, count: Expr) -> Tensor:
    """The group of each of ``count`` positions: the number of groups that end before or at it."""

    def ended(index: Index, rindex: Index) -> Any:
        end = convert(offsets.load(rindex), offsets.dtype, torch.int64)
        return convert(ops.le(end, ops.index_expr(index[0], torch.int64)), torch.bool, torch.int64)

    return ctx.reduction("sum", ended, shape=(count,), reduce_shape=offsets.shape, dtype=torch.int64)[0]


def _in_group(group: Tensor, at: Expr, offsets: Tensor, body: Any, dtype: torch.dtype) -> Any:
    """``body(g)`` for the group g of position ``at``; zero if it is in none."""
    found, count = group.load([at]), offsets.shape[0]
    holds = ops.lt(found, ops.index_expr(count, torch.int64))
    return ops.masked(
        holds, lambda: body(ops.indirect_index(found, count, wrap=False, check=False)), _nothing(dtype)
    )


def _nothing(dtype: torch.dtype) -> float | int:
    return 0.0 if accumulator(dtype).is_floating_point else 0
