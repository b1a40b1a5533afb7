"""Greatest common divisors and least common multiples: Euclid's algorithm, as a fold."""

from __future__ import annotations

import math
from typing import Any

import torch
from sympy import Expr

from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert
from smelt.lowering.promotion import Constants, Operand, is_empty, loader
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops

aten = torch.ops.aten

_GOLDEN = math.log2((1 + math.sqrt(5)) / 2)


def _divisor(ctx: Builder, x: Operand, y: Operand) -> Tensor:
    """Euclid's algorithm until a remainder is 0, with C's signs and wrapping (``calc_gcd`` of ATen).

    The least integer is its own absolute value. n iterations are enough for numbers below ``phi**n`` (G.
    Lamé, 1844), and one more if the larger number is second.
    """
    dtype, shape = ctx.dtype, ctx.shape
    loads = [loader(operand, dtype, dtype) for operand in (x, y)]
    c, wide = Constants(dtype), Constants(torch.float64)

    def given(number: int, index: Index) -> Any:
        value = loads[number](index)
        return value if dtype is torch.uint8 else ops.abs(value)

    def needed(index: Index) -> Any:
        smaller = wide(float("inf"))
        for number in (0, 1):
            size = ops.abs(convert(loads[number](index), dtype, torch.float64))
            smaller = ops.minimum(smaller, size)
        digits = ops.truediv(ops.log2(ops.maximum(smaller, wide(1))), wide(_GOLDEN))
        return ops.to_dtype(ops.add(ops.ceil(digits), wide(3)), torch.int64)

    turns: int | Expr = 0
    if not is_empty(shape):
        (most,) = ctx.reduction(
            "max", lambda index, rindex: needed(rindex), shape=(), reduce_shape=shape, dtype=torch.int64
        )
        turns = ctx.item(most)

    def turn(index: Index, number: Expr, state: Any) -> list[Any]:
        start = ops.eq(ops.index_expr(number, torch.int64), ops.constant(0, torch.int64))
        divisor = ops.where(start, given(0, index), state[0])
        value = ops.where(start, given(1, index), state[1])
        done = ops.eq(divisor, c(0))
        rest = ops.fmod(value, ops.where(done, c(1), divisor))
        return [ops.where(done, divisor, rest), ops.where(done, value, divisor)]

    _, divisor = ctx.fold(turn, shape=shape, turns=turns, state=[(dtype, 0), (dtype, 0)])
    return divisor


@lowers(aten.gcd.default)
def gcd(ctx: Builder, x: Operand, y: Operand) -> Tensor:
    """The greatest common divisor; gcd(0, 0) is 0."""
    return _divisor(ctx, x, y)


@lowers(aten.lcm.default)
def lcm(ctx: Builder, x: Operand, y: Operand) -> Tensor:
    """The least common multiple; it is 0 if an operand is 0. Small integers are multiplied in int32."""
    dtype = ctx.dtype
    divisor = _divisor(ctx, x, y)
    compute = torch.int64 if dtype is torch.int64 else torch.int32
    c = Constants(compute)
    loads = [loader(operand, dtype, compute) for operand in (x, y)]

    def inner(index: Index) -> Any:
        common = convert(divisor.load(index), dtype, compute)
        none = ops.eq(common, c(0))
        quotient = ops.truncdiv(loads[0](index), ops.where(none, c(1), common))
        product = ops.abs(ops.mul(quotient, loads[1](index)))
        return convert(ops.where(none, c(0), product), compute, dtype)

    return ctx.pointwise(inner)
