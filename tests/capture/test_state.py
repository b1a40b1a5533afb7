"""What a function can reach: closures, globals, defaults, its object, the functions that it calls."""

from __future__ import annotations

import functools

import torch
from torch import nn

from smelt.capture.state import state_of

GLOBAL = nn.Linear(2, 2)


def helper(x):
    return GLOBAL(x)


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, x):
        return self.model(x)

    def __call__(self, x):
        return self.step(x)


def test_closures_and_defaults():
    inner, other = nn.Linear(2, 2), nn.Tanh()
    found = state_of(lambda x, *, last=other: last(inner(x)))
    assert found.modules == {"inner": inner, "last": other}


def test_globals_through_a_function_that_is_called():
    assert state_of(lambda x: [helper(each) for each in x]).modules == {"GLOBAL": GLOBAL}


def test_methods_and_callable_objects():
    trainer = Trainer()
    for function in (trainer.step, trainer, functools.partial(trainer.step)):
        found = state_of(function)
        assert found.modules == {"model": trainer.model}
        assert found.optimizers == {"optimizer": trainer.optimizer}


def test_lists_have_numbers_and_parts_of_modules_are_not_named_twice():
    layers = [nn.Linear(2, 2), nn.Tanh()]
    assert list(state_of(lambda x: layers[0](x)).modules) == ["layers_0", "layers_1"]
    whole = nn.Sequential(*layers)
    first = whole[0]
    assert list(state_of(lambda x: whole(x) + first(x)).modules) == ["whole"]


def test_the_optimizers_of_a_module_are_its_attributes():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].best = torch.optim.SGD(model.parameters(), lr=0.1)
    found = state_of(model)
    assert found.modules == {"": model}
    assert list(found.optimizers) == ["0.best"]
