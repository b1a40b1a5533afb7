"""Callers in Python, C++, Rust and Fortran give the bits of a C program, and errors for wrong inputs."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from smelt.package.build import build_library
from smelt.package.callers import callers
from smelt.package.callers.interface import identifiers
from smelt.package.callers.loading import machine
from smelt.package.folder import RUNTIME
from smelt.package.signature import Signature, SizeInfo, Value
from smelt.package.tables import Described, description_text, header_text
from smelt.package.weights import Weights

HERE = Path(__file__).parent / "callers"
SIGNATURE = Signature(
    (
        Value("x", torch.float32, ("s0", 3), 0),
        Value("type", torch.int64, ("s0",), 1),
        Value("cache", torch.float32, ("s0", 2), 2, True),
        Value("steps", torch.int64, (), 3, True, torch.tensor(5)),
    ),
    (Value("y", torch.float32, ("s0", 3), 0), Value("flags", torch.bool, ("2*s0",), 1)),
    (SizeInfo("batch", "s0", 1, 64, (0, 0), "dim"),),
)
MODEL: dict[str, Any] = {
    "format": 1,
    "abi": 1,
    "name": "small",
    "targets": [machine()],
    "inputs": [
        {"name": "x", "dtype": "float32", "shape": ["batch", 3]},
        {"name": "type", "dtype": "int64", "shape": ["batch"]},
        {"name": "cache", "dtype": "float32", "shape": ["batch", 2], "state": True},
        {"name": "steps", "dtype": "int64", "shape": [], "state": True, "initial": True},
    ],
    "outputs": [
        {"name": "y", "dtype": "float32", "shape": ["batch", 3]},
        {"name": "flags", "dtype": "bool", "shape": ["2*batch"]},
    ],
    "sizes": [{"name": "batch", "least": 1, "most": 64, "example": 2}],
}
CARGO = shutil.which("cargo") or shutil.which("cargo", path="/root/.cargo/bin")
needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="there is no gcc")
pytestmark = needs_gcc


def run(*command: object, folder: Path, **environment: object) -> str:
    given = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    result = subprocess.run(
        [str(word) for word in command], cwd=folder, env=given, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of the model ``small``, whose program is written by hand; the rest is as in every package."""
    root = tmp_path_factory.mktemp("packages") / "small.smelt"
    files = callers(MODEL)
    files |= {"model.json": json.dumps(MODEL), "include/small.h": header_text("small", SIGNATURE)}
    weights = Weights()
    weights.add("scale", torch.tensor([1.1, -0.3, 1e-3]))
    initial = [-1, -1, -1, weights.add("initial.steps", torch.tensor(5))]
    (root / "src").mkdir(parents=True)
    digest = weights.save(root / "weights.safetensors")
    described = Described(
        "small",
        SIGNATURE,
        weights.found,
        digest,
        {platform.machine(): ["small_program"]},
        ["index out of range"],
        initial,
    )
    files["src/small.c"] = description_text(described)
    files["src/smelt_name.h"] = "#define SMELT_NAME small\n"
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for each in RUNTIME.glob("*.[ch]"):
        shutil.copy(each, root / ("include" if each.name == "smelt_model.h" else "src"))
    shutil.copy(HERE / "program.c", root / "src")
    build_library(root / "src", "small", "native", root / "lib" / machine())
    return root


@pytest.fixture(scope="module")
def expected(folder: Path) -> bytes:
    """What the C program writes."""
    compiled(folder, "gcc", "-std=c11", HERE / "call.c")
    return written(folder, "./call")


def archive(folder: Path) -> list[object]:
    return [folder / "lib" / machine() / "libsmall.a", "-lm", "-lpthread"]


def compiled(folder: Path, *command: object) -> None:
    strict = ["-Wall", "-Wextra", "-Werror"]
    run(*command, *strict, "-Iinclude", *archive(folder), "-o", "call", folder=folder)


def written(folder: Path, *program: object) -> bytes:
    run(*program, "weights.safetensors", folder / "written", folder=folder)
    return (folder / "written").read_bytes()


def test_cpp(folder: Path, expected: bytes) -> None:
    compiled(folder, "g++", "-std=c++17", "-pthread", HERE / "call.cpp")
    assert written(folder, "./call") == expected


def test_cpp_with_sanitizers_and_later_standards(folder: Path, expected: bytes) -> None:
    compiled(folder, "g++", "-std=c++20", "-fsanitize=address,undefined", "-pthread", HERE / "call.cpp")
    assert written(folder, "./call") == expected


@pytest.mark.skipif(not CARGO, reason="there is no cargo")
def test_rust(folder: Path, expected: bytes) -> None:
    shutil.copy(HERE / "call.rs", folder / "rust/examples")
    offline = ["--offline", "--manifest-path", "rust/Cargo.toml"]
    run(CARGO, "build", *offline, "--examples", folder=folder, RUSTFLAGS="-D warnings")
    assert written(folder, "rust/target/debug/examples/call") == expected
    output = run("rust/target/debug/examples/example", folder=folder)
    assert output.startswith("y [2, 3] Some(1.55)")


@pytest.mark.skipif(not shutil.which("gfortran"), reason="there is no gfortran")
def test_fortran(folder: Path, expected: bytes) -> None:
    module = ["gfortran", "-std=f2018", "-fcheck=all", "-Jfortran", "fortran/small.f90"]
    compiled(folder, *module, "-Wno-compare-reals", "-Wno-integer-division", HERE / "call.f90")
    assert written(folder, "./call") == expected
    run(*module, "examples/example.f90", *archive(folder), "-o", "example", folder=folder)
    assert "1.54" in run("./example", folder=folder)


def test_examples_in_c_and_cpp(folder: Path) -> None:
    for language, compiler in (("c", ["gcc", "-std=c11"]), ("cpp", ["g++", "-std=c++17"])):
        compiled(folder, *compiler, f"examples/example.{language}")
        words = run("./call", folder=folder).split()
        assert words[0::2] == ["y", "flags"] and float(words[1]) == pytest.approx(1.55)


def test_python(folder: Path, expected: bytes) -> None:
    run(sys.executable, HERE / "call.py", "written", folder, folder=folder, PYTHONPATH="python")
    assert (folder / "written").read_bytes() == expected
    shown = run(sys.executable, "-m", "small", folder=folder, PYTHONPATH="python")
    assert "x     float32 [batch, 3]" in shown and "batch  1 … 64" in shown
    assert run(sys.executable, "examples/example.py", folder=folder, PYTHONPATH="python").startswith(
        "y (2, 3) 1.5"
    )


def test_pip_installs_the_folder_without_an_index(folder: Path, expected: bytes, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    run(*pip, "--target", tmp_path / "site", folder, folder=tmp_path)
    site = tmp_path / "site"
    installed = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.s*"))
    assert installed == [f"small/package/lib/{machine()}/libsmall.so", "small/package/weights.safetensors"]
    run(sys.executable, HERE / "call.py", "written", site / "small/package", folder=tmp_path, PYTHONPATH=site)
    assert (tmp_path / "written").read_bytes() == expected


def test_a_package_without_a_library_for_this_machine(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "small.smelt", ignore=shutil.ignore_patterns("target", "lib", "src"))
    (tmp_path / "small.smelt/lib/mips-plan9").mkdir(parents=True)
    code = "import small\ntry: small.load()\nexcept small.LoadError as error: print(error)"
    said = run(sys.executable, "-c", code, folder=tmp_path / "small.smelt", PYTHONPATH="python")
    assert f"no library for this machine, {machine()}" in said and "it has: mips-plan9" in said
    assert "Build it from the sources, `make -C" in said


def test_damaged_weights_are_an_error(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "small.smelt", ignore=shutil.ignore_patterns("target", "src"))
    weights = tmp_path / "small.smelt/weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    code = "import small\ntry: small.load()\nexcept small.LoadError as error: print(error.code)"
    assert run(sys.executable, "-c", code, folder=tmp_path / "small.smelt", PYTHONPATH="python") == "4\n"


def test_identifiers_differ_and_are_no_words_of_the_language() -> None:
    assert identifiers(["a.b", "a_b", "A_b", "for", "1"], {"for"}, prefix="input") == [
        *("a_b", "a_b_2", "A_b", "for_", "input_1")
    ]
    assert identifiers(["Kind", "kind", "é"], {"KIND"}, fold=True, prefix="t") == ["Kind_", "kind_2", "t"]


def test_readme_shows_the_examples(folder: Path) -> None:
    readme = (folder / "README.md").read_text()
    for path in ("examples/example.c", "examples/example.cpp", "examples/example.py", "examples/example.f90"):
        assert (folder / path).read_text() in readme
    assert (
        textwrap.dedent("""
        | Inputs | | |
        |---|---|---|
        | `x` | float32 | `[batch, 3]` |
    """)
        in readme
    )
