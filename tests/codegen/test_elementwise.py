"""Every elementwise operator on every dtype: one lane and many, all lengths of tail, against eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from smelt.loops.philox import philox
from smelt.nest.ir import For, Kernel, Let, LoopKind, Store
from smelt.ops import TABLE, Rule, result_dtype
from tests.codegen.isas import ISAS, compiled
from tests.codegen.support import (
    COMPILER,
    SIZE,
    Library,
    block,
    number,
    param,
    pointwise,
    single,
    var,
)

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
BOOL = [torch.bool]
LANES = 8
DTYPES = {
    Rule.SAME: FLOATS + INTS,
    Rule.SAME_ANY: FLOATS + INTS + BOOL,
    Rule.FLOAT: FLOATS,
    Rule.INT: INTS + BOOL,
    Rule.INTEGER: INTS,
    Rule.WORD: [torch.int64],
    Rule.COMPARE: FLOATS + INTS + BOOL,
    Rule.FLOAT_TEST: FLOATS,
    Rule.LOGICAL: BOOL,
    Rule.WHERE: FLOATS + INTS + BOOL,
}


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    r = np.fmod(x, y)
    return np.where((r != 0) & ((r < 0) != (y < 0)), r + y, r).astype(x.dtype)


def _by_numpy(function: Callable[..., np.ndarray], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with np.errstate(all="ignore"):
        if x.dtype.is_floating_point and x.element_size() == 2:
            return torch.from_numpy(function(x.float().numpy(), y.float().numpy())).to(x.dtype)
        return torch.from_numpy(function(x.numpy(), y.numpy()))


REFERENCE: dict[str, Callable[..., torch.Tensor]] = {
    "truediv": torch.true_divide,
    "floordiv": torch.floor_divide,
    "truncdiv": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
    "int_pow": torch.pow,
    # eager's own is NaN where x / y overflows
    "fmod": lambda x, y: _by_numpy(np.fmod, x, y),
    "remainder": lambda x, y: _by_numpy(_remainder, x, y),
    "fma": lambda x, y, z: torch.addcmul(z, x, y),
    "philox": philox,
}
EXACT = {
    *(
        "neg",
        "abs",
        "sign",
        "add",
        "sub",
        "mul",
        "fmod",
        "remainder",
        "floordiv",
        "maximum",
        "minimum",
        "where",
    ),
    *("reciprocal", "truediv", "copysign", "nextafter", "fmax", "fmin", "floor", "ceil", "trunc", "round"),
}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 1e-40, -1e-40, 1e-3, 700.0, -700.0, 3e38]
SPECIAL += [float("inf"), float("-inf"), float("nan")]


def _reference(op: str) -> Callable[..., torch.Tensor]:
    return REFERENCE.get(op) or getattr(torch, op, None) or getattr(torch.special, op)


def _values(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        x = torch.randint(-9 if info.min else 0, 70, (count,), generator=generator).to(dtype)
        x[::7] = info.max
        x[3::11] = info.min
        return x
    x = torch.randn(count, generator=generator, dtype=torch.float64) * 2
    x[::5] *= 30
    for position, special in enumerate(SPECIAL):
        x[(position * (seed + 1) * 3 + seed) % count] = special
    return x.to(dtype)


def _cases() -> list[tuple[str, torch.dtype]]:
    return [(op, dtype) for op, spec in TABLE.items() for dtype in DTYPES[spec.rule]]


def _arguments(op: str, dtype: torch.dtype) -> list[torch.dtype]:
    spec = TABLE[op]
    return [torch.bool, dtype, dtype] if spec.rule is Rule.WHERE else [dtype] * spec.arity


GROUPS = {"single": [torch.float32], "double": [torch.float64], "low": FLOATS[2:], "integer": INTS + BOOL}


@pytest.fixture(scope="module", params=list(GROUPS))
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Library]:
    runs = []
    for op, dtype in _cases():
        if dtype not in GROUPS[request.param]:
            continue
        args = _arguments(op, dtype)
        out = result_dtype(TABLE[op], args)
        runs += [
            single(pointwise(op, args, out, lanes), f"{op}_{_short(dtype)}_{lanes}") for lanes in (1, LANES)
        ]
    return request.param, Library(tmp_path_factory.mktemp(request.param), runs)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _nonzero(op: str, args: list[torch.Tensor]) -> list[torch.Tensor]:
    if op in ("fmod", "remainder", "floordiv", "truncdiv") and not args[1].dtype.is_floating_point:
        # eager itself stops the process on least / -1
        args[1] = torch.where((args[1] == 0) | (args[1] == -1), torch.full_like(args[1], 3), args[1])
    return args


def _check(op: str, dtype: torch.dtype, got: torch.Tensor, args: list[torch.Tensor]) -> None:
    expected = _reference(op)(*args)
    label = f"{op} {dtype}"
    low_quotient = op == "floordiv" and got.dtype.itemsize == 2  # eager rounds within
    if not got.dtype.is_floating_point or (op in EXACT and not low_quotient):
        torch.testing.assert_close(
            got, expected, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{label}: {m}"
        )
        if (
            op in EXACT
            and got.dtype.is_floating_point
            and op not in ("maximum", "minimum", "fmax", "fmin", "sign")
        ):
            same = torch.signbit(got) == torch.signbit(expected)
            assert bool((same | expected.isnan()).all()), f"{label}: sign of zero"
        return
    wide = [arg.double() if arg.dtype.is_floating_point else arg for arg in args]
    truth = _reference(op)(*wide).to(dtype)
    eps = torch.finfo(dtype).eps
    least = torch.tensor(1e-44, dtype=torch.float64)
    if op == "digamma" and dtype is torch.float64:  # see smelt_math.h: it has roots and poles
        least = 64 * eps * truth.abs().clamp(min=1)
    if op == "ndtr":  # its error is absolute (tests/codegen/test_math.py has the bound)
        least = torch.tensor(2 * eps)
    both = (got.double() - truth.double()).abs() <= 4 * eps * truth.double().abs() + least
    eager = (got.double() - expected.double()).abs() <= 4 * eps * expected.double().abs() + least
    equal = (got == truth) | (got.isnan() & truth.isnan()) | (got == expected)
    wrong = ~(both | eager | equal)
    shown = [
        (tuple(float(arg[k]) for arg in args), float(got[k]), float(truth[k])) for k in wrong.nonzero()[:5, 0]
    ]
    assert not shown, f"{label}: (args, got, truth) {shown}"


def test_every_operator_agrees_with_eager(group: tuple[str, Library]) -> None:
    name, library = group
    failures = []
    for op, dtype in _cases():
        if dtype not in GROUPS[name]:
            continue
        out = result_dtype(TABLE[op], _arguments(op, dtype))
        args = _nonzero(op, [_values(kind, 213, seed) for seed, kind in enumerate(_arguments(op, dtype))])
        results = {}
        for lanes in (1, LANES):
            results[lanes] = torch.empty(213, dtype=out)
            assert library(f"{op}_{_short(dtype)}_{lanes}", *args, results[lanes], 213) == 0
        try:
            _check(op, dtype, results[LANES], args)
            _check(op, dtype, results[1], args)
            if "clang" not in (COMPILER or ""):  # which contracts as it likes
                torch.testing.assert_close(results[1], results[LANES], rtol=0, atol=0, equal_nan=True)
        except AssertionError as error:
            failures.append(f"{op} {dtype}: {str(error)[:600]}")
    assert not failures, "\n".join(failures)


def test_every_length_of_tail(group: tuple[str, Library]) -> None:
    """The lanes behind the end are neither read nor written."""
    name, library = group
    dtype = GROUPS[name][0]
    for op in ("add", "exp") if dtype.is_floating_point else ("bitwise_xor", "where"):
        kinds = _arguments(op, dtype)
        out = result_dtype(TABLE[op], kinds)
        for length in range(2 * LANES + 2):
            args = [_values(kind, 213, seed)[:length].clone() for seed, kind in enumerate(kinds)]
            result = torch.zeros(length + LANES, dtype=out)
            whole = torch.zeros(length + LANES, dtype=out)
            assert library(f"{op}_{_short(dtype)}_{LANES}", *args, result, length) == 0
            assert library(f"{op}_{_short(dtype)}_1", *args, whole, length) == 0
            torch.testing.assert_close(result, whole, equal_nan=True)
            assert not bool(result[length:].any())


def test_integer_division_by_zero_is_an_error(group: tuple[str, Library]) -> None:
    name, library = group
    if name != "integer":
        pytest.skip("integers only")
    for op in ("fmod", "remainder", "floordiv", "truncdiv"):
        for lanes in (1, LANES):
            x, y, out = torch.arange(1, 20), torch.arange(1, 20), torch.empty(19, dtype=torch.int64)
            run = f"{op}_int64_{lanes}"
            assert library(run, x, y, out, 19) == 0
            y[17] = 0
            number = library(run, x, y, out, 19)
            assert library.unit.errors[run][number - 1] == ("RuntimeError", "ZeroDivisionError")
            assert library(run, x, y, out, 17) == 0


def test_least_integer_divided_by_minus_one_wraps(group: tuple[str, Library]) -> None:
    name, library = group
    if name != "integer":
        pytest.skip("integers only")
    least = torch.tensor([torch.iinfo(torch.int64).min])
    out = torch.empty_like(least)
    assert library("truncdiv_int64_1", least, torch.tensor([-1]), out, 1) == 0
    assert out.item() == least.item()
    assert library("remainder_int64_8", least, torch.tensor([-1]), out, 1) == 0
    assert out.item() == 0


@pytest.mark.parametrize("isa", ISAS)
def test_to_an_integer_and_back(tmp_path: Path, isa: str) -> None:
    """What comes back was an integer: no -0.0, which a trunc in its place would give."""
    runs = []
    for real in (torch.float32, torch.float64):
        for integer in (torch.int32, torch.int64):
            for lanes in (1, LANES):
                i, name = var("i"), f"{_short(real)}_{_short(integer)}_{lanes}"
                turn = (
                    Let("x", real, "load", ("x0", (i,))),
                    Let("n", integer, "to_dtype", ("x",)),
                    Let("r", real, "to_dtype", ("n",)),
                    Store("y", (i,), "r"),
                )
                kind = LoopKind.SERIAL if lanes == 1 else LoopKind.VECTOR
                body = block(For(i, number(0), SIZE, block(*turn), kind, lanes))
                params = (param("x0", real, [SIZE]), param("y", real, [SIZE], written=True))
                runs.append(single(Kernel(name, params, (SIZE,), body), name))
    library = compiled(tmp_path, runs, isa)
    for run in runs:
        real = getattr(torch, run.name.split("_")[0])
        x = torch.tensor([-0.5, -2.5, 0.7, -0.0, 7.0, -0.2, 3e5, -1.0] * 4, dtype=real)
        out = torch.empty_like(x)
        assert library(run.name, x, out, len(x)) == 0
        wanted = x.trunc() + 0.0
        assert torch.equal(out, wanted) and not bool((out.signbit() != wanted.signbit()).any()), run.name
