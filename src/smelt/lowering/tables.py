"""Constants that rows compute from numbers: tables of roots of unity.

A constant has a recipe (``table stage 5 20 -1 1.0 float32``), from which a later process makes it again
without lowering.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.layouts import buffer_of
from smelt.lowering.tensor import Tensor
from smelt.symbolic import as_expr, contiguous_strides

PREFIX = "table "
"""The beginning of a recipe among the paths of constants."""

MOST_NUMBERS = 2**24
"""Limit on the numbers of a table."""


def table(ctx: Builder, kind: str, *numbers: int | float, dtype: torch.dtype) -> Tensor:
    """A table of `KINDS` as a constant of the graph; one dimension, mostly the last, has real and imaginary
    parts.
    """
    recipe = PREFIX + " ".join([kind, *map(repr, numbers), str(dtype).removeprefix("torch.")])
    name = "".join(each if each.isalnum() else "_" for each in recipe)
    if name not in ctx.graph.buffers:
        value = made(recipe)
        shape = tuple(map(as_expr, value.shape))
        ctx.graph.buffers[name] = buffer_of(name, dtype, shape, contiguous_strides(shape))
        ctx.graph.constants[name] = value
        ctx.graph.constant_paths[name] = recipe
    return Tensor(name, dtype, ctx.graph.buffers[name].shape)


@lru_cache(maxsize=64)
def made(recipe: str) -> torch.Tensor:
    """The table of a recipe: computed in float64, rounded once.

    >>> made("table half 4 -1 1.0 float64").tolist()
    [[1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]]
    """
    kind, *texts, dtype = recipe.removeprefix(PREFIX).split()
    numbers = [int(each) if each.lstrip("-").isdigit() else float(each) for each in texts]
    found = KINDS[kind](*numbers)
    found = torch.view_as_real(found) if found.is_complex() else found
    return found.to(getattr(torch, dtype)).contiguous()


def _roots(exponent: torch.Tensor, count: int, sign: int, scale: float = 1.0) -> torch.Tensor:
    """``scale * exp(sign * 2 pi i * exponent / count)``; angles are reduced to an eighth of a turn."""
    if exponent.numel() > MOST_NUMBERS:
        raise Unsupported(f"a table of {exponent.numel()} numbers")
    eighths = 8 * (exponent % count)
    octant, rest = eighths // count, eighths % count
    back = octant % 2  # the angle is one before a quarter turn, not after it
    angle = torch.where(back == 1, count - rest, rest).double() * (math.pi / (4 * count))
    quarter = (octant + back) // 2 % 4
    units = torch.tensor([1, 1j, -1, -1j], dtype=torch.complex128)[quarter]
    cosine, sine = torch.cos(angle), torch.where(back == 1, -torch.sin(angle), torch.sin(angle))
    real = units.real * cosine - units.imag * sine
    imaginary = units.real * sine + units.imag * cosine
    return torch.complex(scale * real + 0.0, (sign * scale) * imaginary + 0.0)  # no zero is negative


def _stage(radix: int, rest: int, results: int, sign: int, scale: float, inside: int) -> torch.Tensor:
    """``[p, j, k, part]``: the weight of input ``p + rest * k`` in output ``j`` of ``radix * rest`` numbers;
    ``[p, k, part, j]`` if not ``inside``.
    """
    p, j, k = torch.arange(rest).view(-1, 1, 1), torch.arange(results).view(-1, 1), torch.arange(radix)
    found = torch.view_as_real(_roots(j * (p + rest * k), radix * rest, sign, scale))
    return found if inside else found.permute(0, 2, 3, 1)


def _half(count: int, sign: int, scale: float) -> torch.Tensor:
    """The first half of the roots, and the one after it."""
    return _roots(torch.arange(count // 2 + 1), count, sign, scale)


def _chirp(count: int, sign: int, scale: float) -> torch.Tensor:
    """``[k]``: the root number ``k**2 / 2`` of ``count``."""
    return _roots(torch.arange(count) ** 2, 2 * count, sign, scale)


def _filter(count: int, padded: int, sign: int) -> torch.Tensor:
    """The transform of the chirp's conjugate, at both ends of ``padded`` numbers, divided by their count."""
    chirp = _chirp(count, -sign, 1.0)
    both = torch.zeros(padded, dtype=torch.complex128)
    both[:count] = chirp
    both[padded - count + 1 :] = chirp[1:].flip(0)
    return torch.fft.fft(both, norm="forward")


KINDS: dict[str, Callable[..., torch.Tensor]] = {
    "stage": _stage,
    "half": _half,
    "chirp": _chirp,
    "filter": _filter,
}
