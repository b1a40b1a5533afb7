"""smelt schema: names as people write them, what becomes of an operator, and the table in the documents."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")

COVERAGE = Path(__file__).parent.parent.parent / "docs" / "coverage.md"


@pytest.mark.parametrize(
    "name", ["aten::add.Tensor", "aten.add.Tensor", "add.Tensor", "torch.ops.aten.add.Tensor"]
)
def test_an_overload_by_any_of_its_names(smelt_command, name):
    code, out, err = smelt_command("schema", name)
    assert code == 0, err
    assert out.startswith("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor\n")
    assert "a kernel of smelt's own" in out
    assert "Pointwise" in out
    for dialect in ("Linalg", "StableHLO", "TOSA", "Torch"):
        assert f"  {dialect} " in out


def test_without_an_overload_all_are_told(smelt_command):
    code, out, err = smelt_command("schema", "aten::add")
    assert code == 0, err
    assert "aten::add.Tensor(" in out
    assert "aten::add.Scalar(" in out


def test_a_matrix_product_is_a_contraction_that_aten_runs(smelt_command):
    _, out, _ = smelt_command("schema", "aten::mm")
    assert "ATen's kernel, by choice" in out
    assert "Contraction" in out


def test_an_unknown_operator_has_near_ones(smelt_command):
    code, _, err = smelt_command("schema", "aten::addd.Tensor")
    assert code == 2
    assert "SM0911" in err
    assert "aten::add.Tensor" in err


def test_no_operator_says_what_to_give(smelt_command):
    code, _, err = smelt_command("schema")
    assert code == 2
    assert "SM0911" in err


def test_the_table_has_one_row_for_each_operator_and_is_that_of_the_documents(smelt_command):
    from smelt.mlir import coverage

    code, out, err = smelt_command("schema", "--table")
    assert code == 0, err
    rows = [line for line in out.splitlines() if line.startswith("| `")]
    assert len(rows) == len(list(coverage.operators()))
    assert all(line.count("|") == 7 for line in rows)
    assert rows == sorted(rows, key=lambda line: line.split("`")[1])
    if torch.__version__.startswith("2.13"):  # the documents' table is that of torch 2.13
        assert out == COVERAGE.read_text(), "run: smelt schema --table > docs/coverage.md"
