"""Elementwise rows that a target lacks, as loop functions of rows that it has.

A dialect's `ArrayDialect.elementwise` returns ``NotImplemented`` for a row; the function of that row replaces
it. Each function uses `ops` alone, on values that have a ``dtype``. Error, gamma and arc functions are in
`smelt.mlir.arrays.special`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from smelt.mlir.arrays.special import SPECIAL
from smelt.ops import ops

Value = Any


def _c(x: Value, number: float | int | bool) -> Value:
    """A number in the dtype of ``x``."""
    return ops.constant(number, x.dtype)


def _bits(x: Value) -> Value:
    return ops.bitcast(x, _WORDS[x.dtype])


_WORDS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}

# -- division ---------------------------------------------------------------------------------------


def fmod(x: Value, y: Value) -> Value:
    """``x - y * trunc(x / y)``."""
    if x.dtype.is_floating_point:
        return ops.sub(x, ops.mul(ops.trunc(ops.truediv(x, y)), y))
    return ops.sub(x, ops.mul(ops.truncdiv(x, y), y))


def _adjusts(rest: Value, y: Value) -> Value:
    """Whether a remainder with the sign of the dividend needs correction to the divisor's sign."""
    zero = _c(y, 0)
    signs = ops.ne(ops.lt(rest, zero), ops.lt(y, zero))
    return ops.logical_and(ops.ne(rest, zero), signs)


def remainder(x: Value, y: Value) -> Value:
    rest = ops.fmod(x, y)
    return ops.where(_adjusts(rest, y), ops.add(rest, y), rest)


def floordiv(x: Value, y: Value) -> Value:
    """Floor division as in ATen: floats use the remainder, so that ``x - y * floordiv(x, y)`` is exact."""
    if not x.dtype.is_floating_point:
        quotient, rest = ops.truncdiv(x, y), ops.fmod(x, y)
        return ops.where(_adjusts(rest, y), ops.sub(quotient, _c(x, 1)), quotient)
    zero, one = _c(x, 0.0), _c(x, 1.0)
    rest = ops.fmod(x, y)
    quotient = ops.truediv(ops.sub(x, rest), y)
    quotient = ops.where(_adjusts(rest, y), ops.sub(quotient, one), quotient)
    whole = ops.floor(quotient)
    whole = ops.where(ops.gt(ops.sub(quotient, whole), _c(x, 0.5)), ops.add(whole, one), whole)
    plain = ops.truediv(x, y)
    signed_zero = ops.mul(zero, plain)
    result = ops.where(ops.ne(quotient, zero), whole, signed_zero)
    return ops.where(ops.eq(y, zero), plain, result)


# -- signs and rounding -----------------------------------------------------------------------------


def sign(x: Value) -> Value:
    zero, one = _c(x, 0), _c(x, 1)
    if x.dtype is torch.uint8:
        return ops.where(ops.eq(x, zero), zero, one)
    negative = ops.where(ops.lt(x, zero), _c(x, -1), zero)
    return ops.where(ops.gt(x, zero), one, negative)


def trunc(x: Value) -> Value:
    return ops.where(ops.signbit(x), ops.ceil(x), ops.floor(x))


def round_(x: Value) -> Value:
    """Rounds to the nearest integer, ties to even; negative numbers that round to 0 give -0."""
    low = ops.floor(x)
    gap = ops.sub(x, low)
    half, one = _c(x, 0.5), _c(x, 1.0)
    doubled = ops.mul(ops.floor(ops.mul(low, half)), _c(x, 2.0))
    up = ops.logical_or(ops.gt(gap, half), ops.logical_and(ops.eq(gap, half), ops.ne(doubled, low)))
    near = ops.where(up, ops.add(low, one), low)
    return ops.where(ops.lt(x, _c(x, 0.0)), ops.neg(ops.abs(near)), near)


def signbit(x: Value) -> Value:
    bits = _bits(x)
    return ops.lt(bits, _c(bits, 0))


def copysign(x: Value, y: Value) -> Value:
    size = ops.abs(x)
    return ops.where(ops.signbit(y), ops.neg(size), size)


def isnan(x: Value) -> Value:
    return ops.ne(x, x)


def isinf(x: Value) -> Value:
    return ops.eq(ops.abs(x), _c(x, math.inf))


def fmax(x: Value, y: Value) -> Value:
    return ops.where(ops.isnan(x), y, ops.where(ops.isnan(y), x, ops.maximum(x, y)))


def fmin(x: Value, y: Value) -> Value:
    return ops.where(ops.isnan(x), y, ops.where(ops.isnan(y), x, ops.minimum(x, y)))


def nextafter(x: Value, y: Value) -> Value:
    bits = _bits(x)
    word = bits.dtype
    one = ops.constant(1, word)
    towards_zero = ops.ne(ops.lt(x, y), ops.gt(x, _c(x, 0.0)))
    stepped = ops.bitcast(ops.where(towards_zero, ops.sub(bits, one), ops.add(bits, one)), x.dtype)
    least = ops.bitcast(one, x.dtype)
    from_zero = ops.copysign(least, y)
    result = ops.where(ops.eq(x, _c(x, 0.0)), from_zero, stepped)
    result = ops.where(ops.eq(x, y), y, result)
    missing = ops.logical_or(ops.isnan(x), ops.isnan(y))
    return ops.where(missing, _c(x, math.nan), result)


# -- powers and logarithms --------------------------------------------------------------------------


def rsqrt(x: Value) -> Value:
    return ops.truediv(_c(x, 1.0), ops.sqrt(x))


def reciprocal(x: Value) -> Value:
    return ops.truediv(_c(x, 1.0), x)


def exp2(x: Value) -> Value:
    return ops.pow(_c(x, 2.0), x)


def expm1(x: Value) -> Value:
    """``exp(x) - 1``; near 0 by the hyperbolic tangent, which is accurate there."""
    half = ops.tanh(ops.mul(x, _c(x, 0.5)))
    near = ops.truediv(ops.mul(_c(x, 2.0), half), ops.sub(_c(x, 1.0), half))
    return ops.where(ops.lt(ops.abs(x), _c(x, 1.0)), near, ops.sub(ops.exp(x), _c(x, 1.0)))


def log1p(x: Value) -> Value:
    """``log(u) * x / (u - 1)`` with u = 1 + x; the rounding errors of u cancel (Kahan)."""
    one = _c(x, 1.0)
    u = ops.add(one, x)
    gap = ops.sub(u, one)
    whole = ops.eq(gap, _c(x, 0.0))
    corrected = ops.mul(ops.log(u), ops.truediv(x, ops.where(whole, one, gap)))
    large = ops.eq(ops.abs(u), _c(x, math.inf))
    return ops.where(whole, x, ops.where(large, ops.log(u), corrected))


def log2(x: Value) -> Value:
    return ops.mul(ops.log(x), _c(x, 1.0 / math.log(2.0)))


def log10(x: Value) -> Value:
    return ops.truediv(ops.log(x), _c(x, math.log(10.0)))


def hypot(x: Value, y: Value) -> Value:
    x, y = ops.abs(x), ops.abs(y)
    large, small = ops.maximum(x, y), ops.minimum(x, y)
    zero, one, inf = _c(x, 0.0), _c(x, 1.0), _c(x, math.inf)
    ratio = ops.truediv(small, ops.where(ops.eq(large, zero), one, large))
    length = ops.mul(large, ops.sqrt(ops.add(one, ops.mul(ratio, ratio))))
    endless = ops.logical_or(ops.eq(x, inf), ops.eq(y, inf))
    return ops.where(endless, inf, length)


def int_pow(x: Value, y: Value) -> Value:
    """Integer power by squaring, one bit of the exponent at a time; negative exponents as in ATen."""
    zero, one = _c(x, 0), _c(x, 1)
    result, square = one, x
    bits = torch.iinfo(x.dtype).bits
    for bit in range(bits - (x.dtype is not torch.uint8)):
        chosen = ops.ne(ops.bitwise_and(ops.rshift(y, _c(x, bit)), one), zero)
        result = ops.where(chosen, ops.mul(result, square), result)
        square = ops.mul(square, square)
    if x.dtype is torch.uint8:
        return result
    minus = _c(x, -1)
    odd = ops.ne(ops.bitwise_and(y, one), zero)
    inverse = ops.where(ops.eq(x, minus), ops.where(odd, minus, one), zero)
    inverse = ops.where(ops.eq(x, one), one, inverse)
    return ops.where(ops.lt(y, zero), inverse, result)


def fma(x: Value, y: Value, z: Value) -> Value:
    """Multiply-add: float32 in float64, rounded once except for ties; float64 as product and sum."""
    if x.dtype is not torch.float64:
        wide = [ops.to_dtype(each, torch.float64) for each in (x, y, z)]
        return ops.to_dtype(ops.add(ops.mul(wide[0], wide[1]), wide[2]), x.dtype)
    return ops.add(ops.mul(x, y), z)


# -- trigonometry -----------------------------------------------------------------------------------


def tan(x: Value) -> Value:
    return ops.truediv(ops.sin(x), ops.cos(x))


def asin(x: Value) -> Value:
    one = _c(x, 1.0)
    return ops.atan2(x, ops.sqrt(ops.mul(ops.sub(one, x), ops.add(one, x))))


def acos(x: Value) -> Value:
    one = _c(x, 1.0)
    angle = ops.atan2(ops.sqrt(ops.sub(one, x)), ops.sqrt(ops.add(one, x)))
    return ops.mul(_c(x, 2.0), angle)


def atan(x: Value) -> Value:
    return ops.atan2(x, _c(x, 1.0))


def _half_power(x: Value) -> tuple[Value, Value]:
    """``exp(x / 2)`` and its reciprocal. Their squares overflow only if the result does."""
    half = ops.exp(ops.mul(x, _c(x, 0.5)))
    return half, ops.truediv(_c(x, 1.0), half)


def sinh(x: Value) -> Value:
    size, half = ops.abs(x), _c(x, 0.5)
    e = ops.expm1(size)
    near = ops.mul(half, ops.add(e, ops.truediv(e, ops.add(e, _c(x, 1.0)))))
    power, _ = _half_power(size)
    far = ops.mul(ops.mul(half, power), power)
    return ops.copysign(ops.where(ops.lt(size, _c(x, 20.0)), near, far), x)


def cosh(x: Value) -> Value:
    half = _c(x, 0.5)
    power, inverse = _half_power(ops.abs(x))
    return ops.add(ops.mul(ops.mul(half, power), power), ops.mul(ops.mul(half, inverse), inverse))


def _large(x: Value) -> Value:
    """Whether ``x`` is so large that its square may overflow and adding 1 to it has no effect."""
    return ops.gt(x, _c(x, 1e8 if x.dtype is torch.float64 else 1e4))


def asinh(x: Value) -> Value:
    size, one = ops.abs(x), _c(x, 1.0)
    large = _large(size)
    safe = ops.where(large, one, size)
    square = ops.mul(safe, safe)
    root = ops.add(one, ops.sqrt(ops.add(square, one)))
    near = ops.log1p(ops.add(safe, ops.truediv(square, root)))
    far = ops.add(ops.log(size), _c(x, math.log(2.0)))
    return ops.copysign(ops.where(large, far, near), x)


def acosh(x: Value) -> Value:
    one = _c(x, 1.0)
    large = _large(x)
    gap = ops.sub(ops.where(large, one, x), one)
    root = ops.sqrt(ops.mul(gap, ops.add(gap, _c(x, 2.0))))
    far = ops.add(ops.log(x), _c(x, math.log(2.0)))
    return ops.where(large, far, ops.log1p(ops.add(gap, root)))


def atanh(x: Value) -> Value:
    size, one = ops.abs(x), _c(x, 1.0)
    doubled = ops.truediv(ops.mul(_c(x, 2.0), size), ops.sub(one, size))
    return ops.copysign(ops.mul(_c(x, 0.5), ops.log1p(doubled)), x)


def ndtr(x: Value) -> Value:
    return ops.mul(_c(x, 0.5), ops.add(_c(x, 1.0), ops.erf(ops.mul(x, _c(x, math.sqrt(0.5))))))


def sigmoid(x: Value) -> Value:
    one = _c(x, 1.0)
    return ops.truediv(one, ops.add(one, ops.exp(ops.neg(x))))


# -- random bits ------------------------------------------------------------------------------------

_LOW = 0xFFFFFFFF


def philox(key: Value, low: Value, high: Value) -> Value:
    """Words 0 and 1 of Philox4x32-10 (Salmon et al. 2011) at counter (low, high) under ``key``."""

    def number(value: int) -> Value:
        return ops.constant(value, torch.int64)

    def lower(x: Value) -> Value:
        return ops.bitwise_and(x, number(_LOW))

    def upper(x: Value) -> Value:
        return lower(ops.rshift(x, number(32)))

    words = [lower(low), upper(low), lower(high), upper(high)]
    keys = [lower(key), upper(key)]
    for _ in range(10):
        first = ops.mul(words[0], number(0xD2511F53))
        second = ops.mul(words[2], number(0xCD9E8D57))
        words = [
            ops.bitwise_xor(ops.bitwise_xor(upper(second), words[1]), keys[0]),
            lower(second),
            ops.bitwise_xor(ops.bitwise_xor(upper(first), words[3]), keys[1]),
            lower(first),
        ]
        keys = [lower(ops.add(keys[0], number(0x9E3779B9))), lower(ops.add(keys[1], number(0xBB67AE85)))]
    return ops.bitwise_or(words[0], ops.lshift(words[1], number(32)))


DECOMPOSED: dict[str, Callable[..., Value]] = {
    each.__name__.rstrip("_"): each
    for each in (
        *(fmod, remainder, floordiv, sign, trunc, round_, signbit, copysign, isnan, isinf, fmax, fmin),
        *(nextafter, rsqrt, reciprocal, exp2, expm1, log1p, log2, log10, hypot, int_pow, fma),
        *(tan, asin, acos, atan, sinh, cosh, asinh, acosh, atanh, ndtr, sigmoid, philox),
    )
} | SPECIAL
"""Row of `smelt.ops.table.TABLE` → function of its arguments, to be run under the `ops` handler."""
