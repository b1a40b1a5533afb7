"""Error, gamma and arc functions as loop functions of simpler rows, by Chebyshev and asymptotic series."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.mlir.arrays.special_tables import ATAN, ERF, ERFC, LGAMMA
from smelt.ops import ops

Value = Any


def _c(x: Value, number: float) -> Value:
    """A number in the dtype of ``x``."""
    return ops.constant(number, x.dtype)


def _series(t: Value, coefficients: Sequence[float]) -> Value:
    """``sum of coefficients[k] T_k(t)``, t in -1..1 (Clenshaw), without terms below the dtype's precision."""
    least = torch.finfo(t.dtype).eps / 8 * max(map(abs, coefficients))
    count = max(k for k, coefficient in enumerate(coefficients) if abs(coefficient) > least) + 1
    twice = ops.add(t, t)
    value, previous = _c(t, coefficients[count - 1]), _c(t, 0.0)
    for coefficient in reversed(coefficients[1 : count - 1]):
        following = ops.sub(ops.add(ops.mul(twice, value), _c(t, coefficient)), previous)
        value, previous = following, value
    return ops.sub(ops.add(ops.mul(t, value), _c(t, coefficients[0])), previous)


def _polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """``coefficients[0] + coefficients[1] * x + …``"""
    value = _c(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = ops.add(ops.mul(value, x), _c(x, coefficient))
    return value


# -- error functions -----------------------------------------------------------------------------------


def _erf_near(x: Value) -> Value:
    """erf for |x| up to 1."""
    square = ops.minimum(ops.mul(x, x), _c(x, 1.0))
    return ops.mul(x, _series(ops.sub(ops.add(square, square), _c(x, 1.0)), ERF))


def _erfc_far(x: Value) -> Value:
    """erfc for x from 0.5 on. ``exp(-x²)`` splits x² into two parts; the first part is exact."""
    x = ops.maximum(x, _c(x, 0.5))
    scale = 16.0
    coarse = ops.mul(ops.floor(ops.mul(x, _c(x, scale))), _c(x, 1.0 / scale))
    rest = ops.mul(ops.sub(coarse, x), ops.add(coarse, x))
    decay = ops.mul(ops.exp(ops.neg(ops.mul(coarse, coarse))), ops.exp(rest))
    u = ops.truediv(_c(x, 2.0), ops.add(x, _c(x, 2.0)))
    series = _series(ops.sub(ops.mul(u, _c(x, 2.5)), _c(x, 1.0)), ERFC)
    value = ops.mul(ops.mul(u, series), decay)
    endless = ops.gt(x, _c(x, 40.0))
    return ops.where(endless, _c(x, 0.0), value)


def erf(x: Value) -> Value:
    size, one = ops.abs(x), _c(x, 1.0)
    far = ops.copysign(ops.sub(one, _erfc_far(size)), x)
    return ops.where(ops.gt(size, one), far, _erf_near(x))


def erfc(x: Value) -> Value:
    far = _erfc_far(ops.abs(x))
    far = ops.where(ops.lt(x, _c(x, 0.0)), ops.sub(_c(x, 2.0), far), far)
    near = ops.sub(_c(x, 1.0), _erf_near(x))
    return ops.where(ops.gt(ops.abs(x), _c(x, 0.5)), far, near)


def erfinv(x: Value) -> Value:
    """Inverse of erf: Winitzki's approximation (2008), then Halley's steps on erf (erfc near the ends)."""
    size, one = ops.abs(x), _c(x, 1.0)
    inside = ops.minimum(size, _c(x, 1.0 - torch.finfo(x.dtype).eps / 2))
    a = 0.147
    half_log = ops.mul(ops.log1p(ops.neg(ops.mul(inside, inside))), _c(x, 0.5))
    lead = ops.add(half_log, _c(x, 2.0 / (math.pi * a)))
    under = ops.sub(ops.mul(lead, lead), ops.mul(half_log, _c(x, 2.0 / a)))
    y = ops.sqrt(ops.maximum(ops.sub(ops.sqrt(under), lead), _c(x, 0.0)))
    complement = ops.sub(one, inside)
    near = ops.lt(inside, _c(x, 0.7))
    for _ in range(2):
        gap = ops.where(near, ops.sub(ops.erf(y), inside), ops.sub(complement, ops.erfc(y)))
        step = ops.mul(ops.mul(gap, ops.exp(ops.mul(y, y))), _c(x, math.sqrt(math.pi) / 2))
        y = ops.sub(y, ops.truediv(step, ops.add(one, ops.mul(y, step))))
    y = ops.where(ops.eq(size, one), _c(x, math.inf), y)
    y = ops.where(ops.gt(size, one), _c(x, math.nan), y)
    return ops.copysign(ops.where(ops.isnan(x), x, y), x)


# -- gamma functions -----------------------------------------------------------------------------------

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_SHIFTS = 6


def _from_half(x: Value) -> tuple[Value, Value, Value]:
    """Whether x is below 1/2; 1 - x if so, else x; and x minus the nearest integer."""
    below = ops.lt(x, _c(x, 0.5))
    return below, ops.where(below, ops.sub(_c(x, 1.0), x), x), ops.sub(x, ops.round(x))


def _lgamma_large(x: Value) -> Value:
    """Stirling's series, for x from 8 on."""
    inverse = ops.truediv(_c(x, 1.0), x)
    tail = ops.mul(_polynomial(ops.mul(inverse, inverse), _STIRLING), inverse)
    main = ops.sub(ops.mul(ops.sub(x, _c(x, 0.5)), ops.sub(ops.log(x), _c(x, 1.0))), _c(x, 0.5))
    return ops.add(ops.add(main, _c(x, 0.5 * math.log(2 * math.pi))), tail)


def _lgamma_small(x: Value) -> Value:
    """lgamma for x in 1/2..8: ``gamma(x + 1) = x * gamma(x)`` shifts x to the series about 2."""
    one, product = _c(x, 1.0), _c(x, 1.0)
    place = x
    for _ in range(_SHIFTS):
        above = ops.ge(place, _c(x, 2.5))
        place = ops.where(above, ops.sub(place, one), place)
        product = ops.where(above, ops.mul(product, place), product)
    below = ops.lt(x, _c(x, 1.5))
    z = ops.sub(ops.where(below, ops.add(x, one), place), _c(x, 2.0))
    near = ops.mul(z, _series(ops.add(z, z), LGAMMA))
    logarithm = ops.log(ops.where(below, x, product))
    return ops.where(below, ops.sub(near, logarithm), ops.add(near, logarithm))


def lgamma(x: Value) -> Value:
    """Logarithm of gamma's size; reflected below 1/2: ``gamma(x) gamma(1 - x) = pi / sin(pi x)``."""
    below, z, fraction = _from_half(x)
    large = ops.ge(z, _c(x, 8.0))
    small = _lgamma_small(ops.where(large, _c(x, 2.0), z))
    value = ops.where(large, _lgamma_large(ops.maximum(z, _c(x, 8.0))), small)
    sine = ops.sin(ops.mul(ops.abs(fraction), _c(x, math.pi)))
    reflected = ops.sub(ops.sub(_c(x, math.log(math.pi)), ops.log(sine)), value)
    value = ops.where(below, reflected, value)
    return ops.where(ops.isinf(x), _c(x, math.inf), value)


def digamma(x: Value) -> Value:
    """The derivative of lgamma: shifted to at least 10 by ``digamma(x + 1) = digamma(x) + 1 / x``, then the
    asymptotic series."""
    below, z, fraction = _from_half(x)
    one, total = _c(x, 1.0), _c(x, 0.0)
    for _ in range(10):
        low = ops.lt(z, _c(x, 10.0))
        total = ops.where(low, ops.sub(total, ops.truediv(one, z)), total)
        z = ops.where(low, ops.add(z, one), z)
    inverse = ops.truediv(one, z)
    square = ops.mul(inverse, inverse)
    tail = ops.mul(_polynomial(square, _DIGAMMA), square)
    value = ops.sub(ops.sub(ops.log(z), ops.mul(inverse, _c(x, 0.5))), tail)
    value = ops.add(value, total)
    cotangent = ops.truediv(_c(x, math.pi), ops.tan(ops.mul(fraction, _c(x, math.pi))))
    value = ops.where(below, ops.sub(value, cotangent), value)
    zero = _c(x, 0.0)
    pole = ops.logical_and(ops.eq(fraction, zero), ops.lt(x, zero))
    value = ops.where(pole, _c(x, math.nan), value)
    return ops.where(ops.eq(x, zero), ops.copysign(_c(x, math.inf), ops.neg(x)), value)


# -- arc tangent ---------------------------------------------------------------------------------------


def atan2(y: Value, x: Value) -> Value:
    across, up = ops.abs(x), ops.abs(y)
    large, small = ops.maximum(across, up), ops.minimum(across, up)
    zero, one, inf = _c(x, 0.0), _c(x, 1.0), _c(x, math.inf)
    ratio = ops.truediv(small, ops.where(ops.eq(large, zero), one, large))
    ratio = ops.where(ops.eq(small, inf), one, ratio)
    square = ops.mul(ratio, ratio)
    angle = ops.mul(ratio, _series(ops.sub(ops.add(square, square), one), ATAN))
    angle = ops.where(ops.gt(up, across), ops.sub(_c(x, math.pi / 2), angle), angle)
    angle = ops.where(ops.signbit(x), ops.sub(_c(x, math.pi), angle), angle)
    return ops.copysign(angle, y)


SPECIAL: dict[str, Callable[..., Value]] = {
    each.__name__: each for each in (erf, erfc, erfinv, lgamma, digamma, atan2)
}
"""Row of `smelt.ops.table.TABLE` → function of its arguments, to be run under the `ops` handler."""
