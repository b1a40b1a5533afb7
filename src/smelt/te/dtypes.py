"""The dtypes of tensor expressions: their names, and the promotion of two operands."""

from __future__ import annotations

from typing import Any

import torch

from smelt.te.errors import refuse

KINDS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""Name of a dtype → torch's."""

NAMES = {kind: name for name, kind in KINDS.items()}


def kind_of(dtype: Any) -> torch.dtype:
    """The dtype with a name, or of an object whose text is one.

    >>> kind_of("float16"), kind_of(torch.int8)
    (torch.float16, torch.int8)

    Raises:
        SmeltError: SM1103, tensor expressions have no such dtype.
    """
    if isinstance(dtype, torch.dtype) and dtype in NAMES:
        return dtype
    found = KINDS.get(str(dtype))
    if found is None:
        refuse("SM1103", f"{dtype} is no dtype of tensor expressions", remedy=f"one of {', '.join(KINDS)}")
    return found


def promoted(left: torch.dtype, right: torch.dtype) -> torch.dtype:
    """The dtype to which two operands are converted: floating before integer before bool, then the wider.

    An unsigned integer wins over a signed one of its width.

    >>> promoted(torch.int64, torch.float16), promoted(torch.uint8, torch.int8)
    (torch.float16, torch.uint8)

    Raises:
        SmeltError: SM1103, float16 and bfloat16 have no common dtype of their width.
    """
    if left == right:
        return left
    ranks = [(kind.is_floating_point, kind is not torch.bool, kind.itemsize) for kind in (left, right)]
    if ranks[0] != ranks[1]:
        return left if ranks[0] > ranks[1] else right
    if left.is_floating_point:
        names = f"{NAMES[left]} and {NAMES[right]}"
        refuse("SM1103", f"{names} have no common dtype", remedy='convert one: x.astype("float32")')
    return left if left is torch.uint8 else right


def number(value: Any, kind: torch.dtype) -> float | int | bool:
    """A Python number converted to ``kind``."""
    if kind is torch.bool:
        return bool(value)
    return float(value) if kind.is_floating_point else int(value)


__all__ = ["KINDS", "NAMES", "kind_of", "number", "promoted"]
