"""A small model as a package: a dynamic size, a state, named outputs, an index that can be wrong."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Any

import torch

from smelt.packages.api import package

CARGO = shutil.which("cargo") or shutil.which("cargo", path=Path.home() / ".cargo/bin")


class Small(torch.nn.Module):
    """Takes x [batch, 8] and ids [batch] of 0 … 4, counts its calls, gives y [batch, 8] and total [batch]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)
        self.table = torch.nn.Embedding(5, 8)
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.add_(1)
        y = torch.relu(self.linear(x)) + self.table(ids)
        return {"y": y, "total": y.sum(-1)}


def small_arguments(batch: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments of `Small`."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 8, generator=generator), torch.arange(batch) % 5


def quick_levels(*others: str) -> list[str] | None:
    """The least instruction set of x86, which compiles sooner than three, and ``others``."""
    return ["x86-64", *others] if platform.machine() == "x86_64" else None


def small_package(path: Path, **options: Any) -> Path:
    """Packages `Small` with a dynamic batch, or what ``options`` say."""
    batch = torch.export.Dim("batch", min=1, max=64)
    return package(
        **{
            "model": Small().eval(),
            "args": small_arguments(),
            "path": path,
            "levels": quick_levels(),
            "dynamic_shapes": {"x": {0: batch}, "ids": {0: batch}},
            **options,
        }
    )
