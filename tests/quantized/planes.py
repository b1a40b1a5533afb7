"""Random planes of each format, and what their values are in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from smelt.contract.weight_formats import FORMATS


def random_planes(name: str, rows: int, columns: int) -> list[Tensor]:
    layout = FORMATS[name]
    widths = {"quants": columns * min(layout.bits, 8) // 8, "highs": columns // 4}
    if layout.bits == 6:
        widths["quants"] = columns // 2
    groups = columns // layout.group if layout.group else 1
    found = []
    for plane in layout.planes:
        shape = (rows, columns // layout.block if plane.startswith("block") else widths.get(plane, groups))
        if plane in widths and layout.bits != 8:
            found.append(torch.randint(0, 256, shape, dtype=torch.uint8))
        elif plane == "quants" or (layout.block and plane == "scales" and not layout.mins):
            found.append(torch.randint(-128, 128, shape, dtype=torch.int8))
        elif plane == "zero_points":
            found.append(torch.randint(0, 16, shape, dtype=torch.uint8))
        elif layout.block and plane in ("scales", "mins"):
            found.append(torch.randint(0, 64, shape, dtype=torch.uint8))
        else:
            found.append(torch.randn(shape).to(torch.float16 if layout.group else torch.float32))
    return found


def exact(planes: list[Tensor], name: str, columns: int) -> Tensor:
    """The values in float64, column by column, by the format's description."""
    layout = FORMATS[name]
    named = dict(zip(layout.planes, planes, strict=True))
    values = []
    for column in range(columns):
        group, block = column // (layout.group or columns), column // (layout.block or columns)
        quant = _quant(named, layout.bits, column).to(torch.float64) - layout.offset
        if layout.zero_points:
            quant -= named["zero_points"][:, group]
        scale = named["scales"][:, group].double()
        low = named["mins"][:, group].double() if layout.mins else 0.0
        if layout.block:
            scale = scale * named["block_scales"][:, block]
            low = low * named["block_mins"][:, block] if layout.mins else 0.0
        values.append(scale * quant + low)
    return torch.stack(values, -1)


def _quant(named: dict[str, Tensor], bits: int, column: int) -> Tensor:
    if bits == 8:
        return named["quants"][:, column].int()
    quant = named["quants"][:, column // 32 * 16 + column % 16].int() >> (4 if column % 32 >= 16 else 0) & 15
    if bits == 6:
        high = named["highs"][:, column // 64 * 16 + column % 16].int()
        quant |= (high >> (2 * (column % 64 // 16)) & 3) << 4
    return quant
