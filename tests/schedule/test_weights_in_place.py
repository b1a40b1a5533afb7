"""Products that read a weight where it lies: the operands change places, and rows are packed in its stead."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

import smelt
from smelt.config import Config
from smelt.nest.ir import Alloc
from smelt.nest.tree import walk
from smelt.schedule import Target, schedule
from smelt.schedule.graph import contractions
from tests.lowering.harness import lowered
from tests.schedule.simulate import simulate
from tests.support.agreement import assert_close, compiled, draw

F = torch.nn.functional
Tensor = torch.Tensor
Function = Callable[..., Tensor]

TURNED: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "linear": (F.linear, [(49, 200), (331, 200), (331,)]),
    "rows-of-several-dimensions": (F.linear, [(2, 20, 192), (344, 192)]),
    "few-rows": (F.linear, [(11, 256), (300, 256), (300,)]),
    "as-many-as-lanes": (lambda x, w: x @ w.t(), [(48, 128), (512, 128)]),
    "activation-and-residual": (
        lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r,
        [(128, 256), (261, 256), (261,), (128, 261)],
    ),
    "a-row-for-all": (lambda x, w, r: F.linear(x, w) * r, [(33, 256), (259, 256), (33, 1)]),
    "result-transposed": (lambda x, w: (x @ w.t()).t().relu(), [(40, 256), (264, 256)]),
    "prologue": (lambda x, w: F.linear(x.relu(), w), [(60, 256), (300, 256)]),
    "1x1": (F.conv2d, [(1, 256, 7, 7), (260, 256, 1, 1), (260,)]),
    "1x1-of-two": (lambda x, w: F.conv2d(x, w).relu(), [(2, 256, 6, 6), (256, 256, 1, 1)]),
}
"""What it computes of how large tensors."""


def is_turned(function: Function, *inputs: Tensor, vector_bytes: int = 64) -> bool:
    """Whether a tile is turned, on a machine with such vectors."""
    scheduled = schedule(lowered(function, *inputs), Config(), Target(vector_bytes))
    stmts = (stmt for kernel in scheduled.kernels for stmt in walk(kernel.body))
    return any(isinstance(stmt, Alloc) and stmt.buffer == "transposed" for stmt in stmts)


def tensors(shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    return [draw(*shape, seed=seed) / 4 for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("name", TURNED)
def test_numbers(name: str) -> None:
    function, shapes = TURNED[name]
    inputs = tensors(shapes)
    assert is_turned(function, *inputs)
    weight = inputs[1]
    assert schedule(lowered(function, *inputs), Config(), Target(64)).arena_size < 4 * weight.numel()
    assert not compiled(function, *inputs)[1].externs


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that an interpreter has time for are turned too, and nobody asks what it costs."""
    for bound in ("FEWEST_SWAPPED_TERMS", "FEWEST_SWAPPED_WEIGHTS"):
        monkeypatch.setattr(contractions, bound, 2)
    monkeypatch.setattr(contractions, "SAVED_ROWS", 1000)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("rows", [5, 16, 37])
def test_vectors_of_any_width(rows: int, vector_bytes: int, small: None) -> None:
    inputs = tensors([(rows, 6), (77, 6), (77,), (rows, 77)])

    def function(x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
        return F.linear(x, w, b).relu() + y

    assert is_turned(function, *inputs, vector_bytes=vector_bytes)
    graph = lowered(function, *inputs)
    (got,) = simulate(graph, schedule(graph, Config(), Target(vector_bytes)), inputs)
    torch.testing.assert_close(got, function(*inputs), rtol=1e-5, atol=1e-5)


def test_windows(small: None) -> None:
    """Of a convolution: the padded box that they see is what is packed."""
    inputs = tensors([(1, 5, 4, 6), (48, 5, 3, 3), (48,)])

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(x, w, b, padding=1, stride=2).tanh()

    assert is_turned(function, *inputs)
    graph = lowered(function, *inputs)
    (got,) = simulate(graph, schedule(graph, Config(), Target(64)), inputs)
    torch.testing.assert_close(got, function(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "why"),
    [
        (8, 512, 256, "so few rows that most of a vector has none: ATen's"),
        (64, 120, 600, "not many more columns than rows"),
        (150, 512, 256, "packing the weight is little then"),
        (64, 512, 100, "packing rows takes longer than that"),
        (64, 2048, 48, "few terms for each element that is turned"),
    ],
)
def test_others_pack_the_weight(rows: int, columns: int, depth: int, why: str) -> None:
    assert not is_turned(F.linear, draw(rows, depth), draw(columns, depth)), why


def test_only_columns_with_their_terms_side_by_side() -> None:
    """What a panel is packed from lies so already otherwise; and batches have no weight."""
    assert not is_turned(lambda x, w: x @ w, draw(64, 256), draw(256, 512))
    assert not is_turned(lambda x, w: x @ w.mT, draw(2, 64, 256), draw(2, 512, 256))


def test_what_is_frozen_is_packed_once() -> None:
    smelt.reset()
    layer = torch.nn.Linear(256, 512)
    x = draw(64, 256)
    with torch.no_grad():
        smelt.compile(layer, freezing=True, keep_text=True)(x)
    assert "transposed" not in smelt.reports()[-1].text("nest")


def test_a_weight_may_be_another_at_each_call() -> None:
    torch._dynamo.reset()
    layer, x = torch.nn.Linear(256, 512), draw(64, 256)
    fast = smelt.compile(layer)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), layer(x), rtol=1e-4, atol=1e-4)
            layer.weight.mul_(-0.5)


def test_not_for_rows_of_any_number() -> None:
    """One may come, or a thousand: turned, these took up to three times as long as ATen's call."""
    smelt.reset()
    layer = torch.nn.Sequential(torch.nn.Linear(192, 420), torch.nn.GELU(), torch.nn.Linear(420, 192))
    fast, exact = smelt.compile(layer, dynamic=True, keep_text=True), copy.deepcopy(layer).double()
    with torch.no_grad():
        for rows in (64, 2, 16, 49, 250):
            x = draw(rows, 192)
            assert_close(fast(x), layer(x), exact(x.double()))
    assert len(smelt.reports()) == 1 and "transposed" not in smelt.reports()[-1].text("nest")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits(dtype: torch.dtype) -> None:
    """Sums in float32, as always."""
    torch._dynamo.reset()
    x, w = draw(64, 256).to(dtype), draw(512, 256).to(dtype)
    assert_close(smelt.compile(F.linear)(x, w), F.linear(x, w), F.linear(x.double(), w.double()))


def test_gradients_of_what_is_turned() -> None:
    torch._dynamo.reset()
    layer = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 64))
    other, x = copy.deepcopy(layer), draw(64, 256)
    smelt.compile(other)(x).square().sum().backward()
    layer(x).square().sum().backward()
    for mine, theirs in zip(other.parameters(), layer.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)
