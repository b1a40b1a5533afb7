"""Complex numbers as two real values: arithmetic, functions, tests, creation and conversion of elements.

A loop function computes both parts and returns one of them; if one loop stores both, compilers share the
common work. The memory layout is ATen's: both parts of a number are adjacent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from sympy import Expr
from sympy.logic.boolalg import Boolean

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.complex import math as by_parts
from smelt.lowering.complex.math import PairFunction, number
from smelt.lowering.dims import broadcast_index, convert, fill, load_as
from smelt.lowering.dtypes import supported
from smelt.lowering.layouts import pair, real_dtype
from smelt.lowering.promotion import Constants, loader, promote
from smelt.lowering.registry import lowers_complex
from smelt.lowering.shapes.views import reshape
from smelt.lowering.tensor import Complex, Index, Pair, Tensor
from smelt.ops import ops
from smelt.symbolic import as_expr

aten, prims = torch.ops.aten, torch.ops.prims
ComplexOperand: TypeAlias = "Tensor | Complex | bool | int | float | complex | Expr | Boolean"

# -- elementwise -------------------------------------------------------------------------------------------


def elementwise(
    ctx: Builder, function: PairFunction, *operands: ComplexOperand, shape: Sequence[Expr] | None = None
) -> Complex:
    """A pointwise node for each part: operands promoted and broadcast, as parts of the compute dtype."""
    value, within = _computed(function, operands)
    out = ctx.dtype

    def part(which: int) -> Tensor:
        return ctx.pointwise(lambda index: convert(value(index)[which], within, out), shape=shape, dtype=out)

    return Complex(part(0), part(1))


def real_elementwise(
    ctx: Builder, function: PairFunction, *operands: ComplexOperand, shape: Sequence[Expr] | None = None
) -> Tensor:
    """The same for a function whose values are real."""
    value, within = _computed(function, operands)
    out = ctx.dtype if shape is None else within
    return ctx.pointwise(lambda index: convert(value(index), within, out), shape=shape, dtype=out)


def test(
    ctx: Builder, function: PairFunction, *operands: ComplexOperand, shape: Sequence[Expr] | None = None
) -> Tensor:
    """The same for a function whose values are booleans."""
    value, _ = _computed(function, operands)
    return ctx.pointwise(value, shape=shape, dtype=torch.bool)


def _computed(
    function: PairFunction, operands: Sequence[ComplexOperand]
) -> tuple[Callable[[Index], Any], torch.dtype]:
    common = promote(operands)
    if not common.is_complex:
        common = torch.promote_types(common, torch.get_default_dtype()).to_complex()
    if not supported(common):
        raise Unsupported(f"{common} has no loop functions")
    within = common.to_real()
    constants = Constants(within)
    loads = [pair_loader(each, within) for each in operands]
    return lambda index: function(constants, *(load(index) for load in loads)), within


def pair_loader(operand: ComplexOperand, dtype: torch.dtype) -> Callable[[Index], Pair]:
    """Loads both parts of an operand in ``dtype``; the imaginary part of a real operand is 0."""
    if isinstance(operand, Complex):
        parts = operand

        def load(index: Index) -> Pair:
            at = broadcast_index(index, parts.shape)
            return Pair(*(load_as(part, at, dtype) for part in parts.parts))

        return load
    if isinstance(operand, complex):
        return lambda index: number(Constants(dtype), operand)
    real = loader(operand, dtype, dtype)
    return lambda index: Pair(real(index), ops.constant(0.0, dtype))


def _register() -> None:
    functions: dict[str, PairFunction] = {
        **{name: getattr(by_parts, name) for name in ("mul", "div", "neg", "reciprocal", "rsqrt")},
        **{name: getattr(by_parts, name) for name in ("exp", "exp2", "expm1", "log", "log1p", "sqrt")},
        **{name: getattr(by_parts, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
        **{name: getattr(by_parts, name) for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
        "sigmoid": by_parts.sigmoid,
        "log2": by_parts.log_to(2),
        "log10": by_parts.log_to(10),
        "square": by_parts.square,
        **dict.fromkeys(("_conj", "_conj_physical", "conj_physical", "_conj_copy"), by_parts.conj),
        **dict.fromkeys(("_neg_view", "_neg_view_copy"), by_parts.neg),
    }
    for name, function in functions.items():
        for overload in _forms(name):
            lowers_complex(overload)(_row(elementwise, function))
    lowers_complex(prims.conj.default, prims.conj_physical.default)(_row(elementwise, by_parts.conj))
    for name, function in {"abs": by_parts.length, "angle": by_parts.angle}.items():
        lowers_complex(getattr(aten, name).default)(_row(real_elementwise, function))
    for name in ("eq", "ne"):
        for overload in _forms(name):
            lowers_complex(overload)(_row(test, getattr(by_parts, name)))
    tests = {"isnan": by_parts.is_nan, "isinf": by_parts.is_inf, "isfinite": by_parts.is_finite}
    for name, function in tests.items():
        lowers_complex(getattr(aten, name).default)(_row(test, function))
    for name in ("not", "and", "or", "xor"):
        lowers_complex(getattr(aten, f"logical_{name}").default)(_row(test, _logical(f"logical_{name}")))


def _forms(name: str) -> list[Any]:
    """The overloads for tensors and for numbers that compute the same."""
    packet = getattr(aten, name)
    return [getattr(packet, form) for form in packet.overloads() if form in ("default", "Tensor", "Scalar")]


def _row(elementwise: Callable[..., Any], function: PairFunction) -> Callable[..., Any]:
    return lambda ctx, *operands: elementwise(ctx, function, *operands)


def _logical(name: str) -> PairFunction:
    return lambda c, *values: getattr(ops, name)(*(by_parts.truth(c, value) for value in values))


_register()


@lowers_complex(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(ctx: Builder, x: ComplexOperand, y: ComplexOperand, *, rounding_mode: str | None) -> Complex:
    if rounding_mode is not None:
        raise Unsupported("a rounded quotient of complex numbers")
    return elementwise(ctx, by_parts.div, x, y)


def _sum(ctx: Builder, name: str, x: ComplexOperand, y: ComplexOperand, alpha: Any) -> Complex:
    combine: PairFunction = getattr(by_parts, name)
    if alpha == 1:
        return elementwise(ctx, combine, x, y)
    if isinstance(alpha, Expr):
        raise Unsupported("complex numbers times a size")
    return elementwise(ctx, lambda c, a, b: combine(c, a, by_parts.mul(c, number(c, alpha), b)), x, y)


@lowers_complex(aten.add.Tensor, aten.add.Scalar)
def add(ctx: Builder, x: ComplexOperand, y: ComplexOperand, alpha: Any = 1) -> Complex:
    return _sum(ctx, "add", x, y, alpha)


@lowers_complex(aten.sub.Tensor, aten.sub.Scalar)
def sub(ctx: Builder, x: ComplexOperand, y: ComplexOperand, alpha: Any = 1) -> Complex:
    return _sum(ctx, "sub", x, y, alpha)


@lowers_complex(aten.pow.Tensor_Tensor)
def pow_tensor(ctx: Builder, x: ComplexOperand, y: ComplexOperand) -> Complex:
    return elementwise(ctx, by_parts.pow_, x, y)


@lowers_complex(aten.pow.Tensor_Scalar)
def pow_scalar(ctx: Builder, x: ComplexOperand, exponent: Any) -> Complex:
    if isinstance(exponent, Expr):
        return elementwise(ctx, by_parts.pow_, x, exponent)
    if exponent in (0, 1):
        return elementwise(ctx, lambda c, v, _: v if exponent else number(c, 1), x, exponent)
    found = by_parts.power(exponent)
    return elementwise(ctx, lambda c, v, _: found(c, v), x, exponent)


@lowers_complex(aten.pow.Scalar)
def pow_base(ctx: Builder, base: Any, exponent: ComplexOperand) -> Complex:
    if base == 1:
        return elementwise(ctx, lambda c, *_: number(c, 1), base, exponent)
    return elementwise(ctx, by_parts.pow_, base, exponent)


# -- real numbers ↔ complex ones ---------------------------------------------------------------------------


def as_complex(ctx: Builder, x: Tensor | Complex) -> Complex:
    """Real numbers as complex ones."""
    return x if isinstance(x, Complex) else Complex(x, fill(ctx, x.shape, x.dtype, 0))


@lowers_complex(aten.complex.default)
def create(ctx: Builder, real: Tensor, imaginary: Tensor) -> Complex:
    def part(x: Tensor) -> Tensor:
        return ctx.pointwise(lambda index: x.load(broadcast_index(index, x.shape)), dtype=x.dtype)

    return Complex(part(real), part(imaginary))


@lowers_complex(aten.polar.default)
def polar(ctx: Builder, size: Tensor, turn: Tensor) -> Complex:
    return elementwise(ctx, lambda c, a, b: by_parts.polar(c, a.real, b.real), size, turn)


@lowers_complex(aten.view_as_complex.default)
def view_as_complex(ctx: Builder, x: Tensor) -> Complex:
    return Complex(*pair(x))


@lowers_complex(aten.view_as_complex_copy.default)
def view_as_complex_copy(ctx: Builder, x: Tensor) -> Complex:
    return _to(ctx, Complex(*pair(x)), ctx.result.dtype)


@lowers_complex(aten.view_as_real.default)
def view_as_real(ctx: Builder, x: Complex) -> Tensor:
    return ctx.pairs(x)


@lowers_complex(aten.view_as_real_copy.default)
def view_as_real_copy(ctx: Builder, x: Complex) -> Tensor:
    return ctx.pointwise(ctx.pairs(x).load)


@lowers_complex(prims.real.default)
def real(ctx: Builder, x: Complex) -> Tensor:
    return x.real


@lowers_complex(prims.imag.default)
def imag(ctx: Builder, x: Complex) -> Tensor:
    return x.imaginary


@lowers_complex(aten.view.dtype)
def view_dtype(ctx: Builder, x: Tensor | Complex, dtype: torch.dtype) -> Tensor | Complex:
    """Pairs of real numbers as complex ones, or the other way, along the last dimension."""
    if dtype == x.dtype:
        return x
    if isinstance(x, Complex) and dtype == x.real.dtype:
        return reshape(ctx.pairs(x), ctx.shape)
    if isinstance(x, Tensor) and dtype.is_complex and real_dtype(dtype) == x.dtype:
        return Complex(*pair(reshape(x, (*ctx.shape, as_expr(2)))))
    raise Unsupported(f"view of {x.dtype} as {dtype}")


def _to(ctx: Builder, x: Tensor | Complex, dtype: torch.dtype) -> Any:
    """A copy of ``x`` as ``dtype``."""
    if not supported(dtype):
        raise Unsupported(f"conversion to {dtype}")
    within = real_dtype(dtype)

    def copy(part: Tensor) -> Tensor:
        return ctx.pointwise(lambda index: load_as(part, index, within), shape=part.shape, dtype=within)

    if dtype.is_complex:
        return Complex(*(copy(part) for part in as_complex(ctx, x).parts))
    if not isinstance(x, Complex):
        return copy(x)
    if dtype is torch.bool:
        return test(ctx, by_parts.truth, x, shape=x.shape)
    return copy(x.real)


@lowers_complex(
    *(aten.clone.default, aten.contiguous.default, aten.lift_fresh_copy.default, aten.resolve_conj.default),
    aten.resolve_neg.default,
)
def clone(ctx: Builder, x: Complex, *, memory_format: torch.memory_format | None = None) -> Complex:
    return _to(ctx, x, x.dtype)


@lowers_complex(aten._to_copy.default)
def to_copy(ctx: Builder, x: Any, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    return _to(ctx, x, dtype or x.dtype)


@lowers_complex(prims.convert_element_type.default, aten.to.dtype)
def to_dtype(ctx: Builder, x: Any, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
    return _to(ctx, x, dtype)


@lowers_complex(aten.copy.default)
def copied(ctx: Builder, x: Any, source: Any, non_blocking: bool = False) -> Any:
    """``source`` broadcast to ``x``'s shape, in its dtype."""

    def part(of: Tensor, within: torch.dtype) -> Tensor:
        return ctx.pointwise(
            lambda index: load_as(of, broadcast_index(index, of.shape), within), shape=x.shape, dtype=within
        )

    if not isinstance(x, Complex):
        return part(_to(ctx, source, x.dtype), x.dtype)
    return Complex(*(part(of, x.real.dtype) for of in as_complex(ctx, source).parts))


# -- from nothing ------------------------------------------------------------------------------------------


def _constant(ctx: Builder, value: Any) -> Complex:
    load, dtype = pair_loader(value, ctx.dtype), ctx.dtype
    return Complex(
        ctx.pointwise(lambda index: load(index).real, dtype=dtype),
        ctx.pointwise(lambda index: load(index).imaginary, dtype=dtype),
    )


@lowers_complex(aten.full.default, aten.full_like.default, prims.full.default, prims.full_like.default)
def full(ctx: Builder, like: Any, value: Any, **kwargs: Any) -> Any:
    return _filled(ctx, value)


@lowers_complex(aten.scalar_tensor.default, prims.scalar_tensor.default)
def scalar_tensor(ctx: Builder, value: Any, **kwargs: Any) -> Any:
    return _filled(ctx, value)


@lowers_complex(prims.fill.default)
def filled(ctx: Builder, x: Any, value: Any) -> Any:
    return _filled(ctx, value)


@lowers_complex(
    aten.empty.memory_format,
    *(aten.empty_strided.default, aten.new_empty_strided.default, aten.empty_permuted.default),
    *(prims.empty_strided.default, prims.empty_permuted.default),
)
def zeros(ctx: Builder, *args: Any, **kwargs: Any) -> Any:
    return _filled(ctx, 0)


def _filled(ctx: Builder, value: Any) -> Any:
    """The result filled with a number; a real result takes only the shape from a complex tensor."""
    if ctx.result.dtype.is_complex:
        return _constant(ctx, value)
    if isinstance(value, (complex, Complex)):
        raise Unsupported("real numbers from a complex one")
    return ctx.pointwise(loader(value, ctx.dtype, ctx.dtype))
