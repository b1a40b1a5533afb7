"""Dtypes and numbers in generated C++."""

from __future__ import annotations

import math

import numpy as np
import torch

CPP_TYPES: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "bool",
}
"""dtype → the type of one value; ``<type>_buffer`` is the type in memory (bool: one byte, 0 or 1)."""

ERROR_CODES = {True: "INDEX_ERROR", "IndexError": "INDEX_ERROR", "RuntimeError": "BOUNDS_ERROR"}
"""The exception of an indirect index's check → the error number (``smelt.h``)."""


def lanes(vector_bytes: int, dtypes: list[torch.dtype]) -> int:
    """The number of lanes of a VECTOR loop over values of these dtypes on a machine with such vectors.

    The widest floating dtype decides (bf16 and f16 compute in float32); integers decide only where there are
    no floats, so that an int64 index together with float32 data does not halve the lanes.

    >>> lanes(64, [torch.float32, torch.int64, torch.bool])
    16
    >>> lanes(32, [torch.float64])
    4
    """
    floats = [max(dtype.itemsize, 4) for dtype in dtypes if dtype.is_floating_point]
    widths = floats or [dtype.itemsize for dtype in dtypes] or [4]
    return max(2, vector_bytes // max(widths))


def literal(value: float | int | bool, dtype: torch.dtype) -> str:
    """A number as a C++ expression of exactly the type of ``dtype``.

    >>> literal(0.1, torch.float32), literal(-3, torch.int64), literal(1, torch.bool)
    ('0.1f', 'i64(-3)', 'true')
    """
    if dtype is torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return _integer(int(value), dtype)
    number = float(value)
    if dtype is torch.float64:
        return _floating(number, repr(number), "")
    with np.errstate(over="ignore"):
        single = np.float32(number)
    text = _floating(float(single), str(single), "f")
    return text if dtype is torch.float32 else f"narrow<{CPP_TYPES[dtype]}>({text})"


def _floating(number: float, text: str, suffix: str) -> str:
    if math.isnan(number):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}__builtin_inf{suffix}()"
    return (text if any(c in text for c in ".e") else text + ".0") + suffix


def _integer(number: int, dtype: torch.dtype) -> str:
    info = torch.iinfo(dtype)
    number = (number - info.min) % (info.max - info.min + 1) + info.min
    if dtype is torch.int64 and number == info.min:
        return "(-i64(9223372036854775807) - 1)"
    return f"{CPP_TYPES[dtype]}({number})"
