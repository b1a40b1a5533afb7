"""Taking turns, workloads and their state."""

from __future__ import annotations

import pytest
import torch

from smelt.cli.bench import duration
from smelt.cli.cache import size
from smelt.cli.measure import LEAST_ROUNDS, Timing, race, ratio
from smelt.cli.spec import Program
from smelt.tracing import workload
from smelt.tracing.workload import Setup


def test_contenders_take_turns_and_the_order_alternates():
    calls: list[str] = []
    times = race({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0.0)
    assert len(times["a"].seconds) == len(times["b"].seconds) >= LEAST_ROUNDS
    turns = [calls[0]]
    for name in calls:
        if name != turns[-1]:
            turns.append(name)
    # warm-up a, b; then a b | b a | a b | b a | a b: equal neighbours melt into one turn
    assert turns == ["a", "b"] * (len(turns) // 2)
    assert len(turns) == 2 + LEAST_ROUNDS + 1


def test_ratio_is_taken_within_a_round():
    # the machine is twice as slow in the second round: the ratio does not notice
    assert ratio(Timing((2.0, 4.0, 2.0), 1), Timing((1.0, 2.0, 1.0), 1)) == 2.0


def test_timing_is_a_median():
    assert Timing((1.0, 100.0, 2.0), 3).as_dict() == {
        "median": 2.0,
        "min": 1.0,
        "max": 100.0,
        "rounds": 3,
        "calls_per_turn": 3,
    }


def test_training_step_moves_parameters_and_inference_does_not():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    program = Program(model, (torch.randn(2, 4),), {})
    before = model.weight.detach().clone()
    assert not workload.runner(program, model, Setup())().requires_grad
    assert torch.equal(model.weight, before)
    workload.runner(program, model, Setup(train=True))()
    assert not torch.equal(model.weight, before)


def test_training_sets_the_mode_and_a_function_trains_its_arguments():
    model = torch.nn.Linear(4, 4).eval()
    workload.prepare(Program(model, (), {}), Setup())
    assert not model.training
    workload.prepare(Program(model, (), {}), Setup(train=True))
    assert model.training
    x, count = torch.randn(3), torch.arange(3)
    program = Program(lambda x, count: x * count, (x, count), {})
    workload.prepare(program, Setup(train=True))
    workload.runner(program, program.call, Setup(train=True))()
    assert x.grad is not None
    assert list(workload.gradient_holders(program)) == ["argument 0"]


def test_loss_is_the_models_own_or_the_mean_squares():
    class Result:
        loss = torch.tensor(7.0)

    assert workload.loss_of(Result()) == 7.0
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    assert workload.loss_of({"y": x * 1, "n": torch.tensor([1])}).item() == 5.0
    with pytest.raises(ValueError, match="nothing to train"):
        workload.loss_of(torch.tensor([1.0]))


def test_as_double_keeps_integers_and_gradients():
    floats, ints = workload.as_double((torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.int32)))
    assert floats.dtype == torch.float64
    assert floats.requires_grad
    assert ints.dtype == torch.int32


def test_units():
    assert [duration(x) for x in (12.34, 0.5, 0.0123, 5e-5, 2e-8)] == [
        "12.3 s",
        "500 ms",
        "12.3 ms",
        "50.0 µs",
        "20 ns",
    ]
    assert size(5 * 2**30) == "5.0 GiB"
