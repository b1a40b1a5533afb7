"""The operator ``smelt::dequantize``: the values of quantized weights, a pure function of their planes.

Its lowering row is a pointwise loop function, so a product with the weights may compute them in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from smelt.contract.dropout import LIBRARY
from smelt.contract.weight_formats import FORMATS, dequantized

LIBRARY.define("dequantize(Tensor[] planes, str format, SymInt columns, ScalarType dtype) -> Tensor")


@torch.library.impl(LIBRARY, "dequantize", "CompositeExplicitAutograd")
def _values(planes: Sequence[Tensor], format: str, columns: int, dtype: torch.dtype) -> Tensor:
    """[..., columns] of planes [..., n], whose number and order `smelt.contract.weight_formats` gives."""
    return dequantized(planes, format, dtype)


@torch.library.register_fake("smelt::dequantize", lib=LIBRARY)
def _metadata(planes: Sequence[Tensor], format: str, columns: int, dtype: torch.dtype) -> Tensor:
    wanted = FORMATS[format].planes
    torch._check(len(planes) == len(wanted), lambda: f"{format} has planes {wanted}, not {len(planes)}")
    torch._check(dtype.is_floating_point, lambda: f"weights are not {dtype}")
    return planes[0].new_empty((*planes[0].shape[:-1], columns), dtype=dtype)
