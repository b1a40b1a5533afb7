"""Tests of the lowering table as they are, on this target (``pytest --target triton``): a small choice.

All of them: ``PYTHONPATH=.venv/triton TRITON_INTERPRET=1 pytest --target triton tests/lowering``.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.codegen.triton.test_triton import ROOT, TRITON

pytestmark = [pytest.mark.long, pytest.mark.skipif(not TRITON.is_dir(), reason="no Triton: make test")]

CHOSEN = (
    "pointwise.py::test_numbers_wrap_in_narrow_integers",
    "pointwise.py::test_low_precision_rounds_after_each_operator",
    "reductions.py::test_nan_wins_and_its_first_position_is_found",
    "reductions.py::test_mean_rounds_once",
    "reductions.py::test_one_lowering_for_all_sizes",
    "scans.py::test_the_sum_is_rounded_from_float64_and_bfloat16_from_float32",
    "scans.py::test_special_values_are_where_eager_has_them",
    "scatter.py::test_index_put_by_a_mask",
    "scatter.py::test_index_put_out_of_range_raises",
    "scatter_reduce.py::test_what_is_not_a_number_spreads",
    "sorting.py::test_scalars",
    "sorting.py::test_kthvalue_and_mode",
    "statistics.py::test_softmax_of_masked_and_of_infinite_rows",
    "embedding.py::test_bags_of_nothing_and_out_of_range",
    "structural.py::test_conversion_of_special_values_to_bool_and_low_precision",
    "structural.py::test_conversion[torch.bfloat16]",
    "structural.py::test_conversion[torch.bool]",
    "alike.py::test_what_differs_is_not_alike",
)


def test_lowering_rows_on_this_target() -> None:
    path = os.pathsep.join([str(TRITON), str(ROOT), os.environ.get("PYTHONPATH", "")])
    chosen = [f"tests/lowering/test_{each}" for each in CHOSEN]
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "--target", "triton", "-rs", *chosen]
    env = os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-p", "no:xdist"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "SKIPPED" not in done.stdout, done.stdout[-4000:]
