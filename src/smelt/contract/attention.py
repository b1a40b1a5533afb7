"""Attention taken apart, for programs that are handed to other compilers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def flash_attention_for_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """``aten._scaled_dot_product_flash_attention_for_cpu``: attention and the logarithms of its sums.

    query (N, H, L, E); key, value (N, H, S, E). 16-bit floats are computed in float32. A row of which all is
    masked gives zeros, and what is returned lies in memory as the kernel's results do, (N, L, H, E): views
    of it have been traced.

    >>> query = torch.ones(1, 1, 2, 4)
    >>> flash_attention_for_cpu(query, query, query)[0].shape
    torch.Size([1, 1, 2, 4])
    """
    if dropout_p != 0.0:
        raise NotImplementedError("attention with dropout")  # eager's kernel refuses it as well
    wide = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.matmul(query.to(wide) * factor, key.to(wide).transpose(-2, -1))
    if is_causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        else:
            scores = scores + attn_mask.to(wide)
    found = torch.matmul(aten._safe_softmax(scores, -1), value.to(wide)).to(query.dtype)
    sums = torch.logsumexp(scores, -1)
    return (
        found.transpose(1, 2).contiguous().transpose(1, 2),
        sums.transpose(1, 2).contiguous().transpose(1, 2),
    )


ATTENTION: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: flash_attention_for_cpu
}
"""ATen overload → function that computes it from simpler ones."""
