"""Functions traced by make_fx."""

from __future__ import annotations

import torch

from smelt.capture import capture_function
from smelt.contract import contract, decompositions


def test_nested_results_are_flattened() -> None:
    program = capture_function(lambda x: {"a": [x + 1, x * 2]}, [torch.ones(2)])
    first, second = program.graph_module(torch.ones(2))
    assert (first.tolist(), second.tolist()) == ([2.0, 2.0], [2.0, 2.0])
    assert program.output_roles == ("user", "user")


def test_in_place_changes_of_arguments_become_copies() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return x[0]

    program = contract(capture_function(f, [torch.ones(2)]))
    assert len(program.mutations()) == 1
    x = torch.ones(2)
    (first,) = program.graph_module(x)
    assert x.tolist() == [3.0, 3.0]
    assert first == 3


def test_dynamic_sizes() -> None:
    program = contract(
        capture_function(lambda x: x.softmax(0).sum(), [torch.ones(5)], decompositions(), dynamic=True)
    )
    assert list(program.hints().values()) == [5]
    (result,) = program.graph_module(torch.randn(9))
    torch.testing.assert_close(result, torch.tensor(1.0))


def test_source_lines_of_forward_functions_are_recorded() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    program = contract(capture_function(forward, [torch.ones(2)]))
    (call,) = program.graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)
    line = forward.__code__.co_firstlineno + 1
    assert call.meta["where"] == f"test_function.py:{line} in forward"
