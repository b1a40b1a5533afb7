"""Calls that go past Dynamo: they are Dynamo's calls, and everything that would change these is noticed."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule

import smelt
from smelt.capture import direct
from smelt.capture.guards import KNOWN
from smelt.runtime import unchanged

pytestmark = [
    pytest.mark.skipif(not KNOWN, reason="of Dynamo before 2.13 all calls stay its own"),
    pytest.mark.skipif(unchanged.why_not() is not None, reason=str(unchanged.why_not())),
    pytest.mark.usefixtures("watching"),
]

X = torch.randn(4, 6)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor, *, scale: float = 2.0) -> Tensor:
        return torch.relu(self.layer(x)) * scale


def program(x: Tensor, y: float = 1.5, *more: Tensor, shift: float = 0.5, **rest: Tensor) -> Tensor:
    return sum([x * y + shift, *more, *rest.values()], torch.zeros(()))


def ways_of(fast: Any) -> direct.Ways:
    ways = fast._directly if isinstance(fast, nn.Module) else fast.__closure__[0].cell_contents
    assert isinstance(ways, direct.Ways)
    return ways


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Any]]:
    """The calls that went through Dynamo from then on."""

    def watching(fast: Any) -> list[Any]:
        calls: list[Any] = []
        ways, before = ways_of(fast), ways_of(fast).slow

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append((args, kwargs))
            return before(*args, **kwargs)

        monkeypatch.setattr(ways, "slow", call)
        return calls

    return watching


@pytest.mark.parametrize("gradients", [False, True])
def test_a_module_is_called_directly(slow: Any, gradients: bool) -> None:
    model = Block()
    fast = smelt.compile(model)
    assert isinstance(fast, OptimizedModule)
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(fast(X), model(X))
        calls = slow(fast)
        for _ in range(3):
            got = fast(X)
            assert got.requires_grad == gradients
            torch.testing.assert_close(got, model(X))
    assert not calls
    if gradients:
        got.sum().backward()
        found, model.layer.weight.grad = model.layer.weight.grad, None
        model(X).sum().backward()
        torch.testing.assert_close(found, model.layer.weight.grad)


def test_a_module_of_pytorch_is_called_directly(slow: Any) -> None:
    fast = smelt.compile(nn.Linear(6, 3))
    others = [smelt.compile(nn.Linear(6, 3)) for _ in range(3)]
    with torch.no_grad():
        for each in (fast, *others):
            each(X)
        calls = [slow(each) for each in (fast, *others)]
        for each in (fast, *others):
            torch.testing.assert_close(each(X), each._orig_mod(X))
    assert not any(calls)


def test_a_function_is_called_directly(slow: Any) -> None:
    fast = smelt.compile(program)
    variants: list[Callable[[Any], Tensor]] = [
        lambda call: call(X),
        lambda call: call(X, 2.5, X, X),
        lambda call: call(X, shift=3.0),
        lambda call: call(X, z=X, t=X),
    ]
    for each in 2 * variants:
        torch.testing.assert_close(each(fast), each(program))
        ways_of(fast).waits = 0
    calls = slow(fast)
    for each in variants:
        torch.testing.assert_close(each(fast), each(program))
    assert not calls
    with pytest.raises(TypeError, match="program"):
        fast()


def test_other_inputs_are_dynamos(slow: Any) -> None:
    model = Block()
    fast = smelt.compile(model, dynamic=False)
    with torch.no_grad():
        fast(X)
        calls = slow(fast)
        for x in (X, torch.randn(7, 6), X.double()[:0].float(), X.t().contiguous().t()):
            torch.testing.assert_close(fast(x), model(x))
        assert len(calls) == 3
        with pytest.raises(Exception, match="dtype"):
            fast(X.double())
        with torch.autocast("cpu", torch.bfloat16):
            assert fast(X).dtype is torch.bfloat16
        torch.set_num_threads(1)
        torch.testing.assert_close(fast(X), model(X))
        torch.set_num_threads(2)
    assert fast(X).requires_grad


def _hook(module: Any, args: Any, result: Any) -> Any:
    return result + 1


def _default(model: Block) -> None:
    model.forward.__func__.__kwdefaults__ = {"scale": 5.0}  # type: ignore[attr-defined]


def _own_forward(model: Block) -> None:
    model.forward = lambda x: x - 1  # type: ignore[method-assign]


def _class(model: Block) -> None:
    type(model).forward = lambda self, x: x - 2  # type: ignore[method-assign]


def _code(model: Block) -> None:
    def forward(self: Any, x: Tensor, *, scale: float = 2.0) -> Tensor:
        return self.layer(x) - scale

    type(model).forward.__code__ = forward.__code__


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "a hook": lambda model, fast: model.register_forward_hook(_hook),
    "a hook before": lambda model, fast: model.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "a hook of the compiled module": lambda model, fast: fast.register_forward_hook(_hook),
    "a forward of its own": lambda model, fast: _own_forward(model),
    "another forward": lambda model, fast: _class(model),
    "other code": lambda model, fast: _code(model),
    "another default": lambda model, fast: _default(model),
    "a layer": lambda model, fast: setattr(model, "layer", nn.Linear(6, 2)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes(name: str) -> None:
    class Own(Block):  # of its own: classes change too
        def forward(self, x: Tensor, *, scale: float = 2.0) -> Tensor:
            return torch.relu(self.layer(x)) * scale

    model = Own()
    fast = smelt.compile(model)
    with torch.no_grad():
        for _ in range(3):
            before = fast(X)
        assert ways_of(fast).ways
        CHANGES[name](model, fast)
        expected = model(X) + (1 if name == "a hook of the compiled module" else 0)
        for _ in range(4):
            torch.testing.assert_close(fast(X), expected)
        assert expected.shape != before.shape or not torch.equal(expected, before)


def test_a_hook_of_all_modules() -> None:
    model = Block()
    fast = smelt.compile(model)
    with torch.no_grad():
        for _ in range(3):
            fast(X)
        seen: list[Any] = []
        hook = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
        with hook, pytest.warns(UserWarning, match="global hooks"):
            fast(X)
        assert model in seen


def test_another_way_to_call_all_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = Block(), []
    before = nn.Module._call_impl

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(self)
        return before(self, *args, **kwargs)

    fast = smelt.compile(model)
    with torch.no_grad():
        for _ in range(3):
            fast(X)
        monkeypatch.setattr(nn.Module, "_call_impl", call)
        for _ in range(6):
            fast(X)
        assert seen.count(model) == 6


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
WEIGHT = torch.randn(6)
COUNT = 0


def test_dynamos_wrappers_are_left_out(slow: Any) -> None:
    fast = smelt.compile(Block())
    for _ in range(3):
        fast(X)
    calls, seen = slow(fast), []

    def profile(frame: FrameType, event: str, _: object) -> None:
        seen.append((event, frame.f_code.co_filename, frame.f_code.co_name))

    sys.setprofile(profile)
    try:
        fast(X)
    finally:
        sys.setprofile(None)
    assert not calls
    called = [name for event, file, name in seen if event == "call" and file.endswith("eval_frame.py")]
    assert any(file == "<smelt plan>" for _, file, _ in seen)
    assert not called


def test_a_tensor_among_the_globals(slow: Any) -> None:
    """Dynamo's code reads it at each call, and so does what calls directly."""
    global WEIGHT

    def call(x: Tensor) -> Tensor:
        return x * WEIGHT

    fast = smelt.compile(call)
    for _ in range(3):
        fast(X)
    calls = slow(fast)
    torch.testing.assert_close(fast(X), call(X))
    assert not calls
    WEIGHT.add_(1.0)
    torch.testing.assert_close(fast(X), call(X))
    for _ in range(3):
        WEIGHT = torch.randn(6)
        torch.testing.assert_close(fast(X), call(X))


def test_a_program_that_sets_a_global() -> None:
    def call(x: Tensor) -> Tensor:
        global COUNT
        COUNT = 7
        return x + 1

    fast = smelt.compile(call)
    for _ in range(3):
        fast(X)
    globals()["COUNT"] = 0
    fast(X)
    assert COUNT == 7
    globals()["COUNT"] = 0
    fast(X)
    assert COUNT == 7


def test_what_dynamo_is_told_is_heard() -> None:
    seen: list[bool] = []

    def call(x: Tensor) -> Tensor:
        seen.append(torch.compiler.is_compiling()) if not torch.compiler.is_compiling() else None
        return x + 1

    fast = smelt.compile(call)
    for _ in range(3):
        fast(X)
    assert ways_of(fast).ways and not seen
    with torch.compiler.set_stance("force_eager"):
        for _ in range(6):
            torch.testing.assert_close(fast(X), X + 1)
    assert len(seen) == 6
    fast(X)
    assert len(seen) == 6
    with pytest.raises(Exception, match="trace"):
        torch.jit.trace(fast, (X,))


def test_reset_is_heard() -> None:
    fast = smelt.compile(program)
    for _ in range(3):
        fast(X)
    assert len(smelt.reports()) == 1
    smelt.reset()
    torch.testing.assert_close(fast(X), program(X))
    assert len(smelt.reports()) == 1


@pytest.mark.parametrize("last", [False, True])
def test_with_graph_breaks_it_is_dynamos(slow: Any, last: bool) -> None:
    @torch.compiler.disable
    def apart(x: Tensor) -> Tensor:
        return x.neg()

    def inner(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x.exp()

    def call(x: Tensor) -> Tensor:
        return inner(x + 1) if last else apart(x + 1) * 2

    fast = smelt.compile(call)
    for _ in range(3):
        torch.testing.assert_close(fast(X), call(X))
    calls = slow(fast)
    torch.testing.assert_close(fast(X), call(X))
    assert len(calls) == 1


def test_within_another_compiled_program() -> None:
    model = Block()
    fast, function = smelt.compile(model), smelt.compile(program)
    with torch.no_grad():
        for _ in range(3):
            fast(X), function(X)

        def outer(x: Tensor) -> Tensor:
            return function(fast(x)) + 1

        def broken(x: Tensor) -> Tensor:
            x = function(x) + 1
            torch._dynamo.graph_break()
            return fast(x)

        whole = torch.compile(outer, backend="smelt", fullgraph=True)
        parts = torch.compile(broken, backend="smelt")
        again = smelt.compile(function, fullgraph=True)
        for _ in range(3):
            torch.testing.assert_close(whole(X), outer(X))
            torch.testing.assert_close(parts(X), model(program(X) + 1))
            torch.testing.assert_close(again(X), program(X))


def test_another_backend_of_the_same_function() -> None:
    seen: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return graph.forward

    fast, other = smelt.compile(program), torch.compile(program, backend=backend)
    other(X)
    for _ in range(3):
        fast(X)
    assert len(seen) == 1 and len(smelt.reports()) == 1
    max_ = smelt.compile(program, fusion=False)
    max_(X)
    assert len(smelt.reports()) == 2


def test_copies(slow: Any) -> None:
    fast = smelt.compile(Block())
    with torch.no_grad():
        fast(X), fast(X)
        other = copy.deepcopy(fast)
        assert type(other) is type(fast)
        other._orig_mod.layer.weight.mul_(2)
        for each in (other, fast, other, fast):
            torch.testing.assert_close(each(X), each._orig_mod(X))
        calls = slow(other)
        other(X)
        assert not calls


def test_nothing_is_kept() -> None:
    model = Block()
    fast = smelt.compile(model)
    with torch.no_grad():
        fast(X), fast(X)
    assert ways_of(fast).ways
    gone = [weakref.ref(model), weakref.ref(model.layer.weight)]
    del model, fast
    gc.collect()
    assert all(each() is None for each in gone)


def test_what_changes_all_the_time_is_looked_for_ever_less(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Block()
    fast = smelt.compile(model)
    learned: list[Any] = []
    before = direct.Ways._learn
    monkeypatch.setattr(direct.Ways, "_learn", lambda self, *args: learned.append(before(self, *args)))
    with torch.no_grad():
        for turn in range(60):
            torch.testing.assert_close(fast(X), model(X))
            model.note = turn  # type: ignore[assignment]
    assert 1 <= len(learned) <= 8
