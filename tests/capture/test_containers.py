"""Modules whose ``_modules``, ``_parameters`` and ``_buffers`` are other dicts than plain ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt

pytestmark = pytest.mark.usefixtures("fresh")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale + self.shift


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class Ordered(OrderedDict[str, Any]):
    """A subclass that does nothing of its own."""


class Plain(dict[str, Any]):
    """A subclass of ``dict`` itself."""


class Gathering(OrderedDict[str, Any]):
    """A subclass that looks at what it gives, as sharded parameters are gathered."""

    def __getitem__(self, name: str) -> Any:
        assert isinstance(name, str)
        return super().__getitem__(name)


CONTAINERS = ("_modules", "_parameters", "_buffers")
KINDS: list[Callable[[Any], Any]] = [OrderedDict, Ordered, Plain, Gathering]
X = torch.randn(2, 4)


def _replaced(model: nn.Module, containers: tuple[str, ...], kind: Callable[[Any], Any]) -> None:
    for module in model.modules():
        for name in containers:
            vars(module)[name] = kind(vars(module)[name])


def _agrees(call: Callable[..., Any], model: nn.Module) -> None:
    for _ in range(3):
        torch.testing.assert_close(call(X), model(X), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_containers_of_another_class(kind: Callable[[Any], Any], gradients: bool) -> None:
    model = Model()
    _replaced(model, CONTAINERS, kind)
    with torch.set_grad_enabled(gradients):
        _agrees(torch.compile(model, backend="smelt"), model)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_container_becomes_another_one_between_calls(kind: Callable[[Any], Any], container: str) -> None:
    model = Model()
    call = smelt.compile(model)
    with torch.no_grad():
        _agrees(call, model)
        _replaced(model, (container,), kind)
        _agrees(call, model)
        model.layers[2] = Block()
        model.layers[1].scale = nn.Parameter(torch.randn(4))
        model.layers[0].shift = torch.randn(4)
        _agrees(call, model)
        _replaced(model, (container,), dict)
        _agrees(call, model)


def test_layers_are_dropped_before_and_after_compiling() -> None:
    model = Model()
    del model.layers[5:]
    assert type(model.layers._modules) is not dict
    call = smelt.compile(model)
    with torch.no_grad():
        _agrees(call, model)
        del model.layers[3:]
        _agrees(call, model)
        model.layers.append(Block())
        _agrees(call, model)


class Store(dict[str, Any]):
    """A dict with attributes, which are not its items."""


def test_tensors_among_the_attributes_of_a_dict() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.store = Model(), Store(weight=torch.randn(4))
            self.store.other = torch.randn(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x) * self.store["weight"] + self.store.other

    model = Holder()
    with torch.no_grad():
        _agrees(torch.compile(model, backend="smelt"), model)
