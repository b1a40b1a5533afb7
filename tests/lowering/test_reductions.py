"""Sums, products, extremes and their positions, any and all."""

import math

import pytest
import torch

from tests.lowering.harness import DTYPES, FLOATS, INTEGERS, check
from tests.support.agreement import sample

aten = torch.ops.aten
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [None, [0], [-1, 0], [1], []])
@pytest.mark.parametrize("keepdim", [False, True])
def test_sum(dtype: torch.dtype, dim: list[int] | None, keepdim: bool) -> None:
    check(lambda x: aten.sum.dim_IntList(x, dim, keepdim), sample(dtype, 3, 4, 5), slack=4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_prod(dtype: torch.dtype) -> None:
    x = sample(dtype, 3, 4)
    check(lambda x: (aten.prod.dim_int(x, -1, True), aten.prod.default(x)), x, slack=4)


@pytest.mark.parametrize("dtype", FLOATS)
def test_mean_rounds_once(dtype: torch.dtype) -> None:
    x = sample(dtype, 6, 64) * 30
    check(lambda x: (aten.mean.dim(x, [1]), aten.mean.dim(x, [0], True), aten.mean.default(x)), x, slack=4)


def test_mean_and_sum_into_another_dtype() -> None:
    check(
        lambda x: (aten.sum.default(x, dtype=torch.float64), aten.sum.default(x, dtype=torch.bfloat16)),
        sample(torch.float32, 9),
    )
    check(lambda x: aten.mean.default(x, dtype=torch.float32), sample(torch.int32, 9))
    check(lambda x: aten.sum.dim_IntList(x, [0], dtype=torch.int8), sample(torch.int64, 90, 2) * 100)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keepdim", [False, True])
def test_extremes_with_positions(dtype: torch.dtype, keepdim: bool) -> None:
    x = sample(dtype, 4, 6)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *aten.max.dim(x, 1, keepdim),
            *aten.min.dim(x, 0, keepdim),
            aten.amax.default(x, [0], keepdim),
            aten.amin.default(x, [-1], keepdim),
            aten.max.default(x),
            aten.min.default(x),
        )

    check(function, x)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_argmax_and_argmin(dtype: torch.dtype) -> None:
    x = sample(dtype, 3, 1, 7)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            aten.argmax.default(x, 2),
            aten.argmin.default(x, 0, True),
            aten.argmax.default(x, 1),
            aten.argmax.default(x),
            aten.argmin.default(x, None, True),
        )

    check(function, x)
    check(lambda x: aten.argmax.default(x), torch.zeros(5, dtype=dtype))


def test_nan_wins_and_its_first_position_is_found() -> None:
    x = torch.tensor([[1.0, NAN, INF, NAN], [-INF, -INF, -INF, -INF], [INF, 3.0, INF, 2.0]])
    check(
        lambda x: (*aten.max.dim(x, 1), *aten.min.dim(x, 1), aten.amax.default(x), aten.argmin.default(x)), x
    )
    check(lambda x: aten.aminmax.default(x, dim=1), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_and_all(dtype: torch.dtype) -> None:
    x = sample(dtype, 3, 4)
    x[1] = 0

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            aten.any.default(x),
            aten.any.dim(x, 1),
            aten.any.dims(x, [0, 1], True),
            aten.all.default(x),
            aten.all.dim(x, 0, True),
            aten.all.dims(x, [1]),
        )

    check(function, x)


def test_any_of_nan_is_true() -> None:
    check(lambda x: (aten.any.default(x), aten.all.default(x)), torch.tensor([NAN, 0.0]))


def test_zero_dimensional_and_size_one() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            aten.sum.default(x),
            aten.sum.dim_IntList(x, [0]),
            aten.amax.default(x, [-1], True),
            *aten.max.dim(x, 0),
            aten.argmax.default(x, 0),
            aten.mean.default(x),
        )

    check(function, torch.tensor(3.5))
    check(function, torch.tensor([3.5]))


def test_empty() -> None:
    check(
        lambda x: (aten.sum.default(x), aten.prod.default(x), aten.any.default(x), aten.all.default(x)),
        torch.ones(0, 3),
    )
    check(
        lambda x: (aten.sum.dim_IntList(x, [0]), aten.mean.dim(x, [0]), aten.amax.default(x, [1])),
        torch.ones(0, 3),
    )


def test_empty_maximum_raises_as_eager_does() -> None:
    with pytest.raises((RuntimeError, IndexError)):
        check(lambda x: aten.amax.default(x, [0]), torch.ones(0, 3))


def test_strided_and_expanded_inputs() -> None:
    x = sample(torch.float32, 4, 6)
    check(lambda x: aten.sum.dim_IntList(x, [1]), x.t(), slack=4)
    check(lambda x: aten.sum.dim_IntList(x, [0, 2]), x[:, None, :].expand(4, 5, 6), slack=4)
    check(lambda x: aten.amax.default(x, [1]), x[::2, 1::3])


def test_channels_last_sum_keeps_eagers_strides() -> None:
    x = sample(torch.float32, 2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: (aten.sum.dim_IntList(x, [2]), aten.mean.dim(x, [3], True)), x, slack=4)


def test_one_lowering_for_all_sizes() -> None:
    others = [[sample(torch.float32, n, m)] for n, m in ((2, 3), (5, 7), (3, 40))]

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.mean.dim(x, [1]), aten.sum.default(x), *aten.max.dim(x, 0, True)

    check(function, sample(torch.float32, 4, 6), symbolic=True, others=others, slack=4)


def test_count_nonzero_and_nansum() -> None:
    x = torch.tensor([[0.0, NAN, 2.0], [-0.0, 1.0, 0.0]])
    check(
        lambda x: (
            aten.count_nonzero.dim_IntList(x, [1]),
            aten.nansum.default(x),
            aten.nansum.default(x, [0]),
        ),
        x,
    )


def test_sum_into_booleans_goes_to_aten() -> None:
    check(lambda x: aten.sum.default(x, dtype=torch.bool), torch.ones(3), fallbacks=["aten.sum.default"])
