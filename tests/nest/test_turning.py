"""Columns stored as rows: the step, what it refuses, what is printed, and what the verifier says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt import te, tir
from smelt.errors import VerificationError
from smelt.nest.ir import LoopKind
from smelt.nest.primitives import ScheduleError
from smelt.nest.stages import dissolve
from smelt.nest.tree import loops, replace_loop, with_body
from smelt.nest.verify import verify
from smelt.records import replace
from smelt.runtime import toolchain
from smelt.script import from_source, structural_equal
from tests.tir.compiling import cpp_of

LANES = toolchain.find().vector_bytes // 4


def transposed(columns: int = 64, dtype: str = "float32", block: int = LANES) -> tir.Schedule:
    """T[i, j] = A[j, i], in blocks of a vector's lanes."""
    A = te.placeholder((32, columns), name="A", dtype=dtype)
    sch = tir.Schedule(te.create_prim_func([A, te.compute((columns, 32), lambda i, j: A[j, i], name="T")]))
    i, j = sch.get_loops("T")
    (i_0, i_1), (j_0, j_1) = sch.split(i, factors=[None, LANES]), sch.split(j, factors=[None, block])
    sch.reorder(i_0, j_0, i_1, j_1)
    return sch


def turned(**given: Any) -> tir.Schedule:
    sch = transposed(**given)
    *_, i_1, j_1 = sch.get_loops("T")
    sch.vectorize(i_1)
    sch.turn(j_1)
    return sch


def run(sch: tir.Schedule, columns: int, dtype: torch.dtype) -> str:
    """Checks a transposition; returns the text of its kernel."""
    a = torch.randint(-99, 99, (32, columns)).to(dtype)
    t = torch.empty(columns, 32, dtype=dtype)
    smelt.build(sch)(a, t)
    assert torch.equal(t, a.T)
    return cpp_of(sch.func.kernel, LANES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_blocks_are_turned_in_registers(dtype: torch.dtype) -> None:
    assert "copy_transposed<" in run(turned(dtype=str(dtype).removeprefix("torch.")), 64, dtype)


def test_the_tail_of_a_vector_loop_stores_its_lanes() -> None:
    """Its first lanes alone are active: nothing is turned there."""
    columns = 2 * LANES + 3
    A = te.placeholder((32, columns), name="A")
    sch = tir.Schedule(te.create_prim_func([A, te.compute((columns, 32), lambda i, j: A[j, i], name="T")]))
    i, j = sch.get_loops("T")
    j_0, j_1 = sch.split(j, factors=[None, LANES])
    sch.reorder(j_0, i, j_1)
    sch.vectorize(i)
    sch.turn(j_1)
    text = run(sch, columns, torch.float32)
    assert text.count("copy_transposed<") == 1


def test_its_text_is_read_back() -> None:
    text = turned().mod.script()
    assert "smelt_turn" in text
    assert structural_equal(from_source(text), turned().mod)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no vector loop": (lambda: (sch := transposed()).turn(sch.get_loops("T")[3]), "no vector loop"),
    "eight bytes": (lambda: turned(dtype="float64"), "four bytes"),
    "another number of columns": (lambda: turned(block=32), "not as many as a vector has lanes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_loops_are_refused(name: str) -> None:
    call, why = REFUSED[name]
    with pytest.raises(ScheduleError, match=why):
        call()


def test_rows_along_the_lanes_are_refused() -> None:
    A = te.placeholder((LANES, LANES), name="A")
    sch = tir.Schedule(te.create_prim_func([A, te.compute((LANES, LANES), lambda i, j: A[i, j], name="T")]))
    i, j = sch.get_loops("T")
    sch.reorder(j, i)
    sch.vectorize(j)
    with pytest.raises(ScheduleError, match="do not store adjacent elements"):
        sch.turn(i)


def test_a_loop_that_cannot_be_turned_is_a_problem() -> None:
    sch = turned()
    kernel = sch.func.kernel
    wrong = next(loop for loop in loops(kernel.body) if loop.kind is LoopKind.VECTOR)
    serial = replace_loop(kernel.body, wrong.var, lambda loop: (replace(loop, kind=LoopKind.SERIAL),))
    verify(dissolve(kernel))
    with pytest.raises(VerificationError, match="cannot be turned: no vector loop"):
        verify(dissolve(with_body(kernel, serial)))
