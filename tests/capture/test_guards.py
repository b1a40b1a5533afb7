"""Guards on modules, asked all at once: every change is noticed as before, and nothing else is."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.capture import guards
from smelt.capture.guards import KNOWN
from smelt.capture.handed import Handed, Part
from smelt.runtime import unchanged

pytestmark = pytest.mark.usefixtures("watching")


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
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


X = torch.randn(4, 6)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What was answered natively, in order."""
    answers: list[bool] = []
    before = unchanged.watched

    def watched(*args: Any) -> Any:
        ask = before(*args)
        if ask is None:
            return None
        return lambda: answers.append(ask()) or answers[-1]

    monkeypatch.setattr(unchanged, "watched", watched)
    return answers


natively = pytest.mark.skipif(
    unchanged.why_not() is not None or not KNOWN,
    reason=unchanged.why_not() or "Dynamo before 2.13 asks by itself",
)


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


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", CHANGES)
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


@natively
def test_unchanged_modules_are_asked_natively(asked: list[bool]) -> None:
    model = Model().eval()
    fast = smelt.compile(model)
    with torch.no_grad():
        for _ in range(5):
            fast(X)
    assert len(asked) >= 4 and all(asked)
    assert len(smelt.reports()) == 1


@natively
def test_what_nobody_asked_for_compiles_nothing(asked: list[bool]) -> None:
    model = Model().eval()
    fast = torch.compile(model, backend="smelt")  # nobody else asks (`smelt.capture.direct` would)
    with torch.no_grad():
        for turn in range(40):
            fast(X)
            model.blocks[2].note = turn  # type: ignore[assignment]
    assert len(smelt.reports()) == 1
    assert 2 <= len(asked) <= 12  # the answer is no every time: it is asked ever less


@natively
def test_equal_models_share_a_graph(asked: list[bool]) -> None:
    models = [Model().eval() for _ in range(3)]
    compiled = [smelt.compile(model) for model in models]
    with torch.no_grad():
        for _ in range(3):
            for model, fast in zip(models, compiled):
                torch.testing.assert_close(fast(X), model(X), atol=1e-5, rtol=1e-5)
        assert len(smelt.reports()) == 1
        assert len(asked) >= 6 and all(asked)
        block(models[1]).scale = 4.0
        for model, fast in zip(models, compiled):
            torch.testing.assert_close(fast(X), model(X), atol=1e-4, rtol=1e-4)


def test_models_are_not_kept() -> None:
    for _ in range(4):
        model = Model().eval()
        fast = smelt.compile(model)
        with torch.no_grad():
            fast(X), fast(X)
        gone = [weakref.ref(model), weakref.ref(block(model).norm.running_mean)]
        del model, fast
        gc.collect()
        assert all(each() is None for each in gone)


@natively
def test_tensors_are_not_got_by_name_before_each_call() -> None:
    """Dynamo's code gives the module; who takes the tensors takes them once, until something changes."""
    codes: list[CodeType] = []
    hook = torch._dynamo.convert_frame.register_bytecode_hook(lambda _, code: codes.append(code))
    model = Model().eval()
    tied = block(model).first.weight = model.blocks[0].first.weight
    fast = smelt.compile(model)
    with hook, torch.no_grad():
        torch.testing.assert_close(fast(X), model(X), atol=1e-5, rtol=1e-5)
    (code,) = codes
    assert not {"_parameters", "_buffers", "_modules"} & {*code.co_names}
    assert not {"weight", "running_mean", "shift"} & {*code.co_consts}
    with torch.no_grad():
        tied.mul_(3)
        torch.testing.assert_close(fast(X), model(X), atol=1e-4, rtol=1e-4)


def test_who_tries_a_graph_out_gives_tensors() -> None:
    model = Model().eval()
    with torch._dynamo.config.patch(verify_correctness=True), torch.no_grad():
        torch.testing.assert_close(smelt.compile(model)(X), model(X), atol=1e-5, rtol=1e-5)


def test_what_is_handed_over_is_remembered_while_somebody_watches() -> None:
    layer = nn.Linear(2, 2)
    handed = Handed([(Part("_parameters", False), Part("bias", True)), (Part("weight", False),)])
    first = layer.bias
    assert handed.of(layer)[0] is first and handed.of(layer)[1] is layer.weight
    layer.bias = nn.Parameter(torch.ones(2))
    assert handed.of(layer)[0] is layer.bias
    handed.remember(layer)
    kept = handed.of(layer)
    layer.bias = first
    assert handed.of(layer) is kept
    handed.forget(layer)
    assert handed.of(layer)[0] is first
    handed.remember(layer)
    gone = weakref.ref(handed.of(layer)[0])
    del first, kept, layer
    gc.collect()
    assert gone() is None


def test_a_global_module() -> None:
    global WHOLE
    WHOLE = Model().eval()

    @smelt.compile
    def call(x: Tensor) -> Tensor:
        return WHOLE(x) + 1

    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(call(X), WHOLE(X) + 1, atol=1e-5, rtol=1e-5)
        block(WHOLE).scale = -1.0
        torch.testing.assert_close(call(X), WHOLE(X) + 1, atol=1e-5, rtol=1e-5)
        WHOLE = Model().eval()
        torch.testing.assert_close(call(X), WHOLE(X) + 1, atol=1e-5, rtol=1e-5)


WHOLE: Model


def test_why_it_compiles_again_is_told() -> None:
    model = Model().eval()
    fast = smelt.compile(model)
    with torch.no_grad():
        fast(X)
        block(model).scale = 3.0
        with (
            torch._dynamo.config.patch(error_on_recompile=True),
            pytest.raises(Exception, match=r"scale == 2\.0"),
        ):
            fast(X)


def test_few_guards_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_create", None)  # called for none
    layer = nn.Linear(6, 3)
    with torch.no_grad():
        torch.testing.assert_close(smelt.compile(layer)(X), layer(X))


def test_another_dynamo(monkeypatch: pytest.MonkeyPatch, asked: list[bool]) -> None:
    monkeypatch.setattr(guards, "NEEDED", ("something else",))
    model = Model().eval()
    fast = smelt.compile(model)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(X), model(X), atol=1e-5, rtol=1e-5)
        block(model).switch = True
        torch.testing.assert_close(fast(X), model(X), atol=1e-5, rtol=1e-5)
    assert not asked


def test_nothing_to_ask_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged, "watched", lambda *args: None)
    model = Model().eval()
    fast = smelt.compile(model)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(X), model(X), atol=1e-5, rtol=1e-5)
        block(model).switch = True
        torch.testing.assert_close(fast(X), model(X), atol=1e-5, rtol=1e-5)


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
    """Reads globals, classes, functions and settings; enough of them that they are asked at once."""

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


@natively
def test_globals_and_settings_are_asked_natively(asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []
    before = guards.Guard.create

    def create(guard: Any, builder: Any) -> Any:
        if not building:
            kept.append(f"{guard.create_fn_name()} {guard.name}")
        return before(guard, builder)

    building: list[bool] = []
    apart = guards._built_apart

    def built_apart(*args: Any) -> Any:
        building.append(True)
        try:
            return apart(*args)
        finally:
            building.pop()

    monkeypatch.setattr(guards.Guard, "create", create)
    monkeypatch.setattr(guards, "_built_apart", built_apart)
    model = Deep()
    fast = smelt.compile(model)
    with torch.no_grad():
        for _ in range(4):
            fast(X)
    assert asked and all(asked)
    assert len(kept) > 5
    assert not [each for each in kept if "settings" in each or "helper" in each or "TIMES" in each]
