"""Orthogonal polynomials: against eager at all orders, at the ends, where they overflow, of numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Extern, Fold
from tests.lowering.harness import check, lowered

aten = torch.ops.aten
CHEBYSHEV = [f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"]
NAMES = [
    *CHEBYSHEV,
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
]
INF, NAN = float("inf"), float("nan")
PLACES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.3, 0.93, 2.5, -2.75, 1.001, -7.0, 1e10, INF, -INF]
ORDERS = [-1.0, -0.5, 0.0, 1.0, 2.0, 2.7, 5.0, 6.0, 7.0, 8.0, 9.0, 14.0, 129.0, 300.0, NAN, INF]


def overload(name: str, which: str = "default") -> Any:
    return getattr(getattr(aten, f"special_{name}"), which)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_all_orders_at_all_places(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(PLACES, dtype=dtype)[:, None].expand(-1, len(ORDERS)).contiguous()
    n = torch.tensor(ORDERS, dtype=dtype).expand(len(PLACES), -1)
    check(overload(name), x, n, zeros=False)


@pytest.mark.parametrize("name", NAMES)
def test_integers_and_booleans(name: str) -> None:
    check(overload(name), torch.arange(-4, 5), torch.arange(-1, 8), zeros=False)
    check(overload(name), torch.tensor([True, False]), torch.tensor([[True], [False]]), zeros=False)


@pytest.mark.parametrize("name", ["chebyshev_polynomial_w", "hermite_polynomial_he", "legendre_polynomial_p"])
def test_shapes(name: str) -> None:
    torch.manual_seed(0)
    function = overload(name)
    check(function, torch.randn(()), torch.tensor(4.0))
    check(function, torch.randn(0, 3), torch.ones(3))
    check(function, torch.randn(4, 3).t(), torch.tensor(3.0))
    check(
        function,
        torch.randn(3, 2),
        torch.tensor([7.0, 2.0]),
        symbolic=True,
        others=[(torch.randn(8, 2), torch.tensor([0.0, 11.0]))],
    )


def test_a_small_number_of_turns_is_known_beforehand() -> None:
    x = torch.linspace(-2, 2, 9)
    graph = check(lambda x: overload("hermite_polynomial_h", "n_scalar")(x, 5), x)
    (fold,) = [node.body for node in graph.nodes if isinstance(node.body, Fold)]
    assert fold.turns == 5
    assert not any(isinstance(node.body, Extern) for node in graph.nodes)
    check(lambda x: overload("hermite_polynomial_h", "n_scalar")(x, 90), x)
    check(lambda n: overload("chebyshev_polynomial_u", "x_scalar")(1.5, n), torch.arange(12.0))


@pytest.mark.parametrize(
    ("name", "x", "n"),
    [
        ("chebyshev_polynomial_t", 2.0, 1e15),
        ("legendre_polynomial_p", -1.5, 1e15),
        ("laguerre_polynomial_l", -1e4, 1e8),
        ("hermite_polynomial_h", 0.5, 1e15),
        ("chebyshev_polynomial_v", 0.25, 1e6),
        ("legendre_polynomial_p", 1.0, 1e15),
    ],
)
def test_no_turns_after_an_overflow_or_where_a_formula_is_known(name: str, x: float, n: float) -> None:
    check(overload(name), torch.tensor([x], dtype=torch.float64), torch.tensor([n], dtype=torch.float64))


@pytest.mark.parametrize("name", NAMES)
def test_nan_is_nan_from_order_one_on(name: str) -> None:
    """(Eager returns what was in memory there.)"""
    x, n = torch.tensor([NAN, NAN, NAN, NAN]), torch.tensor([-1.0, 0.0, 1.0, 4.0])
    (got,) = run_graph(lowered(overload(name), x, n), [x, n])
    assert got[:2].tolist() == [0.0, 1.0]
    assert got[2:].isnan().all()
