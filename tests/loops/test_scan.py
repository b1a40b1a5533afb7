"""A scan in the loop IR: what it means, how it prints, what its verifier says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sympy
import torch

from smelt.errors import SmeltError, VerificationError
from smelt.loops.dependencies import analyze, domain
from smelt.loops.interpreter import evaluate_body, run_graph
from smelt.loops.ir import Buffer, Graph, Node, Origin, Scan, StridedView
from smelt.loops.printer import print_graph
from smelt.loops.verify import verify
from smelt.ops import ops
from smelt.symbolic import contiguous_strides, loop_var

F32, F64, I64 = torch.float32, torch.float64, torch.int64
S0 = sympy.Symbol("s0", integer=True, positive=True)
FOUR = sympy.Integer(4)
ORIGIN = Origin("aten.test.default", "model.py:7 in forward")


def add(index: Any, state: Sequence[Any]) -> Any:
    total = ops.add(state[0], ops.to_dtype(ops.load("x", index), F64))
    return [total], [ops.to_dtype(total, F32)]


def largest(index: Any, state: Sequence[Any]) -> Any:
    value = ops.load("x", index)
    takes = ops.gt(value, state[0])
    here = ops.index_expr(index[1], I64)
    after = ops.where(takes, value, state[0]), ops.where(takes, here, state[1])
    return after, after


def graph_of(body: Scan, *outputs: str | None) -> Graph:
    """x[s0, 4] → the scan's outputs, all of them returned."""
    graph = Graph(inputs=["x"])
    shape = (S0, FOUR)
    graph.buffers["x"] = Buffer("x", F32, shape, contiguous_strides(shape))
    for name, dtype in zip(outputs, body.dtypes):
        if name is not None:
            graph.buffers[name] = Buffer(name, dtype, shape, contiguous_strides(shape))
            graph.outputs.append(StridedView(name, shape, contiguous_strides(shape), sympy.Integer(0)))
    graph.nodes.append(Node(outputs, body, ORIGIN))
    return graph


SUM = Scan((S0, FOUR), 0, ((F64, 0.0),), (F32,), add)
BEST = Scan((S0, FOUR), 1, ((F32, float("-inf")), (I64, 0)), (F32, I64), largest)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_every_line_has_a_state_of_its_own(rows: int) -> None:
    x = torch.randn(rows, 4)
    (total,) = run_graph(graph_of(SUM, "y"), [x])
    assert torch.equal(total, x.double().cumsum(0).float())
    value, position = run_graph(graph_of(BEST, "v", "p"), [x])
    want = x.cummax(1)
    assert torch.equal(value, want.values)
    assert torch.equal(position, want.indices)


def test_a_state_may_be_anything_that_the_turn_makes_of_it() -> None:
    def fibonacci(index: Any, state: Sequence[Any]) -> Any:
        return [state[1], ops.add(state[0], state[1])], [state[0]]

    (numbers,) = evaluate_body(Scan((sympy.Integer(7),), 0, ((I64, 0), (I64, 1)), (I64,), fibonacci), {})
    assert numbers.tolist() == [0, 1, 1, 2, 3, 5, 8]


def test_a_turn_of_another_dtype_is_the_compilers_error() -> None:
    for turn in (
        lambda index, state: ([ops.load("x", index)], [ops.load("x", index)]),
        lambda index, state: (state, state),
    ):
        with pytest.raises(SmeltError, match="SM0501"):
            evaluate_body(Scan((FOUR,), 0, ((F64, 0.0),), (F32,), turn), {"x": torch.ones(4)})


def test_what_a_turn_reads_and_costs() -> None:
    node = Node(("v", "p"), BEST, ORIGIN)
    found = analyze(node)
    i0, i1 = loop_var("i0"), loop_var("i1")
    assert [(read.buffer, read.index) for read in found.reads] == [("x", (i0, i1))]
    assert (found.variables, found.reduce_variables, found.writes) == ((i0, i1), (), ("v", "p"))
    assert found.operations == 4
    assert domain(node) == (S0, FOUR)


def test_golden() -> None:
    assert print_graph(graph_of(BEST, "v", None)) == GOLDEN


GOLDEN = """\
graph(
    x: f32[s0, 4],
):
    # aten.test.default  model.py:7 in forward
    v: f32[s0, 4], _ = scan along i1 from state0: f32 = -inf, state1: i64 = 0
        for i0 in range(s0), i1 in range(4):
            v0: f32 = x[i0, i1]
            v1: bool = gt(v0, state0)
            v3: f32 = where(v1, v0, state0)
            v4: i64 = where(v1, i64(i1), state1)
            v[i0, i1], _[i0, i1] = v3, v4
            state0, state1 = v3, v4
    return v[s0, 4] strides (4, 1)
"""


def test_good_scans_verify() -> None:
    verify(graph_of(SUM, "y"))
    verify(graph_of(BEST, None, "p"))


BROKEN: dict[str, tuple[Graph, str]] = {
    "direction": (
        graph_of(Scan((S0, FOUR), 2, ((F64, 0.0),), (F32,), add), "y"),
        "the scan runs along dimension 2 of 2",
    ),
    "kind of a first value": (
        graph_of(Scan((S0, FOUR), 0, ((F64, 0),), (F32,), add), "y"),
        "the scan's first value 0 is no torch.float64",
    ),
    "dtype of the state": (
        graph_of(Scan((S0, FOUR), 0, ((F64, 0.0),), (F32,), lambda i, _: ([ops.load("x", i)],) * 2), "y"),
        "the loop function gives torch.float32, torch.float32, the node says torch.float64, torch.float32",
    ),
    "dtype of an output": (
        graph_of(Scan((S0, FOUR), 0, ((F64, 0.0),), (F64,), add), "y"),
        "the loop function gives torch.float64, torch.float32, the node says torch.float64, torch.float64",
    ),
    "parts of the state": (
        graph_of(Scan((S0, FOUR), 0, (), (F32,), lambda i, _: ([], [])), "y"),
        "the loop function gives , the node says torch.float32",
    ),
    "number of outputs": (graph_of(SUM, "y", "z"), "the node has 2 outputs, its body 1"),
    "shape": (
        graph_of(Scan((FOUR, FOUR), 0, ((F64, 0.0),), (F32,), add), "y"),
        "y has the shape (s0, 4), its node writes (4, 4)",
    ),
}


@pytest.mark.parametrize("rule", list(BROKEN))
def test_each_rule_has_a_scan_that_breaks_it(rule: str) -> None:
    graph, message = BROKEN[rule]
    with pytest.raises(VerificationError) as caught:
        verify(graph)
    assert any(message in problem.what for problem in caught.value.problems), caught.value.problems
