"""Scheduled functions as the C++ compiler gets them: text, memory and numbers."""

from __future__ import annotations

import torch

from smelt.nest.ir import Alloc, Kernel
from smelt.nest.tree import walk
from smelt.ops import ops
from smelt.script import from_source, structural_equal
from smelt.tir import PrimFunc, Schedule
from tests.nest.staging import Program, same
from tests.tir.compiling import compiled, cpp_of
from tests.tir.test_schedule import chain


def alloc_of(kernel: Kernel) -> Alloc:
    (found,) = [stmt for stmt in walk(kernel.body) if isinstance(stmt, Alloc)]
    return found


def test_rows_that_are_aligned_lie_further_apart() -> None:
    func = chain()
    sch = Schedule(func)
    sch.storage_align("B", 0, axis=0, factor=32, offset=1)
    alloc = alloc_of(sch.func.kernel)
    assert alloc.strides == (33, 1) and alloc.count == 7 * 33
    same(func.kernel, sch.func.kernel)
    text, before = cpp_of(sch.func.kernel), cpp_of(func.kernel)
    assert "t0_memory[231]" in text and "t0[d3 + d2*33]" in text, text
    assert "t0_memory[70]" in before and "t0[d3 + d2*10]" in before, before
    assert all(map(torch.equal, compiled(sch), compiled(func)))
    assert structural_equal(from_source(sch.func.script()), sch.func)
    assert not structural_equal(sch.func, func)


def test_inner_padding_counts_for_outer_strides() -> None:
    p = Program(A=(3, 4, 5))
    p.compute("B", (3, 4, 5), lambda i, j, k: ops.neg(ops.load("A", [i, j, k])))
    p.compute("C", (3, 4, 5), lambda i, j, k: ops.neg(ops.load("B", [i, j, k])))
    sch = Schedule(PrimFunc(p.kernel("C")))
    sch.storage_align("B", 0, axis=0, factor=16, offset=3)
    sch.storage_align("B", 0, axis=1, factor=8, offset=0)
    alloc = alloc_of(sch.func.kernel)
    assert alloc.strides == (35, 8, 1) and alloc.count == 105
    assert torch.equal(*compiled(sch))
    sch.compute_at(sch.get_block("B"), sch.get_loops(sch.get_block("C"))[0])
    assert "[35]" in cpp_of(sch.func.kernel)
    assert torch.equal(*compiled(sch))
