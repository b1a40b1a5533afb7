"""The judge of numbers: what it lets pass and what not."""

from __future__ import annotations

import math

import pytest
import torch

from smelt.cli import accuracy
from smelt.cli.accuracy import PROMISE, Values, compare, difference
from smelt.cli.spec import Program
from smelt.tracing.workload import Setup


def _one(eager, other, exact):
    return difference("x", eager, other, exact)


EXACT = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64)


def test_four_times_eagers_error_passes_and_five_times_does_not():
    off = 1e-4
    eager = (EXACT + off).float()
    assert _one(eager, (EXACT + 3.9 * off).float(), EXACT).within
    assert not _one(eager, (EXACT + 5.0 * off).float(), EXACT).within
    assert PROMISE == 4.0


def test_a_few_ulp_pass_where_eager_is_exact():
    eager = EXACT.float()
    eps = torch.finfo(torch.float32).eps
    assert _one(eager, (EXACT + 3.0 * 6 * eps).float(), EXACT).within
    assert not _one(eager, (EXACT + 3.0 * 12 * eps).float(), EXACT).within


def test_errors_are_relative_to_the_largest_value():
    found = _one(EXACT.float(), EXACT.float() + 0.3, EXACT)
    assert found.contender == pytest.approx(0.1, rel=1e-4)
    assert found.eager == 0.0
    assert found.ratio == math.inf


def test_integers_and_bools_are_exact():
    ints = torch.tensor([1, 2, 3])
    assert _one(ints, ints.clone(), ints).within
    assert not _one(ints, ints + 1, ints).within
    assert not _one(ints, ints.to(torch.int32), ints).within
    bools = torch.tensor([True, False])
    assert not _one(bools, ~bools, bools).within


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_have_to_be_where_eager_has_them(strange):
    eager = torch.tensor([1.0, strange, 3.0])
    assert _one(eager, eager.clone(), eager.double()).within
    moved = torch.tensor([strange, 1.0, 3.0])
    found = _one(eager, moved, eager.double())
    assert not found.within
    assert "elsewhere" in found.why


def test_minus_inf_is_not_inf():
    eager, other = torch.tensor([math.inf, 1.0]), torch.tensor([-math.inf, 1.0])
    assert not _one(eager, other, eager.double()).within


def test_shape_dtype_and_missing_outputs_are_noticed():
    assert "float32[3]" in _one(EXACT.float(), torch.zeros(2), EXACT).why
    assert not _one(EXACT.float(), EXACT.half(), EXACT).within
    verdict = compare(
        Values({"a": EXACT, "b": EXACT}), Values({"a": EXACT}), Values({"a": EXACT, "b": EXACT})
    )
    assert not verdict.within
    assert verdict.worst is not None
    assert verdict.worst.name == "b"


def test_worst_is_the_one_outside_the_promise():
    good, bad = EXACT.float() + 0.01, EXACT.float() + 0.001
    ours = Values({"good": good, "bad": EXACT.float()})
    verdict = compare(ours, Values({"good": good, "bad": bad}), Values({"good": EXACT, "bad": EXACT}))
    assert verdict.worst is not None
    assert verdict.worst.name == "bad"
    assert not verdict.as_dict()["within_promise"]


def test_eagers_error_at_a_corner_is_that_of_nearby_runs():
    """A pre-activation of 0: half of the nearby runs have a gradient there, eager's own one has none."""
    layer = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, -0.25]]))
    model = torch.nn.Sequential(layer, torch.nn.ReLU())
    program, setup = Program(model, (torch.tensor([[1.0, 2.0], [3.0, 1.0]]),), {}), Setup(train=True)
    before = layer.weight.detach().clone()
    eager = accuracy.run_eager(program, setup)
    assert torch.equal(layer.weight, before)
    assert len(eager.nearby) == accuracy.NEARBY_RUNS
    exact = accuracy.reference(program, setup)
    assert compare(eager, Values(eager.nearby[0]), exact).within
    wrong = {**eager.tensors, "output 0": eager.tensors["output 0"] * 1.001}
    assert not compare(eager, Values(wrong), exact).within
    assert not accuracy.run_eager(program, Setup()).nearby


def test_reference_is_in_float64_and_leaves_the_model_alone():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).train()
    program = Program(model, (torch.randn(8, 4),), {})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    exact = accuracy.reference(program, Setup(train=True))
    assert isinstance(exact, Values)
    assert exact.tensors["output 0"].dtype == torch.float64
    assert "gradient of 0.weight" in exact.tensors
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(p.grad is None for p in model.parameters())
    eager = accuracy.run_once(program, model, Setup(train=True))
    assert compare(eager, eager, exact).within


def test_a_model_that_draws_random_numbers_is_not_compared():
    program = Program(torch.nn.Dropout(0.5).train(), (torch.randn(8, 8),), {})
    exact = accuracy.reference(program, Setup())
    assert isinstance(exact, str)
    assert "random" in exact
    verdict = compare(Values({}), Values({}), exact)
    assert not verdict.compared


def test_a_model_that_cannot_run_in_float64_is_not_compared():
    program = Program(lambda x: torch.nn.functional.linear(x, torch.ones(3, 3)), (torch.ones(3),), {})
    exact = accuracy.reference(program, Setup())
    assert isinstance(exact, str)
    assert exact.startswith("no float64 reference: RuntimeError")
