"""Combining at positions that tensors hold: duplicates, every reduction, and what is there before."""

from typing import Any

import pytest
import torch

from smelt.loops.interpreter import run_graph
from tests.lowering.harness import DTYPES, FLOATS, INTEGERS, check
from tests.lowering.test_indexing import numbers, positions, raises

aten = torch.ops.aten

REDUCTIONS = ["sum", "prod", "mean", "amax", "amin"]
NUMBERS = [*FLOATS, *INTEGERS]


def small(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Few different numbers, small enough for products."""
    made = numbers(torch.int64, *shape) * 7 % 5 - (0 if dtype in (torch.bool, torch.uint8) else 2)
    return made.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_add(dtype: torch.dtype) -> None:
    index, source = positions([[0, 1, 1], [1, 1, 0]]), numbers(dtype, 2, 3)

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            aten.scatter_add.default(x, 1, i, s),
            aten.scatter.reduce(x, 0, i, s, reduce="add"),
            aten.scatter.reduce(x, 0, i, s, reduce="multiply"),
            aten.scatter.value_reduce(x, 0, i, 3, reduce="add"),
            aten.scatter.value_reduce(x, 0, i, 3, reduce="multiply"),
        )

    check(function, small(dtype, 2, 3), index, source)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_reduce(dtype: torch.dtype, reduce: str, include_self: bool) -> None:
    if reduce == "mean" and dtype is torch.bool:
        pytest.skip("eager has no mean of booleans")
    index, source = positions([[0, 2, 2, 0], [1, 1, 2, 2], [2, 1, 2, 0]]), small(dtype, 3, 4)

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            aten.scatter_reduce.two(x, dim, i, s, reduce, include_self=include_self) for dim in (0, -1)
        )

    check(function, small(dtype, 4, 5).flip(0), index, source, slack=2)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_index_reduce(dtype: torch.dtype, reduce: str, include_self: bool) -> None:
    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return aten.index_reduce.default(x, 1, i, s, reduce, include_self=include_self)

    check(function, small(dtype, 3, 4), positions([3, 0, 3]), small(dtype, 3, 3).flip(0), slack=2)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_what_is_not_a_number_spreads(reduce: str) -> None:
    source = torch.tensor([float("nan"), 1.0, float("inf"), -float("inf"), -0.0])

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return aten.scatter_reduce.two(x, 0, i, s, reduce)

    check(function, torch.tensor([1.0, -1.0, 0.0]), positions([0, 0, 1, 1, 2]), source, zeros=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_floats_are_combined_in_float32(dtype: torch.dtype) -> None:
    zeros, i, ones = torch.zeros(2, dtype=dtype), positions([0] * 5000), torch.ones(5000, dtype=dtype)
    graph = check(lambda x, i, s: aten.scatter_add.default(x, 0, i, s), zeros, i, ones)
    assert run_graph(graph, [zeros, i, ones])[0][0] == torch.tensor(5000.0, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_add(dtype: torch.dtype) -> None:
    x, i, source = numbers(dtype, 4, 5), positions([1, 1, 0]), numbers(dtype, 3, 5)
    check(lambda x, i, s: aten.index_add.default(x, 0, i, s), x, i, source)
    alpha = True if dtype is torch.bool else 3
    check(lambda x, i, s: aten.index_add.default(x, -2, i, s, alpha=alpha), x, i, source)


def test_index_add_of_scalars() -> None:
    scalar = torch.tensor(2.0)
    check(lambda x, i, s: aten.index_add.default(x, 0, i, s), scalar, positions(0), scalar)
    check(lambda x, i, s: aten.index_add.default(x, 0, i, s), torch.ones(3), positions(1), torch.ones(1))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_scatter_of_scalars_and_of_nothing(reduce: str) -> None:
    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            aten.scatter_reduce.two(x, 0, i, s, reduce, include_self=include) for include in (True, False)
        )

    check(function, torch.tensor(1.0), positions(0), torch.tensor(2.0))
    check(function, torch.ones(3), positions(2), torch.tensor(2.0))
    check(function, torch.ones(3), torch.empty(0, dtype=torch.int64), torch.ones(0))
    check(function, torch.ones(0, 3), torch.empty(0, 3, dtype=torch.int64), torch.ones(0, 3))


def test_out_of_range_raises_what_eager_raises() -> None:
    x, i = torch.ones(3, 4), positions([[0, 4]])
    raises(lambda x, i: aten.scatter_add.default(x, 1, i, x), x, i)
    raises(lambda x, i: aten.scatter_reduce.two(x, 1, i, x, "amax", include_self=False), x, -i)
    raises(lambda x, i: aten.scatter.value(x, 1, i, 1.0), x, i)
    raises(lambda x, i: aten.index_add.default(x, 1, i, x[:, :2]), x, i[0])
    raises(lambda x, i: aten.index_add.default(x, 0, i, x[:2]), x[0], i[0])
    raises(lambda x, i: aten.index_reduce.default(x, 1, i, x[:, :2], "prod"), x, i[0])


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_dynamic_sizes(reduce: str) -> None:
    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return aten.scatter_reduce.two(x, 0, i, s, reduce, include_self=False)

    def case(n: int, m: int, k: int) -> list[Any]:
        return [torch.rand(n, m), torch.randint(0, n, (k, m)), torch.rand(k, m)]

    torch.manual_seed(0)
    others = [case(2, 3, 5), case(7, 2, 4), case(5, 9, 3)]
    check(function, *case(4, 6, 3), symbolic=True, others=others, slack=2)
