"""The Chebyshev tables are what interpolation finds: each is made anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import pytest

from smelt.lowering.special import bessel_tables, special_tables


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


def modified(order: int, far: bool) -> Callable[[Any], Any]:
    """The near and far functions of `I` and `K` of an order are alike but for powers of x."""

    def value(t: Any) -> Any:
        x = 8 / between(0, 1)(t) if far else between(0, 8)(t)
        factor = mpmath.sqrt(x) if far else x**-order
        return factor * mpmath.exp(-x) * mpmath.besseli(order, x)

    return value


def second(order: int, far: bool) -> Callable[[Any], Any]:
    def value(t: Any) -> Any:
        x = 2 / between(0, 1)(t) if far else mpmath.sqrt(between(0, 4)(t))
        if far:
            return mpmath.sqrt(x) * mpmath.exp(x) * mpmath.besselk(order, x)
        pole = mpmath.log(x / 2) * mpmath.besseli(order, x)
        return x * (mpmath.besselk(1, x) - pole) if order else mpmath.besselk(0, x) + pole

    return value


def first_near(order: int) -> Callable[[Any], Any]:
    def value(t: Any) -> Any:
        roots = [mpmath.besseljzero(order, number) ** 2 for number in (1, 2)]
        square = between(0, 25)(t)
        x = mpmath.sqrt(square)
        return mpmath.besselj(order, x) / (x**order * (square - roots[0]) * (square - roots[1]))

    return value


def second_near(order: int) -> Callable[[Any], Any]:
    def value(t: Any) -> Any:
        x = mpmath.sqrt(between(0, 25)(t))
        logarithm = mpmath.log(x) * mpmath.besselj(order, x)
        rest = mpmath.bessely(order, x) - 2 / mpmath.pi * (logarithm - (1 / x if order else 0))
        return rest / x**order

    return value


def waves(order: int, which: str) -> Callable[[Any], Any]:
    """P and Q of DLMF 10.17: J and Y turned by the phase."""

    def value(t: Any) -> Any:
        x = 5 / mpmath.sqrt(between(0, 1)(t))
        phase = x - (2 * order + 1) * mpmath.pi / 4
        j, y, root = mpmath.besselj(order, x), mpmath.bessely(order, x), mpmath.sqrt(mpmath.pi * x / 2)
        if which == "p":
            return root * (j * mpmath.cos(phase) + y * mpmath.sin(phase))
        return root * (y * mpmath.cos(phase) - j * mpmath.sin(phase)) * x / 5

    return value


def quantile(p: Any) -> Any:
    """The x > 0 whose upper tail is p, by Newton's method on the logarithm."""
    x = mpmath.sqrt(-2 * mpmath.log(p))
    for _ in range(60):
        tail = mpmath.erfc(x / mpmath.sqrt(2)) / 2
        slope = -mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi) / tail
        step = (mpmath.log(tail) - mpmath.log(p)) / slope
        x -= step
        if abs(step) < mpmath.mpf(10) ** (6 - mpmath.mp.dps):
            break
    return x


def quantile_tail(numerator: int, low: float) -> Callable[[Any], Any]:
    def value(t: Any) -> Any:
        x = numerator / between(low, 1)(t)
        return x * (x - mpmath.log(x) / x - quantile(mpmath.exp(-x * x / 2)))

    return value


def quantile_middle(t: Any) -> Any:
    u = mpmath.sqrt(between(0, 1)(t)) * (mpmath.mpf(1) / 2 - mpmath.exp(-2))
    return quantile(mpmath.mpf(1) / 2 - u) / u if u > mpmath.mpf("1e-3") else _middle_series(u)


def _middle_series(u: Any) -> Any:
    w = 2 * u
    return mpmath.sqrt(2) * mpmath.erfinv(w) / u


def airy_right(t: Any) -> Any:
    x = between(0, 1.5)(t) ** 2
    return mpmath.exp(2 * x ** mpmath.mpf("1.5") / 3) * mpmath.airyai(x)


def airy_far(t: Any) -> Any:
    z = mpmath.mpf("2.25") / between(0, 1)(t)
    x = (3 * z / 2) ** (mpmath.mpf(2) / 3)
    return 2 * mpmath.sqrt(mpmath.pi) * x ** mpmath.mpf("0.25") * mpmath.exp(z) * mpmath.airyai(x)


def airy_waves(which: str) -> Callable[[Any], Any]:
    def value(t: Any) -> Any:
        z = special_tables.AIRY_CUT / mpmath.sqrt(between(0, 1)(t))
        y = (3 * z / 2) ** (mpmath.mpf(2) / 3)
        phase, factor = z + mpmath.pi / 4, mpmath.sqrt(mpmath.pi) * y ** mpmath.mpf("0.25")
        ai, bi = mpmath.airyai(-y), mpmath.airybi(-y)
        if which == "f":
            return factor * (ai * mpmath.sin(phase) + bi * mpmath.cos(phase))
        wave = bi * mpmath.sin(phase) - ai * mpmath.cos(phase)
        return z / special_tables.AIRY_CUT * factor * wave

    return value


TABLES: dict[str, tuple[Sequence[float], Callable[[Any], Any]]] = {
    "erfcx": (special_tables.ERFCX, ratio),
    "i0 near": (bessel_tables.I0_NEAR, modified(0, far=False)),
    "i1 near": (bessel_tables.I1_NEAR, modified(1, far=False)),
    "i1 far": (bessel_tables.I1_FAR, modified(1, far=True)),
    "k0 near": (bessel_tables.K0_NEAR, second(0, far=False)),
    "k1 near": (bessel_tables.K1_NEAR, second(1, far=False)),
    "j0 near": (bessel_tables.J0_NEAR, first_near(0)),
    "j1 near": (bessel_tables.J1_NEAR, first_near(1)),
    "airy left": (
        special_tables.AIRY_LEFT,
        lambda t: mpmath.airyai(between(-2.5, 0)(t)) / (between(-2.5, 0)(t) - mpmath.airyaizero(1)),
    ),
    "i0 far": (bessel_tables.I0_FAR, modified(0, far=True)),
    "k0 far": (bessel_tables.K0_FAR, second(0, far=True)),
    "k1 far": (bessel_tables.K1_FAR, second(1, far=True)),
    "y0 near": (bessel_tables.Y0_NEAR, second_near(0)),
    "y1 near": (bessel_tables.Y1_NEAR, second_near(1)),
    "p0": (bessel_tables.P0, waves(0, "p")),
    "q0": (bessel_tables.Q0, waves(0, "q")),
    "p1": (bessel_tables.P1, waves(1, "p")),
    "q1": (bessel_tables.Q1, waves(1, "q")),
    "quantile middle": (special_tables.NDTRI_MID, quantile_middle),
    "quantile tail": (special_tables.NDTRI_TAIL, quantile_tail(2, 0.25)),
    "quantile far": (special_tables.NDTRI_FAR, quantile_tail(8, 0.2)),
    "airy right": (special_tables.AIRY_RIGHT, airy_right),
    "airy far": (special_tables.AIRY_FAR, airy_far),
    "airy f": (special_tables.AIRY_F, airy_waves("f")),
    "airy g": (special_tables.AIRY_G, airy_waves("g")),
}


def check_table(table: Sequence[float], function: Callable[[Any], Any]) -> None:
    with mpmath.workdps(40):
        found = coefficients(function, len(table))
    largest = max(map(abs, table))
    for given, wanted in zip(table, found, strict=True):
        assert abs(given - wanted) <= 2e-16 * abs(given) + 4e-18 * largest


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str) -> None:
    check_table(*TABLES[name])


def test_zeros() -> None:
    with mpmath.workdps(40):
        for order, squares in enumerate((bessel_tables.J0_ROOTS, bessel_tables.J1_ROOTS)):
            assert squares == tuple(float(mpmath.besseljzero(order, k) ** 2) for k in (1, 2))
        assert float(mpmath.airyaizero(1)) == special_tables.AIRY_ROOT
        assert float(2 * mpmath.mpf("2.5") ** mpmath.mpf("1.5") / 3) == special_tables.AIRY_CUT


def test_every_table_is_checked() -> None:
    found = [id(table) for table, _ in TABLES.values()]
    for module in (bessel_tables, special_tables):
        for name, value in vars(module).items():
            if isinstance(value, tuple) and not name.endswith("ROOTS") and name != "TEMME":
                assert id(value) in found, name


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
