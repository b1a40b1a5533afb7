"""Decomposition of ``grid_sampler_2d`` and ``grid_sampler_3d``, forward and backward, for any rank.

Coordinates and border rules are those of ``aten/src/ATen/native/GridSampler.h`` for three dimensions, of
``cpu/GridSamplerKernel.cpp`` for two: they differ in rounding, and in the treatment of NaN and infinity. A
sample is a weighted sum of taps; a tap has a position in each dimension, a test whether it is inside the
input, and a weight.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from smelt.records import dataclass

aten = torch.ops.aten
PLANE = 2
"""The rank for which eager has a vectorized kernel."""
BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2
CUBIC = -0.75


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that map coordinates to positions, for inputs of ``rank`` spatial dimensions."""

    rank: int
    mode: int
    padding: int
    align_corners: bool
    backward: bool = False


@dataclass(frozen=True, slots=True)
class Tap:
    """A tap in one dimension: its position, whether it is inside, its weight and the weight's derivative."""

    at: Tensor
    inside: Tensor
    weight: Tensor
    slope: Tensor


# -- coordinates -------------------------------------------------------------------------------------------


def _position(coordinate: Tensor, size: Any, rules: Rules) -> tuple[Tensor, float]:
    """A coordinate in -1..1 as a position in 0..size-1, and the derivative by the coordinate."""
    speed = (size - 1) / 2 if rules.align_corners else size / 2
    if rules.rank == PLANE:
        position = (coordinate + 1) * speed
        return position if rules.align_corners else position - 0.5, speed
    if rules.align_corners:
        return (coordinate + 1) / 2 * (size - 1), speed
    return ((coordinate + 1) * size - 1) / 2, speed


def _clipped(x: Tensor, size: Any, rules: Rules) -> tuple[Tensor, Tensor]:
    """The position clipped to 0..size-1; the derivative is 0 from the ends on.

    NaN becomes the first position in 2-d; in 3-d it becomes the last, but counts as outside in the backward.
    """
    inside = (x > 0) & (x < size - 1)
    if rules.rank == PLANE or not rules.backward:
        x = torch.where(x.isnan(), 0.0 if rules.rank == PLANE else math.inf, x)
    return x.clamp(0, size - 1), inside.to(x.dtype)


def _reflected(x: Tensor, size: Any, rules: Rules) -> tuple[Tensor, Tensor]:
    """The position mirrored at the border pixels' centres (``align_corners``) or edges until it is inside."""
    low, span = (0.0, size - 1) if rules.align_corners else (-0.5, size)
    if rules.align_corners and size == 1:
        return torch.zeros_like(x), torch.zeros_like(x)
    away = x - low
    sign = torch.where(away < 0, -1.0, 1.0).to(x.dtype)
    away = away.abs()
    if rules.rank == PLANE:
        extra = away - torch.trunc(away / (2 * span)) * (2 * span)
        position = torch.minimum(extra, 2 * span - extra) + low
        return position, torch.where(extra > span, -sign, sign)
    extra = torch.fmod(away, span)
    odd = torch.remainder(torch.floor(away / span), 2) == 1
    position = torch.where(odd, span - extra, extra) + low
    return position, torch.where(odd, -sign, sign)


def _bordered(x: Tensor, size: Any, rules: Rules) -> tuple[Tensor, Tensor]:
    """The position after the border's rule, and its derivative."""
    if rules.padding == BORDER:
        return _clipped(x, size, rules)
    if rules.padding == REFLECTION:
        position, slope = _reflected(x, size, rules)
        position, inside = _clipped(position, size, rules)
        return position, slope * inside
    return x, torch.ones_like(x)


def _tap(at: Tensor, size: Any, weight: Tensor, slope: Tensor) -> Tap:
    inside = (at >= 0) & (at <= size - 1)
    return Tap(torch.where(inside, at, torch.zeros_like(at)).to(torch.int64), inside, weight, slope)


def _taps(coordinate: Tensor, size: Any, rules: Rules) -> list[Tap]:
    """The taps of one dimension of a sample; derivatives are by the coordinate."""
    x, speed = _position(coordinate, size, rules)
    if rules.mode == BICUBIC:
        return _cubic_taps(x, speed, size, rules)
    x, slope = _bordered(x, size, rules)
    if rules.mode == NEAREST:
        return [_tap(x.round(), size, torch.ones_like(x), torch.zeros_like(x))]
    low = x.floor()
    slope = slope * speed
    return [_tap(low, size, low + 1 - x, -slope), _tap(low + 1, size, x - low, slope)]


def _cubic_taps(x: Tensor, speed: float, size: Any, rules: Rules) -> list[Tap]:
    """Four taps of Keys' kernel; the border's rule applies to each position separately."""
    low = x.floor()
    t = x - low
    far, near, next_, last = t + 1, t, 1 - t, 2 - t
    a = CUBIC
    weights = [
        ((a * far - 5 * a) * far + 8 * a) * far - 4 * a,
        ((a + 2) * near - (a + 3)) * near * near + 1,
        ((a + 2) * next_ - (a + 3)) * next_ * next_ + 1,
        ((a * last - 5 * a) * last + 8 * a) * last - 4 * a,
    ]
    slopes = [
        (3 * a * far - 10 * a) * far + 8 * a,
        (3 * (a + 2) * near - 2 * (a + 3)) * near,
        -(3 * (a + 2) * next_ - 2 * (a + 3)) * next_,
        -((3 * a * last - 10 * a) * last + 8 * a),
    ]
    found = []
    for offset, (weight, slope) in enumerate(zip(weights, slopes), -1):
        at, _ = _bordered(low + offset, size, rules)
        found.append(_tap(at, size, weight, slope * speed))
    return found


# -- samples -----------------------------------------------------------------------------------------------


def _by_dimension(x: Tensor, grid: Tensor, rules: Rules) -> list[list[Tap]]:
    """Taps of each spatial dimension of x, first to last; the grid has the reverse order."""
    rank = rules.rank
    return [_taps(grid[..., rank - 1 - d], x.shape[2 + d], rules) for d in range(rank)]


def _index(x: Tensor, taps: Sequence[Tap]) -> list[Tensor]:
    """Index tensors (N, C, *) of one tap in all channels."""
    rank = len(taps)
    batch = torch.arange(x.shape[0], device=x.device).view(-1, *[1] * (rank + 1))
    channel = torch.arange(x.shape[1], device=x.device).view(1, -1, *[1] * rank)
    return [batch, channel, *(tap.at.unsqueeze(1) for tap in taps)]


def _inside(taps: Sequence[Tap]) -> Tensor:
    inside = taps[0].inside
    for tap in taps[1:]:
        inside = inside & tap.inside
    return inside


def _product(factors: Sequence[Tensor]) -> Tensor:
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    return product


def grid_sampler(
    x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """x (N, C, *in) sampled at grid (N, *out, d), whose last dimension is x, y (, z): (N, C, *out)."""
    total = None
    rules = Rules(x.dim() - 2, interpolation_mode, padding_mode, align_corners)
    for taps in itertools.product(*_by_dimension(x, grid, rules)):
        inside, weight = _inside(taps).unsqueeze(1), _product([tap.weight for tap in taps]).unsqueeze(1)
        seen = aten.index.Tensor(x, _index(x, taps))
        each = torch.where(inside, seen, 0.0) * weight  # NaN where the weight is NaN or infinite
        if rules.rank != PLANE:
            each = torch.where(inside, each, 0.0)
        total = each if total is None else total + each
    assert total is not None
    return total


def grid_sampler_backward(
    grad_output: Tensor,
    x: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:
    """The gradients by x (if required) and by the grid."""
    rules = Rules(x.dim() - 2, interpolation_mode, padding_mode, align_corners, backward=True)
    dimensions = _by_dimension(x, grid, rules)
    every = list(itertools.product(*dimensions))
    by_x = _input_gradient(grad_output, x, every) if output_mask[0] else None
    if interpolation_mode == NEAREST:
        return by_x, torch.zeros_like(grid)
    slopes: list[Any] = [0.0] * len(dimensions)
    for taps in every:
        inside = _inside(taps)
        seen = aten.index.Tensor(x, _index(x, taps)) * grad_output
        value = torch.where(inside.unsqueeze(1), seen, torch.zeros_like(seen)).sum(1)
        for d in range(len(taps)):
            factors = [tap.slope if e == d else tap.weight for e, tap in enumerate(taps)]
            share = value * _product(factors)
            slopes[d] = slopes[d] + (share if rules.rank == PLANE else torch.where(inside, share, 0.0))
    return by_x, torch.stack(slopes[::-1], -1)


def _input_gradient(grad: Tensor, x: Tensor, every: Sequence[Sequence[Tap]]) -> Tensor:
    """Adds all taps' gradients with ONE accumulation."""
    values, places = [], []
    for taps in every:
        weight = torch.where(_inside(taps), _product([tap.weight for tap in taps]), 0.0).to(x.dtype)
        values.append(grad * weight.unsqueeze(1))
        places.append(torch.broadcast_tensors(*_index(x, taps)))
    index = [torch.stack([place[k] for place in places]) for k in range(x.dim())]
    empty = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    return aten.index_put.default(empty, index, torch.stack(values), True)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.grid_sampler_2d.default: grid_sampler,
    aten.grid_sampler_3d.default: grid_sampler,
    aten.grid_sampler_2d_backward.default: grid_sampler_backward,
    aten.grid_sampler_3d_backward.default: grid_sampler_backward,
}
