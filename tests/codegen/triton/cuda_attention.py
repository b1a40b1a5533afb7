"""CUDA's kernels of attention on the CPU: ATen's operators with the results of the CPU's.

``F.scaled_dot_product_attention`` on CUDA tensors is one of three operators of ATen, which have no kernel for
CPUs. Here they get one, so that programs that call them run everywhere.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
_LIBRARY = torch.library.Library("aten", "IMPL", "CPU")
ALIGNED = 32


def _attended(q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None, scale: Any) -> Any:
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=bias, scale=scale)


def _gradients(given: Any, causal: bool, bias: Tensor | None, scale: Any) -> Any:
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    return backward(*given, 0.0, causal, attn_mask=bias, scale=scale)


def _like(found: Any, given: Any) -> Any:
    """In the layout of what was given."""
    return tuple(torch.empty_like(one).copy_(each) for each, one in zip(found, given, strict=True))


def _heads_inside(found: Any) -> Any:
    return tuple(each.transpose(1, 2).contiguous().transpose(1, 2) for each in found)


def _number() -> Tensor:
    return torch.zeros((), dtype=torch.int64)


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: Any = None,
) -> Any:
    out, sums = _attended(q, k, v, causal, None, scale)
    state = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
    return *_like([out], [q]), sums, None, None, q.shape[2], k.shape[2], *state, q.new_empty(0)


def _flash_backward(*given: Any, scale: Any = None) -> Any:
    return _like(_gradients(given[:6], given[11], None, scale), given[1:4])


def _efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    wanted: bool,
    p: float = 0.0,
    causal: bool = False,
    *,
    scale: Any = None,
) -> Any:
    out, sums = _attended(q, k, v, causal, bias, scale)
    sums = F.pad(sums, (0, -sums.shape[-1] % ALIGNED), value=math.inf) if wanted else sums[..., :0]
    return *_heads_inside([out]), sums, _number(), _number()


def _efficient_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    sums: Tensor,
    seed: Any,
    offset: Any,
    p: float,
    wanted: Any,
    causal: bool = False,
    *,
    scale: Any = None,
) -> Any:
    given = grad, q, k, v, out, sums[..., : q.shape[2]]
    return *_heads_inside(_gradients(given, causal, bias, scale)), None


def _cudnn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    wanted: bool,
    p: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: Any = None,
) -> Any:
    out, sums = _attended(q, k, v, causal, bias, scale)
    return *_like([out], [q]), sums[..., None], None, None, q.shape[2], k.shape[2], _number(), _number(), None


def _cudnn_backward(*given: Any, scale: Any = None) -> Any:
    *operands, sums = given[:6]
    return _like(_gradients((*operands, sums[..., 0]), given[14], given[8], scale), given[1:4])


for name, functions in (
    ("flash", (_flash, _flash_backward)),
    ("efficient", (_efficient, _efficient_backward)),
    ("cudnn", (_cudnn, _cudnn_backward)),
):
    for end, function in zip(("", "_backward"), functions, strict=True):
        _LIBRARY.impl(f"_scaled_dot_product_{name}_attention{end}", function)


def flash(causal: bool = False) -> Any:
    return lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]


def efficient(causal: bool = False) -> Any:
    def call(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        out: Tensor = aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal)[0]
        return out

    return call


def cudnn(causal: bool = False) -> Any:
    return lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)[0]


def sums(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """All that the efficient kernel keeps for its gradient."""
    return aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[:2]


def block(upstream: Tensor, x: Tensor, qkv: Tensor, out: Tensor) -> Any:
    """A step of training: a block of a transformer with two heads."""
    n, length, width = x.shape
    heads = F.linear(F.layer_norm(x, (width,)), qkv).view(n, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
    mixed = efficient(True)(*heads).transpose(1, 2).reshape(n, length, width)
    result = x + F.linear(mixed, out)
    return result, *torch.autograd.grad(result, (x, qkv, out), upstream)


def block_operands() -> list[Tensor]:
    shapes = (1, 37, 32), (96, 32), (32, 32)
    return [torch.randn(1, 37, 32), *(torch.randn(shape).div(4).requires_grad_() for shape in shapes)]
