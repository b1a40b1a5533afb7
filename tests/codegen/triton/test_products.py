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


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, Any]]:
    return said(MODULE, "interpret", TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def machine_code() -> dict[str, dict[str, Any]]:
    return said(MODULE, "compile", *COMPILED)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_right(interpreted: dict[str, dict[str, Any]], name: str) -> None:
    found = interpreted[name]
    assert "error" not in found, found["error"]
    assert not found["fallbacks"] and found["externs"] == BY_ATEN.get(name, [])


def test_a_product_with_its_epilogue_and_an_attention_are_one_kernel(
    interpreted: dict[str, dict[str, Any]],
) -> None:
    assert {
        interpreted[name]["kernels"]
        for name in ("epilogue", "linear", "convolution", *NARROW, "flash", "flash_causal", "flex")
    } == {1}


def test_few_results_of_many_terms_are_sums_of_parts(interpreted: dict[str, dict[str, Any]]) -> None:
    assert {interpreted[name]["kernels"] for name in ("in_parts", "convolution_in_parts")} == {2}


@pytest.mark.parametrize("name", COMPILED)
def test_products_fit_in_registers_and_shared_memory(
    machine_code: dict[str, dict[str, Any]], name: str
) -> None:
    found = machine_code[name]
    assert "error" not in found, found["error"]
    assert {each["architecture"] for each in found["kernels"]} == set(architectures_of(name))
    assert not found["too_much"]
    if name in TILES:
        assert any(each["copies"] for each in found["kernels"])
    if name in NARROW:
        assert all(each["multiplies"] for each in found["kernels"])
