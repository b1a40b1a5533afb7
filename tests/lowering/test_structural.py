"""cat, stack, flips, scatters of views, triangles, creation, conversion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.loops.dependencies import analyze
from smelt.lowering.shapes import structural
from tests.lowering.harness import DTYPES, check

aten, prims = torch.ops.aten, torch.ops.prims
X = torch.arange(24.0).view(4, 6)

ONE: dict[str, Callable[[torch.Tensor], Any]] = {
    "cat": lambda x: torch.cat([x, x[:2], x[:1]]),
    "cat last": lambda x: torch.cat([x, x[:, 1:3]], -1),
    "cat one": lambda x: torch.cat([x]),
    "cat legacy empty": lambda x: torch.cat([x, x.new_zeros(0)], 1),
    "cat empty pieces": lambda x: torch.cat([x[:, :0], x, x[:, 6:]], 1),
    "cat promotes": lambda x: torch.cat([x, x > 3, x.double()]),
    "cat all empty": lambda x: torch.cat([x[:0], x[4:]]),
    "stack": lambda x: (torch.stack([x, x * 2, x]), torch.stack([x, x + 1], -1)),
    "flip": lambda x: (x.flip(0), x.flip(0, 1)),
    "roll": lambda x: (x.roll(1, 0), x.roll((2, -9), (0, 1)), x.roll(5), x.roll((1, 2), (1, 1))),
    "repeat": lambda x: (x.repeat(2, 3), x.repeat(2, 1, 1), x[:, :1].repeat(1, 4)),
    "tile": lambda x: x.tile(2),
    "repeat_interleave": lambda x: (
        aten.repeat_interleave.self_int(x, 3, 1),
        aten.repeat_interleave.self_int(x, 2),
    ),
    "tril": lambda x: (x.tril(), x.tril(2), x.tril(-1)),
    "triu": lambda x: (x.triu(), x.triu(2), x.triu(-1)),
    "slice_scatter": lambda x: aten.slice_scatter(x, x[:2] + 1, 0, 1, 3),
    "slice_scatter step": lambda x: aten.slice_scatter(x, x[:, :3] + 1, 1, 1, 9223372036854775807, 2),
    "slice_scatter all": lambda x: aten.slice_scatter(x, x + 1),
    "slice_scatter negative": lambda x: aten.slice_scatter(x, x[:, :2] + 1, 1, -3, -1),
    "select_scatter": lambda x: (
        aten.select_scatter(x, x[0] + 1, 0, -1),
        aten.select_scatter(x, x[:, 0], 1, 2),
    ),
    "diagonal_scatter": lambda x: (
        aten.diagonal_scatter(x, x[0, :4] + 9),
        aten.diagonal_scatter(x, x[0, :3], -1),
    ),
    "diag_embed": lambda x: (torch.diag_embed(x), torch.diag_embed(x, 1, 0, 2), torch.diag_embed(x, -2)),
    "fill": lambda x: (aten.fill(x, 3), aten.fill(x, x[0, 0])),
    "clone": lambda x: (
        x.clone(),
        x.t().clone(),
        x.t().contiguous(),
        x.t().clone(memory_format=torch.contiguous_format),
    ),
    "select_copy": lambda x: aten.select_copy(x, 1, -1),
    "split_copy": lambda x: aten.split_copy(x, 2, 1),
    "expand_copy": lambda x: aten.expand_copy(x, [2, 4, 6]),
    "diagonal_copy": lambda x: aten.diagonal_copy(x, 1),
    "squeeze_copy": lambda x: aten.squeeze_copy(x.view(4, 1, 6)),
    "masked_fill": lambda x: aten.masked_fill(x, x > 3, x[0, 0]),
    "copy": lambda x: aten.copy(x, x[0]),
    "pixel_shuffle": lambda x: aten.pixel_shuffle(x.view(1, 4, 2, 3), 2),
    "pixel_unshuffle": lambda x: aten.pixel_unshuffle(x.view(1, 1, 4, 6), 2),
    "channel_shuffle": lambda x: aten.channel_shuffle(x.view(1, 4, 2, 3), 2),
    "glu": lambda x: aten.glu(x.double(), 1),
}
if hasattr(prims, "copy_strided"):
    ONE["copy_strided"] = lambda x: (prims.copy_strided(x, [1, 4]), prims.copy_strided(x.t(), [4, 1]))


KINDS = [torch.float32, torch.int64, torch.bool, torch.bfloat16]


def numbers(name: str, dtype: torch.dtype) -> torch.Tensor:
    """The input of a case of ``ONE``; int8 where the case computes what bool does not have."""
    arithmetic = name in ("stack", "slice_scatter", "slice_scatter step", "diagonal_scatter")
    return (X * 5 % 7).to(torch.int8 if dtype is torch.bool and arithmetic else dtype)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("name", ONE)
def test_rearranging(name: str, dtype: torch.dtype) -> None:
    check(ONE[name], numbers(name, dtype))


@pytest.mark.parametrize(
    "name", ["cat", "cat last", "stack", "flip", "repeat", "tril", "slice_scatter", "clone", "roll"]
)
def test_rearranging_symbolic(name: str) -> None:
    check(ONE[name], X, symbolic=True, others=[(torch.randn(5, 7),)])


def test_cat_of_symbolic_sizes() -> None:
    others = [(torch.randn(2, 5), torch.randn(6, 5)), (torch.randn(5, 7), torch.randn(3, 7))]
    check(
        lambda x, y: torch.cat([x, y, x * 2]),
        torch.randn(3, 4),
        torch.randn(2, 4),
        symbolic=True,
        others=others,
    )


CREATION: dict[str, Callable[[torch.Tensor], Any]] = {
    "full": lambda x: (
        torch.full((2, 3), 1.5),
        torch.full((2,), 3),
        torch.full((), True),
        torch.full((0, 2), 1),
    ),
    "full_like": lambda x: (torch.full_like(x, 2), torch.full_like(x, 2.5, dtype=torch.bfloat16)),
    "zeros ones": lambda x: (
        torch.zeros(3, dtype=torch.int8),
        torch.ones(2, 2),
        torch.zeros_like(x),
        torch.ones_like(x),
    ),
    "new": lambda x: (x.new_zeros(2), x.new_ones(3, dtype=torch.bool), x.new_full((2,), 7)),
    "scalar_tensor": lambda x: (aten.scalar_tensor(2.5), aten.scalar_tensor(2, dtype=torch.int64)),
    "eye": lambda x: (torch.eye(3), torch.eye(2, 4, dtype=torch.int64), torch.eye(3, dtype=torch.bool)),
    "arange": lambda x: (
        torch.arange(5),
        torch.arange(2, 9, 2),
        torch.arange(9, 2, -3),
        torch.arange(3, dtype=torch.int8),
    ),
    "arange float": lambda x: (
        torch.arange(0, 1, 0.1),
        torch.arange(5.0),
        torch.arange(1, 3, 0.3, dtype=torch.float64),
    ),
    "arange low": lambda x: (
        torch.arange(0, 9, 0.7, dtype=torch.bfloat16),
        torch.arange(9, dtype=torch.float16),
    ),
    "arange to int": lambda x: torch.arange(0.5, 9.5, 1.5, dtype=torch.int64),
    "linspace": lambda x: (torch.linspace(0, 1, 7), torch.linspace(-1, 5, 1), torch.linspace(3, -2, 50)),
    "linspace low": lambda x: torch.linspace(0, 1, 7, dtype=torch.bfloat16),
    "tensor constant": lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("name", CREATION)
def test_creation(name: str) -> None:
    check(CREATION[name], torch.randn(3, 3))


def test_symbolic_creation() -> None:
    def function(x: torch.Tensor) -> Any:
        n, m = x.shape
        return (
            torch.arange(n) + m,
            torch.zeros(n, m + 1),
            torch.full((n * m,), n),
            torch.arange(n, n + m),
            x / (n * m),
        )

    check(function, torch.randn(3, 4), symbolic=True, others=[(torch.randn(2, 7),)])


@pytest.mark.parametrize("symbolic", [False, True])
def test_an_empty_tensor_may_hold_anything(symbolic: bool) -> None:
    check(lambda x: torch.empty_like(x).fill_(2), torch.randn(3, 4), symbolic=symbolic, functionalize=True)


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_conversion(source: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, 1.5, 2.5, 3.7, 100.9, 0.1])
    values = values if source is torch.uint8 else torch.cat([values, torch.tensor([-1.5, -2.5, -100.2])])
    signed = [dtype for dtype in DTYPES if dtype is not torch.uint8 or source in (torch.uint8, torch.bool)]
    check(lambda x: [x.to(dtype) + 0 for dtype in signed if dtype != source], values.to(source))


def test_conversion_of_special_values_to_bool_and_low_precision() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e39, 70000.0, 1e-45])
    check(lambda x: (x.bool(), x.half(), x.bfloat16(), x.double()), x)


def test_bitcast() -> None:
    x = torch.tensor([1.5, -0.0, float("nan")])
    check(lambda x: (x.view(torch.int32) + 1, (x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32)), x)


def test_channels_last_conversion() -> None:
    x = torch.randn(2, 3, 4, 5)
    check(
        lambda x: (
            x.to(memory_format=torch.channels_last) + 1,
            x.contiguous(memory_format=torch.channels_last),
        ),
        x,
    )


def test_a_cat_of_very_many_pieces_compares_no_element_with_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(structural, "MOST_PIECES", 6)
    monkeypatch.setattr(structural, "PIECES_AT_ONCE", 3)
    graph = check(lambda *xs: torch.cat(xs), *(torch.randn(number % 3) for number in range(70)))
    assert max(analyze(node).operations for node in graph.nodes) < 6 * 8
    check(lambda *xs: (torch.stack(xs), torch.cat(xs, -1)), *torch.randn(20, 3, 2))
    check(lambda *xs: torch.cat(xs, 1), *torch.randn(7, 3, 2), symbolic=True)
