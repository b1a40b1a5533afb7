"""Schemas of nodes; the test case for operators."""

from __future__ import annotations

import warnings

import pytest
import torch

from smelt.testing import CompileTestCase
from smelt.tools import node_schema_str


def test_schemas_of_torchscripts_nodes():
    graph = torch._C.parse_ir(
        "graph(%x : Tensor):\n  %k : int = prim::Constant[value=1]()\n  %y : Tensor = aten::add(%x, %x, %k)\n"
        "  %no : bool = prim::Constant[value=0]()\n"
        "  %v : Tensor, %i : Tensor = aten::max(%y, %k, %no)\n  return (%v)"
    )
    schemas = [node_schema_str(node) for node in graph.nodes()]
    assert schemas[0] == ""
    assert schemas[1] == "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> (Tensor)"
    assert schemas[3].startswith("aten::max.dim(")
    assert schemas[3].endswith("-> (Tensor values, Tensor indices)")


def test_schemas_of_fx_nodes():
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    schemas = [node_schema_str(node) for node in program.graph.nodes]
    assert schemas[:3] == ["", "", ""]
    assert schemas[3] == "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> (Tensor)"


class _Case(CompileTestCase):
    def runTest(self):  # noqa: N802
        """Nothing: its methods are called."""


class _Wrong(torch.nn.Module):
    def forward(self, x):
        return x + 1 if torch.compiler.is_compiling() else x


class _OfOneSize(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.shape[0] > 10 else x - 1


def _old_convolution(x, weight):
    options = ([1], [0], [1], False, [0], 1, False, False, True, True)
    return torch.ops.aten._convolution(x, weight, None, *options)


def test_a_program_that_is_right():
    found, wanted = _Case().check_compiled(torch.nn.GELU(), annotations=[((-1, 5), torch.float32)])
    assert found.shape == wanted.shape == (found.shape[0], 5)
    _Case().check_compiled(torch.matmul, [torch.ones(3, 4), torch.ones(4, 5)])
    given = [torch.ones(1, 1, 4), torch.ones(1, 1, 2)]
    _Case().check_compiled(_old_convolution, given, fallbacks=["aten._convolution.default"])


def test_torchscript():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(torch.nn.Softplus(), torch.ones(2, 3))
    _Case().check_compiled(traced, annotations=[((-1, -1), torch.float32)])


@pytest.mark.parametrize(
    "module, given, said",
    [
        (_Wrong(), {"inputs": [torch.ones(3)]}, "not close"),
        (_OfOneSize(), {"annotations": [((-1,), torch.float32)]}, "compiled anew"),
        (_old_convolution, {"inputs": [torch.ones(1, 1, 4), torch.ones(1, 1, 2)]}, "no lowering"),
        (torch.relu, {"inputs": [torch.ones(3)], "graphs": 2}, "graphs were compiled"),
    ],
)
def test_a_program_that_is_not(module, given, said):
    with pytest.raises(AssertionError, match=said):
        _Case().check_compiled(module, **given)


def test_one_of_inputs_and_annotations():
    with pytest.raises(ValueError, match="either"):
        _Case().check_compiled(torch.relu)
