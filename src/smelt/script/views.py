"""Buffers of a script: own memory, or a view of another buffer, which is replaced by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from sympy import Expr, Integer
from torch.utils._sympy.functions import FloorDiv, Mod

from smelt.records import dataclass
from smelt.symbolic import contiguous_strides, flatten, same

Place = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer: ``memory`` is its memory's name, ``place`` maps an index of the buffer to one there."""

    dtype: torch.dtype
    shape: Place
    memory: str
    place: Callable[[Place], Place] = lambda index: index


def flat_view(base: Buffer, shape: Place, strides: Place, offset: Expr) -> Buffer:
    """``T.decl_buffer(shape, data=base.data, strides=…, elem_offset=…)``.

    >>> base = Buffer(torch.float32, (Integer(4), Integer(8)), "A")
    >>> flat_view(base, (Integer(32),), (Integer(1),), Integer(0)).place((Integer(11),))
    (1, 3)
    """
    plain = offset == 0 and all(map(same, strides, contiguous_strides(shape)))
    if plain and len(shape) == len(base.shape) and all(map(same, shape, base.shape)):
        return Buffer(base.dtype, shape, base.memory, base.place)
    return Buffer(
        base.dtype,
        shape,
        base.memory,
        lambda index: base.place(_unflattened(flatten(index, strides, offset), base.shape)),
    )


def _unflattened(flat: Expr, shape: Place) -> Place:
    found: list[Expr] = []
    for size, stride in zip(shape, contiguous_strides(shape)):
        whole = FloorDiv(flat, stride) if stride != 1 else flat
        found.append(whole if not found else Mod(whole, size))
    return tuple(found)


def region_view(base: Buffer, region: Sequence[tuple[Expr, Expr]], shape: Place) -> Buffer | None:
    """``T.match_buffer(base[b:b + n, …], shape)``: a region's last dimensions; None unless all others are 1.

    >>> base = Buffer(torch.float32, (Integer(4), Integer(8)), "A")
    >>> view = region_view(base, [(Integer(2), Integer(1)), (Integer(4), Integer(4))], (Integer(4),))
    >>> view.place((Integer(1),))
    (2, 5)
    """
    first = len(region) - len(shape)
    extents = [Integer(1)] * first + list(shape)
    if first < 0 or not all(same(extent, size) for (_, extent), size in zip(region, extents)):
        return None

    def place(index: Place) -> Place:
        own = [Integer(0)] * first + list(index)
        return base.place(tuple(begin + each for (begin, _), each in zip(region, own)))

    return Buffer(base.dtype, shape, base.memory, place)


__all__ = ["Buffer", "Place", "flat_view", "region_view"]
