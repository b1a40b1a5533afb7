"""What only exporting takes apart computes what eager does."""

from __future__ import annotations

import pytest
import torch

from smelt.contract.portable import portable

aten = torch.ops.aten
X = torch.linspace(-3, 3, 24).reshape(2, 3, 4)


@pytest.mark.parametrize("name", ["var", "var_mean", "std", "std_mean"])
def test_moments(name: str) -> None:
    table = portable()
    packet = getattr(aten, name)
    for args in ((True,), (False,)):
        torch.testing.assert_close(table[packet.default](X, *args), packet.default(X, *args))
    torch.testing.assert_close(table[packet.dim](X, [0, 2], False, True), packet.dim(X, [0, 2], False, True))


def test_convolution_with_kernel_choices() -> None:
    args = (X, torch.ones(2, 3, 2), None, [1], [1], [1], False, [0], 1, False, False, True, True)
    torch.testing.assert_close(portable()[aten._convolution.default](*args), aten._convolution.default(*args))


def test_collapse() -> None:
    collapse = torch.ops.prims.collapse.default
    assert torch.equal(portable()[collapse](X, 1, 2), collapse(X, 1, 2))


def test_index_put_impl() -> None:
    args = ([torch.tensor([1, 1])], torch.ones(2, 3, 4), True, False)
    found = portable()[aten._index_put_impl.default](X, *args)
    assert torch.equal(found, aten._index_put_impl.default(X, *args))


def test_quantization() -> None:
    from torch.ao.quantization.fx import _decomposed  # noqa: F401

    table, operators = portable(), torch.ops.quantized_decomposed
    scales, zeros = torch.tensor([0.1, 0.2, 0.05]), torch.tensor([1, 0, -3])
    for function, args in (
        (operators.quantize_per_tensor.default, (0.1, 3, -128, 127, torch.int8)),
        (operators.quantize_per_tensor.tensor, (scales[:1], zeros[:1], -128, 127, torch.int8)),
        (operators.quantize_per_channel.default, (scales, zeros, 1, -128, 127, torch.int8)),
    ):
        found = table[function](X, *args)
        assert torch.equal(found, function(X, *args)) and found.dtype is torch.int8
        back = getattr(operators, function._schema.name.split("::")[1].replace("quant", "dequant"))
        back = getattr(back, function._overloadname)
        torch.testing.assert_close(table[back](found, *args), back(found, *args))


def test_fake_quantization() -> None:
    table = portable()
    for function, args in (
        (aten.fake_quantize_per_tensor_affine_cachemask.default, (0.1, 3, -20, 20)),
        (
            aten.fake_quantize_per_channel_affine_cachemask.default,
            (torch.tensor([0.1, 0.2, 0.05]), torch.tensor([1, 0, -3], dtype=torch.int32), 1, -20, 20),
        ),
    ):
        for one, expected in zip(table[function](X, *args), function(X, *args), strict=True):
            torch.testing.assert_close(one, expected)
