"""Multinomial sampling, by exponential races or by searching the running sum of the weights."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import compute_dtype, load_as
from smelt.lowering.numbers import constant
from smelt.lowering.random.draw import draw, refuse, require
from smelt.lowering.registry import lowers
from smelt.lowering.running import running_sum
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import as_expr

aten = torch.ops.aten

_MOST_CATEGORIES = 1 << 24
_INVALID = "probability tensor contains either `inf`, `nan` or element < 0"
_NONE = "invalid multinomial distribution (sum of probabilities <= 0)"
_NEGATIVE = "invalid multinomial distribution (encountering probability entry < 0)"
_INFINITE = "invalid multinomial distribution (encountering probability entry = infinity or NaN)"


@lowers(aten.multinomial.default)
def multinomial(
    ctx: Builder, weights: Tensor, count: Any, replacement: bool = False, *, generator: Any = None
) -> Tensor:
    """``count`` positions (int64) for each row of weights, with probabilities proportional to the weights."""
    categories = weights.shape[-1] if weights.shape else sympy.Integer(0)
    refuse(
        not weights.dtype.is_floating_point or len(weights.shape) not in (1, 2), f"weights {weights.dtype}"
    )
    samples = as_expr(count)
    if not all(size.is_Integer for size in (samples, categories)):
        if not (samples.is_positive and categories.is_positive) or (samples != 1 and not replacement):
            raise Unsupported("random: whether there are as many categories as samples depends on sizes")
    else:
        refuse(not 0 < categories <= _MOST_CATEGORIES, f"{categories} categories")
        refuse(samples <= 0, f"{samples} samples")
        refuse(not replacement and samples > categories, f"{samples} of {categories} categories")
    if replacement and samples != 1:
        return _searched(ctx, weights, categories, generator)
    return _raced(ctx, weights, samples, generator)


def _rows_have_weight(ctx: Builder, weights: Tensor) -> None:
    def positive(index: Index, rindex: Index) -> Any:
        return ops.gt(weights.load((*index, *rindex)), constant(0.0, weights.dtype))

    some = ctx.reduction(
        "any", positive, shape=weights.shape[:-1], reduce_shape=weights.shape[-1:], dtype=torch.bool
    )[0]
    require(ctx, some.load, weights.shape[:-1], _NONE)


# -- races -------------------------------------------------------------------------------------------------


def _raced(ctx: Builder, weights: Tensor, count: Expr, generator: Any) -> Tensor:
    """The categories with the largest ``weight / exponential``, as in ``at::multinomial``.

    (Each category has an exponential clock with its weight as rate: the first to ring is a draw by weight.)
    """
    compute = compute_dtype(weights.dtype)

    def valid(index: Index) -> Any:
        value = weights.load(index)
        return ops.logical_and(
            ops.ge(value, constant(0.0, weights.dtype)), ops.lt(value, constant(float("inf"), weights.dtype))
        )

    require(ctx, valid, weights.shape, _INVALID)
    _rows_have_weight(ctx, weights)
    numbers = draw(ctx, generator, weights.shape)

    def speed(index: Index) -> Any:
        clock = ops.neg(ops.log(numbers.positive(index, compute)))
        clock = ops.maximum(clock, constant(torch.finfo(compute).eps / 2, compute))
        return ops.truediv(load_as(weights, index, compute), clock)

    if count == 1:
        (winner,) = ctx.reduction(
            "argmax",
            lambda index, rindex: speed((*index, *rindex)),
            shape=weights.shape[:-1],
            reduce_shape=weights.shape[-1:],
            dtype=compute,
        )
        return ctx.pointwise(lambda index: winner.load(index[:-1]))
    _, winners = ctx.sort(speed, shape=weights.shape, dtype=compute, descending=True, limit=count)
    return winners


# -- searching ---------------------------------------------------------------------------------------------


def _searched(ctx: Builder, weights: Tensor, categories: Expr, generator: Any) -> Tensor:
    """The first category whose running sum of weights exceeds ``u * total``, for each sample."""
    wide = torch.float64

    def not_negative(index: Index) -> Any:
        return ops.ge(load_as(weights, index, wide), constant(0.0, wide))

    def finite(index: Index) -> Any:
        return ops.lt(load_as(weights, index, wide), constant(float("inf"), wide))

    require(ctx, not_negative, weights.shape, _NEGATIVE)
    require(ctx, finite, weights.shape, _INFINITE)
    _rows_have_weight(ctx, weights)

    def weight(index: Index) -> Any:
        return load_as(weights, index, wide)

    last = len(weights.shape) - 1
    sums = running_sum(ctx, weight, shape=weights.shape, dim=last, first=0.0, dtype=wide)
    numbers = draw(ctx, generator)
    most = int(categories) if categories.is_Integer else _MOST_CATEGORIES
    steps = [1 << k for k in reversed(range(most.bit_length()))]

    def inner(index: Index) -> Any:
        row = index[:-1]
        total = sums.load((*row, categories - 1))
        mark = ops.mul(numbers.fraction(index, 52), total)  # less than the total, rounded too
        passed = constant(0, torch.int64)  # lower bound of the number of categories that end before the mark
        for step in steps:
            further = ops.add(passed, constant(step, torch.int64))
            last = ops.index_expr(categories, torch.int64)
            inside = ops.le(further, last)
            place = ops.sub(ops.minimum(further, last), constant(1, torch.int64))
            at = ops.indirect_index(place, categories, wrap=False, check=False)
            ends_before = ops.logical_and(inside, ops.le(sums.load((*row, at)), mark))
            passed = ops.where(ends_before, further, passed)
        return passed

    return ctx.pointwise(inner)
