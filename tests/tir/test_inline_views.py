"""A block is inlined through a view of a part of its buffer, which TVM refuses: the numbers are the same."""

import pytest
import torch

from smelt.script import from_source
from smelt.tir import Schedule, ScheduleError
from tests.nest.staging import same
from tests.script.test_round_trip import again
from tests.tir.compiling import compiled

TWICE = """
from smelt.script import tir as T
@T.prim_func
def main(A: T.Buffer((16, 16)), C: T.Buffer((16, 16))):
    B = T.sblock_alloc_buffer((16, 16))
    for i, j in T.grid(16, 16):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2) + T.Cast("float32", vi * 16 + vj)
"""
ONE = """
    for i, j in T.grid(16, 16):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            Bb = T.match_buffer(B[vi : vi + 1, vj], (1, 1))
            C[vi, vj] = Bb[0, 0] + T.float32(1)
"""
TILES = """
    for i, j in T.grid(4, 4):
        with T.sblock("tile"):
            vi, vj = T.axis.remap("SS", [i, j])
            Bb = T.match_buffer(B[vi * 4 : vi * 4 + 4, 12 - vj * 4 : 16 - vj * 4], (4, 4))
            for k, l in T.grid(4, 4):
                with T.sblock("C"):
                    vk, vl = T.axis.remap("SS", [k, l])
                    C[vi * 4 + vk, vj * 4 + vl] = Bb[vl, 3 - vk] - Bb[vk, vl]
"""


@pytest.mark.parametrize("consumer", [ONE, TILES], ids=["one", "tiles"])
def test_inlined_through_a_view(consumer: str) -> None:
    func = from_source(TWICE + consumer)
    sch = Schedule(func, check=True)
    sch.compute_inline("B")
    assert "sblock_alloc" not in sch.func.script()
    same(func.kernel, sch.func.kernel)
    a, c = torch.randn(16, 16), torch.full((16, 16), 77.0)
    (_, one), (_, other) = compiled(func, a, c), compiled(sch, a, c)
    assert torch.equal(one, other) and not (one == 77).any()
    again(sch.func)


def test_what_is_written_through_a_view_is_no_value_to_inline() -> None:
    written = TILES.replace("C[vi * 4 + vk, vj * 4 + vl] =", "Bb[vk, vl] =")
    sch = Schedule(from_source(TWICE + written))
    with pytest.raises(ScheduleError):
        sch.compute_inline("B")
