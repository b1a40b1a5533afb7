"""Mode ``max`` with a driver that interprets: another process measures, and candidates may end it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.codegen.triton.test_triton import TRITON, said

pytestmark = [pytest.mark.long, pytest.mark.skipif(not TRITON.is_dir(), reason="no Triton: make test")]

KILLED = {"16x16x16, 4 warps, 9 stages": "its process ended by signal 9"}
LOST = KILLED | {
    "16x16x16, 4 warps, 8 stages": "no result within 4 seconds",
    "16x16x16, 4 warps, 7 stages": "its result is wrong: 1.0e+00 of the largest element away from ATen's",
}


def _measured(case: str, folder: Any) -> dict[str, Any]:
    cache = {"SMELT_CACHE_DIR": str(folder), "TRITON_INTERPRET": "1"}
    return said("tests.codegen.triton.measuring", case, **cache)


@pytest.mark.parametrize(
    ("case", "lost"), [("killed", KILLED), pytest.param("lost", LOST, marks=pytest.mark.slow)]
)
def test_candidates_are_measured_by_another_process_and_remembered(
    tmp_path: Any, case: str, lost: dict[str, str]
) -> None:
    """A candidate may kill its process, block it, or be wrong."""
    found = _measured(case, tmp_path)
    first, again = found["first"], found["again"]
    assert not first["difference"] and first["kernels"] == ["mm"]
    assert (first["kernel"], first["tiles"]) == ("native", "32x32x16, 4 warps, 3 stages")
    assert dict(first["lost"]) == lost
    assert again == {**first, "difference": ""}, "measured again"


@pytest.mark.slow
def test_an_attention_of_a_gpu_is_measured(tmp_path: Any) -> None:
    found = _measured("attention", tmp_path)["attention"]
    assert not found["difference"] and found["kernel"] == "native" and not found["lost"]
