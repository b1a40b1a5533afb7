"""Scans in schedules: order along the scan, threads and lanes beside it, fusion where no iteration waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from sympy import Expr, Integer, Symbol

from smelt.config import Config
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Graph
from smelt.lowering.tensor import Tensor
from smelt.nest.dependence import carried_state
from smelt.nest.ir import Carry, LoopKind
from smelt.nest.tree import loops, walk
from smelt.ops import ops
from smelt.schedule import Scheduled, Target, schedule
from tests.schedule.graphs import F32, given, start
from tests.schedule.simulate import simulate

F64 = torch.float64
N = Symbol("s0", integer=True, positive=True)
TARGET = Target(16)
ONE = Config(parallel_grain=1)
Rank = tuple[Expr, ...]


def running(builder: Any, value: Callable[[Any], Any], shape: Rank, dim: int) -> Tensor:
    def turn(index: Any, state: Sequence[Any]) -> Any:
        total = ops.add(state[0], ops.to_dtype(value(index), F64))
        return [total], [ops.to_dtype(total, F32)]

    return builder.scan(turn, shape=shape, dim=dim, state=[(F64, 0.0)], dtypes=[F32])[0]


def chain(shape: Rank, dim: int) -> Graph:
    """exp, a running sum, what reads it at its own place, at the end, and turned around; a sum of it."""
    graph, b = start()
    x = given(graph, "x", *shape)
    e = b.pointwise(lambda i: ops.exp(x.load(i)), shape=shape, dtype=F32)
    total = running(b, e.load, shape, dim)
    part = b.pointwise(lambda i: ops.mul(total.load(i), x.load(i)), shape=shape, dtype=F32)
    last = shape[dim] - 1
    ends = b.pointwise(
        lambda i: total.load((*i[:dim], last, *i[dim:])), shape=(*shape[:dim], *shape[dim + 1 :]), dtype=F32
    )
    again = running(b, part.load, shape, len(shape) - 1 - dim)
    (row,) = b.reduction(
        "sum",
        lambda i, r: again.load((*i, *r)),
        shape=shape[:-1],
        reduce_shape=shape[-1:],
        dtype=F32,
    )
    graph.outputs = [b.strided(t) for t in (part, ends, again, row)]
    return graph


def lone(shape: Rank, dim: int) -> Graph:
    graph, b = start()
    x = given(graph, "x", *shape)
    graph.outputs = [b.strided(running(b, x.load, shape, dim))]
    return graph


def numbers(*shape: int) -> Rank:
    return tuple(map(Integer, shape))


def check(graph: Graph, inputs: list[Any], config: Config = ONE) -> Scheduled:
    scheduled = schedule(graph, config, TARGET)
    for plain in (True, False):
        got, want = simulate(graph, scheduled, inputs, plain=plain), run_graph(graph, inputs)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-5)
    return scheduled


SHAPES = [(3, 5), (17, 9), (6, 6), (1, 12), (12, 1), (4, 3, 6), (3, 3, 3), (9,)]


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_scans_along_every_dimension(shape: tuple[int, ...], fusion: bool) -> None:
    torch.manual_seed(0)
    for dim in range(len(shape)):
        check(chain(numbers(*shape), dim), [torch.randn(shape)], Config(parallel_grain=1, fusion=fusion))


@pytest.mark.parametrize("rows", [1, 2, 13])
@pytest.mark.parametrize("dim", [0, 1])
def test_dynamic_rows(rows: int, dim: int) -> None:
    graph = chain((N, Integer(6)), dim)
    graph.inputs = [N, *graph.inputs]
    graph.hints = {N: 16}
    check(graph, [rows, torch.randn(rows, 6)])


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_nothing_to_scan(shape: tuple[int, int]) -> None:
    for dim in (0, 1):
        check(lone(numbers(*shape), dim), [torch.randn(shape)])


def test_a_scan_over_rows_runs_down_the_columns_in_lanes() -> None:
    (kernel,) = check(lone(numbers(20, 64), 0), [torch.randn(20, 64)]).kernels
    beside = [loop for loop in loops(kernel.body) if loop.kind is LoopKind.VECTOR]
    assert [loop.step * F32.itemsize for loop in beside] == [64]  # a line of the cache
    assert [loop.kind for loop in loops(kernel.body) if carried_state(loop)] == [LoopKind.SERIAL]


def test_lines_of_a_scan_are_shared_out_to_threads() -> None:
    (kernel,) = check(lone(numbers(40, 7), 1), [torch.randn(40, 7)]).kernels
    assert [loop.kind for loop in loops(kernel.body)] == [LoopKind.PARALLEL, LoopKind.SERIAL]


def test_one_long_line_is_serial() -> None:
    (kernel,) = check(lone(numbers(300), 0), [torch.randn(300)]).kernels
    assert [loop.kind for loop in loops(kernel.body)] == [LoopKind.SERIAL]


@pytest.mark.parametrize("flipped", [False, True])
def test_a_scan_takes_its_inputs_place_where_each_turn_reads_its_own(flipped: bool) -> None:
    graph, b = start()
    shape = numbers(30, 40)
    x = given(graph, "x", *shape)
    turned = b.pointwise(lambda i: ops.exp(x.load(i)), shape=shape, dtype=F32)
    place = (lambda i: (i[0], 39 - i[1])) if flipped else tuple
    first = running(b, lambda i: turned.load(place(i)), shape, 1)
    graph.outputs = [b.strided(running(b, first.load, shape, 0))]
    scheduled = check(graph, [torch.randn(30, 40)], Config(parallel_grain=1, fusion=False))
    alone = [kernel for kernel in scheduled.kernels if len(kernel.params) == 1]
    assert len(alone) == (0 if flipped else 1)


def test_costly_work_beside_a_scan_keeps_its_lanes() -> None:
    """exp of a row is vectorised; it is not computed one by one in the scan's serial loop."""
    graph, b = start()
    shape = (Integer(64), Integer(128))
    x = given(graph, "x", *shape)
    graph.outputs = [b.strided(running(b, lambda i: ops.exp(x.load(i)), shape, 1))]
    e = b.pointwise(lambda i: ops.exp(x.load(i)), shape=shape, dtype=F32)
    graph.outputs.append(b.strided(running(b, e.load, shape, 1)))
    scheduled = check(graph, [torch.randn(64, 128)])
    vector = [
        loop for kernel in scheduled.kernels for loop in loops(kernel.body) if loop.kind is LoopKind.VECTOR
    ]
    assert any(getattr(stmt, "op", "") == "exp" for loop in vector for stmt in walk(loop.body))
    assert any(isinstance(stmt, Carry) for kernel in scheduled.kernels for stmt in walk(kernel.body))
