"""Tensors that the program holds, as literals in the module."""

from __future__ import annotations

from typing import Any

import torch

from smelt.mlir.attributes import elements
from smelt.mlir.bindings import ir
from smelt.mlir.torch_dialect.types import element, type_of

_INLINE = 8


def literal(tensor: torch.Tensor, name: str) -> Any:
    """``torch.vtensor.literal`` of a tensor, at the current insertion point.

    More than a few elements become a resource ``name`` that shares the tensor's memory.

    Raises:
        Unsupported: the Torch dialect has no such type.
    """
    value = elements(tensor, ir.Type.parse(element(tensor.dtype)), name, _INLINE)
    made = ir.Operation.create(
        "torch.vtensor.literal", results=[type_of(tensor)], attributes={"value": value}
    )
    return made.results[0]
