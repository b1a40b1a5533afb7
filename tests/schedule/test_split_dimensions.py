"""Grouped and strided transposed convolutions: taken apart into groups and phases, they are products."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import smelt
from smelt.config import Config
from smelt.loops.ir import Contraction, Graph
from smelt.nest.printer import print_run
from smelt.schedule import Target, schedule
from smelt.schedule.products.operands import Product
from smelt.schedule.products.split_dimensions import product_of
from tests.lowering.harness import lowered
from tests.schedule.test_convolutions import pooled
from tests.schedule.test_schedule import check as simulated
from tests.support.agreement import assert_close, assert_gradients, compiled, draw

F = torch.nn.functional

Case = tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]
GROUPS: dict[str, Case] = {
    "3x3": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=4),
        [(2, 64, 9, 11), (128, 16, 3, 3), (128,)],
    ),
    "1x1": (lambda x, w: F.conv2d(x, w, groups=2), [(3, 64, 7, 7), (96, 32, 1, 1)]),
    "strided and dilated": (
        lambda x, w: F.conv2d(x, w, padding=2, stride=2, dilation=2, groups=3),
        [(1, 48, 19, 16), (60, 16, 3, 3)],
    ),
    "1d": (lambda x, w: F.conv1d(x, w, padding=1, groups=2), [(2, 32, 40), (32, 16, 3)]),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, padding=1, groups=2),
        [(2, 64, 8, 9), (64, 24, 3, 3)],
    ),
}
PHASES: dict[str, Case] = {
    "even": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        [(2, 32, 9, 8), (32, 48, 3, 3), (48,)],
    ),
    "odd": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), [(2, 32, 9, 8), (32, 48, 3, 3)]),
    "as many taps everywhere": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2),
        [(2, 32, 9, 8), (32, 48, 2, 2), (48,)],
    ),
    "fewer taps than phases": (
        lambda x, w: F.conv_transpose2d(x, w, stride=3, output_padding=1),
        [(1, 32, 9, 8), (32, 48, 2, 1)],
    ),
    "dilated": (
        lambda x, w: F.conv_transpose2d(x, w, stride=3, dilation=2, padding=2, output_padding=1),
        [(1, 32, 9, 8), (32, 48, 5, 4)],
    ),
    "dilated by the stride": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, dilation=2, padding=1, output_padding=1),
        [(1, 32, 9, 8), (32, 48, 3, 3)],
    ),
    "dilated by the stride one way": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, dilation=(2, 1), padding=1),
        [(1, 32, 7, 8), (32, 48, 2, 4)],
    ),
    "dilated by a part of the stride": (
        lambda x, w: F.conv_transpose2d(x, w, stride=4, dilation=2, padding=1, output_padding=1),
        [(1, 32, 9, 8), (32, 48, 3, 3)],
    ),
    "strided one way": (
        lambda x, w: F.conv_transpose2d(x, w, stride=(2, 1), padding=1),
        [(1, 32, 9, 8), (32, 48, 3, 3)],
    ),
    "in groups": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, groups=2),
        [(1, 64, 9, 8), (64, 24, 3, 3)],
    ),
    "depthwise": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, groups=32),
        [(1, 32, 9, 8), (32, 1, 3, 3)],
    ),
    "1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1), [(1, 64, 35), (64, 24, 4)]),
    "3d": (
        lambda x, w: F.conv_transpose3d(x, w, stride=2, padding=1),
        [(1, 32, 5, 4, 5), (32, 24, 3, 3, 3)],
    ),
    "deep": (lambda x, w: F.conv_transpose2d(x, w, stride=2), [(1, 400, 6, 6), (400, 32, 3, 3)]),
}
CASES = {f"groups, {name}": case for name, case in GROUPS.items()} | {
    f"phases, {name}": case for name, case in PHASES.items()
}


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    function, shapes = CASES[name]
    inputs = [draw(*shape, seed=k) for k, shape in enumerate(shapes)]
    _, report = compiled(lambda *inputs: pooled(function(*inputs)), *inputs)
    assert not report.externs
    assert any(kernel.endswith("_tiled") for kernel in report.kernels)


@pytest.mark.parametrize("name", ["groups, 3x3", "phases, even", "phases, odd", "phases, dilated"])
def test_channels_last(name: str) -> None:
    """Inputs and outputs of the graph: the result lies as eager's does."""
    function, shapes = CASES[name]
    x, *others = (draw(*shape, seed=k) for k, shape in enumerate(shapes))
    x = x.to(memory_format=torch.channels_last)
    others[0] = others[0].to(memory_format=torch.channels_last)
    fast, report = compiled(lambda *inputs: function(*inputs).relu(), x, *others)
    assert not report.externs
    assert fast(x, *others).stride() == function(x, *others).stride()


@pytest.mark.parametrize("name", ["groups, strided and dilated", "phases, odd", "phases, dilated"])
def test_one_compile_for_all_sizes(name: str) -> None:
    function, shapes = CASES[name]

    def whole(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return pooled(F.gelu(function(x, *others)))

    others = [draw(*shape, seed=k) for k, shape in enumerate(shapes[1:], 1)]
    smelt.reset()
    fast = torch.compile(whole, backend="smelt", fullgraph=True, options={"verify": True})
    for batch, *sizes in ((2, 17, 16), (4, 8, 21), (3, 30, 9)):
        x = draw(batch, shapes[0][1], *sizes)
        for dim in (0, 2, 3):
            torch._dynamo.mark_dynamic(x, dim)
        exact = whole(x.double(), *(other.double() for other in others))
        assert_close(fast(x, *others), whole(x, *others), exact)
    (report,) = smelt.reports()
    assert not report.externs


def test_what_follows_is_computed_on_the_tile() -> None:
    """Bias, activation and residual, where groups and phases are parts of the result's dimensions."""
    for name in ("groups, 3x3", "phases, even"):
        function, shapes = CASES[name]
        x, w, b = (draw(*shape, seed=k) for k, shape in enumerate(shapes))
        more = draw(*function(x, w, b).shape, seed=9).to(memory_format=torch.channels_last)
        x, w = (each.to(memory_format=torch.channels_last) for each in (x, w))
        _, report = compiled(lambda x, w, b, more, f=function: F.gelu(f(x, w, b)) + more, x, w, b, more)
        (origins,) = [origins for origins in report.fused if any("gelu" in origin for origin in origins)]
        assert any("aten.convolution" in origin for origin in origins)


def test_nan_and_infinity() -> None:
    """A phase that sees neither is not touched by them: nothing is multiplied with zeros put in between."""
    x, w = draw(1, 32, 9, 9), draw(32, 32, 3, 3, seed=1)
    x[0, 3, 0, 0], x[0, 4, 8, 8] = float("nan"), float("inf")
    torch._dynamo.reset()
    got = torch.compile(lambda x, w: F.conv_transpose2d(x, w, stride=2).mean(1), backend="smelt")(x, w)
    torch.testing.assert_close(got, F.conv_transpose2d(x, w, stride=2).mean(1), equal_nan=True)
    assert 0 < int(got.isfinite().sum()) < got.numel()


def test_gradients_of_strided_and_grouped_convolutions() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 48, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(48, 32, 1, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, padding=1, groups=2),
    )
    assert_gradients(model, draw(2, 3, 20, 19))


def _product(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[Product, Graph]:
    graph = lowered(function, *inputs)
    body = next(node.body for node in graph.nodes if isinstance(node.body, Contraction))
    product = product_of(body, graph)
    assert product is not None
    return product, graph


def test_the_product_of_a_grouped_convolution() -> None:
    product, _ = _product(lambda x, w: F.conv2d(x, w, groups=4), draw(2, 64, 9, 9), draw(128, 16, 3, 3))
    assert product.body.shape == (2, 4, 32, 7, 7)
    assert (product.batch, product.rows, product.columns) == ((1,), (0, 3, 4), (2,))
    assert product.order == (0, 3, 4, 1, 2)
    assert product.whole_strides == (7 * 7 * 128, 1, 7 * 128, 128)


def test_the_product_of_a_strided_transposed_convolution() -> None:
    """Stride 2, three taps, padding 1: an even position counts one tap, an odd one two."""
    product, _ = _product(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), draw(2, 32, 8, 8), draw(32, 48, 3, 3)
    )
    assert product.body.shape == (2, 48, 8, 2, 8, 2)
    assert product.body.reduce_shape == (32, 2, 2)
    assert (product.batch, product.rows, product.columns) == ((3, 5), (0, 2, 4), (1,))
    assert product.order == (0, 2, 3, 4, 5, 1)
    assert product.split is not None
    for phase in product.split.phases:
        (symbol,) = phase.shift.free_symbols
        assert [phase.shift.subs(symbol, f) for f in (0, 1)] == [0, 1]
        assert phase.count is not None
        assert [phase.count.subs(symbol, f) for f in (0, 1)] == [1, 2]


@pytest.mark.parametrize(("taps", "packed"), [(1, 32 * 48), (3, 4 * 2 * 2 * 32 * 48)])
def test_weights_are_packed_once_where_phases_have_one_tap(taps: int, packed: int) -> None:
    """One of four phases sees it, the others see none; of three by three, each has up to two by two."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(x, w, stride=2)

    given = lowered(function, draw(1, 32, 9, 8), draw(32, 48, taps, taps))
    calls = [call for run in schedule(given, Config(), Target(64)).runs for call in run.calls]
    (product,) = (call.kernel for call in calls if call.kernel.name.endswith("_tiled"))
    assert product.params[-1].shape == (packed,)


def test_the_nests_interpreter_agrees() -> None:
    x, w = draw(1, 4, 6, 6) / 8, draw(4, 16, 3, 3, seed=1) / 8
    graph = lowered(lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1).amax((2, 3)), x, w)
    simulated(graph, [x, w], Config(parallel_grain=1))
    text = "\n".join(print_run(run) for run in schedule(graph, Config(), Target(32)).runs)
    assert "fma(" in text
