"""Attention for GPUs: gradients, keys in parts, `flex_attention`; interpreted, and as machine code."""

from __future__ import annotations

from typing import Any

import pytest

from tests.codegen.triton.attention import ATTENTION
from tests.codegen.triton.programs import ARCHITECTURES
from tests.codegen.triton.test_triton import TRITON, said

pytestmark = [pytest.mark.long, pytest.mark.skipif(not TRITON.is_dir(), reason="no Triton: make test")]

MODULE = "tests.codegen.triton.attention"
ALONE = (
    *("decode_of_any_length", "decode_causal", "gradients_of_groups", "cuda_cudnn", "cuda_block"),
    *("gradients_of_wide_heads", "gradients_masked"),
    *("gradients", "gradients_causal", "gradients_in_bfloat16", "gradients_of_wide_float32", "decode"),
    *("flex", "flex_softcap", "flex_window"),
)
"""Programs that the slow test alone runs: the others have what they have."""
KERNELS = {"decode": 2, "flex_decode": 2, "decode_masked": 3, "gradients_masked": 5, "flex_softcap": 12}
KERNELS |= {"cuda_efficient": 5, "cuda_cudnn": 5, "cuda_sums": 2, "cuda_block": 13, "cuda_block_by_aten": 4}
"""Kernels of a program: parts of the keys and what combines them; one makes numbers of a mask of booleans.
In ``flex_softcap`` seven kernels make PyTorch's block mask for no mask. CUDA's kernels keep their sums in a
layout of their own.
"""
EFFICIENT = "aten._scaled_dot_product_efficient_attention"
EXTERNS = {
    "cuda_block_by_aten": [
        *("aten.mm.default", f"{EFFICIENT}.default"),
        *("aten.mm.default", f"{EFFICIENT}_backward.default"),
    ]
}
"""Calls of ATen; each operator counts once in a graph."""
FLEX, SDPA = 5, 4
"""Kernels of a training step: attention, sums of upstream * result, gradients; and the logarithms' base."""
MOST = {80: 163, 90: 227, 100: 227}
"""Shared memory of a block in KiB."""


def check_interpreted(name: str, found: dict[str, Any]) -> None:
    assert "error" not in found, found["error"]
    assert not found["fallbacks"] and found["externs"] == EXTERNS.get(name, [])
    usual = 2 if name.startswith("decode") else FLEX if name.startswith("flex") else SDPA
    assert found["kernels"] == KERNELS.get(name, usual)


def check_compiled(found: dict[str, Any], architectures: tuple[int, ...]) -> None:
    assert "error" not in found, found["error"]
    assert {each["architecture"] for each in found["kernels"]} == set(architectures)
    for each in found["kernels"]:
        assert each["stack"] <= 16 and each["shared"] <= MOST[each["architecture"]] * 1024, each


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, Any]]:
    names = [name for name in ATTENTION if name not in ALONE]
    return said(MODULE, "interpret", *names, TRITON_INTERPRET="1")


@pytest.mark.parametrize("name", [name for name in ATTENTION if name not in ALONE])
def test_attention_is_right(interpreted: dict[str, dict[str, Any]], name: str) -> None:
    check_interpreted(name, interpreted[name])


def test_gradients_of_wide_heads_fit() -> None:
    """They need the most registers, and the products of blocks are those of tensor cores."""
    (found,) = said(MODULE, "compile", "gradients_of_wide_heads").values()
    check_compiled(found, (90,))
    assert sum(each["multiplies"] for each in found["kernels"]) == 3


@pytest.mark.slow
def test_all_of_attention() -> None:
    for name, found in said(MODULE, "interpret", TRITON_INTERPRET="1").items():
        check_interpreted(name, found)
    for found in said(MODULE, "everywhere").values():
        check_compiled(found, ARCHITECTURES)
