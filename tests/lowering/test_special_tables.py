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


def temme(count: int, terms: int = 60) -> list[list[Any]]:
    """The power series in eta of the first ``count`` functions of Temme's expansion (DLMF 8.12.10, 8.12.11).

    mu, of which ``eta**2 / 2 = mu - log(1 + mu)``, has ``mu mu' = eta (1 + mu)``.
    """
    one = mpmath.mpf(1)
    mu = [0 * one, one]
    for n in range(2, terms):
        mu.append((mu[n - 1] - sum(mu[i] * (n + 1 - i) * mu[n + 1 - i] for i in range(2, n))) / (n + 1))
    inverse = [one]  # of mu / eta
    for n in range(1, terms - 1):
        inverse.append(-sum(mu[k + 1] * inverse[n - k] for k in range(1, n + 1)))
    stirling, scaled = [0 * one] * (count + 1), [one]
    for j in range(1, count // 2 + 2):
        if 2 * j - 1 <= count:
            stirling[2 * j - 1] = mpmath.bernoulli(2 * j) / (2 * j * (2 * j - 1))
    for n in range(1, count + 1):
        scaled.append(sum(k * stirling[k] * scaled[n - k] for k in range(1, n + 1)) / n)
    found = [inverse[1:]]
    for k in range(1, count):
        last, factor = found[-1], (-1) ** k * scaled[k]
        found.append([(n + 2) * last[n + 2] + factor * inverse[n + 1] for n in range(len(last) - 2)])
    return found


def test_temmes_functions() -> None:
    with mpmath.workdps(40):
        for k, (table, series) in enumerate(zip(special_tables.TEMME, temme(7), strict=True)):

            def function(t: Any, series: list[Any] = series) -> Any:
                return mpmath.polyval(series[::-1], special_tables.TEMME_REACH * t)

            found = coefficients(function, len(table))
            for given, wanted in zip(table, found, strict=True):
                assert abs(given - wanted) <= 1e-17 * mpmath.mpf(100) ** k
