"""The comparison of recipes with smelt's own schedules computes in all families what eager does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import recipes
from smelt.tir import recipes as ours

TINY = {
    "matmul": recipes.product(9, 16, 8, ours.matmul),
    "few rows": recipes.product(2, 8, 16, ours.few_rows),
    "convolution NHWC": recipes.convolution("NHWC", 8, 16, 6),
    "convolution NCHW": recipes.convolution("NCHW", 8, 16, 6, window=1),
    "attention": recipes.attention(2, 7, 9, 8),
    "gradients of attention": recipes.gradients(1, 7, 9, 8),
}


def test_every_family_has_computations() -> None:
    assert set(TINY) == set(recipes.FAMILIES)


def test_it_measures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(recipes, "FAMILIES", {family: (case,) for family, case in TINY.items()})
    file = tmp_path / "gate.json"
    monkeypatch.setattr("sys.argv", ["recipes.py", "--seconds", "0.01", "--json", str(file)])
    assert recipes.main() == 0
    document = json.loads(file.read_text())
    for family, (row,) in document["families"].items():
        assert row["recipe"] > 0 and row["recipe_compile"] > row["recipe_schedule"] > 0, family
    shown = capsys.readouterr().out
    assert all(family in shown for family in TINY)


def test_a_wrong_result_is_an_error() -> None:
    right = TINY["matmul"]
    with pytest.raises(AssertionError, match="not close"):
        recipes.measured(replace(right, program=lambda a, b: (a @ b.t()).relu() + 1), 0.01)


def test_what_is_no_family_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["recipes.py", "--families", "softmax"])
    with pytest.raises(SystemExit):
        recipes.main()
    assert "no such family: softmax; there are matmul" in capsys.readouterr().err
