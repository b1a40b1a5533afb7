"""Functions of values: those of `smelt.ops.TABLE` under TVM's names, choices, conversions, conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.loops.reductions import identity
from smelt.ops import TABLE
from smelt.te import reductions
from smelt.te import value as values
from smelt.te.dtypes import NAMES, kind_of
from smelt.te.errors import refuse
from smelt.te.index import Idx, as_index
from smelt.te.reductions import as_condition
from smelt.te.value import Bits, Choice, Number, Value, as_value, binary, elementwise, matched, unary
from smelt.te.value import cast as converted

RENAMED: dict[str, str] = {
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "log": "log",
    "log2": "log2",
    "log10": "log10",
    "log1p": "log1p",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "asin": "asin",
    "acos": "acos",
    "atan": "atan",
    "sinh": "sinh",
    "cosh": "cosh",
    "tanh": "tanh",
    "asinh": "asinh",
    "acosh": "acosh",
    "atanh": "atanh",
    "erf": "erf",
    "sigmoid": "sigmoid",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "round",
    "nearbyint": "round",
    "abs": "abs",
    "sign": "sign",
    "bitwise_not": "bitwise_not",
    "isnan": "isnan",
    "isinf": "isinf",
    "atan2": "atan2",
    "hypot": "hypot",
    "copysign": "copysign",
    "nextafter": "nextafter",
    "fmod": "fmod",
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "shift_left": "lshift",
    "shift_right": "rshift",
}
"""TVM's name of a function → the operator of `smelt.ops.TABLE`, with the table's number of operands."""

_WHOLE = ("floor", "ceil", "trunc", "round")
_TESTS = ("isnan", "isinf")


def _function(name: str, op: str) -> Callable[..., Any]:
    def one(x: Any, span: Any = None) -> Any:
        if _of_tensor(name, x):
            return _topi(name, x)
        value = as_value(x)
        if value.kind is not torch.bool and not value.kind.is_floating_point:
            if op in _WHOLE:
                return value
            if op in _TESTS:
                return Number(False, torch.bool)
        return unary(op, value)

    def two(x: Any, y: Any, span: Any = None) -> Any:
        return binary(op, as_value(x), y)

    made = one if TABLE[op].arity == 1 else two
    made.__name__ = made.__qualname__ = name
    made.__doc__ = f"{TABLE[op].doc[0].upper()}{TABLE[op].doc[1:]}."
    return made


def _of_tensor(name: str, x: Any) -> bool:
    return hasattr(x, "op") and not isinstance(x, Value) and not getattr(x, "is_scalar", False)


def _topi(name: str, *args: Any) -> Any:
    from smelt.te.tensor import OPERATORS

    if name not in OPERATORS:
        refuse("SM1103", f"{name} of a whole tensor", remedy="import smelt.topi, or index it: A[i, j]")
    return OPERATORS[name](*args)


globals().update({name: _function(name, op) for name, op in RENAMED.items()})


def isfinite(x: Any, span: Any = None) -> Value:
    """Whether x is neither infinite nor NaN."""
    value = as_value(x)
    if not value.kind.is_floating_point:
        return Number(True, torch.bool)
    return ~(unary("isnan", value) | unary("isinf", value))


def power(x: Any, y: Any, span: Any = None) -> Any:
    """``x ** y``."""
    return binary("pow", as_value(x), y)


def logaddexp(x: Any, y: Any, span: Any = None) -> Any:
    """``log(exp(x) + exp(y))`` without overflow."""
    a, b = matched(x, y)
    high, low = binary("maximum", a, b), binary("minimum", a, b)
    return high + unary("log1p", unary("exp", low - high))


def popcount(x: Any, span: Any = None) -> Value:
    """The number of bits of an integer that are 1."""
    value = as_value(x)
    if value.kind.is_floating_point or value.kind is torch.bool:
        refuse("SM1103", f"popcount does not take {value.dtype}")
    width = value.kind.itemsize * 8
    found: Value = (value >> 0) & 1
    for bit in range(1, width):
        found = found + ((value >> bit) & 1)
    return found


def div(a: Any, b: Any, span: Any = None) -> Any:
    """``a / b``; integers are rounded to zero."""
    left, right = matched(a, b)
    return binary("truediv", left, right) if left.kind.is_floating_point else truncdiv(a, b)


def floordiv(a: Any, b: Any, span: Any = None) -> Any:
    """``floor(a / b)``."""
    if not isinstance(a, (Value, int)) or not isinstance(b, (Value, int)):
        return binary("floordiv", as_value(a), b)
    return a // b


def floormod(a: Any, b: Any, span: Any = None) -> Any:
    """The remainder of `floordiv`, with the sign of b."""
    if not isinstance(a, (Value, int)) or not isinstance(b, (Value, int)):
        return binary("remainder", as_value(a), b)
    return a % b


def _plainly(a: Any, b: Any) -> bool:
    """Whether both are indices that are known not to be negative: then all quotients are equal."""
    left, right = as_index(a), as_index(b)
    return left is not None and right is not None and bool(left.is_nonnegative and right.is_nonnegative)


def truncdiv(a: Any, b: Any, span: Any = None) -> Any:
    """``a / b`` of integers, rounded to zero."""
    if _plainly(a, b):
        return a // b
    return binary("truncdiv", as_value(a), b)


def truncmod(a: Any, b: Any, span: Any = None) -> Any:
    """The remainder of `truncdiv`, with the sign of a."""
    return a % b if _plainly(a, b) else binary("fmod", as_value(a), b)


def indexdiv(a: Any, b: Any, span: Any = None) -> Any:
    """A quotient of indices."""
    return floordiv(a, b)


def indexmod(a: Any, b: Any, span: Any = None) -> Any:
    """A remainder of indices."""
    return floormod(a, b)


def ceildiv(a: Any, b: Any, span: Any = None) -> Any:
    """``ceil(a / b)`` of integers."""
    return -((-a) // b) if not isinstance(a, Idx) else (a + (b - 1)) // b


def if_then_else(cond: Any, t: Any, f: Any, span: Any = None) -> Any:
    """``t`` if ``cond`` holds, else ``f``; the other may read outside a tensor, or divide by 0.

    >>> from smelt import te
    >>> A = te.placeholder((4,), name="A")
    >>> te.compute((6,), lambda i: te.if_then_else(i < 4, A[i], 0.0)).shape
    (6,)
    """
    return _choice(cond, t, f, lazy=True)


def select(condition: Any, true_value: Any, false_value: Any, span: Any = None) -> Any:
    """``true_value`` if the condition holds, else ``false_value``; both are evaluated."""
    return _choice(condition, true_value, false_value, lazy=False)


def _choice(condition: Any, then: Any, other: Any, lazy: bool) -> Any:
    if isinstance(condition, bool):
        return then if condition else other
    mask = as_condition(condition)
    if mask.decided() is not None:
        return as_value(then if mask.decided() else other)
    a, b = matched(then, other)
    return Choice(mask, a, b, lazy)


def all(*args: Any, axis: Any = None, span: Any = None) -> Any:
    """Whether all conditions hold; with an ``axis``, whether one condition holds at all of its indices."""
    return _joined("logical_and", "min", args, axis)


def any(*args: Any, axis: Any = None, span: Any = None) -> Any:
    """Whether one of the conditions holds; with an ``axis``, whether a condition holds at some index."""
    return _joined("logical_or", "max", args, axis)


def _joined(op: str, kind: str, args: Sequence[Any], axis: Any) -> Any:
    if len(args) == 2 and axis is None and reductions.are_axes(args[1]):
        axis = args[1]
        args = args[:1]
    if not args:
        refuse("SM1103", f"{op.removeprefix('logical_')} of no conditions")
    conditions = [as_condition(arg) for arg in args]
    found = conditions[0]
    for other in conditions[1:]:
        found = elementwise(op, found, other)
    if axis is None:
        return found
    return (reductions.max if kind == "max" else reductions.min)(found, axis=axis)


def const(value: Any, dtype: Any = None, span: Any = None) -> Number:
    """A constant.

    >>> const(1, "float16").dtype, const(2).dtype, const(0.5).dtype
    ('float16', 'int32', 'float32')
    """
    found = as_value(value)
    if not isinstance(found, Number):
        refuse("SM1103", f"{value!r} is no constant")
    kind = found.kind if dtype is None else kind_of(dtype)
    if isinstance(found.value, float) and not kind.is_floating_point and not math.isfinite(found.value):
        refuse("SM1103", f"{value!r} is no {NAMES[kind]}")
    return Number(found.value, kind)


def cast(dtype: Any, value: Any, span: Any = None) -> Value:
    """``value`` as ``dtype``."""
    return converted(as_value(value), kind_of(dtype))


def reinterpret(dtype: Any, value: Any, span: Any = None) -> Value:
    """The bits of a value as another dtype of its width."""
    found, kind = as_value(value), kind_of(dtype)
    if found.kind.itemsize != kind.itemsize:
        refuse("SM1103", f"{found.dtype} and {NAMES[kind]} have not as many bits")
    return found if found.kind is kind else Bits(found, kind)


def max_value(dtype: Any, span: Any = None) -> Number:
    """The largest finite number of a dtype."""
    kind = kind_of(dtype)
    return Number(torch.finfo(kind).max if kind.is_floating_point else identity("min", kind), kind)


def min_value(dtype: Any, span: Any = None) -> Number:
    """The smallest finite number of a dtype."""
    kind = kind_of(dtype)
    return Number(torch.finfo(kind).min if kind.is_floating_point else identity("max", kind), kind)


def infinity(dtype: Any, span: Any = None) -> Number:
    """Positive infinity."""
    return const(math.inf, dtype)


def equal(a: Any, b: Any) -> Value:
    """``a == b``."""
    return binary("eq", values.as_value(a), b)  # type: ignore[no-any-return]


__all__ = [
    *RENAMED,
    *("all", "any", "cast", "ceildiv", "const", "div", "equal", "floordiv", "floormod", "if_then_else"),
    *("indexdiv", "indexmod", "infinity", "isfinite", "logaddexp", "max_value", "min_value", "popcount"),
    *("power", "reinterpret", "select", "truncdiv", "truncmod"),
]
