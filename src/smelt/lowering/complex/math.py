"""Functions of complex numbers on their parts, with the results of C99 (Annex G) and ATen's kernels.

A function takes ``c``, which makes constants of the parts' dtype, and `Pair`s; it returns a `Pair` or a real
value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from smelt.lowering.promotion import Constants
from smelt.lowering.tensor import Pair
from smelt.ops import ops

INF, NAN = math.inf, math.nan
PairFunction = Callable[..., Any]

# -- arithmetic --------------------------------------------------------------------------------------------


def number(c: Constants, value: complex) -> Pair:
    whole = complex(value)
    return Pair(c(whole.real), c(whole.imag))


def add(c: Constants, x: Pair, y: Pair) -> Pair:
    return Pair(ops.add(x.real, y.real), ops.add(x.imaginary, y.imaginary))


def sub(c: Constants, x: Pair, y: Pair) -> Pair:
    return Pair(ops.sub(x.real, y.real), ops.sub(x.imaginary, y.imaginary))


def mul(c: Constants, x: Pair, y: Pair) -> Pair:
    """The four products; infinities are not recovered from NaN (``c10::complex``)."""
    real = ops.sub(ops.mul(x.real, y.real), ops.mul(x.imaginary, y.imaginary))
    return Pair(real, ops.add(ops.mul(x.real, y.imaginary), ops.mul(x.imaginary, y.real)))


def neg(c: Constants, x: Pair) -> Pair:
    return Pair(ops.neg(x.real), ops.neg(x.imaginary))


def conj(c: Constants, x: Pair) -> Pair:
    return Pair(x.real, ops.neg(x.imaginary))


def times_i(x: Pair) -> Pair:
    return Pair(ops.neg(x.imaginary), x.real)


def by_i(x: Pair) -> Pair:
    """``x / i``."""
    return Pair(x.imaginary, ops.neg(x.real))


def scaled(c: Constants, x: Pair, factor: Any) -> Pair:
    return Pair(ops.mul(x.real, factor), ops.mul(x.imaginary, factor))


def div(c: Constants, x: Pair, y: Pair) -> Pair:
    """Divides by the divisor's larger part first, against early overflow and underflow (Smith's method)."""
    steep = ops.logical_not(ops.ge(ops.abs(y.real), ops.abs(y.imaginary)))
    large, small = ops.where(steep, y.imaginary, y.real), ops.where(steep, y.real, y.imaginary)
    ratio = ops.truediv(small, large)
    factor = ops.truediv(c(1), ops.add(large, ops.mul(small, ratio)))
    near, cross = ops.where(steep, x.imaginary, x.real), ops.where(steep, x.real, x.imaginary)
    real = ops.mul(ops.add(near, ops.mul(cross, ratio)), factor)
    first = ops.where(steep, ops.mul(x.imaginary, ratio), x.imaginary)
    second = ops.where(steep, x.real, ops.mul(x.real, ratio))
    imaginary = ops.mul(ops.sub(first, second), factor)
    nothing = ops.eq(large, c(0))
    over_zero = [ops.truediv(part, ops.abs(y.real)) for part in x]
    return Pair(ops.where(nothing, over_zero[0], real), ops.where(nothing, over_zero[1], imaginary))


def where(condition: Any, x: Pair, y: Pair) -> Pair:
    return Pair(ops.where(condition, x.real, y.real), ops.where(condition, x.imaginary, y.imaginary))


def reciprocal(c: Constants, x: Pair) -> Pair:
    return div(c, number(c, 1), x)


def square(c: Constants, x: Pair) -> Pair:
    return mul(c, x, x)


# -- length and angle --------------------------------------------------------------------------------------


def length(c: Constants, x: Pair) -> Any:
    return ops.hypot(x.real, x.imaginary)


def angle(c: Constants, x: Pair) -> Any:
    return ops.atan2(x.imaginary, x.real)


def sgn(c: Constants, x: Pair) -> Pair:
    """``x / |x|``, and 0 for 0."""
    size = length(c, x)
    zero = ops.eq(size, c(0))
    return Pair(*(ops.where(zero, c(0), ops.truediv(part, size)) for part in x))


def polar(c: Constants, size: Any, turn: Any) -> Pair:
    return Pair(ops.mul(size, ops.cos(turn)), ops.mul(size, ops.sin(turn)))


def log_length(c: Constants, x: Pair) -> Any:
    """``log |x|``: the square's distance from 1 is exact near 1, and nothing overflows far from it."""
    real, imaginary = ops.abs(x.real), ops.abs(x.imaginary)
    big, small = ops.maximum(real, imaginary), ops.minimum(real, imaginary)
    ratio = ops.truediv(small, ops.where(ops.eq(big, c(0)), c(1), big))
    far = ops.add(ops.log(big), ops.mul(c(0.5), ops.log1p(ops.mul(ratio, ratio))))
    squares = [ops.mul(part, part) for part in (big, small)]
    left = [ops.fma(part, part, ops.neg(whole)) for part, whole in zip((big, small), squares)]
    distance = ops.add(ops.add(ops.sub(squares[0], c(1)), squares[1]), ops.add(*left))
    near = ops.mul(c(0.5), ops.log1p(distance))
    is_near = ops.logical_and(ops.gt(big, c(0.70)), ops.lt(big, c(1.4)))
    infinite = ops.logical_or(ops.isinf(real), ops.isinf(imaginary))
    return ops.where(infinite, c(INF), ops.where(is_near, near, far))


# -- exponentials and logarithms ---------------------------------------------------------------------------


def exp(c: Constants, x: Pair) -> Pair:
    """``e ** real * (cos + i sin)``; e ** -inf is 0 for every angle, and a real number has a real result."""
    nothing = ops.logical_and(ops.eq(x.real, c(-INF)), ops.logical_not(_is_finite(c, x.imaginary)))
    turn = ops.where(nothing, c(0), x.imaginary)
    half = ops.exp(ops.mul(c(0.5), x.real))  # squared at the end: the product may be finite
    large = ops.gt(x.real, c(_log_of_largest(c)))
    size = ops.where(large, half, ops.exp(x.real))
    again = ops.where(large, half, c(1))
    found = polar(c, size, turn)
    real, imaginary = (ops.mul(part, again) for part in found)
    real = _endless_stays(c, x.real, x.imaginary, real)
    return Pair(real, ops.where(ops.eq(x.imaginary, c(0)), x.imaginary, imaginary))


def _endless_stays(c: Constants, x: Any, turn: Any, value: Any) -> Any:
    """``value``, but for an infinite ``x`` an infinity with its sign, whatever the angle."""
    unknown = ops.logical_and(ops.isinf(x), ops.logical_not(_is_finite(c, turn)))
    return ops.where(ops.logical_and(unknown, ops.isnan(value)), x, value)


def _log_of_largest(c: Constants) -> float:
    return math.log(torch.finfo(c.dtype).max) - 1


def _is_finite(c: Constants, x: Any) -> Any:
    return ops.lt(ops.abs(x), c(INF))


def exp2(c: Constants, x: Pair) -> Pair:
    return exp(c, scaled(c, x, c(math.log(2))))


def expm1(c: Constants, x: Pair) -> Pair:
    """``expm1(real) * cos - 2 * sin(imaginary / 2) ** 2`` and the imaginary part of ``exp``."""
    half = ops.sin(ops.mul(c(0.5), x.imaginary))
    real = ops.mul(ops.expm1(x.real), ops.cos(x.imaginary))
    real = ops.sub(real, ops.mul(c(2), ops.mul(half, half)))
    return Pair(real, ops.mul(ops.exp(x.real), ops.sin(x.imaginary)))


def log(c: Constants, x: Pair) -> Pair:
    return Pair(log_length(c, x), angle(c, x))


def log_to(base: float) -> PairFunction:
    """The logarithm to a base."""

    def found(c: Constants, x: Pair) -> Pair:
        return scaled(c, log(c, x), c(1 / math.log(base)))

    return found


def log1p(c: Constants, x: Pair) -> Pair:
    """``log(1 + x)``; near 0 by ``|1 + x| ** 2 - 1 = real * (2 + real) + imaginary ** 2``."""
    moved = Pair(ops.add(x.real, c(1)), x.imaginary)
    square_less_one = ops.fma(x.imaginary, x.imaginary, ops.mul(x.real, ops.add(c(2), x.real)))
    near = ops.where(ops.eq(square_less_one, c(0)), x.real, ops.mul(c(0.5), ops.log1p(square_less_one)))
    small = ops.lt(length(c, x), c(0.5))
    real = ops.where(small, near, log_length(c, moved))
    return Pair(ops.where(is_nan(c, x), c(NAN), real), angle(c, moved))


def sigmoid(c: Constants, x: Pair) -> Pair:
    return reciprocal(c, add(c, number(c, 1), exp(c, neg(c, x))))


# -- roots and powers --------------------------------------------------------------------------------------


def sqrt(c: Constants, x: Pair) -> Pair:
    """The root with a real part that is not negative, of the sign of the imaginary part (C99's ``csqrt``)."""
    info = torch.finfo(c.dtype)
    exponent = 2 ** (math.frexp(info.max)[1] // 4 * 2)
    real, imaginary = ops.abs(x.real), ops.abs(x.imaginary)
    big = ops.maximum(real, imaginary)
    large, tiny = ops.gt(big, c(math.sqrt(info.max))), ops.lt(big, c(math.sqrt(info.tiny)))
    there = ops.where(large, c(1 / exponent), ops.where(tiny, c(float(exponent)), c(1)))
    back = ops.where(large, c(math.sqrt(exponent)), ops.where(tiny, c(1 / math.sqrt(exponent)), c(1)))
    a, b = ops.mul(real, there), ops.mul(imaginary, there)
    root = ops.sqrt(ops.mul(c(0.5), ops.add(a, ops.hypot(a, b))))
    other = ops.truediv(ops.mul(c(0.5), b), root)
    root, other = ops.mul(root, back), ops.mul(other, back)
    other = ops.where(ops.eq(big, c(0)), c(0), other)
    right = ops.logical_not(ops.signbit(x.real))
    endless = ops.isinf(x.imaginary)
    first = ops.where(right, root, other)
    second = ops.where(right, other, root)
    return Pair(
        ops.where(endless, c(INF), first),
        ops.copysign(ops.where(endless, c(INF), second), x.imaginary),
    )


def rsqrt(c: Constants, x: Pair) -> Pair:
    return reciprocal(c, sqrt(c, x))


def pow_(c: Constants, x: Pair, y: Pair) -> Pair:
    """``exp(y * log(x))``; 0 to a power with a positive real part is 0."""
    zero = ops.logical_and(ops.eq(x.real, c(0)), ops.eq(x.imaginary, c(0)))
    safe = where(zero, number(c, 1), x)
    found = exp(c, mul(c, y, log(c, safe)))
    none = ops.logical_and(ops.eq(y.real, c(0)), ops.eq(y.imaginary, c(0)))
    of_zero = ops.where(none, c(1), ops.where(ops.gt(y.real, c(0)), c(0), c(NAN)))
    at_zero = Pair(of_zero, ops.where(ops.isnan(of_zero), c(NAN), c(0)))
    return where(zero, at_zero, found)


def power(exponent: complex) -> PairFunction:
    """A power by a number: ATen's special exponents are products and roots."""
    special: dict[complex, PairFunction] = {
        0.5: sqrt,
        2: square,
        3: lambda c, x: reduce(lambda a, b: mul(c, a, b), [x, x, x]),
        -0.5: rsqrt,
        -1: reciprocal,
        -2: lambda c, x: reciprocal(c, square(c, x)),
    }
    found = special.get(exponent)
    return found or (lambda c, x: pow_(c, x, number(c, exponent)))


# -- hyperbolic and circular functions ---------------------------------------------------------------------


def _grown(c: Constants, x: Any, near: Any, factor: Any, odd: bool = False) -> Any:
    """``near * factor``, where ``near`` is ``cosh(x)`` or, if ``odd``, ``sinh(x)``.

    For large ``|x|`` it is ``e ** |x| / 2 * factor``, multiplied so that a finite product does not overflow.
    """
    half = ops.exp(ops.mul(c(0.5), ops.abs(x)))
    start = ops.mul(c(0.5), half)
    far = ops.mul(ops.mul(ops.copysign(start, x) if odd else start, factor), half)
    return ops.where(ops.gt(ops.abs(x), c(_log_of_largest(c))), far, ops.mul(near, factor))


def _zero_stays(c: Constants, x: Any, value: Any) -> Any:
    """``value``, but ``x`` itself if ``x`` is 0 (0 times infinity)."""
    return ops.where(ops.eq(x, c(0)), x, value)


def sinh(c: Constants, x: Pair) -> Pair:
    a, b = x
    sine, cosine = ops.sin(b), ops.cos(b)
    real = _endless_stays(c, ops.abs(a), b, _grown(c, a, ops.sinh(a), cosine, odd=True))
    return Pair(_zero_stays(c, a, real), _zero_stays(c, b, _grown(c, a, ops.cosh(a), sine)))


def cosh(c: Constants, x: Pair) -> Pair:
    a, b = x
    sine, cosine = ops.sin(b), ops.cos(b)
    real = _endless_stays(c, ops.abs(a), b, _grown(c, a, ops.cosh(a), cosine))
    imaginary = _grown(c, a, ops.sinh(a), sine, odd=True)
    nothing = ops.logical_or(ops.eq(a, c(0)), ops.eq(b, c(0)))
    return Pair(real, ops.where(nothing, ops.mul(ops.copysign(c(0), a), ops.copysign(c(1), b)), imaginary))


def tanh(c: Constants, x: Pair) -> Pair:
    """``(sinh a cosh a + i sin b cos b) / (sinh² a + cos² b)``; far out ``±1 + 2i sin 2b / e ** 2|a|``."""
    a, b = x
    sine, cosine, hyper = ops.sin(b), ops.cos(b), ops.sinh(a)
    below = ops.add(ops.mul(hyper, hyper), ops.mul(cosine, cosine))
    real = ops.truediv(ops.mul(hyper, ops.cosh(a)), below)
    imaginary = ops.truediv(ops.mul(sine, cosine), below)
    far = ops.gt(ops.abs(a), c(20))
    fading = ops.exp(ops.neg(ops.abs(a)))
    left = ops.mul(ops.mul(ops.mul(c(4), ops.mul(sine, cosine)), fading), fading)
    endless = ops.isinf(a)
    left = ops.where(endless, ops.where(ops.isnan(left), c(0), ops.copysign(c(0), left)), left)
    known = ops.logical_or(endless, _is_finite(c, b))
    real = ops.where(far, ops.where(known, ops.copysign(c(1), a), c(NAN)), real)
    return Pair(_zero_stays(c, a, real), _zero_stays(c, b, ops.where(far, left, imaginary)))


def sin(c: Constants, x: Pair) -> Pair:
    found = by_i(sinh(c, times_i(x)))
    unknown = ops.logical_and(ops.isnan(found.real), ops.isinf(found.imaginary))
    return Pair(found.real, ops.where(unknown, ops.abs(found.imaginary), found.imaginary))


def cos(c: Constants, x: Pair) -> Pair:
    return cosh(c, times_i(x))


def tan(c: Constants, x: Pair) -> Pair:
    return by_i(tanh(c, times_i(x)))


# -- their inverses (Kahan, "Branch cuts for complex elementary functions") ----------------------------------


def _roots(c: Constants, x: Pair) -> tuple[Pair, Pair]:
    """The roots of ``1 - x`` and ``1 + x``."""
    minus = sqrt(c, Pair(ops.sub(c(1), x.real), ops.neg(x.imaginary)))
    return minus, sqrt(c, Pair(ops.add(c(1), x.real), x.imaginary))


def _far(c: Constants, x: Pair) -> tuple[Any, Any, Any, Any]:
    """Whether ``x`` is so large that roots of ``1 ± x`` overflow; its direction, and ``log |2 x|``."""
    infinite = is_inf(c, x)
    found = [
        ops.where(infinite, ops.copysign(ops.where(ops.isinf(part), c(1), c(0)), part), part) for part in x
    ]
    found = [ops.where(ops.isnan(part), part, each) for each, part in zip(found, x)]
    big = ops.maximum(ops.abs(x.real), ops.abs(x.imaginary))
    large = ops.gt(big, c(math.sqrt(torch.finfo(c.dtype).max)))
    size = ops.add(log_length(c, x), c(math.log(2)))
    return ops.logical_or(infinite, large), found[0], found[1], size


def asin(c: Constants, x: Pair) -> Pair:
    minus, plus = _roots(c, x)
    across = ops.sub(ops.mul(minus.real, plus.real), ops.mul(minus.imaginary, plus.imaginary))
    real = ops.atan2(x.real, across)
    up = ops.sub(ops.mul(minus.real, plus.imaginary), ops.mul(minus.imaginary, plus.real))
    far, a, b, size = _far(c, x)
    return Pair(
        _zero_stays(c, x.real, ops.where(far, ops.atan2(a, ops.abs(b)), real)),
        ops.copysign(ops.where(far, size, ops.asinh(up)), x.imaginary),
    )


def acos(c: Constants, x: Pair) -> Pair:
    minus, plus = _roots(c, x)
    real = ops.mul(c(2), ops.atan2(minus.real, plus.real))
    up = ops.sub(ops.mul(plus.real, minus.imaginary), ops.mul(plus.imaginary, minus.real))
    far, a, b, size = _far(c, x)
    return Pair(
        _right_angle(c, x, ops.where(far, ops.atan2(ops.abs(b), a), real)),
        ops.copysign(ops.where(far, size, ops.asinh(up)), ops.neg(x.imaginary)),
    )


def _right_angle(c: Constants, x: Pair, value: Any) -> Any:
    """``value``, but a purely imaginary NaN is rotated by a right angle."""
    upright = ops.logical_and(ops.eq(x.real, c(0)), ops.isnan(x.imaginary))
    return ops.where(upright, c(math.pi / 2), value)


def acosh(c: Constants, x: Pair) -> Pair:
    minus = sqrt(c, Pair(ops.sub(x.real, c(1)), x.imaginary))
    plus = sqrt(c, Pair(ops.add(x.real, c(1)), x.imaginary))
    across = ops.add(ops.mul(minus.real, plus.real), ops.mul(minus.imaginary, plus.imaginary))
    imaginary = ops.mul(c(2), ops.atan2(minus.imaginary, plus.real))
    far, a, b, size = _far(c, x)
    turn = _right_angle(c, x, ops.where(far, ops.atan2(b, a), imaginary))
    return Pair(ops.where(far, size, ops.asinh(across)), turn)


def asinh(c: Constants, x: Pair) -> Pair:
    return by_i(asin(c, times_i(x)))


def atanh(c: Constants, x: Pair) -> Pair:
    a, b = ops.abs(x.real), x.imaginary
    less = ops.sub(c(1), a)
    below = ops.fma(less, less, ops.mul(b, b))
    near = ops.mul(c(0.25), ops.log1p(ops.truediv(ops.mul(c(4), a), below)))
    at_one = ops.mul(c(0.5), ops.sub(c(math.log(2)), ops.log(ops.hypot(less, b))))
    info = torch.finfo(c.dtype)
    near = ops.where(ops.lt(below, c(info.tiny / info.eps)), at_one, near)
    size = length(c, Pair(a, b))
    far = ops.where(ops.isinf(size), c(0), ops.truediv(ops.truediv(a, size), size))
    is_far = ops.gt(size, c(math.sqrt(info.max) / 4))
    real = ops.copysign(ops.where(is_far, far, near), x.real)
    across = ops.fma(ops.neg(b), b, ops.mul(less, ops.add(c(1), a)))
    turn = ops.mul(c(0.5), ops.atan2(ops.mul(c(2), b), across))
    at_end = ops.where(ops.isnan(b), b, ops.copysign(c(math.pi / 2), b))
    return Pair(_zero_stays(c, x.real, real), ops.where(is_far, at_end, turn))


def atan(c: Constants, x: Pair) -> Pair:
    return by_i(atanh(c, times_i(x)))


# -- tests -------------------------------------------------------------------------------------------------


def eq(c: Constants, x: Pair, y: Pair) -> Any:
    return ops.logical_and(ops.eq(x.real, y.real), ops.eq(x.imaginary, y.imaginary))


def ne(c: Constants, x: Pair, y: Pair) -> Any:
    return ops.logical_or(ops.ne(x.real, y.real), ops.ne(x.imaginary, y.imaginary))


def truth(c: Constants, x: Pair) -> Any:
    return ops.logical_or(ops.ne(x.real, c(0)), ops.ne(x.imaginary, c(0)))


def is_nan(c: Constants, x: Pair) -> Any:
    return ops.logical_or(ops.isnan(x.real), ops.isnan(x.imaginary))


def is_inf(c: Constants, x: Pair) -> Any:
    return ops.logical_or(ops.isinf(x.real), ops.isinf(x.imaginary))


def is_finite(c: Constants, x: Pair) -> Any:
    return ops.logical_and(_is_finite(c, x.real), _is_finite(c, x.imaginary))
