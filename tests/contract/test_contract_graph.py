"""Normalisation: each rule, and where it must not apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from smelt.capture import Program, capture_aot, capture_function
from smelt.contract import contract, decompositions, verify

aten = torch.ops.aten


def contracted(function: Callable[..., Any], *args: Any, **options: Any) -> Program:
    return contract(capture_function(function, args, **options))


def calls(program: Program) -> list[str]:
    graph = program.graph_module.graph
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


def compiled_programs(function: Callable[..., Any], *args: Any, **options: Any) -> list[Program]:
    """The contract programs that torch.compile gives for one call, checked to compute what eager does."""
    programs: list[Program] = []

    def keep(program: Program) -> Any:
        programs.append(contract(program))
        return lambda args, module=programs[-1].graph_module: module(*args)

    def backend(graph_module: Any, inputs: Any) -> Any:
        return capture_aot(graph_module, inputs, keep, decompositions())

    torch._dynamo.reset()
    copies = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]
    result, expected = torch.compile(function, backend=backend, **options)(*args), function(*copies)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(args, tuple(copies))
    return programs


# -- dead code -----------------------------------------------------------------------------------------------


def test_dead_calls_go() -> None:
    def f(x: Tensor) -> Tensor:
        x.exp().sin()
        return x + 1

    assert calls(contracted(f, torch.ones(2))) == ["aten.add.Tensor"]


def test_dead_random_calls_stay_because_they_move_the_generator() -> None:
    def f(x: Tensor) -> Tensor:
        aten.rand_like(x)
        return x + 1

    assert calls(contracted(f, torch.ones(2))) == ["aten.rand_like.default", "aten.add.Tensor"]


def test_assertions_stay() -> None:
    def f(x: Tensor) -> Tensor:
        aten._assert_async.msg((x > 0).all(), "positive")
        return x + 1

    program = contracted(f, torch.ones(2))
    assert "aten._assert_async.msg" in calls(program)
    with pytest.raises(RuntimeError, match="positive"):
        program.graph_module(-torch.ones(2))


def test_assertions_that_hold_for_every_input_go() -> None:
    def f(x: Tensor) -> Tensor:
        aten._assert_scalar(True, "always")
        aten._assert_tensor_metadata(x, dtype=torch.float32)
        return x + 1

    assert calls(contracted(f, torch.ones(2))) == ["aten.add.Tensor"]


def test_data_dependent_sizes_keep_their_checks() -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        size = n.item()
        torch._check(size >= 2)
        torch._check(size <= 8)
        return x.sum() + torch.zeros(size).sum()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        (program,) = compiled_programs(f, torch.ones(3), torch.tensor(4))
    assert "aten._local_scalar_dense.default" in calls(program)
    assert any("assert_scalar" in each for each in calls(program))
    inputs = [torch.ones(3) if value.dim() else torch.tensor(1) for value in program.example_inputs]
    with pytest.raises(RuntimeError):
        program.graph_module(*inputs)


# -- no-ops --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "identity",
    [
        lambda x: aten.alias(x),
        lambda x: aten.detach(x),
        lambda x: x.expand(2, 3),
        lambda x: x.view(2, 3),
        lambda x: x.permute(0, 1),
        lambda x: aten.slice(x, 0, 0, 2),
        lambda x: aten._to_copy(x, dtype=torch.float32),
        lambda x: aten.constant_pad_nd(x, [0, 0, 0, 0]),
    ],
)
def test_calls_that_give_back_their_argument_go(identity: Callable[[Tensor], Tensor]) -> None:
    program = contracted(lambda x: identity(x.exp()).sin(), torch.ones(2, 3))
    assert calls(program) == ["aten.exp.default", "aten.sin.default"]


def test_slices_that_look_like_the_whole_but_start_elsewhere_stay() -> None:
    def f(x: Tensor) -> Tensor:
        return (
            aten.as_strided(x.exp(), [2, 3], [3, 1], 3).sin() + aten.as_strided(x.exp(), [2, 3], [3, 1]).sin()
        )

    assert calls(contracted(f, torch.ones(3, 3))).count("aten.as_strided.default") == 2


def test_a_copy_that_changes_strides_stays() -> None:
    def f(x: Tensor) -> Tensor:
        return aten._to_copy(x.exp(), memory_format=torch.channels_last).sin()

    assert "aten._to_copy.default" in calls(contracted(f, torch.ones(2, 3, 4, 5)))


def test_lifted_constants_are_cloned_not_handed_out() -> None:
    program = contracted(lambda x: (torch.tensor([1.0, 2.0]), x + 1), torch.ones(2))
    assert "aten.lift_fresh_copy.default" not in calls(program)
    first, _ = program.graph_module(torch.ones(2))
    first.zero_()
    assert program.graph_module(torch.ones(2))[0].tolist() == [1.0, 2.0]


# -- equal calls ---------------------------------------------------------------------------------------------


def test_equal_calls_are_made_once() -> None:
    program = contracted(lambda x: x.exp() + x.exp(), torch.ones(2))
    assert calls(program) == ["aten.exp.default", "aten.add.Tensor"]


@pytest.mark.parametrize("pair", [(1, 1.0), (1, True), (0.0, -0.0)])
def test_literals_of_other_type_or_sign_are_not_equal(pair: tuple[Any, Any]) -> None:
    def f(x: Tensor) -> Tensor:
        return aten.full([2], pair[0]) * x / aten.full([2], pair[1])

    assert calls(contracted(f, torch.ones(2))).count("aten.full.default") == 2


def test_random_calls_are_never_merged() -> None:
    program = contracted(lambda x: aten.rand_like(x) + aten.rand_like(x), torch.ones(2))
    assert calls(program).count("aten.rand_like.default") == 2


def test_two_equal_outputs_stay_two_tensors() -> None:
    program = contracted(lambda x: (x.exp(), x.exp()), torch.ones(2))
    first, second = program.graph_module(torch.ones(2))
    first.zero_()
    assert second[0] != 0


def test_an_output_and_a_view_of_an_equal_output_stay_apart() -> None:
    program = contracted(lambda x: (x.exp(), x.exp().view(-1)), torch.ones(2, 2))
    first, second = program.graph_module(torch.ones(2, 2))
    first.zero_()
    assert second[0] != 0


def test_views_of_one_output_still_share_its_memory() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return y, y.view(-1)

    first, second = contracted(f, torch.ones(2, 2)).graph_module(torch.ones(2, 2))
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.parametrize(
    "copy",
    [lambda x: aten._to_copy(x, dtype=torch.float32), lambda x: aten.constant_pad_nd(x, [0, 0])],
)
def test_a_copied_input_is_not_handed_out_itself(copy: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(2)
    (result,) = contracted(copy, x).graph_module(x)
    assert result.data_ptr() != x.data_ptr()


def test_padding_that_pads_stays() -> None:
    program = contracted(lambda x: aten.constant_pad_nd(x.exp(), [0, 1]).sin(), torch.ones(2))
    assert "aten.constant_pad_nd.default" in calls(program)


# -- mutation ------------------------------------------------------------------------------------------------


def test_copies_onto_inputs_come_last_and_their_results_are_the_inputs() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        z = x * 2
        y.mul_(z)
        return z.sin()

    (program,) = compiled_programs(f, torch.randn(3), torch.randn(3))
    names = calls(program)
    assert names[-2:] == ["aten.copy_.default"] * 2
    assert "aten.copy_.default" not in names[:-2]
    assert all(
        not node.users for node in program.graph_module.graph.nodes if node.target is aten.copy_.default
    )


def test_swapped_inputs_are_both_read_before_they_are_written() -> None:
    def f(x: Tensor, y: Tensor) -> None:
        old = aten._to_copy(x, dtype=torch.float32)
        x.copy_(y)
        y.copy_(old)

    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    contracted(f, x.clone(), y.clone()).graph_module(x, y)
    assert (x.tolist(), y.tolist()) == ([3.0, 4.0], [1.0, 2.0])


def test_mutated_inputs_that_are_returned() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1)
        return x, x[1:]

    (program,) = compiled_programs(f, torch.randn(3))
    assert len(program.mutations()) == 1


# -- the whole -----------------------------------------------------------------------------------------------


def test_the_captured_graph_is_left_as_it_was() -> None:
    captured = capture_function(lambda x: aten.alias(x.exp()).sin(), [torch.ones(2)])
    before = str(captured.graph_module.graph)
    contract(captured)
    assert str(captured.graph_module.graph) == before


def test_contract_is_idempotent() -> None:
    once = contracted(lambda x: (aten.alias(x.exp()) + x.exp()).softmax(0), torch.ones(2))
    twice = contract(once)
    verify(twice)
    assert calls(once) == calls(twice)


def test_training_of_a_small_net() -> None:
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)
    )

    def step(x: Tensor) -> tuple[Tensor, ...]:
        loss = net(x).square().mean()
        return (loss, *torch.autograd.grad(loss, list(net.parameters())))

    programs: list[Program] = []

    def keep(program: Program) -> Any:
        programs.append(contract(program))
        return lambda args, module=programs[-1].graph_module: module(*args)

    torch._dynamo.reset()
    compiled = torch.compile(net, backend=lambda g, x: capture_aot(g, x, keep, decompositions()))
    x = torch.randn(3, 4)
    loss = compiled(x).square().mean()
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    torch.testing.assert_close((loss, *gradients), step(x))
    assert [program.kind for program in programs] == ["forward", "backward"]


def test_every_call_has_a_line_of_this_file_forward_and_backward() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.linear(x)
            return torch.tanh(x).sum()

    programs: list[Program] = []

    def keep(program: Program) -> Any:
        programs.append(contract(program))
        return lambda args, module=programs[-1].graph_module: module(*args)

    torch._dynamo.reset()
    torch.compile(Block(), backend=lambda g, x: capture_aot(g, x, keep, decompositions()))(
        torch.ones(2, 4)
    ).backward()
    line = Block.forward.__code__.co_firstlineno
    wanted = {
        f"test_contract_graph.py:{line + 1} in forward",
        f"test_contract_graph.py:{line + 2} in forward",
    }
    for program in programs:
        graph = program.graph_module.graph
        found = {node.meta["where"] for node in graph.nodes if node.op == "call_function"}
        assert found == wanted, program.kind
    (product,) = programs[0].graph_module.graph.find_nodes(op="call_function", target=aten.addmm.default)
    assert product.meta["where"] == f"test_contract_graph.py:{line + 1} in forward"
