"""What tells one module's trace from another's, without parameters and buffers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from smelt.runtime.identity import identity_of


def helped(x: Tensor) -> Tensor:
    return x + 1


def other(x: Tensor) -> Tensor:
    return x + 2


REGISTRY = {"how": helped}


class Settings:
    def __init__(self, eps: float) -> None:
        self.eps = eps


class Layer(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.settings = Settings(eps)
        self.act = torch.tanh
        self.table = torch.arange(3)
        self.kinds = {"a", "b", "c"}

    def forward(self, x: Tensor) -> Tensor:
        return helped(self.linear(x)) * self.scaled() + REGISTRY["how"](x)

    def scaled(self) -> float:
        return self.settings.eps

    def unused(self) -> int:
        return 1


def _known(module: nn.Module) -> str:
    found = identity_of(module)
    assert found is not None
    return found


def test_equal_modules_in_this_and_another_process() -> None:
    here = _known(Layer())
    assert here == _known(Layer())
    code = f"import {__name__} as t; print(t._known(t.Layer()))"
    place = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=place)
    assert done.stdout.split()[-1] == here


def _with(**attributes: Any) -> Callable[[], Layer]:
    def make() -> Layer:
        module = Layer()
        for name, value in attributes.items():
            setattr(module, name, value)
        return module

    return make


def _hooked() -> Layer:
    module = Layer()
    module.linear.register_forward_hook(lambda *args: None)
    return module


@pytest.mark.parametrize(
    "make",
    [
        partial(Layer, 1e-6),
        _with(act=torch.sigmoid),
        _with(act=other),
        _with(act=partial(torch.add, 1)),
        _with(table=torch.arange(3) + 1),  # it becomes a constant
        _with(linear=nn.Linear(2, 2, bias=False)),
        _with(kinds={"a", "b"}),
        _with(training=False),
        _with(forward=lambda x: x),
        _hooked,
    ],
    ids=["config", "function", "own", "partial", "tensor", "form", "set", "mode", "forward", "hook"],
)
def test_what_differs_is_seen(make: Callable[[], Layer]) -> None:
    assert _known(make()) != _known(Layer())


@pytest.fixture
def precision() -> Iterator[None]:
    """A setting of torch that a test may change."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("precision")
def test_code_that_forward_reaches_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _known(Layer())
    monkeypatch.setattr(Layer, "unused", lambda self: 2)
    assert _known(Layer()) == before
    for change in (
        lambda: monkeypatch.setattr(Layer, "scaled", lambda self: 2 * self.settings.eps),
        lambda: monkeypatch.setitem(REGISTRY, "how", other),
        lambda: monkeypatch.setattr(sys.modules[__name__], "helped", other),
        lambda: torch.set_float32_matmul_precision("high"),
    ):
        change()
        after = _known(Layer())
        assert after != before
        before = after


def test_another_body_of_a_closure_counts() -> None:
    def made(number: int) -> Callable[[Tensor], Tensor]:
        return lambda x: x * number

    assert _known(_with(act=made(2))()) == _known(_with(act=made(2))())
    assert _known(_with(act=made(2))()) != _known(_with(act=made(3))())


def test_what_nobody_can_know_again_has_none() -> None:
    assert identity_of(_with(lock=threading.Lock())()) is None
    assert identity_of(_with(made=[iter(())])()) is None


def test_hooks_count_not_their_numbers() -> None:
    def hooked() -> nn.Module:
        layer = nn.Linear(2, 2)
        layer.register_forward_pre_hook(_doubled)
        return layer

    first = identity_of(hooked())
    nn.Linear(2, 2).register_forward_hook(_doubled)  # numbers go on
    assert first == identity_of(hooked()) != identity_of(nn.Linear(2, 2))


def _doubled(*args: object) -> None:
    """A hook that changes nothing."""
