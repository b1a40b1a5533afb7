"""The incomplete gamma functions: against mpmath in every region, against eager at the ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

from smelt.loops.interpreter import run_graph
from tests.lowering.harness import FLOATS, check, lowered

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")
BOTH = [aten.igamma.default, aten.igammac.default]
SHAPES = [0.01, 0.5, 1.0, 2.5, 9.99, 10.0, 21.0, 99.0, 100.0, 101.0, 150.0, 310.0, 1000.0, 1e4]
RATIOS = [0.2, 0.5, 0.69, 0.71, 0.95, 1.0, 1.05, 1.29, 1.31, 2.0]
PLACES = [1e-8, 0.1, 0.5, 0.7, 1.05, 1.1, 1.11, 2.0, 20.0, 150.0]
ENDS = [0.0, -0.0, -1.0, 1e-300, 0.3, 1.0, 5.0, 150.0, 1e10, 1e300, INF, NAN]


def lower_part(a: float, x: float) -> Any:
    """P by its series, which has positive terms only, to 340 digits."""
    order, place = mpmath.mpf(a), mpmath.mpf(x)
    term = total = mpmath.mpf(1)
    n = 0
    while place > order + n or term > total * mpmath.mpf("1e-335"):
        n += 1
        term *= place / (order + n)
        total += term
    return mpmath.exp(order * mpmath.log(place) - place - mpmath.loggamma(order + 1)) * total


@pytest.mark.parametrize("a", SHAPES)
def test_float64_against_mpmath(a: float) -> None:
    places = [*(a * ratio for ratio in RATIOS), *(x for x in PLACES if x > a / 200)]
    x = torch.tensor(places, dtype=torch.float64)
    shape = torch.full_like(x, a)
    results = [run_graph(lowered(function, shape, x), [shape, x])[0].tolist() for function in BOTH]
    with mpmath.workdps(340):
        for at, below, above in zip(places, *results):
            exact = lower_part(a, at)
            for found, wanted in ((below, exact), (above, 1 - exact)):
                if wanted > 1e-290:
                    allowed = 2e-14 - 3e-16 * mpmath.log(wanted)
                    assert abs(found - wanted) <= allowed * wanted, at


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", BOTH)
def test_the_ends_are_eagers(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    a, x = torch.meshgrid(torch.tensor(ENDS).to(dtype), torch.tensor(ENDS).to(dtype), indexing="ij")
    (got,) = run_graph(lowered(function, a, x), [a, x])
    torch.testing.assert_close(got, function(a, x), equal_nan=True, rtol=2e-6, atol=1e-38)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("function", BOTH)
def test_dtypes_and_shapes(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, x = (20 * torch.rand(5, 4, dtype=torch.float64).to(dtype) for _ in range(2))
    check(function, a, x, slack=64.0)
    check(function, a.t(), x[:1, 0], slack=64.0)
    check(function, a[0, 0], x[0, 0], slack=64.0)
    check(function, a[:0], x[:0])
    more = [20 * torch.rand(7, 4, dtype=torch.float64).to(dtype) for _ in range(2)]
    check(function, a, x, symbolic=True, others=[more], slack=64.0)
