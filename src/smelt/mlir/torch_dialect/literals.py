"""Tensors that the program holds, as literals of the module."""

from __future__ import annotations

from typing import Any

import torch

from smelt.mlir.torch_dialect.types import element, type_of

_INLINE = 8
_AS_INTEGERS = {
    torch.bfloat16: torch.int16,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fn: torch.uint8,
}


def literal(tensor: torch.Tensor, name: str) -> Any:
    """``torch.vtensor.literal`` of a tensor, at the current insertion point.

    More than a few elements become a resource called ``name``, which is the tensor's own memory, not copied.

    Raises:
        Unsupported: the Torch dialect has no such type.
    """
    from torch_mlir import ir

    return ir.Operation.create(
        "torch.vtensor.literal", results=[type_of(tensor)], attributes={"value": _elements(tensor, name)}
    ).results[0]


def _elements(tensor: torch.Tensor, name: str) -> Any:
    from torch_mlir import ir

    kind = element(tensor.dtype)
    shape = "".join(f"{size}x" for size in tensor.shape)
    whole = ir.Type.parse(f"tensor<{shape}{kind}>")
    if tensor.numel() == 0:
        return ir.Attribute.parse(f"dense<> : {whole}")
    values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype in _AS_INTEGERS:
        values = values.view(_AS_INTEGERS[tensor.dtype])
    if tensor.dtype is torch.bool:
        return ir.DenseElementsAttr.get(values.numpy())
    array: Any = values.numpy()
    if tensor.numel() <= _INLINE and not tensor.dtype.is_complex:
        return ir.DenseElementsAttr.get(array, type=ir.Type.parse(kind), shape=list(tensor.shape))
    return ir.DenseResourceElementsAttr.get_from_buffer(array, name, whole)
