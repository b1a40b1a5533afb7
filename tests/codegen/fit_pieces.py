"""Prints the numbers in ``smelt_math.h``'s erf, tanh and ndtr: ``python -m tests.codegen.fit_pieces``.

An odd function is a polynomial of degree 6 on each of 16 intervals of ``|x|``, around a center whose value is
almost a float32, so that the constant term has no error of its own; the other coefficients interpolate
``(f(center + t) - f(center)) / t`` at Chebyshev's nodes. Around 0 the constant term is ``x`` itself, and the
polynomial what ``f(x)`` is more or less: there an error of the slope would be one of the result.

Without a lookup erf is one of two polynomials, whose largest error relative to erf is least: below
`ERF_JOINT` in ``x * x``, what ``erf(x) / x`` is more than 1; from there to `ERF_END` in ``|x| - ERF_CENTER``.

Of ndtr only the absolute error counts: ``ndtr(x) - 1/2`` is ``x`` times a quotient of polynomials in
``x * x``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import mpmath
import numpy as np

Real = mpmath.mpf

DEGREE = 6
ERF_STEP = 65 / 256
"""Intervals of erf are centered at its multiples (but for the first, which begins at 0)."""
ERF_EDGES = [0.0, *((k + 0.5) * ERF_STEP for k in range(16))]
TANH_SCALE = 0.82421875
"""``|x| * TANH_SCALE + 0.5`` lies in four octaves, each in four parts of equal width."""
TANH_EDGES = [
    (value - 0.5) / TANH_SCALE
    for value in (*(2.0**e * (1 + m / 4) for e in (-1, 0, 1, 2) for m in range(4)), 8.0)
]

ERF_JOINT, ERF_CENTER, ERF_END = 1.06, 2.5, 4.0
ERF_DEGREES = (6, 13)
ERF_LEVEL, ERF_EMPHASIS = 3.8, 5
"""From where on errors count so many times: at the end the result has to be 1, not almost."""
NODES, TURNS = 600, 60
NDTR_END, NDTR_DEGREE, NDTR_TURNS = 5.586, 5, 1500
Function = Callable[[Real], Real]


def rounded(x: Real) -> Real:
    """To float32."""
    return Real(float(np.float32(float(x))))


def center_of(f: Callable[[Real], Real], low: float, high: float) -> Real:
    """The float32 near the middle of the interval whose value is nearest to a float32."""
    candidates = [rounded(low + (high - low) * (0.5 + k / 256000)) for k in range(-2000, 2001)]
    return min(candidates, key=lambda x: abs(rounded(f(x)) - f(x)))


def coefficients(f: Callable[[Real], Real], center: Real, low: float, high: float) -> list[Real]:
    """Of ``f(center + t)`` by powers of t, in float32."""
    first, last, constant = low - center, high - center, f(center)
    nodes = [
        (first + last) / 2 + (last - first) / 2 * mpmath.cos(mpmath.pi * (2 * k + 1) / (2 * DEGREE))
        for k in range(DEGREE)
    ]
    powers = mpmath.matrix([[t**j for j in range(DEGREE)] for t in nodes])
    slopes = mpmath.matrix([(f(center + t) - constant) / t for t in nodes])
    return [rounded(c) for c in (constant, *mpmath.lu_solve(powers, slopes))]


def table(f: Callable[[Real], Real], edges: list[float]) -> list[list[Real]]:
    """Rows: the centers, then the coefficients of t**0 … t**6; a column for each interval."""
    columns = []
    for k, (low, high) in enumerate(itertools.pairwise(edges)):
        if k == 0:
            columns.append([Real(0), *coefficients(lambda x: f(x) - x, Real(0), low, high)])
        else:
            center = center_of(f, low, high)
            columns.append([center, *coefficients(f, center, low, high)])
    return [list(row) for row in zip(*columns, strict=True)]


def printed(name: str, rows: list[list[Real]], rotation: int) -> str:
    """As C++: the entry of interval k stands at ``(k + rotation) % 16``."""
    lines = [f"static const f16_ {name}_pieces[8] = {{"]
    for row in rows:
        turned = row[-rotation:] + row[:-rotation]
        numbers = [f"{float(np.float32(float(x))):.9g}f".replace("0.", ".", 1) for x in turned]
        numbers = [text if "." in text or "e" in text else text.replace("f", ".f") for text in numbers]
        lines += ["    {" + ", ".join(numbers[:8]) + ",", "     " + ", ".join(numbers[8:]) + "},"]
    return "\n".join([*lines, "};"])


def minimax(
    f: Function, weight: Function, low: float, high: float, center: float, degree: int
) -> list[float]:
    """Coefficients, in float32, of powers of ``x - center``: Lawson's iteration makes the largest
    ``weight * |error|`` small. They are rounded one after the other, the constant first, and those of higher
    powers fitted anew, to make up for it.
    """
    x = (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    goal, weights = (np.array([float(each(Real(at))) for at in x]) for each in (f, weight))
    reach = float(np.abs(x - center).max())
    powers = np.vander((x - center) / reach, degree + 1, increasing=True)
    found: list[float] = []
    for k in range(degree + 1):
        best, least, emphasis = powers[:, k] * 0, np.inf, np.ones(NODES)
        for _ in range(TURNS):
            scale = np.sqrt(emphasis) * weights
            fitted = np.linalg.lstsq(powers[:, k:] * scale[:, None], goal * scale, rcond=None)[0]
            error = np.abs((powers[:, k:] @ fitted - goal) * weights)
            if error.max() < least:
                best, least = fitted, error.max()
            emphasis *= error / error.max() + 1e-4
            emphasis /= emphasis.sum()
        found.append(float(np.float32(best[0] / reach**k)))
        goal = goal - found[-1] * (x - center) ** k
    return found


def minimax_quotient(f: Function, end: float, degree: int) -> tuple[list[float], list[float]]:
    """Coefficients of P and Q (the first is 1), of the same degree, in ``f(x) = x * P(x * x) / Q(x * x)``, in
    float32: Lawson's iteration on the linear problem ``x * P - f * Q``, divided by the Q before.
    """
    z = (1 - np.cos(np.linspace(0, np.pi, 5 * NODES)[1:])) / 2
    x = np.sqrt(z) * end
    goal = np.array([float(f(Real(at))) for at in x])
    powers = np.vander(z, degree + 1, increasing=True)
    best, least, emphasis, below = np.zeros(0), np.inf, np.ones(z.size), np.ones(z.size)
    for _ in range(NDTR_TURNS):
        system = np.hstack([powers * x[:, None], powers[:, 1:] * -goal[:, None]])
        system *= (emphasis / below)[:, None]
        scale = np.linalg.norm(system, axis=0)
        fitted = np.linalg.lstsq(system / scale, goal * emphasis / below, rcond=None)[0] / scale
        above, below = powers @ fitted[: degree + 1], 1 + powers[:, 1:] @ fitted[degree + 1 :]
        error = np.abs(x * above / below - goal)
        if error.max() < least and below.min() > 0:
            best, least = fitted, error.max()
        emphasis *= (error / error.max() + 1e-3) ** 0.3
        emphasis /= emphasis.max()
    shrunk = end ** (-2.0 * np.arange(degree + 1))
    both = best[: degree + 1] * shrunk, np.append(1.0, best[degree + 1 :]) * shrunk
    return tuple([float(number) for number in each.astype(np.float32)] for each in both)  # type: ignore[return-value]


def erf_beyond(z: Real) -> Real:
    """``erf(x) / x - 1`` of ``z = x * x``."""
    return mpmath.erf(mpmath.sqrt(z)) / mpmath.sqrt(z) - 1


def erf_weight(x: Real) -> Real:
    return (ERF_EMPHASIS if x > ERF_LEVEL else 1) / mpmath.erf(x)


if __name__ == "__main__":
    mpmath.mp.dps = 40
    small, large = ERF_DEGREES
    for polynomial in (
        minimax(erf_beyond, lambda z: 1 / (1 + erf_beyond(z)), 1e-9, ERF_JOINT**2, 0.0, small),
        minimax(mpmath.erf, erf_weight, ERF_JOINT, ERF_END, ERF_CENTER, large),
    ):
        print(", ".join(f"{number:.9g}f" for number in polynomial))
    for polynomial in minimax_quotient(lambda x: mpmath.ncdf(x) - 0.5, NDTR_END, NDTR_DEGREE):
        print(", ".join(f"{number:.9g}f" for number in polynomial))
    print(printed("erf", table(mpmath.erf, ERF_EDGES), 0))
    print(printed("tanh", table(mpmath.tanh, TANH_EDGES), 8))
