"""The recipe of matrix products for GPUs: tiles, blocks of terms, and which nests are products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sympy import Integer

from smelt.config import Config
from smelt.loops.ir import Contraction
from smelt.nest.ir import Kernel
from smelt.nest.tree import loops, trip_count
from smelt.records import replace
from smelt.schedule import Target, schedule
from smelt.schedule.tilings import Extents, Tiles, candidates, usual_tiles
from tests.lowering.harness import lowered

GPU = Target(vector_bytes=4, blocks=True)
LARGE = replace(GPU, multiprocessors=132)


def _kernels(
    function: Callable[..., Any], *inputs: torch.Tensor, target: Target = GPU, tiles: bool | Tiles = True
) -> list[Kernel]:
    def choose(product: Any, graph: Any, target: Any) -> bool | Tiles:
        return tiles if isinstance(getattr(product, "body", None), Contraction) else False

    return schedule(lowered(function, *inputs), Config(verify=True), target, choose=choose).kernels


def _threads(kernel: Kernel) -> list[tuple[str, str]]:
    return [(str(loop.thread or "serial"), str(trip_count(loop))) for loop in loops(kernel.body)]


def _tiled(kernel: Kernel) -> bool:
    return any(loop.thread == "threadIdx.z" for loop in loops(kernel.body))


def test_rows_and_columns_are_tiles_and_terms_are_blocks() -> None:
    (kernel,) = _kernels(lambda a, b: (a @ b).relu(), torch.randn(128, 96), torch.randn(96, 192))
    assert [thread for thread, _ in _threads(kernel)] == [
        *("blockIdx.x", "threadIdx.y", "threadIdx.x", "serial", "threadIdx.z")
    ]
    assert dict(_threads(kernel))["blockIdx.x"] == "6"  # 2 x 3 tiles of 64 x 64


def test_16_bit_floats_have_larger_tiles() -> None:
    a, b = torch.randn(256, 64).bfloat16(), torch.randn(64, 256).bfloat16()
    (kernel,) = _kernels(lambda a, b: a @ b, a, b)
    assert dict(_threads(kernel))["blockIdx.x"] == "4"  # 2 x 2 tiles of 128 x 128


def test_tiles_of_rows_that_share_columns_run_together() -> None:
    (kernel,) = _kernels(lambda a, b: a @ b, torch.randn(1024, 16), torch.randn(16, 128))
    rows = next(loop for loop in loops(kernel.body) if loop.thread == "threadIdx.y")
    (grid,) = rows.begin.free_symbols
    begins = [int(rows.begin.subs(grid, number)) for number in range(18)]
    assert begins == [*range(0, 512, 64), *range(0, 512, 64), 512, 576]


def test_few_results_of_many_terms_are_sums_of_parts() -> None:
    a, b = torch.randn(64, 8192), torch.randn(8192, 64)
    first, second = _kernels(lambda a, b: (a @ b).relu(), a, b, target=LARGE)
    assert dict(_threads(first))["blockIdx.x"] == "32" and _tiled(first) and not _tiled(second)
    assert [trip_count(loop) for loop in loops(first.body) if loop.thread is None] == [256 // 32]


@pytest.mark.parametrize(
    "shapes", [((64, 8191), (8191, 64)), ((4096, 512), (512, 4096)), ((64, 1024), (1024, 8192))]
)
def test_a_product_is_one_kernel_if_nothing_divides_its_terms_or_there_are_programs_enough(
    shapes: tuple[tuple[int, int], ...],
) -> None:
    a, b = (torch.empty(shape) for shape in shapes)
    (kernel,) = _kernels(lambda a, b: (a @ b).relu(), a, b, target=LARGE)
    assert _tiled(kernel)


def test_tiles_that_are_asked_for_are_the_loops_and_the_annotations() -> None:
    tiles = Tiles(32, 16, 16, warps=2, stages=5, descriptors=True)
    few = replace(GPU, multiprocessors=5)
    (kernel,) = _kernels(
        lambda a, b: a @ b, torch.randn(64, 64), torch.randn(64, 96), target=few, tiles=tiles
    )
    assert _threads(kernel) == [
        *(("blockIdx.x", "5"), ("serial", "3"), ("threadIdx.y", "32"), ("threadIdx.x", "16")),
        *(("serial", "4"), ("threadIdx.z", "16")),
    ]
    (terms,) = (loop for loop in loops(kernel.body) if loop.thread == "threadIdx.z")
    assert terms.notes == (*tiles.notes, ("extents", (64, 96, 64)))


def test_candidates_begin_with_the_rule_and_fit_the_product() -> None:
    extents = Extents(1, 64, 8192, 4096, narrow=True)
    found = list(candidates(extents, 132, True, (Integer(4096),)))
    assert found[0] == usual_tiles(extents, 132, (Integer(4096),)) and len(set(found)) == len(found) > 5
    assert all(each.rows <= 64 for each in found) and any(each.descriptors for each in found)
    few = list(candidates(Extents(1, 64, 64, 65536, narrow=True), 132, True, (Integer(65536),)))
    assert {1, 32} <= {each.parts for each in few} and not any(each.descriptors for each in few)


def test_what_both_operands_follow_is_a_batch() -> None:
    (kernel,) = _kernels(lambda a, b: a @ b, torch.randn(5, 128, 32), torch.randn(5, 32, 64))
    assert dict(_threads(kernel))["blockIdx.x"] == "10"


def test_all_positions_of_a_convolution_are_rows() -> None:
    x, w = torch.randn(2, 8, 16, 16), torch.randn(64, 8, 3, 3)
    (kernel,) = _kernels(lambda x, w: F.conv2d(x, w, padding=1).relu(), x, w)
    assert _tiled(kernel) and dict(_threads(kernel))["blockIdx.x"] == "8"  # 2 * 16 * 16 rows in tiles of 64


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: (a * b).sum(-1),
        lambda a, b: (a @ b[0]).relu(),
        lambda a, b: (a[:, None] - b[None]).abs().sum(-1),
        lambda a, b: F.conv2d(a[None, :, :, None], b[:, None, :2, None], groups=64),
    ],
    ids=["rows", "vector", "distances", "depthwise"],
)
def test_other_sums_are_no_products(function: Callable[..., Any]) -> None:
    assert not any(map(_tiled, _kernels(function, torch.randn(64, 64), torch.randn(64, 64))))


def test_a_row_operation_has_a_kernel_of_its_own() -> None:
    kernels = _kernels(lambda a, b: torch.softmax(a @ b, -1), torch.randn(64, 32), torch.randn(32, 64))
    assert [_tiled(kernel) for kernel in kernels] == [True, False]
