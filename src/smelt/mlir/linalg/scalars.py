"""Elements of tensors as MLIR values: constants, conversions, and every row of the elementwise table.

A loop function's values inside a ``linalg.generic`` (or a loop nest) are `Scalar`s.
`smelt.mlir.arrays.decomposed` decomposes rows without an operation in ``arith`` and ``math``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from smelt.mlir import bindings
from smelt.mlir.arrays.dialect import Array, Shape
from smelt.mlir.bindings import arith, cf, ir, math

LOW = (torch.float16, torch.bfloat16)
"""The dtypes whose operations compute in float32 and round once."""


@dataclass(frozen=True, slots=True)
class Scalar(Array):
    """A number: an `Array` of rank 0 whose value is no tensor. An int64 may have MLIR's type ``index``:
    `word` and `as_index` convert it."""

    shape: Shape = ()


def constant(number: float | int | bool, dtype: torch.dtype, like: Any = None) -> Scalar:
    """A number at the insertion point; ``like``: its MLIR type, if it differs from that of ``dtype``."""
    kind = bindings.element_type(dtype) if like is None else like
    if dtype.is_floating_point:
        return Scalar(arith.ConstantOp(kind, ir.FloatAttr.get(kind, float(number))).result, dtype)
    if dtype is torch.bool:
        return Scalar(arith.ConstantOp(kind, ir.BoolAttr.get(bool(number))).result, dtype)
    bits = 8 * dtype.itemsize
    wrapped = (int(number) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    return Scalar(arith.ConstantOp(kind, ir.IntegerAttr.get(kind, wrapped)).result, dtype)


def word(x: Scalar) -> Scalar:
    """An int64 as ``i64``."""
    if x.dtype is not torch.int64 or not isinstance(x.value.type, ir.IndexType):
        return x
    return Scalar(arith.index_cast(ir.IntegerType.get_signless(64), x.value), x.dtype)


def as_index(x: Scalar) -> Any:
    """An integer as a value of type ``index``."""
    if isinstance(x.value.type, ir.IndexType):
        return x.value
    cast = arith.index_castui if x.dtype in (torch.uint8, torch.bool) else arith.index_cast
    return cast(ir.IndexType.get(), x.value)


# -- conversions -----------------------------------------------------------------------------------------


def convert(x: Scalar, dtype: torch.dtype) -> Scalar:
    """Converts as ``Tensor.to``: to nearest even, float to integer by truncation, to bool by ``!= 0``."""
    x = word(x)
    if x.dtype == dtype:
        return x
    if dtype is torch.bool:
        return compare("ne", x, constant(0, x.dtype))
    if x.dtype.is_floating_point:
        return _from_float(x, dtype)
    return _from_integer(x, dtype)


def _from_float(x: Scalar, dtype: torch.dtype) -> Scalar:
    if x.dtype in LOW and dtype is not torch.float32:
        return convert(convert(x, torch.float32), dtype)
    if dtype in LOW and x.dtype is torch.float64:  # through float32, as ATen
        return convert(convert(x, torch.float32), dtype)
    kind = bindings.element_type(dtype)
    if dtype.is_floating_point:
        cast = arith.extf if dtype.itemsize > x.dtype.itemsize else arith.truncf
        return Scalar(cast(kind, x.value), dtype)
    if dtype.itemsize < 4:  # values out of range wrap around
        wide = torch.int64 if dtype is torch.uint8 else torch.int32
        return convert(Scalar(arith.fptosi(bindings.element_type(wide), x.value), wide), dtype)
    return Scalar(arith.fptosi(kind, x.value), dtype)


def _from_integer(x: Scalar, dtype: torch.dtype) -> Scalar:
    if dtype in LOW:
        return convert(convert(x, torch.float32), dtype)
    kind, unsigned = bindings.element_type(dtype), x.dtype in (torch.uint8, torch.bool)
    if dtype.is_floating_point:
        return Scalar((arith.uitofp if unsigned else arith.sitofp)(kind, x.value), dtype)
    have = 1 if x.dtype is torch.bool else 8 * x.dtype.itemsize
    want = 8 * dtype.itemsize
    if have == want:
        return Scalar(x.value, dtype)
    if have > want:
        return Scalar(arith.trunci(kind, x.value), dtype)
    return Scalar((arith.extui if unsigned else arith.extsi)(kind, x.value), dtype)


def bitcast(x: Scalar, dtype: torch.dtype) -> Scalar:
    """The same bits as another dtype of the same width."""
    x, kind = word(x), bindings.element_type(dtype)
    return Scalar(x.value if x.value.type == kind else arith.bitcast(kind, x.value), dtype)


def select(condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """``x`` if the condition is true, else ``y``."""
    return Scalar(arith.select(condition.value, x.value, y.value), x.dtype)


# -- comparisons -----------------------------------------------------------------------------------------

_FLOAT_TESTS = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def compare(name: str, x: Scalar, y: Scalar) -> Scalar:
    """``eq ne lt le gt ge`` of two values of one dtype."""
    if x.dtype.is_floating_point:
        test = getattr(arith.CmpFPredicate, _FLOAT_TESTS[name].upper())
        return Scalar(arith.cmpf(test, x.value, y.value), torch.bool)
    sign = "" if name in ("eq", "ne") else "u" if x.dtype in (torch.uint8, torch.bool) else "s"
    test = getattr(arith.CmpIPredicate, sign + name)
    return Scalar(arith.cmpi(test, x.value, y.value), torch.bool)


def isnan(x: Scalar) -> Scalar:
    """Whether ``x`` is NaN: not equal to itself."""
    return Scalar(arith.cmpf(arith.CmpFPredicate.UNO, x.value, x.value), torch.bool)


# -- elementwise -----------------------------------------------------------------------------------------

Rule = Callable[..., Scalar]


def _number(x: Scalar, value: float | int | bool) -> Scalar:
    return constant(value, x.dtype)


def _plain(name: str, signed: str | None, unsigned: str | None = None, boolean: str | None = None) -> Rule:
    """An operation of ``arith`` for each kind of dtype: floating point, signed, unsigned, bool."""

    def rule(*args: Scalar) -> Scalar:
        dtype = args[0].dtype
        chosen = name if dtype.is_floating_point else signed
        if dtype is torch.uint8:
            chosen = unsigned or signed
        elif dtype is torch.bool:
            chosen = boolean or signed
        return Scalar(getattr(arith, str(chosen))(*(arg.value for arg in args)), dtype)

    return rule


def _math(name: str) -> Rule:
    def rule(*args: Scalar) -> Scalar:
        return Scalar(getattr(math, name)(*(arg.value for arg in args)), args[0].dtype)

    return rule


_add, _sub, _mul = _plain("addf", "addi"), _plain("subf", "subi"), _plain("mulf", "muli")
_div = _plain("divf", None)


def _neg(x: Scalar) -> Scalar:
    if x.dtype.is_floating_point:
        return Scalar(arith.negf(x.value), x.dtype)
    return _sub(_number(x, 0), x)


def _abs(x: Scalar) -> Scalar:
    if x.dtype is torch.uint8:
        return x
    return _math("absf" if x.dtype.is_floating_point else "absi")(x)


def _not(x: Scalar) -> Scalar:
    return _plain("", "xori")(x, _number(x, True if x.dtype is torch.bool else -1))


def _divided(name: str, unsigned: str) -> Rule:
    """An integer division. Division by 0 raises, as in ATen; the minimum divided by -1 wraps around."""

    def rule(x: Scalar, y: Scalar) -> Scalar:
        if x.dtype.is_floating_point:
            return _plain("remf", None)(x, y)
        one = _number(y, 1)
        if _known(y) not in (None, 0, -1):
            return _plain("", name, unsigned)(x, y)
        nonzero = compare("ne", y, _number(y, 0))
        require(nonzero, "RuntimeError: ZeroDivisionError")
        safe = select(nonzero, y, one)
        if x.dtype is torch.uint8:
            return _plain("", name, unsigned)(x, safe)
        minus = compare("eq", y, _number(y, -1))
        result = _plain("", name, unsigned)(x, select(minus, one, safe))
        return select(minus, _number(x, 0) if name == "remsi" else _neg(x), result)

    return rule


def _known(x: Scalar) -> int | None:
    """The number of a constant, else None."""
    owner = x.value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    return int(ir.IntegerAttr(owner.attributes["value"]).value)


def require(condition: Scalar, message: str) -> None:
    """``cf.assert``; the message begins with the name of eager's exception."""
    cf.AssertOp(condition.value, message)


def _shift_left(x: Scalar, y: Scalar) -> Scalar:
    zero, inside = _number(x, 0), _below_width(y)
    return select(inside, _plain("", "shli")(x, select(inside, y, zero)), zero)


def _shift_right(x: Scalar, y: Scalar) -> Scalar:
    inside, last = _below_width(y), _number(y, 8 * x.dtype.itemsize - 1)
    if x.dtype is torch.uint8:
        return select(inside, _plain("", "shrui")(x, select(inside, y, last)), _number(x, 0))
    return _plain("", "shrsi")(x, select(inside, y, last))


def _below_width(y: Scalar) -> Scalar:
    width = _number(y, 8 * y.dtype.itemsize)
    return Scalar(arith.cmpi(arith.CmpIPredicate.ult, y.value, width.value), torch.bool)


def _comparison(name: str) -> Rule:
    return lambda x, y: compare(name, x, y)


ELEMENTWISE: dict[str, Rule] = {
    "neg": _neg,
    "abs": _abs,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "fmod": _divided("remsi", "remui"),
    "truncdiv": _divided("divsi", "divui"),
    "maximum": _plain("maximumf", "maxsi", "maxui", "ori"),
    "minimum": _plain("minimumf", "minsi", "minui", "andi"),
    "lshift": _shift_left,
    "rshift": _shift_right,
    "bitwise_and": _plain("", "andi"),
    "bitwise_or": _plain("", "ori"),
    "bitwise_xor": _plain("", "xori"),
    "bitwise_not": _not,
    "round": _math("roundeven"),
    "truediv": _div,
    "pow": _math("powf"),
    "fmax": _plain("maxnumf", None),
    "fmin": _plain("minnumf", None),
    **{
        name: _math(name)
        for name in (
            *("sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan"),
            *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc"),
            *("floor", "ceil", "trunc", "atan2", "copysign", "fma"),
        )
    },
    **{name: _comparison(name) for name in _FLOAT_TESTS},
    "isnan": isnan,
    "logical_and": _plain("", "andi"),
    "logical_or": _plain("", "ori"),
    "logical_xor": _plain("", "xori"),
    "logical_not": _not,
    "where": select,
}
"""Row of `smelt.ops.table.TABLE` → function of its arguments, at the insertion point."""
