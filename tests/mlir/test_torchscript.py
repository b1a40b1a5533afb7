"""torch-mlir's road through TorchScript."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from smelt.errors import SmeltError

pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")

import smelt
from smelt.mlir.torchscript import TensorPlaceholder, compile

from ..capture.torchscript import programs
from ..capture.torchscript.test_from_torchscript import script, trace

X = torch.linspace(-1, 1, 6).reshape(2, 3)


@pytest.mark.parametrize("kind", ["raw", "torch", "linalg-on-tensors", "stablehlo", "tosa"])
@pytest.mark.parametrize("get", [lambda module: script(module), lambda module: trace(module, X), lambda m: m])
def test_output_types(kind, get):
    module = compile(get(nn.Sequential(nn.Linear(3, 4), nn.Tanh())), X, output_type=kind)
    text = str(module)
    assert "@forward" in text
    dialect = {"raw": "torch.aten", "torch": "torch.aten", "linalg-on-tensors": "linalg."}.get(
        kind, f"{kind}."
    )
    assert dialect in text


def test_sizes_that_are_not_known():
    given = TensorPlaceholder.like(X, dynamic_axes=[0])
    text = str(compile(nn.Tanh(), [given], "linalg-on-tensors"))
    assert "tensor<?x3xf32>" in text
    with pytest.raises(SmeltError, match="SM0722: a placeholder"):
        compile(nn.Tanh(), [given], use_tracing=True)
    with pytest.raises(SmeltError, match="SM0722: ignore_traced_shapes"):
        compile(nn.Tanh(), [given], ignore_traced_shapes=True)


def test_what_cannot_be_scripted():
    class Unscriptable(nn.Module):
        def forward(self, x, **more):
            return x

    with pytest.raises(SmeltError, match="SM0114: a Unscriptable cannot be scripted"):
        compile(Unscriptable(), X)


def test_torchscript_is_exported_like_all_else():
    exported = smelt.export(script(programs.Lstm().eval()), [torch.ones(2, 3, 4)])
    wanted = script(programs.optional)
    torch.testing.assert_close(smelt.export(wanted, [X]).run(X), wanted(X))
    assert exported.dialect == "linalg"


def test_a_branch_that_data_decides_is_refused_where_it_is_no_graph():
    with pytest.raises(SmeltError, match="SM0112"):
        compile(script(programs.counts_its_turns), X)
