"""Callers in Python, C++, Rust and Fortran give the bits of a C program, and errors for wrong inputs."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from smelt.packages.api import package
from smelt.packages.build import build_library
from smelt.packages.callers import callers
from smelt.packages.callers.interface import identifiers
from smelt.packages.callers.library import CODES, DtypeError
from smelt.packages.callers.loading import machine
from smelt.packages.callers.numpy_model import Model
from smelt.packages.folder import RUNTIME
from smelt.packages.signature import Signature, SizeInfo, Value
from smelt.packages.tables import Described, description_text, header_text
from smelt.packages.weights import Weights
from tests.support.packages import CARGO

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


@pytest.mark.skipif(not shutil.which("go"), reason="there is no Go")
def test_go(folder: Path, expected: bytes, tmp_path: Path) -> None:
    """A program of docs/package-callers.md."""
    shutil.copytree(folder / "include", tmp_path / "include")
    shutil.copy(HERE / "call.go", tmp_path)
    (tmp_path / "go.mod").write_text("module call\n\ngo 1.18\n")
    library = folder / "lib" / machine()
    run("go", "build", "-o", folder / "call_go", ".", folder=tmp_path, CGO_LDFLAGS=f"-L{library}")
    program = ["env", f"LD_LIBRARY_PATH={library}", folder / "call_go"]
    assert written(folder, *program) == expected


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
    example = run(sys.executable, "examples/example.py", folder=folder, PYTHONPATH="python")
    assert example.startswith("y (2, 3) [1.55]")


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


WORDS = (
    "model inputs outputs states sizes shape bytes workspace out np example i zeros check main call in given"
)
ODD = {
    "name": "class_of",
    "inputs": [
        *({"name": dtype, "dtype": dtype, "shape": ["n", 2]} for dtype in CODES),
        *({"name": each, "dtype": "float32", "shape": ["n"]} for each in WORDS.split()),
        {"name": "self", "dtype": "int64", "shape": []},
        {"name": "impl", "dtype": "float32", "shape": ["m*2"]},
        {"name": "layers.0.weight", "dtype": "float32", "shape": [3, 4], "state": True, "initial": True},
        {"name": "layers.0_weight", "dtype": "bool", "shape": [], "state": True},
        {"name": 'new */ "\n', "dtype": "bfloat16", "shape": ["int", 1], "state": True},
    ],
    "outputs": [
        {"name": "self", "dtype": "float32", "shape": []},
        {"name": "Self", "dtype": "complex64", "shape": ["n", "m", 1, 1, 1, 1, 1, 1]},
        {"name": "0", "dtype": "bool", "shape": ["n"]},
        {"name": "count", "dtype": "float16", "shape": [0]},
    ],
    "sizes": [{"name": each, "least": 0, "most": 2**63 - 1, "example": 2} for each in ("n", "m", "int")],
}
"""Every dtype, names that are words of a language, scalars, no elements."""


def header_of(model: dict[str, Any]) -> str:
    """The header of a model that has no signature."""
    return (
        header_text("small", SIGNATURE)
        .replace("small", model["name"])
        .replace("SMALL", model["name"].upper())
    )


def test_callers_of_odd_models_compile(tmp_path: Path) -> None:
    files = callers(ODD) | {"include/class_of.h": header_of(ODD)}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    shutil.copy(RUNTIME / "smelt_model.h", tmp_path / "include")
    strict = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-Iinclude"]
    run("gcc", "-std=c11", *strict, "examples/example.c", folder=tmp_path)
    run("g++", "-std=c++17", *strict, "examples/example.cpp", folder=tmp_path)
    if shutil.which("gfortran"):
        module = ["fortran/class_of.f90", "examples/example.f90"]
        run("gfortran", "-std=f2018", *strict, "-Wno-conversion", *module, folder=tmp_path)
    if CARGO:
        flags = [
            "--edition=2021",
            "--crate-type=lib",
            "--crate-name=class_of",
            "--emit=metadata",
            "-Dwarnings",
        ]
        environment = {"CARGO_MANIFEST_DIR": tmp_path / "rust"}
        rustc = Path(CARGO).with_name("rustc")
        run(rustc, *flags, "-Dwarnings", "rust/src/lib.rs", folder=tmp_path, **environment)
        example = ["--edition=2021", "--emit=metadata", "--extern=class_of=libclass_of.rmeta"]
        run(rustc, *example, "rust/examples/example.rs", folder=tmp_path)
    for path in files:
        if path.endswith(".py"):
            compile((tmp_path / path).read_text(), path, "exec")


class TwoLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.register_buffer("calls", torch.tensor(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.add_(1)
        return {"logits": self.second(self.first(x).relu()) * mask[..., None], "any": mask.any(-1)}


def test_a_real_package_in_all_languages(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = TwoLayers().eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    example = torch.full((2, 3, 8), 0.5), torch.ones(2, 3, dtype=torch.bool)
    root = package(
        model,
        example,
        tmp_path / "two.smelt",
        dynamic_shapes=({0: batch}, {0: batch}),
        levels=["x86-64-v3"] if platform.machine() == "x86_64" else None,
    )
    wanted = float(TwoLayers.forward(model, *example)["logits"].detach().flatten()[0])
    said = [run(sys.executable, "examples/example.py", folder=root, PYTHONPATH="python")]
    library = [root / "lib" / machine() / "libtwo.a", "-lm", "-lpthread", "-o", "call"]
    for language, *compiler in (("c", "gcc", "-std=c11"), ("cpp", "g++", "-std=c++17")):
        run(*compiler, "-Iinclude", f"examples/example.{language}", *library, folder=root)
        said.append(run("./call", folder=root))
    if shutil.which("gfortran"):
        module = ["-Jfortran", "fortran/two.f90", "examples/example.f90"]
        run("gfortran", *module, *library, folder=root)
        said.append(run("./call", folder=root))
    if CARGO:
        manifest = ["--manifest-path", "rust/Cargo.toml"]
        said.append(run(CARGO, "run", "--offline", *manifest, "--example", "example", folder=root))
    for text in said:
        numbers = re.findall(r"-?\d+\.\d+(?:[eE][-+]?\d+)?", text)
        assert float(numbers[0]) == pytest.approx(wanted, rel=1e-5), text
    caller = Model(root, threads=1)  # without a copy of the package's Python
    x, mask = torch.randn(5, 3, 8), torch.rand(5, 3) > 0.5
    outputs = caller(x, mask=mask)
    torch.testing.assert_close(torch.from_dlpack(outputs.logits), model(x, mask)["logits"].detach())
    assert caller.states["calls"] == 4 and outputs.any.dtype == bool
    with pytest.raises(DtypeError, match=r"requires? grad"):
        caller(x.requires_grad_(), mask)

    # Two models in one program.
    both = (
        '#include "two.hpp"\n#include "small.hpp"\n#include <cstdio>\n'
        "int main(int, char** argv) {"
        "  smelt::two::model two(argv[1]); smelt::small::model small(argv[2]);"
        '  std::printf("%s %s", two.level().c_str(), small.level().c_str());'
        "}"
    )
    (root / "both.cpp").write_text(both)
    libraries = [*library[:1], *archive(folder)]
    includes = ["-Iinclude", f"-I{folder / 'include'}"]
    run("g++", "-std=c++17", *includes, "both.cpp", *libraries, "-o", "both", folder=root)
    weights = ["weights.safetensors", folder / "weights.safetensors"]
    assert run("./both", *weights, folder=root).endswith(" generic")


def test_the_numpy_model_of_smelt_imports_no_torch(tmp_path: Path) -> None:
    code = "import sys, smelt.packages.callers.numpy_model; print('torch' in sys.modules)"
    assert run(sys.executable, "-c", code, folder=tmp_path) == "False\n"
