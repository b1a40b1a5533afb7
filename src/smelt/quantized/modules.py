"""Modules with quantized weights: planes as buffers, values computed where they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from smelt.contract import dequantize as _defined  # noqa: F401  the operator exists once this is imported
from smelt.contract.weight_formats import FORMATS


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
    """``torch.nn.Linear`` with a quantized weight: ``x @ weight.T + bias``, in x's dtype."""

    bias: nn.Parameter | None

    def __init__(self, weight: QuantizedWeight, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight(x.dtype), self.bias)


class QuantizedEmbedding(nn.Module):
    """``torch.nn.Embedding`` with a quantized weight: only the rows that are looked up get values."""

    def __init__(self, weight: QuantizedWeight, padding_idx: int | None = None) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = weight.shape
        self.weight, self.padding_idx = weight, padding_idx

    def forward(self, numbers: Tensor) -> Tensor:
        return self.weight.rows(numbers)
