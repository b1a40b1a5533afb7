"""Optimizer steps: one native call for all parameters, in place, right over several steps, one compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.contract.optimizers import optimizer_decompositions

pytestmark = pytest.mark.usefixtures("own_cache", "fresh")

aten = torch.ops.aten
STEPS = 5

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=0.1, **k),
    "momentum": lambda p, **k: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, **k
    ),
    "adam": lambda p, **k: torch.optim.Adam(p, lr=0.01, **k),
    "amsgrad": lambda p, **k: torch.optim.Adam(p, lr=0.01, amsgrad=True, maximize=True, **k),
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, **k),
    "adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=0.01, lr_decay=0.1, **k),
    "rmsprop": lambda p, **k: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True, **k),
    "adadelta": lambda p, **k: torch.optim.Adadelta(p, lr=0.5, **k),
}


def _parameters(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(7, 5), (11,), (2, 3, 4)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def _gradients(parameters: list[Tensor], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def _ran_natively() -> None:
    assert [str(each) for report in smelt.reports() for each in report.fallbacks] == []
    assert smelt.reports()
    for report in smelt.reports():
        assert report.kind == "inference" and report.native_calls == 1 and report.externs == {}


@pytest.mark.parametrize("foreach", [False, True], ids=["each", "foreach"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_eagers(name: str, foreach: bool) -> None:
    expected, got = _parameters(), _parameters()
    eager, ours = (OPTIMIZERS[name](each, foreach=foreach) for each in (expected, got))
    step = torch.compile(ours.step, backend="smelt")
    for number in range(STEPS):
        _gradients(expected, number)
        _gradients(got, number)
        eager.step()
        step()
    for want, have in zip(expected, got):
        torch.testing.assert_close(have, want, rtol=2e-6, atol=2e-6)
    for want_state, have_state in zip(eager.state.values(), ours.state.values()):
        for key, want in want_state.items():
            if isinstance(want, Tensor):
                torch.testing.assert_close(have_state[key], want, rtol=2e-6, atol=2e-6)
    _ran_natively()
    # counters are tensors, so no step compiles anew; SGD's first step makes its buffers
    assert len(smelt.reports()) == (2 if name == "momentum" else 1)


@pytest.mark.parametrize("foreach", [False, True], ids=["each", "foreach"])
def test_parameters_are_updated_where_they_are(foreach: bool) -> None:
    parameters = _parameters()
    places = [each.data_ptr() for each in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, foreach=foreach)
    step = torch.compile(optimizer.step, backend="smelt")
    for number in range(2):
        _gradients(parameters, number)
        step()
    assert [each.data_ptr() for each in parameters] == places
    (report,) = smelt.reports()
    assert "_empty(" not in report.text("plan")  # nothing is allocated: all results are inputs' memory


def test_bfloat16() -> None:
    expected, got = _parameters(torch.bfloat16), _parameters(torch.bfloat16)
    eager, ours = (torch.optim.Adam(each, lr=0.01, foreach=True) for each in (expected, got))
    step = torch.compile(ours.step, backend="smelt")
    for number in range(STEPS):
        _gradients(expected, number)
        _gradients(got, number)
        eager.step()
        step()
    for want, have in zip(expected, got):
        torch.testing.assert_close(have, want, rtol=2e-2, atol=2e-2)
    _ran_natively()


def test_one_written_by_hand() -> None:
    """Lion (Chen et al., 2023, algorithm 2): the sign of an interpolated momentum."""

    def lion(parameters: list[Tensor], momenta: list[Tensor], rate: float, decay: float) -> None:
        for parameter, momentum in zip(parameters, momenta):
            gradient = parameter.grad
            assert gradient is not None
            update = momentum.lerp(gradient, 0.1).sign_()
            parameter.mul_(1 - rate * decay).add_(update, alpha=-rate)
            momentum.lerp_(gradient, 0.01)

    expected, got = _parameters(), _parameters()
    first, second = ([torch.zeros_like(each) for each in given] for given in (expected, got))
    compiled = smelt.compile(lion, fullgraph=True)
    with torch.no_grad():
        for number in range(STEPS):
            _gradients(expected, number)
            _gradients(got, number)
            lion(expected, first, 0.01, 0.1)
            compiled(got, second, 0.01, 0.1)
    for want, have in zip([*expected, *first], [*got, *second]):
        torch.testing.assert_close(have, want)
    _ran_natively()


# -- fused steps: Dynamo leaves the optimizers' own alone; the operators themselves compile -----------------


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    return [each.detach().clone() for each in tensors]


def _step_agrees(function: Callable[..., None], lists: list[list[Tensor]], dtype: torch.dtype) -> None:
    expected, got = [_copies(each) for each in lists], [_copies(each) for each in lists]
    compiled = smelt.compile(function, fullgraph=True)
    with torch.no_grad():
        for _ in range(STEPS):
            function(*expected)
            compiled(*got)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {"rtol": 4e-6, "atol": 4e-6}
    for want, have in zip(expected, got):
        torch.testing.assert_close(have, want, **tolerance)
    _ran_natively()


def _lists(dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    parameters = _parameters(dtype)
    _gradients(parameters, 0)
    gradients = [each.grad for each in parameters]
    zeros = [torch.zeros_like(each) for each in parameters]
    steps = [torch.tensor(3.0) for _ in parameters]
    return [each.detach() for each in parameters], gradients, zeros, _copies(zeros), steps  # type: ignore[return-value]


ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
def test_fused_adam(name: str, dtype: torch.dtype) -> None:
    parameters, gradients, averages, squares, steps = _lists(dtype)

    def step(p: Any, g: Any, a: Any, s: Any, m: Any, n: Any) -> None:
        getattr(torch, name)(p, g, a, s, m, n, amsgrad=True, **ADAM)

    _step_agrees(step, [parameters, gradients, averages, squares, _copies(squares), steps], dtype)


@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
def test_fused_adam_without_maxima(name: str) -> None:
    """AOTAutograd refuses the empty list of maxima, so the formula alone is compared."""
    parameters, gradients, averages, squares, steps = _lists(torch.float32)
    function = optimizer_decompositions()[getattr(aten, name).default]
    expected = [_copies(each) for each in (parameters, gradients, averages, squares)]
    getattr(torch, f"{name}_")(*expected, [], steps, amsgrad=False, **ADAM)
    got = function(parameters, gradients, averages, squares, [], steps, amsgrad=False, **ADAM)
    for want, have in zip(expected, got):
        torch.testing.assert_close(have, want)
    assert got[4] == []


@pytest.mark.parametrize("infinite", [0.0, 1.0])
def test_fused_adam_with_scaled_gradients(infinite: float) -> None:
    parameters, gradients, averages, squares, steps = _lists(torch.float32)

    def step(p: Any, g: Any, a: Any, s: Any, m: Any, n: Any, scale: Any) -> None:
        given = {"grad_scale": scale[0], "found_inf": scale[1]}
        torch._fused_adam_(p, g, a, s, m, n, amsgrad=True, **ADAM, **given)

    scale = [torch.tensor(1.5), torch.tensor(infinite)]
    _step_agrees(
        step, [parameters, gradients, averages, squares, _copies(squares), steps, scale], torch.float32
    )


# -- list operators -----------------------------------------------------------------------------------------

LISTS: dict[str, Callable[[list[Tensor], list[Tensor]], Any]] = {
    "add scalar": lambda a, b: torch._foreach_add(a, 2.5),
    "add list": lambda a, b: torch._foreach_add(a, b, alpha=3),
    "add scalars": lambda a, b: torch._foreach_add(a, [1.0, 2.0, 3.0]),
    "add tensor": lambda a, b: torch._foreach_add(a, torch.tensor(2.0), alpha=2),
    "mul tensor": lambda a, b: torch._foreach_mul(a, torch.tensor(2.0)),
    "div": lambda a, b: torch._foreach_div(a, b),
    "addcmul": lambda a, b: torch._foreach_addcmul(a, b, b, value=0.5),
    "addcdiv scalars": lambda a, b: torch._foreach_addcdiv(a, b, b, [1.0, 2.0, 3.0]),
    "lerp": lambda a, b: torch._foreach_lerp(a, b, 0.3),
    "lerp list": lambda a, b: torch._foreach_lerp(a, b, b),
    "pow": lambda a, b: torch._foreach_pow(2.0, a),
    "maximum": lambda a, b: torch._foreach_maximum(a, 0.1),
    "minimum": lambda a, b: torch._foreach_minimum(a, b),
    "clamp": lambda a, b: torch._foreach_clamp_max(a, [0.1, 0.2, 0.3]),
    "norm": lambda a, b: torch._foreach_norm(a, 2),
    "norm 1": lambda a, b: torch._foreach_norm(a, 1),
    "max": lambda a, b: aten._foreach_max.default(a),
    "sigmoid": lambda a, b: torch._foreach_sigmoid(a),
    "frac": lambda a, b: torch._foreach_frac(a),
    "zero": lambda a, b: torch._foreach_zero_(a),
    "copy": lambda a, b: torch._foreach_copy_(a, b),
    "in place": lambda a, b: torch._foreach_sub_(a, b),
}


def test_lists_tensor_by_tensor() -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = ([torch.randn(shape, generator=generator) for shape in ((3, 4), (5,), ())] for _ in range(2))

    def function(a: list[Tensor], b: list[Tensor]) -> list[Any]:
        results = []
        for operator in LISTS.values():
            given = [each.clone() for each in a]
            result = operator(given, b)
            results += list(given if result is None else result)
        return results

    compiled = smelt.compile(function, fullgraph=True)
    for want, have in zip(function(a, b), compiled(a, b), strict=True):
        torch.testing.assert_close(have, want)
    assert [str(each) for report in smelt.reports() for each in report.fallbacks] == []


def test_every_functional_list_operator_is_taken_apart() -> None:
    table = optimizer_decompositions()
    left = [
        f"{schema.name}.{schema.overload_name}"
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::_foreach_") and not any(a.alias_info for a in schema.arguments)
        if getattr(getattr(aten, schema.name.removeprefix("aten::")), schema.overload_name or "default")
        not in table
    ]
    untraceable = {"aten::_foreach_addcmul.Tensor", "aten::_foreach_addcdiv.Tensor"}
    assert set(left) <= {"aten::_foreach_powsum.Scalar", *untraceable}


# -- a training step ----------------------------------------------------------------------------------------


def _mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)
    )


def _convnet() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 3),
    )


@pytest.mark.parametrize(("make", "shape"), [(_mlp, (5, 6)), (_convnet, (5, 2, 4, 4))], ids=["mlp", "conv"])
def test_training(make: Callable[[], torch.nn.Module], shape: tuple[int, ...]) -> None:
    """Compiled forward and backward, compiled step: the losses of eager, no fallbacks."""

    def train(wrap: Callable[..., Any]) -> list[float]:
        torch.manual_seed(3)
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
        forward = wrap(lambda x, y: torch.nn.functional.cross_entropy(model(x), y))
        step = wrap(optimizer.step)
        x, y = torch.randn(shape), torch.randint(3, (5,))
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = forward(x, y)
            loss.backward()
            step()
            losses.append(loss.item())
        return losses

    expected, got = train(lambda f: f), train(lambda f: torch.compile(f, backend="smelt"))
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    assert expected[-1] < expected[0]
    assert [str(each) for report in smelt.reports() for each in report.fallbacks] == []
    assert {report.kind for report in smelt.reports()} == {"forward", "backward", "inference"}
