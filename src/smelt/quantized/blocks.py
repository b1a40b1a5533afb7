"""GGUF's blocks of quantized weights → planes, without changing a value.

A block has the quants, scales and minima of 32 or 256 columns of a row one after another; its bytes are those
of ``ggml-common.h`` in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from smelt.contract.weight_formats import pack

Planes = tuple[str, list[Tensor]]


def _float16(data: Tensor) -> Tensor:
    """Pairs of bytes [..., 2] as float16 [...]."""
    return data.contiguous().view(torch.float16).squeeze(-1)


def _q4_0(blocks: Tensor) -> Planes:
    return "q4_0", [blocks[..., 2:].flatten(-2), _float16(blocks[..., :2])]


def _q4_1(blocks: Tensor) -> Planes:
    quants, scales, mins = blocks[..., 4:].flatten(-2), blocks[..., :2], blocks[..., 2:4]
    return "q4_1", [quants, _float16(scales), _float16(mins)]


def _q5_0(blocks: Tensor) -> Planes:
    """Quants of 5 bits as bytes: the same numbers with the same scales are q8_0."""
    low, high = blocks[..., 6:], blocks[..., 2:6].unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)
    fifth = (high & 1).flatten(-2) << 4
    quants = torch.cat([low & 15, low >> 4], -1) | fifth
    return "q8_0", [(quants.to(torch.int8) - 16).flatten(-2), _float16(blocks[..., :2])]


def _q8_0(blocks: Tensor) -> Planes:
    quants = blocks[..., 2:].contiguous().view(torch.int8)
    return "q8_0", [quants.flatten(-2), _float16(blocks[..., :2])]


def _q4_k(blocks: Tensor) -> Planes:
    """Byte j of 64 columns (j < 32) holds columns j and j + 32; scales and minima have 6 bits."""
    low, middle, high = blocks[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat([low & 63, (high & 15) | (low >> 2 & 48)], -1)
    mins = torch.cat([middle & 63, (high >> 4) | (middle >> 2 & 48)], -1)
    packed = blocks[..., 16:].unflatten(-1, (4, 32))
    quants = torch.stack([packed & 15, packed >> 4], -2).flatten(-4)
    block_scales, block_mins = _float16(blocks[..., :2]), -_float16(blocks[..., 2:4])
    return "q4_k", [pack(quants, 4), scales.flatten(-2), mins.flatten(-2), block_scales, block_mins]


def _q6_k(blocks: Tensor) -> Planes:
    """Of 128 columns, byte j (j < 32) of the upper bits holds columns j, j + 32, j + 64 and j + 96."""
    low = blocks[..., :128].unflatten(-1, (2, 2, 32))
    high = blocks[..., 128:192].unflatten(-1, (2, 1, 32))
    lows = torch.stack([low & 15, low >> 4], -3).flatten(-4)
    highs = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], -2).flatten(-3)
    scales = blocks[..., 192:208].contiguous().view(torch.int8).flatten(-2)
    planes = [pack(lows.flatten(-2), 4), pack(highs.flatten(-2), 2), scales, _float16(blocks[..., 208:])]
    return "q6_k", planes


_BLOCKS: dict[str, tuple[int, Callable[[Tensor], Planes]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q6_K": (210, _q6_k),
}
"""GGUF's name of a type → the bytes of a block, and what makes planes of blocks [rows, blocks, bytes]."""

KINDS = tuple(_BLOCKS)


def planes_of(data: Tensor, kind: str) -> Planes:
    """The format and planes of a matrix whose rows are blocks: ``data`` is uint8, [rows, bytes of a row].

    >>> planes_of(torch.zeros(3, 36, dtype=torch.uint8), "Q4_0")[1][0].shape  # 64 columns
    torch.Size([3, 32])
    """
    size, made = _BLOCKS[kind]
    return made(data.unflatten(-1, (-1, size)))
