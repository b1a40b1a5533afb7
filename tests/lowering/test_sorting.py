"""Order along a dimension: sorts, selections, medians, modes, searches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from smelt.loops.ir import Sort
from tests.lowering.harness import DTYPES, FLOATS, check

aten = torch.ops.aten
SHAPES = [(7,), (3, 40), (2, 5, 9), (4, 0), (0, 4), (1, 1)]


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Few distinct values, so that there are ties; NaN, infinities and both zeros among floats."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(-6, 7, shape, generator=draw).to(dtype)
    if dtype.is_floating_point and x.numel() > 6:
        x.view(-1)[:6] = torch.tensor([torch.nan, -0.0, 0.0, torch.inf, -torch.inf, torch.nan]).to(dtype)
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, -1])
def test_stable_sort(shape: tuple[int, ...], dtype: torch.dtype, descending: bool, dim: int) -> None:
    graph = check(
        lambda x: aten.sort.stable(x, stable=True, dim=dim, descending=descending), values(shape, dtype)
    )
    assert any(isinstance(node.body, Sort) for node in graph.nodes) or shape == (0, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.sort.stable(x, stable=True),
        lambda x: aten.topk(x, 1)[0],
        lambda x: aten.kthvalue(x, 1),
        lambda x: aten.median.dim(x, 0),
        aten.median.default,
        lambda x: aten.mode(x),
    ],
)
def test_scalars(function: Callable[..., object]) -> None:
    check(function, torch.tensor(3.5))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not torch.bool])
@pytest.mark.parametrize("largest", [False, True])
def test_topk(dtype: torch.dtype, largest: bool) -> None:
    check(lambda x: aten.topk(x, 3, -1, largest)[0], values((4, 30), dtype))
    check(lambda x: aten.topk(x, 2, 0, largest), torch.randperm(60).reshape(20, 3).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_medians_and_nan(dtype: torch.dtype, dim: int, keepdim: bool) -> None:
    x = torch.randperm(63).to(dtype).reshape(7, 9)
    x[2, 3] = x[2, 5] = x[4, 8] = torch.nan
    check(lambda x: aten.median.dim(x, dim, keepdim), x)
    check(lambda x: aten.nanmedian.dim(x, dim, keepdim)[0], x)
    check(aten.median.default, x)
    check(aten.nanmedian.default, x)
    check(aten.nanmedian.default, torch.full((3,), torch.nan, dtype=dtype))
    check(aten.median.default, torch.empty(0, dtype=dtype))


def test_kthvalue_and_mode() -> None:
    x = torch.randperm(60).reshape(3, 20)
    check(lambda x: aten.kthvalue(x, 5), x)
    check(lambda x: aten.kthvalue(x, 2, 0, True), x)
    y = torch.tensor([[3, 1, 3, 1, 2], [5, 5, 4, 4, 4], [7, 6, 5, 4, 3]])
    check(lambda x: aten.mode(x)[0], y)
    check(lambda x: aten.mode(x, 0, True)[0], y)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not torch.bool])
def test_searches(dtype: torch.dtype, right: bool) -> None:
    sequence = torch.tensor([-3, -1, -1, 0, 2, 2, 2, 5]).to(dtype)
    wanted = torch.arange(-4, 8).to(dtype).reshape(3, 4)
    check(lambda s, v: aten.searchsorted(s, v, right=right), sequence, wanted)
    check(lambda s, v: aten.bucketize(v, s, right=right, out_int32=True), sequence, wanted)
    check(lambda s: aten.searchsorted.Scalar(s, 2, right=right), sequence)
    rows = torch.stack((sequence, sequence + 2, sequence - 1 if dtype is not torch.uint8 else sequence))
    check(lambda s, v: aten.searchsorted(s, v, right=right), rows, wanted)
    order = torch.arange(7, -1, -1)
    check(lambda s, v, o: aten.searchsorted(s, v, right=right, sorter=o), sequence.flip(0), wanted, order)


def test_nan_is_searched_past_the_end() -> None:
    sequence = torch.tensor([0.0, 1.0, torch.inf, torch.nan])
    check(aten.searchsorted.Tensor, sequence, torch.tensor([torch.nan, torch.inf, -torch.inf, 0.5]))


def test_symbolic_lengths() -> None:
    x, others = (
        values((4, 9), torch.float32),
        [(values((n, m), torch.float32),) for n, m in ((2, 3), (6, 31))],
    )
    check(lambda x: aten.sort.stable(x, stable=True, dim=1), x, symbolic=True, others=others)
    check(lambda x: aten.topk(x, 2)[0], x, symbolic=True, others=others)
    sequence, wanted = torch.arange(10.0), torch.randn(5) * 10
    check(aten.searchsorted.Tensor, sequence, wanted, symbolic=True, others=[(torch.arange(33.0), wanted)])
