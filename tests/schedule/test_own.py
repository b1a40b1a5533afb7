"""The option ``own``: products, convolutions and attention are never ATen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt.config import from_options
from smelt.errors import SmeltError
from smelt.reporting import CompileReport
from tests.support.agreement import assert_close, compiled, sample, wide

READS = {"aten._local_scalar_dense.default"}
Function = Callable[..., Tensor]


def _own(function: Function, *inputs: Any, ulps: float = 8, **options: Any) -> CompileReport:
    """Compare, and check that ATen runs nothing."""
    torch._dynamo.reset()
    report = compiled(function, *inputs, own=True, ulps=ulps, **options)[1]
    assert not report.fallbacks and set(report.externs) <= READS
    return report


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 9, 130), (33, 65, 40), (3, 4, 0)])
def test_products(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    rows, columns, depth = sizes

    def product(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return torch.addmm(bias, x, y)

    _own(product, sample(dtype, columns), sample(dtype, rows, depth), sample(dtype, depth, columns))


@pytest.mark.parametrize("sizes", [(18, 64, 48), (20, 23, 24), (17, 30, 7), (36, 24, 40)])
def test_tiles_in_double(sizes: tuple[int, int, int]) -> None:
    """Contiguous columns and contiguous terms, whole vectors and others, also of a batch."""
    rows, columns, depth = sizes
    x, y = sample(torch.float64, 3, rows, depth), sample(torch.float64, 3, depth, columns, seed=1)
    _own(torch.bmm, x, y)
    _own(lambda x, y: torch.bmm(x, y.mT), x, y.mT.contiguous())
    _own(lambda x, y: F.linear(x, y).relu(), x[0], y[0].mT.contiguous())
    _own(lambda x, y: x.mT @ y, x[0].mT.contiguous(), y[0])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_products_of_integers(dtype: torch.dtype) -> None:
    """The sums are those of their own dtype: they wrap around."""
    x, y = sample(dtype, 5, 40) * 29, sample(dtype, 40, 9, seed=1) * 31
    torch._dynamo.reset()
    smelt.reset()
    product = torch.compile(torch.mm, backend="smelt", fullgraph=True, options={"own": True})
    assert torch.equal(product(x, y), torch.mm(x, y))
    report = smelt.reports()[-1]
    assert not report.fallbacks and not report.externs


def test_batches_vectors_and_views() -> None:
    x, y = sample(torch.float32, 3, 4, 5), sample(torch.float64, 2, 6)
    _own(lambda x, y: torch.bmm(x, y.mT), x, sample(torch.float32, 3, 7, 5))
    _own(lambda y: (y.mT[0] @ y[:, 1]) + (y @ y[0]), y)
    _own(lambda x: torch.einsum("bij,bkj->ik", x, x), x)
    _own(lambda x, y: torch.addmv(y, x[0], x[1, 0]), x, sample(torch.float32, 4))


def test_a_dynamic_number_of_rows() -> None:
    _own(lambda x, w: F.linear(x, w), sample(torch.float32, 5, 6), sample(torch.float32, 3, 6), dynamic=True)


CONVOLUTIONS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "first": lambda: (nn.Conv2d(3, 8, 7, stride=2, padding=3), (1, 3, 18, 18)),
    "one row": lambda: (nn.Conv2d(1, 1, 1), (1, 1, 1, 1)),
    "dilated": lambda: (nn.Conv2d(4, 6, 3, dilation=2, groups=2), (2, 4, 9, 8)),
    "depthwise": lambda: (nn.Conv2d(5, 5, 3, groups=5, padding=1), (1, 5, 4, 4)),
    "two each": lambda: (nn.Conv2d(3, 6, 2, groups=3), (1, 3, 4, 4)),
    "line": lambda: (nn.Conv1d(2, 3, 3, padding=1), (1, 2, 7)),
    "body": lambda: (nn.Conv3d(2, 3, 2, stride=2), (1, 2, 5, 4, 4)),
    "transposed": lambda: (nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), (1, 3, 4, 5)),
    "transposed groups": lambda: (nn.ConvTranspose1d(4, 6, 4, stride=3, groups=2, dilation=2), (2, 4, 5)),
    "transposed body": lambda: (nn.ConvTranspose3d(2, 2, 2, stride=2), (1, 2, 2, 3, 2)),
    "no batch": lambda: (nn.Conv2d(2, 3, 3), (2, 5, 5)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    torch.manual_seed(0)
    model, shape = CONVOLUTIONS[name]()
    weight, bias = model.weight.detach(), model.bias.detach()  # type: ignore[union-attr, operator]
    for dtype in (torch.float32, torch.bfloat16 if name == "first" else torch.float64):

        def function(x: Tensor, weight: Tensor, bias: Tensor, model: Any = model) -> Tensor:
            if isinstance(model, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
                call = (None, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[weight.dim() - 2]
                between = (model.stride, model.padding, model.output_padding, model.groups, model.dilation)
                return call(x, weight, bias, *between)  # type: ignore[misc]
            call = (None, F.conv1d, F.conv2d, F.conv3d)[weight.dim() - 2]
            return call(x, weight, bias, model.stride, model.padding, model.dilation, model.groups)  # type: ignore[misc]

        _own(function, sample(dtype, *shape), weight.to(dtype), bias.to(dtype))


def _gradients(function: Function, *inputs: Tensor) -> None:
    """Compare the gradients, and check that ATen runs nothing forward and backward."""

    def of(call: Function, given: list[Tensor]) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in given]
        result = call(*leaves)
        weights = sample(torch.float64, *result.shape, seed=3).to(result.dtype)
        return list(torch.autograd.grad(result, leaves, weights))

    torch._dynamo.reset()
    smelt.reset()
    fast = torch.compile(function, backend="smelt", fullgraph=True, options={"own": True, "verify": True})
    exact = of(function, [wide(x) for x in inputs])
    triples = zip(of(fast, list(inputs)), of(function, list(inputs)), exact, strict=True)
    for ours, eager, wanted in triples:
        assert_close(ours, eager, wanted)
    for report in smelt.reports():
        assert not report.fallbacks and set(report.externs) <= READS


def test_gradients_of_convolutions() -> None:
    def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.conv_transpose2d(F.conv2d(x, w, padding=1, stride=2, groups=2), v, stride=2)

    shapes = ((2, 4, 7, 6), (6, 2, 3, 3), (6, 3, 2, 2))
    for dtype in (torch.float32, torch.float64):
        _gradients(function, *(sample(dtype, *shape) for shape in shapes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(1, 40, 16), (20, 33, 5)])
def test_attention(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    queries, keys, depth = sizes
    q, k, v = (sample(dtype, 2, 4, count, depth, seed=count) for count in (queries, keys, keys))
    mask = sample(torch.bool, 2, 1, queries, keys)
    mask[..., 0, :] = False
    attention = F.scaled_dot_product_attention

    def function(q: Tensor, k: Tensor, v: Tensor, shown: Tensor) -> Tensor:
        return torch.stack(
            [
                attention(q, k, v),
                attention(q, k, v, attn_mask=mask),
                attention(q, k, v, attn_mask=shown, scale=0.3),
                attention(q, k, v, is_causal=True),
                attention(q, k[:, :2], v[:, :2], enable_gqa=True),
            ]
        )

    _own(function, q, k, v, sample(dtype, queries, keys, seed=5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_of_attention(dtype: torch.dtype) -> None:
    q, k, v = (sample(dtype, 1, 4, count, 8, seed=count) for count in (6, 9, 9))
    mask = sample(torch.bool, 6, 9)
    mask[:, 0] = True
    attention = F.scaled_dot_product_attention

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, attn_mask=mask) + attention(q, k, v, is_causal=True)

    _gradients(function, q, k, v)


def test_dropout_of_attention_in_double() -> None:
    """The forward and the backward drop the same probabilities: gradients are finite differences."""
    torch.manual_seed(0)
    q, k, v = (sample(torch.float64, 1, 1, 5, 4, seed=count) for count in range(3))

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)

    torch._dynamo.reset()
    smelt.reset()
    fast = torch.compile(function, backend="smelt", options={"own": True})

    def seeded(*given: Tensor) -> Tensor:
        torch.manual_seed(7)
        return fast(*given)

    torch.autograd.gradcheck(seeded, [x.requires_grad_() for x in (q, k, v)])
    for report in smelt.reports():
        assert set(report.externs) <= {"aten.randint.low"} and not report.fallbacks


def test_what_calls_aten_is_refused() -> None:
    for other in ({"mode": "max"}, {"contractions": False}, {"fallback_random": True}):
        with pytest.raises(SmeltError, match="SM0102: option 'own' with"):
            from_options({"own": True, **other})


class Statistics(nn.Module):
    """Overloads that ``torch.export`` keeps, and an assertion."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        torch._assert_async((x < 9).all(), "too large")
        variance, mean = torch.var_mean(x, unbiased=False)
        return x.var(unbiased=False), variance, mean, *torch.var_mean(x, 0, unbiased=False)


def test_statistics_of_exported_programs() -> None:
    x = sample(torch.float32, 5, 7)
    smelt.reset()
    exported = torch.export.export(Statistics(), (x,))
    compiled = smelt.compile(exported, own=True)
    for ours, eager in zip(compiled(x), Statistics()(x), strict=True):
        torch.testing.assert_close(ours, eager)
    report = smelt.reports()[-1]
    assert not report.fallbacks and set(report.externs) <= READS
    with pytest.raises(RuntimeError, match="too large"):
        compiled(x + 10)
