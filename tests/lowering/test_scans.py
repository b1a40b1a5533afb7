"""Running sums, products, extremes and log-sums against eager and float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.lowering.harness import DTYPES, FLOATS, check, lowered

NAN, INF = float("nan"), float("inf")


def given(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return (torch.randn(shape) * 2).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_and_products(dtype: torch.dtype) -> None:
    check(
        lambda x: (x.cumsum(0), x.cumsum(-1), x.cumprod(1), x.cumprod(-3)),
        given(dtype, 4, 3, 9),
        slack=8,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extremes_and_their_positions(dtype: torch.dtype) -> None:
    check(lambda x: (*x.cummax(0), *x.cummin(1), *x.cummax(-1)), given(dtype, 4, 9, 3))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_logarithms_of_sums(dtype: torch.dtype) -> None:
    check(lambda x: (x.logcumsumexp(0), x.logcumsumexp(-1)), given(dtype, 5, 9) * 8, slack=8)


ALL: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "cumsum": lambda x, dim: x.cumsum(dim),
    "cumprod": lambda x, dim: x.cumprod(dim),
    "cummax": lambda x, dim: (*x.cummax(dim),),
    "cummin": lambda x, dim: (*x.cummin(dim),),
    "logcumsumexp": lambda x, dim: x.logcumsumexp(dim),
}


@pytest.mark.parametrize("name", list(ALL))
def test_shapes_and_layouts(name: str) -> None:
    call = ALL[name]
    check(lambda x: call(x, 0), torch.tensor(3.0))
    check(lambda x: call(x, -1), torch.tensor(NAN))
    check(lambda x: call(x, 1), torch.randn(3, 1))
    check(lambda x: call(x, 0), torch.randn(0, 3))
    check(lambda x: call(x, 1), torch.randn(3, 0))
    check(lambda x: call(x, 0), given(torch.float32, 6, 5).t(), slack=8)
    check(
        lambda x: call(x, 1), given(torch.float32, 2, 6, 3, 4).to(memory_format=torch.channels_last), slack=8
    )
    check(lambda x: call(x, 1), torch.randn(3, 1).expand(3, 5), slack=8)


@pytest.mark.parametrize("name", list(ALL))
def test_special_values_are_where_eager_has_them(name: str) -> None:
    call = ALL[name]
    rows = [
        [1.0, NAN, 3.0, NAN, 2.0],
        [INF, -INF, 1.0, INF, 0.0],
        [-INF, -INF, 2.0, -INF, INF],
        [INF, INF, 0.0, 1.0, NAN],
        [0.0, -0.0, 0.0, -0.0, 0.0],
        [-0.0, -0.0, 0.0, 5.0, 5.0],
    ]
    check(lambda x: call(x, 1), torch.tensor(rows))
    check(lambda x: call(x, 1), torch.tensor(rows).bfloat16())


@pytest.mark.parametrize("name", list(ALL))
def test_one_graph_for_every_size(name: str) -> None:
    call = ALL[name]
    sizes = [(3, 7), (1, 4), (5, 2)]
    first, *others = [(torch.randn(size),) for size in sizes]
    check(lambda x: (call(x, 1), call(x, 0))[0], *first, symbolic=True, others=others, slack=8)


def test_the_sum_is_rounded_from_float64_and_bfloat16_from_float32() -> None:
    """As ATen: otherwise the last sums of a long line have lost many bits."""
    check(lambda x: x.cumsum(0), torch.randn(3000))
    check(lambda x: x.cumsum(0), torch.randn(3000).bfloat16())
    check(lambda x: x.logcumsumexp(0), torch.randn(3000))


def test_dtype_is_converted_to_before_the_sum() -> None:
    x = torch.full((5,), 2**24 + 1, dtype=torch.float64)
    check(lambda x: x.cumsum(0, dtype=torch.float32), x)
    check(
        lambda x: (x.cumsum(0, dtype=torch.int32), x.cumprod(0, dtype=torch.float64)), given(torch.int64, 9)
    )
    check(lambda x: x.cumsum(0, dtype=torch.int64), given(torch.float32, 9))
    check(lambda x: x.cumsum(0, dtype=torch.uint8), torch.full((9,), 100))


def test_a_sum_of_booleans_as_booleans_is_left_to_aten_which_refuses_it() -> None:
    graph = lowered(lambda x: x.cumsum(0, dtype=torch.bool), torch.ones(3))
    assert [node.body.reason for node in graph.nodes] == ["a running sum or product of booleans"]


@pytest.mark.parametrize("name", list(ALL))
def test_gradients(name: str) -> None:
    call = ALL[name]

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        result = call(x, 1)
        value = result[0] if isinstance(result, tuple) else result
        return torch.autograd.grad((value * value).sum(), x)[0]

    if name != "cumprod":  # its gradient reads whether there are zeros: the pipeline's tests have it
        check(gradient, given(torch.float32, 4, 6), slack=16)
