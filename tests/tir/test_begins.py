"""Reductions that begin an element twice, late, or with other blocks in between: TVM's text can say them, and
steps that would change what they compute are refused.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sympy import Integer, Symbol

from smelt.nest.dependence import conflict
from smelt.nest.ir import Block, For, Let, Store
from smelt.script import from_source
from smelt.script.module import PrimFunc
from smelt.tir import Schedule, ScheduleError
from tests.nest.staging import F32

SUM = """
            with T.init():
                B[v_i] = T.float32(0.0)
            B[v_i] = B[v_i] + A[v_i, v_k]
"""


def program(loops: str, *axes: str) -> PrimFunc:
    """A sum over the elements of a row, in loops and with axes as they are written."""
    head = 'def main(A: T.Buffer((8, 16), "float32"), B: T.Buffer((12,), "float32")):'
    block = "".join(f"            {each}\n" for each in axes)
    found = from_source(
        f'@T.prim_func\n{head}\n    for {loops}:\n        with T.block("B"):\n{block}{SUM.lstrip(chr(10))}'
    )
    assert isinstance(found, PrimFunc)
    return found


BACKWARDS = program("i, k in T.grid(8, 16)", "v_i = T.axis.spatial(8, i)", "v_k = T.axis.reduce(16, 15 - k)")
HALO = program("k, i, w in T.grid(16, 6, 3)", "v_i = T.axis.spatial(8, i + w)", "v_k = T.axis.reduce(16, k)")
TWICE = program("i, j, k in T.grid(8, 4, 16)", 'v_i, v_j, v_k = T.axis.remap("SSR", [i, j, k])')
LATE = program("i, k in T.grid(8, 16)", 'v_i, v_k = T.axis.remap("SR", [i, k])', "T.where(k >= 3)")
NOT_AFFINE = program(
    "i, k in T.grid(8, 4)", "v_i = T.axis.spatial(8, i)", "v_k = T.axis.reduce(16, k * k // 2)"
)

REFUSED: dict[str, tuple[PrimFunc, Callable[[Schedule], object], str]] = {
    "the last iteration begins": (
        BACKWARDS,
        lambda s: s.decompose_reduction("B", s.get_loops("B")[1]),
        "first",
    ),
    "parts of one that the last iteration begins": (
        BACKWARDS,
        lambda s: s.rfactor(s.split(s.get_loops("B")[1], [None, 4])[0], 0),
        "first value",
    ),
    "its parts change places": (
        BACKWARDS,
        lambda s: s.reorder(*reversed(s.split(s.get_loops("B")[1], [None, 4]))),
        "same element",
    ),
    "rows that overlap": (
        HALO,
        lambda s: s.decompose_reduction("B", s.get_loops("B")[0]),
        "i may initialize",
    ),
    "rows that overlap, in parts": (HALO, lambda s: s.rfactor(s.get_loops("B")[0], 0), "i may initialize"),
    "rows that overlap change places": (
        HALO,
        lambda s: s.reorder(s.get_loops("B")[1], s.get_loops("B")[0]),
        "same element",
    ),
    "an axis that no index has": (
        TWICE,
        lambda s: s.decompose_reduction("B", s.get_loops("B")[1]),
        "j may initialize an element of B twice",
    ),
    "a condition that leaves the first turn out": (
        LATE,
        lambda s: s.decompose_reduction("B", s.get_loops("B")[1]),
        "k >= 3",
    ),
    "an axis that is no sum of digits": (NOT_AFFINE, lambda s: s.parallel(s.get_loops("B")[0]), "no sum of"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_begins_otherwise_is_refused(name: str) -> None:
    func, step, why = REFUSED[name]
    sch = Schedule(func, check=True)
    with pytest.raises(ScheduleError, match=why) as caught:
        step(sch)
    assert caught.value.code != "SM1010"  # refused before it is tried, not found out by running it


USER = """
@T.prim_func
def main(A: T.Buffer((8, 16), "float32"), B: T.Buffer((12,), "float32")):
    for i in T.serial(8):
{before}        for k in T.serial(16):
            with T.block("B"):
                v_i, v_k = T.axis.remap("SR", [i, k])
                with T.init():
                    B[v_i] = T.float32(0.0)
                B[v_i] = B[v_i] + A[v_i, v_k]
{after}"""
READER = """        with T.block("D"):
            v_i = T.axis.spatial(8, i)
            A[v_i, 0] = B[{index}]
"""


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [("", "v_i", True), ("", "v_i + 1", False), ("v_i", "", False)],
    ids=["reads the sum", "reads the next one", "reads what was there before"],
)
def test_other_blocks_in_the_loops(before: str, after: str, allowed: bool) -> None:
    text = USER.format(
        before=READER.format(index=before) if before else "",
        after=READER.format(index=after) if after else "",
    )
    sch = Schedule(from_source(text), check=True)  # type: ignore[arg-type]
    i, k = sch.get_loops("B")
    if allowed:
        sch.decompose_reduction("B", i)
        return
    with pytest.raises(ScheduleError, match="D uses B"):
        sch.decompose_reduction("B", i)
    sch.decompose_reduction("B", k)


def test_a_loop_outside_of_those_that_are_swapped_may_be_anywhere_in_an_axis() -> None:
    """TVM: reorder with partial affineness."""
    text = """
@T.prim_func
def main(A: T.Buffer((14, 4), "float32"), B: T.Buffer((14, 4), "float32")):
    for i, j, k in T.grid(3, 4, 4):
        with T.block("B"):
            v_i = T.axis.spatial(14, i * i + j)
            v_k = T.axis.spatial(4, k)
            B[v_i, v_k] = A[v_i, v_k] + T.float32(1.0)
"""
    sch = Schedule(from_source(text), check=True)  # type: ignore[arg-type]
    i, j, k = sch.get_loops("B")
    with pytest.raises(ScheduleError, match="no sum of digits"):
        sch.reorder(i, k, j)
    sch.reorder(k, j)


def test_larger_steps_that_meet_are_no_digits() -> None:
    """y[i + 5*j + 6*k]: (1, 1, 0) and (0, 0, 1) are one element; rows with a gap between them are not."""
    i, j, k = (Symbol(name, integer=True, nonnegative=True) for name in "ijk")

    def loop(large: int, larger: int) -> For:
        load = Let("v0", F32, "load", ("x", (i,)))
        body = Block((load, Store("y", (i + large * j + larger * k,), "v0")))
        for var in (k, j):
            body = Block((For(var, Integer(0), Integer(2), body),))
        return For(i, Integer(0), Integer(3), body)

    assert conflict(loop(5, 6)) is not None
    assert conflict(loop(5, 17)) is None
