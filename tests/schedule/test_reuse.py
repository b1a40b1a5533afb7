"""In-place reuse: where a kernel may write over its input, it does; where it must not, it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sympy import Expr, Integer, Symbol

from smelt.config import Config
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Graph
from smelt.lowering.tensor import Tensor
from smelt.ops import ops
from smelt.schedule import Scheduled, Target, schedule
from tests.schedule.graphs import F32, given, start
from tests.schedule.simulate import simulate

ROWS, COLUMNS = Integer(24), Integer(40)
N = Symbol("s0", integer=True, positive=True)
Step = Callable[[Tensor, tuple[Expr, ...]], object]


@pytest.fixture(autouse=True)
def _nothing_is_inlined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.schedule.grouping.inline._worth_inlining", lambda *_: False)


def chain(
    second: Step, shape: tuple[Expr, ...] = (ROWS, COLUMNS), keep: bool = False, rows: Expr = ROWS
) -> Graph:
    """``a = exp(x); b = second(a); c = -b``: three kernels, since fusion is off."""
    graph, b = start()
    x = given(graph, "x", rows, COLUMNS)
    a = b.pointwise(lambda i: ops.exp(x.load(i)), shape=(rows, COLUMNS), dtype=F32)
    middle = b.pointwise(lambda i: second(a, i), shape=shape, dtype=F32)
    last = b.pointwise(lambda i: ops.neg(middle.load(i)), shape=shape, dtype=F32)
    graph.outputs = [b.strided(last), *([b.strided(a)] if keep else [])]
    return graph


def run(graph: Graph, rows: int | None = None) -> Scheduled:
    """Schedule without fusion, hold the result against the reference interpreter, for all loop decisions."""
    if rows is not None:
        graph.inputs, graph.hints = [N, *graph.inputs], {N: 16}
    inputs: list[torch.Tensor | int] = [*([rows] if rows is not None else []), torch.randn(rows or 24, 40)]
    scheduled = schedule(graph, Config(fusion=False, parallel_grain=1), Target(16))
    for plain in (True, False):
        for got, want in zip(simulate(graph, scheduled, inputs, plain=plain), run_graph(graph, inputs)):
            torch.testing.assert_close(got, want)
    return scheduled


def in_place(scheduled: Scheduled) -> list[str]:
    """The kernels with one buffer."""
    return [call.kernel.name for r in scheduled.runs for call in r.calls if len(call.kernel.params) == 1]


def test_a_dead_input_is_written_over() -> None:
    scheduled = run(chain(lambda a, i: ops.sqrt(a.load(i))))
    assert len(in_place(scheduled)) == 1
    assert scheduled.arena_size == 24 * 40 * 4


def test_a_reshape_in_between_does_not_matter() -> None:
    def reshaped(a: Tensor, i: tuple[Expr, ...]) -> object:
        return ops.sqrt(a.load((i[0] * 3 + i[1], i[2])))

    assert len(in_place(run(chain(reshaped, (Integer(8), Integer(3), COLUMNS))))) == 1


@pytest.mark.parametrize("rows", [1, 7, 32])
def test_symbolic_sizes(rows: int) -> None:
    graph = chain(lambda a, i: ops.sqrt(a.load(i)), (N, COLUMNS), rows=N)
    assert len(in_place(run(graph, rows))) == 1


@pytest.mark.parametrize(
    ("second", "shape"),
    [
        (lambda a, i: ops.sqrt(a.load((i[1], i[0]))), (COLUMNS, ROWS)),
        (lambda a, i: ops.sqrt(a.load((ROWS - 1 - i[0], i[1]))), (ROWS, COLUMNS)),
        (lambda a, i: ops.add(a.load(i), a.load((i[0], Integer(0)))), (ROWS, COLUMNS)),
        (lambda a, i: ops.sqrt(a.load((Integer(3), i[1]))), (ROWS, COLUMNS)),
        (lambda a, i: ops.sqrt(a.load((i[0] * 2, i[1]))), (ROWS // 2, COLUMNS)),
    ],
    ids=["transposed", "flipped", "and_the_first_column", "broadcast", "every_other"],
)
def test_other_turns_read_it_too(second: Step, shape: tuple[Expr, ...]) -> None:
    assert in_place(run(chain(second, shape))) == []


def test_an_output_is_kept() -> None:
    assert in_place(run(chain(lambda a, i: ops.sqrt(a.load(i)), keep=True))) == []


def test_an_input_of_the_graph_is_kept() -> None:
    graph, b = start()
    x = given(graph, "x", ROWS, COLUMNS)
    graph.outputs = [b.strided(b.pointwise(lambda i: ops.exp(x.load(i)), shape=(ROWS, COLUMNS), dtype=F32))]
    assert in_place(run(graph)) == []


def test_rows_are_read_before_they_are_written() -> None:
    """``a / a.sum(row)`` in one kernel: each iteration has read its row when it overwrites it."""
    graph, b = start()
    x = given(graph, "x", ROWS, COLUMNS)
    a = b.pointwise(lambda i: ops.exp(x.load((i[1], i[0]))), shape=(COLUMNS, ROWS), dtype=F32)
    (total,) = b.reduction(
        "sum", lambda i, r: a.load((i[0], r[0])), shape=(COLUMNS,), reduce_shape=(ROWS,), dtype=F32
    )
    share = b.pointwise(
        lambda i: ops.truediv(a.load(i), total.load((i[0],))), shape=(COLUMNS, ROWS), dtype=F32
    )
    turned = b.pointwise(lambda i: ops.neg(share.load((i[1], i[0]))), shape=(ROWS, COLUMNS), dtype=F32)
    graph.outputs = [b.strided(turned)]
    inputs = [torch.randn(24, 40)]
    scheduled = schedule(graph, Config(parallel_grain=1), Target(16))
    for got, want in zip(simulate(graph, scheduled, inputs), run_graph(graph, inputs)):
        torch.testing.assert_close(got, want)
    assert scheduled.arena_size < 2 * 24 * 40 * 4


def test_what_a_scatter_writes_into_is_no_place_for_its_source() -> None:
    """Its result holds the base before the source is read."""
    graph, b = start()
    x = given(graph, "x", ROWS, COLUMNS)
    source = b.pointwise(lambda i: ops.exp(x.load(i)), shape=(ROWS, COLUMNS), dtype=F32)
    zeros = b.pointwise(lambda i: ops.constant(0.0, F32), shape=(ROWS, COLUMNS), dtype=F32)
    placed = b.scatter(zeros, source.load, tuple, shape=(ROWS, COLUMNS))
    last = b.pointwise(lambda i: ops.neg(placed.load(i)), shape=(ROWS, COLUMNS), dtype=F32)
    graph.outputs = [b.strided(last)]
    run(graph)
