"""`smelt.quantize`: layers, ties, states, conversions, refusals."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.contract.weight_formats import FORMATS
from smelt.quantized.convert import dequantize
from smelt.quantized.modules import QuantizedEmbedding, QuantizedLinear, QuantizedWeight
from smelt.quantized.rounding import rounded

WAYS = [
    ("int8", {}),
    *(("int4", {"group": group, "zero_points": zero}) for group in (32, 64, 128) for zero in (False, True)),
    ("q8_0", {}),
    ("q4_0", {}),
    ("q4_1", {}),
]
QUANTIZABLE = [name for name, layout in FORMATS.items() if not layout.block]


class Tied(nn.Module):
    """An embedding and a head with one weight."""

    def __init__(self, embedding: type[nn.Embedding] = nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding(50, 64, padding_idx=0)
        self.middle, self.head = nn.Linear(64, 64), nn.Linear(64, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, numbers: Tensor) -> Tensor:
        return self.head(self.middle(self.embedding(numbers)).relu())


@pytest.mark.parametrize("spread", [1.0, 1e-7, 1e6])
@pytest.mark.parametrize("name", QUANTIZABLE)
def test_values_are_within_half_a_step(name: str, spread: float) -> None:
    weight = torch.randn(7, 256) * spread
    weight[0] = 0.0
    weight[1] = weight[1].abs() + spread
    layout = FORMATS[name]
    planes = rounded(weight, layout)
    found = QuantizedWeight(name, planes, 256)().unflatten(-1, (planes[1].shape[-1], -1))
    groups = weight.unflatten(-1, (planes[1].shape[-1], -1))
    step = planes[1].float().abs().unsqueeze(-1)
    coarse = (
        groups.abs().amax(-1, keepdim=True) * 2**-9
    )  # of scales, which have 11 bits, times up to 15 steps
    edge = step / 2 if layout.offset else 0.0  # 8 has no quant where -8 has one
    assert ((found - groups).abs() <= step * 0.5001 + coarse + edge).all()
    assert torch.equal(found[0], torch.zeros_like(found[0]))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_compiled_models_agree_for_few_and_many_rows(fresh: None, way: tuple[str, dict[str, int]]) -> None:
    model = nn.Sequential(nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 48, bias=False))
    whole = copy.deepcopy(model).double()
    model = smelt.quantize(model, way[0], **way[1])  # type: ignore[arg-type]
    with torch.no_grad():
        for place in (0, 2):
            whole[place].weight.copy_(model[place].weight(torch.float64))
    compiled = torch.compile(model, backend="smelt", dynamic=False)
    for rows in (1, 40):
        x = torch.randn(rows, 256)
        with torch.no_grad():
            found, eager, exact = compiled(x), model(x), whole(x.double())
        allowed = 4 * (eager - exact).abs().max() + 8 * torch.finfo(torch.float32).eps * exact.abs().max()
        assert (found - exact).abs().max() <= allowed
    assert not any(report.fallbacks for report in smelt.reports())


def test_a_tied_weight_is_there_once(fresh: None) -> None:
    model = smelt.quantize(Tied(), "q8_0")
    assert isinstance(model.embedding, QuantizedEmbedding) and isinstance(model.head, QuantizedLinear)
    model.to(torch.bfloat16).float()
    assert model.head.weight is model.embedding.weight
    planes = {id(buffer) for buffer in model.buffers()}
    assert len(planes) == 4  # quants and scales, of two weights
    numbers = torch.tensor([[3, 0, 49]])
    with torch.no_grad():
        found, eager = torch.compile(model, backend="smelt")(numbers), model(numbers)
    torch.testing.assert_close(found, eager)
    with pytest.raises(IndexError):
        model(torch.tensor([50]))


def test_conversions_leave_planes_alone() -> None:
    model = smelt.quantize(Tied(), "int4", zero_points=True)
    before = {name: plane.clone() for name, plane in model.head.weight.named_buffers()}
    model.to(torch.bfloat16)
    assert model(torch.tensor([1])).dtype is torch.bfloat16 and model.middle.bias.dtype is torch.bfloat16
    model.double().half()
    assert model.head.weight.dtype is torch.float16
    after = dict(model.head.weight.named_buffers())
    assert all(
        torch.equal(after[name], plane) and after[name].dtype == plane.dtype for name, plane in before.items()
    )
    assert model.to("meta").head.weight.device.type == "meta"


def test_a_state_goes_into_another_model() -> None:
    one, other = smelt.quantize(Tied(), "int4"), smelt.quantize(Tied(), "int4")
    assert {"embedding.weight.quants", "head.weight.scales", "middle.bias"} <= one.state_dict().keys()
    other.load_state_dict(one.state_dict())
    numbers = torch.tensor([4, 7])
    assert torch.equal(one(numbers), other(numbers)) and torch.equal(
        copy.deepcopy(one)(numbers), one(numbers)
    )


def test_gradients_pass_through_a_quantized_layer(fresh: None) -> None:
    layer = smelt.quantize(nn.Linear(64, 32), "int8")
    x = torch.randn(3, 64, requires_grad=True)
    torch.compile(layer, backend="smelt")(x).square().sum().backward()
    found, x.grad = x.grad, None
    layer(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad)
    backward = smelt.reports()[-1].text("contract")  # has the planes, not the values
    assert "dequantize" in backward and "i8[32, 64]" in backward.partition("dequantize")[0]
    assert not any(plane.requires_grad for plane in layer.buffers())


def test_skipped_layers_stay() -> None:
    model = smelt.quantize(Tied(), skip=["hea*"])
    assert type(model.head) is nn.Linear and type(model.embedding) is nn.Embedding
    assert isinstance(model.middle, QuantizedLinear)
    model = smelt.quantize(Tied(), skip=lambda name, module: module.out_features == 64)
    assert type(model.middle) is nn.Linear and model.head.weight is model.embedding.weight


def test_an_embedding_of_another_kind_keeps_its_weight(caplog: pytest.LogCaptureFixture) -> None:
    class Scaled(nn.Embedding):
        pass

    with caplog.at_level(logging.WARNING, "smelt"):
        model = smelt.quantize(Tied(Scaled))
    assert type(model.head) is nn.Linear and isinstance(model.middle, QuantizedLinear)
    assert "embedding (Scaled)" in caplog.text


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("int3", {}),
        ("q6_k", {}),
        ("int4", {"group": 16}),
        ("int8", {"group": 64}),
        ("q4_0", {"zero_points": True}),
    ],
)
def test_formats_that_are_none(format: str, options: dict[str, int]) -> None:
    with pytest.raises(smelt.SmeltError, match="SM0115"):
        smelt.quantize(nn.Linear(64, 64), format, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("activations", ["int4", "INT8", True])
def test_activations_that_are_none(activations: str) -> None:
    with pytest.raises(smelt.SmeltError, match="SM0115: activations cannot be quantized to"):
        smelt.quantize(nn.Linear(64, 64), activations=activations)


@pytest.mark.parametrize("format", ["int8", "int4"])
def test_activations_of_int8(fresh: None, format: str) -> None:
    model = nn.Sequential(nn.Linear(128, 192), nn.ReLU(), nn.Linear(192, 128, bias=False)).eval()
    before = copy.deepcopy(model)
    smelt.quantize(model, format, activations="int8")
    x = torch.randn(5, 128)
    with torch.no_grad():
        found, wanted = smelt.compile(model)(x), model(x)
        plain = smelt.quantize(before, format)(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert 0 < (wanted - plain).abs().max() < 0.02 and not smelt.reports()[-1].fallbacks
    assert "activations=int8" in repr(model) and model.bfloat16()(x.bfloat16()).dtype is torch.bfloat16


def test_models_without_linear_layers() -> None:
    with pytest.raises(smelt.SmeltError, match=r"SM0115: Sequential has no nn\.Linear"):
        smelt.quantize(nn.Sequential(nn.ReLU()))


def test_layers_that_cannot_be_quantized_are_all_named() -> None:
    model = nn.Sequential(
        nn.Linear(40, 64), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64, device="meta")
    )
    model[1].register_forward_hook(lambda *args: None)
    model[2].weight.data[3, 4] = torch.inf
    with pytest.raises(smelt.SmeltError, match="SM0116") as raised:
        smelt.quantize(model, "int4")
    text = str(raised.value)
    assert all(f"{place}: " in text for place in range(4)) and "40 columns are no multiple of 32" in text
    assert all(type(layer) is nn.Linear for layer in model)


def test_dequantized_layers_have_the_values_and_share_them() -> None:
    model, numbers = smelt.quantize(Tied().eval(), "int4", group=64), torch.tensor([[0, 3, 49]])
    before = model(numbers)
    dequantize(model)
    assert type(model.head) is type(model.middle) is nn.Linear and type(model.embedding) is nn.Embedding
    assert model.head.weight is model.embedding.weight and model.embedding.padding_idx == 0
    assert torch.equal(model(numbers), before)
    assert isinstance(smelt.quantize(model, "int8").middle, QuantizedLinear)
