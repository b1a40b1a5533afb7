"""Matrices of floats → planes of a format: scales from the extremes of each group, then the nearest quant."""

from __future__ import annotations

import torch
from torch import Tensor

from smelt.contract.weight_formats import Format, pack

_HALF = torch.finfo(torch.float16)


def rounded(weight: Tensor, layout: Format) -> list[Tensor]:
    """The planes of ``weight``, [rows, columns] of any floating dtype, all finite.

    Formats with scales of blocks are read from files only. Every value of a group is within half a step
    (``|scale| / 2``) of the weight, plus what rounding scales and minima to float16 costs.

    >>> from smelt.contract.weight_formats import FORMATS
    >>> rounded(torch.tensor([[1.0, -0.5, 0.0]]), FORMATS["int8"])[0]
    tensor([[127, -64,   0]], dtype=torch.int8)
    """
    assert not layout.block, f"{layout.name} has scales of blocks"
    groups = weight.detach().to(torch.float32).unflatten(-1, (-1, layout.group or weight.shape[-1]))
    low, high = groups.amin(-1), groups.amax(-1)
    if layout.bits == 8:
        return _with_steps(groups, torch.maximum(-low, high) / 127, layout)
    if layout.mins:
        return _with_steps(groups, (high - low) / 15, layout, low)
    if layout.zero_points:
        low, high = low.clamp_max(0), high.clamp_min(0)
        return _with_steps(groups, (high - low) / 15, layout, low)
    extreme = torch.where(-low > high, low, high)  # becomes -8, so the scale may be negative
    return _with_steps(groups, extreme / -8, layout)


def _with_steps(groups: Tensor, scale: Tensor, layout: Format, low: Tensor | None = None) -> list[Tensor]:
    """The planes for these scales, and least values if the format has zero points or minima."""
    stored = _stored(scale, low, layout)
    scale = scale.to(stored)
    step = scale.to(torch.float32)
    inverse = torch.where(step == 0, 0.0, 1.0 / step)
    others: list[Tensor] = []
    start: Tensor | float = float(layout.offset)
    if layout.zero_points:
        assert low is not None
        zero = torch.round(-low * inverse).clamp(0, 15)
        others, start = [zero.to(torch.uint8)], zero.unsqueeze(-1)
    elif layout.mins:
        assert low is not None
        minimum = low.to(stored)
        others, groups = [minimum], groups - minimum.to(torch.float32).unsqueeze(-1)
    places = torch.round(groups * inverse.unsqueeze(-1)) + start
    if layout.bits == 8:
        quants = places.clamp(-127, 127).to(torch.int8).flatten(-2)
    else:
        quants = pack(places.clamp(0, 15).to(torch.uint8).flatten(-2), 4)
    return [quants, scale, *others]


def _stored(scale: Tensor, low: Tensor | None, layout: Format) -> torch.dtype:
    """The dtype of scales and minima: float16 where it holds them to 11 bits, else float32."""
    if layout.group is None:
        return torch.float32
    largest = max(float(each.abs().amax()) for each in (scale, low) if each is not None)
    least = float(torch.where(scale == 0, 1.0, scale.abs()).amin())
    return torch.float16 if largest <= _HALF.max and least >= _HALF.smallest_normal else torch.float32
