"""A share of the fuzzer of te programs; `python -m tests.conformance.te_fuzz 1000` is all of it."""

import inspect

import pytest

from smelt.tir import Schedule
from tests.conformance.te_fuzz_worker import TeJob, check_batch
from tests.conformance.te_traces import ARGUMENTS, TOGETHER, methods


def passes(job: TeJob) -> None:
    results = check_batch(job)
    failed = [f"{each.seed}: {each.outcome}: {each.message}" for each in results if each.outcome != "pass"]
    assert not failed, "\n".join([*failed, "python -m tests.conformance.te_fuzz --only SEED shows one"])
    assert sum(each.taken.total() for each in results) > len(job.seeds)
    assert sum(each.refused.total() for each in results) > 0


@pytest.mark.parametrize("method", methods())
def test_every_step_of_a_schedule_can_be_drawn(method: str) -> None:
    parameters = list(inspect.signature(getattr(Schedule, method)).parameters.values())[1:]
    needed = [each.name for each in parameters if each.default is each.empty]
    missing = [name for name in needed if name not in ARGUMENTS]
    assert method in TOGETHER or not missing, f"say in ARGUMENTS how {missing} are drawn"


@pytest.mark.parametrize("first", [0, 20])
def test_programs_by_the_interpreter(first: int) -> None:
    passes(TeJob(tuple(range(first, first + 20)), compiled=False))


def test_compiled_programs() -> None:
    passes(TeJob(tuple(range(100, 112))))
