"""Stores that combine, in C++: every mode and dtype, in one lane and in several, and what places raise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from smelt.loops.elementwise import apply
from smelt.loops.ir import ACCUMULATIONS
from smelt.nest.ir import For, Kernel, Let, LoopKind, Store
from tests.codegen.isas import ISAS, compiled
from tests.codegen.support import SIZE, Library, block, number, param, single, var

I64, BOOL = torch.int64, torch.bool
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, I64, torch.int8, torch.uint8, BOOL)
LANES = 8
ROWS = 5
ROW, COLUMN, AT = var("i"), var("j"), var("at")
CASES = [
    (mode, dtype)
    for mode in ACCUMULATIONS
    for dtype in DTYPES
    if dtype is not BOOL or mode in ("maximum", "minimum")
]


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def rows(mode: str, dtype: torch.dtype, lanes: int) -> Kernel:
    """``y[n[i], j] = mode(y[n[i], j], x[i, j])``, the columns in lanes."""
    kind = LoopKind.SERIAL if lanes == 1 else LoopKind.VECTOR
    inner = block(Let("v", dtype, "load", ("x", (ROW, COLUMN))), Store("y", (AT, COLUMN), "v", mode))
    place = [
        Let("n0", I64, "load", ("n", (ROW,))),
        Let("p", I64, "indirect_index", ("n0", number(ROWS), False, "RuntimeError"), AT),
    ]
    outer = For(ROW, number(0), number(9), block(*place, For(COLUMN, number(0), SIZE, inner, kind, lanes)))
    params = [
        param("n", I64, [9]),
        param("x", dtype, [9, SIZE]),
        param("y", dtype, [ROWS, SIZE], written=True),
    ]
    return Kernel(f"{mode}_{short(dtype)}_{lanes}", tuple(params), (SIZE,), block(outer))


def strided(mode: str, dtype: torch.dtype, lanes: int) -> Kernel:
    """``y[j, 0] = mode(y[j, 0], x[j])`` with the lanes along j: each lane has a place of its own."""
    kind = LoopKind.SERIAL if lanes == 1 else LoopKind.VECTOR
    body = block(Let("v", dtype, "load", ("x", (COLUMN,))), Store("y", (COLUMN, number(0)), "v", mode))
    params = (param("x", dtype, [SIZE]), param("y", dtype, [SIZE, 3], written=True))
    name = f"strided_{mode}_{short(dtype)}_{lanes}"
    return Kernel(name, params, (SIZE,), block(For(COLUMN, number(0), SIZE, body, kind, lanes)))


@pytest.fixture(scope="module", params=ISAS)
def nests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder: Path = tmp_path_factory.mktemp("scatter")
    kernels = [
        make(mode, dtype, lanes) for mode, dtype in CASES for lanes in (1, LANES) for make in (rows, strided)
    ]
    return compiled(folder, [single(kernel, kernel.name) for kernel in kernels], request.param)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    made = torch.randint(-4, 5, shape)
    if dtype.is_floating_point:
        some = made.to(dtype) / 3
        some[torch.rand(shape) < 0.05] = float("nan")
        return some
    return made > 0 if dtype is BOOL else made.to(dtype)


@pytest.mark.parametrize("lanes", [1, LANES])
@pytest.mark.parametrize(("mode", "dtype"), CASES)
def test_rows_combine(nests: Library, mode: str, dtype: torch.dtype, lanes: int) -> None:
    torch.manual_seed(0)
    for size in (1, 8, 29):
        index, x, y = torch.randint(0, ROWS, (9,)), values(dtype, 9, size), values(dtype, ROWS, size)
        want = y.clone()
        for row, place in enumerate(index.tolist()):
            want[place] = apply(mode, [want[place], x[row]])
        assert nests(f"{mode}_{short(dtype)}_{lanes}", index, x, y, size) == 0
        torch.testing.assert_close(y, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("lanes", [1, LANES])
@pytest.mark.parametrize(("mode", "dtype"), CASES)
def test_columns_combine(nests: Library, mode: str, dtype: torch.dtype, lanes: int) -> None:
    torch.manual_seed(0)
    x, y = values(dtype, 29), values(dtype, 29, 3)
    want = y.clone()
    want[:, 0] = apply(mode, [want[:, 0], x])
    assert nests(f"strided_{mode}_{short(dtype)}_{lanes}", x, y, 29) == 0
    torch.testing.assert_close(y, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bad", [-1, ROWS])
@pytest.mark.parametrize("lanes", [1, LANES])
def test_a_place_raises_what_it_is_told_to(nests: Library, lanes: int, bad: int) -> None:
    index, x, y = torch.zeros(9, dtype=I64), torch.ones(9, 11), torch.zeros(ROWS, 11)
    index[4] = bad
    name = f"add_float32_{lanes}"
    failed = nests(name, index, x, y, 11)
    assert nests.unit.errors[name][failed - 1] == ("RuntimeError", "index out of bounds")
