"""Attention taken apart against ATen's kernels."""

from __future__ import annotations

import pytest
import torch

from smelt.contract.attention import flash_attention_for_cpu, flash_attention_for_cpu_backward

aten = torch.ops.aten


@pytest.mark.parametrize("heads", [8, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_heads_that_share_keys_and_values(heads: int, causal: bool) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, h, 3, 8, dtype=torch.float64) for h in (8, heads, heads))
    expected = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal)
    torch.testing.assert_close(flash_attention_for_cpu(query, key, value, 0.0, causal), expected)
    given = torch.randn_like(expected[0]), query, key, value, *expected, 0.0, causal
    torch.testing.assert_close(
        flash_attention_for_cpu_backward(*given),
        aten._scaled_dot_product_flash_attention_for_cpu_backward(*given),
    )
