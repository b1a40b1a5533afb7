"""Special functions: scaled erfc, the normal quantile, Airy's function, polygamma; frexp and ldexp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import broadcast_index, compute_dtype, convert, load_as
from smelt.lowering.elementwise.creation import evenly_spaced
from smelt.lowering.promotion import Constants, Number, Promotion, elementwise, named, pointwise, promote
from smelt.lowering.registry import lowers
from smelt.lowering.special import special_tables as tables
from smelt.lowering.special.chebyshev import chebyshev, fold, in_float64
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops

aten, prims = torch.ops.aten, torch.ops.prims
INT_TO_FLOAT = Promotion.INT_TO_FLOAT
INF, NAN = float("inf"), float("nan")


# -- the scaled complementary error function ---------------------------------------------------------------


def scaled_erfc(c: Constants, x: Any) -> Any:
    """``exp(x*x) erfc(x)``: one series in ``(y - 3.75) / (y + 3.75)`` for y = |x|, the reflection below 0."""
    y = ops.minimum(ops.abs(x), c(1e12))
    shift = c(3.75)
    t = ops.truediv(ops.sub(y, shift), ops.add(y, shift))
    series = chebyshev(c, t, tables.ERFCX)
    positive = ops.truediv(series, ops.fma(c(2), y, c(1)))
    positive = ops.where(ops.isinf(x), c(0), positive)
    square = ops.mul(x, x)
    negative = ops.sub(ops.mul(c(2), ops.exp(square)), positive)
    return ops.where(ops.isnan(x), x, ops.where(ops.lt(x, c(0)), negative, positive))


pointwise(aten.special_erfcx.default, scaled_erfc, INT_TO_FLOAT, low=False)

# -- the normal quantile -----------------------------------------------------------------------------------

_TAIL = math.exp(-2)


def _normal_quantile(c: Constants, p: Any) -> Any:
    """The x whose `ndtr` is p: -inf at 0, inf at 1, NaN outside of 0..1."""
    half, one = c(0.5), c(1)
    upper = ops.gt(p, half)
    near = ops.where(upper, ops.sub(one, p), p)
    u = ops.sub(p, half)
    span = (0.5 - _TAIL) ** 2
    middle = ops.mul(u, chebyshev(c, fold(c, ops.mul(u, u), 0, span), tables.NDTRI_MID))
    x = ops.sqrt(ops.mul(c(-2), ops.log(near)))
    tail = chebyshev(c, fold(c, ops.truediv(c(2), x), 0.25, 1), tables.NDTRI_TAIL)
    far = chebyshev(c, fold(c, ops.truediv(c(8), x), 0.2, 1), tables.NDTRI_FAR)
    correction = ops.truediv(ops.where(ops.lt(x, c(8)), tail, far), x)
    size = ops.sub(ops.sub(x, ops.truediv(ops.log(x), x)), correction)
    outer = ops.where(upper, size, ops.neg(size))
    value = ops.where(ops.gt(near, c(_TAIL)), middle, outer)
    value = ops.where(ops.eq(p, c(0)), c(-INF), ops.where(ops.eq(p, one), c(INF), value))
    outside = ops.logical_or(ops.lt(p, c(0)), ops.gt(p, one))
    return ops.where(outside, c(NAN), value)


pointwise(aten.special_ndtri.default, _normal_quantile, INT_TO_FLOAT, low=False)

# -- Airy's function ---------------------------------------------------------------------------------------


def _airy(c: Constants, x: Any) -> Any:
    """Airy's function Ai; 0 beyond 103.892, as in eager; NaN at the infinities."""
    y = ops.abs(x)
    root = ops.sqrt(y)
    z = ops.mul(ops.mul(c(2 / 3), y), root)
    left = ops.mul(ops.sub(x, c(tables.AIRY_ROOT)), chebyshev(c, fold(c, x, -2.5, 0), tables.AIRY_LEFT))
    decay = ops.exp(ops.neg(z))
    right = ops.mul(decay, chebyshev(c, fold(c, root, 0, 1.5), tables.AIRY_RIGHT))
    series = chebyshev(c, fold(c, ops.truediv(c(2.25), z), 0, 1), tables.AIRY_FAR)
    fourth = ops.sqrt(root)
    far = ops.truediv(ops.mul(decay, series), ops.mul(c(2 * math.sqrt(math.pi)), fourth))
    ratio = ops.truediv(c(tables.AIRY_CUT), z)
    t = fold(c, ops.mul(ratio, ratio), 0, 1)
    phase = ops.add(z, c(math.pi / 4))
    wave = ops.sub(
        ops.mul(chebyshev(c, t, tables.AIRY_F), ops.sin(phase)),
        ops.mul(ops.mul(ratio, chebyshev(c, t, tables.AIRY_G)), ops.cos(phase)),
    )
    waves = ops.truediv(wave, ops.mul(c(math.sqrt(math.pi)), fourth))
    negative = ops.where(ops.lt(x, c(-2.5)), waves, left)
    positive = ops.where(ops.gt(x, c(2.25)), far, right)
    value = ops.where(ops.lt(x, c(0)), negative, positive)
    value = ops.where(ops.gt(x, c(103.892)), c(0), value)
    return ops.where(ops.isinf(x), c(NAN), value)


pointwise(aten.special_airy_ai.default, in_float64(_airy), INT_TO_FLOAT, low=False)

# -- polygamma ---------------------------------------------------------------------------------------------

_HIGHEST_ORDER = 20
_TERMS = 10
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""B2, B4 …"""


def _power(x: Any, exponent: int) -> Any:
    """``x ** exponent`` for a positive exponent, by squaring."""
    result = None
    while True:
        if exponent & 1:
            result = x if result is None else ops.mul(result, x)
        exponent >>= 1
        if exponent == 0:
            return result
        x = ops.mul(x, x)


def _hurwitz(c: Constants, s: int, q: Any) -> Any:
    """``sum of (q + k) ** -s``, q > 0, by Euler and Maclaurin's formula from the tenth term on."""
    total = _power(ops.reciprocal(q), s)
    for k in range(1, _TERMS):
        total = ops.add(total, _power(ops.reciprocal(ops.add(q, c(k))), s))
    inverse = ops.reciprocal(ops.add(q, c(_TERMS)))
    last = _power(inverse, s)
    rest = ops.mul(last, c(0.5))
    rest = ops.add(rest, ops.mul(_power(inverse, s - 1), c(1 / (s - 1))))
    square, power, factor = ops.mul(inverse, inverse), ops.mul(last, inverse), float(s)
    for k, number in enumerate(_BERNOULLI, 1):
        rest = ops.add(rest, ops.mul(power, c(number * factor / math.factorial(2 * k))))
        power = ops.mul(power, square)
        factor *= (s + 2 * k - 1) * (s + 2 * k)
    return ops.add(total, rest)


def _cotangent_derivative(order: int) -> list[float]:
    """Coefficients of the polynomial in ``cot(pi x)`` that is pi times its derivative of that order by x."""
    polynomial = [0.0, math.pi]
    for _ in range(order):
        slope = [k * factor for k, factor in enumerate(polynomial)][1:]
        polynomial = [0.0] * (len(slope) + 2)
        for k, factor in enumerate(slope):
            polynomial[k] -= math.pi * factor
            polynomial[k + 2] -= math.pi * factor
    return polynomial


def _polygamma(c: Constants, order: int, x: Any) -> Any:
    """The polygamma function in float64: below 0 by reflection (DLMF 5.15.6).

    Poles and infinities are eager's: order 1 divides by the sine there, the others test for integers.
    """
    wide = Constants(torch.float64)
    sine = ops.sin(ops.mul(x, c(math.pi)))
    x = convert(x, c.dtype, torch.float64)
    sign = 1 if order % 2 else -1
    below = ops.lt(x, wide(0))
    q = ops.where(below, ops.sub(wide(1), x), x)
    value = ops.mul(wide(sign * math.factorial(order)), _hurwitz(wide, order + 1, q))
    angle = ops.mul(ops.sub(x, ops.round(x)), wide(math.pi))
    cotangent = ops.truediv(ops.cos(angle), ops.sin(angle))
    coefficients = _cotangent_derivative(order)
    polynomial = wide(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        polynomial = ops.fma(polynomial, cotangent, wide(coefficient))
    reflected = ops.sub(ops.neg(value) if order % 2 else value, polynomial)
    value = ops.where(below, reflected, value)
    pole = ops.logical_and(ops.le(x, wide(0)), ops.eq(x, ops.floor(x)))
    at_infinity = wide(0) if order == 1 else wide(NAN)
    value = ops.where(ops.isinf(x), at_infinity, value)
    if order != 1:
        return convert(ops.where(pole, wide(sign * INF), value), torch.float64, c.dtype)
    there = ops.truediv(c(math.pi**2), ops.mul(sine, sine))
    return ops.where(pole, there, convert(value, torch.float64, c.dtype))


@lowers(aten.polygamma.default)
def polygamma(ctx: Builder, order: int, x: Tensor) -> Tensor:
    """The derivative of the digamma function of a static order."""
    if order == 0:
        return elementwise(ctx, named("digamma"), x, promotion=INT_TO_FLOAT)
    if not isinstance(order, int) or order > _HIGHEST_ORDER:
        raise Unsupported(f"polygamma of order {order}")
    return elementwise(ctx, lambda c, v: _polygamma(c, order, v), x, promotion=INT_TO_FLOAT)


# -- mantissa and exponent ---------------------------------------------------------------------------------

_LAYOUT = {torch.float32: (torch.int32, 23, 8), torch.float64: (torch.int64, 52, 11)}
"""Compute dtype → integer dtype of its width, bits of the fraction, bits of the exponent."""


@lowers(prims.frexp.default, aten.frexp.Tensor)
def frexp(ctx: Builder, x: Tensor) -> tuple[Tensor, Tensor]:
    """``x = mantissa * 2**exponent``, 1/2 <= |mantissa| < 1; 0, inf and NaN are their own mantissa."""
    compute = compute_dtype(x.dtype)
    integer, fraction, width = _LAYOUT[compute]
    bias, lift = (1 << (width - 1)) - 2, fraction + 1

    def parts(index: Index) -> tuple[Any, Any, Any, Any]:
        value = convert(x.load(index), x.dtype, compute)
        c, word = Constants(compute), Constants(integer)
        small = ops.lt(ops.abs(value), c(torch.finfo(compute).tiny))
        bits = ops.bitcast(ops.where(small, ops.mul(value, c(2.0**lift)), value), integer)
        biased = ops.bitwise_and(ops.rshift(bits, word(fraction)), word((1 << width) - 1))
        exponent = ops.sub(biased, ops.where(small, word(bias + lift), word(bias)))
        kept = ops.bitwise_and(bits, word(~(((1 << width) - 1) << fraction)))
        mantissa = ops.bitcast(ops.bitwise_or(kept, word(bias << fraction)), compute)
        odd = ops.logical_or(ops.logical_or(ops.isnan(value), ops.isinf(value)), ops.eq(value, c(0)))
        return value, mantissa, exponent, odd

    def mantissa_of(index: Index) -> Any:
        value, mantissa, _, odd = parts(index)
        return convert(ops.where(odd, value, mantissa), compute, x.dtype)

    def exponent_of(index: Index) -> Any:
        _, _, exponent, odd = parts(index)
        return convert(ops.where(odd, ops.constant(0, integer), exponent), integer, torch.int32)

    return (
        ctx.pointwise(mantissa_of, shape=x.shape, dtype=x.dtype),
        ctx.pointwise(exponent_of, shape=x.shape, dtype=torch.int32),
    )


@lowers(aten.ldexp.Tensor)
def ldexp(ctx: Builder, x: Tensor, exponent: Tensor) -> Tensor:
    """``x * 2 ** exponent``; whole exponents are split into steps that do not overflow before the result."""
    if exponent.dtype is torch.bool:
        raise Unsupported("eager's ldexp takes no boolean exponents")
    if exponent.dtype.is_floating_point:
        dtype = promote([exponent, 1.0])
        power = elementwise(ctx, lambda c, e: ops.exp2(e), exponent, dtype=dtype, shape=exponent.shape)
        return elementwise(ctx, named("mul"), x, power)
    out = ctx.dtype
    compute = compute_dtype(out)
    most = _largest_power(compute)

    def inner(index: Any) -> Any:
        value = load_as(x, broadcast_index(index, x.shape), compute)
        left = load_as(exponent, broadcast_index(index, exponent.shape), torch.int64)
        low, high = ops.constant(-most, torch.int64), ops.constant(most, torch.int64)
        for _ in range(3):  # from the smallest number to the largest
            step = ops.minimum(ops.maximum(left, low), high)
            value, left = ops.mul(value, ops.exp2(ops.to_dtype(step, compute))), ops.sub(left, step)
        return convert(value, compute, out)

    return ctx.pointwise(inner)


def _largest_power(dtype: torch.dtype) -> int:
    """The largest n such that 2**n and 2**-n are normal numbers of a floating dtype.

    >>> _largest_power(torch.float32), _largest_power(torch.float64)
    (126, 1022)
    """
    return -int(math.log2(torch.finfo(dtype).tiny))


# -- logspace ----------------------------------------------------------------------------------------------


@lowers(
    aten.logspace.default,
    aten.logspace.Tensor_Tensor,
    aten.logspace.Tensor_Scalar,
    aten.logspace.Scalar_Tensor,
)
def logspace(
    ctx: Builder,
    start: Number | Tensor,
    end: Number | Tensor,
    steps: int,
    base: float = 10.0,
    **kwargs: Any,
) -> Tensor:
    """``base`` to the powers of `linspace`."""
    if not ctx.dtype.is_floating_point:
        raise Unsupported("logspace of integers: where a power is one, the last bit of C's pow decides")
    exponents, compute = evenly_spaced(ctx, start, end, steps)

    def inner(index: Sequence[Any]) -> Any:
        value = ops.pow(ops.constant(float(base), compute), exponents(index))
        return convert(value, compute, ctx_dtype)

    ctx_dtype = ctx.dtype
    return ctx.pointwise(inner)
