"""Decomposition of resampling with antialiasing: each dimension is a weighted sum of neighbours.

Windows and filters are those of ``aten/src/ATen/native/cpu/UpSampleKernel.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
CUBIC = -0.5


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp_min(0)


def _keys(x: Tensor) -> Tensor:
    """Keys' cubic with a = -1/2."""
    x, a = x.abs(), CUBIC
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _lanczos(x: Tensor) -> Tensor:
    """sinc(x) sinc(x / 3) up to 3."""
    return torch.where(x.abs() < 3, torch.sinc(x) * torch.sinc(x / 3), torch.zeros_like(x))


_FILTERS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "bilinear": (_triangle, 2),
    "bicubic": (_keys, 4),
    "lanczos": (_lanczos, 6),
}
"""Name → the filter, and the number of inputs in its support without downscaling."""


def _scale(size: int, out: int, align_corners: bool, given: float | None) -> float:
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1 / given if given is not None and given > 0 else size / out


def _taps(
    kind: str, size: int, out: int, align_corners: bool, given: float | None, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Positions and weights of each output's inputs: both (out, taps), weights 0 outside the window."""
    function, span = _FILTERS[kind]
    scale = _scale(size, out, align_corners, given)
    support = span / 2 * max(scale, 1.0)
    most = math.ceil(support) * 2 + 1
    centre = (torch.arange(out, device=like.device).to(like.dtype) + 0.5) * scale
    first = (centre - support + 0.5).trunc().clamp_min(0)
    last = (centre + support + 0.5).trunc().clamp_max(size)
    at = first.unsqueeze(1) + torch.arange(most, device=like.device).to(like.dtype)
    weight = function((at - centre.unsqueeze(1) + 0.5) * (1 / max(scale, 1.0)))
    weight = torch.where(at < last.unsqueeze(1), weight, torch.zeros_like(weight))
    return at.clamp_max(size - 1).to(torch.int64), weight / weight.sum(1, keepdim=True)


def _resampled(x: Tensor, at: Tensor, weight: Tensor) -> Tensor:
    """Resample along the last dimension."""
    return (x[..., at] * weight).sum(-1)


def _spread(grad: Tensor, size: Any, at: Tensor, weight: Tensor) -> Tensor:
    """The gradient of `_resampled`."""
    each = (grad.unsqueeze(-1) * weight).flatten(-2)
    empty = torch.zeros([*grad.shape[:-1], size], dtype=grad.dtype, device=grad.device)
    return empty.index_add(-1, at.flatten(), each)


def _forward(kind: str) -> Callable[..., Any]:
    def resample(
        x: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Any:
        if not x.is_floating_point():  # eager computes bytes in fixed point
            return NotImplemented
        if kind == "lanczos" and x.dtype in (torch.float16, torch.bfloat16):
            return NotImplemented  # eager refuses
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        for dim, scale in ((3, scales_w), (2, scales_h)):
            at, weight = _taps(kind, x.shape[dim], output_size[dim - 2], align_corners, scale, wide)
            wide = _resampled(wide.transpose(dim, 3), at, weight).transpose(dim, 3).to(x.dtype).to(wide.dtype)
        return wide.to(x.dtype).contiguous(memory_format=torch._prims_common.suggest_memory_format(x))

    return resample


def _backward(kind: str) -> Callable[..., Any]:
    def resample_backward(
        grad: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        for dim, scale in ((3, scales_w), (2, scales_h)):
            at, weight = _taps(kind, input_size[dim], output_size[dim - 2], align_corners, scale, grad)
            grad = _spread(grad.transpose(dim, 3), input_size[dim], at, weight).transpose(dim, 3)
        return grad.contiguous()

    return resample_backward


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._upsample_bilinear2d_aa.default: _forward("bilinear"),
    aten._upsample_bilinear2d_aa_backward.default: _backward("bilinear"),
    aten._upsample_bicubic2d_aa.default: _forward("bicubic"),
    aten._upsample_bicubic2d_aa_backward.default: _backward("bicubic"),
    **{
        getattr(aten, name).default: made("lanczos")  # since torch 2.13
        for name, made in (
            ("_upsample_lanczos2d_aa", _forward),
            ("_upsample_lanczos2d_aa_backward", _backward),
        )
        if hasattr(aten, name)
    },
}
