"""Loop functions → stages → loop functions; and down to plain loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sympy
import torch

from smelt.loops.ir import Node, Origin, Scatter
from smelt.loops.verify import verify as verify_loops
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import Kernel, LoopKind
from smelt.nest.printer import print_kernel
from smelt.nest.stages import raised, staged
from smelt.nest.verify import verify
from smelt.ops import ops
from smelt.records import replace
from smelt.symbolic import loop_var
from tests.nest.by_hand import cut, run_as
from tests.nest.staging import Program, loops_of, results, same

N = loop_var("n")


def program(size: object, kind: str) -> Kernel:
    made = Program(A=(size, 3))
    made.reduce("S", (size,), (3,), lambda i, k: ops.load("A", [i, k]), kind)
    made.compute("B", (size, 3), lambda i, j: ops.sub(ops.load("A", [i, j]), ops.load("S", [i])))
    return made.kernel("B")


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("size", [1, 5])
def test_raised_and_staged_again(kind: str, size: int) -> None:
    kernel = program(N, kind)
    graph = raised(kernel)
    assert not isinstance(graph, str)
    verify_loops(graph)
    again = staged(graph)
    for name, value in results(again, {N: size}).items():
        assert torch.equal(value, results(kernel, {N: size})[name])
    same(kernel, kernel, {N: size})


@pytest.mark.parametrize("mode", [None, "add"])
def test_a_scatter_is_a_copy_and_stores_one_after_the_other(mode: str | None) -> None:
    made = Program(A=(6,), B=(4,), at=(4,))
    made.graph.buffers["at"] = replace(made.graph.buffers["at"], dtype=torch.int64)
    made.graph.buffers["C"] = replace(made.graph.buffers["A"], name="C")

    def place(index: Sequence[Any]) -> list[Any]:
        return [ops.indirect_index(ops.load("at", index), sympy.Integer(6), wrap=True, check=True)]

    scatter = Scatter("A", (sympy.Integer(4),), torch.float32, lambda at: ops.load("B", at), place, mode)
    made.graph.nodes.append(Node(("C",), scatter, Origin("C")))
    memory = {
        "A": torch.randn(6),
        "B": torch.randn(4),
        "at": torch.tensor([1, -1, 1, 3]),
        "C": torch.empty(6),
    }
    kernel = staged(made.graph, params=["A", "B", "at", "C"])
    verify(kernel)
    run_kernel(kernel, memory)
    wanted = memory["A"].index_put((memory["at"],), memory["B"], accumulate=mode == "add")
    assert torch.equal(memory["C"], wanted)


def test_a_size_that_only_a_value_has_is_one_of_the_kernel() -> None:
    made = Program(A=(3,))
    made.compute("B", (3,), lambda i: ops.add(ops.load("A", [i]), ops.index_expr(N * 2, torch.float32)))
    kernel = made.kernel("B")
    assert kernel.sizes == (N,)
    more = results(kernel, {N: 4})["B"] - results(kernel, {N: 1})["B"]
    torch.testing.assert_close(more, torch.full((3,), 6.0))


def test_what_is_scheduled_is_not_raised() -> None:
    kernel = program(8, "sum")
    first, _ = loops_of(kernel, "S")
    assert raised(run_as(kernel, first, LoopKind.PARALLEL)) == "the loop over i is scheduled"
    parts, _, _ = cut(kernel, first, 4)
    assert raised(parts) == "S does not go through its axes one after the other"
    assert "stage S" in print_kernel(kernel)
