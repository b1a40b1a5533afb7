"""Scheduled functions as the C++ compiler gets them: text, memory and numbers."""

from __future__ import annotations

import sympy
import torch
from torch.utils._sympy.functions import Mod

from smelt.nest.ir import Alloc, Kernel
from smelt.nest.tree import rewritten, walk, with_body
from smelt.ops import ops
from smelt.records import replace
from smelt.script import from_source, structural_equal
from smelt.tir import PrimFunc, Schedule
from tests.nest.staging import Program, loops_of, same, stage
from tests.tir.compiling import compiled, cpp_of
from tests.tir.test_schedule import chain, product


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


def vectors(text: str) -> list[str]:
    """The loops and conditions of a C++ text that take 8 elements at once."""
    return [line.strip() for line in text.splitlines() if "+= 8" in line or "first<8>" in line]


def test_a_split_that_does_not_divide_is_still_vectors() -> None:
    func = product(6, 37, 12)
    sch = Schedule(func)
    i, j, k = sch.get_loops(sch.get_block("matmul"))
    j_0, j_1 = sch.split(j, [None, 16])
    sch.reorder(i, j_0, k, j_1)
    sch.vectorize(j_1)
    relu = sch.split(sch.get_loops(sch.get_block("relu"))[1], [None, 16])
    sch.vectorize(relu[1])
    text = cpp_of(sch.func.kernel)
    assert text.count("load<8>") >= 3 and text.count("store(") >= 2, text
    assert len(vectors(text)) >= 4
    for one, other in zip(compiled(sch), compiled(func)):
        torch.testing.assert_close(one, other)


def test_lanes_of_different_conditions() -> None:
    """Two stages in one vector loop, of which one has fewer elements."""
    p = Program(A=(6, 40))
    p.compute("B", (6, 37), lambda i, j: ops.neg(ops.load("A", [i, j])))
    p.compute("C", (6, 40), lambda i, j: ops.abs(ops.load("A", [i, j])))
    sch = Schedule(PrimFunc(p.kernel("B", "C")))
    _, b = sch.get_loops("B")
    _, c = sch.get_loops("C")
    b_0, b_1 = sch.split(b, [3, 16])
    c_0, c_1 = sch.split(c, [3, 16])
    sch.merge(sch.get_loops("B")[0], sch.get_loops("C")[0])
    sch.merge(b_0, c_0)
    sch.vectorize(sch.merge(b_1, c_1))
    text = cpp_of(sch.func.kernel)
    assert text.count("load<8>") >= 2 and len(vectors(text)) >= 2, text
    a, b, c = compiled(sch)
    assert torch.equal(b, -a[:, :37]) and torch.equal(c, a.abs())


def test_lanes_are_masked_where_no_bound_says_the_condition() -> None:
    p = Program(A=(6, 40))
    p.compute("B", (6, 40), lambda i, j: ops.neg(ops.load("A", [i, j])))
    kernel = p.kernel("B")
    i, j = loops_of(kernel, "B")
    found = stage(kernel, "B")
    some = replace(found, where=(sympy.Ne(Mod(i + j, 3), 1),))
    func = PrimFunc(with_body(kernel, rewritten(kernel.body, lambda s: [some] if s is found else None)))
    sch = Schedule(func)
    sch.vectorize(sch.get_loops("B")[1])
    text = cpp_of(sch.func.kernel)
    assert "any(m0)" in text and "store(m0" in text, text
    given = torch.randn(6, 40), torch.full((6, 40), 5.0)
    a, b = compiled(sch, *given)
    number = torch.arange(6)[:, None] + torch.arange(40)
    kept = number % 3 != 1
    assert torch.equal(b[kept], -a[kept])
    assert "c0" not in text
