"""The values of quantized weights: a pointwise loop function of their planes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.contract import dequantize as _defined  # noqa: F401  the operator exists once this is imported
from smelt.contract.weight_formats import FORMATS, LANES, Format, formula
from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert, load_as
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import FloorDiv, Mod

_F32, _I32 = torch.float32, torch.int32


@lowers(torch.ops.smelt.dequantize.default)
def dequantize(
    ctx: Builder, planes: Sequence[Tensor], format: str, columns: Any, dtype: torch.dtype
) -> Tensor:
    layout = FORMATS[format]
    named = dict(zip(layout.planes, planes, strict=True))

    def inner_fn(index: Index) -> Any:
        *row, column = index
        quant = _quant(named, layout, row, column)
        group = sympy.Integer(0) if layout.group is None else FloorDiv(column, sympy.Integer(layout.group))
        if layout.offset:
            quant = ops.sub(quant, ops.constant(layout.offset, _I32))
        if layout.zero_points:
            quant = ops.sub(quant, load_as(named["zero_points"], [*row, group], _I32))
        scale, minimum = (_scaled(named, each, layout, row, column, group) for each in ("scales", "mins"))
        return convert(formula(ops, ops.to_dtype(quant, _F32), scale, minimum), _F32, dtype)

    return ctx.pointwise(inner_fn)


def _quant(named: dict[str, Tensor], layout: Format, row: Index, column: Expr) -> Any:
    """The quant of a column, int32."""
    if layout.bits == 8:
        return load_as(named["quants"], [*row, column], _I32)
    quant = _field(named["quants"], row, column, 4)
    if "highs" not in named:
        return quant
    high = ops.lshift(_field(named["highs"], row, column, 2), ops.constant(4, _I32))
    return ops.bitwise_or(quant, high)


def _field(plane: Tensor, row: Index, column: Expr, bits: int) -> Any:
    """The number of ``bits`` bits that `smelt.contract.weight_formats.pack` has put into a byte, int32."""
    lanes, columns = sympy.Integer(LANES), sympy.Integer(LANES * 8 // bits)
    byte = FloorDiv(column, columns) * lanes + Mod(column, lanes)
    shift = bits * FloorDiv(Mod(column, columns), lanes)
    shifted = ops.rshift(load_as(plane, [*row, byte], _I32), ops.index_expr(shift, _I32))
    return ops.bitwise_and(shifted, ops.constant((1 << bits) - 1, _I32))


def _scaled(
    named: dict[str, Tensor], name: str, layout: Format, row: Index, column: Expr, group: Expr
) -> Any:
    """The scale or minimum of a group in float32, or None if there is none."""
    if name not in named:
        return None
    number = load_as(named[name], [*row, group], _F32)
    if not layout.block:
        return number
    block = FloorDiv(column, sympy.Integer(layout.block))
    return ops.mul(load_as(named[f"block_{name}"], [*row, block], _F32), number)
