"""The yardsticks themselves: they notice what is wrong, shrink it, and survive what crashes."""

from __future__ import annotations

import os
import time

import pytest
import torch

from tests.conformance.agreement import Disagreement, assert_agree, clones
from tests.conformance.fuzz import as_script
from tests.conformance.fuzz_worker import FuzzJob, FuzzResult, check_program
from tests.conformance.isolation import Lost, run_isolated
from tests.conformance.minimize import minimize
from tests.conformance.opinfo import as_markdown, make_jobs, summary
from tests.conformance.opinfo_worker import OpResult, check_operator
from tests.conformance.programs import LAYOUTS, Input, Program, Step, draw, generate, lay_out


@pytest.mark.parametrize(
    ("ours", "eager", "text"),
    [
        (torch.ones(3), torch.ones(3) + 1e-3, "relative error"),
        (torch.ones(3), torch.ones(4), r"float32\[3\], eager float32\[4\]"),
        (torch.ones(3), torch.ones(3).double(), "float64"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), r"2 at \[1\], eager 3"),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 2.0]), "NaN or inf"),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, -torch.inf]), "NaN or inf"),
        ((torch.ones(1),), (torch.ones(1), torch.ones(1)), "1 outputs, eager has 2"),
        (3, 4, "3, eager 4"),
    ],
)
def test_disagreements_are_found(ours: object, eager: object, text: str) -> None:
    assert_agree(eager, eager, lambda: eager)
    with pytest.raises(Disagreement, match=text):
        assert_agree(ours, eager, lambda: eager)


def test_float64_says_who_is_nearer() -> None:
    exact = torch.rand(100, dtype=torch.float64)
    eager = (exact * (1 + 1e-4)).float()
    assert_agree((exact * (1 - 3e-4)).float(), eager, lambda: exact)
    with pytest.raises(Disagreement):
        assert_agree((exact * (1 - 6e-4)).float(), eager, lambda: exact)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4, 5)])
def test_clones_keep_values_and_strides(shape: tuple[int, ...], layout: str) -> None:
    tensor = lay_out(draw(shape, "float32", 3), layout)
    copy = clones([tensor])[0]
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert copy.data_ptr() != tensor.data_ptr()


def behave(job: str) -> str:
    """Runs in the worker process."""
    if job == "die":
        os._exit(3)
    if job == "hang":
        time.sleep(600)
    return job.upper()


def test_a_job_that_dies_or_hangs_costs_only_itself() -> None:
    found = dict(run_isolated(["a", "die", "b", "hang", "c"], behave, workers=2, timeout=5.0))
    assert (found["a"], found["b"], found["c"]) == ("A", "B", "C")
    assert found["die"] == Lost("crash", "the process ended with exit code 3")
    assert found["hang"].outcome == "timeout"


def test_programs_are_reproducible() -> None:
    assert generate(5).source() == generate(5).source()
    assert len({generate(seed).source() for seed in range(20)}) == 20


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed: int) -> None:
    result = check_program(FuzzJob(generate(seed, steps=8)))
    assert result.outcome in ("pass", "not captured"), result.message


@pytest.mark.parametrize("seed", range(100, 106))
def test_random_programs_under_several_sizes(seed: int) -> None:
    result = check_program(FuzzJob(generate(seed, steps=8), 5, seed))
    assert result.outcome in ("pass", "not captured"), result.message


def test_shrinking_leaves_what_matters() -> None:
    program = Program(
        (Input("x0", ("A", 3), "float32", "contiguous", 1), Input("x1", ("B",), "int64", "contiguous", 2)),
        (
            Step("v0", "torch.exp(x0)", ("x0",)),
            Step("v1", "x1 + 1", ("x1",)),
            Step("v2", "torch.sin(v0)", ("v0",)),
            Step("v3", "v2.sum(0)", ("v2",)),
            Step("v4", "v3 * 2", ("v3",)),
        ),
        ("v4", "v1"),
    )

    def fails(candidate: Program) -> bool:
        candidate.function()(*candidate.arguments())
        return any("sin" in step.text for step in candidate.steps)

    small = minimize(program, fails)
    assert [step.text for step in small.steps] == ["torch.sin(v0)"]
    assert [each.name for each in small.inputs] == ["v0"]
    script = as_script(FuzzJob(small, 1, 9), FuzzResult("mismatch", "too far"))
    compile(script, "script", "exec")
    assert "torch.sin(v0)" in script


def test_an_operator_and_its_row_in_the_table() -> None:
    (job,) = make_jobs("^sigmoid$", ["float32"], 2, True, False)
    result = check_operator(job)
    assert (result.outcome, result.passed, result.backward, result.fallbacks) == ("pass", 2, 2, {})
    rows = [(job, result), (job, OpResult("mismatch", "wrong | here", 2, 1, fallbacks={"aten.x: y": 1}))]
    facts = summary(rows)
    assert (facts["pairs_tried"], facts["pairs_passed"], facts["zero_fallbacks"]) == (2, 1, 1)
    assert "| sigmoid | float32 | 1/2 | 0 | mismatch: wrong / here | aten.x: y ×1 |" in as_markdown(rows)
