"""Dtypes on which loop functions compute."""

from __future__ import annotations

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
_SUPPORTED = frozenset((*FLOATS, *INTEGERS, *COMPLEX, torch.bool))


def supported(dtype: torch.dtype) -> bool:
    """Whether loop functions can hold values of this dtype: not quantized, float8, …; complex is two values.

    >>> supported(torch.bfloat16), supported(torch.float8_e5m2)
    (True, False)
    """
    return dtype in _SUPPORTED


def is_low(dtype: torch.dtype) -> bool:
    """Whether values of the dtype are computed in float32 and rounded back after each ATen operator."""
    return dtype in (torch.float16, torch.bfloat16)
