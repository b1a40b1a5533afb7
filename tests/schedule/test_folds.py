"""Folds in schedules: lanes and threads over elements, the iterations in order, neighbours fused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from sympy import Integer, Symbol

from smelt.config import Config
from smelt.loops.ir import Graph
from smelt.nest.dependence import carried_state
from smelt.nest.ir import LoopKind
from smelt.nest.tree import loops
from smelt.ops import ops
from tests.schedule.graphs import F32, given, start
from tests.schedule.test_scans import ONE, Rank, check, numbers

I64 = torch.int64
N = Symbol("s0", integer=True, positive=True)


def chain(shape: Rank, turns: Any) -> Graph:
    """exp; a fold of it that counts its iterations; readers of that, in order and reversed; a sum."""
    graph, b = start()
    x = given(graph, "x", *shape)
    e = b.pointwise(lambda i: ops.exp(x.load(i)), shape=shape, dtype=F32)

    def turn(index: Any, number: Any, state: Sequence[Any]) -> Any:
        quarter = ops.mul(state[0], ops.constant(0.25, F32))
        value = ops.fma(quarter, e.load(index), ops.index_expr(number, F32))
        return [value, ops.add(state[1], ops.constant(2, I64))]

    value, count = b.fold(turn, shape=shape, turns=turns, state=[(F32, 1.0), (I64, 0)])
    ends = b.pointwise(
        lambda i: ops.mul(value.load(i), ops.to_dtype(count.load(i), F32)), shape=shape, dtype=F32
    )
    sizes = shape[::-1]
    turned = b.pointwise(lambda i: ops.neg(value.load(tuple(i)[::-1])), shape=sizes, dtype=F32)
    (again,) = b.fold(
        lambda i, t, s: [ops.add(ops.mul(s[0], ops.constant(0.5, F32)), turned.load(i))],
        shape=sizes,
        turns=3,
        state=[(F32, 0.0)],
    )
    (row,) = b.reduction(
        "sum", lambda i, r: ends.load((*i, *r)), shape=shape[:-1], reduce_shape=shape[-1:], dtype=F32
    )
    graph.outputs = [b.strided(t) for t in (ends, again, row)]
    return graph


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("turns", [0, 1, 2, 7])
@pytest.mark.parametrize("shape", [(3, 5), (17, 9), (1, 12), (12, 1), (4, 3, 6), (9,), (0, 4)])
def test_folds_of_every_shape(shape: tuple[int, ...], turns: int, fusion: bool) -> None:
    torch.manual_seed(0)
    check(chain(numbers(*shape), turns), [torch.randn(shape)], Config(parallel_grain=1, fusion=fusion))


@pytest.mark.parametrize("turns", [0, 1, 5])
@pytest.mark.parametrize("rows", [1, 13])
def test_dynamic_rows_and_turns(rows: int, turns: int) -> None:
    count = Symbol("s1", integer=True, nonnegative=True)
    graph = chain((N, Integer(6)), count)
    graph.inputs = [N, count, *graph.inputs]
    graph.hints = {N: 16, count: 4}
    check(graph, [rows, turns, torch.randn(rows, 6)])


def test_elements_go_in_lanes_and_turns_in_order_in_one_kernel() -> None:
    graph, b = start()
    shape = numbers(40, 64)
    x = given(graph, "x", *shape)
    e = b.pointwise(lambda i: ops.exp(x.load(i)), shape=shape, dtype=F32)
    (root,) = b.fold(
        lambda i, t, s: [ops.mul(ops.constant(0.5, F32), ops.add(s[0], ops.truediv(e.load(i), s[0])))],
        shape=shape,
        turns=8,
        state=[(F32, 1.0)],
    )
    graph.outputs = [b.strided(b.pointwise(lambda i: ops.neg(root.load(i)), shape=shape, dtype=F32))]
    (kernel,) = check(graph, [torch.randn(40, 64)], ONE).kernels
    kinds = [loop.kind for loop in loops(kernel.body)]
    assert kinds == [LoopKind.PARALLEL, LoopKind.VECTOR, LoopKind.SERIAL]
    assert [loop.kind for loop in loops(kernel.body) if carried_state(loop)] == [LoopKind.SERIAL]
