"""A fold in the loop IR: what it means, how it prints, what its verifier says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sympy
import torch

from smelt.errors import SmeltError, VerificationError
from smelt.loops.dependencies import analyze, domain
from smelt.loops.interpreter import evaluate_body, run_graph
from smelt.loops.ir import Buffer, Fold, Graph, Node, Origin, StridedView
from smelt.loops.printer import print_graph
from smelt.loops.verify import verify
from smelt.ops import ops
from smelt.symbolic import contiguous_strides, loop_var

F32, F64, I64 = torch.float32, torch.float64, torch.int64
S0 = sympy.Symbol("s0", integer=True, positive=True)
TURNS = sympy.Symbol("n", integer=True, nonnegative=True)
FOUR = sympy.Integer(4)
ORIGIN = Origin("aten.test.default", "model.py:7 in forward")


def horner(index: Any, turn: Any, state: Sequence[Any]) -> Any:
    """``((0 x + 0) x + 1) x + 2 …``, and how many iterations there were."""
    value = ops.fma(state[0], ops.load("x", index), ops.index_expr(turn, F32))
    return [value, ops.add(state[1], ops.constant(1, I64))]


def graph_of(body: Fold, *outputs: str | None) -> Graph:
    """x[s0, 4] and the number n → the fold's outputs, all of them returned."""
    graph = Graph(inputs=["x", TURNS])
    shape = (S0, FOUR)
    graph.buffers["x"] = Buffer("x", F32, shape, contiguous_strides(shape))
    for name, (dtype, _) in zip(outputs, body.state):
        if name is not None:
            graph.buffers[name] = Buffer(name, dtype, shape, contiguous_strides(shape))
            graph.outputs.append(StridedView(name, shape, contiguous_strides(shape), sympy.Integer(0)))
    graph.nodes.append(Node(outputs, body, ORIGIN))
    return graph


POLYNOMIAL = Fold((S0, FOUR), TURNS, ((F32, 0.0), (I64, 0)), horner)


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("turns", [0, 1, 4])
def test_every_element_has_a_state_of_its_own(rows: int, turns: int) -> None:
    x = torch.randn(rows, 4)
    value, count = run_graph(graph_of(POLYNOMIAL, "v", "k"), [x, turns])
    want = sum((k * x.double() ** (turns - 1 - k) for k in range(turns)), torch.zeros(rows, 4).double())
    torch.testing.assert_close(value.double(), want, rtol=1e-5, atol=1e-5)
    assert torch.equal(count, torch.full((rows, 4), turns))


def test_a_fold_over_nothing_but_turns() -> None:
    def fibonacci(index: Any, turn: Any, state: Sequence[Any]) -> Any:
        return [state[1], ops.add(state[0], state[1])]

    first, second = evaluate_body(Fold((), sympy.Integer(10), ((I64, 0), (I64, 1)), fibonacci), {})
    assert (first.item(), second.item()) == (55, 89)


def test_a_turn_of_another_dtype_is_the_compilers_error() -> None:
    body = Fold((FOUR,), FOUR, ((F64, 0.0),), lambda index, turn, state: [ops.load("x", index)])
    with pytest.raises(SmeltError, match="SM0501"):
        evaluate_body(body, {"x": torch.ones(4)})


def test_what_a_turn_reads_and_costs() -> None:
    node = Node(("v", "k"), POLYNOMIAL, ORIGIN)
    found = analyze(node)
    i0, i1, r0 = loop_var("i0"), loop_var("i1"), loop_var("r0")
    assert [(read.buffer, read.index) for read in found.reads] == [("x", (i0, i1))]
    assert (found.variables, found.reduce_variables, found.writes) == ((i0, i1), (r0,), ("v", "k"))
    assert found.operations == 3
    assert found.exprs == (r0,)
    assert domain(node) == (S0, FOUR, TURNS)


def test_golden() -> None:
    assert print_graph(graph_of(POLYNOMIAL, "v", None)) == GOLDEN


GOLDEN = """\
graph(
    x: f32[s0, 4],
    n: size,
):
    # aten.test.default  model.py:7 in forward
    v: f32[s0, 4], _ = fold from state0: f32 = 0.0, state1: i64 = 0
        for i0 in range(s0), i1 in range(4):
            for r0 in range(n):
                state0, state1 = fma(state0, x[i0, i1], f32(r0)), add(state1, 1)
            v[i0, i1], _[i0, i1] = state0, state1
    return v[s0, 4] strides (4, 1)
"""


def test_good_folds_verify() -> None:
    verify(graph_of(POLYNOMIAL, "v", "k"))
    verify(graph_of(POLYNOMIAL, None, "k"))


def only(index: Any, turn: Any, state: Sequence[Any]) -> Any:
    return [ops.load("x", index)]


BROKEN: dict[str, tuple[Graph, str]] = {
    "turns": (graph_of(Fold((S0, FOUR), -FOUR, ((F32, 0.0),), only), "v"), "the fold has -4 iterations"),
    "kind of a first value": (
        graph_of(Fold((S0, FOUR), FOUR, ((F32, 0),), only), "v"),
        "the fold's first value 0 is no torch.float32",
    ),
    "dtype of the state": (
        graph_of(Fold((S0, FOUR), FOUR, ((F64, 0.0),), only), "v"),
        "the loop function gives torch.float32, the node says torch.float64",
    ),
    "parts of the state": (
        graph_of(Fold((S0, FOUR), FOUR, ((F32, 0.0), (F32, 0.0)), only), "v", "w"),
        "the loop function gives torch.float32, the node says torch.float32, torch.float32",
    ),
    "number of outputs": (graph_of(POLYNOMIAL, "v"), "the node has 1 outputs, its body 2"),
    "shape": (
        graph_of(Fold((FOUR, FOUR), FOUR, ((F32, 0.0),), only), "v"),
        "v has the shape (s0, 4), its node writes (4, 4)",
    ),
}


@pytest.mark.parametrize("rule", list(BROKEN))
def test_each_rule_has_a_fold_that_breaks_it(rule: str) -> None:
    graph, message = BROKEN[rule]
    with pytest.raises(VerificationError) as caught:
        verify(graph)
    assert any(message in problem.what for problem in caught.value.problems), caught.value.problems
