"""Plans whose sizes are known only while they run."""

from __future__ import annotations

import pytest
import torch

from smelt.errors import VerificationError
from smelt.runtime.executor import build, render
from smelt.runtime.plan import CheckStep, ExternStep, Plan, Ref, SizeRef, SizeStep, TensorSpec, ViewRef
from smelt.runtime.plan_json import from_json, to_json


def plan_of(*steps: object) -> Plan:
    view = ViewRef("found", ("n", 1), (1, 1), 0)
    return Plan(("x",), ("n", "u0"), (), 0, (), tuple(steps), (view, SizeRef("n")))  # type: ignore[arg-type]


FOUND = ExternStep(
    "aten.nonzero.default",
    (Ref("x"),),
    {},
    ("found",),
    specs=(TensorSpec("found", "int64", ("u0", 1), (1, "u0")),),
    sizes=(("u0", 0, 0),),
)
HALF = SizeStep("n", "u0//2")
ENOUGH = CheckStep("u0 >= 2 and u0 != 4", ("ValueError", "two, three, or more than four"))


def test_sizes_come_from_results_and_from_one_another() -> None:
    plan = plan_of(FOUND, ENOUGH, HALF)
    call = build(from_json(to_json(plan)), None, {})
    view, n = call([torch.tensor([0.0, 1.0, 2.0, 3.0])])
    assert (view.tolist(), n) == ([[1]], 1)
    for wrong in ([0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]):
        with pytest.raises(ValueError, match="two, three, or more"):
            call([torch.tensor(wrong)])


def test_the_source_is_plain() -> None:
    text = render(plan_of(FOUND, ENOUGH, HALF))
    assert "u0 = found.shape[0]\n" in text
    assert "if not (u0 >= 2 and u0 != 4):\n" in text
    assert "n = u0//2\n" in text


@pytest.mark.parametrize("steps", [(HALF, FOUND), (ENOUGH, FOUND, HALF), (FOUND,)])
def test_a_size_that_is_used_before_it_is_known_is_a_problem(steps: tuple[object, ...]) -> None:
    with pytest.raises(VerificationError) as found:
        render(plan_of(*steps))
    assert found.value.code == "SM0405"
