"""The coverage of operators follows from the lowering table and from what handlers say of themselves."""

from __future__ import annotations

import pytest
import torch

from smelt.lowering.registry import TABLE
from smelt.mlir import coverage
from smelt.mlir.capabilities import Capabilities

pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")

aten = torch.ops.aten


def say(monkeypatch, capabilities):
    monkeypatch.setattr(coverage, "capabilities", lambda dialect: capabilities)


def test_a_new_row_is_in_the_table_by_itself():
    listed = set(coverage.operators())
    dispatched = set(torch._C._dispatch_get_all_op_names())
    assert {overload for overload in TABLE if overload.name() in dispatched} <= listed
    assert aten.mm.default in listed
    assert aten._fft_r2c.default in listed
    assert aten.resize_.default not in listed


def test_a_dialect_takes_what_its_handler_can_do(monkeypatch):
    say(monkeypatch, Capabilities(frozenset({"Pointwise", "Reduction"})))
    assert coverage.coverage_of(aten.exp.default).dialects["linalg"] == "yes"
    assert coverage.coverage_of(aten.sum.dim_IntList).dialects["tosa"] == "yes"
    assert coverage.coverage_of(aten.sort.default).dialects["linalg"] == "not Sort"
    assert coverage.coverage_of(aten.mm.default).dialects["linalg"] == "no"
    assert coverage.coverage_of(aten._linalg_svd.default).dialects["linalg"] == "no"
    assert coverage.coverage_of(aten._fft_r2c.default).dialects["linalg"] == "decomposed"


def test_a_dialect_without_an_operator_says_which(monkeypatch):
    from smelt.ops.table import TABLE as ROWS

    without = frozenset(ROWS) - {"erfinv"}
    say(monkeypatch, Capabilities(frozenset({"Pointwise"}), without))
    assert coverage.coverage_of(aten.erfinv.default).dialects["tosa"] == "not erfinv"
    assert coverage.coverage_of(aten.permute.default).dialects["tosa"] == "yes"


def test_calls_that_a_dialect_writes_itself_count(monkeypatch):
    svd = "aten._linalg_svd.default"
    say(monkeypatch, Capabilities(frozenset({"Pointwise"}), calls=frozenset({svd})))
    assert coverage.coverage_of(aten._linalg_svd.default).dialects["stablehlo"] == "yes"


def test_a_statement_names_only_what_exists():
    with pytest.raises(AssertionError, match="Pointless"):
        Capabilities(frozenset({"Pointless"}))


def test_columns_of_cpp_and_torch():
    add = coverage.coverage_of(aten.add.Tensor)
    assert (add.cpp, add.dialects["torch"]) == ("kernel", "yes")
    norm = coverage.coverage_of(aten._native_batch_norm_legit_no_training.default)
    assert norm.dialects["torch"] == "yes"
    for written in (aten.fmin.default, aten.gather.default, aten.sort.default):
        assert coverage.coverage_of(written).dialects["torch"] == "loops"
    assert coverage.coverage_of(aten.mm.default).cpp == "ATen"
    assert coverage.coverage_of(aten._linalg_svd.default).dialects["torch"] == "operator"
    assert coverage.coverage_of(aten._fft_c2c.default).dialects["torch"] == "decomposed"
