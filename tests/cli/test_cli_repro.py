"""smelt repro: kept programs run again, compared, and made smaller."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.capture import capture_function
from smelt.capture.repro import repro_text
from smelt.cli.repro import GOOD, load, run
from smelt.lowering.registry import TABLE
from smelt.runtime import repros

aten = torch.ops.aten


def broken(*args: Any, **kwargs: Any) -> Any:
    raise AttributeError("a bug of ours")


def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.relu(x @ y) + 1
    return (z.exp().sin() * 2).sum(1), z.mean(0)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that a bug of the row of ``sin`` leaves."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SMELT_STRICT", "0")
    smelt.reset()
    with monkeypatch.context() as patch:
        patch.setitem(TABLE, aten.sin.default, broken)
        torch.compile(model, backend="smelt", dynamic=True)(torch.randn(6, 5), torch.randn(5, 7))
    (path,) = repros.kept()
    yield path
    smelt.reset()


def test_a_file_is_plain_python_that_runs_by_itself(kept: Path) -> None:
    text = kept.read_text()
    assert "pickle" not in text and "def forward(self" in text and "DYNAMIC = True" in text
    done = subprocess.run([sys.executable, str(kept)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{kept}: {GOOD}" in done.stdout.replace("\n", "")


def test_what_still_fails_is_made_smaller(
    kept: Path, smelt_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(TABLE, aten.sin.default, broken)
    code, out, err = smelt_command("repro", str(kept), "-o", str(tmp_path / "small.py"))
    assert code == 1, err
    said = " ".join(out.split())  # long paths wrap the lines
    assert "fails: SM0505 AttributeError" in said and "a bug of smelt in aten.sin.default" in said
    small = (tmp_path / "small.py").read_text()
    assert small.count("torch.ops.aten") == 1 and "aten.sin.default(" in small
    assert repros.kept() == [kept]
    assert run(load(str(tmp_path / "small.py"))).kind == "fails: SM0505 AttributeError"


def test_other_numbers_are_found_and_made_smaller(
    kept: Path, smelt_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TABLE, aten.sin.default, TABLE[aten.cos.default])
    code, out, err = smelt_command("repro", str(kept))
    assert code == 1, err
    assert "other numbers than eager" in out and "1 call(s) are left" in out
    newest = repros.kept()[0]
    assert newest.name.startswith(f"{kept.stem}-small-") and "sin.default" in newest.read_text()
    code, out, _ = smelt_command("repro")
    assert code == 0 and newest.name in out and kept.name in out


@pytest.mark.parametrize("text", [None, "import torch\n", "Program = 1 +\n"])
def test_other_files_are_refused(text: str | None, smelt_command: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    if text is not None:
        path.write_text(text)
    code, _, err = smelt_command("repro", str(path))
    assert code == 2 and "SM0914" in err


def branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), [x])


PROGRAMS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "strides": (lambda x: x.t() + x.new_tensor([1.0, 2.0]), [torch.randn(4, 2)[::2].t()]),
    "integers": (lambda x, i: x[i].float(), [torch.arange(5, dtype=torch.int8), torch.tensor([1, 0])]),
    "overwritten": (lambda x: x.mul_(2), [torch.randn(3)]),
    "numbers": (lambda x: x.clamp(float("-inf"), 0.5).half(), [torch.randn(3)]),
    "bfloat16": (lambda x: torch.nn.functional.gelu(x), [torch.randn(9, dtype=torch.bfloat16)]),
    "complex": (lambda x: x * x.conj(), [torch.randn(3, dtype=torch.complex64)]),
    "branches": (branch, [torch.randn(3)]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_written_down_and_read_again(name: str, dynamic: bool, tmp_path: Path) -> None:
    function, inputs = PROGRAMS[name]
    program = capture_function(function, inputs, dynamic=dynamic)
    path = tmp_path / "program.py"
    path.write_text(
        repro_text(program.graph_module, program.example_inputs, 'a """title"""', {"mode": "max"})
    )
    found = load(str(path))
    assert [each.shape for each in found.inputs] == [each.shape for each in inputs]
    assert [each.stride() for each in found.inputs] == [each.stride() for each in inputs]
    assert [each.dtype for each in found.inputs] == [each.dtype for each in inputs]
    assert run(found).kind == GOOD
