"""The recipe of matrix products for GPUs: tiles, blocks of terms, and which nests are products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from smelt.config import Config
from smelt.loops.ir import Contraction
from smelt.nest.ir import Kernel
from smelt.nest.tree import loops, trip_count
from smelt.schedule import Target, schedule
from tests.lowering.harness import lowered

GPU = Target(vector_bytes=4, blocks=True)


def _kernels(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Kernel]:
    def choose(product: Any, graph: Any, target: Any) -> bool:
        return isinstance(getattr(product, "body", None), Contraction)

    return schedule(lowered(function, *inputs), Config(), GPU, choose=choose).kernels


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
