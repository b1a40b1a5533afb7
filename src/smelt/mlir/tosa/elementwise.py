"""The elementwise rows in TOSA: each as one or a few operations, or as a loop function of other rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import sympy
import torch

from smelt.mlir.arrays.dialect import Array
from smelt.mlir.arrays.elementwise import ON_BOOLS, shift
from smelt.mlir.arrays.evaluate import through
from smelt.mlir.bindings import ir
from smelt.mlir.tosa.operations import Operations
from smelt.ops import TABLE, ops
from smelt.ops.table import result_dtype

Rule = Callable[..., Any]


def elementwise(tosa: Operations, name: str, *args: Array) -> Any:
    """A row of `smelt.ops.table.TABLE`; NotImplemented if TOSA lacks it."""
    dtype = result_dtype(TABLE[name], [arg.dtype for arg in args])
    if any(size == 0 for size in args[0].shape):
        return tosa.empty(dtype, args[0].shape)
    operand = args[-1].dtype
    if operand is torch.bool and name in ON_BOOLS:
        return through(tosa, ON_BOOLS[name], *args)
    narrow = operand is torch.uint8 or (operand in (torch.int8, torch.int16) and name in _DIVISIONS)
    if narrow and name not in _OF_BITS:
        wide = [tosa.convert(arg, torch.int32) if arg.dtype == operand else arg for arg in args]
        found = tosa.apply(name, *wide)
        return tosa.convert(found, dtype)
    rule = ELEMENTWISE.get(name)
    return NotImplemented if rule is None else rule(tosa, *args)


def widened(tosa: Operations, x: Array) -> Array:
    """uint8 as int32."""
    signed = tosa.plain("cast", [x], torch.int32)
    return tosa.plain("bitwise_and", [signed, tosa.full(255, torch.int32, x.shape)], torch.int32)


def narrowed(tosa: Operations, x: Array) -> Array:
    """int32 as uint8: the lowest bits."""
    return tosa.plain("cast", [x], torch.uint8)


def truncated(tosa: Operations, x: Array) -> Array:
    """Floats rounded towards 0; -0 is kept."""
    return through(tosa, _trunc, x)


# -- one operation ----------------------------------------------------------------------------------


def _plain(name: str, tosa: Operations, *args: Array) -> Array:
    return tosa.plain(name, args, args[-1].dtype)


def _of_floats(name: str, tosa: Operations, *args: Array) -> Any:
    return _plain(name, tosa, *args) if args[0].dtype.is_floating_point else NotImplemented


def _erf(tosa: Operations, x: Array) -> Any:
    return NotImplemented if x.dtype is torch.float64 else _plain("erf", tosa, x)


def _compare(name: str, tosa: Operations, x: Array, y: Array) -> Array:
    return tosa.plain(name, [x, y], torch.bool)


def _reversed(name: str, tosa: Operations, x: Array, y: Array) -> Array:
    return tosa.plain(name, [y, x], torch.bool)


def _ne(tosa: Operations, x: Array, y: Array) -> Array:
    return tosa.plain("logical_not", [tosa.plain("equal", [x, y], torch.bool)], torch.bool)


def _mul(tosa: Operations, x: Array, y: Array) -> Array:
    """A product; a factor 0.0 is computed, because upstream folds a product with the constant 0.0 to 0, which
    is wrong for NaN, inf and negative numbers."""
    if x.dtype.is_floating_point and 0 in (x.number, y.number):
        zero, other = (x, y) if x.number == 0 else (y, x)
        if math.copysign(1.0, zero.number) < 0:  # type: ignore[arg-type]
            other = _neg(tosa, other)
        nothing = tosa.full(0.0, x.dtype, x.shape)
        x, y = other, _plain("minimum", tosa, _plain("abs", tosa, other), nothing)
    return tosa.plain("mul", [x, y], x.dtype, tosa.full(0, torch.int8, (sympy.Integer(1),)).value)


def _neg(tosa: Operations, x: Array) -> Array:
    if not x.dtype.is_floating_point:
        return tosa.plain("sub", [tosa.full(0, x.dtype, x.shape), x], x.dtype)
    zero = tosa.full(0.0, x.dtype, (sympy.Integer(1),)).value
    return tosa.plain("negate", [x], x.dtype, zero, zero)


def _bitwise(name: str, tosa: Operations, *args: Array) -> Array:
    return _plain(f"{'logical' if args[0].dtype is torch.bool else 'bitwise'}_{name}", tosa, *args)


def _shift(name: str, tosa: Operations, x: Array, y: Array) -> Array:
    def plain(distance: Array) -> Array:
        if name == "lshift":
            return tosa.plain("logical_left_shift", [x, distance], x.dtype)
        exact = ir.BoolAttr.get(False)
        return tosa.plain("arithmetic_right_shift", [x, distance], x.dtype, round=exact)

    return shift(tosa, name, plain, x, y)


# -- loop functions ---------------------------------------------------------------------------------


def _c(x: Any, number: float | int | bool) -> Any:
    return ops.constant(number, x.dtype)


def _truediv(x: Any, y: Any) -> Any:
    """Division by the reciprocal, with one more rounding than an exact division."""
    return ops.mul(x, ops.reciprocal(y))


def _sqrt(x: Any) -> Any:
    """Square root as the reciprocal of ``rsqrt``, which is correct for -0, inf and negative numbers."""
    return ops.reciprocal(ops.rsqrt(x))


def _trunc(x: Any) -> Any:
    return ops.where(ops.lt(x, _c(x, 0.0)), ops.ceil(x), ops.floor(x))


# -- remainders -------------------------------------------------------------------------------------

_STEP, _STEPS = 29, 10
"""Quotient bits a step, whose product with a float32 is exact in float64, and steps for all bits."""
_LONG_STEP, _LONG_STEPS = 26, 81
"""The same two numbers for a float64 divisor, split into halves."""


def _halves(x: Any) -> tuple[Any, Any]:
    """A float64 as a sum of two numbers of half its digits (Veltkamp 1968)."""
    large = ops.gt(x, _c(x, 2.0**900))
    down = ops.where(large, ops.mul(x, _c(x, 2.0**-100)), x)
    scaled = ops.mul(down, _c(x, 2.0**27 + 1))
    high = ops.sub(scaled, ops.sub(scaled, down))
    high = ops.where(large, ops.mul(high, _c(x, 2.0**100)), high)
    return high, ops.sub(x, high)


def _rest(rest: Any, by: Any, parts: Callable[[Any], Sequence[Any]]) -> Any:
    """``rest - q * by`` in float64; q is so short that ``q * part`` is exact for the ``parts`` of ``by``."""
    small = ops.lt(by, _c(by, 2.0**-900))
    above, below = (ops.where(small, ops.mul(each, _c(by, 2.0**100)), each) for each in (rest, by))
    quotient = ops.floor(ops.truediv(above, below))
    for part in parts(by):
        rest = ops.sub(rest, ops.mul(quotient, part))
    rest = ops.where(ops.lt(rest, _c(rest, 0.0)), ops.add(rest, by), rest)
    return ops.where(ops.ge(rest, by), ops.sub(rest, by), rest)


def _signed(rest: Any, x: Any, y: Any) -> Any:
    rest = ops.to_dtype(rest, x.dtype)
    rest = ops.where(ops.lt(x, _c(x, 0.0)), ops.neg(rest), rest)
    return ops.where(ops.lt(ops.abs(x), ops.abs(y)), x, rest)


def _short_fmod(x: Any, y: Any) -> Any:
    """Long division in float64, with ``_STEP`` bits of the quotient per step."""
    rest, by = (ops.to_dtype(ops.abs(each), torch.float64) for each in (x, y))
    for turn in reversed(range(_STEPS)):
        rest = _rest(rest, ops.mul(by, _c(by, 2.0 ** (_STEP * turn))), lambda by: [by])
    return _signed(rest, x, y)


def _long_step(rest: Any, by: Any, turn: Any) -> Any:
    half = ops.exp2(ops.to_dtype(ops.mul(turn, _c(turn, _LONG_STEP // 2)), by.dtype))
    divisor = ops.mul(ops.mul(by, half), half)
    endless = ops.logical_and(ops.isinf(divisor), ops.lt(by, divisor))
    return ops.where(endless, rest, _rest(rest, ops.where(endless, by, divisor), _halves))


def _long_fmod(tosa: Operations, x: Array, y: Array) -> Array:
    """Long division as a loop."""
    by = tosa.solid(tosa.apply("abs", y))
    zero, one = (tosa.full(number, torch.int64, ()) for number in (0, 1))

    def going(state: Sequence[Array]) -> Array:
        return tosa.apply("ge", state[0], zero)

    def step(state: Sequence[Array]) -> list[Array]:
        turn, rest = state
        everywhere = tosa.broadcast(turn, rest.shape, [])
        return [tosa.apply("sub", turn, one), through(tosa, _long_step, rest, by, everywhere)]

    first = tosa.full(_LONG_STEPS - 1, torch.int64, ())
    _, rest = tosa.loop([first, tosa.apply("abs", x)], going, step)
    return through(tosa, _signed, rest, x, y)


def _fmod(tosa: Operations, x: Array, y: Array) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented
    return _long_fmod(tosa, x, y) if x.dtype is torch.float64 else through(tosa, _short_fmod, x, y)


_OF_BITS = (
    *("add", "sub", "mul", "neg", "where", "eq", "ne"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
)
"""Rows that are equal for uint8 and int8."""

_DIVISIONS = ("truncdiv", "fmod", "remainder", "floordiv")

ELEMENTWISE: dict[str, Rule] = {
    **{name: partial(_plain, name) for name in ("add", "sub", "maximum", "minimum", "abs")},
    **{name: partial(_plain, name) for name in ("logical_and", "logical_or", "logical_xor", "logical_not")},
    **{
        name: partial(_of_floats, name)
        for name in (
            "ceil",
            "floor",
            "cos",
            "sin",
            "exp",
            "log",
            "pow",
            "reciprocal",
            "rsqrt",
            "sigmoid",
            "tanh",
        )
    },
    **{f"bitwise_{name}": partial(_bitwise, name) for name in ("and", "or", "xor", "not")},
    **{name: partial(_shift, name) for name in ("lshift", "rshift")},
    "erf": _erf,
    "mul": _mul,
    "neg": _neg,
    "where": partial(_plain, "select"),
    "truncdiv": partial(_plain, "intdiv"),
    "eq": partial(_compare, "equal"),
    "ne": _ne,
    "gt": partial(_compare, "greater"),
    "ge": partial(_compare, "greater_equal"),
    "lt": partial(_reversed, "greater"),
    "le": partial(_reversed, "greater_equal"),
    "truediv": lambda tosa, x, y: through(tosa, _truediv, x, y),
    "sqrt": lambda tosa, x: through(tosa, _sqrt, x),
    "trunc": lambda tosa, x: through(tosa, _trunc, x),
    "fmod": _fmod,
}
"""Row of `smelt.ops.table.TABLE` → rule of (tosa, *arrays); NotImplemented for unsupported dtypes."""
