"""Operators of op_db once, float32, forward and backward: what passes under aot_eager passes with smelt.

Core ATen operators are left to tests/lowering/test_core_coverage.py, which compiles all of them: the others
are made of these, and every third of them is compiled here, all of them by the slow test. Everything in all
dtypes, with three samples each, is `make opinfo`.
"""

from __future__ import annotations

import pytest

from tests.conformance.isolation import Lost, run_isolated
from tests.conformance.opinfo import BAD, make_jobs
from tests.conformance.opinfo_worker import OpJob, check_operator, entries
from tests.lowering.test_core_coverage import COMPILED

CORE = {operator.overloadpacket.__name__ for operator in COMPILED}
SHORT: dict[str, str] = {}
"""Operators that are known not to pass, with the cause."""


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_operators_once(step: int) -> None:
    jobs = [job for job in make_jobs("", ["float32"], 1, True, False) if not _is_core(job)]
    assert len(jobs) > 500
    jobs = jobs[::step]
    wrong, native = [], 0
    for job, result in run_isolated(jobs, check_operator, workers=2, timeout=180.0, jobs_per_process=200):
        if isinstance(result, Lost) or result.outcome in BAD:
            wrong.append(f"{job.name}: {result.outcome}: {result.message}")
        elif not result.fallbacks:
            native += 1
    unexpected = [line for line in wrong if line.split(":")[0] not in SHORT]
    assert not unexpected, "\n".join(unexpected)
    assert native >= 0.85 * len(jobs)


def _is_core(job: OpJob) -> bool:
    """Whether the entry is one core ATen operator as it is, not a variant of it or a function around it."""
    entry = entries()[job.position]
    return entry.aten_name in CORE and not entry.variant_test_name
