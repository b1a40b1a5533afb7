"""Matrix products and convolutions: their meaning as loop functions against what ATen computes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from smelt.loops.ir import Contraction
from smelt.loops.printer import print_graph
from tests.lowering.harness import FLOATS, check, lowered

aten = torch.ops.aten


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def is_contraction(graph: object) -> bool:
    return any(isinstance(node.body, Contraction) for node in graph.nodes)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "function, shapes",
    [
        (aten.mm.default, [(3, 4), (4, 5)]),
        (aten.bmm.default, [(2, 3, 4), (2, 4, 5)]),
        (aten.mv.default, [(3, 4), (4,)]),
        (aten.dot.default, [(7,), (7,)]),
        (aten.vdot.default, [(7,), (7,)]),
        (aten.addmm.default, [(5,), (3, 4), (4, 5)]),
        (aten.addmm.default, [(3, 1), (3, 4), (4, 5)]),
        (lambda b, x, y: aten.addmm.default(b, x, y, beta=0.5, alpha=2), [(3, 5), (3, 4), (4, 5)]),
        (lambda b, x, y: aten.addmm.default(b * torch.nan, x, y, beta=0), [(5,), (3, 4), (4, 5)]),
        (aten.baddbmm.default, [(2, 1, 5), (2, 3, 4), (2, 4, 5)]),
        (aten.addmv.default, [(3,), (3, 4), (4,)]),
        (lambda x, y: aten.mm(x.t(), y.t()), [(4, 3), (5, 4)]),
        (aten.mm.default, [(1, 4), (4, 1)]),
        (aten.mm.default, [(3, 0), (0, 5)]),
        (aten.mm.default, [(0, 3), (3, 5)]),
    ],
)
def test_products(function: Callable[..., object], shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    inputs = [draw(*shape, dtype=dtype, seed=n) for n, shape in enumerate(shapes)]
    assert is_contraction(check(function, *inputs, slack=8.0))


def test_integers_wrap() -> None:
    x = torch.full((3, 40), 100, dtype=torch.int8)
    check(aten.mm.default, x, x.t().contiguous())
    check(aten.mm.default, torch.full((2, 2), 2**62), torch.full((2, 2), 3))


def test_symbolic_sizes() -> None:
    graph = check(
        aten.addmm.default,
        *(draw(5), draw(3, 4), draw(4, 5)),
        symbolic=True,
        slack=4.0,
        others=[(draw(2), draw(7, 6), draw(6, 2))],
    )
    assert is_contraction(graph)


CONVOLUTIONS = {
    "plain": ((2, 3, 8, 9), (4, 3, 3, 3), True, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "padded": ((2, 3, 8, 9), (4, 3, 3, 3), True, [1, 1], [1, 2], [1, 1], False, [0, 0], 1),
    "strided": ((2, 3, 8, 9), (4, 3, 3, 3), False, [2, 3], [1, 1], [1, 1], False, [0, 0], 1),
    "dilated": ((2, 3, 9, 9), (4, 3, 3, 3), True, [1, 2], [2, 1], [2, 1], False, [0, 0], 1),
    "grouped": ((2, 6, 8, 9), (4, 3, 3, 3), True, [1, 1], [1, 1], [1, 1], False, [0, 0], 2),
    "depthwise": ((2, 6, 8, 9), (12, 1, 3, 3), True, [2, 2], [1, 1], [1, 1], False, [0, 0], 6),
    "one": ((2, 3, 8), (4, 3, 3), True, [2], [1], [1], False, [0], 1),
    "three": ((2, 3, 5, 6, 7), (4, 3, 2, 3, 3), True, [1, 2, 1], [1, 0, 1], [1, 1, 1], False, [0, 0, 0], 1),
    "transposed": ((2, 3, 5, 6), (3, 4, 3, 3), True, [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
    "transposed, grouped": ((2, 6, 5, 6), (6, 2, 3, 2), True, [2, 1], [0, 1], [1, 2], True, [0, 0], 3),
    "transposed, one": ((2, 3, 5), (3, 4, 4), False, [3], [2], [1], True, [2], 1),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    size, taps, biased, *geometry = CONVOLUTIONS[name]
    channels = taps[1] * geometry[-1] if geometry[3] else taps[0]
    bias = draw(channels, seed=2) if biased else None
    graph = check(
        lambda x, w, b: aten.convolution.default(x, w, b, *geometry),
        *(draw(*size), draw(*taps, seed=1), bias),
        slack=16.0,
    )
    assert is_contraction(graph)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_convolutions(name: str, dtype: torch.dtype) -> None:
    size, taps, _, *geometry = CONVOLUTIONS[name]
    channels = taps[1] * geometry[-1] if geometry[3] else taps[0]
    x, w = draw(*size, dtype=dtype), draw(*taps, dtype=dtype, seed=1)
    grad = torch.randn_like(aten.convolution.default(x, w, None, *geometry))
    graph = check(
        lambda g, x, w: aten.convolution_backward.default(g, x, w, [channels], *geometry, [True] * 3),
        *(grad, x, w),
        slack=32.0,
    )
    assert sum(isinstance(node.body, Contraction) for node in graph.nodes) == 2


@pytest.mark.parametrize(
    "taps, padding, tested", [(1, 0, ""), (3, 0, "ge lt"), (3, 1, "ge lt"), (3, 2, ""), (2, 1, "")]
)
def test_a_gradient_asks_for_windows_only_where_there_may_be_none(
    taps: int, padding: int, tested: str
) -> None:
    """Windows of one element see every position: nothing is masked, so nothing is copied."""
    geometry = ([1, 1], [padding] * 2, [1, 1], False, [0, 0], 1)
    x, w = draw(1, 4, 9, 9), draw(5, 4, taps, taps)
    grad = aten.convolution.default(x, w, None, *geometry)

    def of_input(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return aten.convolution_backward.default(g, x, w, [0], *geometry, [True, False, False])[0]

    text = print_graph(check(of_input, grad, x, w, slack=32.0))
    assert [name for name in ("ge", "lt") if re.search(rf"\b{name}\(", text)] == tested.split()


def test_a_convolution_of_any_size() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return aten.convolution.default(x, w, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)

    graph = check(
        function,
        *(draw(2, 3, 8, 9), draw(4, 3, 3, 3)),
        symbolic=True,
        slack=16.0,
        others=[(draw(1, 3, 5, 12), draw(4, 3, 3, 3))],
    )
    assert is_contraction(graph)


def test_the_script_shows_the_sum() -> None:
    graph = lowered(aten.addmm.default, draw(5), draw(3, 4), draw(4, 5))
    text = print_graph(graph)
    assert "contraction, as aten.addmm.default" in text
    assert "+= arg1_1[i0, r0] * arg2_1[r0, i1]" in text


def test_complex_products_are_calls() -> None:
    x = torch.randn(3, 3, dtype=torch.complex64)
    assert not is_contraction(lowered(aten.mm.default, x, x))
