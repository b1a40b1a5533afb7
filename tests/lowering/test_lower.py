"""The walk from a contract graph to a loop graph: inputs, constants, outputs, mutations, externs, errors."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from smelt.errors import SmeltError, Unsupported
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Extern, StridedView
from smelt.lowering import lower
from smelt.lowering.promotion import promote
from smelt.lowering.tensor import Tensor
from tests.lowering.harness import check, lowered

aten = torch.ops.aten


def test_chosen_externs_are_no_fallbacks() -> None:
    graph = check(lambda x, y: torch.mm(x, y), torch.randn(3, 4), torch.randn(4, 5))
    assert graph.nodes[0].body.call.reason is None


def test_an_operator_without_a_row_falls_back_with_its_reason() -> None:
    graph = lowered(lambda x: aten._convert_indices_from_coo_to_csr(x, 5), torch.tensor([0, 2, 2]))
    assert graph.nodes[0].body.reason == "no lowering for aten._convert_indices_from_coo_to_csr.default"
    assert graph.nodes[0].outputs[0] is not None


def test_random_operators_say_why_they_are_called() -> None:
    graph = lowered(lambda x: torch.poisson(x), torch.eye(3))
    assert graph.nodes[0].body.reason.startswith("random")


def test_foreign_dtypes_go_to_aten() -> None:
    x = torch.tensor([1, 2, 3], dtype=torch.uint16)
    graph = check(lambda x: x.to(torch.int32) * 2, x, fallbacks=["aten._to_copy.default"])
    assert graph.nodes[0].body.reason == "torch.uint16 has no loop functions"


def test_a_refused_row_leaves_nothing_behind() -> None:
    graph = lowered(lambda x: x.argmax(), torch.ones(3, dtype=torch.bool))
    (node,) = graph.nodes
    assert isinstance(node.body, Extern)
    assert set(graph.buffers) == {*graph.inputs, *node.outputs}


def test_several_results_of_an_extern() -> None:
    check(lambda x: torch.linalg.slogdet(x)[1] + 1, torch.randn(5, 5))


def test_mutation_of_an_input() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        old = x * 2
        x.add_(y)
        return old, x * 3

    graph = check(function, torch.randn(3), torch.randn(3), functionalize=True)
    (mutation,) = graph.mutations
    assert mutation.target == graph.inputs[0]


def test_mutated_input_as_output_is_the_input_itself() -> None:
    traced = make_fx(torch.func.functionalize(lambda x: x.add_(1)), tracing_mode="fake")(torch.randn(3))
    copied = next(node for node in traced.graph.nodes if node.target is aten.copy_.default)
    traced.graph.output_node().args = (copied,)
    graph = lower(traced)
    assert graph.outputs[0].buffer == graph.inputs[0]


def test_inputs_that_swap_their_contents() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)
        return old.view(-1)

    check(function, torch.randn(3), torch.randn(3), functionalize=True)


def test_mutation_with_another_dtype_and_strides() -> None:
    check(lambda x, y: x.copy_(y.t()), torch.zeros(3, 4), torch.arange(12).view(4, 3), functionalize=True)


def test_views_of_inputs_and_doubled_outputs_keep_their_buffer() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x + 1
        return y, y, y.t(), x.t()

    graph = check(function, torch.randn(3, 4))
    first, second, third, fourth = graph.outputs
    assert first == second
    assert third.buffer == first.buffer
    assert fourth.buffer == graph.inputs[0]


def test_unused_inputs_keep_their_place() -> None:
    graph = check(lambda x, y, z: x + z, torch.randn(3), torch.randn(2, 2), torch.randn(3))
    assert len(graph.inputs) == 3


def test_sizes_as_inputs_and_outputs() -> None:
    graph = lowered(lambda x, n: (x[:2] * n, x.shape[0] + n), torch.randn(5), 7, symbolic=True)
    assert isinstance(graph.inputs[1], sympy.Symbol)
    assert sorted(graph.hints.values()) == [5, 7]
    x = torch.randn(6)
    scaled, total = run_graph(graph, [x, 9])
    assert torch.equal(scaled, x[:2] * 9)
    assert total == 15


def test_attributes_are_constants() -> None:
    weight, x = torch.randn(3), torch.randn(3)
    graph = lower(make_fx(lambda x: x * weight, tracing_mode="real")(x))
    (constant,) = graph.constants.values()
    assert torch.equal(constant, weight)
    assert torch.equal(run_graph(graph, [x])[0], x * weight)


def test_names_do_not_meet_loop_variables_or_buffers() -> None:
    def function(b1: torch.Tensor, i0: torch.Tensor) -> torch.Tensor:
        return (b1 + i0) * 2

    graph = check(function, torch.randn(3), torch.randn(3))
    assert len(set(graph.buffers)) == 4


def test_channels_last_is_kept() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    graph = check(lambda x: torch.relu(x + 1), x)
    assert isinstance(graph.outputs[0], StridedView)
    assert graph.outputs[0].strides == (60, 1, 15, 3)


def test_origins_tell_the_operator_and_the_line() -> None:
    traced = make_fx(lambda x: torch.relu(x), tracing_mode="fake")(torch.randn(3))
    for node in traced.graph.nodes:
        node.meta["where"] = "model.py:12 in forward"
    origin = lower(traced).nodes[0].origin
    assert (origin.op, origin.where) == ("aten.relu.default", "model.py:12 in forward")


def test_mutating_operators_are_refused() -> None:
    traced = make_fx(lambda x: x.clone().add_(1), tracing_mode="fake")(torch.randn(3))
    with pytest.raises(SmeltError, match="SM0431"):
        lower(traced)


def test_nodes_without_metadata_are_refused() -> None:
    traced = make_fx(lambda x: x + 1, tracing_mode="fake")(torch.randn(3))
    for node in traced.graph.nodes:
        if node.op == "call_function":
            del node.meta["val"]
    with pytest.raises(SmeltError, match="SM0432"):
        lower(traced)


def test_methods_are_refused() -> None:
    traced = torch.fx.symbolic_trace(lambda x: x.relu())
    with pytest.raises(SmeltError, match="SM0433"):
        lower(traced)


def test_branches_become_bodies() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    traced = make_fx(function, tracing_mode="fake")(torch.randn(3))
    call = next(node.body for node in lower(traced).nodes if isinstance(node.body, Extern))
    assert call.target == "higher_order.cond"
    assert [len(body.nodes) for body in call.bodies] == [1, 1]


def test_unknown_higher_order_operators_are_unsupported() -> None:
    traced = make_fx(
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), tracing_mode="fake"
    )
    graph_module = traced(torch.randn(3))
    for node in graph_module.graph.nodes:
        if node.target is torch.ops.higher_order.cond:
            node.target = torch.ops.higher_order.run_with_rng_state
    with pytest.raises(Unsupported, match="higher-order operator run_with_rng_state"):
        lower(graph_module)


DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("left", DTYPES, ids=str)
@pytest.mark.parametrize("right", DTYPES, ids=str)
def test_promotion_is_torchs(left: torch.dtype, right: torch.dtype) -> None:
    four = sympy.Integer(4)
    for first in ((), (4,)):
        for second in ((), (4,)):
            x, y = torch.ones(first, dtype=left), torch.ones(second, dtype=right)
            mine = promote(
                [Tensor("x", left, (four,) * len(first)), Tensor("y", right, (four,) * len(second))]
            )
            assert mine == torch.result_type(x, y)
    for number in (True, 3, 2.5):
        assert promote([Tensor("x", left, (four,)), number]) == torch.result_type(
            torch.ones(4, dtype=left), number
        )
