"""Convolutions in kernels of our own: numbers, geometry, layouts, what stays ATen's."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import sympy
import torch

import smelt
from smelt.config import Config
from smelt.loops.ir import Contraction
from smelt.schedule import Context
from smelt.schedule.graph.contractions import choose_kernels
from smelt.schedule.loops import Target
from smelt.schedule.products.boxes import box
from smelt.schedule.products.operands import as_product
from tests.lowering.harness import lowered
from tests.schedule.test_schedule import check as simulated
from tests.support.agreement import assert_close, assert_gradients, compiled, draw

F = torch.nn.functional


def pooled(x: torch.Tensor) -> torch.Tensor:
    """A result without channels side by side: whatever lies before it may lie as it likes."""
    return x.amax((-2, -1)) if x.dim() == 4 else x.flatten(2).amax(-1)


Case = tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]
CASES: dict[str, Case] = {
    "3x3": (lambda x, w: F.conv2d(x, w, padding=1), [(1, 32, 12, 11), (64, 32, 3, 3)]),
    "bias": (lambda x, w, b: F.conv2d(x, w, b).relu(), [(2, 32, 9, 9), (48, 32, 3, 3), (48,)]),
    "stem": (lambda x, w: F.conv2d(x, w, stride=2, padding=3), [(1, 3, 33, 30), (64, 3, 7, 7)]),
    "1x1": (lambda x, w: F.conv2d(x, w), [(3, 64, 7, 7), (144, 64, 1, 1)]),
    "1x1 strided": (lambda x, w: F.conv2d(x, w, stride=2), [(2, 64, 15, 15), (64, 64, 1, 1)]),
    "dilated": (lambda x, w: F.conv2d(x, w, dilation=2, padding=2), [(1, 32, 13, 13), (32, 32, 3, 3)]),
    "strided and dilated": (
        lambda x, w: F.conv2d(x, w, stride=3, dilation=2, padding=4),
        [(1, 16, 29, 31), (40, 16, 3, 5)],
    ),
    "1d": (lambda x, w: F.conv1d(x, w, padding=2), [(2, 32, 50), (32, 32, 5)]),
    "3d": (lambda x, w: F.conv3d(x, w, padding=1), [(1, 16, 6, 5, 7), (32, 16, 3, 3, 3)]),
    "few channels": (lambda x, w: F.conv2d(x, w, padding=1), [(1, 5, 12, 11), (17, 5, 3, 3)]),
    "deep": (lambda x, w: F.conv2d(x, w, padding=1), [(1, 200, 6, 6), (32, 200, 3, 3)]),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, padding=1, dilation=2),
        [(2, 32, 9, 8), (32, 48, 3, 3)],
    ),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=32), [(2, 32, 9, 8), (32, 1, 3, 3)]),
    "depthwise strided": (
        lambda x, w, b: F.relu6(F.conv2d(x, w, b, stride=2, padding=3, groups=96)),
        [(1, 96, 15, 14), (96, 1, 7, 7), (96,)],
    ),
    "depthwise 1d": (lambda x, w: F.conv1d(x, w, padding=1, groups=48), [(2, 48, 40), (48, 1, 3)]),
    "after relu": (lambda x, w: F.conv2d(x.relu() + 1, w, padding=1), [(1, 32, 8, 8), (32, 32, 3, 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    function, shapes = CASES[name]
    _, report = compiled(
        lambda *inputs: pooled(function(*inputs)), *(draw(*shape, seed=k) for k, shape in enumerate(shapes))
    )
    assert not report.externs
    assert any(kernel.endswith("_tiled") for kernel in report.kernels)


def test_nan_and_infinity() -> None:
    """A window that sees neither is not touched by them: padding is no number times zero."""
    x = draw(1, 32, 9, 9)
    x[0, 3, 0, 0], x[0, 4, 8, 8] = float("nan"), float("inf")
    w = draw(32, 32, 3, 3, seed=1)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=1).mean(1)

    torch._dynamo.reset()
    got, wanted = torch.compile(function, backend="smelt")(x, w), function(x, w)
    torch.testing.assert_close(got, wanted, equal_nan=True)
    assert 0 < int(got.isfinite().sum()) < got.numel()


def test_a_block_of_a_network() -> None:
    """Two convolutions, normalization, the residual and a pooling: channels lie side by side throughout."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Conv2d(32, 32, 3, padding=1, bias=False)
            self.norm = torch.nn.BatchNorm2d(32)
            self.b = torch.nn.Conv2d(32, 32, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.relu(self.norm(self.a(F.max_pool2d(x, 2))))
            return (self.b(y) + y).relu().mean((2, 3))

    torch.manual_seed(0)
    model, x = Block().eval(), draw(2, 32, 18, 18)
    exact = Block().eval().double()
    exact.load_state_dict(model.state_dict())
    smelt.reset()
    with torch.no_grad():
        assert_close(torch.compile(model, backend="smelt")(x), model(x), exact(x.double()))
    report = smelt.reports()[-1]
    assert not report.externs
    assert sum(name.endswith("_tiled") for name in report.kernels) == 2


def test_one_compile_for_all_sizes() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.conv2d(x, w, b, stride=2, padding=1)).mean((2, 3))

    w, b = draw(48, 32, 3, 3, seed=1), draw(48, seed=2)
    fast, report = compiled(function, draw(2, 32, 20, 18), w, b, dynamic=True)
    assert not report.externs
    for shape in ((4, 32, 9, 9), (3, 32, 31, 12), (5, 32, 64, 4)):
        x = draw(*shape)
        assert_close(fast(x, w, b), function(x, w, b), function(x.double(), w.double(), b.double()))
    assert len(smelt.reports()) == 1


def test_rows_of_a_strided_result_are_found_without_a_division() -> None:
    """Its lines are ``(s - 1)//4 + 1`` long: the multiples of that are seen, and that tiles end within it."""

    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return pooled(F.conv2d(F.conv2d(x, w, stride=2, padding=1).relu(), v, stride=2, padding=1))

    w, v = draw(48, 32, 3, 3, seed=1), draw(64, 48, 3, 3, seed=2)
    fast, report = compiled(function, draw(1, 32, 60, 60), w, v, dynamic=True)
    assert not report.externs
    kernels = report.text("cpp").split("static void kernel_", 1)[1]
    iterations = set(re.findall(r"for \(i64 (i\d+) = begin;", kernels))
    divided = re.findall(r"by\d+\.\w+\((\w+)\)", kernels)  # only which tile a thread's iteration is
    assert divided and iterations.issuperset(divided), (divided, iterations)
    for size in (5, 31, 68):
        x = draw(1, 32, size, size)
        assert_close(fast(x, w, v), function(x, w, v), function(x.double(), w.double(), v.double()))


def test_groups_stay_atens() -> None:
    """Few channels a group, or a depthwise convolution whose channels do not fill the lanes."""
    for channels, groups in ((8, 4), (33, 33)):
        x, w = draw(1, channels, 9, 9), draw(channels, channels // groups, 3, 3, seed=1)
        _, report = compiled(lambda x, w, g=groups: pooled(F.conv2d(x, w, groups=g)), x, w)
        assert report.externs == {"aten.convolution.default": 1}


def test_groups_of_few_channels_are_ours() -> None:
    x, w = draw(1, 32, 9, 9), draw(32, 4, 3, 3, seed=1)
    _, report = compiled(lambda x, w: pooled(F.conv2d(x, w, groups=8)), x, w)
    assert not report.externs


def test_a_result_of_few_terms_that_lies_otherwise_is_atens() -> None:
    _, report = compiled(lambda x, w: F.conv2d(x, w), draw(1, 32, 40, 40), draw(32, 32, 1, 1, seed=1))
    assert report.externs == {"aten.convolution.default": 1}
    _, report = compiled(lambda x, w: F.conv2d(x, w), draw(1, 32, 9, 9), draw(32, 32, 3, 3, seed=1))
    assert not report.externs


def test_channels_last_inputs() -> None:
    x = draw(1, 32, 9, 9).to(memory_format=torch.channels_last)
    smelt.reset()
    w = draw(32, 32, 3, 3, seed=1).to(memory_format=torch.channels_last)
    got = torch.compile(lambda x, w: F.conv2d(x, w).relu(), backend="smelt")(x, w)
    assert got.stride() == F.conv2d(x, w).stride()
    assert_close(got, F.conv2d(x, w).relu(), F.conv2d(x.double(), w.double()).relu())


def test_training_keeps_what_backward_wants() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU())
    assert_gradients(model, draw(2, 16, 8, 8))


def test_the_nests_interpreter_agrees() -> None:
    graph = lowered(
        lambda x, w: F.conv2d(x, w, stride=2, padding=1).relu().amax((2, 3)),
        draw(1, 16, 8, 8),
        draw(16, 16, 3, 3),
    )
    inputs = [draw(1, 16, 8, 8) / 8, draw(16, 16, 3, 3, seed=1) / 8]
    simulated(graph, inputs, Config(parallel_grain=1))


def test_the_box_of_a_convolution() -> None:
    """Stride 2 and padding 1 over 12 x 12: positions -1 … 11; channels last."""
    graph = lowered(lambda x, w: F.conv2d(x, w, stride=2, padding=1), draw(2, 16, 12, 12), draw(32, 16, 3, 3))
    body = next(node.body for node in graph.nodes if isinstance(node.body, Contraction))
    product = as_product(body, graph)
    assert product is not None
    assert (product.batch, product.rows, product.columns) == ((), (0, 2, 3), (1,))
    found = box(product, graph)
    assert found is not None
    assert found.shape == tuple(sympy.Integer(n) for n in (2, 13, 13, 16))


def test_layouts_end_where_somebody_looks() -> None:
    """The result of the graph lies as eager's does; what is between the convolutions, channels last."""

    def function(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, v).relu(), w).tanh().sum((2, 3))

    graph = lowered(function, draw(1, 32, 14, 14), draw(32, 32, 3, 3), draw(32, 32, 3, 3))
    chosen = choose_kernels(graph, Context(Config(), Target(32)))
    images = [buffer for name, buffer in chosen.buffers.items() if len(buffer.shape) == 4]
    made = [b for b in images if b.name not in graph.inputs and b.shape[1] == 32 and b.shape[2] in (12, 10)]
    assert len(made) >= 4
    assert all(buffer.strides[1] == 1 for buffer in made)


@pytest.mark.parametrize("size, columns", [(2, 64), (1, 64), (1, 1)])
def test_a_frozen_convolution_of_few_positions_is_ours(size, columns):
    """Calling ATen takes longer than such a product; not frozen, packing its weight would."""
    model = torch.nn.Conv1d(64, columns, 3, padding=1).eval()
    x = torch.randn(1, 64, size)
    for freezing in (True, False):
        smelt.reset()
        with torch.no_grad():
            found = smelt.compile(model, freezing=freezing)(x)
        torch.testing.assert_close(found, model(x).detach(), rtol=1e-5, atol=1e-5)
        (choice,) = smelt.reports()[-1].choices
        assert choice.kernel == ("native" if freezing else "ATen")
