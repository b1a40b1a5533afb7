"""The elementwise rows in the Torch dialect, for the dtypes that torch-mlir's pipelines compile correctly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from smelt.mlir.arrays.dialect import Array
from smelt.mlir.arrays.elementwise import ON_BOOLS, shift
from smelt.mlir.arrays.evaluate import through
from smelt.mlir.torch_dialect.operations import Operations
from smelt.ops import TABLE, ops
from smelt.ops.table import result_dtype

Rule = Callable[..., Any]

_NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32)


def elementwise(dialect: Operations, name: str, *args: Array) -> Any:
    """A row of `smelt.ops.table.TABLE`; NotImplemented if the pipelines have no correct form.

    Rows of integers are computed in int64: ``row(x, y)`` → ``narrow(row(wide(x), wide(y)))``. MLIR's integers
    are signless, and upstream passes mostly treat uint8 as int8.
    """
    operand = args[-1].dtype
    if operand is torch.bool and name in _ON_BOOLS:
        return through(dialect, _ON_BOOLS[name], *args)
    if operand in _NARROW and name not in _OF_BITS:
        dtype = result_dtype(TABLE[name], [arg.dtype for arg in args])
        wide = [dialect.convert(arg, torch.int64) if arg.dtype == operand else arg for arg in args]
        return dialect.convert(dialect.apply(name, *wide), dtype)
    rule = ELEMENTWISE.get(name)
    return NotImplemented if rule is None else rule(dialect, *args)


def widened(dialect: Operations, x: Array) -> Array:
    """uint8 as int64."""
    signed = dialect.plain_convert(x, torch.int64)
    return dialect.write("bitwise_and.Scalar", [signed, 255], torch.int64, x.shape)


def _plain(name: str, dialect: Operations, *args: Array) -> Array:
    return dialect.write(name, args, args[-1].dtype, args[0].shape)


def _scaled(name: str, dialect: Operations, x: Array, y: Array) -> Array:
    """``add`` and ``sub``, which have a factor for the second operand."""
    return dialect.write(f"{name}.Tensor", [x, y, 1], x.dtype, x.shape)


def _compare(name: str, dialect: Operations, x: Array, y: Array) -> Array:
    return dialect.write(f"{name}.Tensor", [x, y], torch.bool, x.shape)


def _eq(dialect: Operations, x: Array, y: Array) -> Array:
    """``eq``, by ``ne`` for floats: upstream folds ``x == x`` to True, which is wrong for NaN."""
    if not x.dtype.is_floating_point:
        return _compare("eq", dialect, x, y)
    return _plain("logical_not", dialect, _compare("ne", dialect, x, y))


def _truncdiv(dialect: Operations, x: Array, y: Array) -> Array:
    return dialect.write("div.Tensor_mode", [x, y, "trunc"], x.dtype, x.shape)


def _of_floats(name: str, dialect: Operations, *args: Array) -> Any:
    return _plain(name, dialect, *args) if args[0].dtype.is_floating_point else NotImplemented


def _shift(name: str, dialect: Operations, x: Array, y: Array) -> Array:
    full_name = f"bitwise_{'left' if name == 'lshift' else 'right'}_shift.Tensor"
    return shift(dialect, name, lambda distance: _plain(full_name, dialect, x, distance), x, y)


def _c(x: Any, number: float | int | bool) -> Any:
    return ops.constant(number, x.dtype)


def _signbit(x: Any) -> Any:
    """The sign bit; False for NaN, whose sign is not accessible."""
    zero = _c(x, 0.0)
    negative_zero = ops.logical_and(ops.eq(x, zero), ops.lt(ops.truediv(_c(x, 1.0), x), zero))
    return ops.logical_or(ops.lt(x, zero), negative_zero)


def _extreme(name: str, dialect: Operations, x: Array, y: Array) -> Array:
    """``maximum`` or ``minimum`` with NaN if an operand is NaN, unlike upstream's."""
    if not x.dtype.is_floating_point:
        return _plain(name, dialect, x, y)
    beats = ops.gt if name == "maximum" else ops.lt

    def chosen(one: Any, other: Any) -> Any:
        return ops.where(ops.logical_or(beats(one, other), ops.isnan(one)), one, other)

    return through(dialect, chosen, x, y)


def _fmod(dialect: Operations, x: Array, y: Array) -> Any:
    """``fmod`` by ``remainder``, which is equal and exact for nonnegative operands."""
    if not x.dtype.is_floating_point:
        return NotImplemented
    sizes = [_plain("abs", dialect, each) for each in (x, y)]
    return dialect.apply("copysign", _plain("remainder.Tensor", dialect, *sizes), x)


_OF_BITS = (
    *("add", "sub", "mul", "where", "eq", "ne"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
)
"""Rows that are equal for signed and unsigned integers of one width."""

_ON_BOOLS: dict[str, Callable[..., Any]] = {
    **ON_BOOLS,
    "eq": lambda x, y: ops.logical_not(ops.logical_xor(x, y)),
    "ne": lambda x, y: ops.logical_xor(x, y),
    **{f"bitwise_{name}": partial(lambda name, *args: getattr(ops, f"logical_{name}")(*args), name)
       for name in ("and", "or", "xor", "not")},
}  # fmt: skip

ELEMENTWISE: dict[str, Rule] = {
    "add": partial(_scaled, "add"),
    "sub": partial(_scaled, "sub"),
    "mul": partial(_plain, "mul.Tensor"),
    "truediv": partial(_plain, "div.Tensor"),
    "truncdiv": _truncdiv,
    "where": partial(_plain, "where.self"),
    **{name: partial(_compare, name) for name in ("ne", "lt", "le", "gt", "ge")},
    "eq": _eq,
    **{name: partial(_extreme, name) for name in ("maximum", "minimum")},
    **{name: partial(_plain, name) for name in ("neg", "abs")},
    "fmod": _fmod,
    **{name: partial(_plain, name) for name in ("logical_and", "logical_or", "logical_xor", "logical_not")},
    **{f"bitwise_{name}": partial(_plain, f"bitwise_{name}.Tensor") for name in ("and", "or", "xor")},
    "bitwise_not": partial(_plain, "bitwise_not"),
    **{name: partial(_shift, name) for name in ("lshift", "rshift")},
    **{
        name: partial(_of_floats, name)
        for name in (
            *("sqrt", "exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "tanh"),
            *("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "atan2"),
            *("floor", "ceil", "trunc", "round", "erf"),
        )
    },
    "pow": partial(_of_floats, "pow.Tensor_Tensor"),
    "signbit": lambda dialect, x: through(dialect, _signbit, x),
}
"""Row of `smelt.ops.table.TABLE` → rule of (dialect, *arrays); NotImplemented for unsupported dtypes."""
