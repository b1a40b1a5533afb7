"""Random numbers end to end: seeds, threads, lanes, fusion, gradients, checkpoints, eager's own numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.capture import capture_function
from smelt.config import Config
from smelt.loops.interpreter import run_graph
from smelt.lowering import lower
from smelt.pipeline import compile_program

pytestmark = pytest.mark.usefixtures("fresh")

aten = torch.ops.aten


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="smelt", fullgraph=True, options=options or None)


def fallbacks() -> set[str]:
    return {each.op for report in smelt.reports() for each in report.fallbacks}


def everything(x: torch.Tensor) -> list[torch.Tensor]:
    """Every kind of random number, in x's dtype."""
    dropped, mask = torch.native_dropout(x, 0.3, True)
    return [
        torch.rand_like(x),
        torch.randn_like(x),
        torch.randint(-5, 1000, x.shape),
        torch.randint(0, 1 << 50, x.shape),
        aten.bernoulli(x, 0.4),
        torch.bernoulli(x.sigmoid()),
        aten.uniform(x, -2.0, 3.0),
        torch.normal(x, 2.0),
        aten.exponential(x, 2.0),
        aten.geometric(x, 0.2),
        aten.cauchy(x),
        aten.log_normal(x),
        aten.rrelu_with_noise_functional(x, torch.zeros_like(x), 0.1, 0.3, True)[0],
        dropped,
        mask,
        torch.multinomial(x.double().abs(), 1),
        torch.multinomial(x.double().abs(), 9, replacement=True),
        torch.multinomial(x.double().abs(), 3),
        torch.randperm(x.shape[0]),
    ]


def seeded(call: Callable[..., Any], *args: Any, seed: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return list(call(*args))


def differing(one: list[torch.Tensor], two: list[torch.Tensor]) -> list[int]:
    return [place for place, (a, b) in enumerate(zip(one, two, strict=True)) if not torch.equal(a, b)]


X = torch.randn(37, 103, generator=torch.Generator().manual_seed(1))


def test_the_seed_decides_and_each_call_draws_anew() -> None:
    call = compiled(everything)
    first, second = seeded(call, X), list(call(X))
    assert fallbacks() == set()
    assert smelt.reports()[0].externs["aten.randint.low"] == 1
    assert differing(seeded(call, X), first) == []
    assert differing(first, second) == list(range(len(first)))
    assert differing(first, seeded(call, X, seed=1)) == list(range(len(first)))


def test_a_state_that_is_put_back_brings_the_numbers_back() -> None:
    call = compiled(lambda x: (torch.rand_like(x), F.dropout(x, 0.5)))
    seeded(call, X)
    state = torch.get_rng_state()
    first, second = list(call(X)), list(call(X))
    torch.set_rng_state(state)
    assert differing(list(call(X)), first) == differing(list(call(X)), second) == []
    with torch.random.fork_rng():
        third = list(call(X))
    assert differing(list(call(X)), third) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_lanes_nor_fusion_nor_threads_change_a_number(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    program = capture_function(everything, [x])

    def results(call: Callable[[list[Any]], Any]) -> list[torch.Tensor]:
        torch.manual_seed(7)
        return list(call([x]))

    expected = results(compile_program(program, Config(verify=True)))
    for options in (
        ({"vectorize": False}, {"fusion": False}) if dtype is torch.float32 else ({"vectorize": False},)
    ):
        assert differing(results(compile_program(program, Config(**options))), expected) == [], options
    call, threads = compile_program(program, Config(parallel_grain=1)), torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert differing(results(call), expected) == [], count
    finally:
        torch.set_num_threads(threads)


def test_machine_code_and_interpreter_draw_the_same() -> None:
    for dtype in (torch.float32, torch.float64):
        x = X.to(dtype)
        program = capture_function(everything, [x])
        torch.manual_seed(3)
        mine = list(compile_program(program, Config())([x]))
        torch.manual_seed(3)
        reference = run_graph(lower(program.graph_module), [x])
        exact = (0, 2, 3, 4, 14, 15, 16, 17, 18)
        for place, (a, b) in enumerate(zip(mine, reference, strict=True)):
            if place in exact:
                assert torch.equal(a, b), place
            else:  # through functions that round
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_one_compile_serves_all_sizes() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.randn(x.shape[0], 2), torch.randint(x.shape[0], x.shape), F.dropout(x + 3, 0.25)

    call = torch.compile(program, backend="smelt", fullgraph=True, dynamic=True)
    for rows in (5, 1, 64, 999):
        normal, whole, dropped = seeded(call, torch.zeros(rows, 7))
        torch._dynamo.reset()
        fixed = seeded(torch.compile(program, backend="smelt", dynamic=False), torch.zeros(rows, 7))
        assert torch.equal(normal, fixed[0]) and torch.equal(dropped, fixed[2])
        assert whole.shape == (rows, 7) and (whole >= 0).all() and (whole < rows).all()


# -- gradients ---------------------------------------------------------------------------------------------


def masked_by_noise(x: torch.Tensor) -> torch.Tensor:
    """The noise is used twice, so that recomputing it in the backward would be cheap, and wrong."""
    noise = aten.exponential(x)
    return x * noise * noise


def masked_by_bits(x: torch.Tensor) -> torch.Tensor:
    mask = torch.bernoulli(torch.full_like(x, 0.5))
    return (x * mask) * mask


GRADIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "dropout2d": lambda x: F.dropout2d(x.view(1, 10, 40, 10), 0.4).view(x.shape),
    "noise": masked_by_noise,
    "bits": masked_by_bits,
    "rrelu": lambda x: F.rrelu(x - 5, training=True) + 5 * 0,
}
"""Functions that are linear in x where x is 1 to 2, with random factors."""


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("setting", ["plain", "checkpoint", "aggressive"])
def test_the_backward_sees_the_numbers_of_the_forward(name: str, setting: str) -> None:
    function = GRADIENTS[name]
    call = compiled(
        (lambda x: checkpoint(function, x, use_reentrant=False)) if setting == "checkpoint" else function
    )
    x = (torch.rand(400, 10) + 1).requires_grad_()
    step = torch.rand(400, 10)
    with torch._functorch.config.patch(aggressive_recomputation=setting == "aggressive"):
        torch.manual_seed(0)
        first = call(x)
        first.sum().backward()
        torch.manual_seed(0)
        second = call((x.detach() + step).requires_grad_())
    assert fallbacks() == set()
    assert x.grad is not None and x.grad.unique().numel() > 1
    torch.testing.assert_close(second - first, step * x.grad, rtol=1e-4, atol=1e-4)


def test_training_with_dropout_is_the_same_each_time() -> None:
    def losses() -> list[float]:
        torch._dynamo.reset()
        torch.manual_seed(11)
        model = nn.Sequential(
            nn.Linear(12, 32), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3)
        )
        call, optimizer = compiled(model), torch.optim.SGD(model.parameters(), 0.1)
        x, target = torch.randn(64, 12), torch.randint(0, 3, (64,))
        found = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(call(x), target)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    one = losses()
    assert fallbacks() == set()
    assert one == losses()
    assert len(set(one)) == 5


# -- eager's own numbers -----------------------------------------------------------------------------------


def test_on_request_the_numbers_are_eagers() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.3))
    x = torch.randn(16, 8)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return model(x), torch.rand_like(x), torch.randn(3), torch.randint(0, 9, (4,)), torch.randperm(7)

    want = seeded(program, x)
    got = seeded(compiled(program, fallback_random=True), x)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert "aten.native_dropout.default" in fallbacks()


def test_a_probability_that_depends_on_data_is_checked() -> None:
    call = compiled(torch.bernoulli)
    assert set(call(torch.full((50,), 0.5)).tolist()) == {0.0, 1.0}
    with pytest.raises(RuntimeError, match="Expected p_in >= 0 && p_in <= 1 to be true"):
        call(torch.full((50,), 1.5))


def test_equal_layers_share_kernels() -> None:
    """The keys are computed once, ahead: then the layers differ in what they are called with, not in code.

    (The first kernel holds the keys too; the last one does not write in place.)
    """

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = F.dropout(x @ x, 0.5)
        return x

    compiled(program)(torch.randn(40, 40))
    text = smelt.reports()[0].text("cpp")
    assert text.count("static void kernel_native_dropout") <= 3
