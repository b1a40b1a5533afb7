"""Training steps are one module: forward, loss, backward and update, with what they mutate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import smelt
from smelt.errors import SmeltError

pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")

BATCH = Dim("batch")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        return self.last(F.max_pool2d(self.norm(self.conv(x)).relu(), 2).flatten(1))


def step_of(model: nn.Module, loss: Callable[..., Any], optimizer: torch.optim.Optimizer) -> Any:
    def step(x: Any, target: Any) -> Any:
        optimizer.zero_grad()
        value = loss(model(x), target)
        value.backward()
        optimizer.step()
        return value

    return step


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


MODELS: dict[str, Any] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)),
        F.cross_entropy,
        lambda n: (torch.randn(n, 6), torch.randint(0, 3, (n,))),
        ("linalg", "stablehlo", "tosa", "torch"),
    ),
    "convolutions": (
        Convolutions,
        F.cross_entropy,
        lambda n: (torch.randn(n, 3, 10, 10), torch.randint(0, 3, (n,))),
        ("linalg", "stablehlo"),
    ),
    "attention": (
        Block,
        F.mse_loss,
        lambda n: (torch.randn(n, 5, 8), torch.randn(n, 5, 8)),
        ("linalg", "stablehlo", "torch"),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_one_module_that_updates_the_model(name: str) -> None:
    torch.manual_seed(0)
    make, loss, arguments, dialects = MODELS[name]
    model = make()
    twin = copy.deepcopy(model)
    step, same = step_of(model, loss, sgd(model)), step_of(twin, loss, sgd(twin))
    exported = smelt.export(step, arguments(4), dynamic_shapes=({0: BATCH}, {0: BATCH}))
    written = [each.target.name for each in exported.signature.results if each.target is not None]
    wanted = {f"model.{path}" for path, _ in (*model.named_parameters(), *model.named_buffers())}
    assert set(written) == wanted
    for dialect in dialects:
        for size in (4, 3):
            given = arguments(size)
            torch.testing.assert_close(exported.to(dialect).run(*given), same(*given).detach())
            torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


def test_lines_are_those_of_the_forward_and_of_the_call_of_backward() -> None:
    model = nn.Linear(3, 1)

    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss, model.weight.grad

    graph = smelt.export(step, (torch.ones(2, 3),)).program.graph_module.graph
    first = step.__code__.co_firstlineno
    found = {node.meta["where"] for node in graph.nodes if node.op == "call_function"}
    assert found == {f"test_training.py:{first + line} in step" for line in (1, 2)}


def test_the_state_of_an_optimizer_comes_back() -> None:
    torch.manual_seed(0)
    given = torch.randn(4, 3), torch.randn(4, 1)

    def ready() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        step = step_of(model, F.mse_loss, optimizer)
        step(*given)
        return model, optimizer, step

    (model, optimizer, step), (twin, other, same) = ready(), ready()
    before = [each.grad.clone() for each in model.parameters()]
    exported = smelt.export(step, given)
    torch.testing.assert_close([each.grad for each in model.parameters()], before)
    for _ in range(3):
        torch.testing.assert_close(exported.run(*given), same(*given).detach())
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
    torch.testing.assert_close(optimizer.state_dict()["state"], other.state_dict()["state"])


def test_gradients_of_arguments_and_of_gradients() -> None:
    def forces(x: Any, y: Any) -> Any:
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad((x**3 * y).sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.sum(), x)[0]

    exported = smelt.export(forces, (torch.randn(3), torch.randn(3)), dynamic_shapes=({0: BATCH}, {0: BATCH}))
    given = torch.randn(5), torch.randn(5)
    torch.testing.assert_close(exported.run(*given), tuple(each.detach() for each in forces(*given)))


def test_torch_func_and_a_buffer_that_is_assigned_to() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.calls = self.calls + 1
            return torch.func.grad(lambda x: (self.linear(x) ** 2).sum() * self.calls)(x)

    model = Counted()
    twin = copy.deepcopy(model)
    exported = smelt.export(model, (torch.ones(3),))
    for _ in range(2):
        torch.testing.assert_close(exported.run(torch.ones(3)), twin(torch.ones(3)))
    assert model.calls == 2


def test_an_exported_program_with_its_backward() -> None:
    from torch.export.experimental import _export_forward_backward

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            return (self.linear(x).square().mean(),)

    model, x = Loss(), torch.randn(4, 3)
    got = smelt.export(_export_forward_backward(torch.export.export(model, (x,)))).run(x)
    (loss,) = model(x)
    loss.backward()
    torch.testing.assert_close(got, (loss.detach(), model.linear.weight.grad, model.linear.bias.grad))


def test_a_state_that_the_first_step_makes_is_asked_for() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    weight = model.weight.detach().clone()
    with pytest.raises(SmeltError, match="take one step") as caught:
        smelt.export(step_of(model, F.mse_loss, optimizer), (torch.ones(2, 3), torch.ones(2, 1)))
    assert caught.value.code == "SM0721"
    assert torch.equal(model.weight, weight)
    assert not optimizer.state


def test_what_belongs_to_no_module_is_not_written_to_in_silence() -> None:
    weight = torch.ones(3, requires_grad=True)

    def step(x: Any) -> Any:
        (gradient,) = torch.autograd.grad((weight * x).sum(), [weight])
        with torch.no_grad():
            weight.sub_(gradient)
        return gradient

    with pytest.raises(SmeltError, match="belongs to no module") as caught:
        smelt.export(step, (torch.ones(3),))
    assert caught.value.code == "SM0721"
    assert caught.value.where == f"test_training.py:{step.__code__.co_firstlineno + 3} in step"
    assert torch.equal(weight, torch.ones(3))


def test_a_parameter_of_no_module() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with pytest.raises(SmeltError, match="no parameter of a module") as caught:
        smelt.export(step_of(nn.Identity(), lambda x, y: (x * weight).sum(), optimizer), (torch.ones(3),) * 2)
    assert caught.value.code == "SM0721"
