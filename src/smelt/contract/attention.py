"""Decomposition of attention, for programs that are exported to other compilers."""

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

    query (N, H, L, E); key, value (N, H, S, E), or with fewer heads, each for a group of queries' heads.
    16-bit floats are computed in float32. A fully masked row gives zeros. Results have the kernel's memory
    layout, (N, L, H, E), because views of them have been traced.

    >>> query = torch.ones(1, 1, 2, 4)
    >>> flash_attention_for_cpu(query, query, query)[0].shape
    torch.Size([1, 1, 2, 4])
    """
    if dropout_p != 0.0:
        raise NotImplementedError("attention with dropout")  # eager's kernel refuses this too
    found, total = attended(query, key, value, is_causal, attn_mask, scale)
    return _heads_inside(found), _heads_inside(total)


def flash_attention_for_cpu_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``aten._scaled_dot_product_flash_attention_for_cpu_backward``: the gradients by query, key and value.

    Shapes, dtypes and layout as in `flash_attention_for_cpu`; grad_out and out are (N, H, L, E), logsumexp is
    (N, H, L). A fully masked row has no gradient.

    >>> query, sums = torch.ones(1, 1, 2, 4), torch.full((1, 1, 2), 2.0)
    >>> backward = flash_attention_for_cpu_backward(query, query, query, query, query, sums, 0.0, False)
    >>> [gradient.shape for gradient in backward] == [query.shape] * 3
    True
    """
    if dropout_p != 0.0:
        raise NotImplementedError("attention with dropout")
    return gradients(grad_out, query, key, value, out, logsumexp, is_causal, attn_mask, scale)


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    attn_mask: Tensor | None,
    scale: float | None,
    kept: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The result and the logarithms of the sums; ``kept`` (N, H, L, S): the factors of P (dropout)."""
    wide = _computed_in(query)
    key, value = _for_each_head(key, query), _for_each_head(value, query)
    scores = _scores(query, key, is_causal, attn_mask, scale)
    shares = _left(aten._safe_softmax(scores, -1), kept)
    return torch.matmul(shares, value.to(wide)).to(query.dtype), torch.logsumexp(scores, -1)


def gradients(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    attn_mask: Tensor | None,
    scale: float | None,
    kept: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `attended` by query, key and value, each with memory layout (N, L, H, …)."""
    wide = _computed_in(query)
    factor, heads = _factor(query, scale), key.shape[1]
    key, value = _for_each_head(key, query), _for_each_head(value, query)
    scores = _scores(query, key, is_causal, attn_mask, scale)
    masked = logsumexp.unsqueeze(-1) == -math.inf
    shares = torch.exp(scores - logsumexp.to(wide).masked_fill(logsumexp == -math.inf, 0.0).unsqueeze(-1))
    shares = shares.masked_fill(masked, 0.0)
    upstream, values = grad_out.to(wide), value.to(wide)
    by_value = torch.matmul(_left(shares, kept).transpose(-2, -1), upstream)
    by_shares = _left(torch.matmul(upstream, values.transpose(-2, -1)), kept)
    by_scores = shares * (by_shares - (upstream * out.to(wide)).sum(-1, keepdim=True)) * factor
    by_query = torch.matmul(by_scores, key.to(wide))
    by_key = torch.matmul(by_scores.transpose(-2, -1), query.to(wide))
    by_key, by_value = (
        each.unflatten(1, (heads, -1)).sum(2) if heads != query.shape[1] else each
        for each in (by_key, by_value)
    )
    by_query, by_key, by_value = (
        _heads_inside(each.to(query.dtype)) for each in (by_query, by_key, by_value)
    )
    return by_query, by_key, by_value


def _left(shares: Tensor, kept: Tensor | None) -> Tensor:
    return shares if kept is None else shares * kept


def _for_each_head(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values repeated to as many heads as the queries: consecutive query heads share one."""
    size = query.shape[1] // x.shape[1]
    if x.shape[1] == query.shape[1]:
        return x
    return x.unsqueeze(2).expand(-1, -1, size, -1, -1).flatten(1, 2)


def _computed_in(query: Tensor) -> torch.dtype:
    return torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype


def _factor(query: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(
    query: Tensor, key: Tensor, is_causal: bool, attn_mask: Tensor | None, scale: float | None
) -> Tensor:
    """The masked scores of L queries and S keys: (N, H, L, S)."""
    wide = _computed_in(query)
    scores = torch.matmul(query.to(wide) * _factor(query, scale), key.to(wide).transpose(-2, -1))
    if is_causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        else:
            scores = scores + attn_mask.to(wide)
    return scores


def _heads_inside(x: Tensor) -> Tensor:
    """The same (N, H, L, …) with memory layout (N, L, H, …)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


ATTENTION: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: flash_attention_for_cpu_backward,
}
"""ATen overload → its decomposition."""
