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
from tests.support.agreement import assert_close


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


@pytest.mark.parametrize("name", FORMATS)
def test_lanes_read_adjacent_bytes(fresh: None, name: str) -> None:
    def function(*planes: Tensor) -> Tensor:
        return torch.ops.smelt.dequantize(list(planes), name, 512, torch.float32)

    torch.compile(function, backend="smelt", dynamic=False)(*random_planes(name, 8, 512))
    text = smelt.reports()[-1].text("cpp")
    assert "gather" not in text[text.rindex("namespace smelt {") :]


@pytest.mark.parametrize("name", FORMATS)
def test_a_product_of_few_rows_computes_the_values_in_registers(fresh: None, name: str) -> None:
    planes, rows = random_planes(name, 192, 256), 1 + len(name) % 3
    planes = [plane / 64 if plane.is_floating_point() else plane for plane in planes]

    def product(x: Tensor, planes: list[Tensor]) -> Tensor:
        weight = torch.ops.smelt.dequantize(planes, name, 256, x.dtype)
        return torch.nn.functional.linear(x, weight)

    compiled = torch.compile(product, backend="smelt", dynamic=False)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(rows, 256, dtype=dtype)
        weight = torch.ops.smelt.dequantize(planes, name, 256, dtype)
        assert_close(compiled(x, planes), product(x, planes), x.double() @ weight.double().T)
        report = smelt.reports()[-1]
        assert len(report.kernels) == 1 and not report.externs


@pytest.mark.parametrize(
    ("name", "terms"), [*((name, 512) for name in FORMATS), ("q4_1", 2560), ("q6_k", 2304)]
)
def test_a_product_of_many_rows_packs_the_values(fresh: None, name: str, terms: int) -> None:
    planes = random_planes(name, 136, terms)
    planes = [plane / 64 if plane.is_floating_point() else plane for plane in planes]

    def product(x: Tensor, planes: list[Tensor]) -> Tensor:
        weight = torch.ops.smelt.dequantize(planes, name, terms, x.dtype)
        return torch.nn.functional.linear(x, weight)

    compiled = torch.compile(product, backend="smelt")
    weight = torch.ops.smelt.dequantize(planes, name, terms, torch.float32)
    for rows in (33, 20):
        x = torch.randn(rows, terms)
        torch._dynamo.mark_dynamic(x, 0)
        assert_close(compiled(x, planes), product(x, planes), x.double() @ weight.double().T)
    (report,) = smelt.reports()
    assert len(report.kernels) == 1 and not report.externs
