"""Formats of quantized weights: a table of them, and the one formula of a weight's value.

A weight of N rows and K columns is stored as planes, contiguous tensors of N rows each: quants of few bits,
scales of groups of columns, and in some formats zero points or minima. With q the quant of a column::

    value = scale * (q - zero point) + minimum          in float32, each operation rounded

Quants of 4 bits: byte j of 32 columns (j < 16) holds columns j (low bits) and j + 16 (high bits), so 16
consecutive columns are in 16 consecutive bytes. The upper 2 of 6 bits: byte j of 64 columns holds columns j,
j + 16, j + 32 and j + 48. Source of the formats q…: ``ggml-quants.c`` of llama.cpp, whose blocks interleave
the planes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from smelt.records import dataclass

LANES = 16
"""Consecutive columns that are in consecutive bytes."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of quantized weights.

    ``bits``: of a quant: 8 (int8), 4, or 6 (4 and 2 in planes of their own). ``group``: the number of columns
    with one scale; None: all of a row. ``offset``: the zero point of all columns. ``zero_points``, ``mins``:
    whether each group has one of its own. ``block``: scales and minima are integers times a number for so
    many columns; 0: they are numbers themselves.
    """

    name: str
    bits: int
    group: int | None
    offset: int = 0
    zero_points: bool = False
    mins: bool = False
    block: int = 0

    @property
    def planes(self) -> tuple[str, ...]:
        """The names of the planes, in the operator's order.

        >>> FORMATS["q4_1"].planes, FORMATS["q6_k"].planes
        (('quants', 'scales', 'mins'), ('quants', 'highs', 'scales', 'block_scales'))
        """
        there = {
            "quants": True,
            "highs": self.bits == 6,
            "scales": True,
            "zero_points": self.zero_points,
            "mins": self.mins,
            "block_scales": self.block > 0,
            "block_mins": self.block > 0 and self.mins,
        }
        return tuple(name for name, is_there in there.items() if is_there)

    @property
    def multiple(self) -> int:
        """The number of columns must be a multiple of this."""
        packed = 1 if self.bits == 8 else 4 * LANES if self.bits == 6 else 2 * LANES
        return max(packed, self.group or 1, self.block)


def _int4(group: int, zero_points: bool) -> Format:
    name = f"int4_g{group}{'_zero_points' if zero_points else ''}"
    return Format(name, 4, group, offset=0 if zero_points else 8, zero_points=zero_points)


INT4_GROUPS = (32, 64, 128)

FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        Format("int8", 8, None),
        *(_int4(group, zero_points) for group in INT4_GROUPS for zero_points in (False, True)),
        Format("q8_0", 8, 32),
        Format("q4_0", 4, 32, offset=8),
        Format("q4_1", 4, 32, mins=True),
        Format("q4_k", 4, 32, mins=True, block=256),
        Format("q6_k", 6, 16, offset=32, block=256),
    )
}
"""Name → format. Scales of int8 are float32, of the others float16 (float32 where float16 is too coarse)."""


def formula(math: Any, quant: Any, scale: Any, minimum: Any) -> Any:
    """A value by its quant, scale and minimum (or None), all float32; ``math``: `torch`, or `smelt.ops.ops`.

    >>> formula(torch, torch.tensor(3.0), torch.tensor(0.5), torch.tensor(-1.0))
    tensor(0.5000)
    """
    value = math.mul(scale, quant)
    return value if minimum is None else math.add(value, minimum)


def pack(values: Tensor, bits: int) -> Tensor:
    """Numbers of ``bits`` bits (uint8, [..., columns]) as bytes, [..., columns * bits / 8].

    >>> pack(torch.arange(32, dtype=torch.uint8) % 16, 4)[:3]
    tensor([ 0, 17, 34], dtype=torch.uint8)
    """
    fields = values.unflatten(-1, (-1, 8 // bits, LANES))
    packed = fields.select(-2, 0).clone()
    for number in range(1, 8 // bits):
        packed |= fields.select(-2, number) << (bits * number)
    return packed.flatten(-2)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The numbers that `pack` has put into bytes, uint8."""
    lanes, mask = packed.unflatten(-1, (-1, LANES)), (1 << bits) - 1
    fields = [(lanes >> (bits * number)) & mask for number in range(8 // bits)]
    return torch.stack(fields, -2).flatten(-3)


def dequantized(planes: Iterable[Tensor], name: str, dtype: torch.dtype) -> Tensor:
    """The values of planes [..., n] in the format ``name``: [..., columns].

    >>> quants, scales = torch.tensor([[1, -2]], dtype=torch.int8), torch.tensor([[0.5]])
    >>> dequantized([quants, scales], "int8", torch.float32)
    tensor([[ 0.5000, -1.0000]])
    """
    layout = FORMATS[name]
    named = dict(zip(layout.planes, planes, strict=True))
    quants = named["quants"] if layout.bits == 8 else unpack(named["quants"], 4)
    if "highs" in named:
        quants = quants | (unpack(named["highs"], 2) << 4)
    scale, minimum = (_scaled(named, each, layout) for each in ("scales", "mins"))
    assert scale is not None
    groups = quants.to(torch.float32).unflatten(-1, (scale.shape[-1], -1))
    if layout.offset:
        groups = groups - layout.offset
    if layout.zero_points:
        groups = groups - named["zero_points"].to(torch.float32).unsqueeze(-1)
    minimum = None if minimum is None else minimum.unsqueeze(-1)
    return formula(torch, groups, scale.unsqueeze(-1), minimum).flatten(-2).to(dtype)


def _scaled(named: dict[str, Tensor], name: str, layout: Format) -> Tensor | None:
    """The scales or minima of groups, in float32; None if there are none."""
    if name not in named:
        return None
    numbers = named[name].to(torch.float32)
    if not layout.block:
        return numbers
    blocks = named[f"block_{name}"].to(torch.float32).unsqueeze(-1)
    return (blocks * numbers.unflatten(-1, (blocks.shape[-2], -1))).flatten(-2)
