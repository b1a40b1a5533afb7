"""Dynamo and AOTAutograd: what the Programs say, and that running them gives eager's results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

aten = torch.ops.aten


def targets(program: Any) -> list[Any]:
    return [node.target for node in program.graph_module.graph.nodes if node.op == "call_function"]


class Net(nn.Module):
    """A parameter, a buffer that is counted up, and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return torch.tanh(self.norm(self.linear(x)))


def test_inference_is_one_program_with_flat_outputs(captured: Any) -> None:
    def f(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"sum": x + y, "product": x * y}

    x, y = torch.randn(3, 4), torch.randn(4)
    result = captured.compile(f)(x, y)
    program = captured.of_kind("inference")
    assert len(captured.programs) == 1
    assert [each.role for each in program.inputs] == ["user", "user"]
    assert program.output_roles == ("user", "user")
    assert [tuple(value.shape) for value in program.example_inputs] == [(3, 4), (4,)]
    torch.testing.assert_close(result["product"], x * y, rtol=0, atol=0)
    assert captured.boxed == [True]


def test_no_grad_gives_inference_even_with_parameters(captured: Any) -> None:
    net = nn.Linear(4, 4)
    with torch.no_grad():
        result = captured.compile(net)(torch.ones(2, 4))
    program = captured.of_kind("inference")
    assert {each.role for each in program.inputs} == {"parameter", "user"}
    assert sorted(program.static_inputs) == [0, 1]
    assert aten.addmm.default in targets(program)
    torch.testing.assert_close(result, net(torch.ones(2, 4)))


def test_training_has_forward_and_backward_with_saved_values(captured: Any) -> None:
    torch.manual_seed(0)
    net, reference = Net(), Net()
    reference.load_state_dict(net.state_dict())
    x = torch.randn(5, 4, requires_grad=True)
    expected_x = x.detach().clone().requires_grad_()
    result, expected = captured.compile(net)(x), reference(expected_x)
    result.square().sum().backward()
    expected.square().sum().backward()

    forward, backward = captured.of_kind("forward"), captured.of_kind("backward")
    roles = {each.role for each in forward.inputs}
    assert roles == {"user", "parameter", "buffer"}
    assert forward.output_roles.count("saved") == sum(each.role == "saved" for each in backward.inputs)
    assert [each.role for each in backward.inputs][-1] == "tangent"
    assert set(backward.output_roles) == {"gradient"}
    assert forward.user_outputs == tuple(range(len(forward.user_outputs)))

    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(x.grad, expected_x.grad)
    for mine, theirs in zip(net.parameters(), reference.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad)
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(dict(net.named_buffers())[name], buffer)


def test_buffers_changed_in_training_are_copies_onto_placeholders(captured: Any) -> None:
    captured.compile(Net())(torch.randn(5, 4))
    mutations = captured.of_kind("forward").mutations()
    # seen, num_batches_tracked, running_mean, running_var
    assert len(mutations) == 4
    assert all(target.op == "placeholder" and source.op == "call_function" for target, source in mutations)


def test_input_mutation_reaches_the_callers_tensor(captured: Any) -> None:
    def f(x: Tensor) -> Tensor:
        x.add_(1)
        x[0] = 5
        return x.sum()

    x, expected = torch.zeros(3), torch.zeros(3)
    result = captured.compile(f)(x)
    assert result == f(expected)
    assert torch.equal(x, expected)
    assert len(captured.of_kind("inference").mutations()) == 1


def test_outputs_that_are_views_of_inputs_stay_views(captured: Any) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.view(-1), x[1:], x

    x = torch.randn(3, 4)
    flat, tail, same = captured.compile(f)(x)
    assert flat.data_ptr() == x.data_ptr()
    assert tail.data_ptr() == x[1:].data_ptr()
    assert same is x


def test_outputs_that_share_memory_with_each_other(captured: Any) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, y.view(-1)

    y, flat = captured.compile(f)(torch.ones(2, 2))
    flat[0] = 7
    assert y[0, 0] == 7


def test_graph_breaks_give_one_program_each(captured: Any) -> None:
    def f(x: Tensor) -> Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        x = x * 2
        torch._dynamo.graph_break()
        return x - 3

    x = torch.randn(4)
    assert torch.equal(captured.compile(f)(x), (x + 1) * 2 - 3)
    assert [program.kind for program in captured.programs] == ["inference"] * 3


def test_dynamic_sizes_are_inputs_of_role_size(captured: Any) -> None:
    def f(x: Tensor) -> Tensor:
        return x.reshape(-1, 2) * x.shape[0]

    compiled = captured.compile(f, dynamic=True)
    for rows in (6, 3, 9):
        x = torch.randn(rows, 4)
        assert torch.equal(compiled(x), f(x))
    program = captured.of_kind("inference")
    assert [each.role for each in program.inputs] == ["size", "size", "user"]
    assert program.size_inputs == (0, 1)
    symbols = [value.node.expr for value in program.example_inputs[:2]]
    assert [size.node.expr for size in program.example_inputs[2].shape] == symbols
    assert list(program.hints().values()) == [6, 4]


def test_mark_dynamic_makes_one_size_symbolic(captured: Any) -> None:
    x = torch.randn(6, 4)
    torch._dynamo.mark_dynamic(x, 0)
    compiled = captured.compile(lambda x: x.sum(0) / x.shape[0])
    torch.testing.assert_close(compiled(x), x.mean(0))
    program = captured.of_kind("inference")
    assert [each.role for each in program.inputs] == ["size", "user"]
    y = torch.randn(11, 4)
    torch.testing.assert_close(compiled(y), y.mean(0))
    assert len(captured.programs) == 1


def test_dynamic_training_hands_sizes_to_the_backward(captured: Any) -> None:
    compiled = captured.compile(lambda x, w: (x @ w).mean(), dynamic=True)
    for rows in (6, 9, 2):
        x, w = torch.randn(rows, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
        compiled(x, w).backward()
        expected = torch.autograd.grad((x @ w).mean(), [x, w])
        torch.testing.assert_close([x.grad, w.grad], list(expected))
    backward = captured.of_kind("backward")
    kinds = [each.role for each in backward.inputs]
    assert kinds.count("size") >= 1
    assert kinds == sorted(kinds, key=["size", "saved", "tangent"].index)


def test_a_plain_number_argument_that_changes_becomes_a_size(captured: Any) -> None:
    compiled = captured.compile(lambda x, n: x * n, dynamic=True)
    x = torch.ones(3)
    for n in (5, 6, 7):
        assert torch.equal(compiled(x, n), x * n)
    assert len(captured.programs) == 1
    assert "size" in [each.role for each in captured.programs[0].inputs]


def test_strided_tangents(captured: Any) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    captured.compile(lambda x: torch.sin(x).t())(x).backward(torch.ones(3, 4).t().contiguous())
    torch.testing.assert_close(x.grad, torch.cos(x.detach()))


def test_retained_graph_runs_the_backward_twice(captured: Any) -> None:
    x = torch.randn(3, requires_grad=True)
    y = captured.compile(lambda x: (x * x).sum())(x)
    y.backward(retain_graph=True)
    y.backward()
    torch.testing.assert_close(x.grad, 4 * x.detach())


def test_the_compiler_runs_outside_the_fake_tensor_mode() -> None:
    from smelt.capture import capture_aot
    from smelt.contract import decompositions

    made = []

    def keep(program: Any) -> Any:
        made.append(torch.ones(2))
        return lambda args: program.graph_module(*args)

    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend=lambda g, x: capture_aot(g, x, keep, decompositions()))(
        torch.ones(3)
    )
    assert type(made[0]) is Tensor
    assert made[0].tolist() == [1.0, 1.0]


def test_dropout_draws_the_numbers_that_eager_draws(captured: Any) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return nn.functional.dropout(x, 0.5), torch.rand_like(x), torch.bernoulli(torch.sigmoid(x))

    x = torch.randn(64)
    torch.manual_seed(3)
    expected = f(x)
    torch.manual_seed(3)
    for mine, theirs in zip(captured.compile(f)(x), expected):
        assert torch.equal(mine, theirs)


def test_errors_of_the_model_are_raised_as_in_eager(captured: Any) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        if y.shape[0] == 2:
            raise ValueError("two is one too many")
        return x + y

    compiled = captured.compile(f)
    with pytest.raises(ValueError, match="two is one too many"):
        compiled(torch.ones(2), torch.ones(2))
    with pytest.raises(RuntimeError, match="size of tensor a"):
        compiled(torch.ones(3), torch.ones(4))
