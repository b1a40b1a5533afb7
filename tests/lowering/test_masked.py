"""masked_scatter, its gradient and nonzero_static; and where masked elements go."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Buffer, Check, Graph
from smelt.lowering.builder import Builder
from smelt.lowering.indexing.positions import positions_of
from smelt.lowering.tensor import Tensor
from smelt.symbolic import as_expr, contiguous_strides
from tests.lowering.harness import DTYPES, check, lowered

aten = torch.ops.aten


def given(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return (torch.randn(shape) * 2).to(dtype)


MASK = torch.tensor([[True, False, True], [False, False, True], [True, True, False], [False, True, True]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_scatter(dtype: torch.dtype) -> None:
    x, source = given(dtype, 4, 3), given(dtype, 12)
    check(lambda x, m, s: x.masked_scatter(m, s), x, MASK, source)
    check(lambda x, m, s: x.masked_scatter(m, s), x, MASK, given(dtype, 2, 5).t())
    check(lambda x, m, s: x.masked_scatter(m, s), x, MASK[0], source)
    check(lambda x, m, s: x.masked_scatter(m, s), x[0], MASK, source)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_scatter_backward(dtype: torch.dtype) -> None:
    grad = given(dtype, 4, 3)
    check(lambda g, m: aten.masked_scatter_backward(g, m, [3, 4]), grad, MASK)
    check(lambda g, m: aten.masked_scatter_backward(g, m, [8]), grad, MASK[0])
    check(lambda g, m: aten.masked_scatter_backward(g, m, []), grad, torch.tensor(False))


def test_too_short_a_source_is_an_error() -> None:
    """Only where that can be: a source of as many elements as the mask needs no look at the mask."""

    def call(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.masked_scatter(mask, source)

    x = given(torch.float32, 4, 3)
    graph = lowered(call, x, MASK, torch.ones(6))
    with pytest.raises(RuntimeError, match="Number of elements of source < number of ones in mask"):
        run_graph(graph, [x, MASK, torch.ones(6)])
    graph = lowered(call, x, MASK, torch.ones(12))
    assert not any(isinstance(node.body, Check) for node in graph.nodes)
    check(call, x, torch.zeros_like(MASK), torch.ones(0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nonzero_static(dtype: torch.dtype) -> None:
    x = given(dtype, 4, 3, 2)
    check(lambda x: [aten.nonzero_static(x, size=size) for size in (0, 1, 7, 40)], x)
    check(lambda x: aten.nonzero_static(x, size=30, fill_value=5), x.flatten())


def test_nonzero_static_of_no_elements_or_no_dimensions() -> None:
    check(lambda x: aten.nonzero_static(x, size=3), torch.ones(0, 2))
    check(lambda x: aten.nonzero_static(x, size=3), torch.tensor(1.0))
    check(lambda x: aten.nonzero_static(x, size=3), torch.tensor([[NAN, 0.0]]))


NAN = float("nan")


def test_one_graph_for_every_size() -> None:
    others = [(given(torch.float32, 7, 2), torch.ones(7, 2, dtype=torch.bool), torch.arange(14.0))]
    others.append((given(torch.float32, 0, 5), torch.ones(0, 5, dtype=torch.bool), torch.arange(3.0)))
    inputs = (given(torch.float32, 4, 3), MASK, torch.arange(9.0))
    check(lambda x, m, s: x.masked_scatter(m, s), *inputs, symbolic=True, others=others[:1])
    only: list[Any] = [[entry[0]] for entry in others]
    check(lambda x: aten.nonzero_static(x, size=6), inputs[0], symbolic=True, others=only[:1])


def test_positions_count_the_true_elements_before() -> None:
    graph = Graph(inputs=["m"])
    shape = tuple(as_expr(size) for size in (2, 4))
    graph.buffers["m"] = Buffer("m", torch.bool, shape, contiguous_strides(shape))
    builder = Builder(graph)
    count, positions = positions_of(builder, Tensor("m", torch.bool, shape))
    graph.outputs = [builder.strided(count), builder.strided(positions)]
    mask = torch.tensor([[False, True, True, False], [True, False, False, True]])
    total, before = run_graph(graph, [mask])
    assert total.item() == 4
    assert before.tolist() == [[0, 0, 1, 2], [2, 3, 3, 3]]
