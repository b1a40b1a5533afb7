"""Padding apart from what is padded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt import te
from smelt.nest.tree import find
from smelt.script import from_source
from smelt.tir import PrimFunc, Schedule, ScheduleError
from tests.nest.staging import loops_of, same, stage
from tests.tir.compiling import compiled
from tests.tir.test_schedule import replays


def padded() -> PrimFunc:
    """Rows, and columns, with something around."""
    a = te.placeholder((9, 12), name="A")

    def element(i: Any, j: Any) -> Any:
        return te.if_then_else(te.all(i >= 2, i < 11, j >= 1, j < 13), a[i - 2, j - 1], 3.0)

    return te.create_prim_func([a, te.compute((14, 14), element, name="P")])


def pooled() -> PrimFunc:
    a, r = te.placeholder((2, 9), name="A"), te.reduce_axis((0, 3), "r")
    p = te.compute((2, 11), lambda c, i: te.if_then_else(te.all(i >= 1, i < 10), a[c, i - 1], 0.0), name="P")
    return te.create_prim_func([a, te.compute((2, 9), lambda c, i: te.max(p[c, i + r], axis=r), name="M")])


def agrees(func: PrimFunc, sch: Schedule) -> None:
    same(func.kernel, sch.func.kernel)
    for one, other in zip(compiled(sch), compiled(func)):
        torch.testing.assert_close(one, other)
    replays(sch, func)


@pytest.mark.parametrize("at", [0, 1])
def test_loops_are_as_long_as_what_is_padded(at: int) -> None:
    func = padded()
    sch = Schedule(func)
    loops = sch.get_loops(sch.get_block("P"))
    assert sch.can_decompose_padding("P", loops[at])
    made = sch.decompose_padding("P", loops[at])
    assert sch.get(made).name_hint == "P_pad_const"
    ends = [int(find(sch.func.kernel.body, var).end) for var in loops_of(sch.func.kernel, "P")]
    assert ends == ([9, 12] if at == 0 else [14, 12])
    assert bool(stage(sch.func.kernel, "P").where) == (at == 1)
    agrees(func, sch)


@pytest.mark.parametrize("factors", [[None, 4], [None, 5], [3, None]])
def test_split_loops_keep_conditions(factors: list[Any]) -> None:
    func = padded()
    sch = Schedule(func)
    _, i_1 = sch.split(sch.get_loops(sch.get_block("P"))[0], factors)
    sch.decompose_padding("P", i_1)
    assert stage(sch.func.kernel, "P").where
    agrees(func, sch)


@pytest.mark.parametrize("at", [0, 1, -1])
def test_tiles_of_what_reads_the_padding(at: int) -> None:
    func = pooled()
    sch = Schedule(func)
    block = sch.get_block("M")
    c, i, r = sch.get_loops(block)
    i_0, i_1 = sch.split(i, [3, 3])
    sch.reorder(i_0, c, i_1, r)
    sch.compute_at(sch.get_block("P"), i_0)
    sch.decompose_padding("P", sch.get_loops(sch.get_block("P"))[at])
    agrees(func, sch)


TWICE = """
from smelt.script import tir as T
@T.prim_func
def main(A: T.Buffer((4,)), B: T.Buffer((8,)), C: T.Buffer((8,))):
    for i in range(8):
        with T.sblock("P"):
            v = T.axis.spatial(8, i)
            B[v] = T.if_then_else(v < 4, A[v], T.float32(0))
    for i in range(8):
        with T.sblock("Q"):
            v = T.axis.spatial(8, i)
            C[v] = B[v]
"""

REFUSED = {
    "no padding": (pooled, "M", "SM1007.*under a condition"),
    "nothing is padded": (
        lambda: from_source(TWICE.replace("v < 4", "v < 8").replace("(4,)", "(8,)")),
        "P",
        "SM1007.*holds everywhere",
    ),
    "no condition": (lambda: from_source(TWICE), "Q", "SM1007.*under a condition"),
    "given memory that others read": (lambda: from_source(TWICE), "P", "SM1003.*others read"),
    "a condition on both": (
        lambda: from_source(TWICE.replace("v < 4", "v % 2 < 1").replace("A[v]", "A[v // 2]")),
        "P",
        "SM1007.*not about one axis",
    ),
    "elements twice": (
        lambda: from_source(TWICE.replace("B[v] = T", "B[v // 2] = T")),
        "P",
        "SM1007.*more than once",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    make, block, reason = REFUSED[name]
    sch = Schedule(make())
    before = sch.func.kernel
    loop = sch.get_loops(sch.get_block(block))[0]
    with pytest.raises(ScheduleError, match=reason):
        sch.decompose_padding(block, loop)
    assert sch.func.kernel == before and not sch.can_decompose_padding(block, loop)
