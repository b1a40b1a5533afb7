"""The error bounds that smelt_math.h states, measured."""

from __future__ import annotations

from collections.abc import Callable, Collection

import mpmath
import numpy as np
import pytest
import torch

from tests.codegen.arm import ArmLibrary
from tests.codegen.isas import ISAS, compiled
from tests.codegen.support import Library, pointwise, single

F32, F64 = torch.float32, torch.float64

BOUNDS = {
    "sqrt": 0.501,
    "reciprocal": 0.501,
    "rsqrt": 1.6,
    "exp": 1.0,
    "exp2": 1.2,
    "expm1": 1.5,
    "log1p": 1.6,
}
BOUNDS |= {"log": 1.0, "sin": 1.6, "cos": 1.6, "tanh": 2.5, "erf": 1.2, "sigmoid": 2.5}
"""Polynomials in float32; all others go through float64: 0.6."""

THROUGH_FLOAT64 = [
    "log2",
    "log10",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "erfc",
]
REFERENCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    name: getattr(torch, name) for name in (*BOUNDS, *THROUGH_FLOAT64, "lgamma")
}
LANES = 16


EMULATED = 30
"""One of so many numbers is tried where instructions are emulated."""
LOW = {"bf16": torch.bfloat16, "f16": torch.float16}


@pytest.fixture(scope="module", params=ISAS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    names = [*REFERENCE, "ndtr", "erfinv", "digamma"]
    runs = [
        single(pointwise(op, [kind], kind, LANES), f"{op}_{kind.itemsize}")
        for op in names
        for kind in (F32, F64)
    ]
    runs += [single(pointwise(op, [F32, F32], F32, LANES), f"{op}_4") for op in ("pow", "atan2", "hypot")]
    for name, low in LOW.items():
        for lanes in (1, 4, 8, 16):
            runs.append(single(pointwise("to_dtype", [low], F32, lanes), f"from_{name}_{lanes}"))
            runs.append(single(pointwise("to_dtype", [F32], low, lanes), f"into_{name}_{lanes}"))
    return compiled(tmp_path_factory.mktemp("math"), runs, request.param)


def patterns(stride: int, offset: int = 0) -> torch.Tensor:
    """Every ``stride``-th float32, all signs and exponents, and special ones."""
    bits = np.arange(offset, 2**32, stride, dtype=np.uint64).astype(np.uint32)
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1e-45,
        -1e-45,
        3.4e38,
        np.inf,
        -np.inf,
        np.nan,
        88.72,
        88.73,
        -87.4,
        -103.9,
    ]
    return torch.from_numpy(np.concatenate([bits.view(np.float32), np.array(special, np.float32)]))


def ulps(got: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Distance to the float64 truth in units in the last place of float32; infinity counts as 2**128."""
    far = 2.0**128
    left, right = got.double().clamp(-far, far), truth.clamp(-far, far)
    exponent = torch.frexp(right)[1].clamp(-125, 128)
    error = torch.ldexp((left - right).abs(), 24 - exponent)
    same_nan = left.isnan() & right.isnan()
    return error.masked_fill(same_nan, 0.0).nan_to_num(nan=torch.inf)


def measure(library: Library, op: str, x: torch.Tensor) -> tuple[float, float]:
    """The worst error and where it is."""
    out = torch.empty_like(x)
    assert library(f"{op}_4", x, out, x.numel()) == 0
    truth = REFERENCE[op](x.double())
    error = ulps(out, truth)
    if op == "sigmoid":
        error[x < -88.7] = 0
    worst = int(error.argmax())
    zero = (truth == 0) & (torch.signbit(out) != torch.signbit(truth))
    assert not bool(zero.any()), f"{op}: sign of zero at {x[zero][:3]}"
    return float(error[worst]), float(x[worst])


def some(count: int, library: Library) -> int:
    """So many numbers, or one of EMULATED of them."""
    return count // EMULATED if isinstance(library, ArmLibrary) else count


def not_musls(library: Library, op: str, ours: Collection[str]) -> None:
    """Skip what the emulated program has from its C library, which is not the one that torch runs on."""
    if isinstance(library, ArmLibrary) and op not in ours:
        pytest.skip(f"{op} is the C library's")


@pytest.mark.parametrize("op", list(REFERENCE))
def test_float32_error_over_all_exponents(library: Library, op: str) -> None:
    not_musls(library, op, REFERENCE.keys() - {"acosh"})
    stride = 257 * 31 if op in BOUNDS else 65537
    if isinstance(library, ArmLibrary):
        stride *= EMULATED
    error, where = measure(library, op, patterns(stride))
    assert error <= BOUNDS.get(op, 0.6), f"{op}({where!r}): {error} ulp"


@pytest.mark.parametrize(("op", "end"), [("erf", 4.0), ("tanh", 9.1)])
def test_what_is_one_is_one(library: Library, op: str, end: float) -> None:
    """Not almost: programs multiply what ``1 + erf(x)`` leaves by numbers as large as one likes."""
    far = torch.cat([torch.linspace(end, 2 * end, 1000), torch.tensor([1e3, 1e30, torch.inf])])
    x = torch.cat([far, -far])
    out = torch.empty_like(x)
    assert library(f"{op}_4", x, out, x.numel()) == 0
    assert torch.equal(out, x.sign())


@pytest.mark.parametrize("dtype", [F32, F64])
def test_ndtr(library: Library, dtype: torch.dtype) -> None:
    """Its absolute error, for that is gelu's; and where it has to be 0 or 1, it is."""
    not_musls(library, "ndtr", ("ndtr",) if dtype == F32 else ())
    fewer = EMULATED if isinstance(library, ArmLibrary) else 1
    near = torch.linspace(-9, 9, 1_000_001 // fewer, dtype=dtype)
    x = torch.cat([patterns(257 * 31 * fewer).to(dtype), near])
    out = torch.empty_like(x)
    assert library(f"ndtr_{dtype.itemsize}", x, out, x.numel()) == 0
    assert torch.equal(out.isnan(), x.isnan())
    error = (out.double() - torch.special.ndtr(x.double())).abs().nan_to_num()
    assert error.max() <= {F32: 2.4e-7, F64: 2.3e-16}[dtype], (x[error.argmax()], out[error.argmax()])
    far = x.abs() > {F32: 5.66, F64: 8.5}[dtype]
    assert torch.equal(out[far], (x[far] > 0).to(dtype))


def test_float32_pow(library: Library) -> None:
    generator = torch.Generator().manual_seed(3)
    size = some(200_000, library)
    x = torch.randn(size, generator=generator).exp() ** 8
    y = torch.randn(size, generator=generator) * 20
    special = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 1e30, -1e30, 2.5, 1e-45, 16777217.0]
    )
    special = torch.cat([special, torch.tensor([torch.inf, -torch.inf, torch.nan])])
    x = torch.cat([x, special.repeat_interleave(len(special))])
    y = torch.cat([y, special.repeat(len(special))])
    out = torch.empty_like(x)
    library("pow_4", x, y, out, x.numel())
    truth = x.double().pow(y.double())
    error = ulps(out, truth)
    worst = int(error.argmax())
    assert float(error[worst]) <= 0.6, (x[worst], y[worst], out[worst], truth[worst])
    wrong = (torch.signbit(out) != torch.signbit(truth)) & ~truth.isnan()
    assert not bool(wrong.any()), (x[wrong][:5], y[wrong][:5])


@pytest.mark.parametrize("name", ["atan2", "hypot"])
def test_length_and_angle_go_through_float64(library: Library, name: str) -> None:
    """0.6 ulp for numbers of any size; signs, zeros, infinities and NaN are C's."""
    generator = torch.Generator().manual_seed(4)
    x, y = (torch.randn(some(100_000, library), generator=generator) ** 9 for _ in range(2))
    special = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-45, -1e-40, torch.inf, -torch.inf, torch.nan]
    )
    x = torch.cat([x, special.repeat_interleave(len(special))])
    y = torch.cat([y, special.repeat(len(special))])
    out = torch.empty_like(x)
    library(f"{name}_4", x, y, out, x.numel())
    truth = getattr(torch, name)(x.double(), y.double())
    error = ulps(out, truth)
    worst = int(error.argmax())
    assert float(error[worst]) <= 0.6, (x[worst], y[worst], out[worst], truth[worst])
    wrong = (torch.signbit(out) != torch.signbit(truth)) & ~truth.isnan()
    assert not bool(wrong.any()), (x[wrong][:5], y[wrong][:5])


LONG_DOUBLE = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
}
LONG_DOUBLE |= {
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "sinh": np.sinh,
}
LONG_DOUBLE |= {"cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sqrt": np.sqrt}
LONG_DOUBLE |= {"asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh}
LONG_DOUBLE |= {"sigmoid": lambda x: 1 / (1 + np.exp(-x)), "rsqrt": lambda x: 1 / np.sqrt(x)}


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs an extended long double")
@pytest.mark.parametrize("op", list(LONG_DOUBLE))
def test_float64_error(library: Library, op: str) -> None:
    not_musls(library, op, ("exp", "log", "sigmoid", "rsqrt", "sqrt"))
    generator = np.random.default_rng(5)
    size = some(50_000, library)
    x = np.concatenate(
        [generator.normal(size=size) * 10.0**scale for scale in (-300, -20, -5, -1, 0, 1, 2, 300)]
    )
    x = np.concatenate(
        [x, np.array([0.0, -0.0, 5e-324, -5e-324, 2.2e-308, np.inf, -np.inf, np.nan, 709.7, -745.0])]
    )
    out = torch.empty(x.size, dtype=F64)
    library(f"{op}_8", torch.from_numpy(x), out, x.size)
    with np.errstate(all="ignore"):
        truth = LONG_DOUBLE[op](x.astype(np.longdouble))
        rounded = truth.astype(np.float64)
        unit = np.spacing(np.abs(rounded)).astype(np.longdouble)
        error = np.abs(out.numpy().astype(np.longdouble) - truth) / unit
    alike = (out.numpy() == rounded) | (np.isnan(out.numpy()) & np.isnan(rounded))
    if op == "sigmoid":
        alike |= x < -709.7
    error = np.where(alike, 0, error)
    worst = int(np.argmax(error))
    assert error[worst] <= (3 if op in ("tanh", "sinh", "cosh", "asinh", "acosh", "atanh") else 2), (
        x[worst],
        error[worst],
    )
    assert (np.signbit(out.numpy()) == np.signbit(rounded))[rounded == 0].all()


@pytest.mark.parametrize("op", ["erfinv", "digamma"])
def test_own_special_functions(library: Library, op: str) -> None:
    if op == "erfinv":
        points = [
            *np.linspace(-0.999, 0.999, 101),
            1e-12,
            -3e-9,
            0.5,
            0.50001,
            1 - 1e-6,
            1 - 1e-12,
            -(1 - 2.0**-50),
        ]
        truth = [float(mpmath.erfinv(mpmath.mpf(x))) for x in points]
    else:
        points = [*np.linspace(-7.9, 30.3, 101), 1e-8, 1e-300, 1e3, 1e10, 1e100, 1.4616321449683623]
        truth = [float(mpmath.digamma(mpmath.mpf(x))) for x in points]
    wanted, x = torch.tensor(truth, dtype=F64), torch.tensor(points, dtype=F64)
    out, single_out = torch.empty_like(x), torch.empty(len(points))
    library(f"{op}_8", x, out, len(points))
    scale = wanted.abs().clamp(min=1) if op == "digamma" else wanted.abs()
    assert bool(((out - wanted).abs() <= 64 * torch.finfo(F64).eps * scale).all())
    library(f"{op}_4", x.float(), single_out, len(points))
    eager = getattr(torch.special, op)(x.float().double())
    assert bool((single_out.isfinite() == eager.isfinite()).all())
    near = ulps(single_out, eager) <= 0.6
    assert bool((near | ~eager.isfinite() | ((single_out - eager).abs() < 1e-13)).all())


@pytest.mark.parametrize("name", list(LOW))
@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_low_precision_conversions_of_every_number(library: Library, name: str, lanes: int) -> None:
    low = LOW[name]
    # an emulated call is slow: every number in vectors of one register, one of EMULATED in the others
    step = 1 if lanes == 4 or not isinstance(library, ArmLibrary) else EMULATED
    every = torch.arange(-(2**15), 2**15, step, dtype=torch.int16).view(low)
    wide = torch.empty(every.numel())
    library(f"from_{name}_{lanes}", every, wide, every.numel())
    torch.testing.assert_close(wide, every.float(), rtol=0, atol=0, equal_nan=True)
    assert bool((torch.signbit(wide) == torch.signbit(every.float())).all())
    # both neighbours in float32, and the points half-way between two numbers
    near = [wide, *(wide.nextafter(torch.full_like(wide, side)) for side in (torch.inf, -torch.inf))]
    middle = wide.view(torch.int32) + (2**12 if low is torch.float16 else 2**15)
    x = torch.cat([*near, middle.view(F32), patterns(1_000_003)])
    out = torch.empty(x.numel(), dtype=low)
    library(f"into_{name}_{lanes}", x, out, x.numel())
    torch.testing.assert_close(out, x.to(low), rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("op", list(BOUNDS))
def test_float32_error_on_every_number(library: Library, op: str) -> None:
    for offset in range(64):
        error, where = measure(library, op, patterns(64, offset))
        assert error <= BOUNDS[op], f"{op}({where!r}): {error} ulp"
