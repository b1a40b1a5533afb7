"""Tensors that the program holds, as constants of the module."""

from __future__ import annotations

from typing import Any

import torch

from smelt.mlir import bindings
from smelt.mlir.attributes import elements
from smelt.mlir.bindings import arith, ir

_INLINE = 16
"""So many elements are printed with the operation; more become a resource."""


def literal(tensor: torch.Tensor, name: str) -> Any:
    """``arith.constant`` of a tensor, at the insertion point; complex numbers have their parts in a last
    dimension of two, as pipelines hang at resources of complex elements.

    More than a few elements become a resource called ``name``, which is the tensor's own memory, not copied.

    Raises:
        Unsupported: MLIR has no such element type.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    kind = bindings.element_type(tensor.dtype)
    whole = ir.RankedTensorType.get(list(tensor.shape), kind)
    return arith.ConstantOp(whole, elements(tensor, kind, name, _INLINE)).result
