"""Attributes of StableHLO operations, from Python numbers (under a context)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def attribute(text: str) -> Any:
    """An attribute by its text: ``#stablehlo<comparison_direction LT>``."""
    from torch_mlir import ir

    return ir.Attribute.parse(text)


def i64(number: int) -> Any:
    """``number : i64``"""
    from torch_mlir import ir

    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def i64s(numbers: Sequence[Any]) -> Any:
    """``array<i64: …>``"""
    from torch_mlir import ir

    return ir.DenseI64ArrayAttr.get([int(number) for number in numbers])
