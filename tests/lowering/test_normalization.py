"""Layer, group and batch normalisation."""

import pytest
import torch

from tests.lowering.harness import FLOATS, check
from tests.support.agreement import sample

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(dtype: torch.dtype, affine: bool) -> None:
    x = sample(dtype, 4, 6, 8)
    weight, bias = (sample(dtype, 6, 8, seed=1), sample(dtype, 6, 8, seed=2)) if affine else (None, None)
    check(
        lambda *args: aten.native_layer_norm.default(args[0], [6, 8], *args[1:], 1e-5),
        x,
        weight,
        bias,
        slack=8,
    )


def test_layer_norm_of_bfloat16_with_float32_weights() -> None:
    x, weight, bias = sample(torch.bfloat16, 4, 8), sample(torch.float32, 8), sample(torch.float32, 8, seed=1)
    # fake tensors give the statistics in bfloat16, ATen's kernel in float32: only the result is compared
    check(
        lambda *args: aten.native_layer_norm.default(args[0], [8], *args[1:], 1e-5)[0],
        x,
        weight,
        bias,
        slack=8,
    )


def test_layer_norm_of_equal_numbers() -> None:
    check(lambda x: aten.native_layer_norm.default(x, [8], None, None, 1e-5)[0], torch.full((2, 8), 3.0))


def test_no_bias_gives_no_negative_zero() -> None:
    x, weight = torch.tensor([[-8.0], [3.0]]), torch.tensor([-2.0])
    check(lambda x, w: aten.native_layer_norm.default(x, [1], w, None, 1e-5)[0], x, weight)
    check(lambda x, w: aten.native_group_norm.default(x, w, None, 2, 1, 1, 1, 1e-5)[0], x, weight)
    mean, var = torch.tensor([3.0]), torch.tensor([1.0])
    check(
        lambda x, w, m, v: aten._native_batch_norm_legit_no_training.default(x, w, None, m, v, 0.1, 1e-5)[0],
        *(x, weight, mean, var),
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(dtype: torch.dtype, groups: int) -> None:
    x, weight, bias = sample(dtype, 3, 6, 4, 5), sample(dtype, 6, seed=1), sample(dtype, 6, seed=2)
    check(
        lambda x, w, b: aten.native_group_norm.default(x, w, b, 3, 6, 20, groups, 1e-5),
        x,
        weight,
        bias,
        slack=8,
    )
    check(lambda x: aten.native_group_norm.default(x, None, None, 3, 6, 20, groups, 1e-5), x, slack=8)


def batch_inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    return [
        sample(dtype, 4, 3, 5, 5),
        sample(dtype, 3, seed=1),
        sample(dtype, 3, seed=2),
        sample(dtype, 3, seed=3),
        sample(dtype, 3, seed=4).abs() + 0.5,
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_norm_training(dtype: torch.dtype) -> None:
    check(
        lambda *args: aten._native_batch_norm_legit_functional.default(*args, True, 0.1, 1e-5),
        *batch_inputs(dtype),
        slack=8,
    )


def test_batch_norm_training_of_bfloat16_with_float32_statistics() -> None:
    x, *rest = batch_inputs(torch.float32)
    check(
        lambda *args: aten._native_batch_norm_legit_functional.default(*args, True, 0.1, 1e-5)[::3],
        x.bfloat16(),
        *rest,
        slack=8,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_batch_norm_inference(dtype: torch.dtype) -> None:
    check(
        lambda *args: aten._native_batch_norm_legit_no_training.default(*args, 0.1, 1e-5),
        *batch_inputs(dtype),
        slack=4,
    )
    check(
        lambda *args: aten._native_batch_norm_legit_functional.default(*args, False, 0.1, 1e-5)[0],
        *batch_inputs(dtype),
        slack=4,
    )


def test_batch_norm_with_update_and_without_statistics() -> None:
    inputs = batch_inputs(torch.float32)
    check(lambda *args: aten._batch_norm_with_update_functional.default(*args, 0.1, 1e-5), *inputs, slack=8)
    check(
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5), inputs[0], slack=8
    )


def test_batch_norm_keeps_channels_last() -> None:
    x, *rest = batch_inputs(torch.float32)
    check(
        lambda *args: aten._native_batch_norm_legit_functional.default(*args, True, 0.1, 1e-5)[0],
        x.to(memory_format=torch.channels_last),
        *rest,
        slack=8,
    )


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_backward(training: bool) -> None:
    x, weight, _, mean, var = batch_inputs(torch.float32)
    grad = sample(torch.float32, 4, 3, 5, 5, seed=9)
    saved_mean = x.mean([0, 2, 3])
    saved_rstd = (x.var([0, 2, 3], unbiased=False) + 1e-5).rsqrt()

    def function(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.native_batch_norm_backward.default(*args, training, 1e-5, [True, True, True])

    check(function, grad, x, weight, mean, var, saved_mean, saved_rstd, slack=16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_backward(dtype: torch.dtype, affine: bool) -> None:
    x, grad = sample(dtype, 4, 6, 8), sample(dtype, 4, 6, 8, seed=3)
    weight, bias = (sample(dtype, 8, seed=1), sample(dtype, 8, seed=2)) if affine else (None, None)
    _, mean, rstd = aten.native_layer_norm.default(x, [8], weight, bias, 1e-5)
    check(
        lambda g, x, m, r, w, b: aten.native_layer_norm_backward.default(
            g, x, [8], m, r, w, b, [True, affine, affine]
        ),
        *(grad, x, mean, rstd, weight, bias),
        slack=16,
    )


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_backward(groups: int, affine: bool) -> None:
    x, grad = sample(torch.float32, 3, 6, 4, 5), sample(torch.float32, 3, 6, 4, 5, seed=3)
    weight = sample(torch.float32, 6, seed=1) if affine else None
    _, mean, rstd = aten.native_group_norm.default(x, weight, None, 3, 6, 20, groups, 1e-5)
    check(
        lambda g, x, m, r, w: aten.native_group_norm_backward.default(
            g, x, m, r, w, 3, 6, 20, groups, [True, affine, affine]
        ),
        *(grad, x, mean, rstd, weight),
        slack=16,
    )


def test_dynamic_batch() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            aten.native_layer_norm.default(x, [x.shape[1]], weight, None, 1e-5)[0],
            aten.native_group_norm.default(x, None, None, x.shape[0], x.shape[1], 1, 1, 1e-5)[0],
        )

    others = [[sample(torch.float32, n, m), sample(torch.float32, m)] for n, m in ((2, 3), (7, 5))]
    check(
        function, sample(torch.float32, 4, 6), sample(torch.float32, 6), symbolic=True, others=others, slack=8
    )
