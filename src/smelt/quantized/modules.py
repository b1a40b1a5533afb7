"""Modules with quantized weights: planes as buffers, values computed where they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from smelt.contract import dequantize as _defined  # noqa: F401  the operator exists once this is imported
from smelt.contract.weight_formats import FORMATS

ACTIVATIONS = 32
"""The elements of a row of activations that share a scale, where weights have scales of groups."""
_LEAST = 1e-30
"""The least extreme of activations that share a scale: its inverse is finite."""


class QuantizedWeight(nn.Module):
    """A matrix [rows, columns] as planes in a format of `smelt.contract.weight_formats`.

    Planes are buffers: in the state, out of autograd. ``dtype`` is that of the values; conversions of the
    module (``model.to(torch.bfloat16)``) change it and leave the planes alone. Modules may share a weight.

    >>> planes = [torch.tensor([[1, -2]], dtype=torch.int8), torch.tensor([[0.5]])]
    >>> QuantizedWeight("int8", planes, columns=2).to(torch.bfloat16)()
    tensor([[ 0.5000, -1.0000]], dtype=torch.bfloat16)
    """

    def __init__(
        self, format: str, planes: Sequence[Tensor], columns: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.format, self.columns, self.dtype = format, columns, dtype
        for name, plane in zip(FORMATS[format].planes, planes, strict=True):
            self.register_buffer(name, plane.contiguous())

    @property
    def planes(self) -> list[Tensor]:
        return [getattr(self, name) for name in FORMATS[self.format].planes]

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.planes[0].shape[0], self.columns))

    @property
    def device(self) -> torch.device:
        return self.planes[0].device

    @property
    def nbytes(self) -> int:
        """The bytes of all planes."""
        return sum(plane.nbytes for plane in self.planes)

    def forward(self, dtype: torch.dtype | None = None) -> Tensor:
        """The values, [rows, columns]."""
        return self._values(self.planes, dtype or self.dtype)

    def rows(self, numbers: Tensor) -> Tensor:
        """The values of the rows with these numbers (integers of any shape), [..., columns]."""
        return self._values([functional.embedding(numbers, plane) for plane in self.planes], self.dtype)

    def _values(self, planes: list[Tensor], dtype: torch.dtype) -> Tensor:
        values: Tensor = torch.ops.smelt.dequantize(planes, self.format, self.columns, dtype)
        return values

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Apply a conversion, such as that of ``Module.to``: planes may move, and keep their dtypes."""
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device=self.device)).dtype
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, plane in before.items():
            after = self._buffers[name]
            if plane is not None and after is not None and after.dtype != plane.dtype:
                self._buffers[name] = plane.to(after.device)
        return self

    def extra_repr(self) -> str:
        return f"{self.format}, {self.shape[0]} x {self.columns}, {self.dtype}"


class QuantizedLinear(nn.Module):
    """``torch.nn.Linear`` with a quantized weight: ``x @ weight.T + bias``, in x's dtype.

    ``activations``: ``int8`` rounds x as well, each row with a scale of its own, or each 32 of its elements
    if the weight has scales of groups; the product is in float32 then. Weights of 6 bits leave x as it is.
    """

    bias: nn.Parameter | None

    def __init__(
        self, weight: QuantizedWeight, bias: nn.Parameter | None = None, activations: str | None = None
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        self.activations = None if FORMATS[weight.format].bits == 6 else activations
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.activations is None:
            return functional.linear(x, self.weight(x.dtype), self.bias)
        bias, wide = self.bias, torch.float32
        values = rounded_activations(x, whole=FORMATS[self.weight.format].group is None)
        product = functional.linear(values, self.weight(wide), None if bias is None else bias.to(wide))
        return product.to(x.dtype)

    def extra_repr(self) -> str:
        return "" if self.activations is None else f"activations={self.activations}"


def rounded_activations(x: Tensor, whole: bool) -> Tensor:
    """``x`` in float32, each element a multiple, from -127 to 127, of the scale of its row (``whole``) or of
    32 elements of it. These are values of planes: products with quantized weights compute with the integers.

    Where an element is not finite, those with its scale become NaN.

    >>> rounded_activations(torch.tensor([[12.7, -0.06, 0.04]]), whole=True)
    tensor([[12.7000, -0.1000,  0.0000]])
    """
    columns = x.shape[-1]
    groups = x.to(torch.float32).unflatten(-1, (-1, columns if whole else ACTIVATIONS))
    scales = groups.abs().amax(-1).clamp_min(_LEAST) / 127
    places = torch.round(groups * (1 / scales).unsqueeze(-1))
    places = torch.where(torch.isfinite(scales).unsqueeze(-1), places, 0.0)
    planes = [places.to(torch.int8).flatten(-2), scales]
    values: Tensor = torch.ops.smelt.dequantize(planes, "int8" if whole else "q8_0", columns, torch.float32)
    return values


class QuantizedEmbedding(nn.Module):
    """``torch.nn.Embedding`` with a quantized weight: only the rows that are looked up get values."""

    def __init__(self, weight: QuantizedWeight, padding_idx: int | None = None) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = weight.shape
        self.weight, self.padding_idx = weight, padding_idx

    def forward(self, numbers: Tensor) -> Tensor:
        return self.weight.rows(numbers)
