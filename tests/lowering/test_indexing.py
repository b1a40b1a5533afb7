"""Reading at positions that tensors hold."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.loops.interpreter import run_graph
from tests.lowering.harness import DTYPES, check, copies, fallen_back, lowered

aten = torch.ops.aten


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    values = torch.arange(count, dtype=torch.int64).reshape(shape)
    return values % 3 == 0 if dtype is torch.bool else (values % 100).to(dtype)


def positions(*values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=dtype)


def raises(function: Callable[..., Any], *inputs: Any) -> None:
    """Eager raises on these inputs, and so does the loop graph, the same exception."""
    with pytest.raises((IndexError, RuntimeError)) as raised:
        function(*inputs)
    graph = lowered(function, *inputs)
    assert not fallen_back(graph)
    with pytest.raises(raised.type):
        run_graph(graph, copies(inputs))


X = numbers(torch.float32, 4, 5, 6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_by_one_tensor(dtype: torch.dtype) -> None:
    check(lambda x, i: aten.index.Tensor(x, [i]), numbers(dtype, 4, 5), positions([3, 0, -1, 3]))


@pytest.mark.parametrize(
    "layout",
    [
        lambda i, j: [i, j],
        lambda i, j: [None, i, j],
        lambda i, j: [i, None, j],
        lambda i, j: [None, i],
        lambda i, j: [None, None, j],
        lambda i, j: [i, j, i],
        lambda i, j: [None, i, None],
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_index_by_several_tensors(layout: Any, dtype: torch.dtype) -> None:
    i, j = positions([[0], [-1]], dtype=dtype), positions([2, 3, -4], dtype=dtype)
    check(lambda x, i, j: aten.index.Tensor(x, layout(i, j)), X, i, j)


def test_index_by_scalars_and_by_nothing() -> None:
    check(lambda x, i: aten.index.Tensor(x, [i]), X, positions(2))
    check(lambda x, i: aten.index.Tensor(x, [None, i]), X, torch.empty(0, dtype=torch.int64))
    check(lambda x, i: aten.index.Tensor(x, [i, i]), X.transpose(0, 2)[::2], positions([1, 2]))


@pytest.mark.parametrize("bad", [4, -5])
def test_index_out_of_range_raises(bad: int) -> None:
    raises(lambda x, i: aten.index.Tensor(x, [i]), X, positions([0, bad]))


def test_index_by_several_masks_goes_to_aten() -> None:
    mask = torch.tensor([True, False, True, True])
    graph = lowered(lambda x, m: aten.index.Tensor(x, [m, m]), torch.randn(4, 4), mask, symbolic=True)
    assert fallen_back(graph) == ["aten.index.Tensor"]


def test_unsafe_index_and_masked_index() -> None:
    i = positions([3, 0, -1])
    check(lambda x, i: aten._unsafe_index.Tensor(x, [None, i]), X, i)
    wild, mask = positions([3, 99, 1]), torch.tensor([[[True]], [[False]], [[True]]])
    check(lambda x, m, i: aten._unsafe_masked_index.default(x, m, [i], -7.0), X, mask, wild)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather(dtype: torch.dtype) -> None:
    index = positions([[0, 4, 2], [1, 1, 3]])
    check(
        lambda x, i, j: (aten.gather.default(x, 1, i), aten.gather.default(x, -2, j)),
        numbers(dtype, 4, 5),
        index,
        index % 4,
    )


def test_gather_of_scalars_and_out_of_range() -> None:
    check(lambda x, i: aten.gather.default(x, 0, i), torch.tensor(3.0), positions(0))
    check(lambda x, i: aten.gather.default(x, 0, i), torch.tensor([3.0, 4.0]), positions(1))
    check(lambda x, i: aten.gather.default(x, 0, i), torch.tensor(3.0), positions([0, 0]))
    check(lambda x, i: aten.gather.default(x, 0, i), torch.rand(3), torch.empty(2, 0, dtype=torch.int64))
    for bad in (5, -1):
        raises(lambda x, i: aten.gather.default(x, 1, i), X, positions([[[bad]]]))


def test_index_select() -> None:
    check(lambda x, i: aten.index_select.default(x, -1, i), X, positions([5, 0, 0]))
    check(lambda x, i: aten.index_select.default(x, 1, i), X.transpose(0, 2), positions(2, dtype=torch.int32))
    check(lambda x, i: aten.index_select.default(x, 0, i), torch.tensor(2.0), positions([0]))
    raises(lambda x, i: aten.index_select.default(x, 0, i), X, positions([4]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding(dtype: torch.dtype) -> None:
    weight = numbers(dtype, 10, 4)
    check(lambda w, i: aten.embedding.default(w, i, 0), weight, positions([[1, 0, 9], [9, 9, 2]]))
    check(lambda w, i: aten.embedding.default(w, i), weight, positions(3, dtype=torch.int32))
    check(lambda w, i: aten.embedding.default(w, i), weight, torch.empty(2, 0, dtype=torch.int64))
    for bad in (10, -1):
        raises(lambda w, i: aten.embedding.default(w, i), weight, positions([bad]))


def test_take() -> None:
    check(lambda x, i: aten.take.default(x, i), X.transpose(0, 1), positions([[0, -1], [119, 37]]))


def test_dynamic_sizes() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.index.Tensor(x, [None, i]), aten.embedding.default(x, i), aten.take.default(x, i)

    others = [[numbers(torch.float32, n, n), positions(list(range(m)))] for n, m in ((2, 2), (5, 3), (9, 7))]
    check(function, numbers(torch.float32, 4, 6), positions([0, 3, 1]), symbolic=True, others=others)
