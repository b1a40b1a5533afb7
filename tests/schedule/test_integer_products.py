"""Products of quantized weights and activations: sums of integers, for any number of rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import smelt
from smelt.contract.weight_formats import FORMATS
from smelt.quantized.modules import rounded_activations
from smelt.runtime import toolchain
from tests.quantized.planes import exact, random_planes
from tests.support import agreement

needs_vnni = pytest.mark.skipif(
    "int8" not in toolchain.find().dot_products, reason="needs products of bytes (AVX512-VNNI)"
)
SUMMED = [name for name, layout in FORMATS.items() if layout.bits != 6]


def product(x: Tensor, planes: list[Tensor], name: str) -> Tensor:
    weight = torch.ops.smelt.dequantize(planes, name, x.shape[-1], torch.float32)
    return torch.nn.functional.linear(rounded_activations(x, FORMATS[name].group is None), weight)


def small(planes: list[Tensor]) -> list[Tensor]:
    return [plane / 64 if plane.is_floating_point() else plane for plane in planes]


def sums_integers() -> bool:
    """Whether the last graph's product sums integers, by its C++."""
    return "_products<" in smelt.reports()[-1].text("cpp")


@needs_vnni
@pytest.mark.parametrize("name", SUMMED)
def test_products_of_every_format_sum_integers(name: str) -> None:
    layout = FORMATS[name]
    columns = 768 if layout.block else 544 if layout.group in (None, 32) else 640
    planes, rows = small(random_planes(name, 72, columns)), 1 + len(name) % 3
    x = torch.randn(2, rows, columns)
    x[0, 0, :32] = 0
    compiled, report = agreement.compiled(lambda x, planes: product(x, planes, name).relu(), x, planes)
    wide = rounded_activations(x, layout.group is None).double() @ exact(planes, name, columns).T
    agreement.assert_close(compiled(x, planes), product(x, planes, name).relu(), wide.relu())
    assert sums_integers() and len(report.kernels) <= 3


@needs_vnni
@pytest.mark.parametrize(("name", "columns"), [("int8", 65440), ("q8_0", 1056), ("int4_g32", 1056)])
def test_sums_of_integers_are_exact(fresh: None, name: str, columns: int) -> None:
    """With scales of 1, the greatest activations and weights."""
    planes = [torch.ones_like(p) if p.is_floating_point() else p for p in random_planes(name, 16, columns)]
    planes[0][0], planes[0][1] = planes[0].max(), planes[0].min()
    x = torch.randint(-127, 128, (5, columns)).float()
    x[:, ::32], x[0] = 127, 127
    found = torch.compile(product, backend="smelt", dynamic=False)(x, planes, name)
    wanted = x.double() @ exact(planes, name, columns).T
    assert sums_integers() and torch.equal(found, wanted.float())


@needs_vnni
@pytest.mark.parametrize("name", ["int8", "q4_1"])
def test_an_unknown_number_of_rows(fresh: None, name: str) -> None:
    planes = small(random_planes(name, 80, 512))
    compiled = torch.compile(product, backend="smelt")
    for rows in (17, 2, 4, 39):
        x = torch.randn(rows, 512)
        torch._dynamo.mark_dynamic(x, 0)
        wide = rounded_activations(x, name == "int8").double() @ exact(planes, name, 512).T
        agreement.assert_close(compiled(x, planes, name), product(x, planes, name), wide)
    assert sums_integers() and len(smelt.reports()) == 1


@needs_vnni
@pytest.mark.parametrize("whole", [True, False])
def test_rows_that_are_not_finite(fresh: None, whole: bool) -> None:
    name = "int8" if whole else "int4_g32"
    planes, x = small(random_planes(name, 64, 512)), torch.randn(3, 512)
    x[0, 5], x[1, 7] = torch.inf, torch.nan
    found = torch.compile(product, backend="smelt", dynamic=False)(x, planes, name)
    assert sums_integers()
    assert torch.equal(found.isnan(), product(x, planes, name).isnan()) and found[:2].isnan().all()


def test_without_the_instruction_products_are_of_floats(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(toolchain.find(), dot_products=())
    monkeypatch.setattr(toolchain, "find", lambda: found)
    planes, x = small(random_planes("int4_g32", 64, 512)), torch.randn(3, 512)
    result = torch.compile(product, backend="smelt", dynamic=False)(x, planes, "int4_g32")
    assert not sums_integers()
    wide = rounded_activations(x, whole=False).double() @ exact(planes, "int4_g32", 512).T
    agreement.assert_close(result, product(x, planes, "int4_g32"), wide)


@needs_vnni
@pytest.mark.parametrize("name", ["int8", "q8_0", "q4_1"])
def test_the_description_of_the_text_is_compiled_where_a_macro_is_missing(
    fresh: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It adds terms one by one, less exactly; no schedule places it where the compiler lacks the macro."""
    tools = toolchain.find()
    found = replace(tools, command=(*tools.command, "-U__AVX512VNNI__"))
    monkeypatch.setattr(toolchain, "find", lambda: found)
    planes, x = small(random_planes(name, 48, 512)), torch.randn(3, 512)
    result = torch.compile(product, backend="smelt", dynamic=False)(x, planes, name)
    wide = rounded_activations(x, name == "int8").double() @ exact(planes, name, 512).T
    agreement.assert_close(result, product(x, planes, name), wide, ulps=64)
    assert sums_integers() and not smelt.reports()[-1].fallbacks
