"""Special functions: against eager and mpmath, at ordinary and at odd places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Extern
from tests.lowering.harness import FLOATS, check, lowered

aten = torch.ops.aten
ODD = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), -1.0, -2.0, 0.5, 1.0]


def spread(low: float, high: float, count: int = 60) -> torch.Tensor:
    return torch.linspace(low, high, count, dtype=torch.float64)


def psi(order: int) -> Callable[[Any], Any]:
    return lambda x: mpmath.psi(order, x)


EXACT: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., Any], tuple[float, float]]] = {
    "erfcx": (aten.special_erfcx.default, lambda x: mpmath.exp(x * x) * mpmath.erfc(x), (-5, 60)),
    "ndtri": (
        aten.special_ndtri.default,
        lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1),
        (1e-5, 0.9999),
    ),
    "airy_ai": (aten.special_airy_ai.default, mpmath.airyai, (-2.2, 9)),
    "polygamma 1": (lambda x: aten.polygamma.default(1, x), psi(1), (-3.93, 9)),
    "polygamma 2": (lambda x: aten.polygamma.default(2, x), psi(2), (0.1, 9)),
    "polygamma 5": (lambda x: aten.polygamma.default(5, x), psi(5), (-2.93, 9)),
    "i0": (aten.i0.default, lambda x: mpmath.besseli(0, x), (-20, 20)),
    "i1": (aten.special_i1.default, lambda x: mpmath.besseli(1, x), (-20, 20)),
    "i0e": (
        aten.special_i0e.default,
        lambda x: mpmath.besseli(0, x) * mpmath.exp(-abs(x)),
        (-40, 40),
    ),
    "i1e": (
        aten.special_i1e.default,
        lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x)),
        (-40, 40),
    ),
    "scaled k0": (
        aten.special_scaled_modified_bessel_k0.default,
        lambda x: mpmath.besselk(0, x) * mpmath.exp(x),
        (0.01, 40),
    ),
    "scaled k1": (
        aten.special_scaled_modified_bessel_k1.default,
        lambda x: mpmath.besselk(1, x) * mpmath.exp(x),
        (0.01, 40),
    ),
    "k0": (aten.special_modified_bessel_k0.default, lambda x: mpmath.besselk(0, x), (0.01, 20)),
    "k1": (aten.special_modified_bessel_k1.default, lambda x: mpmath.besselk(1, x), (0.01, 20)),
    "spherical j0": (
        aten.special_spherical_bessel_j0.default,
        lambda x: mpmath.sin(x) / x if x else mpmath.mpf(1),
        (-3, 3),
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_float64_against_mpmath(name: str) -> None:
    function, exact, span = EXACT[name]
    x = spread(*span)
    (got,) = run_graph(lowered(function, x), [x])
    for at, value in zip(x.tolist(), got.tolist()):
        with mpmath.workdps(40):
            wanted = exact(mpmath.mpf(at))
            assert abs(value - wanted) <= 2e-14 * abs(wanted) + 1e-300, at


@pytest.mark.parametrize("name", ["bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"])
def test_waves_are_better_than_eager(name: str) -> None:
    """In float64 eager's are off by 1e-8 beside their zeros (measured with mpmath)."""
    function = getattr(aten, f"special_{name}").default
    exact = getattr(mpmath, f"bessel{name[-2]}")
    x = spread(0.02, 30)
    (got,) = run_graph(lowered(function, x), [x])
    for at, value in zip(x.tolist(), got.tolist()):
        with mpmath.workdps(40):
            wanted = exact(int(name[-1]), mpmath.mpf(at))
            assert abs(value - wanted) <= 1e-14 * max(1, abs(wanted)), at


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [n for n in EXACT if "polygamma" not in n])
def test_odd_places_are_eagers(name: str, dtype: torch.dtype) -> None:
    function, _, span = EXACT[name]
    odd = torch.tensor([*ODD, *span]).to(dtype)
    (got,) = run_graph(lowered(function, odd), [odd])
    expected = function(odd)
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.isinf(), expected.isinf())
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_poles_of_polygamma(order: int, dtype: torch.dtype) -> None:
    odd = torch.tensor(ODD, dtype=dtype)
    (got,) = run_graph(lowered(lambda x: aten.polygamma.default(order, x), odd), [odd])
    expected = aten.polygamma.default(order, odd)
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.isinf(), expected.isinf())


@pytest.mark.parametrize("dtype", FLOATS)
def test_frexp(dtype: torch.dtype) -> None:
    numbers = [0.0, -0.0, 1.0, -0.75, 3e4, 1e-7, float("inf"), float("nan"), torch.finfo(dtype).tiny / 4]
    check(aten.frexp.Tensor, torch.tensor(numbers, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [0, 1, 2, 9])
def test_logspace(dtype: torch.dtype, steps: int) -> None:
    check(lambda x: aten.logspace.default(-2, 3, steps, 2.0, dtype=dtype) + x, torch.zeros((), dtype=dtype))


@pytest.mark.parametrize("steps", [0, 1, 7])
@pytest.mark.parametrize("dtype", FLOATS)
def test_logspace_between_tensors(dtype: torch.dtype, steps: int) -> None:
    ends = torch.tensor(-1.3), torch.tensor(3)
    check(lambda a, b: aten.logspace.Tensor_Tensor(a, b, steps, 2.0, dtype=dtype), *ends)
    check(lambda a, b: aten.logspace.Tensor_Scalar(a, 2.5, steps, dtype=dtype), *ends)
    check(lambda a, b: aten.logspace.Scalar_Tensor(-1, b, steps, dtype=dtype), *ends)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nextafter(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    numbers = [0.0, 1.0, 2.0, 0.3, info.max, info.tiny, info.smallest_normal / 4, float("inf")]
    x = torch.tensor([*numbers, *(-number for number in numbers), float("nan")], dtype=torch.float64)
    x = x.to(dtype)
    (got,) = run_graph(lowered(aten.nextafter.default, x[:, None], x), [x[:, None], x])
    expected = aten.nextafter.default(x[:, None], x)
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(got.signbit() & ~got.isnan(), expected.signbit() & ~expected.isnan())


def test_integers_become_floats() -> None:
    x = torch.arange(1, 6)
    for function in (aten.special_erfcx.default, aten.i0.default, lambda v: aten.polygamma.default(1, v)):
        check(function, x)


@pytest.mark.parametrize(
    ("name", "span", "exact"),
    [
        ("bessel_y0", (0.88, 0.91), lambda x: mpmath.bessely(0, x)),
        ("bessel_y1", (2.18, 2.21), lambda x: mpmath.bessely(1, x)),
        ("airy_ai", (-11.3, -10.9), mpmath.airyai),
    ],
)
def test_float32_beside_a_zero(name: str, span: tuple[float, float], exact: Callable[[Any], Any]) -> None:
    """Computed in float32 they lost half of their digits there, where eager's do not."""
    x = spread(*span).float()
    (got,) = run_graph(lowered(getattr(aten, f"special_{name}").default, x), [x])
    wanted = torch.tensor([float(exact(at)) for at in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-7, atol=0)


SAMPLERS: dict[str, tuple[Any, str]] = {
    "poisson": (aten.poisson.default, "rejection"),
    "standard gamma": (aten._standard_gamma.default, "rejection"),
    "binomial": (lambda x: aten.binomial.default(x * 10, x), "rejection"),
    "dirichlet": (aten._sample_dirichlet.default, "rejection"),
    "gamma's gradient": (lambda x: aten._standard_gamma_grad.default(x, x), "ATen's fit"),
    "dirichlet's gradient": (lambda x: aten._dirichlet_grad.default(x, x, x + 1), "ATen's fit"),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_are_atens_and_say_why(name: str) -> None:
    function, reason = SAMPLERS[name]
    nodes = lowered(function, torch.rand(4) + 0.1).nodes
    (said,) = (node.body.reason for node in nodes if isinstance(node.body, Extern) and node.body.reason)
    assert reason in said


def test_what_goes_to_aten() -> None:
    (node,) = lowered(aten.special_erfcx.default, torch.rand(3, dtype=torch.bfloat16)).nodes
    assert node.body.reason == "eager has no kernel for torch.bfloat16"
    check(lambda x: aten.polygamma.default(30, x), torch.rand(3), fallbacks=["aten.polygamma.default"])
