"""The torch function that defines each operator of `smelt.ops.table.TABLE`, one line per row."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch

from smelt.loops.philox import philox
from smelt.ops import TABLE, Rule

Tensor = torch.Tensor


ASSERTIONS = {each.__name__: each for each in (RuntimeError, ValueError, TypeError, AssertionError)}
"""Exceptions that a user's assertion may raise: a check ``"ValueError: message"``."""


def index_error(check: bool | str) -> Exception:
    """The exception that ``ops.indirect_index`` raises if ``check`` fails.

    >>> index_error(True), index_error("RuntimeError"), index_error("ValueError: n is odd")
    (IndexError('index out of range in self'), RuntimeError('index out of bounds'), ValueError('n is odd'))
    """
    kind, said, message = str(check).partition(": ")
    if said:
        return ASSERTIONS[kind](message)
    if check == "RuntimeError":
        return RuntimeError("index out of bounds")
    return IndexError("index out of range in self")


def apply(name: str, args: Sequence[Tensor]) -> Tensor:
    """Operator ``name`` on tensors that broadcast; float16 and bfloat16 compute in float32 and round once.

    Raises:
        TypeError: the operator does not take these dtypes.

    >>> apply("add", (torch.tensor([1.0]), torch.tensor(2.0)))
    tensor([3.])
    """
    dtype = args[-1].dtype
    low = dtype in (torch.float16, torch.bfloat16)
    if low and TABLE[name].rule in (Rule.SAME, Rule.FLOAT) and name != "nextafter":
        return _FUNCTIONS[name](*(arg.float() for arg in args)).to(dtype)
    return _FUNCTIONS[name](*args)


def _truncated(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="trunc")


def _fused_multiply_add(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    if x.dtype is torch.float64:
        return _exact_fused(x, y, z)
    if x.ndim == y.ndim == z.ndim == 0 and x.dtype is torch.float32:
        return torch.tensor(_to_odd(float(x) * float(y), float(z)), dtype=torch.float64).to(x.dtype)
    product = x.double() * y.double()  # exact
    addend = z.double()
    total = product + addend
    # Round the float64 sum to odd, so that float32 rounds only once (Boldo and Melquiond 2008).
    shadow = total - product
    error = (product - (total - shadow)) + (addend - shadow)
    bits = total.contiguous().view(torch.int64)
    towards = torch.where(error > 0, torch.inf, -torch.inf).double()
    inexact = total.isfinite() & error.isfinite() & (error != 0) & (bits % 2 == 0)
    return torch.where(inexact, torch.nextafter(total, towards), total).to(x.dtype)


def _to_odd(product: float, addend: float) -> float:
    """The sum of two numbers, rounded to odd: `_fused_multiply_add` for the scalars of interpreters."""
    total = product + addend
    shadow = total - product
    error = (product - (total - shadow)) + (addend - shadow)
    if error == 0 or not (math.isfinite(total) and math.isfinite(error)):
        return total
    (bits,) = struct.unpack("<q", struct.pack("<d", total))
    return total if bits % 2 else math.nextafter(total, math.copysign(math.inf, error))


def _exact_fused(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    x, y, z = torch.broadcast_tensors(x, y, z)
    plain = torch.where(x.isfinite() & y.isfinite() & z.isinf(), z, x * y + z)
    results = []
    for a, b, c, rough in zip(*(t.reshape(-1).tolist() for t in (x, y, z, plain))):
        finite = all(abs(number) < float("inf") for number in (a, b, c))
        exact = Fraction(a) * Fraction(b) + Fraction(c) if finite else Fraction(0)
        results.append(_rounded(exact, rough) if exact != 0 else rough)
    return torch.tensor(results, dtype=torch.float64).reshape(plain.shape)


def _rounded(exact: Fraction, rough: float) -> float:
    try:
        return float(exact)
    except OverflowError:
        return rough


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sgn,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floordiv": torch.floor_divide,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "truncdiv": _truncated,
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "bitwise_not": torch.bitwise_not,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinv": torch.erfinv,
    "ndtr": torch.special.ndtr,
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "sigmoid": torch.sigmoid,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "truediv": torch.true_divide,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "nextafter": torch.nextafter,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "int_pow": torch.pow,
    "philox": philox,
    "fma": _fused_multiply_add,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "signbit": torch.signbit,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "logical_not": torch.logical_not,
    "where": torch.where,
}
