"""The elementwise rows in TOSA: each as one or a few operations, or as a loop function of other rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import sympy
import torch

from smelt.mlir.arrays.dialect import Array
from smelt.mlir.arrays.evaluate import through
from smelt.ops import TABLE, ops
from smelt.ops.table import result_dtype

if TYPE_CHECKING:
    from smelt.mlir.tosa.dialect import Tosa

Rule = Callable[..., Any]


def elementwise(tosa: Tosa, name: str, *args: Array) -> Any:
    """One row of `smelt.ops.table.TABLE`; NotImplemented where TOSA lacks it."""
    dtype = result_dtype(TABLE[name], [arg.dtype for arg in args])
    if any(size == 0 for size in args[0].shape):
        return tosa.empty(dtype, args[0].shape)
    operand = args[-1].dtype
    if operand is torch.bool and name in _ON_BOOLS:
        return through(tosa, _ON_BOOLS[name], *args)
    narrow = operand is torch.uint8 or (operand in (torch.int8, torch.int16) and name in _DIVISIONS)
    if narrow and name not in _OF_BITS:
        wide = [tosa.convert(arg, torch.int32) if arg.dtype == operand else arg for arg in args]
        found = tosa.apply(name, *wide)
        return tosa.convert(found, dtype)
    rule = ELEMENTWISE.get(name)
    return NotImplemented if rule is None else rule(tosa, *args)


def widened(tosa: Tosa, x: Array) -> Array:
    """uint8 as int32."""
    signed = tosa.plain("cast", [x], torch.int32)
    return tosa.plain("bitwise_and", [signed, tosa.full(255, torch.int32, x.shape)], torch.int32)


def narrowed(tosa: Tosa, x: Array) -> Array:
    """int32 as uint8: the lowest bits."""
    return tosa.plain("cast", [x], torch.uint8)


def truncated(tosa: Tosa, x: Array) -> Array:
    """Floats rounded to zero; -0 stays."""
    return through(tosa, _trunc, x)


# -- one operation ----------------------------------------------------------------------------------


def _plain(name: str, tosa: Tosa, *args: Array) -> Array:
    return tosa.plain(name, args, args[-1].dtype)


def _of_floats(name: str, tosa: Tosa, *args: Array) -> Any:
    return _plain(name, tosa, *args) if args[0].dtype.is_floating_point else NotImplemented


def _erf(tosa: Tosa, x: Array) -> Any:
    return NotImplemented if x.dtype is torch.float64 else _plain("erf", tosa, x)


def _compare(name: str, tosa: Tosa, x: Array, y: Array) -> Array:
    return tosa.plain(name, [x, y], torch.bool)


def _reversed(name: str, tosa: Tosa, x: Array, y: Array) -> Array:
    return tosa.plain(name, [y, x], torch.bool)


def _ne(tosa: Tosa, x: Array, y: Array) -> Array:
    return tosa.plain("logical_not", [tosa.plain("equal", [x, y], torch.bool)], torch.bool)


def _mul(tosa: Tosa, x: Array, y: Array) -> Array:
    return tosa.plain("mul", [x, y], x.dtype, tosa.full(0, torch.int8, (sympy.Integer(1),)).value)


def _neg(tosa: Tosa, x: Array) -> Array:
    if not x.dtype.is_floating_point:
        return tosa.plain("sub", [tosa.full(0, x.dtype, x.shape), x], x.dtype)
    zero = tosa.full(0.0, x.dtype, (sympy.Integer(1),)).value
    return tosa.plain("negate", [x], x.dtype, zero, zero)


def _bitwise(name: str, tosa: Tosa, *args: Array) -> Array:
    return _plain(f"{'logical' if args[0].dtype is torch.bool else 'bitwise'}_{name}", tosa, *args)


def _shift(name: str, tosa: Tosa, x: Array, y: Array) -> Array:
    """0, or the sign, where the distance is negative or not less than the width."""
    from torch_mlir import ir

    width = torch.iinfo(x.dtype).bits

    def shifted(distance: Array) -> Array:
        if name == "lshift":
            return tosa.plain("logical_left_shift", [x, distance], x.dtype)
        exact = ir.BoolAttr.get(False)
        return tosa.plain("arithmetic_right_shift", [x, distance], x.dtype, round=exact)

    if y.number is not None and 0 <= y.number < width:
        return shifted(y)
    zero, most = tosa.full(0, y.dtype, y.shape), tosa.full(width - 1, y.dtype, y.shape)
    low, high = tosa.apply("lt", y, zero), tosa.apply("gt", y, most)
    outside = tosa.apply("logical_or", low, high)
    result = shifted(tosa.apply("where", outside, most, y))
    return tosa.apply("where", outside, zero, result) if name == "lshift" else result


# -- loop functions ---------------------------------------------------------------------------------


def _c(x: Any, number: float | int | bool) -> Any:
    return ops.constant(number, x.dtype)


def _truediv(x: Any, y: Any) -> Any:
    """By the reciprocal: a rounding more than a division has."""
    return ops.mul(x, ops.reciprocal(y))


def _sqrt(x: Any) -> Any:
    """As the reciprocal of its reciprocal, which is right for -0, inf and negative numbers."""
    return ops.reciprocal(ops.rsqrt(x))


def _trunc(x: Any) -> Any:
    return ops.where(ops.lt(x, _c(x, 0.0)), ops.ceil(x), ops.floor(x))


def _signbit(x: Any) -> Any:
    """Of NaN: False; its sign cannot be seen."""
    zero = _c(x, 0.0)
    negative_zero = ops.logical_and(ops.eq(x, zero), ops.lt(ops.reciprocal(x), zero))
    return ops.logical_or(ops.lt(x, zero), negative_zero)


_SPLITS = {torch.float64: 2.0**27 + 1, torch.float32: 2.0**12 + 1, torch.float16: 65.0, torch.bfloat16: 17.0}


def _halves(x: Any) -> tuple[Any, Any]:
    """``x`` as a sum of two numbers of half its digits (Veltkamp 1968)."""
    scaled = ops.mul(x, _c(x, _SPLITS[x.dtype]))
    high = ops.sub(scaled, ops.sub(scaled, x))
    return high, ops.sub(x, high)


def _float_fmod(x: Any, y: Any) -> Any:
    """``|x| - q |y|`` with the products exact, q the rounded quotient; then once to each side."""
    size, by, zero = ops.abs(x), ops.abs(y), _c(x, 0.0)
    quotient = ops.trunc(ops.truediv(size, by))
    rest = size
    for part in _halves(quotient):
        for piece in _halves(by):
            rest = ops.sub(rest, ops.mul(part, piece))
    rest = ops.where(ops.lt(rest, zero), ops.add(rest, by), rest)
    rest = ops.where(ops.ge(rest, by), ops.sub(rest, by), rest)
    rest = ops.where(ops.lt(size, by), size, rest)
    return ops.copysign(rest, x)


def _fmod(tosa: Tosa, x: Array, y: Array) -> Any:
    return through(tosa, _float_fmod, x, y) if x.dtype.is_floating_point else NotImplemented


_OF_BITS = (
    *("add", "sub", "mul", "neg", "where", "eq", "ne"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
)
"""Rows that do the same with uint8 as with int8."""

_DIVISIONS = ("truncdiv", "fmod", "remainder", "floordiv")

_ON_BOOLS: dict[str, Callable[..., Any]] = {
    "maximum": lambda x, y: ops.logical_or(x, y),
    "minimum": lambda x, y: ops.logical_and(x, y),
    "gt": lambda x, y: ops.logical_and(x, ops.logical_not(y)),
    "lt": lambda x, y: ops.logical_and(ops.logical_not(x), y),
    "ge": lambda x, y: ops.logical_or(x, ops.logical_not(y)),
    "le": lambda x, y: ops.logical_or(ops.logical_not(x), y),
}

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
    "signbit": lambda tosa, x: through(tosa, _signbit, x),
    "fmod": _fmod,
}
"""Row of `smelt.ops.table.TABLE` → rule of (tosa, *arrays); NotImplemented for dtypes it does not take."""
