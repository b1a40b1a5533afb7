"""The recipe of nests for GPUs: which loops are programs, which are lanes, and that none of it races."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from smelt.config import Config
from smelt.errors import Unsupported
from smelt.nest.ir import Alloc, Carry, Kernel
from smelt.nest.tree import accesses, loops, trip_count, walk
from smelt.nest.verify import verify_blocks
from smelt.schedule import Scheduled, Target, schedule
from tests.lowering.harness import lowered

GPU = Target(vector_bytes=4, blocks=True)
PROGRAMS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "pointwise": (lambda x: x * 2, [torch.randn(7, 300)]),
    "softmax": (lambda x: F.softmax(x, -1), [torch.randn(8, 300)]),
    "short": (lambda x: F.softmax(x, -1), [torch.randn(5000, 100)]),
    "pooled": (lambda x: F.max_pool2d(x.relu(), 3, 2, 1), [torch.randn(1, 16, 56, 56)]),
    "columns": (lambda x: x.sum(0), [torch.randn(80, 30)]),
    "all": (lambda x: x.sum(), [torch.randn(80, 30)]),
    "long": (lambda x: x.sum(-1), [torch.randn(3, 9000)]),
    "scan": (lambda x: x.cumsum(-1), [torch.randn(8, 30)]),
    "mode": (lambda x: x.mode(-1), [torch.randn(8, 30)]),
    "scatter": (lambda x, i: x.index_add(0, i, x), [torch.randn(4, 6), torch.tensor([0, 3, 3, 1])]),
    "index_put": (
        lambda x, i, y: torch.index_put(x, [i], y),
        [torch.randn(9, 6), torch.tensor([0, 3, 2, 1]), torch.randn(4, 6)],
    ),
    "products": (
        lambda x, i: x.scatter_reduce(0, i[:, None].expand(4, 6), x, "prod"),
        [torch.randn(4, 6), torch.tensor([0, 3, 3, 1])],
    ),
    "maxima": (
        lambda x, i: x.scatter_reduce(0, i[:, None].expand(4, 6), x, "amax"),
        [torch.randn(4, 6), torch.tensor([0, 3, 3, 1])],
    ),
    "integers": (
        lambda x, i: x.index_add(0, i, x),
        [torch.randint(9, (4, 6)), torch.tensor([0, 3, 3, 1])],
    ),
    "many": (
        lambda x, i, y: x.index_add(0, i, y),
        [torch.randn(9), torch.randint(9, (2000,)), torch.randn(2000)],
    ),
    "mirrored": (lambda x: F.softmax(x, -1).flip(-1) * x.sum(-1, keepdim=True), [torch.randn(8, 40)]),
}


def _scheduled(name: str, deterministic: bool = False) -> Scheduled:
    function, inputs = PROGRAMS[name]
    config = Config(deterministic=deterministic)
    return schedule(lowered(function, *inputs), config, GPU, choose=lambda *product: False)


def _threads(kernel: Kernel) -> list[tuple[str, str]]:
    return [(str(loop.thread or "serial"), str(trip_count(loop))) for loop in loops(kernel.body)]


def test_pointwise_loops_are_programs_of_1024_lanes() -> None:
    (kernel,) = _scheduled("pointwise").kernels
    (program, lanes) = loops(kernel.body)
    assert (program.thread, lanes.thread) == ("blockIdx.x", "threadIdx.y")
    assert trip_count(program) == 3  # 2100 elements


def test_a_short_row_is_lanes_of_one_program_and_stays_in_registers() -> None:
    (kernel,) = _scheduled("softmax").kernels
    assert _threads(kernel) == [("blockIdx.x", "8"), *[("threadIdx.x", "300")] * 3]
    assert any(isinstance(stmt, Alloc) for stmt in walk(kernel.body))


def test_a_program_takes_several_of_many_short_rows() -> None:
    (kernel,) = _scheduled("short").kernels
    assert _threads(kernel)[:2] == [("blockIdx.x", "625"), ("threadIdx.y", "8")]
    assert {trips for thread, trips in _threads(kernel) if thread == "threadIdx.x"} == {"100"}


def test_loops_that_share_too_few_programs_are_kernels_of_their_own() -> None:
    assert [_threads(kernel)[0] for kernel in _scheduled("pooled").kernels] == [
        ("blockIdx.x", "49"),
        ("blockIdx.x", "13"),
    ]


def test_neighbouring_results_are_lanes_both_ways() -> None:
    (kernel,) = _scheduled("columns").kernels
    assert [thread for thread, _ in _threads(kernel)] == ["threadIdx.y", "serial", "threadIdx.x"]


def test_a_long_row_is_gone_through_block_after_block() -> None:
    (kernel,) = _scheduled("long").kernels
    assert [thread for thread, _ in _threads(kernel)] == ["blockIdx.x", "serial", "threadIdx.x"]


def test_an_associative_scan_is_lanes() -> None:
    (kernel,) = _scheduled("scan").kernels
    assert _threads(kernel) == [("blockIdx.x", "8"), ("threadIdx.x", "30")]


def test_another_scan_keeps_its_order() -> None:
    kernel = next(
        each
        for each in _scheduled("mode").kernels
        if any(isinstance(stmt, Carry) for stmt in walk(each.body))
    )
    assert _threads(kernel) == [("threadIdx.y", "8"), ("serial", "30")]


@pytest.mark.parametrize("name", ["scatter", "index_put"])
def test_a_scatter_is_spread_over_lanes(name: str) -> None:
    kernel = _scheduled(name).kernels[-1]
    assert _threads(kernel) == [("threadIdx.y", "24")]


def test_a_row_that_is_read_in_another_order_goes_through_memory() -> None:
    (kernel,) = _scheduled("mirrored").kernels
    assert not any(isinstance(stmt, Alloc) for stmt in walk(kernel.body))
    stored = {buffer for buffer, _, is_store in accesses(kernel.body) if is_store}
    assert stored & {buffer for buffer, _, is_store in accesses(kernel.body) if not is_store} == {"p1"}


@pytest.mark.parametrize("name", ["scatter", "index_put", "products"])
def test_a_scatter_in_order_has_lanes_for_columns_alone(name: str) -> None:
    kernel = _scheduled(name, deterministic=True).kernels[-1]
    assert _threads(kernel) == [("threadIdx.y", "6"), ("serial", "4")]


@pytest.mark.parametrize("name", ["maxima", "integers"])
def test_a_scatter_whose_order_does_not_matter_is_spread_over_lanes(name: str) -> None:
    kernel = _scheduled(name, deterministic=True).kernels[-1]
    assert _threads(kernel) == [("threadIdx.y", "24")]


def test_a_scatter_of_too_many_elements_in_order_is_left_to_aten() -> None:
    with pytest.raises(Unsupported, match="2000 elements that may have one place") as caught:
        _scheduled("many", deterministic=True)
    assert caught.value.call is not None and caught.value.call[0] == "aten.index_add.default"


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "many"])
def test_no_two_programs_write_one_element(name: str, deterministic: bool) -> None:
    verify_blocks(_scheduled(name, deterministic).kernels)
