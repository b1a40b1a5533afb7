"""Values of quantized weights: compiled ones have eager's bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import smelt
from smelt.contract.weight_formats import FORMATS
from smelt.loops.ir import Pointwise
from tests.lowering.harness import check
from tests.quantized.planes import random_planes


@pytest.mark.parametrize("name", FORMATS)
def test_loops_compute_the_values(name: str) -> None:
    def function(*planes: Tensor) -> Tensor:
        return torch.ops.smelt.dequantize(list(planes), name, 256, torch.float32)

    graph = check(function, *random_planes(name, 3, 256), slack=2)
    assert [type(node.body) for node in graph.nodes] == [Pointwise]


@pytest.mark.parametrize("name", FORMATS)
def test_compiled_values_have_eagers_bits(fresh: None, name: str) -> None:
    def function(planes: list[Tensor], numbers: Tensor) -> tuple[Tensor, ...]:
        rows = [torch.nn.functional.embedding(numbers, plane) for plane in planes]
        low = torch.ops.smelt.dequantize(planes, name, 512, torch.bfloat16)
        return low, torch.ops.smelt.dequantize(rows, name, 512, torch.float32)

    planes, numbers = random_planes(name, 6, 512), torch.tensor([[5, 0], [2, 2]])
    found = torch.compile(function, backend="smelt")(planes, numbers)
    assert all(map(torch.equal, found, function(planes, numbers)))
    assert not smelt.reports()[-1].fallbacks
