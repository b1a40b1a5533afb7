"""PyTorch's public ways to ask less before a call: they reach Dynamo, and without them nothing is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.randn(4, 6)
FACTOR = 2.0


class Model(nn.Module):
    """Reads a number of its own, one of a layer of PyTorch's, and a global."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.shift = nn.LayerNorm(6, eps=0.5), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) * FACTOR + self.shift


def _layer(model: Model, patch: pytest.MonkeyPatch) -> None:
    model.norm.eps = 7.0


def _own(model: Model, patch: pytest.MonkeyPatch) -> None:
    model.shift = -3.0


def _global(model: Model, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(globals(), "FACTOR", 5.0)


Change = Callable[[Model, pytest.MonkeyPatch], None]
SKIPPED: dict[str, list[Change]] = {
    "skip_guard_on_inbuilt_nn_modules_unsafe": [_layer],
    "skip_guard_on_all_nn_modules_unsafe": [_layer, _own],
    "skip_guard_on_globals_unsafe": [_global],
    "keep_tensor_guards_unsafe": [_layer, _own, _global],
}
"""Filter → the changes that go unseen with it. All others are noticed with it, and all without one."""


@pytest.mark.parametrize("change", [_layer, _own, _global])
@pytest.mark.parametrize("name", [None, *SKIPPED])
def test_a_filter_of_guards(name: str | None, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    fast = smelt.compile(model, guard_filter_fn=None if name is None else getattr(torch.compiler, name))
    with torch.no_grad():
        before = model(X)
        torch.testing.assert_close(fast(X), before)
        change(model, monkeypatch)
        after = model(X)
        assert not torch.allclose(before, after)
        unseen = name is not None and change in SKIPPED[name]
        torch.testing.assert_close(fast(X), before if unseen else after)
        if name != "keep_tensor_guards_unsafe":  # inputs are asked for all the same
            other = torch.randn(3, 6)
            torch.testing.assert_close(fast(other).shape, other.shape)


def test_a_filter_of_ones_own() -> None:
    seen: list[str] = []

    def keep(guards: Sequence[Any]) -> list[bool]:
        seen.extend(each.name for each in guards)
        return [True] * len(guards)

    model = Model()
    for way in (smelt.compile(guard_filter_fn=keep), smelt.compile(capture="symbolic", guard_filter_fn=keep)):
        seen.clear()
        torch.testing.assert_close(way(model)(X), model(X))
        assert any("norm" in each for each in seen)


def test_the_stance_that_asks_least() -> None:
    """It looks only at what tells the compiled variants apart: here the number of dimensions."""
    model = Model()
    fast = smelt.compile(model)
    with torch.no_grad():
        for x in (X, X[0]):
            torch.testing.assert_close(fast(x), model(x))
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
            for x in (X, X[0], X):
                torch.testing.assert_close(fast(x), model(x))
            before, model.shift = fast(X), 4.0
            assert torch.equal(fast(X), before)
        torch.testing.assert_close(fast(X), model(X))


@pytest.mark.parametrize("stance", ["force_eager", "fail_on_recompile", "eager_on_recompile"])
def test_other_stances_are_heard(stance: str) -> None:
    traced: list[bool] = []

    def call(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            traced.append(True)
        return x + 1

    fast = smelt.compile(call)
    fast(X)
    with torch.compiler.set_stance(stance):
        torch.testing.assert_close(fast(X), X + 1)
        assert len(traced) == (stance == "force_eager")
        if stance == "fail_on_recompile":
            with pytest.raises(RuntimeError, match="recompile"):
                fast(X[0].double())
        else:
            torch.testing.assert_close(fast(X[0].double()), X[0].double() + 1)
            assert traced[-1]
