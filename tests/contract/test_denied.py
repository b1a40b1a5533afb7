"""The options deny and allow: spellings, wildcards, what a name stands for, wrong names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt.config import Config, from_options
from smelt.contract import Denied
from smelt.errors import SmeltError

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="smelt", options=options)


@pytest.mark.parametrize(
    "text, name, found",
    [
        ("aten::add.Tensor", "aten.add.Tensor", "aten.add.Tensor"),
        ("aten.add.Tensor", "aten.add.Scalar", None),
        ("add", "aten.add.Scalar", "aten.add"),
        ("aten.*norm*", "aten.native_layer_norm.default", "aten.*norm*"),
        ("aten.gelu; aten::softmax", "aten.softmax.int", "aten.softmax"),
        ("flex_attention", "flex_attention", "flex_attention"),
        ("*", "aten.add.Tensor", "*"),
    ],
)
def test_spellings(text: str, name: str, found: str | None) -> None:
    assert Denied.of(Config(deny=text)).name(name) == found
    assert Denied.of(Config(deny=text, allow=text)).name(name) is None


def test_a_wrong_name_gets_a_hint() -> None:
    with pytest.raises(SmeltError, match=r"SM0105: option 'deny' names aten.softmac(.|\n)*aten.softmax"):
        Denied.of(Config(deny="aten::softmac"))
    with pytest.raises(SmeltError, match="SM0105: option 'allow'"):
        Denied.of(Config(allow="qwertz"))


def test_variables_add_to_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_DENY_OPS", "aten::gelu")
    monkeypatch.setenv("SMELT_ALLOW_OPS", "aten.add")
    monkeypatch.setenv("TORCH_MHLO_OP_WHITE_LIST", "aten::mul;aten::sub")
    config = from_options({"deny": "aten.exp"})
    assert (config.deny, config.allow) == ("aten.exp;aten::gelu", "aten.add;aten::mul;aten::sub")
    assert config.key() != from_options({}).key() and "gelu" in config.key()


@pytest.mark.parametrize("spelt", ["aten.softmax", "aten::_softmax", "softmax"])
@pytest.mark.parametrize(
    "softmax", [lambda x: torch.softmax(x, -1), lambda x: x.softmax(-1), nn.Softmax(-1), F.softmax]
)
def test_what_is_denied_has_eagers_bits(spelt: str, softmax: Any) -> None:
    x = torch.randn(33, 301, requires_grad=True)
    given = (x, -1) if softmax is F.softmax else (x,)
    got, expected = compiled(softmax, deny=spelt)(*given), softmax(*given)
    assert torch.equal(got, expected)
    (fallback,) = smelt.reports()[0].fallbacks
    assert fallback.op == "aten._softmax.default" and "(option deny)" in fallback.reason
    upstream = torch.randn(33, 301)
    if spelt != "aten::_softmax":
        assert torch.equal(*(torch.autograd.grad(each, x, upstream)[0] for each in (got, expected)))


def test_composites_stay_whole_forward_and_backward() -> None:
    norm, target = nn.LayerNorm(300), torch.randint(0, 300, (64,))

    def program(x: Tensor) -> Tensor:
        return F.cross_entropy(norm(x), target)

    x = torch.randn(64, 300, requires_grad=True)
    got = compiled(program, deny="cross_entropy_loss; layer_norm")(x)
    assert torch.equal(got, program(x))
    assert torch.equal(*(torch.autograd.grad(each, x)[0] for each in (got, program(x))))
    assert {each.op for each in smelt.reports()[1].fallbacks} == {
        "aten.nll_loss_backward.default",
        "aten._log_softmax_backward_data.default",
        "aten.native_layer_norm_backward.default",
    }


def test_what_smelt_makes_of_another_operator_is_not_denied() -> None:
    compiled(lambda x: F.silu(x) + 1, deny="aten.mul; aten.sigmoid")(torch.randn(100))
    assert not smelt.reports()[0].fallbacks


@pytest.mark.parametrize(
    "denied, function, dtype",
    [
        ("unsafe_chunk", lambda x: sum(torch.unsafe_chunk(x * 2, 2)), torch.float32),
        ("tanh", lambda x: torch.tanh(x * 2) + 1, torch.complex64),
    ],
)
def test_views_of_a_denied_call_are_compiled(denied: str, function: Any, dtype: torch.dtype) -> None:
    x = torch.randn(4, 6, dtype=dtype, requires_grad=True)
    compiled(function, deny=denied)(x).abs().sum().backward()
    assert not [
        each for report in smelt.reports() for each in report.fallbacks if "denied" not in each.reason
    ]


def test_calls_in_control_flow() -> None:
    def function(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: torch.softmax(F.gelu(x), -1), lambda x: x.sin() * 3, (x,))

    x = torch.randn(20, 50)
    for value in (x.abs(), -x.abs()):
        assert torch.equal(compiled(function, deny="gelu; softmax; sin; mul")(value), function(value))
    named = {each.op for each in smelt.reports()[0].fallbacks}
    assert named == {
        f"aten.{name}" for name in ("gelu.default", "_softmax.default", "sin.default", "mul.Tensor")
    }


def test_a_denied_loop_within_a_branch() -> None:
    def loop(x: Tensor) -> Tensor:
        return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1]

    x = torch.ones(20)
    found = compiled(lambda x: torch.cond(x.sum() > 0, loop, torch.exp, (x,)).sin() * 2, deny="while_loop")(x)
    torch.testing.assert_close(found, (x * 8).sin() * 2)
    fallbacks = [each for report in smelt.reports() for each in report.fallbacks]
    assert any("denied: while_loop" in each.reason for each in fallbacks)


def test_an_exception() -> None:
    compiled(lambda x: x.sin().exp().cos(), deny="aten.*", allow="aten.exp")(torch.randn(100))
    assert {each.op for each in smelt.reports()[0].fallbacks} == {"aten.sin.default", "aten.cos.default"}
