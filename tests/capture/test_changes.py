"""Whatever changes what a program computes is noticed: the next call is eager's, by Dynamo's own guards."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt

pytestmark = pytest.mark.usefixtures("fresh")


class Block(nn.Module):
    """Some layers, numbers, a switch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()
        self.register_buffer("shift", torch.randn(6))
        self.scale, self.switch, self.sizes = 2.0, False, (1, 6)
        self.plain: dict[str, float] = {"more": 0.5}

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.norm(self.first(x)) * self.scale) + self.plain["more"]
        return x - self.shift.view(self.sizes) if self.switch else x + self.shift


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


X = torch.randn(4, 6)


def block(model: Model) -> Any:
    return model.blocks[1]


def _forward(model: Model) -> None:
    block(model).last.forward = torch.tanh


def _class(model: Model) -> None:
    block(model).last.__class__ = nn.Sigmoid


def _modules(model: Model) -> None:
    block(model)._modules = {**block(model)._modules, "last": nn.Tanh()}


def _attributes(model: Model) -> None:
    block(model).__dict__ = {**block(model).__dict__, "scale": 5.0}


def _norm(model: Model) -> None:
    block(model).norm.running_mean = torch.randn(6)


def _strides(model: Model) -> None:
    block(model).first.weight.data = torch.randn(6, 6).t()


def _part(model: Model) -> None:
    block(model).first.weight.data = torch.randn(9, 6)[3:]


def _swapped(model: Model) -> None:
    torch.utils.swap_tensors(block(model).first.weight, nn.Parameter(torch.randn(6, 6)))


def _removed(model: Model) -> None:
    model.blocks = model.blocks[:2]


def _wider(model: Model) -> None:
    block(model).first = nn.Linear(6, 9)
    block(model).norm, block(model).switch = nn.BatchNorm1d(9).eval(), False
    block(model).shift = torch.randn(9)
    model.blocks[2].first = nn.Linear(9, 6)


CHANGES: dict[str, Callable[[Model], object]] = {
    "a number": lambda model: setattr(block(model), "scale", 3.0),
    "a switch": lambda model: setattr(block(model), "switch", True),
    "a plain dict": lambda model: block(model).plain.update(more=-1.0),
    "another plain dict": lambda model: setattr(block(model), "plain", {"more": 7.0}),
    "a number of a layer": lambda model: setattr(block(model).norm, "eps", 0.5),
    "another layer": lambda model: setattr(block(model), "last", nn.GELU()),
    "a layer less": _removed,
    "other sizes": _wider,
    "no bias": lambda model: setattr(block(model).first, "bias", None),
    "another parameter": lambda model: setattr(block(model).first, "bias", nn.Parameter(torch.randn(6))),
    "another buffer": _norm,
    "data =": lambda model: setattr(block(model).first.bias, "data", torch.randn(6)),
    "data in place": lambda model: block(model).first.weight.data.mul_(-2),
    "other strides": _strides,
    "a part of more": _part,
    "swapped tensors": _swapped,
    "in place": lambda model: block(model).shift.neg_(),
    "requires_grad": lambda model: block(model).first.weight.requires_grad_(False),
    "train": lambda model: block(model).train(),
    "a forward of its own": _forward,
    "another class": _class,
    "another dict of modules": _modules,
    "another __dict__": _attributes,
    "other weights": lambda model: model.load_state_dict(Model().state_dict()),
}


GRADIENTS = ("a switch", "another layer", "other strides", "swapped tensors", "requires_grad", "train")


@pytest.mark.parametrize(
    "name, gradients", [*((name, False) for name in CHANGES), *((name, True) for name in GRADIENTS)]
)
def test_changes(name: str, gradients: bool) -> None:
    model = Model().eval()
    fast = smelt.compile(model, freezing=not gradients)
    for change in (lambda model: None, CHANGES[name]):
        change(model)
        for _ in range(2):
            like = copy.deepcopy(model)
            with torch.set_grad_enabled(gradients):
                torch.testing.assert_close(fast(X), like(X), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("freezing", [False, True])
def test_another_dtype(freezing: bool) -> None:
    model = Model().eval()
    fast = smelt.compile(model, freezing=freezing)
    with torch.no_grad():
        fast(X), fast(X)
        block(model).first.weight.data = block(model).first.weight.data.double()
        for call in (model, fast):
            with pytest.raises(Exception, match="same dtype"):
                call(X)
        model.double()
        torch.testing.assert_close(fast(X.double()), model(X.double()))
        model.float()
        torch.testing.assert_close(fast(X), model(X), atol=1e-5, rtol=1e-5)


def test_inputs_are_still_asked_for() -> None:
    model = Model().eval()
    fast = smelt.compile(model, dynamic=False)
    with torch.no_grad():
        for x in (X, X, torch.randn(7, 6), X[:0], X):
            torch.testing.assert_close(fast(x), model(x), atol=1e-5, rtol=1e-5)


def test_gradients_are_wanted_later() -> None:
    model = Model().eval().requires_grad_(False)
    fast = smelt.compile(model)
    fast(X), fast(X)
    block(model).first.weight.requires_grad_(True)
    assert fast(X).requires_grad
    fast(X).sum().backward()
    got, block(model).first.weight.grad = block(model).first.weight.grad, None
    model(X).sum().backward()
    torch.testing.assert_close(got, block(model).first.weight.grad, atol=1e-4, rtol=1e-4)


class Settings:
    """Like the configurations of transformers: its attributes are got by a method of its own."""

    names: dict[str, str] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.factor, self.wide = 2.0, False

    def __getattribute__(self, name: str) -> Any:
        if name != "names" and name in super().__getattribute__("names"):
            name = super().__getattribute__("names")[name]
        return super().__getattribute__(name)

    @property
    def shift(self) -> float:
        return self.factor + 1


def helper(x: Tensor, power: int = 2) -> Tensor:
    return x**power


def _closed(factor: float) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        return x * factor

    return call


TABLE: dict[str, Any] = {}
TIMES = _closed(1.5)


class Deep(nn.Module):
    """Reads globals, classes, functions and settings; and the classes of its layers."""

    bias = 0.25

    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = TIMES(helper(layer(x).tanh())) * self.settings.factor + self.bias
            if hasattr(layer, "extra") or getattr(self.settings, "more", None) is not None:
                x = x + 1
        x = x + TABLE.get("shift", 0.0) + self.settings.shift
        return x.neg() if self.settings.wide else x


DEEPER: dict[str, Callable[[Deep, pytest.MonkeyPatch], object]] = {
    "a setting": lambda model, patch: setattr(model.settings, "factor", 0.5),
    "a switch": lambda model, patch: setattr(model.settings, "wide", True),
    "another setting": lambda model, patch: setattr(model.settings, "more", 1),
    "other settings": lambda model, patch: vars(model).update(settings=_other_settings()),
    "names of settings": lambda model, patch: patch.setitem(Settings.names, "wide", "factor"),
    "a property": lambda model, patch: patch.setattr(Settings, "shift", property(lambda self: 9.0)),
    "of the class": lambda model, patch: patch.setattr(Deep, "bias", 4.0),
    "of the layer's class": lambda model, patch: patch.setattr(nn.Linear, "extra", 4.0, raising=False),
    "a parameter more": lambda model, patch: model.layers[3].register_parameter("extra", None),
    "a function": lambda model, patch: patch.setitem(globals(), "helper", torch.sin),
    "a function's code": lambda model, patch: patch.setattr(
        helper, "__code__", (lambda x, power: x).__code__
    ),
    "a function's default": lambda model, patch: patch.setattr(helper, "__defaults__", (3,)),
    "a closure": lambda model, patch: patch.setitem(globals(), "TIMES", _closed(-2.0)),
    "a cell": lambda model, patch: patch.setattr(TIMES.__closure__[0], "cell_contents", 7.0),  # type: ignore
    "an item": lambda model, patch: patch.setitem(TABLE, "shift", 3.0),
}


def _other_settings() -> Settings:
    settings = Settings()
    settings.factor = -1.0
    return settings


@pytest.mark.parametrize("name", DEEPER)
def test_deeper_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Deep()
    fast = smelt.compile(model)
    with torch.no_grad():
        for _ in range(3):
            before = fast(X)
            torch.testing.assert_close(before, model(X))
        DEEPER[name](model, monkeypatch)
        assert not torch.equal(model(X), before)
        for _ in range(3):
            torch.testing.assert_close(fast(X), model(X))
        monkeypatch.undo()
        for _ in range(3):
            torch.testing.assert_close(fast(X), model(X))


def _hook(module: Any, args: Any, result: Any) -> Any:
    return result + 1


def _default(model: Any) -> None:
    model.forward.__func__.__kwdefaults__ = {"scale": 5.0}  # type: ignore[attr-defined]


def _own_forward(model: Any) -> None:
    model.forward = lambda x: x - 1


def _other_forward(model: Any) -> None:
    type(model).forward = lambda self, x: x - 2  # type: ignore[method-assign]


def _code(model: Any) -> None:
    def forward(self: Any, x: Tensor, *, scale: float = 2.0) -> Tensor:
        return self.layer(x) - scale

    type(model).forward.__code__ = forward.__code__


CALLS: dict[str, Callable[[Any, Any], object]] = {
    "a hook": lambda model, fast: model.register_forward_hook(_hook),
    "a hook before": lambda model, fast: model.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "a hook of the compiled module": lambda model, fast: fast.register_forward_hook(_hook),
    "a forward of its own": lambda model, fast: _own_forward(model),
    "another forward": lambda model, fast: _other_forward(model),
    "other code": lambda model, fast: _code(model),
    "another default": lambda model, fast: _default(model),
    "a layer": lambda model, fast: setattr(model, "layer", nn.Linear(6, 2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_changes_of_a_call(name: str) -> None:
    class Own(nn.Module):  # a class of this test: it changes too
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: Tensor, *, scale: float = 2.0) -> Tensor:
            return torch.relu(self.layer(x)) * scale

    model = Own()
    fast = smelt.compile(model)
    with torch.no_grad():
        before = fast(X)
        CALLS[name](model, fast)
        expected = model(X) + (1 if name == "a hook of the compiled module" else 0)
        for _ in range(2):
            torch.testing.assert_close(fast(X), expected)
        assert expected.shape != before.shape or not torch.equal(expected, before)


def test_a_cell_and_a_global() -> None:
    global FACTOR
    factor = 2.0

    def call(x: Tensor) -> Tensor:
        return x * factor + FACTOR

    fast = smelt.compile(call)
    for value in (2.0, 2.0, 2.0, 3.0, 3.0):
        factor = value
        torch.testing.assert_close(fast(X), call(X))
    for value in (2.0, 5.0, 5.0):
        FACTOR = value
        torch.testing.assert_close(fast(X), call(X))


FACTOR = 2.0


def test_nothing_is_kept() -> None:
    model = Model().eval()
    fast = smelt.compile(model)
    with torch.no_grad():
        fast(X)
    gone = [weakref.ref(model), weakref.ref(block(model).first.weight)]
    del model, fast
    gc.collect()
    assert all(each() is None for each in gone)
