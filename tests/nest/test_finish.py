"""What a scheduled kernel goes through before it is printed; the interpreter is the oracle."""

from __future__ import annotations

import itertools

import pytest
import sympy
import torch

from smelt.nest.finish import PASSES, finish
from smelt.nest.ir import Carry, For, Guard, Kernel, LoopKind, Stage
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


def tiled(kernel: Kernel) -> Kernel:
    i, j, k = loops_of(kernel, "C")
    kernel, i0, i1 = cut(kernel, i, 4)
    kernel, j0, j1 = cut(kernel, j, 16)
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
        kernel = each(kernel, 8)
        for name, value in results(kernel, known).items():
            torch.testing.assert_close(value, wanted[name], msg=f"{each.__name__}: {print_kernel(kernel)}")
    verify(kernel)


@pytest.mark.parametrize("sizes", [(8, 32, 8), (9, 33, 7), (3, 15, 1)])
def test_a_tile_stays_what_it_is(sizes: tuple[int, int, int]) -> None:
    agrees(tiled(product(*sizes)))


@pytest.mark.parametrize("size", [1, 4, 15, 16, 17])
def test_sizes_that_are_not_known(size: int) -> None:
    agrees(tiled(product(N, N, 5)), n=size)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_orders_of_loops(order: tuple[int, ...]) -> None:
    kernel = product(3, 9, 4)
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


def test_a_vector_loop_whose_lanes_differ_runs_in_order() -> None:
    """A condition that no bound can say, which holds in some lanes only."""
    program = Program(A=(8, 8))
    program.compute("B", (8, 8), lambda i, j: ops.neg(ops.load("A", [i, j])))
    kernel = program.kernel("B")
    i, j = loops_of(kernel, "B")
    stage = next(s for s in walk(kernel.body) if isinstance(s, Stage))
    some = replace(stage, where=(sympy.Ne(i + j, 7),))
    kernel = with_body(kernel, rewritten(kernel.body, lambda s: [some] if s is stage else None))
    finished = finish(run_as(kernel, j, LoopKind.VECTOR), 8)
    verify(finished)
    assert not any(loop.kind is LoopKind.VECTOR for loop in loops(finished.body))


def test_a_row_in_pieces_begins_once() -> None:
    """Something else stands beside the loops that reduce: what they begin with stays in front of all."""
    program = Program(A=(6, 8))
    program.reduce("B", (6,), (8,), lambda i, k: ops.load("A", [i, k]))
    program.compute("C", (6,), lambda i: ops.neg(ops.load("B", [i])))
    kernel = program.kernel("C")
    i, k = loops_of(kernel, "B")
    kernel, k0, k1 = cut(kernel, k, 4)
    agrees(reorder(kernel, [k0, i, k1]))
