"""State that a frame replaces: no constant for freezing, and no reason to ask all other guards again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smelt
from smelt.capture import handed


class Held:
    """State apart from the module."""

    def __init__(self):
        self.h = torch.zeros(1, 16)
        self.calls = 0


class Cell(nn.Module):
    def __init__(self, own: bool):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(12)])
        self.recurrent = nn.Linear(16, 16)
        self.held = self if own else Held()
        self.h = torch.zeros(1, 16)
        if own:  # the module itself, without being a part of itself
            del self._modules["held"]
            object.__setattr__(self, "held", self)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        self.held.h = torch.tanh(x + self.recurrent(self.held.h))
        return self.held.h * 2


@pytest.mark.parametrize("own", [False, True])
@torch.no_grad()
def test_state_is_not_frozen(own, watching):
    model, twin = Cell(own), Cell(own)
    twin.load_state_dict(model.state_dict())
    compiled = smelt.compile(model, freezing=True, dynamic=False)
    for _ in range(6):
        x = torch.randn(1, 16)
        torch.testing.assert_close(compiled(x), twin(x))
    (report,) = smelt.reports()
    products = [each.what for each in report.choices]
    assert products
    assert not any("f32[1, 16]*" in each for each in products)  # a star is what is the same at every call


@torch.no_grad()
def test_the_way_past_dynamo_stays(watching, monkeypatch):
    compiled = smelt.compile(Cell(False))
    if not hasattr(compiled, "_directly"):
        pytest.skip("this Python or PyTorch has no way past Dynamo")
    x = torch.randn(1, 16)
    for _ in range(4):
        compiled(x)
    assert len(compiled._directly.ways) == 1
    compiled._directly.slow = None  # Dynamo is not asked
    looked_up = []
    monkeypatch.setattr(handed, "_reached", lambda *args: looked_up.append(args))
    state = compiled.held.h
    for _ in range(4):
        compiled(x)
    assert compiled.held.h is not state
    assert looked_up == []  # no parameter by its name
