"""Models quantized by torchao, and exported ones with q/dq: compiled whole, without fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt

ROWS = (1, 40)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64, bias=False)).eval()


def agrees(compiled: Callable[..., Any], eager: Callable[..., Any], *args: Tensor) -> None:
    with torch.no_grad():
        found, wanted = compiled(*args), eager(*args)
    close = {torch.bfloat16: 2**-7, torch.float32: 1e-5}[wanted.dtype]
    torch.testing.assert_close(found, wanted, rtol=close, atol=close * float(wanted.abs().max()))
    report = smelt.reports()[-1]
    assert report.kind == "inference" and not report.fallbacks


def configurations() -> dict[str, Callable[[Any], Any]]:
    return {
        "int8 weights": lambda ao: ao.Int8WeightOnlyConfig(),
        "int8 weights and activations": lambda ao: ao.Int8DynamicActivationInt8WeightConfig(),
        "int4 weights": lambda ao: ao.IntxWeightOnlyConfig(torch.int4, ao.PerGroup(32)),
        "int4 weights, int8 activations": lambda ao: ao.Int8DynamicActivationIntxWeightConfig(
            torch.int4, ao.PerGroup(32)
        ),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", configurations())
def test_models_of_torchao(fresh: None, name: str, dtype: torch.dtype) -> None:
    """``Int4WeightOnlyConfig`` is for GPUs: torchao refuses CPUs, or wants a package that has none."""
    ao = pytest.importorskip("torchao.quantization", reason="needs torchao")
    quantized = model().to(dtype)
    ao.quantize_(quantized, configurations()[name](ao))
    compiled = torch.compile(quantized, backend="smelt", dynamic=False)
    for rows in ROWS:
        agrees(compiled, quantized, torch.randn(rows, 256, dtype=dtype))


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_exported_quantization_of_torchao(fresh: None, is_dynamic: bool) -> None:
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e", reason="needs torchao")
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    wanted = x86.get_default_x86_inductor_quantization_config(is_dynamic=is_dynamic)
    x = torch.randn(8, 256)
    prepared = pt2e.prepare_pt2e(
        torch.export.export(model(), (x,)).module(), x86.X86InductorQuantizer().set_global(wanted)
    )
    prepared(x)
    converted = pt2e.convert_pt2e(prepared)
    agrees(torch.compile(converted, backend="smelt"), converted, x)


def test_a_linear_layer_of_exported_quantization(fresh: None) -> None:
    """Activations quantized for all of a tensor, weights for each output: the operators alone."""
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    q = torch.ops.quantized_decomposed
    weight = torch.randint(-127, 128, (128, 256), dtype=torch.int8)
    scales, zeros = torch.rand(128) / 100, torch.zeros(128, dtype=torch.int64)

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        n = q.quantize_per_tensor.default(x, 0.02, 3, 0, 255, torch.uint8)
        values = q.dequantize_per_tensor.default(n, 0.02, 3, 0, 255, torch.uint8)
        channels = q.dequantize_per_channel.default(weight, scales, zeros, 0, -128, 127, torch.int8)
        return nn.functional.linear(values, channels, bias)

    compiled = torch.compile(layer, backend="smelt", dynamic=False, fullgraph=True)
    for rows in ROWS:
        agrees(compiled, layer, torch.randn(rows, 256), weight, torch.randn(128))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_with_packed_weights_are_atens(fresh: None, dtype: torch.dtype) -> None:
    quants, scales = torch.randint(-127, 128, (64, 256), dtype=torch.int8), torch.rand(64, dtype=dtype)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (64, 256)).int(), 1)
    groups = torch.rand(8, 64, 2, dtype=dtype)

    def products(x: Tensor) -> Tensor:
        wide = torch.ops.aten._weight_int8pack_mm(x, quants, scales)
        return wide + torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, 32, groups)

    agrees(torch.compile(products, backend="smelt"), products, torch.randn(3, 256).to(dtype))
