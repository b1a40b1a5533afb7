"""The weights of a package: one safetensors file, whose tensors lie at multiples of 64 bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from smelt.errors import SmeltError
from smelt.mlir.parameters import NAMES, save_parameters
from smelt.packages.callers.library import ALIGNMENT
from smelt.packages.manifest import digest_of


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the file; ``format``: its dtype in the words of safetensors."""

    name: str
    tensor: torch.Tensor

    @property
    def format(self) -> str:
        return NAMES[self.tensor.dtype]


@dataclass(slots=True)
class Weights:
    """The tensors of all programs of a package; equal ones are stored once."""

    found: list[Weight] = field(default_factory=list)
    numbers: dict[tuple[object, ...], int] = field(default_factory=dict)

    def add(self, name: str, tensor: torch.Tensor) -> int:
        """The number of a tensor, which is copied to contiguous memory if need be.

        Raises:
            SmeltError: SM1404, a dtype that the file cannot have.
        """
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        if tensor.dtype not in NAMES:
            raise SmeltError("SM1404", f"a package cannot hold the {tensor.dtype} of {name}")
        data = tensor.reshape(-1).view(torch.uint8).numpy().data
        key = (tensor.dtype, tuple(tensor.shape), hashlib.sha256(data).digest())
        if key not in self.numbers:
            taken = {each.name for each in self.found}
            chosen, again = name, 1
            while chosen in taken:
                again += 1
                chosen = f"{name}.{again}"
            self.numbers[key] = len(self.found)
            self.found.append(Weight(chosen, tensor))
        return self.numbers[key]

    def save(self, path: Path) -> bytes:
        """Writes the file; returns its SHA-256."""
        save_parameters(path, dict(self._padded()))
        return bytes.fromhex(digest_of(path))

    def _padded(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors with padding between them: the format has no gaps."""
        place = 0
        for number, each in enumerate(self.found):
            missing = -place % ALIGNMENT
            if missing:
                yield f"padding.{number}", torch.zeros(missing, dtype=torch.uint8)
                place += missing
            yield each.name, each.tensor
            place += each.tensor.numel() * each.tensor.element_size()
