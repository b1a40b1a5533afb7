"""Writing at positions that tensors hold."""

from typing import Any

import pytest
import torch

from smelt.loops.interpreter import run_graph
from tests.lowering.harness import DTYPES, FLOATS, check, lowered
from tests.lowering.test_indexing import numbers, positions, raises

aten = torch.ops.aten

X = numbers(torch.float32, 4, 5, 6)
ROWS, COLUMNS = positions([[0], [-1]]), positions([2, 3, -4])


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_put(dtype: torch.dtype) -> None:
    check(
        lambda x, i, v: aten.index_put.default(x, [i], v),
        numbers(dtype, 4, 5),
        positions([3, 0]),
        numbers(dtype, 2, 5).flip(1),
    )


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    "layout", [lambda i, j: [i, j], lambda i, j: [None, i, j], lambda i, j: [i, None, j]]
)
def test_index_put_at_several_tensors(layout: Any, accumulate: bool) -> None:
    shape = aten.index.Tensor(X, layout(ROWS, COLUMNS)).shape

    def function(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return aten.index_put.default(x, layout(i, j), v, accumulate)

    check(function, X, ROWS, COLUMNS, torch.rand(shape))
    check(function, X, ROWS, COLUMNS, torch.tensor(0.5))
    check(function, X, ROWS, COLUMNS, torch.rand(shape[-1]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_put_accumulates_duplicates(dtype: torch.dtype) -> None:
    x, i, v = numbers(dtype, 3, 2), positions([1, 1, -2, 0]), numbers(dtype, 4, 2)
    check(lambda x, i, v: aten.index_put.default(x, [i], v, True), x, i, v)
    check(lambda x, i, v: aten._unsafe_index_put.default(x, [i], v, True), x, i, v)


def test_index_put_of_a_number_under_a_mask_is_elementwise() -> None:
    mask = X[0] > 10
    graph = check(lambda x, m, v: aten.index_put.default(x, [None, m], v), X, mask, torch.tensor(-1.0))
    assert len(graph.nodes) == 1
    check(lambda x, m, v: aten.index_put.default(x, [m], v), X, X > 50, torch.tensor([7.0]))


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_by_a_mask(accumulate: bool) -> None:
    mask = torch.tensor([True, False, False, True])
    truth = torch.tensor([True, False, False, False])
    check(lambda x, m, v: aten.index_put.default(x, [m], v, accumulate), truth, mask, truth[1:3])
    check(lambda x, m, v: aten.index_put.default(x, [m], v, accumulate), X, mask, torch.rand(2, 5, 6))
    check(lambda x, m, v: aten.index_put.default(x, [m], v, accumulate), X, mask, torch.rand(6))


def test_index_put_by_a_mask_of_several_dimensions() -> None:
    places = torch.rand(X.shape[0], X.shape[1]) > 0.5
    count = int(places.sum())
    check(lambda x, m, v: aten.index_put.default(x, [m], v), X, places, torch.rand(count, X.shape[2]))


def test_what_goes_to_aten() -> None:
    mask = torch.tensor([True, False, False, True])
    put = "aten.index_put.default"
    square = torch.rand(4, 4)
    two = lambda x, m: aten.index_put.default(x, [m, m], torch.ones(()))  # noqa: E731
    check(two, square, mask, fallbacks=[put])
    sparse = torch.rand(6)[::2]
    strided = aten.as_strided_scatter.default
    check(lambda x, s: strided(x, s, [2], [2], 0), sparse, torch.ones(2), fallbacks=[str(strided)])


def test_index_put_out_of_range_raises() -> None:
    raises(lambda x, i: aten.index_put.default(x, [i], x), X, positions([0, 1, 2, 4]))


def test_unsafe_masked_index_put_accumulate() -> None:
    mask, wild = torch.tensor([[True], [False], [True], [True]]), positions([1, 99, 1, -1])
    check(
        lambda x, m, i, v: aten._unsafe_masked_index_put_accumulate.default(x, m, [i], v),
        numbers(torch.float32, 3, 2),
        mask,
        wild,
        torch.rand(4, 2),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter(dtype: torch.dtype) -> None:
    index, source = positions([[0, 1, 2], [3, 3, 0]]), numbers(dtype, 3, 4)

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            aten.scatter.src(x, 0, i, s),
            aten.scatter.value(x, 1, i, 1),
        )

    check(function, numbers(dtype, 4, 5), index, source)


def test_scatter_keeps_the_last_of_duplicates() -> None:
    check(
        lambda x, i, s: aten.scatter.src(x, 0, i, s),
        torch.zeros(3),
        positions([1, 1, 1]),
        torch.tensor([5.0, 6.0, 7.0]),
    )


def test_scatter_of_scalars_and_of_nothing() -> None:
    source = lambda x, i, s: aten.scatter.src(x, 0, i, s)  # noqa: E731
    check(source, torch.tensor(1.0), positions(0), torch.tensor(2.0))
    check(source, torch.ones(3), positions(2), torch.tensor(2.0))
    check(source, torch.ones(3), torch.empty(0, dtype=torch.int64), torch.ones(0))
    raises(lambda x, i: aten.scatter.value(x, 0, i, 1.0), torch.ones(3), positions([-1]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_along_one_dimension(dtype: torch.dtype) -> None:
    x, i, source = numbers(dtype, 4, 5), positions([2, 0]), numbers(dtype, 4, 2)
    check(lambda x, i, s: aten.index_copy.default(x, 1, i, s), x, i, source)
    check(lambda x, i: aten.index_fill.int_Scalar(x, -1, i, 1), x, positions([2, -1]))
    check(lambda x, i, v: aten.index_fill.int_Tensor(x, 0, i, v), x, i, numbers(dtype))


def test_gradients_of_views() -> None:
    check(lambda g: aten.diagonal_backward.default(g, [3, 4, 5], 1, 0, 2), torch.rand(4, 3))
    check(lambda g: aten.diagonal_backward.default(g, [3, 4, 5], -1, 0, 2), torch.rand(4, 2))
    check(lambda g: aten.unfold_backward.default(g, [2, 7], 1, 3, 2), torch.rand(2, 3, 3))
    check(lambda g: aten.unfold_backward.default(g, [7, 2], 0, 3, 1), torch.rand(5, 2, 3))


def test_dynamic_sizes() -> None:
    def function(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.index_put.default(x, [i], v, True), aten.embedding_dense_backward.default(
            v, i, x.shape[0], -1, False
        )

    others = [
        [torch.rand(n, m), torch.randint(0, n, (k,)), torch.rand(k, m)]
        for n, m, k in ((2, 3, 5), (7, 2, 4), (5, 9, 3))
    ]
    check(function, torch.rand(4, 6), positions([0, 3, 0]), torch.rand(3, 6), symbolic=True, others=others)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_put(dtype: torch.dtype, accumulate: bool) -> None:
    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return aten.put.default(x, i, s, accumulate)

    index = positions([[3, -1, 3], [0, 7, 3]])
    check(function, numbers(dtype, 4, 5).t(), index, numbers(dtype, 2, 3))
    check(function, numbers(dtype, 4, 5), index, numbers(dtype, 3, 2).t().flip(0))
    check(function, numbers(dtype, 20), index, numbers(dtype, 6))
    check(function, numbers(dtype), positions([0, -1]), numbers(dtype, 2))
    check(function, numbers(dtype, 3), torch.empty(0, dtype=torch.int64), numbers(dtype, 0))


def test_put_out_of_range_raises() -> None:
    raises(lambda x, i: aten.put.default(x, i, x[:2]), torch.ones(3), positions([0, 3]))
    raises(lambda x, i: aten.put.default(x, i, x[:2], True), torch.ones(3), positions([0, -4]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_as_strided_scatter(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return aten.as_strided_scatter.default(x, s, [2, 3], [4, 1], 5)

    check(function, numbers(dtype, 4, 5), numbers(dtype, 2, 3).flip(0))
    check(function, numbers(dtype, 4, 5).t(), numbers(dtype, 2, 3))
    check(function, numbers(dtype, 2, 3, 2, 2).to(memory_format=torch.channels_last), numbers(dtype, 2, 3))
    check(function, numbers(dtype, 12), numbers(dtype, 2, 3))
    whole = lambda x, s: aten.as_strided_scatter.default(x[1:], s, [2], [3])  # noqa: E731
    check(whole, numbers(dtype, 4, 5), numbers(dtype, 2))


@pytest.mark.parametrize("dtype", FLOATS)
def test_max_unpool(dtype: torch.dtype) -> None:
    line = positions([[[0, 7, 3], [1, 4, 11]]])
    plane = lambda x, i: aten.max_unpool2d.default(x, i, [3, 4])  # noqa: E731
    check(plane, numbers(dtype, 1, 2, 3), line)
    check(plane, numbers(dtype, 2, 3, 4, 2), torch.arange(48).reshape(2, 3, 4, 2) % 12)
    last = torch.channels_last
    at = (torch.arange(48).reshape(2, 3, 4, 2) % 12).to(memory_format=last)
    wide = numbers(dtype, 2, 3, 4, 2).to(memory_format=last)
    check(plane, wide, at, strides=False)  # PyTorch's fakes are row-major
    check(
        lambda x, i: aten.max_unpool3d.default(x, i, [2, 3, 4], [2, 2, 2], [0, 0, 0]),
        numbers(dtype, 2, 1, 2, 2),
        torch.arange(8).reshape(2, 1, 2, 2) * 3,
    )
    raises(plane, torch.ones(1, 2, 3), line + 1)


def test_max_unpool_keeps_the_last_of_duplicates() -> None:
    """Eager's threads race for them."""
    given = [torch.tensor([[[1.0, 2.0, 3.0]]]), positions([[[2, 0, 2]]])]
    graph = lowered(lambda x, i: aten.max_unpool2d.default(x, i, [1, 4]), *given)
    assert run_graph(graph, given)[0].tolist() == [[[2, 0, 3, 0]]]
