"""Failing pipelines name the operator, the user's line and a file that fails in the same way."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smelt.errors import Problem, SmeltError
from smelt.mlir import run_pipeline_with_repro_report
from smelt.mlir.bindings import new_context
from smelt.mlir.diagnostics import (
    Diagnostic,
    PipelineError,
    UnsupportedOperatorsError,
    diagnostics_of,
    shown_on_stderr,
    verify,
)
from smelt.mlir.locations import location, where_of

ir = pytest.importorskip("torch_mlir.ir", reason="needs the extra [mlir]")

TO_LINALG = "builtin.module(torch-backend-to-linalg-on-tensors-backend-pipeline)"
UNKNOWN = """
func.func @main(%x: !torch.vtensor<[?,4],f32>) -> !torch.vtensor<[?,4],f32> {
  %one = torch.constant.int 1 loc("forward"("model.py":11:0))
  %0 = torch.operator "torch.aten.foo"(%x, %one) : (!torch.vtensor<[?,4],f32>, !torch.int)
    -> !torch.vtensor<[?,4],f32> loc("forward"("model.py":12:0))
  return %0 : !torch.vtensor<[?,4],f32>
}
"""
TANH = """
func.func @f(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = stablehlo.tanh %x : tensor<?xf32>
  return %0 : tensor<?xf32>
}
"""


def parsed(text: str):
    return ir.Module.parse(text, context=new_context())


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("smelt.runtime.repros.cache_dir", lambda: tmp_path)
    return tmp_path / "repros"


@pytest.mark.parametrize(
    "where", ["model.py:12 in forward", "module encoder.layer.0", "a b.py:3 in <lambda>"]
)
def test_locations_there_and_back(where):
    with new_context():
        assert where_of(location(where)) == where
        assert where_of(ir.Location.fused([location(where)])) == where


def test_no_location_is_none():
    with new_context():
        assert where_of(location(None)) is None
        assert where_of(location("<unknown>")) is None


def test_failure_names_operator_line_and_reproducer(temporary):
    with pytest.raises(PipelineError) as caught:
        run_pipeline_with_repro_report(parsed(UNKNOWN), TO_LINALG, "lowering to Linalg")
    error = caught.value
    assert error.code == "SM0712"
    assert error.operation == "torch.aten.foo"
    assert error.where == "model.py:12 in forward"
    assert error.what == "lowering to Linalg failed on torch.aten.foo"
    assert [each.severity for each in error.diagnostics] == ["error"] * len(error.diagnostics)
    assert any("failed to legalize" in each.message for each in error.diagnostics)
    assert error.reproducer in str(error)
    assert Path(error.reproducer).parent == temporary


def test_reproducer_fails_in_the_same_way(temporary):
    tool = shutil.which(
        "torch-mlir-opt", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    if tool is None:
        pytest.skip("no torch-mlir-opt")
    weights = """
    func.func @main(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
      %w = torch.vtensor.literal(dense_resource<w> : tensor<4xf32>) : !torch.vtensor<[4],f32>
      %0 = torch.operator "torch.my.op"(%x, %w) : (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>)
        -> !torch.vtensor<[4],f32> loc("forward"("model.py":7:0))
      return %0 : !torch.vtensor<[4],f32>
    }
    {-# dialect_resources: {builtin: {w: "0x0400000000000000000000000000000000000000"}} #-}
    """
    for text in (UNKNOWN, weights):
        with pytest.raises(PipelineError) as caught:
            run_pipeline_with_repro_report(parsed(text), TO_LINALG, "lowering")
        ran = subprocess.run(
            [tool, "--run-reproducer", caught.value.reproducer], capture_output=True, text=True, check=False
        )
        assert ran.returncode != 0
        assert caught.value.diagnostics[-1].message[:40] in " ".join(ran.stderr.split())


def test_text_that_is_no_pipeline():
    with pytest.raises(SmeltError) as caught:
        run_pipeline_with_repro_report(parsed(UNKNOWN), "builtin.module(no-such-pass)", "nothing")
    assert caught.value.code == "SM0714"
    assert "no-such-pass" in str(caught.value)


def test_a_pipeline_changes_the_module_in_place():
    module = parsed(TANH)
    run_pipeline_with_repro_report(module, "builtin.module(stablehlo-legalize-to-linalg)")
    assert "linalg.generic" in str(module)


def test_ir_printing_goes_to_stderr(capsys):
    run_pipeline_with_repro_report(
        parsed(TANH), "builtin.module(stablehlo-legalize-to-linalg)", enable_ir_printing=True
    )
    assert "IR Dump After" in capsys.readouterr().err


def test_nothing_is_printed_without_being_asked(capfd):
    with pytest.raises(PipelineError):
        run_pipeline_with_repro_report(parsed(UNKNOWN), TO_LINALG, "lowering")
    assert capfd.readouterr().err == ""


def test_symbolic_shapes_do_not_stop_backend_pipelines():
    module = parsed("""
    func.func @main(%x: !torch.vtensor<[?,4],f32>) -> !torch.vtensor<[?,4],f32> {
      %s = torch.symbolic_int "s0" {min_val = 2, max_val = 9} : !torch.int
      torch.bind_symbolic_shape %x, [%s], affine_map<()[s0] -> (s0, 4)> : !torch.vtensor<[?,4],f32>
      %0 = torch.aten.tanh %x : !torch.vtensor<[?,4],f32> -> !torch.vtensor<[?,4],f32>
      return %0 : !torch.vtensor<[?,4],f32>
    }
    """)
    run_pipeline_with_repro_report(module, TO_LINALG, "lowering")
    assert "linalg.generic" in str(module)


def test_what_native_code_writes_is_captured(capsys):
    with shown_on_stderr(True) as text:
        os.write(2, b"from below\n")
    assert text() == "from below\n"
    assert capsys.readouterr().err == "from below\n"


def test_the_verifier_says_what_is_wrong_and_where():
    with new_context():
        module = ir.Module.create(ir.Location.unknown())
        with ir.InsertionPoint(module.body), location("model.py:3 in forward"):
            value = ir.Operation.create(
                "stablehlo.constant",
                results=[ir.Type.parse("tensor<4xf32>")],
                attributes={"value": ir.Attribute.parse("dense<1.0> : tensor<4xf32>")},
            ).results[0]
            ir.Operation.create("stablehlo.tanh", results=[ir.Type.parse("tensor<3xf32>")], operands=[value])
    with pytest.raises(SmeltError) as caught:
        verify(module)
    assert caught.value.code == "SM0713"
    assert "stablehlo.tanh" in str(caught.value)
    assert "model.py:3 in forward" in str(caught.value)


def test_diagnostics_do_not_change_the_context():
    context = new_context()
    before = context.emit_error_diagnostics
    with diagnostics_of(context) as found:
        assert context.emit_error_diagnostics
    assert found == []
    assert context.emit_error_diagnostics == before


def test_missing_bindings_are_asked_for_by_name(monkeypatch):
    from smelt.mlir import bindings

    monkeypatch.setattr(bindings, "find_spec", lambda name: None)
    bindings._load.cache_clear()
    with pytest.raises(SmeltError) as caught:
        bindings.new_context()
    bindings._load.cache_clear()
    assert caught.value.code == "SM0710"
    assert "torch-smelt[mlir]" in str(caught.value)


def test_errors_go_to_other_processes_whole():
    problem, diagnostic = (
        Problem("a call", "model.py:3"),
        Diagnostic("error", "no", "torch.aten.exp", "model.py:3"),
    )
    for error in (
        SmeltError("SM0001", "nothing", where="model.py:3", remedy="something"),
        UnsupportedOperatorsError("TOSA", [problem]),
        PipelineError("lowering", [diagnostic], "repro.mlir"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)
