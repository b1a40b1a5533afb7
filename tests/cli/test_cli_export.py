"""smelt export: text, weights beside it, dynamic sizes, and what is wrong with what was typed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")


def test_export_prints_the_module(smelt_command, programs):
    code, out, err = smelt_command("export", f"{programs}:good", "--to", "torch")
    assert code == 0, err
    assert out.startswith("module {\n  func.func @main(")
    assert "!torch.vtensor<[4,8],f32>" in out
    assert "dense_resource<linear.weight>" in out
    assert "exporting" in err


def test_export_with_a_dynamic_size(smelt_command, programs, tmp_path):
    path = tmp_path / "model.mlir"
    code, out, err = smelt_command(
        "export", f"{programs}:good", "--to", "torch", "--dynamic", "x=0:batch", "-o", str(path)
    )
    assert (code, out) == (0, ""), err
    assert "!torch.vtensor<[?,8],f32>" in path.read_text()


def test_external_weights_are_in_a_file_in_the_arguments_order(smelt_command, programs, tmp_path):
    from smelt.mlir.parameters import load_parameters

    path = tmp_path / "model.mlir"
    words = ("export", f"{programs}:good", "--to", "torch", "--weights", "external", "-o", str(path))
    code, _, err = smelt_command(*words)
    assert code == 0, err
    found = load_parameters(tmp_path / "model.safetensors")
    assert list(found) == ["linear.weight", "linear.bias", "norm.weight", "norm.bias"]
    assert "dense_resource" not in path.read_text()


def test_print_after_each_shows_every_stage_on_stderr(smelt_command, programs):
    code, out, err = smelt_command("export", f"{programs}:good", "--to", "torch", "--print-after-each")
    assert code == 0, err
    for stage in ("contract", "loops", "module"):
        assert f"// -----// after {stage} //----- //" in err
        assert f"after {stage}" not in out


@pytest.mark.parametrize(
    "words, code, said",
    [
        (("--dynamic", "x"), "SM0909", "ARGUMENT=DIM"),
        (("--dynamic", "y=0:batch"), "SM0909", "one of x"),
        (("--dynamic", "x=2:batch"), "SM0909", "0 to 1"),
        (("--dynamic", "x=first"), "SM0909", "ARGUMENT=DIM"),
        (("-o", "no/such/folder/model.mlir"), "SM0910", "no/such/folder"),
        (("--weights", "external"), "SM0910", "-o FILE"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(smelt_command, programs, words, code, said):
    exit_code, out, err = smelt_command("export", f"{programs}:good", "--to", "torch", *words)
    assert (exit_code, out) == (2, "")
    assert code in err
    assert said in err.replace("\n", " ")


def test_what_the_dialect_cannot_express_is_listed(smelt_command, tmp_path):
    path = tmp_path / "unsigned.py"
    path.write_text(
        "import torch\n"
        "def make():\n"
        "    return (lambda x: (x.to(torch.uint16), x.to(torch.uint32))), (torch.ones(2),), {}\n"
    )
    code, out, err = smelt_command("export", f"{path}:make", "--to", "torch")
    assert (code, out) == (2, "")
    assert "SM0711" in err
    assert "torch.uint16" in err
    assert "torch.uint32" in err


def test_a_model_that_raises_in_eager_is_one_line(smelt_command, programs):
    code, out, err = smelt_command("export", f"{programs}:raises_in_eager", "--to", "torch")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("smelt: SM0906: ")
    assert "Traceback" not in err


def test_a_size_that_the_model_fixes_is_one_line(smelt_command, tmp_path):
    path = tmp_path / "fixed.py"
    path.write_text(
        "import torch\ndef make():\n    return (lambda x: x + torch.ones(3)), (torch.ones(3),), {}\n"
    )
    code, out, err = smelt_command("export", f"{path}:make", "--dynamic", "x=0:length")
    assert (code, out) == (2, "")
    (line,) = [each for each in err.splitlines() if each.startswith("smelt: ")]
    assert "SM0723" in line
    assert "length = 3" in line


def test_a_training_step_has_the_new_parameters_as_results(smelt_command, tmp_path):
    path = tmp_path / "step.py"
    path.write_text(
        "import torch\n"
        "def make():\n"
        "    model = torch.nn.Linear(8, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    def step(x):\n"
        "        optimizer.zero_grad()\n"
        "        loss = model(x).square().mean()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "        return loss\n"
        "    return step, (torch.randn(4, 8),), {}\n"
    )
    code, out, err = smelt_command("export", f"{path}:make", "--dynamic", "x=0:batch")
    assert code == 0, err
    assert "-> (tensor<1x8xf32>, tensor<1xf32>, tensor<f32>)" in out
