"""Orthogonal polynomials whose orders are data: one fold each, and closed forms if eager has them.

The recurrences are those of DLMF 18.9, each in the order of operations of ``aten/src/ATen/native/Math.h``, so
that results overflow and become NaN where eager's do; products and sums are fused (one rounding), as in
eager's kernels. An order is truncated to an integer; below 0 (and for NaN) the polynomial is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import compute_dtype, convert
from smelt.lowering.dtypes import is_low
from smelt.lowering.promotion import Constants, Operand, is_empty, loader, promote
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.records import dataclass

aten = torch.ops.aten

_FEW = 64
"""The largest constant order whose number of iterations is known without a look at the data."""
_ORDERS = float(1 << 62)

Turn = Callable[[Constants, Any, Any, Any, Any], Any]
"""``turn(c, x, k, last, before)``: the polynomial of order k + 1, given those of orders k and k - 1."""


@dataclass(frozen=True, slots=True)
class _Family:
    """A sequence of polynomials.

    Attributes: first: the polynomial of order 1. turn: the recurrence. closed: ``(c, x, n) -> (where,
    value)``: whether eager takes a closed form, and its value; no recurrence is needed then. enough: ``(c, x)
    -> turns``: the iterations (float64) after which the recurrence has overflowed and become NaN. limit: the
    order from which on eager gives NaN, by dtype.
    """

    first: Callable[[Constants, Any], Any]
    turn: Turn
    closed: Callable[[Constants, Any, Any], tuple[Any, Any]] | None = None
    enough: Callable[[Constants, Any, float], Any] | None = None
    limit: dict[torch.dtype, int] | None = None


# -- recurrences -------------------------------------------------------------------------------------------


def _chebyshev_turn(c: Constants, x: Any, k: Any, last: Any, before: Any) -> Any:
    return ops.fma(ops.add(x, x), last, ops.neg(before))


def _hermite_h(c: Constants, x: Any, k: Any, last: Any, before: Any) -> Any:
    return ops.fma(ops.add(x, x), last, ops.neg(ops.mul(ops.add(k, k), before)))


def _hermite_he(c: Constants, x: Any, k: Any, last: Any, before: Any) -> Any:
    return ops.fma(x, last, ops.neg(ops.mul(k, before)))


def _laguerre(c: Constants, x: Any, k: Any, last: Any, before: Any) -> Any:
    factor = ops.add(ops.add(k, k), ops.sub(c(1), x))
    difference = ops.fma(factor, last, ops.neg(ops.mul(k, before)))
    return ops.truediv(difference, ops.add(k, c(1)))


def _legendre(c: Constants, x: Any, k: Any, last: Any, before: Any) -> Any:
    factor = ops.mul(ops.add(ops.add(k, k), c(1)), x)
    difference = ops.fma(factor, last, ops.neg(ops.mul(k, before)))
    return ops.truediv(difference, ops.add(k, c(1)))


# -- orders of overflow ------------------------------------------------------------------------------------


def _exponential_growth(c: Constants, x: Any, largest: float) -> Any:
    """An order of overflow: beyond -1..1 Chebyshev's and Legendre's grow like ``exp(n acosh|x|)``."""
    growth = ops.acosh(ops.maximum(ops.abs(x), c(1)))
    return ops.truediv(c(largest + 60), growth)


def _root_growth(c: Constants, x: Any, largest: float) -> Any:
    """An order of overflow: below 0 Laguerre's grow like ``exp(x/2 + 2 sqrt(-x n))`` (DLMF 18.15.19)."""
    size = ops.maximum(ops.neg(x), c(0))
    root = ops.fma(c(0.25), size, c(largest / 2 + 30))
    return ops.truediv(ops.mul(root, root), size)


# -- closed forms ------------------------------------------------------------------------------------------


def _even(c: Constants, n: Any) -> Any:
    half = ops.mul(n, c(0.5))
    return ops.eq(half, ops.floor(half))


def _signed(c: Constants, n: Any, value: Any) -> Any:
    """``(-1)**n value``."""
    return ops.where(_even(c, n), value, ops.neg(value))


def _chebyshev_closed(kind: str, least: int) -> Callable[[Constants, Any, Any], tuple[Any, Any]]:
    """Closed forms at -1 and 1, and by angles in between for orders above ``least``.

    Angles are in float64, since float32 would lose n ulp of them.
    """

    def closed(c: Constants, x: Any, n: Any) -> tuple[Any, Any]:
        one, zero = c(1), c(0)
        twice = ops.fma(c(2), n, one)
        at_one = {"t": one, "u": ops.add(n, one), "v": one, "w": twice}[kind]
        at_minus_one = {"t": one, "u": ops.add(n, one), "v": twice, "w": one}[kind]
        ends = ops.where(ops.gt(x, zero), at_one, _signed(c, n, at_minus_one))
        at_ends = ops.eq(ops.abs(x), one)
        inside = ops.logical_and(ops.lt(ops.abs(x), one), ops.gt(n, c(least)))
        value = ops.where(at_ends, ends, _by_angle(c, kind, x, n, ends))
        return ops.logical_or(at_ends, inside), value

    return closed


def _by_angle(c: Constants, kind: str, x: Any, n: Any, ends: Any) -> Any:
    wide = Constants(torch.float64)
    angle = ops.acos(convert(x, c.dtype, wide.dtype))
    order = convert(n, c.dtype, wide.dtype)
    if kind == "t":
        return convert(ops.cos(ops.mul(order, angle)), wide.dtype, c.dtype)
    if kind == "u":
        turned, below = ops.mul(ops.add(order, wide(1)), angle), ops.sin(angle)
        ratio = ops.truediv(ops.sin(turned), below)
    else:
        turned, half = ops.mul(ops.add(order, wide(0.5)), angle), ops.mul(angle, wide(0.5))
        wave = ops.cos if kind == "v" else ops.sin
        below = wave(half)
        ratio = ops.truediv(wave(turned), below)
    return ops.where(ops.eq(below, wide(0)), ends, convert(ratio, wide.dtype, c.dtype))


def _legendre_ends(c: Constants, x: Any, n: Any) -> tuple[Any, Any]:
    return ops.eq(ops.abs(x), c(1)), ops.where(ops.gt(x, c(0)), c(1), _signed(c, n, c(1)))


def _laguerre_at_zero(c: Constants, x: Any, n: Any) -> tuple[Any, Any]:
    return ops.eq(x, c(0)), c(1)


# -- the families ------------------------------------------------------------------------------------------


def _chebyshev(kind: str, least: int) -> _Family:
    def first(c: Constants, x: Any) -> Any:
        twice = ops.add(x, x)
        shift = {"t": None, "u": twice, "v": ops.sub(twice, c(1)), "w": ops.add(twice, c(1))}[kind]
        return x if shift is None else shift

    return _Family(first, _chebyshev_turn, _chebyshev_closed(kind, least), _exponential_growth)


_HERMITE_LIMIT = {torch.float32: 128, torch.float64: 512}
_FAMILIES = {
    "chebyshev_polynomial_t": _chebyshev("t", 6),
    "chebyshev_polynomial_u": _chebyshev("u", 8),
    "chebyshev_polynomial_v": _chebyshev("v", 8),
    "chebyshev_polynomial_w": _chebyshev("w", 8),
    "hermite_polynomial_h": _Family(lambda c, x: ops.add(x, x), _hermite_h, limit=_HERMITE_LIMIT),
    "hermite_polynomial_he": _Family(lambda c, x: x, _hermite_he, limit=_HERMITE_LIMIT),
    "laguerre_polynomial_l": _Family(
        lambda c, x: ops.sub(c(1), x), _laguerre, _laguerre_at_zero, _root_growth
    ),
    "legendre_polynomial_p": _Family(lambda c, x: x, _legendre, _legendre_ends, _exponential_growth),
}
_SHIFTED = {
    f"shifted_chebyshev_polynomial_{kind}": _chebyshev(kind, least)
    for kind, least in (("t", 6), ("u", 6), ("v", 6), ("w", 4))
}
"""Chebyshev polynomials of ``2 x - 1``."""


def _polynomial(ctx: Builder, family: _Family, x: Operand, n: Operand, shifted: bool) -> Tensor:
    common = promote([x, n])
    if is_low(common):
        raise Unsupported(f"eager has no kernel for {common}")
    if not common.is_floating_point:
        common = torch.get_default_dtype()
    c, shape = Constants(compute_dtype(common)), ctx.shape
    load_x, load_n = (loader(each, common, c.dtype) for each in (x, n))

    def at(index: Index) -> Any:
        value = load_x(index)
        return ops.sub(ops.add(value, value), c(1)) if shifted else value

    def order(index: Index) -> Any:
        return ops.trunc(load_n(index))

    def turns_of(index: Index) -> Any:
        return _turns(c, family, at(index), order(index))

    def turn(index: Index, number: Expr, state: Any) -> list[Any]:
        last, before = state
        x, k = at(index), ops.index_expr(number, c.dtype)
        following = ops.where(ops.eq(k, c(0)), family.first(c, x), family.turn(c, x, k, last, before))
        more = ops.lt(k, order(index))
        return [ops.where(more, following, last), ops.where(more, last, before)]

    turns = _number_of_turns(ctx, n, turns_of)
    value, _ = ctx.fold(turn, shape=shape, turns=turns, state=[(c.dtype, 1.0), (c.dtype, 0.0)])

    def inner(index: Index) -> Any:
        result, degree = value.load(index), order(index)
        if family.limit is not None:
            result = ops.where(ops.gt(degree, c(family.limit[c.dtype])), c(float("nan")), result)
        if family.closed is not None:
            where, closed = family.closed(c, at(index), degree)
            result = ops.where(where, closed, result)
        counts = ops.logical_and(ops.ge(degree, c(0)), ops.lt(degree, c(2 * _ORDERS)))
        return ops.where(counts, result, c(0))

    return ctx.pointwise(inner)


def _number_of_turns(ctx: Builder, n: Operand, turns_of: Callable[[Index], Any]) -> int | Expr:
    """The largest number of iterations of any element: constant for a small order, else from the data."""
    if isinstance(n, (int, float)) and abs(n) <= _FEW:
        return max(int(n), 0)
    if is_empty(ctx.shape):
        return 0
    (most,) = ctx.reduction(
        "max", lambda index, rindex: turns_of(rindex), shape=(), reduce_shape=ctx.shape, dtype=torch.int64
    )
    return ctx.item(most)


def _turns(c: Constants, family: _Family, x: Any, n: Any) -> Any:
    """The number of iterations that an element needs (int64)."""
    wide = Constants(torch.float64)
    order = convert(n, c.dtype, wide.dtype)
    needed = order
    if family.enough is not None:
        enough = family.enough(wide, convert(x, c.dtype, wide.dtype), _log_of_largest(c.dtype))
        needed = ops.where(ops.lt(enough, order), ops.ceil(enough), order)
    idle = ops.logical_not(ops.logical_and(ops.ge(order, wide(0)), ops.lt(order, wide(2 * _ORDERS))))
    idle = ops.logical_or(idle, ops.isnan(x))
    if family.limit is not None:
        idle = ops.logical_or(idle, ops.gt(order, wide(family.limit[c.dtype])))
    if family.closed is not None:
        idle = ops.logical_or(idle, family.closed(c, x, n)[0])
    # NaN needs only one iteration until the polynomial is NaN.
    turns = ops.where(idle, ops.where(ops.isnan(x), wide(1), wide(0)), ops.minimum(needed, wide(_ORDERS)))
    return ops.to_dtype(turns, torch.int64)


def _log_of_largest(dtype: torch.dtype) -> float:
    return float(torch.tensor(torch.finfo(dtype).max, dtype=torch.float64).log())


def _register() -> None:
    for shifted, families in ((False, _FAMILIES), (True, _SHIFTED)):
        for name, family in families.items():
            packet = getattr(aten, f"special_{name}")

            @lowers(packet.default, packet.x_scalar, packet.n_scalar)
            def row(
                ctx: Builder, x: Operand, n: Operand, family: _Family = family, shifted: bool = shifted
            ) -> Tensor:
                return _polynomial(ctx, family, x, n, shifted)


_register()
