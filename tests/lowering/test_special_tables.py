"""The Chebyshev tables are what interpolation finds: one table of each kind, made anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import pytest

from smelt.lowering import bessel_tables, special_tables


def coefficients(function: Callable[[Any], Any], count: int) -> list[Any]:
    """Chebyshev coefficients of a function of t in -1..1, by interpolation at ``2 * count`` points."""
    points = 2 * count
    angles = [mpmath.pi * (2 * k + 1) / (2 * points) for k in range(points)]
    values = [function(mpmath.cos(angle)) for angle in angles]
    sums = [
        mpmath.fsum(v * mpmath.cos(j * a) for v, a in zip(values, angles)) * 2 / points for j in range(count)
    ]
    return [sums[0] / 2, *sums[1:]]


def between(low: float, high: float) -> Callable[[Any], Any]:
    """t in -1..1 → low..high."""
    return lambda t: (mpmath.mpf(low) + high) / 2 + t * (mpmath.mpf(high) - low) / 2


def ratio(t: Any) -> Any:
    x = mpmath.mpf("3.75") * (1 + t) / (1 - t)
    return (1 + 2 * x) * mpmath.exp(x * x) * mpmath.erfc(x)


TABLES: dict[str, tuple[Sequence[float], Callable[[Any], Any]]] = {
    "erfcx": (special_tables.ERFCX, ratio),
    "i0 near": (
        bessel_tables.I0_NEAR,
        lambda t: mpmath.exp(-between(0, 8)(t)) * mpmath.besseli(0, between(0, 8)(t)),
    ),
    "i1 far": (
        bessel_tables.I1_FAR,
        lambda t: (
            mpmath.sqrt(8 / between(0, 1)(t))
            * mpmath.exp(-8 / between(0, 1)(t))
            * mpmath.besseli(1, 8 / between(0, 1)(t))
        ),
    ),
    "k0 near": (
        bessel_tables.K0_NEAR,
        lambda t: (
            mpmath.besselk(0, mpmath.sqrt(between(0, 4)(t)))
            + mpmath.log(mpmath.sqrt(between(0, 4)(t)) / 2) * mpmath.besseli(0, mpmath.sqrt(between(0, 4)(t)))
        ),
    ),
    "airy left": (
        special_tables.AIRY_LEFT,
        lambda t: mpmath.airyai(between(-2.5, 0)(t)) / (between(-2.5, 0)(t) - mpmath.airyaizero(1)),
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str) -> None:
    table, function = TABLES[name]
    with mpmath.workdps(40):
        found = coefficients(function, len(table))
    largest = max(map(abs, table))
    for given, wanted in zip(table, found, strict=True):
        assert abs(given - wanted) <= 2e-16 * largest
