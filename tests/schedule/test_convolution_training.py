"""Training steps of convolutions: gradients in kernels of our own, saved values laid out for these."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import smelt
from tests.support.agreement import assert_close, assert_gradients, draw

Case = tuple[Callable[[], nn.Module], tuple[int, ...]]
CASES: dict[str, Case] = {
    "3x3": (lambda: nn.Conv2d(32, 64, 3, padding=1), (2, 32, 9, 11)),
    "1x1": (lambda: nn.Conv2d(64, 48, 1), (2, 64, 7, 9)),
    "wide 1x1": (lambda: nn.Conv2d(48, 160, 1), (1, 48, 5, 7)),
    "deep": (lambda: nn.Conv2d(16, 32, 3, padding=1), (1, 16, 47, 49)),
    "bias": (lambda: nn.Conv2d(32, 40, 3, bias=True), (3, 32, 8, 8)),
    "image": (lambda: nn.Conv2d(3, 32, 7, stride=2, padding=3), (2, 3, 30, 31)),
    "dilated": (lambda: nn.Conv2d(24, 32, 3, dilation=2, padding=2), (1, 24, 13, 14)),
    "depthwise": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), (2, 32, 13, 14)),
    "depthwise 7x7": (lambda: nn.Conv2d(48, 48, 7, padding=3, groups=48), (1, 48, 14, 14)),
    "1d": (lambda: nn.Conv1d(32, 48, 5, padding=2), (2, 32, 40)),
    "3d": (lambda: nn.Conv3d(16, 32, 3, padding=1), (1, 16, 5, 6, 7)),
}


def in_a_network(make: Callable[[], nn.Module], channels: int) -> nn.Module:
    """Something before the convolution, and batch norm after it: the layouts inside are free."""
    torch.manual_seed(0)
    layer = make()
    out = layer.weight.shape[0]
    norms = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    assert isinstance(layer.weight, torch.Tensor)
    return nn.Sequential(nn.Hardswish(), layer, norms[layer.weight.dim()](out), nn.Tanh())


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The result, and the gradients of the input and of all parameters."""
    x = x.detach().requires_grad_()
    result = model(x)
    (
        result * torch.linspace(0.5, 1.5, result[0].numel(), dtype=x.dtype).view(result[0].shape)
    ).sum().backward()
    assert x.grad is not None
    return [result.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def check(model: nn.Module, fast: Callable[..., torch.Tensor], trained: nn.Module, x: torch.Tensor) -> None:
    """Results and gradients of ``fast``, which runs ``trained``, keep the promise about float64."""
    exact = step(copy.deepcopy(model).double(), x.double())
    eager = step(copy.deepcopy(model), x)
    trained.zero_grad()
    inputs = x.detach().requires_grad_()
    result = fast(inputs)
    weights = torch.linspace(0.5, 1.5, result[0].numel(), dtype=x.dtype).view(result[0].shape)
    (result * weights).sum().backward()
    assert inputs.grad is not None
    got = [result.detach(), inputs.grad, *(p.grad for p in trained.parameters() if p.grad is not None)]
    assert len(got) == len(eager)
    for ours, theirs, true in zip(got, eager, exact, strict=True):
        assert ours.stride() == theirs.stride()
        if true.abs().max() > 1e-9:  # a convolution's bias before a batch norm has none but rounding errors
            assert_close(ours, theirs, true)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    make, shape = CASES[name]
    model = in_a_network(make, shape[1])
    trained = copy.deepcopy(model)
    smelt.reset()
    check(model, torch.compile(trained, backend="smelt", options={"verify": True}), trained, draw(*shape))
    forward, backward = smelt.reports()
    strided = name == "image"
    assert (forward.externs, sum(backward.externs.values())) == ({}, int(strided))
    assert any(choice.what.endswith("result 1") and choice.kernel == "native" for choice in backward.choices)


def test_any_batch() -> None:
    """What is saved has its layout for every size; the backward is compiled for it."""
    model = in_a_network(lambda: nn.Conv2d(32, 48, 3, padding=1), 32)
    trained = copy.deepcopy(model)
    smelt.reset()
    fast = torch.compile(trained, backend="smelt", dynamic=True)
    for shape in ((2, 32, 9, 8), (5, 32, 12, 7), (3, 32, 20, 20)):
        fresh = copy.deepcopy(model)
        trained.load_state_dict(model.state_dict())
        check(fresh, fast, trained, draw(*shape))
    assert [report.kind for report in smelt.reports()] == ["forward", "backward"]


def test_one_image_of_any_size() -> None:
    """A batch of one is no loop: what is fetched for the next panel has no place for it."""
    torch.manual_seed(0)
    model = nn.Conv2d(96, 64, 1)
    trained = copy.deepcopy(model)
    smelt.reset()
    fast = torch.compile(trained, backend="smelt", dynamic=True)
    for shape in ((1, 96, 9, 8), (1, 96, 12, 7), (1, 96, 14, 13)):
        check(model, fast, trained, draw(*shape))
    forward, backward = smelt.reports()
    assert (forward.kind, backward.kind) == ("forward", "backward")
    assert any(choice.what.endswith("result 1") and choice.kernel == "native" for choice in backward.choices)


def test_saved_layouts_come_from_the_cache_too() -> None:
    """A second compile of the same model finds its code on disk, and the layouts with it."""
    model = in_a_network(lambda: nn.Conv2d(32, 48, 3, padding=1), 32)
    for _ in range(2):
        trained = copy.deepcopy(model)
        smelt.reset()
        check(model, torch.compile(trained, backend="smelt"), trained, draw(2, 32, 8, 8))
    assert all(report.cache_hit for report in smelt.reports())


def test_what_the_user_gets_lies_as_eagers() -> None:
    """A result that is saved for the backward as well is the user's first."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(32, 64, 3), nn.Conv2d(64, 32, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            middle = self.first(x)
            return middle, self.second(middle.relu())

    model = Model()
    torch._dynamo.reset()
    x = draw(2, 32, 10, 10).requires_grad_()
    for ours, theirs in zip(torch.compile(model, backend="smelt")(x), model(x), strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs)


def test_long_columns_are_summed_in_parts() -> None:
    """Sums over rows keep eager's accuracy, whatever lies side by side."""
    for shape in ((12000, 48), (5003, 33)):
        x = draw(*shape) + 0.25
        torch._dynamo.reset()
        fast = torch.compile(lambda x: (x * x).sum(0), backend="smelt")
        assert_close(fast(x), (x * x).sum(0), (x.double() * x.double()).sum(0))


def test_what_is_packed_lies_as_the_kernel_reads_it() -> None:
    """It was laid out as the gradient that it was packed from, and read beyond its end."""
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 48, 3, padding=1))
    assert_gradients(model, draw(2, 3, 20, 20))
