"""The contract's verifier: one negative test for each code, and that it collects."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from smelt.capture import Input, Program, capture_function
from smelt.contract import contract, verify
from smelt.contract.verify import CODES
from smelt.errors import Unsupported, VerificationError

aten = torch.ops.aten


def good(dynamic: bool = False) -> Program:
    """x.exp().sin() with line numbers, for the tests to break."""
    return contract(capture_function(lambda x: x.exp().sin(), [torch.ones(3)], dynamic=dynamic))


def node_of(program: Program, target: Any) -> torch.fx.Node:
    (node,) = program.graph_module.graph.find_nodes(op="call_function", target=target)
    return node


def fails(program: Program) -> VerificationError:
    with pytest.raises(VerificationError) as caught:
        verify(program)
    return caught.value


def test_a_good_program_passes() -> None:
    verify(good())
    verify(good(dynamic=True))


def test_sm0421_a_method_call() -> None:
    program = good()
    exp = node_of(program, aten.exp.default)
    with program.graph_module.graph.inserting_after(exp):
        call = program.graph_module.graph.call_method("cos", (exp,))
    call.meta["val"] = exp.meta["val"]
    error = fails(program)
    assert error.code == "SM0421" and "call_method 'cos'" in str(error)


def test_sm0421_a_function_on_tensors_that_is_no_overload() -> None:
    program = good()
    node_of(program, aten.exp.default).target = torch.exp
    assert fails(program).code == "SM0421"
    program = good()
    node_of(program, aten.exp.default).target = operator.neg
    assert fails(program).code == "SM0421"


def test_sm0422_no_metadata() -> None:
    program = good()
    del node_of(program, aten.exp.default).meta["val"]
    error = fails(program)
    assert error.code == "SM0422" and "aten.exp.default" in str(error)


def test_sm0423_a_call_that_writes() -> None:
    program = good()
    node_of(program, aten.exp.default).target = aten.exp_.default
    error = fails(program)
    assert error.code == "SM0423" and "exp_" in str(error)


def test_sm0423_a_call_after_an_input_was_overwritten() -> None:
    program = good()
    graph = program.graph_module.graph
    exp = node_of(program, aten.exp.default)
    with graph.inserting_after(exp):
        copy = graph.call_function(aten.copy_.default, (program.placeholders[0], exp))
    copy.meta.update(val=exp.meta["val"], where="here")
    assert "after inputs were overwritten" in str(fails(program))


def test_sm0423_the_result_of_a_copy_is_used() -> None:
    program = good()
    graph = program.graph_module.graph
    sin = node_of(program, aten.sin.default)
    with graph.inserting_after(sin):
        copy = graph.call_function(aten.copy_.default, (program.placeholders[0], sin))
    copy.meta.update(val=sin.meta["val"], where="here")
    program.output.args = ((copy,),)
    assert "result of a trailing copy_" in str(fails(program))


def test_sm0424_roles_that_do_not_fit() -> None:
    program = good()
    wrong = [
        dataclasses.replace(program, inputs=()),
        dataclasses.replace(program, inputs=(Input(program.inputs[0].name, "size"),)),
        dataclasses.replace(program, output_roles=("user", "user")),
    ]
    assert [fails(each).code for each in wrong] == ["SM0424"] * 3
    program.output.args = (("a string",),)
    assert "neither a node nor a number" in str(fails(program))


def test_sm0425_a_symbol_that_nothing_binds() -> None:
    program, other = good(), good(dynamic=True)
    foreign = other.example_inputs[0]
    node_of(program, aten.exp.default).meta["val"] = foreign
    error = fails(program)
    assert error.code == "SM0425" and str(foreign.shape[0].node.expr) in str(error)


def test_sm0426_no_source_line() -> None:
    program = good()
    del node_of(program, aten.sin.default).meta["where"]
    assert fails(program).code == "SM0426"


def test_sm0427_metadata_that_is_no_fake_tensor() -> None:
    program = good()
    node_of(program, aten.exp.default).meta["val"] = torch.ones(3)
    assert fails(program).code == "SM0427"
    node_of(program, aten.exp.default).meta["val"] = object()
    assert fails(program).code == "SM0427"


def test_all_findings_are_told_at_once() -> None:
    program = good()
    del node_of(program, aten.exp.default).meta["val"]
    node_of(program, aten.exp.default).meta["where"] = "model.py:3 in forward"
    del node_of(program, aten.sin.default).meta["where"]
    error = fails(program)
    assert error.code == "SM0420"
    assert [problem.what[:6] for problem in error.problems] == ["SM0422", "SM0426"]
    assert "(at model.py:3 in forward)" in str(error)
    assert set(CODES) >= {problem.what[:6] for problem in error.problems}


def unsupported(program: Program) -> str:
    with pytest.raises(Unsupported) as caught:
        verify(program)
    return caught.value.reason


def test_another_device_is_unsupported() -> None:
    program = good()
    with FakeTensorMode():
        elsewhere = torch.empty(3, device="meta")
    for node in program.graph_module.graph.nodes:
        if node.op in ("placeholder", "call_function"):
            node.meta["val"] = elsewhere
    assert "a tensor on meta: smelt compiles for CPUs and CUDA devices" in unsupported(program)


def test_a_sparse_tensor_is_unsupported() -> None:
    program = good()
    with FakeTensorMode():
        node_of(program, aten.exp.default).meta["val"] = torch.empty(3, 3).to_sparse()
    assert "torch.sparse_coo" in unsupported(program)


def test_unknown_higher_order_operators_are_unsupported_and_named() -> None:
    class Branch(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), [x])

    from smelt.capture import export
    from smelt.contract import export_decompositions

    program = export(Branch(), (torch.ones(3),), None, export_decompositions())
    node_of(program, torch.ops.higher_order.cond).target = torch.ops.higher_order.run_with_rng_state
    with pytest.raises(
        Unsupported,
        match=r"higher-order operator run_with_rng_state \(at test_contract_verify.py:\d+ in forward\)",
    ):
        contract(program)


def test_giving_an_input_other_memory_is_unsupported() -> None:
    program = good()
    graph = program.graph_module.graph
    sin = node_of(program, aten.sin.default)
    with graph.inserting_after(sin):
        moved = graph.call_function(aten.set_.source_Tensor, (program.placeholders[0], sin))
    moved.meta.update(val=sin.meta["val"], where="here")
    assert "gives an input other memory" in unsupported(program)


def test_unbacked_sizes_are_bound_by_what_makes_them() -> None:
    class Selected(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x > 0].sum() + x.nonzero().shape[0]

    from smelt.capture import export
    from smelt.contract import export_decompositions

    program = contract(export(Selected(), (torch.randn(5),), None, export_decompositions()))
    x = torch.tensor([1.0, -2.0, 3.0, 0.0, -1.0])
    assert program.graph_module(x)[0] == 4.0 + 4
