"""Variance, norms, softmax."""

import math

import pytest
import torch

from tests.lowering.harness import FLOATS, check
from tests.support.agreement import sample

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("correction", [None, 0, 1, 2, 0.5])
def test_variance(dtype: torch.dtype, correction: float | None) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            aten.var.correction(x, [1], correction=correction),
            aten.std.correction(x, [0, 1], correction=correction, keepdim=True),
            *aten.var_mean.correction(x, [0], correction=correction, keepdim=True),
            *aten.std_mean.correction(x, None, correction=correction),
        )

    check(function, sample(dtype, 5, 9), slack=4)


def test_variance_of_one_element_and_with_no_freedom() -> None:
    x = sample(torch.float32, 4, 1)
    check(lambda x: (aten.var.correction(x, [1], correction=1), aten.var.correction(x, [1], correction=0)), x)
    check(lambda x: aten.var.correction(x, [0], correction=9), x)


def test_mean_and_variance_of_nothing() -> None:
    check(lambda x: aten.var_mean.correction(x, [0]), torch.ones(0, 3))


def test_variance_far_from_zero() -> None:
    check(lambda x: aten.var.correction(x, [1]), sample(torch.float32, 4, 100) + 4096, slack=8)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, math.inf, -math.inf])
def test_vector_norm(dtype: torch.dtype, order: float) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.linalg_vector_norm.default(x, order, [1]), aten.linalg_vector_norm.default(
            x, order, None, True
        )

    check(function, sample(dtype, 4, 7), slack=4)


def test_vector_norm_in_another_dtype_and_with_nan() -> None:
    x = sample(torch.bfloat16, 4, 7)
    check(lambda x: aten.linalg_vector_norm.default(x, 2, [1], dtype=torch.float32), x, slack=4)
    x = torch.tensor([[1.0, math.nan], [math.inf, 1.0]])
    check(
        lambda x: (
            aten.linalg_vector_norm.default(x, 2, [1]),
            aten.linalg_vector_norm.default(x, math.inf, [1]),
        ),
        x,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [0, -1])
def test_softmax_and_log_softmax(dtype: torch.dtype, dim: int) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return aten._softmax.default(x, dim, False), aten._log_softmax.default(x, dim, False)

    check(function, sample(dtype, 6, 11) * 5, slack=2)


def test_softmax_of_masked_and_of_infinite_rows() -> None:
    inf = math.inf
    x = torch.tensor([[-inf, 1.0, 2.0], [-inf, -inf, -inf], [inf, 1.0, 2.0], [math.nan, 0.0, 1.0]])
    check(lambda x: (aten._softmax.default(x, 1, False), aten._log_softmax.default(x, 1, False)), x)


def test_softmax_of_large_numbers_and_of_one() -> None:
    check(
        lambda x: aten._softmax.default(x, 1, False), torch.tensor([[1e38, -1e38, 1e38], [88.0, 89.0, 710.0]])
    )
    check(lambda x: aten._softmax.default(x, 1, False), sample(torch.float32, 3, 1))
    check(lambda x: aten._softmax.default(x, 0, False), torch.tensor(2.0))
    check(lambda x: aten._softmax.default(x, 1, False), torch.ones(0, 3))


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_backwards(dtype: torch.dtype) -> None:
    grad, x = sample(dtype, 5, 7), sample(dtype, 5, 7).flip(0)

    def function(grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            aten._softmax_backward_data.default(grad, x, 1, dtype if x.dtype == dtype else x.dtype),
            aten._log_softmax_backward_data.default(grad, x, 0, dtype if x.dtype == dtype else x.dtype),
        )

    check(function, grad, x, slack=8)


def test_logsumexp() -> None:
    inf = math.inf
    x = torch.tensor([[-inf, 1.0, 2.0], [-inf, -inf, -inf], [inf, 1.0, 2.0]])
    check(lambda x: (aten.logsumexp.default(x, [1]), aten.logsumexp.default(x, [0], True)), x)
    check(lambda x: aten.logsumexp.default(x, [0, 2]), sample(torch.float32, 3, 4, 5), slack=2)


def test_dynamic_sizes() -> None:
    others = [[sample(torch.float32, n, m)] for n, m in ((2, 3), (9, 4))]

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.var.correction(x, [1]), aten._softmax.default(x, 1, False)

    check(function, sample(torch.float32, 4, 6), symbolic=True, others=others, slack=4)
