"""The wheel: what is in it, and that it works in an environment that has only PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = """
import sys, torch

assert "smelt" not in sys.modules
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
x = torch.randn(4, 8)
with torch.no_grad():
    torch.testing.assert_close(torch.compile(model, backend="smelt")(x), model(x))
import smelt

(report,) = smelt.reports()
print(smelt.__file__, len(report.kernels), report.fallbacks)
"""


def _run(*command: object, **environment: str) -> str:
    """The command's standard output; it sees neither this tree nor the tests' compiled programs."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env={**kept, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    for needed in ("build", "hatchling"):
        pytest.importorskip(needed, reason="building a wheel needs the extra [dev]")
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    assert wheel.name.startswith("torch_smelt-")
    assert wheel.stat().st_size < 2 * 2**20
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and "egg-info" not in str(path)
    }
    assert {"smelt/py.typed", "smelt/codegen/cpp/include/smelt.h"} <= wanted
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == wanted


@pytest.mark.long
def test_the_installed_wheel_compiles_a_model(wheel, tmp_path):
    import torch

    _run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    _run(sys.executable, "-m", "pip", "--python", python, *install, wheel)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    lent = {str(Path(module.__file__).parents[1]) for module in (torch, pytest)}
    (site / "lent.pth").write_text("\n".join(sorted(lent)) + "\n")  # torch and all that smelt depends on

    file, kernels, fallbacks = _run(
        python, "-W", "error:::smelt", "-c", PROGRAM, SMELT_CACHE_DIR=str(tmp_path / "cache")
    ).split()
    assert Path(file).is_relative_to(site)
    assert int(kernels) >= 1
    assert fallbacks == "[]"
    assert "torch" in _run(tmp_path / "venv" / "bin" / "smelt", "--version")
