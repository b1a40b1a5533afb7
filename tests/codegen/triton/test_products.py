"""Matrix products and convolutions for GPUs: tiles whose blocks the GPU multiplies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.codegen.triton.products import PRODUCTS, TILES
from tests.codegen.triton.programs import architectures_of
from tests.codegen.triton.test_triton import TRITON, said

pytestmark = [pytest.mark.long, pytest.mark.skipif(not TRITON.is_dir(), reason="no Triton: make test")]

MODULE = "tests.codegen.triton.products"
BY_ATEN = {"float64": ["aten.mm.default"]}
"""Programs that ATen runs by choice."""
COMPILED = (
    "epilogue",
    "many_tiles",
    "bfloat16",
    "convolution",
    "transposed_convolution",
    "flash_wide",
    "flex",
    "in_parts",
    *TILES,
)
"""Programs whose kernels are compiled to machine code."""
NARROW = ("bfloat16", "float16", "narrow_by_descriptors")
"""Programs whose products have units of their own in GPUs."""


INTERPRETED = (
    *("epilogue", "bfloat16", "float64", "transposed_convolution", "flash_masked", "flex"),
    *("in_parts", "by_descriptors", "training"),
)
MACHINE_CODE = ("bfloat16", "by_descriptors")
"""Programs of the quick tests; the slow test has all."""
KERNELS = {
    **dict.fromkeys(("epilogue", "linear", "convolution", *NARROW, "flash", "flash_causal", "flex"), 1),
    **dict.fromkeys(("in_parts", "convolution_in_parts"), 2),
}
"""A product and its epilogue are one kernel, as is an attention; few results of many terms are sums of parts.
"""


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, Any]]:
    return said(MODULE, "interpret", *INTERPRETED, TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def machine_code() -> dict[str, dict[str, Any]]:
    return said(MODULE, "compile", *MACHINE_CODE)


@pytest.mark.parametrize("name", INTERPRETED)
def test_a_product_is_right(interpreted: dict[str, dict[str, Any]], name: str) -> None:
    check_interpreted(name, interpreted[name])


@pytest.mark.parametrize("name", MACHINE_CODE)
def test_products_fit_in_registers_and_shared_memory(
    machine_code: dict[str, dict[str, Any]], name: str
) -> None:
    check_compiled(name, machine_code[name])


@pytest.mark.slow
def test_all_products() -> None:
    interpreted, machine_code = (
        said(MODULE, "interpret", TRITON_INTERPRET="1"),
        said(MODULE, "compile", *COMPILED),
    )
    assert interpreted.keys() == PRODUCTS.keys()
    for name, found in interpreted.items():
        check_interpreted(name, found)
    for name, found in machine_code.items():
        check_compiled(name, found)


def check_interpreted(name: str, found: dict[str, Any]) -> None:
    assert "error" not in found, found["error"]
    assert not found["fallbacks"] and found["externs"] == BY_ATEN.get(name, [])
    assert found["kernels"] == KERNELS.get(name, found["kernels"])


def check_compiled(name: str, found: dict[str, Any]) -> None:
    assert "error" not in found, found["error"]
    assert {each["architecture"] for each in found["kernels"]} == set(architectures_of(name))
    assert not found["too_much"]
    if name in TILES:
        assert any(each["copies"] for each in found["kernels"])
    if name in NARROW:
        assert all(each["multiplies"] for each in found["kernels"])
