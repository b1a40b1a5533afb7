"""Operators some of whose results are None: in a kernel, in its fake kernel, in both, alone and in lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.errors import SmeltError

pytestmark = pytest.mark.usefixtures("fresh")

_LIBRARY = torch.library.Library("smelt_none", "FRAGMENT")
ops = torch.ops.smelt_none


def _operator(name: str, schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    _LIBRARY.define(name + schema)
    _LIBRARY.impl(name, kernel, "CPU")
    torch.library.register_fake(f"smelt_none::{name}", fake, lib=_LIBRARY)


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_operator(
    "workspace",
    "(Tensor x) -> (Tensor, Tensor)",
    lambda x: (x + 1, None),
    lambda x: (_like(x), x.new_empty(0)),
)
_operator("broken", "(Tensor x) -> (Tensor, Tensor)", lambda x: (x + 1, None), lambda x: (_like(x), _like(x)))
_operator("masked", "(Tensor x) -> (Tensor, Tensor)", lambda x: (None, x + 1), lambda x: (None, _like(x)))
_operator("nothing", "(Tensor x) -> Tensor?", lambda x: None, lambda x: None)
_operator("something", "(Tensor x) -> Tensor?", lambda x: x * 2, _like)
_operator("pair", "(Tensor x) -> (Tensor?, Tensor)", lambda x: (None, x * 2), lambda x: (None, _like(x)))
_operator("some", "(Tensor x) -> Tensor?[]", lambda x: [x * 2, None], lambda x: [_like(x), None])


def _taken(a: Tensor | None, many: list[Tensor | None], x: Tensor) -> Tensor:
    return x + sum(each for each in (a, *many) if each is not None)


_operator(
    "takes", "(Tensor? a, Tensor?[] many, Tensor x) -> Tensor", _taken, lambda a, many, x: torch.empty_like(x)
)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "one that nobody reads": lambda x: ops.workspace(x)[0] * 2,
    "one whose fake kernel is wrong, and nobody reads it": lambda x: ops.broken(x)[0] * 2,
    "masked": lambda x: ops.masked(x),
    "alone": lambda x: (ops.nothing(x), x + 1),
    "optional, and there": lambda x: ops.something(x) + 1,
    "of two": lambda x: ops.pair(x),
    "in a list": lambda x: (ops.some(x), ops.some(x)[0] + 1),
    "as an argument": lambda x: ops.takes(ops.nothing(x), [None, *ops.some(x)], x + 1) * 2,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_that_are_none(name: str, dynamic: bool) -> None:
    x = torch.randn(3, 4)
    compiled = torch.compile(PROGRAMS[name], backend="smelt", fullgraph=True, dynamic=dynamic)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), PROGRAMS[name](x))


def test_an_empty_tensor_is_what_tracing_had() -> None:
    _, empty = torch.compile(lambda x: ops.workspace(x), backend="smelt")(torch.randn(3, 4))
    assert empty.shape == (0,) and empty.dtype is torch.float32


def test_none_where_elements_are_read_is_an_error_that_names_the_operator() -> None:
    compiled = torch.compile(lambda x: ops.broken(x)[1] * 2, backend="smelt")
    with pytest.raises(SmeltError, match=r"SM0406: smelt_none\.broken\.default gave None"):
        compiled(torch.randn(3, 4))


@pytest.mark.parametrize("training", [False, True])
@torch._dynamo.config.patch(allow_rnn=True)
def test_an_lstm_of_onednn(training: bool) -> None:
    lstm, x = nn.LSTM(4, 8, 2, bidirectional=True), torch.randn(5, 2, 4)
    compiled = torch.compile(lstm, backend="smelt")
    with torch.set_grad_enabled(training):
        (got, state), (expected, its_state) = compiled(x), lstm(x)
        torch.testing.assert_close((got, state), (expected, its_state))
        if training:
            weights = list(lstm.parameters())
            torch.testing.assert_close(
                torch.autograd.grad(got.sum(), weights), torch.autograd.grad(expected.sum(), weights)
            )
            assert any("only where ATen records it" in str(each) for each in smelt.reports()[-1].fallbacks)


def test_gradients_that_are_none() -> None:
    """Of convolution and normalization, whose backward is told which gradients are asked for."""
    conv, norm = nn.Conv2d(3, 4, 3).requires_grad_(False), nn.LayerNorm(6)
    norm.bias.requires_grad_(False)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)

    def step(x: Tensor) -> Tensor:
        return norm(conv(x)).square().sum()

    compiled = torch.compile(step, backend="smelt")
    wanted = [x, norm.weight]
    torch.testing.assert_close(
        torch.autograd.grad(compiled(x), wanted), torch.autograd.grad(step(x), wanted), rtol=1e-4, atol=1e-4
    )
