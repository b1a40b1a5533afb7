"""Loop functions → stages → loop functions; and down to plain loops."""

from __future__ import annotations

import pytest
import torch

from smelt.loops.verify import verify as verify_loops
from smelt.nest.ir import Kernel, LoopKind
from smelt.nest.printer import print_kernel
from smelt.nest.stages import raised, staged
from smelt.ops import ops
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


def test_what_is_scheduled_is_not_raised() -> None:
    kernel = program(8, "sum")
    first, _ = loops_of(kernel, "S")
    assert raised(run_as(kernel, first, LoopKind.PARALLEL)) == "the loop over i is scheduled"
    parts, _, _ = cut(kernel, first, 4)
    assert raised(parts) == "S does not go through its axes one after the other"
    assert "stage S" in print_kernel(kernel)
