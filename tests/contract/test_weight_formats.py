"""Formats of quantized weights: against their description in float64, and the operator's metadata."""

from __future__ import annotations

import pytest
import torch
from tests.quantized.planes import exact, random_planes

from smelt.contract.weight_formats import FORMATS, dequantized, pack, unpack

COLUMNS = 512


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_those_of_the_description(name: str) -> None:
    planes = random_planes(name, 5, COLUMNS)
    wanted = exact(planes, name, COLUMNS)
    found = dequantized(planes, name, torch.float32)
    least = wanted.abs().amax() * 2**-22  # two roundings, of terms that may cancel
    assert ((found - wanted).abs() <= wanted.abs() * 2**-22 + least).all()
    assert torch.equal(dequantized(planes, name, torch.bfloat16), found.to(torch.bfloat16))


@pytest.mark.parametrize("bits", [2, 4])
def test_packed_numbers_come_back(bits: int) -> None:
    values = torch.randint(0, 1 << bits, (3, 128), dtype=torch.uint8)
    packed = pack(values, bits)
    assert packed.shape == (3, 16 * bits)
    assert torch.equal(unpack(packed, bits), values)


@pytest.mark.parametrize("name", FORMATS)
def test_the_operator_has_the_metadata_of_its_values(name: str) -> None:
    planes = random_planes(name, 5, COLUMNS)
    arguments = (planes, name, COLUMNS, torch.bfloat16)
    torch.library.opcheck(torch.ops.smelt.dequantize.default, arguments)
    halves = [plane.reshape(5, 1, -1).expand(5, 2, -1) for plane in planes]
    value = torch.ops.smelt.dequantize(halves, name, COLUMNS, torch.float32)
    assert value.shape == (5, 2, COLUMNS)


def test_the_operator_refuses_what_is_no_weight() -> None:
    planes = [plane.to("meta") for plane in random_planes("int8", 2, 8)]
    with pytest.raises(RuntimeError, match="not 1"):
        torch.ops.smelt.dequantize(planes[:1], "int8", 8, torch.float32)
    with pytest.raises(RuntimeError, match=r"not torch\.int64"):
        torch.ops.smelt.dequantize(planes, "int8", 8, torch.int64)
