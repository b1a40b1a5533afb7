"""What a scheduled kernel goes through before it is printed; the interpreter is the oracle."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import Mod

from smelt.codegen.cpp.kernel import print_kernel as print_cpp
from smelt.nest.finish import PASSES, finish
from smelt.nest.ir import Accumulate, Block, Carry, For, Guard, Kernel, Let, LoopKind, Stage, Update
from smelt.nest.primitives.orders import join
from smelt.nest.printer import print_kernel
from smelt.nest.tree import loops, rewritten, walk, with_body
from smelt.nest.verify import verify
from smelt.ops import ops
from smelt.records import replace
from smelt.symbolic import loop_var
from tests.nest.by_hand import cut, reorder, run_as
from tests.nest.staging import Program, loops_of, results

N = loop_var("n")


def product(rows: object, columns: object, terms: object) -> Kernel:
    program = Program(A=(rows, terms), B=(terms, columns))
    program.reduce(
        "C",
        (rows, columns),
        (terms,),
        lambda i, j, k: ops.mul(ops.load("A", [i, k]), ops.load("B", [k, j])),
    )
    program.compute("D", (rows, columns), lambda i, j: ops.abs(ops.load("C", [i, j])))
    return program.kernel("D")


def tiled(kernel: Kernel, columns: int = 16) -> Kernel:
    i, j, k = loops_of(kernel, "C")
    kernel, i0, i1 = cut(kernel, i, 4)
    kernel, j0, j1 = cut(kernel, j, columns)
    kernel, k0, k1 = cut(kernel, k, 4)
    kernel = reorder(kernel, [i0, j0, k0, i1, k1, j1])
    for var, kind in ((i0, LoopKind.PARALLEL), (j1, LoopKind.VECTOR), (k1, LoopKind.UNROLL)):
        kernel = run_as(kernel, var, kind)
    return kernel


def agrees(kernel: Kernel, **sizes: int) -> None:
    """After every pass the kernel computes what the stages say; after the last one it is a good one."""
    known = {loop_var(name): size for name, size in sizes.items()}
    wanted = results(kernel, known)
    for each in PASSES:
        before, kernel = kernel, each(kernel, 8)
        if kernel == before:
            continue
        for name, value in results(kernel, known).items():
            text = f"{each.__name__}: {print_kernel(kernel)}"
            torch.testing.assert_close(value, wanted[name], equal_nan=True, msg=text)
    verify(kernel)


@pytest.mark.parametrize("sizes", [(8, 16, 8), (5, 17, 5), (3, 15, 1)])
def test_a_tile_stays_what_it_is(sizes: tuple[int, int, int]) -> None:
    agrees(tiled(product(*sizes)))


@pytest.mark.parametrize("size", [1, 4, 7, 8, 9])
def test_sizes_that_are_not_known(size: int) -> None:
    agrees(tiled(product(N, N, 5), columns=8), n=size)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_orders_of_loops(order: tuple[int, ...]) -> None:
    kernel = product(2, 5, 3)
    i, j, k = loops_of(kernel, "C")
    kernel, j0, j1 = cut(kernel, j, 4)
    every = [i, j0, j1, k]
    kernel = reorder(kernel, [every[place] for place in order])
    agrees(kernel)
    agrees(run_as(kernel, j1, LoopKind.VECTOR))


def test_a_tile_sums_in_registers() -> None:
    kernel = finish(tiled(product(8, 32, 8)), 8)
    nest = next(loop for loop in loops(kernel.body) if loop.kind is LoopKind.VECTOR and loop.step == 16)
    (rows,) = nest.body.nested
    assert isinstance(rows, For) and rows.kind is LoopKind.JAM
    assert any(isinstance(stmt, Carry) for stmt in rows.body.stmts)
    assert "fma" in print_kernel(kernel)
    assert not any(isinstance(stmt, (Guard, Stage)) for stmt in walk(kernel.body))


def test_a_condition_becomes_a_bound() -> None:
    program = Program(A=(N,))
    program.compute("B", (N,), lambda i: ops.neg(ops.load("A", [i])), "i")
    kernel, _, i1 = cut(program.kernel("B"), loops_of(program.kernel("B"), "B")[0], 16)
    kernel = finish(run_as(kernel, i1, LoopKind.VECTOR), 8)
    inner = loops(kernel.body)[1]
    assert not any(isinstance(stmt, Guard) for stmt in walk(kernel.body))
    assert inner.kind is LoopKind.VECTOR and inner.end.has(N)
    for size in (0, 1, 15, 16, 17):
        agrees(kernel, n=size)


def test_what_always_holds_is_dropped() -> None:
    program = Program(A=(32,))
    program.compute("B", (32,), lambda i: ops.neg(ops.load("A", [i])), "i")
    kernel, i0, i1 = cut(program.kernel("B"), loops_of(program.kernel("B"), "B")[0], 16)
    stage = next(s for s in walk(kernel.body) if isinstance(s, Stage))
    assert not stage.where
    guarded = replace(stage, where=(sympy.Lt(16 * i0 + i1, 32), sympy.Ge(i1, 0)))
    kernel = with_body(kernel, rewritten(kernel.body, lambda s: [guarded] if s is stage else None))
    assert not any(isinstance(stmt, Guard) for stmt in walk(finish(kernel, 8).body))


@pytest.mark.parametrize("kind", ["max", "min", "prod"])
def test_other_reductions(kind: str) -> None:
    program = Program(A=(5, 9))
    program.reduce("B", (5,), (9,), lambda i, k: ops.load("A", [i, k]), kind)
    kernel = program.kernel("B")
    i, k = loops_of(kernel, "B")
    kernel, k0, k1 = cut(kernel, k, 4)
    agrees(kernel)
    agrees(reorder(kernel, [k0, i, k1]))
    agrees(reorder(kernel, [k0, k1, i]))


def guarded(condition: Callable[[Any, Any], Any]) -> Kernel:
    """B = -A where a condition over both loops holds, of which the inner one is a vector's; C = 2A."""
    program = Program(A=(8, 40))
    program.compute("B", (8, 40), lambda i, j: ops.neg(ops.load("A", [i, j])))
    program.compute("C", (8, 40), lambda i, j: ops.add(ops.load("A", [i, j]), ops.load("A", [i, j])))
    kernel = program.kernel("B", "C")
    for depth in range(2):
        kernel, _ = join(kernel, [loops_of(kernel, name)[depth] for name in "BC"])
    i, j = loops_of(kernel, "B")
    found = next(s for s in walk(kernel.body) if isinstance(s, Stage))
    some = replace(found, where=(condition(i, j),))
    kernel = with_body(kernel, rewritten(kernel.body, lambda s: [some] if s is found else None))
    return run_as(kernel, j, LoopKind.VECTOR)


CONDITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "below": lambda i, j: j < 37,
    "above": lambda i, j: j >= 5,
    "a triangle": lambda i, j: 3 * i + 2 * j < 40,
    "never": lambda i, j: j < i - 9,
    "one": lambda i, j: sympy.Eq(i + j, 7),
    "all but one": lambda i, j: sympy.Ne(j - i, 7),
    "two": lambda i, j: sympy.And(j >= i, j < 3 * i),
    "either": lambda i, j: sympy.Or(j < i, j > 30 - i),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_that_varies_by_lane_parts_the_loop(name: str) -> None:
    kernel = guarded(CONDITIONS[name])
    agrees(kernel)
    finished = finish(kernel, 8)
    inner = [loop for loop in loops(finished.body) if not loops(loop.body)]
    assert inner and all(loop.kind is LoopKind.VECTOR for loop in inner)
    assert not any(isinstance(stmt, Guard) for stmt in walk(finished.body))


def test_a_condition_that_no_bound_can_say_masks_lanes() -> None:
    kernel = guarded(lambda i, j: sympy.Ne(Mod(j + i, 3), 1))
    agrees(kernel)
    finished = finish(kernel, 8)
    assert [loop.kind for loop in loops(finished.body)] == [LoopKind.SERIAL, LoopKind.VECTOR]
    assert "any(" in print_cpp(finished).body


def test_a_vector_loop_whose_lanes_do_more_than_store_runs_in_order() -> None:
    """An accumulator that only some lanes may add to."""
    program = Program(A=(8, 40))
    program.reduce("B", (8,), (40,), lambda i, k: ops.load("A", [i, k]))
    kernel = program.kernel("B")
    i, k = loops_of(kernel, "B")
    stage = next(s for s in walk(kernel.body) if isinstance(s, Stage))
    some = replace(stage, where=(sympy.Ne(Mod(i + k, 3), 1),))
    kernel = with_body(kernel, rewritten(kernel.body, lambda s: [some] if s is stage else None))
    kernel = finish(kernel, 8)
    summed = next(s for s in walk(kernel.body) if isinstance(s, For) and not loops(s.body) and s.begin == 0)
    acc = (Accumulate("acc", "sum", torch.float32), Update("acc", "x"))
    x = Let("x", torch.float32, "load", ("A", (summed.var,)))
    body = Block((Guard(sympy.Ne(Mod(summed.var, 3), 1), Block((x, acc[1]))),))
    loop = replace(summed, kind=LoopKind.VECTOR, body=body)
    for each in (LoopKind.VECTOR, LoopKind.SERIAL):
        lanes = finish(with_body(kernel, Block((acc[0], replace(loop, kind=each)))), 8)
        assert [found.kind for found in loops(lanes.body)] == [LoopKind.SERIAL]


def test_a_row_in_pieces_begins_once() -> None:
    """Something else stands beside the loops that reduce: what they begin with stays in front of all."""
    program = Program(A=(6, 8))
    program.reduce("B", (6,), (8,), lambda i, k: ops.load("A", [i, k]))
    program.compute("C", (6,), lambda i: ops.neg(ops.load("B", [i])))
    kernel = program.kernel("C")
    i, k = loops_of(kernel, "B")
    kernel, k0, k1 = cut(kernel, k, 4)
    agrees(reorder(kernel, [k0, i, k1]))
