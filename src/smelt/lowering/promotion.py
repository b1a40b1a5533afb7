"""ATen's type promotion, and the helper that makes an elementwise row one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import reduce
from typing import Any, TypeAlias

import sympy
import torch
from sympy import Expr
from sympy.logic.boolalg import Boolean

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import broadcast_index, compute_dtype, convert
from smelt.lowering.dtypes import is_low
from smelt.lowering.numbers import symbolic_number
from smelt.lowering.registry import TABLE
from smelt.lowering.tensor import Complex, Index, Tensor
from smelt.ops import ops
from smelt.symbolic import is_zero

Number: TypeAlias = "bool | int | float"
Operand: TypeAlias = "Tensor | bool | int | float | Expr | Boolean"


class Promotion(Enum):
    """The rule for an operator's compute dtype, given its operands."""

    DEFAULT = "the promoted dtype"
    INT_TO_FLOAT = "the promoted dtype; the default floating dtype for integers and booleans"
    COMPARE = "the promoted dtype; the result is bool"


class Constants:
    """Makes constants of a row's compute dtype: ``c(0.5)``."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, value: Number | Expr) -> Any:
        if isinstance(value, Expr):
            return symbolic_number(value, self.dtype)(())
        if self.dtype.is_floating_point:
            return ops.constant(float(value), self.dtype)
        return ops.constant(_wrapped(value, self.dtype), self.dtype)


Function = Callable[..., Any]
"""``function(c, *values)``: the operator on values of the compute dtype; ``c`` makes its constants."""


def named(name: str) -> Function:
    """The row of `smelt.ops.table.TABLE` with this name."""
    return lambda c, *values: getattr(ops, name)(*values)


def promote(operands: Sequence[Operand | Complex | complex]) -> torch.dtype:
    """The dtype that operands promote to: tensors with dimensions before 0-d tensors before numbers.

    >>> import sympy
    >>> promote([Tensor("x", torch.bfloat16, (sympy.Integer(2),)), 2.5])
    torch.bfloat16
    """
    tensors = [x for x in operands if isinstance(x, (Tensor, Complex))]
    numbers = [_number_dtype(x) for x in operands if not isinstance(x, (Tensor, Complex))]
    by_category = [
        [x.dtype for x in tensors if x.shape],
        [x.dtype for x in tensors if not x.shape],
        numbers,
    ]
    result: torch.dtype | None = None
    for dtypes in reversed(by_category):
        if dtypes:
            higher = reduce(torch.promote_types, dtypes)
            result = higher if result is None else _combine(higher, result)
    assert result is not None
    return result


def _combine(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    """The common dtype: lower priority counts only by a higher kind (bool < integer < floating < complex)."""
    if higher.is_complex or (higher.is_floating_point and not lower.is_complex):
        return higher
    if higher.is_floating_point:
        return higher.to_complex()
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def _number_dtype(number: Any) -> torch.dtype:
    if isinstance(number, bool) or _is_condition(number):
        return torch.bool
    if isinstance(number, int) or (isinstance(number, Expr) and number.is_integer):
        return torch.int64
    if isinstance(number, (float, Expr)):
        return torch.get_default_dtype()
    if isinstance(number, complex):
        return torch.get_default_dtype().to_complex()
    raise Unsupported(f"an operand of type {type(number).__name__}")


def elementwise(
    ctx: Builder,
    function: Function,
    *operands: Operand,
    promotion: Promotion = Promotion.DEFAULT,
    round_scalars: bool = True,
    exact_second: bool = False,
    dtype: torch.dtype | None = None,
    shape: Sequence[Expr] | None = None,
) -> Tensor:
    """A pointwise node: operands promoted and broadcast, computed in the compute dtype, rounded once.

    Args:
        function: see `Function`.
        round_scalars: whether numbers are first rounded to a low promoted dtype, as most of eager's operators
            do (the arithmetic ones do not).
        exact_second: whether a second operand that is a 0-d tensor is not rounded to a low promoted dtype
            (as in eager's products and quotients).
        dtype: the result's dtype and shape, if they are not those of the current node's (only) result.
    """
    common = promote(operands)
    if promotion is Promotion.INT_TO_FLOAT and not common.is_floating_point:
        common = torch.get_default_dtype()
    compute = compute_dtype(common)
    out = dtype or ctx.dtype
    value_dtype = torch.bool if promotion is Promotion.COMPARE else compute
    loads = [loader(x, common, compute, round_scalars) for x in operands]
    if exact_second and is_low(common) and isinstance(operands[1], Tensor) and not operands[1].shape:
        loads[1] = loader(operands[1], compute, compute)
    constants = Constants(compute)

    def inner(index: Index) -> Any:
        return convert(function(constants, *(load(index) for load in loads)), value_dtype, out)

    return ctx.pointwise(inner, dtype=out, shape=shape)


def loader(
    operand: Operand, common: torch.dtype, compute: torch.dtype, round_scalars: bool = False
) -> Callable[[Index], Any]:
    if isinstance(operand, Tensor):
        tensor = operand

        def load(index: Index) -> Any:
            value = tensor.load(broadcast_index(index, tensor.shape))
            return convert(convert(value, tensor.dtype, common), common, compute)

        return load
    if _is_condition(operand):
        return _truth(operand, compute)
    if isinstance(operand, Expr):
        return symbolic_number(operand, compute)
    number = operand
    rounds = is_low(common) and round_scalars

    def constant(index: Index) -> Any:
        value = Constants(compute)(number)
        return ops.to_dtype(ops.to_dtype(value, common), compute) if rounds else value

    return constant


def filled(ctx: Builder, value: Operand) -> Tensor:
    """The current node's result with the same number everywhere."""
    return ctx.pointwise(loader(value, ctx.dtype, ctx.dtype))


def _wrapped(value: Number, dtype: torch.dtype) -> Number:
    """A number wrapped to an integer dtype: 300 is 44 in int8."""
    if dtype is torch.bool:
        return bool(value)
    info = torch.iinfo(dtype)
    return (int(value) - info.min) % (info.max - info.min + 1) + info.min


# -- conditions on sizes -------------------------------------------------------------------------------------


def _is_condition(value: Any) -> bool:
    """Whether an operand is a condition on sizes (SymPy counts symbols as Booleans too)."""
    return isinstance(value, Boolean) and not isinstance(value, Expr)


def _truth(condition: Boolean, dtype: torch.dtype) -> Callable[[Index], Any]:
    """A loop function for a condition on sizes."""
    number = sympy.Piecewise((1, condition), (0, True))

    def load(index: Index) -> Any:
        holds = ops.ne(ops.index_expr(number, torch.int64), ops.constant(0, torch.int64))
        return convert(holds, torch.bool, dtype)

    return load


# -- registering -------------------------------------------------------------------------------------------


def pointwise(
    overload: torch._ops.OpOverload,
    function: Function | str,
    promotion: Promotion = Promotion.DEFAULT,
    *,
    round_scalars: bool = True,
    exact_second: bool = False,
    low: bool = True,
) -> None:
    """Register a row whose every argument is an operand; ``function`` may be the name of an elementwise op.

    The whole row of exp is ``pointwise(aten.exp.default, "exp", INT_TO_FLOAT)``. ``low`` False: eager has no
    kernel for float16 and bfloat16, so ATen is called and raises its error.
    """
    assert overload not in TABLE, f"{overload} has a row already"
    meaning = named(function) if isinstance(function, str) else function

    def row(ctx: Builder, *operands: Operand) -> Tensor:
        if not low and is_low(promote(operands)):
            raise Unsupported(f"eager has no kernel for {promote(operands)}")
        return elementwise(
            ctx,
            meaning,
            *operands,
            promotion=promotion,
            round_scalars=round_scalars,
            exact_second=exact_second,
        )

    TABLE[overload] = row


def is_empty(shape: Sequence[Expr]) -> bool:
    """Whether a tensor of this shape has no elements."""
    return any(is_zero(size) for size in shape)
