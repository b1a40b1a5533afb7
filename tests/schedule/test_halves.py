"""Products of 16-bit operands in kernels of our own: summed in float32, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import smelt
from smelt.runtime import toolchain
from tests.schedule.test_convolutions import pooled
from tests.support.agreement import compiled, draw

F = nn.functional
HALVES = (torch.float16, torch.bfloat16)
Case = tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]
CASES: dict[str, Case] = {
    "product": (lambda x, y: x @ y, [(67, 131), (131, 77)]),
    "weights": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [(70, 97), (65, 97), (65,)]),
    "batch": (lambda x, y: x @ y.transpose(-1, -2), [(3, 64, 70), (3, 65, 70)]),
    "3x3": (
        lambda x, w, b: pooled(F.conv2d(x, w, b, padding=1).relu()),
        [(1, 32, 9, 11), (48, 32, 3, 3), (48,)],
    ),
    "depthwise": (lambda x, w: pooled(F.conv2d(x, w, padding=1, groups=32)), [(2, 32, 9, 8), (32, 1, 3, 3)]),
    "groups": (lambda x, w: pooled(F.conv2d(x, w, groups=2)), [(1, 32, 9, 8), (64, 16, 3, 3)]),
    "phases": (lambda x, w: pooled(F.conv_transpose2d(x, w, stride=2)), [(1, 32, 9, 8), (32, 48, 3, 3)]),
}


def pretend(monkeypatch: pytest.MonkeyPatch, *dot_products: str) -> None:
    """Let the processor multiply these dtypes itself, and no others."""
    found = replace(toolchain.find(), dot_products=dot_products)
    monkeypatch.setattr(toolchain, "find", lambda: found)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    function, shapes = CASES[name]
    _, report = compiled(
        function, *(draw(*shape, seed=k).to(dtype) for k, shape in enumerate(shapes)), ulps=2
    )
    assert not report.externs
    assert any(kernel.endswith("_tiled") for kernel in report.kernels)


def test_what_the_processor_multiplies_itself_is_atens(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "bfloat16")
    x, y = draw(70, 64), draw(64, 65, seed=1)
    _, report = compiled(lambda x, y: x @ y, x.bfloat16(), y.bfloat16(), ulps=2)
    assert sum(report.externs.values()) == 1
    assert report.choices[0].why.endswith("the processor multiplies bfloat16 itself")
    assert not compiled(lambda x, y: x @ y, x.half(), y.half(), ulps=2)[1].externs


def test_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights converted and packed ahead; what is between the products is as eager has it."""
    pretend(monkeypatch)
    model = nn.Sequential(nn.Linear(96, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 80)).eval()
    x = draw(65, 96)
    smelt.reset()
    fast = torch.compile(model, backend="smelt", options={"freezing": True})
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got, wanted = fast(x), model(x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
    report = smelt.reports()[-1]
    assert not report.externs
    assert sum(name.endswith("_tiled") for name in report.kernels) == 2


def test_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3))
    x = draw(2, 16, 15, 14)
    grads = []
    for function in (model, torch.compile(model, backend="smelt")):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            function(x).float().square().mean().backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])  # type: ignore[union-attr]
    for eager, mine in zip(*grads):
        torch.testing.assert_close(mine, eager, rtol=5e-2, atol=5e-2 * float(eager.abs().max()))
