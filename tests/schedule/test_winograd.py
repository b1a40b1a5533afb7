"""3x3 convolutions with fewer multiplications: right, and as infinite as eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import smelt
from smelt.reporting import CompileReport

pytestmark = pytest.mark.usefixtures("fresh")


def _block(**more: object) -> nn.Module:
    """A convolution between two others, as networks have it."""
    middle = nn.Conv2d(64, 72, 3, **{"padding": 1, **more})  # type: ignore[arg-type]
    return nn.Sequential(nn.Conv2d(8, 64, 1), nn.ReLU(), middle, nn.ReLU(), nn.Conv2d(72, 8, 1)).eval()


def _compiled(
    model: nn.Module, *inputs: torch.Tensor, **options: object
) -> tuple[torch.Tensor, CompileReport]:
    fast = smelt.compile(model, **{"freezing": True, "dynamic": False, **options})  # type: ignore[arg-type]
    with torch.no_grad():
        result = fast(*inputs)
    return result, smelt.reports()[-1]


def _is_so(report: CompileReport) -> bool:
    return any(choice.what.startswith("bmm(f32[16,") for choice in report.choices)


def _agrees(got: torch.Tensor, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        eager, exact = model(x), copy.deepcopy(model).double()(x.double())
    error, own = (got - exact).abs().max(), (eager - exact).abs().max()
    assert error <= 4 * own + 4 * torch.finfo(torch.float32).eps * exact.abs().max(), (error, own)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("size", "more"),
    [
        ((1, 8, 16, 20), {}),
        ((3, 8, 14, 14), {"bias": False}),
        ((2, 8, 16, 16), {"padding": 0}),
        ((1, 8, 16, 18), {"padding": (2, 1)}),
        ((1, 8, 28, 28), {"padding": 1, "padding_mode": "reflect"}),
        ((2, 8, 7, 7), {}),
        ((2, 8, 9, 12), {"padding": (1, 0)}),
        ((1, 8, 11, 13), {"padding": 2}),
    ],
)
def test_results_are_as_exact_as_eagers(size, more, threads) -> None:
    model, x, before = _block(**more), torch.randn(size), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        got, report = _compiled(model, x)
    finally:
        torch.set_num_threads(before)
    assert _is_so(report)
    _agrees(got, model, x)


def test_one_compile_for_all_sizes() -> None:
    """Odd ones too, and those of so few tiles that for these alone it would not be done."""
    model = _block()
    fast = smelt.compile(model, freezing=True, dynamic=True, verify=True)
    with torch.no_grad():
        for size in ((12, 16), (7, 9), (33, 2), (15, 16)):
            x = torch.randn(1, 8, *size)
            _agrees(fast(x), model, x)
    (report,) = smelt.reports()
    assert _is_so(report)


def test_what_is_next_to_it_is_done_on_its_results() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2))
            self.norms = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(2))
            for norm in self.norms:
                norm.running_mean.normal_()  # type: ignore[union-attr]
                norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.norms[0](self.first(x)))
            return torch.relu(self.norms[1](self.second(y)) + x)

    model, x = Residual().eval(), torch.randn(1, 64, 16, 16)
    got, report = _compiled(model, x)
    assert _is_so(report) and report.externs == {}
    _agrees(got, model, x)


def _same_places(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.isinf() * got.sign().nan_to_num(), expected.isinf() * expected.sign().nan_to_num())
    largest = expected.nan_to_num(0, 0, 0).abs().max().item()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5 * max(1.0, largest), equal_nan=True)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 3e38])
def test_what_is_not_finite_is_where_eager_has_it(value, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    model, x = nn.Conv2d(64, 64, 3, padding=1).eval(), torch.randn(1, 64, 16, 16)
    odd = x.clone()
    odd[0, 5, 8:10, 8:10] = value  # the sums of these overflow, eager's products do not
    for _ in range(2):  # the second time from the cache
        fast = smelt.compile(model, freezing=True, dynamic=False)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))
            assert _is_so(smelt.reports()[-1])
            _same_places(fast(odd), model(odd))
            assert not _is_so(smelt.reports()[-1])
            compiled = len(smelt.reports())
            torch.testing.assert_close(fast(x), model(x))
            _same_places(fast(odd), model(odd))
        assert len(smelt.reports()) == compiled  # once
        smelt.reset()


def test_a_clamp_hides_nothing() -> None:
    """What is infinite before the clamp is not behind it."""
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Hardtanh()).eval()
    x = torch.randn(1, 64, 16, 16)
    x[0, 0, 3, 3] = torch.inf
    got, _ = _compiled(model, x)
    with torch.no_grad():
        torch.testing.assert_close(got, model(x), equal_nan=True)


def test_a_changed_weight_is_noticed() -> None:
    model, x = _block(), torch.randn(1, 8, 16, 16)
    fast = smelt.compile(model, freezing=True)
    with torch.no_grad():
        fast(x)
        assert _is_so(smelt.reports()[-1])
        model[2].weight.mul_(-1)
        torch.testing.assert_close(fast(x), model(x))
        model[2].weight[0, 0, 0, 0] = torch.inf
        _same_places(fast(x), model(x))


class Counting(nn.Module):
    """Its call leaves something behind."""

    def __init__(self) -> None:
        super().__init__()
        self.block = _block()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.block(x)


@pytest.mark.parametrize(
    ("model", "size", "options"),
    [
        (_block(stride=2), (1, 8, 32, 32), {}),
        (_block(dilation=2, padding=2), (1, 8, 16, 16), {}),
        (_block(groups=8), (1, 8, 16, 16), {}),
        (_block(padding=0), (1, 8, 17, 17), {}),
        (_block(padding=(1, 0)), (1, 8, 16, 17), {}),
        (_block(), (1, 8, 6, 6), {}),
        (_block(), (1, 8, 256, 256), {}),
        (_block(), (1, 8, 16, 16), {"winograd": False}),
        (_block(), (1, 8, 16, 16), {"freezing": False}),
        (_block(padding=0), (1, 8, 16, 16), {"dynamic": True}),
        (Counting(), (1, 8, 16, 16), {}),
    ],
    ids=[
        *("stride", "dilation", "groups", "odd", "odd width", "small", "large"),
        *("off", "unfrozen", "perhaps odd", "mutation"),
    ],
)
def test_others_are_as_they_were(model, size, options) -> None:
    x = torch.randn(size)
    got, report = _compiled(model, x, **options)
    assert not _is_so(report)
    with torch.no_grad():
        torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)
