"""The incomplete gamma functions P and Q, in float64.

Three ways, as in ATen's ``calc_igamma`` (``aten/src/ATen/native/Math.h``): a power series, Legendre's
continued fraction (the even part of DLMF 8.9.2), and, for a above 100 and x near a, Temme's uniform expansion
(DLMF 8.12.7); and for small x a series of Q itself. Series and fraction are a fold of a fixed length: outside
Temme's range no point needs more than 108 terms of the series (x = 0.7 a, a to infinity) or 95 of the
fraction (a = 0, x = 1.1) for the last digit of float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from sympy import Expr

from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert
from smelt.lowering.promotion import Constants, Operand, loader, promote
from smelt.lowering.registry import lowers
from smelt.lowering.special.chebyshev import chebyshev
from smelt.lowering.special.special import scaled_erfc
from smelt.lowering.special.special_tables import TEMME, TEMME_REACH
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops

aten = torch.ops.aten

_TURNS = 112
_LARGE, _NEAR, _SPLIT = 100.0, 0.3, 1.1
_STIRLING = tuple(
    number / (2 * j * (2 * j - 1))
    for j, number in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510), 1)
)
_C = Constants(torch.float64)
INF, NAN = math.inf, math.nan

# -- parts -------------------------------------------------------------------------------------------------


def _distance(a: Any, x: Any) -> tuple[Any, Any]:
    """``mu = x/a - 1`` and ``mu - log(x/a)``, without cancellation near 0: by ``r = mu / (2 + mu)``."""
    mu = ops.truediv(ops.sub(x, a), a)
    r = ops.truediv(mu, ops.add(_C(2), mu))
    square = ops.mul(r, r)
    series = _C(0)
    for k in range(17, -1, -1):
        series = ops.fma(series, square, _C(1 / (2 * k + 3)))
    near = ops.sub(ops.mul(mu, r), ops.mul(ops.mul(_C(2), ops.mul(square, r)), series))
    far = ops.sub(mu, ops.log(ops.truediv(x, a)))
    return mu, ops.where(ops.lt(ops.abs(mu), _C(0.5)), near, far)


def _front(a: Any, x: Any) -> Any:
    """``x**a exp(-x) / gamma(a + 1)``: by Stirling's formula for a from 10 on.

    ``(x/a)**a exp(a - x)`` is the square of its root (nothing overflows for a below 300), so that no large
    exponent loses digits far from a; from x = 3000 on it is 0.
    """
    mu, gap = _distance(a, x)
    small = ops.lt(a, _C(10))
    bounded = ops.minimum(x, _C(3000))
    base = ops.where(small, bounded, ops.truediv(bounded, a))
    half = ops.mul(_C(0.5), a)
    power = ops.pow(base, ops.where(small, a, half))
    decay = ops.exp(ops.mul(_C(0.5), ops.where(small, ops.neg(bounded), ops.sub(a, bounded))))
    root = ops.mul(decay, power)
    inverse = ops.reciprocal(a)
    square, correction = ops.mul(inverse, inverse), _C(0)
    for number in reversed(_STIRLING):
        correction = ops.fma(correction, square, _C(number))
    scale = ops.exp(ops.neg(ops.mul(correction, inverse)))
    scale = ops.truediv(scale, ops.sqrt(ops.mul(_C(2 * math.pi), a)))
    far = ops.logical_and(ops.ge(ops.abs(mu), _C(0.5)), ops.lt(a, _C(300)))
    large = ops.where(far, ops.mul(root, root), ops.exp(ops.neg(ops.mul(a, gap))))
    factorial = ops.exp(ops.neg(ops.lgamma(ops.add(a, _C(1)))))
    return ops.where(small, ops.mul(ops.mul(root, factorial), decay), ops.mul(large, scale))


def _uniform(a: Any, x: Any) -> tuple[Any, Any]:
    """Temme's expansion of P and Q, with ``exp(-a eta**2 / 2)`` taken out of both of its terms."""
    mu, gap = _distance(a, x)
    eta = ops.copysign(ops.sqrt(ops.mul(_C(2), gap)), mu)
    t = ops.mul(eta, _C(1 / TEMME_REACH))
    inverse, total = ops.reciprocal(a), _C(0)
    for table in reversed(TEMME):
        total = ops.fma(total, inverse, chebyshev(_C, t, table))
    decay = ops.exp(ops.neg(ops.mul(a, gap)))
    rest = ops.truediv(total, ops.sqrt(ops.mul(_C(2 * math.pi), a)))
    z = ops.sqrt(ops.mul(a, gap))
    tail = ops.mul(_C(0.5), scaled_erfc(_C, z))
    # The smaller of the two, which is accurate, and the other.
    upper = ops.gt(mu, _C(0))
    small = ops.mul(decay, ops.add(tail, ops.where(upper, rest, ops.neg(rest))))
    large = ops.sub(_C(1), small)
    return ops.where(upper, large, small), ops.where(upper, small, large)


def _is_fraction(a: Any, x: Any) -> Any:
    return ops.logical_and(ops.gt(x, _C(_SPLIT)), ops.ge(x, a))


def _is_direct(a: Any, x: Any) -> Any:
    """Whether Q is not near 1 although x is small: then it is not computed as 1 - P."""
    low = ops.ge(ops.truediv(_C(-0.4), ops.log(x)), a)
    high = ops.ge(ops.mul(x, _C(1.1)), a)
    direct = ops.where(ops.le(x, _C(0.5)), low, high)
    return ops.logical_and(direct, ops.le(x, _C(_SPLIT)))


# -- the fold ----------------------------------------------------------------------------------------------


def _terms(
    ctx: Builder, load: Callable[[Index], tuple[Any, Any]], direct: bool
) -> Callable[[Index], tuple[Any, Any]]:
    """The series' sum and the fraction's value. ``direct``: whether Q's series replaces P's."""

    def turn(index: Index, number: Expr, state: Any) -> list[Any]:
        a, x = load(index)
        term, total, fraction = state
        n = ops.add(ops.index_expr(number, torch.float64), _C(1))
        further = ops.add(a, n)
        powers = ops.mul(term, ops.truediv(x, further))
        if direct:
            other = ops.mul(term, ops.truediv(ops.neg(x), n))
            chosen = _is_direct(a, x)
            term = ops.where(chosen, other, powers)
            total = ops.add(total, ops.where(chosen, ops.truediv(other, further), powers))
        else:
            term, total = powers, ops.add(total, powers)
        # The fraction is evaluated from its end: forwards its convergents would lose a digit.
        k = ops.sub(_C(_TURNS + 1), n)
        below = ops.sub(ops.fma(_C(2), k, ops.add(ops.sub(x, a), _C(1))), fraction)
        return [term, total, ops.truediv(ops.mul(k, ops.sub(k, a)), below)]

    first = 0.0 if direct else 1.0
    state = [(torch.float64, 1.0), (torch.float64, first), (torch.float64, 0.0)]
    parts = ctx.fold(turn, shape=ctx.shape, turns=_TURNS, state=state)

    def found(index: Index) -> tuple[Any, Any]:
        a, x = load(index)
        below = ops.sub(ops.add(ops.sub(x, a), _C(1)), parts[2].load(index))
        return parts[1].load(index), ops.reciprocal(below)

    return found


# -- the functions -----------------------------------------------------------------------------------------


def _row(ctx: Builder, first: Operand, second: Operand, upper: bool) -> Tensor:
    common, out = promote([first, second]), ctx.dtype
    loads = [loader(operand, common, common) for operand in (first, second)]

    def load(index: Index) -> tuple[Any, Any]:
        a, x = (convert(each(index), common, torch.float64) for each in loads)
        return a, x

    terms = _terms(ctx, load, direct=upper)

    def inner(index: Index) -> Any:
        a, x = load(index)
        total, fraction = terms(index)
        front = _front(a, x)
        tail = ops.mul(ops.mul(a, front), fraction)
        tail = ops.where(ops.eq(front, _C(0)), _C(0), tail)
        if upper:
            logarithm = ops.sub(ops.mul(a, ops.log(x)), ops.lgamma(ops.add(a, _C(1))))
            direct = ops.neg(ops.fma(ops.mul(a, ops.exp(logarithm)), total, ops.expm1(logarithm)))
            beside = ops.where(
                _is_direct(a, x), direct, ops.sub(_C(1), ops.mul(front, ops.add(total, _C(1))))
            )
        else:
            beside, tail = ops.mul(front, total), ops.sub(_C(1), tail)
        value = ops.where(_is_fraction(a, x), tail, beside)
        near = ops.lt(ops.abs(ops.sub(x, a)), ops.mul(_C(_NEAR), a))
        uniform = ops.logical_and(ops.gt(a, _C(_LARGE)), near)
        value = ops.where(uniform, _uniform(a, x)[int(upper)], value)
        return convert(_at_the_ends(a, x, value, upper), torch.float64, out)

    return ctx.pointwise(inner)


def _at_the_ends(a: Any, x: Any, value: Any, upper: bool) -> Any:
    """Results at 0, infinity and NaN, tested in eager's order."""
    zero = _C(0)
    none, all_of_it = (_C(1), zero) if upper else (zero, _C(1))
    lost = ops.logical_or(ops.isnan(a), ops.isnan(x))
    value = ops.where(lost, _C(NAN), value)
    value = ops.where(ops.isinf(x), all_of_it, value)
    value = ops.where(ops.isinf(a), ops.where(ops.isinf(x), _C(NAN), none), value)
    value = ops.where(ops.eq(x, zero), none, value)
    value = ops.where(ops.eq(a, zero), ops.where(ops.gt(x, zero), all_of_it, _C(NAN)), value)
    negative = ops.logical_or(ops.lt(a, zero), ops.lt(x, zero))
    return ops.where(negative, _C(NAN), value)


@lowers(aten.igamma.default, aten.special_gammainc.default)
def igamma(ctx: Builder, a: Operand, x: Operand) -> Tensor:
    """P: the part of the gamma function's integral from 0 to x."""
    return _row(ctx, a, x, upper=False)


@lowers(aten.igammac.default, aten.special_gammaincc.default)
def igammac(ctx: Builder, a: Operand, x: Operand) -> Tensor:
    """Q: the part from x to infinity."""
    return _row(ctx, a, x, upper=True)
