"""``tvm.runtime``: tensors are PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from smelt.relax import VirtualMachine

Tensor = torch.Tensor


def tensor(value: Any, device: Any = None, mem_scope: Any = None) -> torch.Tensor:
    """A tensor with the elements of an array; the array stays as it is."""
    del device, mem_scope
    if isinstance(value, torch.Tensor):
        return value.clone()
    return torch.from_numpy(np.array(value))


def empty(shape: Any, dtype: str = "float32", device: Any = None) -> torch.Tensor:
    """A tensor that is not filled."""
    del device
    return torch.empty(tuple(shape), dtype=getattr(torch, dtype))


def cpu(index: int = 0) -> str:
    """This machine's CPU."""
    del index
    return "cpu"


def device(name: str, index: int = 0) -> str:
    """A device by its name."""
    del index
    return name


__all__ = ["Tensor", "VirtualMachine", "cpu", "device", "empty", "tensor"]
