"""Attention as kernels: gradients, few queries to many keys, `flex_attention`.

``python -m tests.codegen.triton.attention interpret|compile|everywhere`` prints a line of JSON for each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from tests.codegen.triton import cuda_attention, programs


def operands(
    queries: int, keys: int, width: int = 24, heads: int = 2, fewer: int = 2, batch: int = 1
) -> list[Tensor]:
    """query, key, value."""
    shapes = (batch, heads, queries, width), *[(batch, fewer, keys, width)] * 2
    return [torch.randn(shape) for shape in shapes]


def trained(*shapes: int, dtype: torch.dtype = torch.float32, **more: int) -> list[Tensor]:
    """The gradient by the result, and operands whose gradients are asked for."""
    query, key, value = (each.to(dtype).requires_grad_() for each in operands(*shapes, **more))
    return [torch.randn_like(query), query, key, value]


def of_any_length(given: list[Tensor]) -> list[Tensor]:
    """Operands of which the compiled program takes any number of keys, and of queries if these are many."""
    for each in given:
        if each.shape[2] > 1:
            torch._dynamo.mark_dynamic(each, 2)
    return given


def sdpa(**how: Any) -> Callable[..., Tensor]:
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **how)


def gradients(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """The result and its gradients by query, key and value."""

    def both(upstream: Tensor, q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        out = function(q, k, v, *more)
        return (out, *torch.autograd.grad(out, (q, k, v), upstream))

    return both


SLOPES = torch.linspace(0.1, 1.0, 4)


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.tanh(score) * SLOPES[h] + 0.1 * (k - q)


def softcap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return 2.0 * torch.tanh(score / 2.0)


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((q - k).abs() < 5) & (q != 7)


def flexed(score: Callable[..., Tensor] | None, block: BlockMask | None = None, **how: Any) -> Any:
    return lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=block, **how)


def masked(mask: Callable[..., Tensor], size: int) -> BlockMask:
    return create_block_mask(mask, None, None, size, size, "cpu", BLOCK_SIZE=16)


ATTENTION: programs.Programs = {
    "gradients": (gradients(sdpa()), lambda: trained(40, 37)),
    "gradients_of_any_length": (gradients(sdpa()), lambda: of_any_length(trained(40, 37))),
    "gradients_causal": (gradients(sdpa(is_causal=True)), lambda: trained(45, 45)),
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
    "gradients_of_wide_heads": (
        gradients(sdpa()),
        lambda: trained(70, 40, 128, heads=1, fewer=1, dtype=torch.bfloat16),
    ),
    "gradients_of_wide_float32": (
        gradients(sdpa(is_causal=True)),
        lambda: trained(33, 33, 100, heads=1, fewer=1),
    ),
    "decode_of_any_length": (sdpa(), lambda: of_any_length(operands(1, 600))),
    "decode": (sdpa(), lambda: operands(1, 600)),
    "decode_of_groups": (sdpa(enable_gqa=True), lambda: operands(1, 530, 16, heads=4)),
    "decode_masked": (sdpa(), lambda: [*operands(3, 700), torch.rand(3, 700) > 0.3]),
    "decode_causal": (sdpa(is_causal=True), lambda: operands(3, 600)),
    "flex": (gradients(flexed(alibi, masked(causal, 40))), lambda: trained(40, 40, 24)),
    "flex_softcap": (gradients(flexed(softcap)), lambda: trained(37, 50, 16)),
    "flex_window": (
        gradients(flexed(None, masked(window, 40), enable_gqa=True)),
        lambda: trained(40, 40, 16, heads=4),
    ),
    "flex_in_bfloat16": (
        gradients(flexed(alibi, masked(causal, 40))),
        lambda: trained(40, 40, 32, dtype=torch.bfloat16),
    ),
    "flex_decode": (flexed(alibi, enable_gqa=True), lambda: operands(1, 600, 16, heads=4)),
    "cuda_flash": (gradients(cuda_attention.flash(True)), lambda: trained(40, 40, dtype=torch.bfloat16)),
    "cuda_efficient": (
        gradients(cuda_attention.efficient()),
        lambda: [*trained(20, 40), torch.randn(20, 40).where(torch.rand(20, 40) > 0.3, -float("inf"))],
    ),
    "cuda_cudnn": (gradients(cuda_attention.cudnn()), lambda: trained(20, 40)),
    "cuda_sums": (cuda_attention.sums, lambda: operands(20, 40)),
    "cuda_block": (cuda_attention.block, cuda_attention.block_operands),
    "cuda_block_by_aten": (cuda_attention.block, cuda_attention.block_operands),
}

if __name__ == "__main__":
    flex._validate_device = lambda *_: None  # on a CPU PyTorch refuses gradients of `flex_attention`
    programs.main(sys.argv[1], ATTENTION, lambda name: not name.endswith("by_aten"))
