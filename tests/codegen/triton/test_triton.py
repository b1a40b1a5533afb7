"""The Triton target without a GPU: run in Triton's interpreter, and compiled to machine code.

Triton is in a folder of its own (`make test` fills it): where PyTorch finds it, each compile imports it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.codegen.triton.programs import EVERYWHERE, PROGRAMS, architectures_of

ROOT = Path(__file__).parents[3]
TRITON = Path(os.environ.get("SMELT_TRITON", sys.prefix + "/triton"))
pytestmark = [pytest.mark.long, pytest.mark.skipif(not TRITON.is_dir(), reason="no Triton: make test")]

COMPILED = (
    *EVERYWHERE,
    *("softmax", "sum_of_long_rows", "positions", "variance", "scan_of_pairs", "put", "integers", "special"),
    *("floors", "no_contraction", "lerp", "arange", "sorted_in_64_bits", "scatter_of_maxima", "training"),
)
"""Programs whose kernels are compiled to machine code; `programs.py compile` compiles all."""
BY_ATEN = {"product_of_matrices": ["aten.mm.default"]}
"""Programs of which ATen runs a part by choice."""
LACKS = {"sorted_long": "at most 2048", "many_in_order": "1500 elements that may have one place"}
"""Programs of which Triton's text lacks a part: the reason says so."""


def said(*what: str, **environment: str) -> dict[str, dict[str, Any]]:
    """The lines of JSON of a module with Triton, by name."""
    path = os.pathsep.join([str(TRITON), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-m", *what]
    env = os.environ | {"PYTHONPATH": path, "SMELT_STRICT": "1", "SMELT_VERIFY": "1"} | environment
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=550)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3000:]
    return {each.pop("name"): each for each in lines}


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, Any]]:
    return said("tests.codegen.triton.programs", "interpret", TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def machine_code() -> dict[str, dict[str, Any]]:
    return said("tests.codegen.triton.programs", "compile", *COMPILED)


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "triton.md").read_text()
    (tmp_path / "example.py").write_text(page.split("```python\n")[1].split("```")[0])
    path = os.pathsep.join([str(TRITON), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", str(tmp_path / "example.py")]
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "tensor(" in done.stdout and "def fused_mul_softmax_0(" in done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_what_eager_does(interpreted: dict[str, dict[str, Any]], name: str) -> None:
    found = interpreted[name]
    assert "error" not in found, found["error"]
    if name in LACKS:
        assert all(LACKS[name] in reason for reason in found["fallbacks"]) and found["fallbacks"]
    else:
        assert not found["fallbacks"]
    assert found["externs"] == BY_ATEN.get(name, [])
    assert found["kernels"] > 0 and "eager" not in found["kinds"]


def test_the_interpreter_is_amended_once(interpreted: dict[str, dict[str, Any]]) -> None:
    assert len({said["cast"] for said in interpreted.values()}) == 1


@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_to_machine_code(machine_code: dict[str, dict[str, Any]], name: str) -> None:
    found = machine_code[name]
    assert "error" not in found, found["error"]
    assert {each["architecture"] for each in found["kernels"]} == set(architectures_of(name))
    assert not found["too_much"]


@pytest.mark.parametrize("name", ["no_contraction", "lerp", "variance", "sum_of_columns"])
def test_products_and_sums_are_not_contracted(machine_code: dict[str, dict[str, Any]], name: str) -> None:
    assert machine_code[name]["kernels"] and not any(each["fma"] for each in machine_code[name]["kernels"])
