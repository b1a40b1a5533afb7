"""Padding without a copy: zeros around buffers that depthwise convolutions read beyond their edges."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from sympy import Integer

import smelt
from smelt.config import Config
from smelt.loops.dependencies import variables
from smelt.loops.ir import Buffer, Pointwise
from smelt.loops.printer import buffer_text
from smelt.loops.record import record
from smelt.loops.straightline import MaskedInstruction
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import Block, Kernel, Let, Param, Store
from smelt.schedule import Context
from smelt.schedule.graph.contractions import choose_kernels
from smelt.schedule.loops import Target
from smelt.schedule.products.operands import Dtypes
from tests.lowering.harness import lowered
from tests.schedule.test_schedule import check as simulated
from tests.support.agreement import assert_gradients, compiled, draw

F = torch.nn.functional
Function = Callable[..., torch.Tensor]
IMAGE, MIX, TAPS = (1, 32, 12, 11), (64, 32, 1, 1), (64, 1, 3, 3)


def bordered(function: Function, *shapes: tuple[int, ...]) -> list[Buffer]:
    graph = lowered(function, *(draw(*shape, seed=k) for k, shape in enumerate(shapes)))
    chosen = choose_kernels(graph, Context(Config(), Target(32)))
    return [buffer for buffer in chosen.buffers.values() if buffer.halo]


def sides(buffer: Buffer) -> list[tuple[int, int]]:
    return [(int(before), int(after)) for before, after in buffer.halo]


def depthwise(x: torch.Tensor, w: torch.Tensor, **how: int) -> torch.Tensor:
    return F.conv2d(x, w, groups=w.shape[0], **how)


def padded(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return depthwise(F.conv2d(x, v).relu(), w, padding=1).amax((2, 3))


def padded_before(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As models from TensorFlow do it: more behind than before."""
    return depthwise(F.pad(F.conv2d(x, v).relu(), (0, 1, 0, 1)), w, stride=2).amax((2, 3))


def twice(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """One buffer, seen through two windows."""
    y = F.conv2d(x, v).relu()
    return (depthwise(y, w, padding=1) + depthwise(y, w, padding=2, dilation=2)).amax((2, 3))


def residual(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Sums take the place of what they are made of, halos and all."""
    y = F.conv2d(x, v).relu()
    for _ in range(3):
        y = y + depthwise(y, w, padding=1).relu()
    return y.amax((2, 3))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (padded, [[(0, 0), (0, 0), (1, 1), (1, 1)]]),
        (padded_before, [[(0, 0), (0, 0), (0, 1), (0, 1)]]),
        (twice, [[(0, 0), (0, 0), (2, 2), (2, 2)]]),
        (residual, [[(0, 0), (0, 0), (1, 1), (1, 1)]] * 3),
    ],
)
def test_what_a_depthwise_convolution_pads_has_a_halo(
    function: Function, expected: list[list[tuple[int, int]]]
) -> None:
    shapes = [(1, 32, 12, 12), MIX, TAPS]
    assert [sides(buffer) for buffer in bordered(function, *shapes)] == expected
    _, report = compiled(function, *(draw(*shape, seed=k) for k, shape in enumerate(shapes)))
    assert not report.fallbacks


@pytest.mark.parametrize("function", [padded, residual])
@pytest.mark.parametrize("image", [(2, 32, 7, 9), (1, 32, 1, 5)])
def test_batches_and_short_sides(function: Function, image: tuple[int, ...]) -> None:
    """A side of one element has no place in the order of memory: there a copy may be padded instead."""
    assert bordered(function, image, MIX, TAPS) or 1 in image[2:]
    compiled(function, *(draw(*shape, seed=k) for k, shape in enumerate((image, MIX, TAPS))))


class Weighted(torch.nn.Module):
    """A function of an image with weights of its own, whose sizes are known."""

    def __init__(self, function: Function, taps: tuple[int, ...] = TAPS) -> None:
        super().__init__()
        self.function = function
        self.mix = torch.nn.Parameter(draw(*MIX, seed=1), requires_grad=False)
        self.taps = torch.nn.Parameter(draw(*taps, seed=2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.mix.to(x.dtype), self.taps.to(x.dtype))


@pytest.mark.parametrize("function", [padded, padded_before])
def test_dynamic_sizes(function: Function) -> None:
    """Where the zeros are depends on the sizes."""
    model = Weighted(function)
    fast, report = compiled(model, draw(1, 32, 15, 14), dynamic=True)
    assert not report.fallbacks
    assert not any("pad" in kernel for kernel in report.kernels)
    assert sum("tiled" in kernel for kernel in report.kernels) == 2
    for shape in ((1, 32, 20, 9), (1, 32, 5, 6), IMAGE):
        x = draw(*shape, seed=3)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert len(smelt.reports()) == 1


@pytest.mark.parametrize("taps", [3, 7])
def test_tiles_inside_of_lines_of_any_length(taps: int) -> None:
    """Lines shorter and longer than tiles: whole tiles, halves, single rows; zeros on all sides of each."""

    def inside(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, v).clamp(0.1, 0.9)  # nothing is 0 but the halo
        z = depthwise(y, w, padding=taps // 2).relu()
        return F.conv2d(z, v.flatten(1).t()[:, :, None, None].expand(-1, -1, 3, 3), padding=1)

    model = Weighted(inside, (64, 1, taps, taps))
    fast, report = compiled(model, draw(1, 32, 9, 28), dynamic=True)
    assert not report.fallbacks
    for width in (2, 3, 6, 7, 8, 13, 14, 15, 20, 21, 22, 27, 29, 41):
        x = draw(1, 32, 5, width, seed=width)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert len(smelt.reports()) == 1
    for width in (5, 7, 16, 27):
        compiled(model, draw(2, 32, 6, width, seed=width))


def test_zeros_are_written_by_all_threads() -> None:
    """In the iterations of the loops of the kernel whose result they surround: no loops behind these."""
    shapes = [(1, 32, 12, 12), MIX, TAPS]
    fast = smelt.compile(padded, keep_text=True)
    fast(*(draw(*shape, seed=k) for k, shape in enumerate(shapes)))
    text = smelt.reports()[-1].text("cpp")
    begin = text.index("static void kernel_convolution_tiled(")
    kernel = text[begin : text.index("\n}", begin)].splitlines()
    around = [line for line in kernel if line.startswith(("  for", "  in_parallel", "  calls_in_parallel"))]
    fills = re.findall(r"^      fill_\w+\(", "\n".join(kernel), re.MULTILINE)
    assert len(around) == 1 and len(fills) == 4 and "fill_rows(Y, rows, Y_0, length, 0.0f)" in text


def test_zeros_behind_a_kernel_are_calls() -> None:
    """Kernels that differ in nothing else but how much there is of them are one function."""

    def windows(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, v, groups=32)[..., ::2, ::2].relu()
        return F.conv2d(F.pad(y, (1, 2, 1, 1)), w, groups=32)

    def of_two_sizes(
        x: torch.Tensor, y: torch.Tensor, v: torch.Tensor, w: torch.Tensor
    ) -> list[torch.Tensor]:
        return [windows(x, v, w), windows(y, v, w)]

    taps = [draw(32, 1, 3, 4, seed=k) for k in range(2)]
    model = [draw(1, 32, 96, 96), draw(1, 32, 80, 80), *taps]
    fast = smelt.compile(of_two_sizes, keep_text=True)
    torch.testing.assert_close(fast(*model), of_two_sizes(*model), rtol=1e-4, atol=1e-4)
    text = smelt.reports()[-1].text("cpp")
    kernels = [each for each in text.split("\nstatic void ")[1:] if "at_least(" in each]
    assert [len(re.findall(r"fill_\w+\(out", each.split("\n}", 1)[0])) for each in kernels] == [4]
    assert text.count(f"  {kernels[0].split('(', 1)[0]}(") == 2


@pytest.mark.parametrize("shape", [(3, 5), (300, 500), (70_001,), (40, 3, 999)])
def test_memory_that_is_filled(shape: tuple[int, ...]) -> None:
    """In one row or in many, by one thread or by all."""

    def fill(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inner = x.new_full([size + 2 for size in shape], 3.0)
        inner[tuple(slice(1, -1) for _ in shape)] = x
        return inner, torch.full(shape, -2.5), torch.full(shape, 7, dtype=torch.int64)

    x = draw(*shape)
    for got, want in zip(smelt.compile(fill)(x), fill(x)):
        assert torch.equal(got, want)


def test_what_is_saved_for_the_backward_has_none() -> None:
    """It is a tensor of its own, outside of the arena, however it lies."""
    mix, last = torch.nn.Conv2d(16, 32, 1), torch.nn.Conv2d(32, 20, 1)
    taps, norm = torch.nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), torch.nn.BatchNorm2d(32)
    assert_gradients(torch.nn.Sequential(mix, torch.nn.ReLU(), taps, norm, last), draw(2, 16, 29, 31))


def test_a_number_of_groups_that_is_a_size() -> None:
    """Then the convolution is ATen's."""
    compiled(padded, draw(*IMAGE), draw(*MIX, seed=1), draw(*TAPS, seed=2), dynamic=True)


def test_whose_copy_gets_the_halo() -> None:
    """An input's; that of what the graph gives out, and of what a convolution reads that is not depthwise."""

    def given(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return depthwise(x, w, padding=1).amax((2, 3))

    def given_out(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(x, v).relu()
        return depthwise(y, w, padding=1).amax((2, 3)), y

    def dense(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, v).relu(), w, padding=1).amax((2, 3))

    def copies(function: Function, *shapes: tuple[int, ...]) -> list[list[tuple[int, int]]]:
        found = bordered(function, *shapes)
        assert all(buffer.name.endswith("_lhs") for buffer in found)
        return [sides(buffer) for buffer in found]

    around = [[(0, 0), (1, 1), (1, 1), (0, 0)]]
    assert copies(given, (1, 64, 12, 12), TAPS) == around
    assert copies(given_out, IMAGE, MIX, TAPS) == around  # type: ignore[arg-type]

    def padded_twice(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return depthwise(F.pad(F.conv2d(x, v).relu(), (0, 1, 0, 1)), w, padding=1).amax((2, 3))

    assert copies(dense, IMAGE, MIX, (64, 64, 3, 3)) == around
    assert copies(padded_twice, IMAGE, MIX, TAPS) == around  # of what is padded already


def test_a_copy_with_a_border_asks_nothing() -> None:
    """Not where it is inside: it is all of the buffer, and the zeros are written beside it."""

    def stem(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, stride=2, padding=3)

    shapes = [(1, 3, 12, 10), (16, 3, 7, 7)]
    inputs = [draw(*shape, seed=k) / 8 for k, shape in enumerate(shapes)]
    graph = lowered(stem, *inputs)
    chosen = choose_kernels(graph, Context(Config(), Target(32)))
    (copy,) = (node for node in chosen.nodes if str(node.outputs[0]).endswith("_lhs"))
    (buffer,) = (buffer for buffer in chosen.buffers.values() if buffer.halo)
    assert buffer.name == copy.outputs[0]
    assert sides(buffer) == [(0, 0), (3, 2), (3, 2), (0, 0)]
    assert isinstance(copy.body, Pointwise)
    outer = variables("i", len(copy.body.shape))
    steps = record(copy.body.inner_fn, [outer], Dtypes(chosen.buffers), {}).instructions
    assert [step.op for step in steps if not isinstance(step, MaskedInstruction)] == ["load"]
    assert len(steps) == 1
    simulated(graph, inputs, Config(parallel_grain=1))


def test_the_nests_interpreter_agrees() -> None:
    """The arena is not clear before: the zeros are the kernels' own."""
    shapes = [(1, 32, 7, 5), (32, 32, 1, 1), (32, 1, 3, 3)]
    inputs = [draw(*shape, seed=k) / 8 for k, shape in enumerate(shapes)]
    simulated(lowered(padded, *inputs), inputs, Config(parallel_grain=1))


def test_nothing_is_read_before_the_memory() -> None:
    """The interpreter tells a halo from a mistake."""
    steps = (Let("v", torch.float32, "load", ("p", (Integer(-1),))), Store("p", (Integer(0),), "v"))
    kernel = Kernel(
        "k", (Param("p", torch.float32, (Integer(4),), (Integer(1),), True),), (), Block(steps), ()
    )
    memory = {"p": torch.arange(4.0)}
    with pytest.raises(IndexError, match="1 elements before"):
        run_kernel(kernel, memory)
    run_kernel(kernel, memory, first={"p": 2})
    assert memory["p"].tolist() == [0, 1, 1, 3]


def test_the_printed_halo() -> None:
    (buffer,) = bordered(padded, (1, 32, 12, 12), MIX, TAPS)
    assert buffer_text(buffer).endswith("halo (0+0, 0+0, 1+1, 1+1)")
