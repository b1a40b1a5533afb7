"""Register tiles as stages: the printed tile computes what the stage says, wherever its rows are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sympy import Expr

from smelt.nest.interpreter import run_kernel
from smelt.nest.intrinsics import RESULTS
from smelt.nest.ir import Kernel, Stage
from smelt.nest.verify import verify
from smelt.runtime import toolchain
from smelt.schedule.products.register_tile import Tile
from smelt.symbolic import FloorDiv
from tests.codegen.support import Library, block, number, param, single, var

ROWS, OUTER, TERMS = 5, 3, 9
LANES = toolchain.find().vector_bytes // 4
WIDTH = 2 * LANES
ROW, COLUMN, OVER, TERM = (var(name) for name in "ijkl")
LOOPS = ((OVER, number(0), number(OUTER)), (TERM, number(1), number(TERMS)))
ROW_PLACES = {
    "rows at a stride": ROW * 40 + OVER * 10 + TERM,
    "terms at a stride": ROW + OVER * 50 + TERM * 5,
    "rows anywhere": FloorDiv(ROW + 1, 2) * 40 + ROW * 3 + OVER * 10 + TERM,
}
F32 = torch.float32


def stage(place: Expr, result: str = "store", ahead: bool = False) -> Stage | None:
    tile = Tile(
        ("x", (place,)),
        ("w", (OVER, TERM, COLUMN)),
        ("y", (ROW * 2 * WIDTH + COLUMN,)),
        WIDTH,
        ("x", (OVER * 4 + TERM,)) if ahead else None,
        result,
        ("f", (ROW * 2,)),
    )
    return tile.stage(ROW, COLUMN, LOOPS, ROWS, WIDTH, LANES)


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("rows", ROW_PLACES)
@pytest.mark.parametrize("ahead", [False, True])
def test_the_printed_tile_is_the_stage(rows: str, result: str, ahead: bool, tmp_path: Path) -> None:
    made = stage(ROW_PLACES[rows], result, ahead)
    assert made is not None
    params = [param("x", F32, [240]), param("w", F32, [OUTER, TERMS, WIDTH]), param("f", F32, [2 * ROWS])]
    params.append(param("y", F32, [2 * ROWS * WIDTH], written=True))
    kernel = Kernel("tiles", tuple(params), (), block(made))
    verify(kernel)
    x, w, f, y = (torch.randn(size) for size in (240, OUTER * TERMS * WIDTH, 2 * ROWS, 2 * ROWS * WIDTH))
    want = y.clone()
    run_kernel(kernel, {"x": x, "w": w, "f": f, "y": want})
    assert Library(tmp_path, [single(kernel)])("run_tiles", x, w, f, y) == 0
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", [ROW * 40 + OVER * TERM, ROW * TERM, ROW + FloorDiv(TERM, 2), ROW + COLUMN])
def test_terms_need_strides(place: Expr) -> None:
    assert stage(place) is None
