"""What a row asks of a target is read off its code; what it then writes is part of it."""

from __future__ import annotations

import pytest
import torch

from smelt.capture import capture_function
from smelt.contract import contract, decompositions
from smelt.loops.ir import Extern
from smelt.lowering import lower
from smelt.lowering.needs import BODIES, METHODS, needs_of
from smelt.lowering.registry import TABLE

aten = torch.ops.aten


CASES = {
    "exp": (lambda x: x.exp(), aten.exp.default, {"exp"}),
    "relu": (lambda x: x.relu(), aten.relu.default, set()),
    "softmax": (lambda x: x.softmax(-1), aten._softmax.default, {"exp", "sub"}),
    "layer norm": (lambda x: torch.layer_norm(x, (4,)), aten.native_layer_norm.default, {"rsqrt"}),
    "sum": (lambda x: x.sum(1), aten.sum.dim_IntList, set()),
    "cumsum": (lambda x: x.cumsum(0), aten.cumsum.default, {"add"}),
    "sort": (lambda x: x.sort(), aten.sort.default, set()),
    "scatter add": (lambda x: x.index_add(0, torch.tensor([0, 1]), x[:2]), aten.index_add.default, set()),
    "max pool": (lambda x: torch.max_pool2d(x[None], 2), aten.max_pool2d_with_indices.default, {"maximum"}),
    "gelu": (lambda x: torch.nn.functional.gelu(x), aten.gelu.default, {"ndtr"}),
    "matmul": (lambda x: x @ x, aten.mm.default, set()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_row_writes_only_the_bodies_that_it_needs(name):
    function, overload, elementwise = CASES[name]
    program = contract(capture_function(function, [torch.randn(4, 4)], decompositions()))
    written = {
        type(node.body).__name__
        for node in lower(program.graph_module).nodes
        if node.origin.op == str(overload)
    }
    assert written, "the case does not have the operator"
    needs = needs_of(overload)
    assert written <= needs.bodies
    assert elementwise <= needs.elementwise


@pytest.mark.long
def test_every_row_can_be_read():
    for overload in TABLE:
        needs = needs_of(overload)
        assert needs.bodies <= set(BODIES)
        assert needs.methods <= METHODS
        assert bool(needs.calls) == (Extern.__name__ in needs.bodies), overload


def test_most_rows_need_a_loop():
    views = [overload for overload in TABLE if not needs_of(overload).bodies]
    assert 0 < len(views) < len(TABLE) / 10
    assert {aten.permute.default, aten.expand.default} <= set(views)
    assert aten.add.Tensor not in views


def test_one_row_does_not_need_what_another_does():
    assert "erfinv" not in needs_of(aten.add.Tensor).elementwise
    assert needs_of(aten.erfinv.default).elementwise >= {"erfinv"}
    assert "Sort" not in needs_of(aten.sum.dim_IntList).bodies


def test_what_is_left_to_aten_is_a_call():
    needs = needs_of(aten._fft_r2c.default)
    assert needs.bodies == {"Extern"}
    assert needs.calls == {"aten._fft_r2c.default"}
    assert needs_of(aten.resize_.default) is None


def test_names_given_as_strings_are_found():
    for name in ("tanh", "erf", "floor", "bitwise_not"):
        assert name in needs_of(getattr(aten, name).default).elementwise
