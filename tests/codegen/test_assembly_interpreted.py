"""The assembly of AVX-512's register tiles, interpreted on any machine: the same sums as the loop's, the same
reads, the same prefetches (`tests.support.avx512`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from sympy import Expr

from smelt.codegen.cpp.assembly import MOST_OUTER, fits
from smelt.config import Config
from smelt.nest.finish import finish
from smelt.nest.intrinsics import RESULTS, intrinsic_named
from smelt.nest.ir import Kernel
from smelt.nest.tree import stages
from smelt.records import replace
from smelt.schedule import Target, schedule
from smelt.schedule.products.register_tile import Tile
from smelt.symbolic import FloorDiv
from smelt.tir import Schedule, intrinsics, recipes
from tests.codegen.support import SIZE, block, number, param, single, var
from tests.lowering.harness import lowered
from tests.schedule.simulate import simulate
from tests.support.agreement import draw
from tests.support.avx512 import Interpreted
from tests.tir.test_recipes import product

F = torch.nn.functional
F32 = torch.float32
AVX512 = Target(64, (), 2)
LANES, MOST_TERMS = 16, 11
ROW, COLUMN, *OVER = (var(name) for name in "ijklmno")
PLACES = {"terms": ROW * 60 + OVER[-1], "rows": ROW + OVER[-1] * 9}
"""What is contiguous in lhs."""
SHAPES = [(rows, sides) for rows in range(1, 9) for sides in range(1, 11) if fits(rows, sides)]
SHAPES = [(rows, sides) for rows, sides in SHAPES if sides <= 2 or not fits(rows, sides + 1)]


def kernel(name: str, rows: int, sides: int, place: Expr, outer: int, ahead: bool, result: str) -> Kernel:
    """A tile with SIZE terms in its last loop, and 2, 1, 3, 2 iterations of the loops around."""
    width, over = sides * LANES, OVER[len(OVER) - 1 - outer :]
    sizes = [*(number(size) for size in (2, 1, 3, 2)[:outer]), SIZE]
    begins = [number(level % 2) for level in range(outer)] + [number(0)]
    steps = [number(11 + 7 * level) for level in range(outer)]
    inside = sum((symbol * step for symbol, step in zip(over, steps)), number(0))
    panel = sum((symbol * (step + 1) for symbol, step in zip(over, steps)), number(0))
    tile = Tile(
        ("x", (place + inside,)),
        ("w", (panel + over[-1], COLUMN)),
        ("y", (ROW * (width + 5) + COLUMN,)),
        width,
        ("w", (panel + over[-1] * 3, number(0))) if ahead else None,
        result,
        ("f", (ROW * 2,)),
    )
    ranges = [(symbol, begin, begin + size) for symbol, begin, size in zip(over, begins, sizes)]
    made = tile.stage(ROW, COLUMN, ranges, rows, width, LANES)
    assert made is not None
    params = (param("x", F32, [2000]), param("w", F32, [400, width]), param("f", F32, [20]))
    params += (param("y", F32, [rows * (width + 5)], written=True),)
    return Kernel(name, params, (SIZE,), block(made))


def ran(kernels: list[Kernel], folder: Path, terms: range) -> None:
    """Runs tiles of so many terms; `Interpreted` compares what they do with the loops."""
    library = Interpreted(folder, [single(each) for each in kernels])
    assert len(library.programs) == len(kernels)
    for each in kernels:
        tensors = [draw(*(int(size) for size in p.shape), seed=k) for k, p in enumerate(each.params)]
        for count in terms:
            assert library(f"run_{each.name}", *tensors, count) == 0
    assert library.ran == [len(terms)] * len(kernels)


@pytest.mark.parametrize("contiguous", PLACES)
def test_all_shapes_and_numbers_of_terms(contiguous: str, tmp_path: Path) -> None:
    made = [
        kernel(f"tile_of_{rows}_{sides}", rows, sides, PLACES[contiguous], 0, sides == 2, "store")
        for rows, sides in SHAPES
    ]
    ran(made, tmp_path, range(MOST_TERMS))


@pytest.mark.parametrize("contiguous", PLACES)
def test_terms_in_several_loops(contiguous: str, tmp_path: Path) -> None:
    made = [
        kernel(f"of_{rows}_{outer}_{ahead}", rows, sides, PLACES[contiguous], outer, bool(ahead), "store")
        for rows, sides in ((1, 3), (2, 1), (3, 2))
        for outer, ahead in ((1, 0), (1, 1), (2, 1), (MOST_OUTER, 0), (MOST_OUTER, 1))
    ]
    ran(made, tmp_path, range(MOST_TERMS))


def test_rows_anywhere_and_results(tmp_path: Path) -> None:
    made = [
        kernel(f"{result}_{outer}", 5, 2, FloorDiv(ROW + 1, 2) * 40 + ROW * 3 + OVER[-1], outer, True, result)
        for result in RESULTS
        for outer in range(3)
    ]
    ran(made, tmp_path, range(MOST_TERMS))


Case = tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]
CASES: dict[str, Case] = {
    "product": (lambda x, y: x @ y, [(17, 70), (70, 100)]),
    "transposed": (lambda x, y: x.t() @ y, [(67, 21), (67, 48)]),
    "added parts": (lambda x, y: x @ y, [(9, 1030), (1030, 33)]),
    "stem": (lambda x, w: F.conv2d(x, w, stride=2, padding=3), [(1, 3, 11, 14), (48, 3, 7, 7)]),
    "lines": (lambda x, w: F.conv2d(x, w, padding=1), [(1, 5, 7, 11), (33, 5, 3, 3)]),
    "attention": (F.scaled_dot_product_attention, [(1, 1, 20, 24), (1, 1, 70, 24), (1, 1, 70, 24)]),
}


def test_kernels(tmp_path: Path) -> None:
    """Strides and numbers of iterations as real kernels have them."""
    inputs = {name: [draw(*s, seed=k) for k, s in enumerate(shapes)] for name, (_, shapes) in CASES.items()}
    graphs = {name: lowered(function, *inputs[name]) for name, (function, _) in CASES.items()}
    made = {name: schedule(graph, Config(), AVX512, choose=lambda *_: True) for name, graph in graphs.items()}

    def entry(name: str, run: str) -> str:
        return f"{name.replace(' ', '_')}_{run}"

    runs = [replace(run, name=entry(name, run.name)) for name, each in made.items() for run in each.runs]
    library = Interpreted(tmp_path, runs)

    def call(case: str, run: str, *args: torch.Tensor | int, arena: torch.Tensor) -> int:
        return library(entry(case, run), *args, arena=arena)

    for name, (function, _) in CASES.items():
        (found,) = simulate(graphs[name], made[name], inputs[name], library=partial(call, name))  # type: ignore[arg-type]
        wanted = function(*(each.double() for each in inputs[name]))
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    assert min(library.ran) > 0
    kernels = [call.kernel for run in runs for call in run.calls]
    texts = [stage.text for each in kernels for stage in stages(each.body) if stage.text is not None]
    tiles = [text for text in texts if text.form[0] == "register_tile"]
    assert {text.form[4] for text in tiles} == {"store", "add", "scale"}
    assert {len(text.counts) for text in tiles} == {1, 2}
    lhs = [text.operands[0] for text in tiles]
    assert {each.each is None for each in lhs} == {each.strides[-1] == 1 for each in lhs} == {True, False}


@pytest.mark.parametrize("form", ["nt", "tt"])
def test_recipes(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile prefetches what is for others, at a step that is no stride of its loop."""
    monkeypatch.setattr(intrinsics, "intrinsic_named", lambda name, _: intrinsic_named(name, LANES))
    sch = Schedule(product(19, 96, 33, form, relu=False))
    sch.apply(recipes.matmul, target=AVX512)
    made = finish(sch.func.kernel, LANES)
    library = Interpreted(tmp_path, [single(made)])
    x, y = draw(*((33, 19) if form[0] == "t" else (19, 33))), draw(96, 33, seed=1)
    found = torch.empty(19, 96)
    assert library(f"run_{made.name}", x, y, found) == 0
    wanted = (x.t() if form[0] == "t" else x).double() @ y.t().double()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    assert min(library.ran) > 0
    assert any(op == "prefetcht0" for program in library.programs for op, _ in program.steps)
