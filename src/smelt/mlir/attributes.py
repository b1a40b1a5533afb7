"""Attributes and types of MLIR operations from Python numbers and tensors (under a context)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sympy import Expr

from smelt.mlir.bindings import ir

_AS_INTEGERS = {
    torch.bfloat16: torch.int16,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fn: torch.uint8,
}
"""The dtypes that NumPy lacks."""


def attribute(text: str) -> Any:
    """An attribute parsed from its text: ``#stablehlo<comparison_direction LT>``."""
    return ir.Attribute.parse(text)


def i32(number: int) -> Any:
    """``number : i32``"""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)


def i64(number: int) -> Any:
    """``number : i64``"""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def i32s(numbers: Sequence[Any]) -> Any:
    """``array<i32: …>``"""
    return ir.DenseI32ArrayAttr.get([int(number) for number in numbers])


def i64s(numbers: Sequence[Any]) -> Any:
    """``array<i64: …>``"""
    return ir.DenseI64ArrayAttr.get([int(number) for number in numbers])


def ranked(kind: Any, shape: Sequence[Expr]) -> Any:
    """``tensor<?x3xf32>``: the tensor type of an element type; sizes that are not constants are dynamic."""
    unknown = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get([int(size) if size.is_Integer else unknown for size in shape], kind)


def splat(number: torch.Tensor, sizes: Sequence[int], kind: Any) -> Any:
    """``dense<number>`` with shape ``sizes`` and element type ``kind``; ``number`` has one element."""
    whole = ir.RankedTensorType.get(list(sizes), kind)
    if number.dtype.is_floating_point:
        return ir.DenseElementsAttr.get_splat(whole, ir.FloatAttr.get(kind, number.item()))
    unsigned = number.dtype is torch.uint8 and "u" not in str(kind)
    value = number.view(torch.int8) if unsigned else number
    return ir.DenseElementsAttr.get_splat(whole, ir.IntegerAttr.get(kind, int(value.item())))


def elements(tensor: torch.Tensor, kind: Any, name: str | None = None, inline: int = 0) -> Any:
    """An attribute of element type ``kind`` with the elements of a tensor.

    If ``name`` is given, more than ``inline`` elements become a resource of this name that shares the
    tensor's memory.
    """
    whole = ir.RankedTensorType.get(list(tensor.shape), kind)
    if tensor.numel() == 0:
        return ir.Attribute.parse(f"dense<> : {whole}")
    values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype in _AS_INTEGERS:
        values = values.view(_AS_INTEGERS[tensor.dtype])
    if tensor.dtype is torch.bool:
        return ir.DenseElementsAttr.get(values.numpy())
    array: Any = values.numpy()
    if name is not None and (tensor.numel() > inline or tensor.is_complex()):
        return ir.DenseResourceElementsAttr.get_from_buffer(array, name, whole)
    if tensor.is_complex():
        return ir.Attribute.parse(f"dense<{_nested(values)}> : {whole}")
    return ir.DenseElementsAttr.get(array, type=kind, shape=list(tensor.shape))


def _nested(part: torch.Tensor) -> str:
    if part.dim() == 0:
        number = complex(part.item())
        return f"({number.real!r}, {number.imag!r})"
    return "[" + ", ".join(map(_nested, part)) + "]"
