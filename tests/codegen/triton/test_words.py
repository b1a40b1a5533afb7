"""The width of indices in printed kernels: 32 bits only where sizes that are numbers prove that all fit.

The traps of 32 bits are read in the text; no memory of that size is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sympy import Expr, Integer, Symbol

from smelt.codegen.triton.unit import print_kernels
from smelt.config import Config
from smelt.loops.ir import Graph, StridedView
from smelt.lowering.tensor import Tensor
from smelt.ops import ops
from smelt.records import replace
from smelt.schedule import Target, schedule
from smelt.symbolic import contiguous_strides
from tests.schedule.graphs import F32, given, start

GPU = Target(vector_bytes=4, blocks=True)
S0 = Symbol("s0", integer=True, positive=True)
FEW, MANY = Integer(2**30), Integer(2**31 + 8)


def _text(graph: Graph, *results: Tensor) -> str:
    for each in results:
        graph.outputs.append(StridedView(each.buffer, each.shape, contiguous_strides(each.shape), Integer(0)))
    scheduled = schedule(graph, Config(), GPU, choose=lambda *product: False)
    return "\n".join(each.text for each in print_kernels(scheduled.all_runs).values())


def _doubled(*shape: Expr, steps: tuple[int, ...] | None = None) -> str:
    graph, b = start()
    x = given(graph, "x", *shape)
    if steps is not None:
        graph.buffers["x"] = replace(graph.buffers["x"], strides=tuple(map(Integer, steps)))
    return _text(graph, b.pointwise(lambda i: ops.add(x.load(i), x.load(i)), shape=shape, dtype=F32))


def _reduced(kind: str, *shape: Expr) -> str:
    graph, b = start()
    x = given(graph, "x", *shape)
    outer, terms = shape[:-1], shape[-1:]
    found = b.reduction(kind, lambda i, r: x.load((*i, *r)), shape=outer, reduce_shape=terms, dtype=F32)
    return _text(graph, found[0])


def _positions(step: int) -> str:
    graph, b = start()
    size = (Integer(9),)
    return _text(
        graph,
        b.pointwise(lambda i: ops.index_expr(i[0] * step, torch.int64), shape=size, dtype=torch.int64),
    )


def _looked_up(rows: int) -> str:
    graph, b = start()
    x, at = given(graph, "x", Integer(rows), Integer(1024)), given(graph, "at", Integer(5), dtype=torch.int64)

    def row(i: Any) -> Any:
        return ops.load("x", [ops.indirect_index(at.load(i[:1]), x.shape[0]), i[1]])

    return _text(graph, b.pointwise(row, shape=(Integer(5), Integer(1024)), dtype=F32))


NARROW: dict[str, Callable[[], str]] = {
    "a size that is a number": lambda: _doubled(FEW),
    "strides below the limit": lambda: _doubled(Integer(4), Integer(8), steps=(2**27, 1)),
    "values below the limit": lambda: _positions(2**20),
    "positions in a table below the limit": lambda: _looked_up(2**20),
}
WIDE: dict[str, Callable[[], str]] = {
    "more elements than 32 bits count": lambda: _doubled(MANY),
    "few elements far apart": lambda: _doubled(Integer(4), Integer(8), steps=(2**30, 1)),
    "a size that is a symbol": lambda: _doubled(S0),
    "lanes beyond the end": lambda: _doubled(Integer(2**31 - 1)),
    "values of an arange": lambda: _positions(2**40),
    "the variable of a serial loop times a step": lambda: _reduced("prod", Integer(2000), Integer(2**21)),
    "a position in a large table": lambda: _looked_up(2**22),
}


@pytest.mark.parametrize("name", NARROW)
def test_indices_have_32_bits(name: str) -> None:
    text = NARROW[name]()
    assert ".to(tl.int32)" in text and "tl.cast(0, tl.int64)" not in text
    assert "tl.arange(0, 1024).to(tl.int64)" not in text and "program_id(0).to(tl.int64)" not in text


@pytest.mark.parametrize("name", WIDE)
def test_indices_have_64_bits(name: str) -> None:
    text = WIDE[name]()
    assert ").to(tl.int64)[" in text and "tl.int32" not in text
    assert " in range(" not in text or " in range(tl.cast(0, tl.int64), " in text
