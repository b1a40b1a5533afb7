"""The table of operators: every row has a meaning and its dtype rule; the odd corners are pinned."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch

from smelt.loops.elementwise import _FUNCTIONS, apply
from smelt.ops import TABLE, result_dtype

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NAN, INF = float("nan"), float("inf")


def test_every_row_has_a_meaning_and_every_meaning_a_row() -> None:
    assert _FUNCTIONS.keys() == TABLE.keys()


@pytest.mark.parametrize("name", TABLE)
def test_the_rule_tells_the_dtype_that_the_meaning_gives(name: str) -> None:
    spec = TABLE[name]
    legal = 0
    for dtype in DTYPES:
        args = [torch.ones(3, dtype=dtype) for _ in range(spec.arity)]
        if name == "where":
            args[0] = torch.tensor([True, False, True])
        try:
            wanted = result_dtype(spec, [arg.dtype for arg in args])
        except TypeError:
            continue
        legal += 1
        assert apply(name, args).dtype == wanted, (name, dtype)
    assert legal >= 1


@pytest.mark.parametrize("name", TABLE)
def test_mixed_dtypes_and_wrong_counts_are_refused(name: str) -> None:
    spec = TABLE[name]
    with pytest.raises(TypeError, match=f"{name} takes {spec.arity} arguments, not {spec.arity + 1}"):
        result_dtype(spec, [torch.float32] * (spec.arity + 1))
    if spec.arity == 2:
        with pytest.raises(TypeError, match="argument dtypes differ"):
            result_dtype(spec, [torch.float32, torch.int64])


def _one(name: str, *numbers: float, dtype: torch.dtype) -> float:
    return apply(name, [torch.tensor(number, dtype=dtype) for number in numbers]).item()


def test_shifts_out_of_range() -> None:
    for dtype, width in ((torch.int8, 8), (torch.int32, 32), (torch.int64, 64)):
        for amount in (-1, width, width + 3):
            assert _one("lshift", 5, amount, dtype=dtype) == 0
            assert _one("rshift", 5, amount, dtype=dtype) == 0
            assert _one("rshift", -5, amount, dtype=dtype) == -1
    assert _one("rshift", 200, 8, dtype=torch.uint8) == 0


def test_integer_division_rounds_as_its_name_says() -> None:
    for x, y in itertools.product(range(-7, 8), (-3, -2, -1, 1, 2, 3)):
        assert _one("floordiv", x, y, dtype=torch.int32) == x // y
        assert _one("remainder", x, y, dtype=torch.int32) == x % y
        assert _one("truncdiv", x, y, dtype=torch.int32) == int(x / y)
        assert _one("fmod", x, y, dtype=torch.int32) == math.fmod(x, y)


@pytest.mark.parametrize("name", ["fmod", "remainder", "floordiv", "truncdiv"])
def test_integer_division_by_zero_raises(name: str) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        _one(name, 1, 0, dtype=torch.int64)


def test_integer_powers() -> None:
    for x, y in itertools.product(range(-3, 4), range(5)):
        assert _one("int_pow", x, y, dtype=torch.int32) == x**y
    assert [_one("int_pow", x, -3, dtype=torch.int64) for x in (0, 1, -1, 2, -2)] == [0, 1, -1, 0, 0]
    assert _one("int_pow", -1, -2, dtype=torch.int64) == 1
    assert _one("int_pow", 3, 7, dtype=torch.int8) == -117


def test_sign_of_nan_and_of_minus_zero() -> None:
    assert _one("sign", NAN, dtype=torch.float32) == 0
    assert math.copysign(1, _one("sign", -0.0, dtype=torch.float32)) == 1
    assert _one("sign", -INF, dtype=torch.float32) == -1


def test_maximum_takes_nan_and_fmax_leaves_it() -> None:
    assert math.isnan(_one("maximum", NAN, 1.0, dtype=torch.float32))
    assert math.isnan(_one("minimum", 1.0, NAN, dtype=torch.float32))
    assert _one("fmax", NAN, 1.0, dtype=torch.float32) == 1
    assert _one("fmin", 1.0, NAN, dtype=torch.float32) == 1
    assert math.isnan(_one("fmin", NAN, NAN, dtype=torch.float32))


def test_rounding_is_to_even_and_signbit_sees_minus_zero() -> None:
    assert [_one("round", x, dtype=torch.float32) for x in (0.5, 1.5, 2.5, -0.5)] == [0, 2, 2, 0]
    assert _one("signbit", -0.0, dtype=torch.float32)
    assert not _one("signbit", 0.0, dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fma_rounds_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, z = (torch.randn(2000, dtype=dtype, generator=generator) for _ in range(3))
    z[:1000] = -(x * y)[:1000]  # only the rounding error of the product is left
    z[1000:1200] *= 2.0**-60  # far below the product's last bit
    got = apply("fma", (x, y, z)).tolist()
    for a, b, c, value in zip(x.tolist(), y.tolist(), z.tolist(), got):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        down, up = (
            torch.nextafter(torch.tensor(value, dtype=dtype), torch.tensor(end, dtype=dtype)).item()
            for end in (-INF, INF)
        )
        error = abs(Fraction(value) - exact)
        assert error <= abs(Fraction(down) - exact)
        assert error <= abs(Fraction(up) - exact)


def test_fma_of_numbers_that_are_none() -> None:
    assert math.isnan(_one("fma", INF, 0.0, 1.0, dtype=torch.float32))
    assert _one("fma", INF, 1.0, 1.0, dtype=torch.float64) == INF
    assert _one("fma", 1e308, 10.0, -INF, dtype=torch.float64) == -INF
    assert _one("fma", 1e308, 10.0, 0.0, dtype=torch.float64) == INF


def test_low_precision_computes_in_float32_and_rounds_once() -> None:
    x = torch.arange(-300, 300, dtype=torch.float32).to(torch.bfloat16) / 7
    for name in ("exp", "tanh", "erf", "sigmoid"):
        assert torch.equal(apply(name, (x,)), _FUNCTIONS[name](x.float()).to(torch.bfloat16))
    assert _one("nextafter", 1.0, 2.0, dtype=torch.bfloat16) == 1 + 2.0**-7
