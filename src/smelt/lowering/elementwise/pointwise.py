"""Elementwise arithmetic, comparisons, logic, transcendental functions (activations are elsewhere)."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import broadcast_index, compute_dtype, convert, load_as
from smelt.lowering.dtypes import is_low
from smelt.lowering.numbers import symbolic_number
from smelt.lowering.promotion import (
    Constants,
    Function,
    Number,
    Operand,
    Promotion,
    elementwise,
    loader,
    named,
    pointwise,
    promote,
)
from smelt.lowering.registry import TABLE, lowers, lowers_named
from smelt.lowering.tensor import Tensor
from smelt.ops import ops

aten, prims = torch.ops.aten, torch.ops.prims
DEFAULT, INT_TO_FLOAT, COMPARE = Promotion.DEFAULT, Promotion.INT_TO_FLOAT, Promotion.COMPARE

# -- functions of one operand that are one elementwise op --------------------------------------------------

_UNARY_FLOAT = (
    "acos acosh asin asinh atan atanh cos cosh digamma erf erfc erfinv exp exp2 expm1 lgamma log log10 log1p "
    "log2 reciprocal rsqrt sigmoid sin sinh sqrt tan tanh"
)
for _name in _UNARY_FLOAT.split():
    pointwise(getattr(aten, _name).default, _name, INT_TO_FLOAT)

for _name in ("neg", "abs"):
    pointwise(getattr(aten, _name).default, _name)
pointwise(aten._neg_view.default, "neg")
pointwise(aten.bitwise_not.default, "bitwise_not")
pointwise(aten.logical_not.default, lambda c, x: ops.logical_not(_truth(c, x)), COMPARE)


def _truth(c: Constants, x: Any) -> Any:
    """Whether a value is not zero; NaN is not zero."""
    return x if c.dtype is torch.bool else ops.ne(x, c(0))


# -- rounding: integers stay as they are -------------------------------------------------------------------


def _copy(ctx: Builder, x: Tensor) -> Tensor:
    out = ctx.dtype
    return ctx.pointwise(lambda index: load_as(x, index, out), shape=x.shape, dtype=out)


def _rounding(name: str) -> None:
    @lowers(getattr(aten, name).default)
    def row(ctx: Builder, x: Tensor) -> Tensor:
        return elementwise(ctx, named(name), x) if x.dtype.is_floating_point else _copy(ctx, x)


for _name in ("floor", "ceil", "trunc", "round"):
    _rounding(_name)


@lowers(aten.round.decimals)
def round_decimals(ctx: Builder, x: Tensor, *, decimals: int = 0) -> Tensor:
    """Scaled by a power of ten, rounded half to even, scaled back."""
    if not x.dtype.is_floating_point:
        raise Unsupported(f"eager has no kernel for {x.dtype}")
    scale = 10.0 ** abs(decimals)
    there, back = (ops_div, ops_mul) if decimals < 0 else (ops_mul, ops_div)
    return elementwise(ctx, lambda c, v: back(ops.round(there(v, c(scale))), c(scale)), x)


def ops_mul(x: Any, y: Any) -> Any:
    return ops.mul(x, y)


def ops_div(x: Any, y: Any) -> Any:
    return ops.truediv(x, y)


# -- signs and tests ---------------------------------------------------------------------------------------


@lowers(aten.sign.default)
def sign(ctx: Builder, x: Tensor) -> Tensor:
    """The sign -1, 0 or 1; 0 for NaN, as in ATen."""
    if x.dtype is torch.bool:
        return _copy(ctx, x)

    def value(c: Constants, v: Any) -> Any:
        negative = ops.where(ops.lt(v, c(0)), c(-1), c(0)) if x.dtype is not torch.uint8 else c(0)
        return ops.where(ops.gt(v, c(0)), c(1), negative)

    return elementwise(ctx, value, x)


@lowers(aten.signbit.default)
def signbit(ctx: Builder, x: Tensor) -> Tensor:
    if x.dtype.is_floating_point:
        return elementwise(ctx, named("signbit"), x, promotion=COMPARE)
    if x.dtype is torch.bool:
        return elementwise(ctx, lambda c, v: c(False), x, promotion=COMPARE)
    return elementwise(ctx, lambda c, v: ops.lt(v, c(0)), x, promotion=COMPARE)


def _float_test(overload: torch._ops.OpOverload, test: Function, integers: bool) -> None:
    """A row for a test on floating values; ``integers`` is the answer for all others."""

    @lowers(overload)
    def row(ctx: Builder, x: Tensor) -> Tensor:
        if x.dtype.is_floating_point:
            return elementwise(ctx, test, x, promotion=COMPARE)
        return ctx.pointwise(lambda index: ops.constant(integers, torch.bool))


_INF, _NAN = float("inf"), float("nan")
_float_test(aten.isnan.default, named("isnan"), False)
_float_test(aten.isinf.default, named("isinf"), False)
_float_test(aten.isfinite.default, lambda c, x: ops.lt(ops.abs(x), c(_INF)), True)
# -- sums, products, quotients -----------------------------------------------------------------------------


def _add(ctx: Builder, x: Operand, y: Operand, factor: Number | Expr) -> Tensor:
    """``x + factor * y``; in floating point the product is not rounded separately, as in eager's kernel."""
    if isinstance(factor, Expr):
        return _add_scaled(ctx, x, y, factor)

    def value(c: Constants, a: Any, b: Any) -> Any:
        if c.dtype is torch.bool:
            return ops.bitwise_or(a, b) if factor else a
        if factor == 1:
            return ops.add(a, b)
        if factor == -1:
            return ops.sub(a, b)
        if c.dtype.is_floating_point:
            return ops.fma(b, c(factor), a)
        return ops.add(a, ops.mul(b, c(factor)))

    return elementwise(ctx, value, x, y, round_scalars=False)


def _add_scaled(ctx: Builder, x: Operand, y: Operand, factor: Expr) -> Tensor:
    """`_add` with a factor that depends on sizes."""
    symbolic_number(factor, torch.float64)  # refuses numbers without a rule

    def value(c: Constants, a: Any, b: Any) -> Any:
        if c.dtype is torch.bool:
            number = symbolic_number(factor, torch.int64)(())
            return ops.bitwise_or(a, ops.bitwise_and(b, ops.ne(number, ops.constant(0, torch.int64))))
        number = symbolic_number(factor, c.dtype)(())
        return ops.fma(b, number, a) if c.dtype.is_floating_point else ops.add(a, ops.mul(b, number))

    return elementwise(ctx, value, x, y, round_scalars=False)


@lowers(aten.add.Tensor)
def add(ctx: Builder, x: Operand, y: Operand, *, alpha: Number = 1) -> Tensor:
    return _add(ctx, x, y, alpha)


@lowers(aten.add.Scalar)
def add_scalar(ctx: Builder, x: Operand, y: Operand, alpha: Number = 1) -> Tensor:
    return _add(ctx, x, y, alpha)


@lowers(aten.sub.Tensor)
def sub(ctx: Builder, x: Operand, y: Operand, *, alpha: Number = 1) -> Tensor:
    return _add(ctx, x, y, -alpha)


@lowers(aten.sub.Scalar)
def sub_scalar(ctx: Builder, x: Operand, y: Operand, alpha: Number = 1) -> Tensor:
    return _add(ctx, x, y, -alpha)


def _product(c: Constants, x: Any, y: Any) -> Any:
    return ops.bitwise_and(x, y) if c.dtype is torch.bool else ops.mul(x, y)


for _overload in (aten.mul.Tensor, aten.mul.Scalar):
    pointwise(_overload, _product, round_scalars=False, exact_second=True)
for _overload in (aten.div.Tensor, aten.div.Scalar):
    pointwise(_overload, "truediv", INT_TO_FLOAT, round_scalars=False, exact_second=True)


def _floor_quotient(c: Constants, x: Any, y: Any) -> Any:
    return ops.floordiv(x, y)


def _whole_quotient(c: Constants, x: Any, y: Any) -> Any:
    return ops.trunc(ops.truediv(x, y)) if c.dtype.is_floating_point else ops.truncdiv(x, y)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(ctx: Builder, x: Operand, y: Operand, *, rounding_mode: str | None) -> Tensor:
    if rounding_mode is None:
        quotient: Tensor = TABLE[aten.div.Tensor](ctx, x, y)
        return quotient
    function = _floor_quotient if rounding_mode == "floor" else _whole_quotient
    return elementwise(ctx, function, x, y, round_scalars=False, exact_second=True)


for _overload in (aten.floor_divide.default, aten.floor_divide.Scalar):
    pointwise(_overload, _floor_quotient, round_scalars=False, exact_second=True)
for _name in ("fmod", "remainder"):
    for _overload_name in getattr(aten, _name).overloads():
        if "out" not in _overload_name:
            pointwise(getattr(getattr(aten, _name), _overload_name), _name)


@lowers_named("prims::fma")
def fma(ctx: Builder, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """``x * y + z`` with one rounding: Dynamo's form of ``addcmul_`` with a number that is not a constant."""
    return elementwise(ctx, lambda c, a, b, d: ops.fma(a, b, d), x, y, z)


# -- powers ------------------------------------------------------------------------------------------------

_POWERS: dict[float, Function] = {
    0.5: named("sqrt"),
    2.0: lambda c, x: ops.mul(x, x),
    3.0: lambda c, x: ops.mul(ops.mul(x, x), x),
    -0.5: named("rsqrt"),
    -1.0: named("reciprocal"),
    -2.0: lambda c, x: ops.reciprocal(ops.mul(x, x)),
}


def _power(c: Constants, x: Any, y: Any) -> Any:
    if c.dtype is torch.bool:
        return ops.bitwise_or(x, ops.bitwise_not(y))
    return ops.pow(x, y) if c.dtype.is_floating_point else ops.int_pow(x, y)


pointwise(aten.pow.Tensor_Tensor, _power)


@lowers(aten.pow.Tensor_Scalar)
def pow_scalar(ctx: Builder, x: Tensor, exponent: Number | Expr) -> Tensor:
    """Eager's special exponents: 0 gives ones, 1 a copy, halves and small integers roots and products."""
    if isinstance(exponent, Expr):
        return elementwise(ctx, _power, x, exponent)
    if exponent == 0:
        return elementwise(ctx, lambda c, *_: c(1), x, exponent)
    if exponent == 1:
        return _copy(ctx, x)
    special, dtype = _POWERS.get(float(exponent)), promote([x, exponent])
    if not dtype.is_floating_point:
        special = special if exponent in (2, 3) else None
        if exponent < 0:
            ctx.check(sympy.false, "Integers to negative integer powers are not allowed.")
    if dtype is torch.float16 and abs(exponent) == 0.5:
        special = None  # ATen has no root here: (-inf) ** 0.5 is inf, in the other dtypes NaN
    if special is None:
        return elementwise(ctx, _power, x, exponent)
    return elementwise(ctx, lambda c, v, _: special(c, v), x, exponent)


@lowers(aten.pow.Scalar)
def pow_base(ctx: Builder, base: Number, exponent: Tensor) -> Tensor:
    if base == 1:
        return elementwise(ctx, lambda c, *_: c(1), base, exponent)
    return elementwise(ctx, _power, base, exponent)


# -- extremes ----------------------------------------------------------------------------------------------

pointwise(aten.maximum.default, "maximum")
pointwise(aten.minimum.default, "minimum")
pointwise(aten.fmax.default, lambda c, x, y: (ops.fmax if c.dtype.is_floating_point else ops.maximum)(x, y))
pointwise(aten.fmin.default, lambda c, x, y: (ops.fmin if c.dtype.is_floating_point else ops.minimum)(x, y))


def clamp_value(c: Constants, x: Any, low: Number | None, high: Number | None) -> Any:
    """``x`` clamped to two numbers; NaN stays, the upper bound wins if they cross (``at::clamp``)."""
    if any(bound is not None and math.isnan(bound) for bound in (low, high)):
        return c(float("nan"))
    if low is not None:
        x = ops.where(ops.lt(x, c(low)), c(low), x)
    if high is not None:
        x = ops.where(ops.gt(x, c(high)), c(high), x)
    return x


@lowers(aten.clamp.default)
def clamp(ctx: Builder, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    bounds = [bound for bound in (low, high) if bound is not None]
    if any(isinstance(bound, Expr) for bound in bounds):
        return clamp_tensor(ctx, x, low, high)
    return elementwise(ctx, lambda c, v, *_: clamp_value(c, v, low, high), x, *bounds)


@lowers(aten.hardtanh.default)
def hardtanh(ctx: Builder, x: Tensor, low: Number = -1, high: Number = 1) -> Tensor:
    return clamp(ctx, x, low, high)


@lowers(aten.clamp.Tensor)
def clamp_tensor(ctx: Builder, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    operands = [x, *(bound for bound in (low, high) if bound is not None)]

    def value(c: Constants, v: Any, *bounds: Any) -> Any:
        v = v if low is None else ops.maximum(v, bounds[0])
        return v if high is None else ops.minimum(v, bounds[-1])

    return elementwise(ctx, value, *operands)


@lowers(aten.clamp_min.default)
def clamp_min(ctx: Builder, x: Tensor, low: Number) -> Tensor:
    return clamp(ctx, x, low, None)


@lowers(aten.clamp_max.default)
def clamp_max(ctx: Builder, x: Tensor, high: Number) -> Tensor:
    return clamp(ctx, x, None, high)


pointwise(aten.clamp_min.Tensor, "maximum")
pointwise(aten.clamp_max.Tensor, "minimum")

# -- comparisons and logic ---------------------------------------------------------------------------------

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    for _overload in (getattr(aten, _name).Tensor, getattr(aten, _name).Scalar):
        pointwise(_overload, _name, COMPARE)


def _logical(name: str) -> Function:
    return lambda c, x, y: getattr(ops, name)(_truth(c, x), _truth(c, y))


for _name in ("logical_and", "logical_or", "logical_xor"):
    pointwise(getattr(aten, _name).default, _logical(_name), COMPARE)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    for _overload_name in ("Tensor", "Scalar", "Scalar_Tensor"):
        pointwise(getattr(getattr(aten, _name), _overload_name), _name)
for _name, _shift in (("bitwise_left_shift", "lshift"), ("bitwise_right_shift", "rshift")):
    for _overload_name in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        pointwise(getattr(getattr(aten, _name), _overload_name), _shift)
for _name, _shift in (("__lshift__", "lshift"), ("__rshift__", "rshift")):
    for _overload_name in ("Tensor", "Scalar"):
        pointwise(getattr(getattr(aten, _name), _overload_name), _shift)


@lowers(aten.where.self, aten.where.Scalar, aten.where.ScalarOther, aten.where.ScalarSelf)
def where(ctx: Builder, condition: Tensor, x: Operand, y: Operand) -> Tensor:
    def test(index: Any) -> Any:
        return load_as(condition, broadcast_index(index, condition.shape), torch.bool)

    return select(ctx, test, x, y)


def select(ctx: Builder, test: Any, x: Operand, y: Operand, dtype: torch.dtype | None = None) -> Tensor:
    """``x`` if ``test(index)`` holds, else ``y``, in the current result's dtype."""
    out = dtype or ctx.dtype
    first, second = loader(x, out, out), loader(y, out, out)
    return ctx.pointwise(lambda index: ops.where(test(index), first(index), second(index)), dtype=out)


# -- two operands, floating --------------------------------------------------------------------------------

pointwise(aten.atan2.default, "atan2", INT_TO_FLOAT)
pointwise(aten.hypot.default, "hypot")
for _overload in (aten.copysign.Tensor, aten.copysign.Scalar):
    pointwise(_overload, "copysign", INT_TO_FLOAT)


@lowers(aten.nextafter.default)
def nextafter(ctx: Builder, x: Tensor, y: Tensor) -> Tensor:
    dtype = ctx.dtype
    if not is_low(dtype):
        return elementwise(ctx, named("nextafter"), x, y)
    loads = [loader(operand, dtype, torch.float32) for operand in (x, y)]

    def inner(index: Any) -> Any:
        """The neighbour is the next or previous bit pattern of the dtype itself, not of the compute dtype."""
        start, goal = (load(index) for load in loads)
        zero, one = ops.constant(0.0, torch.float32), ops.constant(1, torch.int16)
        word = ops.bitcast(ops.to_dtype(start, dtype), torch.int16)
        inwards = ops.ne(ops.lt(start, goal), ops.gt(start, zero))
        stepped = ops.bitcast(ops.where(inwards, ops.sub(word, one), ops.add(word, one)), dtype)
        neighbour = ops.to_dtype(stepped, torch.float32)
        least = ops.copysign(ops.to_dtype(ops.bitcast(one, dtype), torch.float32), goal)
        neighbour = ops.where(ops.eq(start, zero), least, neighbour)
        neighbour = ops.where(ops.eq(start, goal), goal, neighbour)
        lost = ops.logical_or(ops.isnan(start), ops.isnan(goal))
        return ops.to_dtype(ops.where(lost, ops.constant(_NAN, torch.float32), neighbour), dtype)

    return ctx.pointwise(inner)


def _log_add(exponential: str, factor: float) -> Function:
    """``log(e**x + e**y)`` based on the larger operand, so that nothing overflows; equal infinities stay."""

    def value(c: Constants, x: Any, y: Any) -> Any:
        largest = ops.maximum(x, y)
        small = getattr(ops, exponential)(ops.neg(ops.abs(ops.sub(x, y))))
        same = ops.logical_and(ops.isinf(x), ops.eq(x, y))
        return ops.where(same, x, ops.fma(ops.log1p(small), c(factor), largest))

    return value


pointwise(aten.logaddexp.default, _log_add("exp", 1.0))
pointwise(aten.logaddexp2.default, _log_add("exp2", 1 / math.log(2)))


def _times_log(logarithm: str) -> Function:
    """``x * log(y)``; 0 if x is 0 and y is not NaN."""

    def value(c: Constants, x: Any, y: Any) -> Any:
        product = ops.where(ops.eq(x, c(0)), c(0), ops.mul(x, getattr(ops, logarithm)(y)))
        return ops.where(ops.isnan(y), c(float("nan")), product)

    return value


for _overload in (aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other):
    pointwise(_overload, _times_log("log"), INT_TO_FLOAT)
for _overload_name in ("default", "self_scalar", "other_scalar"):
    pointwise(getattr(aten.special_xlog1py, _overload_name), _times_log("log1p"), INT_TO_FLOAT)


# -- small compositions ------------------------------------------------------------------------------------


@lowers(aten.square.default)
def square(ctx: Builder, x: Tensor) -> Tensor:
    return pow_scalar(ctx, x, 2)


pointwise(
    aten.special_ndtr.default,
    lambda c, x: ops.mul(c(0.5), ops.erfc(ops.mul(x, c(-math.sqrt(0.5))))),
    INT_TO_FLOAT,
)


@lowers(aten.logit.default)
def logit(ctx: Builder, x: Tensor, eps: float | None = None) -> Tensor:
    """``log(x / (1 - x))``; each step, ``eps`` and ``1 - eps`` are rounded to the dtype, as in eager."""
    dtype = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
    compute = compute_dtype(dtype)

    def rounded(value: Any) -> Any:
        return convert(convert(value, compute, dtype), dtype, compute)

    def value(c: Constants, v: Any) -> Any:
        if eps is not None:
            low = float(torch.tensor(eps, dtype=dtype))
            v = clamp_value(c, v, low, float(1 - torch.tensor(eps, dtype=dtype)))
        return ops.log(rounded(ops.truediv(v, rounded(ops.sub(c(1), v)))))

    return elementwise(ctx, value, x, promotion=INT_TO_FLOAT)


# -- prims that PyTorch's decompositions leave -------------------------------------------------------------

_PRIMS_UNARY = (
    "abs acos acosh asin asinh atan atanh cos cosh digamma erf erfc exp exp2 expm1 floor ceil trunc "
)
_PRIMS_UNARY += "round lgamma log log10 log1p log2 neg reciprocal rsqrt sin sinh sqrt tan tanh bitwise_not"
_PRIMS_BINARY = "add sub mul maximum minimum eq ne lt le gt ge atan2 hypot nextafter fmod remainder pow "
_PRIMS_BINARY += "bitwise_and bitwise_or bitwise_xor"
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_RENAMED = {"shift_left": "lshift", "shift_right_arithmetic": "rshift"}


def _register_prims() -> None:
    special: dict[str, Function] = {"mul": _product, "pow": _power, "div": _whole_or_true}
    for name in (*_PRIMS_UNARY.split(), *_PRIMS_BINARY.split(), "div", *_RENAMED):
        packet = getattr(prims, name, None)
        if packet is not None:
            function = special.get(name) or named(_RENAMED.get(name, name))
            pointwise(packet.default, function, COMPARE if name in _COMPARISONS else DEFAULT)


def _whole_or_true(c: Constants, x: Any, y: Any) -> Any:
    return ops.truediv(x, y) if c.dtype.is_floating_point else ops.truncdiv(x, y)


_register_prims()


@lowers(prims.where.default)
def prims_where(ctx: Builder, condition: Tensor, x: Operand, y: Operand) -> Tensor:
    return where(ctx, condition, x, y)


# -- other names of the same operators, which symbolic tracing leaves ---------------------------------------

_ALIASES = {
    "true_divide": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "negative": "neg",
    "absolute": "abs",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
    "fix": "trunc",
    "special_expit": "sigmoid",
}


def _register_aliases() -> None:
    for alias, name in _ALIASES.items():
        packet = getattr(aten, alias)
        for overload_name in packet.overloads():
            overload = getattr(getattr(aten, name), overload_name, None)
            if overload is not None and overload in TABLE:
                lowers(getattr(packet, overload_name))(TABLE[overload])


_register_aliases()
