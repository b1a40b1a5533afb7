"""Zeta: against mpmath, and against eager where it has poles, overflows or is undefined."""

from __future__ import annotations

import mpmath
import pytest
import torch

from smelt.loops.interpreter import run_graph
from tests.lowering.harness import check, lowered

zeta = torch.ops.aten.special_zeta.default
INF, NAN = float("inf"), float("nan")
ORDERS = [1.0, 0.5, -3.0, 2.0, 2.5, 3.0, 30.0, 300.0, 701.0, 1e4, 10001.0, 1e20, INF, -INF, NAN]
PLACES = [0.0, -0.0, -1.0, -1.25, -10.25, -1e-3, 1e-3, 0.5, 2.0, 9.0, 1e8, 1e300, 1e-300, INF, -INF, NAN]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_odd_places_are_eagers(dtype: torch.dtype) -> None:
    x, q = torch.meshgrid(torch.tensor(ORDERS).to(dtype), torch.tensor(PLACES).to(dtype), indexing="ij")
    (got,) = run_graph(lowered(zeta, x, q), [x, q])
    expected = zeta(x, q)
    assert torch.equal(got.isnan(), expected.isnan())
    infinite = expected.isinf() | got.isinf()
    assert torch.equal(got[infinite], expected[infinite])
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=2e-6, atol=0)


@pytest.mark.parametrize("x", [1.0625, 2.0, 2.5, 7.0, 41.5])
def test_float64_against_mpmath(x: float) -> None:
    q = torch.linspace(0.01, 60, 50, dtype=torch.float64)
    order = torch.tensor(x, dtype=torch.float64)
    (got,) = run_graph(lowered(zeta, order, q), [order, q])
    for at, value in zip(q.tolist(), got.tolist()):
        with mpmath.workdps(40):
            wanted = mpmath.zeta(x, mpmath.mpf(at))
            assert abs(value - wanted) <= 2e-14 * wanted, at


@pytest.mark.parametrize("x", [2.0, 3.0, 8.0])
def test_below_zero_it_is_the_sum(x: float) -> None:
    q = torch.tensor([-0.75, -1.25, -4.5, -30.125, -1000.875], dtype=torch.float64)
    order = torch.tensor(x, dtype=torch.float64)
    (got,) = run_graph(lowered(zeta, order, q), [order, q])
    for at, value in zip(q.tolist(), got.tolist()):
        terms = [mpmath.mpf(at + k) ** -x for k in range(int(-at) + 1)]
        wanted = mpmath.fsum(terms) + mpmath.zeta(x, at + len(terms))
        assert abs(value - wanted) <= 1e-14 * max(map(abs, [*terms, wanted])), at


def test_shapes_and_dtypes() -> None:
    check(zeta, torch.tensor(3.0), torch.rand(4, 3).t() + 0.5)
    check(zeta, torch.arange(1, 5), torch.arange(2, 6))
    check(zeta, torch.rand(0, 3), torch.rand(3))
    check(lambda q: torch.ops.aten.special_zeta.self_scalar(2.5, q), torch.rand(5) + 0.1)
    check(lambda x: torch.ops.aten.special_zeta.other_scalar(x, 2), torch.rand(5) + 1.5)
    check(
        zeta,
        torch.full((4,), 2.0),
        torch.rand(4),
        symbolic=True,
        others=[(torch.full((7,), 3.0), torch.rand(7))],
    )
