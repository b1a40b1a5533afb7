"""Equal nodes of a training graph are merged before it is parted."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._functorch.compile_utils import fx_graph_cse
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from smelt.capture.partition import merge_equal_nodes

aten = torch.ops.aten


def traced(program: Callable[..., Any], *args: Tensor) -> GraphModule:
    return make_fx(program, tracing_mode="fake")(*args)


def operators(module: GraphModule) -> Counter[Any]:
    return Counter(node.target for node in module.graph.nodes if node.op == "call_function")


def merged(program: Callable[..., Any], *args: Tensor) -> Counter[Any]:
    module = traced(program, *args)
    merge_equal_nodes(module.graph)
    module.graph.lint()
    module.recompile()
    for mine, theirs in zip(module(*args), program(*args)):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    return operators(module)


def test_equal_calls_become_one_and_so_do_their_users() -> None:
    found = merged(lambda x: ((x.exp() + 1) * (x.exp() + 1),), torch.ones(3))
    assert found == {aten.exp.default: 1, aten.add.Tensor: 1, aten.mul.Tensor: 1}


@pytest.mark.parametrize("pair", [(1, 1.0), (0.0, -0.0), (1, True), (2, 3), (0j, -0j)])
def test_numbers_that_only_compare_equal_differ(pair: tuple[Any, Any]) -> None:
    one, other = pair
    found = merged(lambda x: (aten.mul.Scalar(x, one) / aten.mul.Scalar(x, other),), torch.ones(3))
    assert found[aten.mul.Scalar] == 2


def test_outputs_of_their_own_stay_apart() -> None:
    found = merged(lambda x: (x.exp(), x.exp().view(-1), x.exp() * 2), torch.ones(3, 2))
    assert found[aten.exp.default] == 3


def test_random_and_uninitialized_values_stay_apart() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        one, other = torch.empty(3), torch.empty(3)
        return torch.rand_like(x) + torch.rand_like(x), one.fill_(1) + other.fill_(2)

    module = traced(program, torch.ones(3))
    before = operators(module)
    merge_equal_nodes(module.graph)
    assert operators(module) == before


def test_what_is_read_before_and_after_a_write_stays_apart() -> None:
    def program(x: Tensor) -> tuple[Tensor]:
        before = x.exp()
        x.add_(1)
        return (before * x.exp(),)

    module = traced(program, torch.ones(3))
    merge_equal_nodes(module.graph)
    assert operators(module)[aten.exp.default] == 2


def test_parts_of_a_result_are_merged_too() -> None:
    found = merged(lambda x: (x.sort()[0] * x.sort()[0] + x.sort()[1],), torch.rand(5))
    assert found[aten.sort.default] == 1


def test_as_many_nodes_are_left_as_by_torch() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            y = torch.nn.functional.layer_norm(x @ w.t(), (4,))
            x = torch.softmax(y + x @ w.t(), -1) * y.view(2, 2, 4).transpose(0, 1).reshape(4, 4)
        return x.sum()

    def step(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(program(x, w), (x, w))

    module = traced(step, *(torch.rand(4, 4, requires_grad=True) for _ in range(2)))
    before, theirs = len(module.graph.nodes), fx_graph_cse(module.graph)
    merge_equal_nodes(module.graph)
    assert len(module.graph.nodes) == len(theirs.nodes) < before


@pytest.mark.long
def test_training_does_not_import_inductors_lowerings() -> None:
    script = """
import sys, torch, smelt
x = torch.ones(4, 4, requires_grad=True)
smelt.compile(lambda x: (x @ x).relu().sum())(x).backward()
assert x.grad is not None
print([name for name in ("lowering", "pattern_matcher") if "torch._inductor." + name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
