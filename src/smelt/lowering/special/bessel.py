"""Bessel functions, with Cephes' ranges, each of which has a Chebyshev series in `bessel_tables`.

Special values and the arguments of overflow are ATen's (``aten/src/ATen/native/Math.h``): factors are
multiplied in the same order.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from smelt.lowering.promotion import Constants, Function, Promotion, pointwise
from smelt.lowering.special import bessel_tables as tables
from smelt.lowering.special.chebyshev import chebyshev, fold, in_float64
from smelt.ops import ops

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")

# -- modified, of the first kind ---------------------------------------------------------------------------


def _modified_first(order: int, scaled: bool) -> Function:
    """``I0`` or ``I1``, or ``exp(-|x|)`` times it: one series up to 8, one in ``8 / x`` from there."""
    near_table = (tables.I0_NEAR, tables.I1_NEAR)[order]
    far_table = (tables.I0_FAR, tables.I1_FAR)[order]

    def value(c: Constants, x: Any) -> Any:
        y = ops.abs(x)
        near = chebyshev(c, fold(c, y, 0, 8), near_table)
        near = ops.mul(near, y) if order else near
        far = chebyshev(c, fold(c, ops.truediv(c(8), y), 0, 1), far_table)
        if not scaled:
            growth = ops.exp(y)
            near, far = ops.mul(growth, near), ops.mul(growth, far)
        result = ops.where(ops.le(y, c(8)), near, ops.truediv(far, ops.sqrt(y)))
        return ops.where(ops.lt(x, c(0)), ops.neg(result), result) if order else result

    return value


I0, I1 = _modified_first(0, scaled=False), _modified_first(1, scaled=False)
pointwise(aten.i0.default, I0, Promotion.INT_TO_FLOAT)
pointwise(aten.special_i1.default, I1, Promotion.INT_TO_FLOAT)
pointwise(aten.special_i0e.default, _modified_first(0, scaled=True), Promotion.INT_TO_FLOAT)
pointwise(aten.special_i1e.default, _modified_first(1, scaled=True), Promotion.INT_TO_FLOAT)
pointwise(aten.special_modified_bessel_i0.default, I0, Promotion.INT_TO_FLOAT, low=False)
pointwise(aten.special_modified_bessel_i1.default, I1, Promotion.INT_TO_FLOAT, low=False)

# -- modified, of the second kind --------------------------------------------------------------------------


def _modified_second(order: int, scaled: bool) -> Function:
    """``K0`` or ``K1``, or ``exp(x)`` times it; inf at 0, NaN below."""
    near_table = (tables.K0_NEAR, tables.K1_NEAR)[order]
    far_table = (tables.K0_FAR, tables.K1_FAR)[order]

    def value(c: Constants, x: Any) -> Any:
        series = chebyshev(c, fold(c, ops.mul(x, x), 0, 4), near_table)
        logarithm = ops.log(ops.mul(c(0.5), x))
        if order:
            near = ops.fma(logarithm, I1(c, x), ops.truediv(series, x))
        else:
            near = ops.sub(series, ops.mul(logarithm, I0(c, x)))
        far = chebyshev(c, fold(c, ops.truediv(c(2), x), 0, 1), far_table)
        if scaled:
            near = ops.mul(near, ops.exp(x))
        else:
            far = ops.mul(ops.exp(ops.neg(x)), far)
        result = ops.where(ops.le(x, c(2)), near, ops.truediv(far, ops.sqrt(x)))
        return _from_zero(c, x, c(INF), result)

    return value


def _from_zero(c: Constants, x: Any, at_zero: Any, positive: Any) -> Any:
    """``positive`` above 0, ``at_zero`` at 0 of either sign, NaN below."""
    zero = c(0)
    return ops.where(ops.lt(x, zero), c(NAN), ops.where(ops.eq(x, zero), at_zero, positive))


for _order in (0, 1):
    for _name, _scaled in (("modified_bessel_k", False), ("scaled_modified_bessel_k", True)):
        _overload = getattr(aten, f"special_{_name}{_order}").default
        pointwise(_overload, _modified_second(_order, _scaled), Promotion.INT_TO_FLOAT, low=False)

# -- of the first and second kind --------------------------------------------------------------------------


def _waves(c: Constants, x: Any, order: int) -> tuple[Any, Any]:
    """``J`` and ``Y`` for x > 5: slowly varying P and Q on cos and sin of the phase (DLMF 10.17)."""
    five_over = ops.truediv(c(5), x)
    t = fold(c, ops.mul(five_over, five_over), 0, 1)
    p = chebyshev(c, t, (tables.P0, tables.P1)[order])
    q = ops.mul(five_over, chebyshev(c, t, (tables.Q0, tables.Q1)[order]))
    phase = ops.sub(x, c((2 * order + 1) * math.pi / 4))
    sine, cosine = ops.sin(phase), ops.cos(phase)
    first = ops.sub(ops.mul(p, cosine), ops.mul(q, sine))
    second = ops.fma(p, sine, ops.mul(q, cosine))
    root = ops.sqrt(x)

    def scale(wave: Any) -> Any:
        return ops.truediv(ops.mul(wave, c(math.sqrt(2 / math.pi))), root)

    return scale(first), scale(second)


def _first_near(c: Constants, x: Any, order: int) -> Any:
    """``J`` for 0 <= x <= 5: zeros are factored out, so that the result is accurate near them."""
    square = ops.mul(x, x)
    roots = (tables.J0_ROOTS, tables.J1_ROOTS)[order]
    series = chebyshev(c, fold(c, square, 0, 25), (tables.J0_NEAR, tables.J1_NEAR)[order])
    product = ops.mul(ops.mul(ops.sub(square, c(roots[0])), ops.sub(square, c(roots[1]))), series)
    return ops.mul(x, product) if order else product


def _first_kind(order: int) -> Function:
    def value(c: Constants, x: Any) -> Any:
        y = ops.abs(x)
        result = ops.where(ops.le(y, c(5)), _first_near(c, y, order), _waves(c, y, order)[0])
        return ops.where(ops.lt(x, c(0)), ops.neg(result), result) if order else result

    return value


def _second_kind(order: int) -> Function:
    def value(c: Constants, x: Any) -> Any:
        t = fold(c, ops.mul(x, x), 0, 25)
        series = chebyshev(c, t, (tables.Y0_NEAR, tables.Y1_NEAR)[order])
        logarithm = ops.mul(ops.log(x), _first_near(c, x, order))
        two_over_pi = c(2 / math.pi)
        if order:
            pole = ops.sub(logarithm, ops.reciprocal(x))
            near = ops.fma(two_over_pi, pole, ops.mul(x, series))
        else:
            near = ops.fma(two_over_pi, logarithm, series)
        result = ops.where(ops.le(x, c(5)), near, _waves(c, x, order)[1])
        return _from_zero(c, x, c(-INF), result)

    return value


for _order in (0, 1):
    pointwise(
        getattr(aten, f"special_bessel_j{_order}").default,
        _first_kind(_order),
        Promotion.INT_TO_FLOAT,
        low=False,
    )
    pointwise(
        getattr(aten, f"special_bessel_y{_order}").default,
        in_float64(_second_kind(_order)),
        Promotion.INT_TO_FLOAT,
        low=False,
    )


def _spherical(c: Constants, x: Any) -> Any:
    """``sin(x) / x``, its Taylor series near 0 (DLMF 10.49.3)."""
    square = ops.mul(x, x)
    series = c(0)
    for k in range(6, -1, -1):
        series = ops.fma(series, square, c((-1) ** k / math.factorial(2 * k + 1)))
    far = ops.where(ops.isinf(x), c(0), ops.truediv(ops.sin(x), x))
    return ops.where(ops.lt(ops.abs(x), c(0.5)), series, far)


pointwise(aten.special_spherical_bessel_j0.default, _spherical, Promotion.INT_TO_FLOAT, low=False)
