"""Operators of exported quantization, taken apart: values and dtypes of PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("torch.ao.quantization.fx._decomposed")
import smelt
from smelt.contract.quantized_decomposed import quantized_decomposed

Q = torch.ops.quantized_decomposed
I8, U8 = torch.int8, torch.uint8
X = torch.linspace(-3, 3.5, 24).reshape(2, 3, 4)
SCALES, ZEROS = torch.tensor([0.1, 0.2, 0.05]), torch.tensor([1, 0, -3])
TOKENS = (torch.rand(2, 3, 1, dtype=torch.float64) + 0.1, torch.arange(6).reshape(2, 3, 1))
GROUPS = (torch.rand(4, 2) + 0.1, torch.arange(8, dtype=torch.int32).reshape(4, 2))
N = torch.arange(-12, 12, dtype=I8).reshape(2, 3, 4)
RANGE = (-128, 127)

CALLS: list[tuple[Any, tuple[Any, ...]]] = [
    (Q.quantize_per_tensor.default, (X, 0.1, 3, *RANGE, I8)),
    (Q.quantize_per_tensor.default, (X.half(), 0.1, 3, 0, 255, U8)),
    (Q.quantize_per_tensor.tensor, (X, SCALES[:1].double(), ZEROS[:1], *RANGE, I8)),
    (Q.quantize_per_tensor.tensor2, (X, SCALES[:1], ZEROS[:1], torch.tensor([-9]), torch.tensor([9]), I8)),
    (Q.dequantize_per_tensor.default, (N, 0.1, 3, *RANGE, I8)),
    (Q.dequantize_per_tensor.tensor, (N, SCALES[:1].double(), ZEROS[:1], *RANGE, I8)),
    (Q.quantize_per_channel.default, (X, SCALES, ZEROS, 1, *RANGE, I8)),
    (Q.quantize_per_channel.default, (X.bfloat16(), SCALES.double(), ZEROS, 1, *RANGE, I8)),
    (Q.dequantize_per_channel.default, (N, SCALES, ZEROS, 1, *RANGE, I8)),
    (Q.dequantize_per_channel.default, (N, SCALES.double(), None, 1, *RANGE, I8)),
    (Q.fake_quant_per_channel.default, (X, SCALES, ZEROS, 1, -9, 9)),
    (Q.quantize_per_token.default, (X, *TOKENS, *RANGE, I8)),
    (Q.dequantize_per_token.default, (N, *TOKENS, *RANGE, I8, torch.float32)),
    (Q.quantize_per_channel_group.default, (X.reshape(4, 6), *GROUPS, -8, 7, I8, 3)),
    (Q.dequantize_per_channel_group.default, (N.reshape(4, 6), *GROUPS, -8, 7, I8, 3, torch.float32)),
    (Q.dequantize_per_channel_group.default, (N.reshape(4, 6), GROUPS[0], None, -8, 7, I8, 3, torch.float32)),
    (Q.choose_qparams.tensor, (X, *RANGE, 1e-5, I8)),
    (Q.choose_qparams.tensor, (X.abs() * 1e-9, 0, 255, 1e-5, U8)),
    (Q.choose_qparams_symmetric.tensor, (X, *RANGE, 1e-5, I8)),
    (Q.choose_qparams_symmetric.tensor, (X, 0, 255, 1e-5, U8)),
    (Q.choose_qparams_per_token.default, (X, I8)),
    (Q.choose_qparams_per_token.default, (X.half(), I8)),
    (Q.choose_qparams_per_token_asymmetric.default, (X, I8)),
    (Q.convert_element_type.no_fuse, (X, torch.float16)),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call[0]).partition(".")[2])
def test_as_pytorch_has_it(call: tuple[Any, tuple[Any, ...]]) -> None:
    operator, args = call
    found, expected = quantized_decomposed()[operator](*args), operator(*args)
    for one, other in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected)):
        assert one.dtype == other.dtype and torch.equal(one, other)


def dynamic(x: torch.Tensor) -> torch.Tensor:
    scale, zero = Q.choose_qparams.tensor(x, *RANGE, 1e-5, I8)
    n = Q.quantize_per_tensor.tensor(x, scale, zero, *RANGE, I8)
    return Q.dequantize_per_tensor.tensor(n, scale, zero, *RANGE, I8)


def tokens(x: torch.Tensor) -> torch.Tensor:
    scale, zero = Q.choose_qparams_per_token_asymmetric.default(x, I8)
    n = Q.quantize_per_token.default(x, scale, zero, *RANGE, I8)
    return Q.dequantize_per_token.default(n, scale, zero, *RANGE, I8, torch.float32)


@pytest.mark.parametrize("function", [dynamic, tokens])
def test_dynamic_quantization_is_compiled_and_exported(function: Callable[..., Any]) -> None:
    expected = function(X)
    torch.testing.assert_close(torch.compile(function, backend="smelt", fullgraph=True)(X), expected)
    assert not smelt.reports()[-1].fallbacks
    for dialect in ("linalg", "stablehlo", "tosa"):
        torch.testing.assert_close(smelt.export(function, [X], to=dialect).run(X), expected)
