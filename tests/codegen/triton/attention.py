"""Attention as kernels: gradients, few queries to many keys, `flex_attention`.

``python -m tests.codegen.triton.attention interpret|compile`` prints a line of JSON for each program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.codegen.triton import programs


def operands(
    queries: int, keys: int, width: int = 24, heads: int = 2, fewer: int = 2, batch: int = 1
) -> list[Tensor]:
    """query, key, value."""
    shapes = (batch, heads, queries, width), *[(batch, fewer, keys, width)] * 2
    return [torch.randn(shape) for shape in shapes]


def trained(*shapes: int, dtype: torch.dtype = torch.float32, **more: int) -> list[Tensor]:
    """Operands whose gradients are asked for."""
    return [each.to(dtype).requires_grad_() for each in operands(*shapes, **more)]


def sdpa(**how: Any) -> Callable[..., Tensor]:
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **how)


def gradients(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """The result and its gradients by query, key and value."""

    def both(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        out = function(q, k, v, *more)
        weights = torch.linspace(-1.0, 1.0, out.shape[-1], dtype=out.dtype)
        return (out, *torch.autograd.grad((out * weights).sum(), (q, k, v)))

    return both


ATTENTION: programs.Programs = {
    "gradients": (gradients(sdpa()), lambda: trained(70, 75)),
    "gradients_causal": (gradients(sdpa(is_causal=True)), lambda: trained(70, 70)),
    "gradients_masked": (
        gradients(sdpa()),
        lambda: [*trained(20, 40), torch.rand(20, 40) > 0.3],
    ),
    "gradients_of_groups": (
        gradients(sdpa(is_causal=True, enable_gqa=True)),
        lambda: trained(40, 40, 16, heads=4),
    ),
    "gradients_in_bfloat16": (
        gradients(sdpa(is_causal=True)),
        lambda: trained(40, 40, 32, dtype=torch.bfloat16),
    ),
    "wide_heads": (gradients(sdpa(is_causal=True)), lambda: trained(256, 256, 128)),
    "wide_heads_in_bfloat16": (
        gradients(sdpa(is_causal=True)),
        lambda: trained(256, 256, 128, dtype=torch.bfloat16),
    ),
    "heads_of_64_in_bfloat16": (gradients(sdpa()), lambda: trained(256, 256, 64, dtype=torch.bfloat16)),
    "decode": (sdpa(), lambda: operands(1, 600)),
    "decode_of_groups": (sdpa(enable_gqa=True), lambda: operands(1, 530, 16, heads=4)),
    "decode_masked": (sdpa(), lambda: [*operands(3, 1000), torch.rand(3, 1000) > 0.3]),
    "decode_causal": (sdpa(is_causal=True), lambda: operands(3, 600)),
}

if __name__ == "__main__":
    programs.main(sys.argv[1], ATTENTION, products=True)
