"""Copies that iteration memory are turned in registers: each line of what they read and write is touched
once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sympy import Integer

import smelt
from smelt.config import Config
from smelt.loops.interpreter import run_graph
from smelt.ops import ops
from smelt.schedule import Target, schedule
from tests.schedule import graphs
from tests.schedule.simulate import simulate

F32 = torch.float32
WHOLE, REST = (64, 48), (77, 50)
TURNED: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "whole vectors": (lambda x: x.t().contiguous(), [torch.randn(WHOLE)]),
    "rows and columns left over": (lambda x: x.t().contiguous(), [torch.randn(REST)]),
    "many rows": (lambda x: x.t().contiguous(), [torch.randn(40, 2000)]),
    "integers": (lambda x: x.t().contiguous(), [torch.randint(-9, 9, REST, dtype=torch.int32)]),
    "computed": (
        lambda x, b: (torch.relu(x) * 2 + b[:, None]).t().contiguous(),
        [torch.randn(REST), torch.randn(77)],
    ),
    "two of a kind": (lambda x, y: (x - y).t().contiguous(), [torch.randn(REST), torch.randn(REST)]),
    "channels last": (
        lambda x: (x + 1).contiguous(memory_format=torch.channels_last),
        [torch.randn(2, 35, 9, 11)],
    ),
    "channels first": (
        lambda x: (x + 1).contiguous(memory_format=torch.contiguous_format),
        [torch.randn(2, 35, 9, 11).to(memory_format=torch.channels_last)],
    ),
}


COPIED = {"whole vectors", "rows and columns left over", "many rows", "integers"}


@pytest.mark.parametrize("name", TURNED)
def test_what_is_turned_is_the_same(name: str) -> None:
    function, inputs = TURNED[name]
    compiled = smelt.compile(function, keep_text=True, dynamic=False)
    got, want = compiled(*inputs), function(*inputs)
    assert torch.equal(got, want) and got.stride() == want.stride()
    text = smelt.reports()[-1].text("cpp").split("static void kernel_", 1)[1]
    assert ("copy_transposed<" if name in COPIED else "store_transposed(") in text


def test_a_turned_column_is_printed_once() -> None:
    """Not once for each lane: compilers took three times as long."""
    fast = smelt.compile(lambda x: (x.t() + 1).contiguous(), keep_text=True, dynamic=False)
    fast(torch.randn(WHOLE))
    text = smelt.reports()[-1].text("cpp").split("static void kernel_", 1)[1]
    assert text.count("load<") == text.count("add(") == text.count("store_transposed(") == 1


KEPT: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "an operand lies along the columns": (
        lambda x, y: x.t() + y,
        [torch.randn(WHOLE), torch.randn(48, 64)],
    ),
    "eight bytes": (lambda x: x.t().contiguous(), [torch.randn(WHOLE, dtype=torch.float64)]),
    "few columns": (lambda x: x.t().contiguous(), [torch.randn(3, 64)]),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_does_not_all_lie_across_is_not_turned(name: str) -> None:
    function, inputs = KEPT[name]
    compiled = smelt.compile(function, keep_text=True, dynamic=False)
    torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=0, atol=0)
    assert "store_transposed(" not in smelt.reports()[-1].text("cpp").split("static void kernel_", 1)[1]


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("shape", [(32, 64), (37, 50)])
def test_the_nest_does_what_the_loops_say(shape: tuple[int, int], lanes: int) -> None:
    rows, columns = map(Integer, shape)
    graph, build = graphs.start()
    x = graphs.given(graph, "x", rows, columns)
    turned = build.pointwise(lambda i: ops.neg(x.load((i[1], i[0]))), shape=(columns, rows), dtype=F32)
    graph.outputs = [build.strided(turned)]
    given = torch.randn(shape)
    scheduled = schedule(graph, Config(parallel_grain=1), Target(4 * lanes))
    (got,) = simulate(graph, scheduled, [given], plain=False)
    (want,) = run_graph(graph, [given])
    assert isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor)
    assert torch.equal(got, want)


BESIDE: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "three channels": (
        lambda x: (x * 2).contiguous(memory_format=torch.channels_last),
        [torch.randn(2, 3, 40, 41)],
    ),
    "four, padded": (
        lambda x: torch.nn.functional.pad(x, (1, 2, 3, 0)).contiguous(memory_format=torch.channels_last),
        [torch.randn(1, 4, 30, 37)],
    ),
    "pairs": (lambda x, y: torch.stack([x, y], -1), [torch.randn(1000), torch.randn(1000)]),
}


@pytest.mark.parametrize("name", BESIDE)
def test_few_columns_are_stored_beside_each_other(name: str) -> None:
    function, inputs = BESIDE[name]
    compiled = smelt.compile(function, keep_text=True, dynamic=False)
    got, want = compiled(*inputs), function(*inputs)
    assert torch.equal(got, want) and got.stride() == want.stride()
    text = smelt.reports()[-1].text("cpp").split("static void kernel_", 1)[1]
    assert "store_adjacent(" in text or "store_transposed(" in text  # as many columns as lanes are turned


def test_few_columns_that_are_looked_up() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[i[0]], x[i[1]], x[i[2]]], -1)

    x, i = torch.randn(64), torch.randint(0, 64, (3, 200))
    assert torch.equal(smelt.compile(function, verify=True)(x, i), function(x, i))
    turned = smelt.compile(lambda x, i: x[i].t().contiguous(), verify=True)
    assert torch.equal(turned(x, i), x[i].t())
