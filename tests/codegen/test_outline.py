"""Register tiles as functions: products of several sizes call one, also from files of their own."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import conv2d

import smelt
from smelt.codegen.cpp import print_unit, printer
from smelt.config import Config
from smelt.nest.ir import Let, Run
from smelt.nest.tree import loops, stages, trip_count, walk
from smelt.schedule import Target, schedule
from tests.lowering.harness import lowered
from tests.support.agreement import assert_close

DEFINED = re.compile(r"^__attribute__\(\(noinline\)\) (?:static )?void (tile_\w+)\(.*\) {$", re.MULTILINE)
DECLARED = re.compile(r"^void (tile_\w+)\(.*\);$", re.MULTILINE)
CALLED = re.compile(r"^ +(tile_\w+)\(.*\);$", re.MULTILINE)


def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for weight in weights:
        x = (x @ weight).relu()
    return x


def inputs(rows: int, *sizes: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(rows, sizes[0]), *pairwise(sizes)]
    return tuple(torch.randn(shape, generator=generator) / shape[0] ** 0.5 for shape in shapes)


def runs(rows: int, *sizes: int) -> list[Run]:
    return schedule(lowered(layers, *inputs(rows, *sizes)), Config(), Target(32)).runs


def test_products_of_several_sizes_call_one_tile() -> None:
    text = print_unit(runs(48, 128, 160, 192)).text
    (tile,) = DEFINED.findall(text)
    assert CALLED.findall(text) == [tile, tile]
    assert len(re.findall(r"^static void kernel_\w*tiled\w*\(", text, re.MULTILINE)) == 2


def test_a_tile_is_a_stage() -> None:
    """In the kernels' trees it is one multiply-add in loops over rows and columns; its function has all."""
    made = runs(48, 128, 160, 192)
    tiles = [stage for run in made for call in run.calls for stage in stages(call.kernel.body)]
    assert [stage.text and stage.text.form for stage in tiles] == [
        ("register_tile", 6, 16, 8, "store", 0)
    ] * 2
    for stage in tiles:
        assert [int(trip_count(loop)) for loop in loops(stage.body)][:2] == [6, 16]
        assert sum(isinstance(each, Let) and each.op == "fma" for each in walk(stage.body)) == 1
    text = print_unit(made).text
    (tile,) = DEFINED.findall(text)
    function, _ = text[text.index(f"void {tile}(") :].split("\n}\n", 1)
    assert function.count(" = fma(") == 12


def test_a_tile_of_another_form_is_another_function() -> None:
    """600 terms are summed in parts, 128 at once."""
    text = print_unit(runs(48, 128, 600, 128)).text
    assert len(set(DEFINED.findall(text))) == 2
    assert set(CALLED.findall(text)) == set(DEFINED.findall(text))


def test_what_follows_is_there_once_for_whole_tiles_and_the_last_one() -> None:
    graph = lowered(lambda a, b: (a @ b).relu(), torch.randn(49, 64), torch.randn(64, 48))
    text = print_unit(schedule(graph, Config(), Target(32)).runs).text
    body = re.search(r"^static void kernel_\w*tiled\w*\(.*?^}", text, re.MULTILINE | re.DOTALL)
    assert body is not None
    assert len(CALLED.findall(body[0])) == 2
    first, second = re.findall(r"^ +(rows_\w+)\(", body[0], re.MULTILINE)
    assert first == second
    assert text.count("= at_least(") == 1 and "at_least" not in body[0]


def test_kernels_that_only_call_functions_are_not_optimized_and_serve_any_size() -> None:
    def several(w: torch.Tensor, *images: torch.Tensor) -> list[torch.Tensor]:
        return [conv2d(x, w) for x in images]

    inputs = [torch.randn(64, 64, 1, 1), *(torch.randn(1, 64, n, n) for n in (24, 30, 36))]
    text = print_unit(schedule(lowered(several, *inputs), Config(), Target(32)).runs).text
    (name,) = re.findall(r"^SMELT_PLAIN static void (kernel_\w*tiled\w*)\(", text, re.MULTILINE)
    body = text[text.index(f"void {name}(") :].split("\n}\n", 1)[0]
    assert text.count(f"  {name}(") == 3 and "calls_in_parallel(n" in body
    assert len(CALLED.findall(body)) == 1 and "load<" not in body


def test_windows_that_are_unrolled_stay_where_they_are() -> None:
    x, w = torch.randn(1, 32, 14, 14), torch.randn(32, 1, 3, 3)
    graph = lowered(lambda x, w: conv2d(x, w, padding=1, groups=32).relu(), x, w)
    text = print_unit(schedule(graph, Config(), Target(32)).runs).text
    assert re.search(r"^static void kernel_\w*tiled\w*\(", text, re.MULTILINE)
    assert re.search(r"^ +const auto v\d+ = fma\(", text, re.MULTILINE) and not CALLED.findall(text)


def test_each_file_declares_the_tiles_that_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one of them has the tile, whether its kernels were handed on early or not."""
    monkeypatch.setattr(printer, "LEAST_PART", 200)
    monkeypatch.setattr(printer, "LEAST_EARLY", 200)
    monkeypatch.setattr(printer, "MOST_EARLY", 200)

    class Early(list[str]):
        header = None

        def free(self) -> bool:
            return len(self) < 2

        start = list.append

    early = Early()
    unit = printer.UnitPrinter(early)
    scheduled = schedule(
        lowered(layers, *inputs(48, 128, 160, 192, 224)), Config(), Target(32), ready=unit.add
    )
    files = [*early, *unit.finish(scheduled.runs, compilers=2).parts]
    assert len(early) == 2 and len(files) > 2
    assert len([name for file in files for name in DEFINED.findall(file)]) == 1
    assert any(CALLED.findall(file) and not DEFINED.findall(file) for file in files)
    for file in files:
        assert set(CALLED.findall(file)) <= set(DECLARED.findall(file))


@pytest.mark.parametrize("rows", [*range(41, 51), 1, 3])
def test_every_number_of_rows(rows: int) -> None:
    """The last tile has the rows that are left, and is a function of its own."""
    given = inputs(rows, 128, 600, 72)

    def added(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return layers(x, *weights) + x.sum(1, keepdim=True)

    fast = smelt.compile(added, dynamic=False)
    assert_close(fast(*given), added(*given), added(*(each.double() for each in given)))
