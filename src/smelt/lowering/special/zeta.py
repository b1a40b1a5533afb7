"""Hurwitz's zeta function: nine terms, then Euler and Maclaurin's formula (DLMF 25.11.28)."""

from __future__ import annotations

import math
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert
from smelt.lowering.dtypes import is_low
from smelt.lowering.promotion import Constants, Operand, loader, promote
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops

aten = torch.ops.aten

_TERMS = 9
_BERNOULLI = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730),
    *(7 / 6, -3617 / 510, 43867 / 798, -174611 / 330, 854513 / 138, -236364091 / 2730),
)
"""B2, B4 …"""
_SMALL = 2.0**-53
"""The series ends at a term whose ratio to the sum is below this, as in ATen's ``zeta``."""
_WIDE = Constants(torch.float64)


def _last_terms(x: Any, q: Any, total: Any, power: Any, done: Any) -> Any:
    """The sum with its remainder; ``power`` is the last term, ``done`` if it is small enough."""
    w = ops.add(q, _WIDE(_TERMS))
    integral = ops.truediv(ops.mul(power, w), ops.sub(x, _WIDE(1)))
    rest = ops.sub(ops.add(total, integral), ops.mul(_WIDE(0.5), power))
    result, factor = ops.where(done, total, rest), _WIDE(1)
    order = x
    for k, number in enumerate(_BERNOULLI, 1):
        factor, power = ops.mul(factor, order), ops.truediv(power, w)
        term = ops.mul(ops.mul(factor, power), _WIDE(number / math.factorial(2 * k)))
        sum_now = ops.add(result, term)
        result = ops.where(done, result, sum_now)
        done = ops.logical_or(done, ops.lt(ops.abs(ops.truediv(term, sum_now)), _WIDE(_SMALL)))
        factor, power = ops.mul(factor, ops.add(order, _WIDE(1))), ops.truediv(power, w)
        order = ops.add(order, _WIDE(2))
    return result


@lowers(aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar)
def zeta(ctx: Builder, x: Operand, q: Operand) -> Tensor:
    """``sum of (q + k) ** -x``, in float64. inf at x = 1, NaN below; for q below 0, x must be whole.

    For q below 0 the terms are split into two series with positive terms: ``f + k`` and ``1 - f + k`` for the
    fraction f of -q, without the end of the first series from ``1 - q`` on.
    """
    common = promote([x, q])
    if is_low(common):
        raise Unsupported(f"eager has no kernel for {common}")
    if not common.is_floating_point:
        common = torch.get_default_dtype()
    load_x, load_q = (loader(operand, common, common) for operand in (x, q))
    out, wide = ctx.dtype, torch.float64

    def starts(index: Index) -> tuple[Any, ...]:
        """The starts of the three series; above 0 there is one series."""
        start = convert(load_q(index), common, wide)
        depth = ops.neg(start)
        fraction = ops.sub(depth, ops.floor(depth))
        below = ops.lt(start, _WIDE(0))
        upper = ops.where(below, ops.sub(_WIDE(1), fraction), start)
        lower = ops.where(below, fraction, _WIDE(1))
        return upper, lower, ops.add(depth, _WIDE(1))

    def turn(index: Index, number: Expr, state: Any) -> list[Any]:
        exponent = ops.neg(convert(load_x(index), common, wide))
        k = ops.index_expr(number, wide)
        first = ops.eq(k, _WIDE(0))
        after: list[Any] = []
        for series, start in enumerate(starts(index)):
            total, _, done = state[3 * series : 3 * series + 3]
            power = ops.pow(ops.add(start, k), exponent)
            sum_now = ops.add(total, power)
            limit = ops.mul(_WIDE(_SMALL), sum_now)
            small = ops.logical_and(ops.lt(ops.neg(limit), power), ops.lt(power, limit))
            small = ops.logical_and(small, ops.logical_not(first))
            after += [ops.where(done, total, sum_now), power, ops.logical_or(done, small)]
        return after

    state = [(wide, 0.0), (wide, 0.0), (torch.bool, False)] * 3
    parts = ctx.fold(turn, shape=ctx.shape, turns=_TERMS + 1, state=state)

    def inner(index: Index) -> Any:
        exponent = convert(load_x(index), common, wide)
        start = convert(load_q(index), common, wide)
        upper, lower, end = (
            _last_terms(exponent, q, *(part.load(index) for part in parts[3 * k : 3 * k + 3]))
            for k, q in enumerate(starts(index))
        )
        half = ops.mul(exponent, _WIDE(0.5))
        even = ops.eq(half, ops.floor(half))
        end = ops.where(ops.isnan(end), _WIDE(0), end)  # powers of numbers above 1 have vanished
        mirrored = ops.sub(lower, end)
        below = ops.add(upper, ops.where(even, mirrored, ops.neg(mirrored)))
        below = ops.where(ops.isinf(exponent), _WIDE(math.inf), below)
        below = ops.where(ops.eq(exponent, ops.floor(exponent)), below, _WIDE(math.nan))
        value = ops.where(ops.lt(start, _WIDE(0)), below, upper)
        pole = ops.logical_and(ops.le(start, _WIDE(0)), ops.eq(start, ops.floor(start)))
        value = ops.where(pole, _WIDE(math.inf), value)
        value = ops.where(ops.lt(exponent, _WIDE(1)), _WIDE(math.nan), value)
        value = ops.where(ops.eq(exponent, _WIDE(1)), _WIDE(math.inf), value)
        return convert(value, wide, out)

    return ctx.pointwise(inner)
