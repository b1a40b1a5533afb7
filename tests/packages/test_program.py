"""Whole packages of the example's models: languages, threads, two in one process, symbols, sanitizers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from smelt.packages.build import Compilers
from smelt.packages.callers.loading import library_path
from smelt.packages.callers.numpy_model import Model
from smelt.packages.signature import _given_name
from smelt.packages.targets import LINK_LIBRARIES, native
from tests.support.packages import CARGO, quick_levels

EXAMPLE = Path(__file__).parents[2] / "examples" / "package"
MODELS = ("digits", "training")
FUNCTIONS = """
    abi_version create create_from_memory destroy last_error input_count output_count size_count input output
    size sizes output_shape initial workspace_bytes run run_pointers level
"""
"""The functions of SMELT_ABI_VERSION 1: none goes, a new one is new in this list."""
pytestmark = pytest.mark.skipif(
    native().system != "linux" or not shutil.which("gcc"), reason="needs Linux and gcc"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's models, each in a folder of its name."""
    spec = importlib.util.spec_from_file_location("make", EXAMPLE / "make.py")
    assert spec and spec.loader
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    folder = tmp_path_factory.mktemp("made")
    levels = [word for level in quick_levels() or () for word in ("--level", level)]
    for name in MODELS:
        make.main([str(folder / name), name, *levels])
    return folder


def package_of(made: Path, name: str) -> Path:
    return made / name / f"{name}.smelt"


def library_of(made: Path, name: str) -> Path:
    return library_path(package_of(made, name), name)


def compiled(*words: object) -> None:
    done = subprocess.run(["gcc", *map(str, words)], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr


def main_words(made: Path, name: str) -> list[str]:
    """What the example's C program takes to be compiled for a model."""
    warnings = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    include = f"-I{package_of(made, name) / 'include'}"
    return [*warnings, f"-DMODEL={name}", f'-DHEADER="{name}.h"', include, str(EXAMPLE / "main.c")]


def ran(program: Path, made: Path, name: str, *words: str) -> str:
    weights = package_of(made, name) / "weights.safetensors"
    command = [str(program), str(weights), str(made / name / "data"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", MODELS)
def test_a_c_program_has_eagers_numbers(made: Path, name: str, tmp_path: Path) -> None:
    library = library_of(made, name)
    compiled(*main_words(made, name), library, "-lm", f"-Wl,-rpath,{library.parent}", "-o", tmp_path / "main")
    said = [ran(tmp_path / "main", made, name, threads) for threads in ("1", "2", "0")]
    assert "the same numbers" in said[0] and said[1:] == said[:1] * 2


@pytest.mark.parametrize(
    ("way", "program"),
    [
        ("c", "main-shared"),
        pytest.param(
            *("rust", "rust-target/release/examples/main"),
            marks=pytest.mark.skipif(not CARGO, reason="there is no cargo"),
        ),
        pytest.param(
            *("fortran", "main-fortran"),
            marks=pytest.mark.skipif(not shutil.which("gfortran"), reason="there is no gfortran"),
        ),
    ],
)
def test_programs_in_other_languages_tell_other_numbers(
    made: Path, way: str, program: str, tmp_path: Path
) -> None:
    """Rust's no longer compiled; none of them saw NaN."""
    folder = made / "digits"
    path = os.pathsep.join([os.environ["PATH"], str(Path(CARGO).parent) if CARGO else ""])
    words = ["sh", str(EXAMPLE / "run.sh"), way]
    given = {**os.environ, "PATH": path, "WHERE": str(folder), "MADE": "1"}
    done = subprocess.run(words, env=given, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0 and "the same numbers" in done.stdout, done.stdout + done.stderr
    data = Path(shutil.copytree(folder / "data", tmp_path / "data"))
    right = np.fromfile(data / "expected_0.bin", np.float32)
    most = float((data / "expected_0.tolerance").read_text()) * right.max()
    for off in (2 * most, np.nan):
        wrong = right.copy()
        wrong[0] += off
        wrong.tofile(data / "expected_0.bin")
        words = [str(folder / program), str(package_of(made, "digits") / "weights.safetensors"), str(data)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode != 0 and "OTHER NUMBERS" in done.stdout + done.stderr


def test_libraries_export_the_abi_and_need_the_c_library_alone(made: Path) -> None:
    for name in MODELS:
        path = library_of(made, name)
        said = subprocess.check_output(["nm", "-D", "--defined-only", path], text=True)
        exported = {line.split()[-1].split("@")[0] for line in said.splitlines()}
        assert exported == {f"{name}_{each}" for each in FUNCTIONS.split()}
        said = subprocess.check_output(["readelf", "-dW", path], text=True)
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", said))
        assert all(re.fullmatch(r"lib[cm]\.so.*|ld-linux.*", each) for each in needed), (
            needed
        )  # glibc's or musl's


def test_eight_threads_call_one_model(made: Path) -> None:
    data = np.fromfile(made / "digits" / "data" / "in_0.bin", np.float32).reshape(4, 1, 28, 28)
    batches = [np.concatenate([data + k] * (1 + k % 3)) for k in range(8)]
    alone = Model(package_of(made, "digits"), threads=1)
    want = [alone(batch).output for batch in batches]
    for threads in (1, 2):
        model = Model(package_of(made, "digits"), threads=threads)
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(lambda k, model=model: model(batches[k % 8]).output, range(160)))
        assert all(np.array_equal(each, want[k % 8]) for k, each in enumerate(got))


def test_two_models_are_loaded_into_one_process(made: Path) -> None:
    digits, training = (Model(package_of(made, name)) for name in MODELS)
    images = np.fromfile(made / "training" / "data" / "in_0.bin", np.float32).reshape(16, 1, 8, 8)
    labels = np.fromfile(made / "training" / "data" / "in_1.bin", np.int64)
    data = np.fromfile(made / "digits" / "data" / "in_0.bin", np.float32).reshape(4, 1, 28, 28)
    losses, outputs = [], []
    for _ in range(3):
        losses.append(float(training(images, labels).output))
        outputs.append(digits(data).output)
    assert losses[0] > losses[1] > losses[2]
    assert all(np.array_equal(each, outputs[0]) for each in outputs)


def test_two_models_are_linked_into_one_program(made: Path, tmp_path: Path) -> None:
    words: list[object] = []
    for name in MODELS:
        compiled(*main_words(made, name), f"-Dmain=main_{name}", "-c", "-o", tmp_path / f"{name}.o")
        words += [tmp_path / f"{name}.o", library_of(made, name).with_suffix(".a")]
    calls = (
        f'main_{name}(3, (char*[]){{"", v[{2 * k + 1}], v[{2 * k + 2}]}})' for k, name in enumerate(MODELS)
    )
    (tmp_path / "both.c").write_text(
        "int main_digits(int, char**), main_training(int, char**);\n"
        f"int main(int c, char** v) {{ return c != 5 || {' || '.join(calls)}; }}\n"
    )
    compiled(tmp_path / "both.c", *words, "-lm", "-lpthread", "-o", tmp_path / "both")
    files = [
        str(path)
        for name in MODELS
        for path in (package_of(made, name) / "weights.safetensors", made / name / "data")
    ]
    done = subprocess.run([str(tmp_path / "both"), *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("the same numbers") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["digits", pytest.param("training", marks=pytest.mark.slow)])
def test_sanitizers_find_nothing_in_a_whole_package(made: Path, name: str, tmp_path: Path) -> None:
    source, target = package_of(made, name) / "src", native()
    tools = Compilers(("gcc",), ("g++",), ("ar",), "gcc")
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-DSMELT_STRICT_SCRATCH"]

    def made_object(path: Path) -> Path:
        flags = [each for each in tools.flags(path, target) if each != "-w"]
        made = tmp_path / f"{path.name}.o"
        compiled(*flags, "-O1", *checks, f"-I{source.parent / 'include'}", "-c", path, "-o", made)
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(made_object, [*source.glob("*.c"), *source.glob("*.cpp")]))
    compiled(*main_words(made, name), *checks, *objects, *LINK_LIBRARIES["linux"], "-o", tmp_path / "main")
    for threads in ("1", "2"):
        assert "the same numbers" in ran(tmp_path / "main", made, name, threads)


def test_an_argument_keeps_its_name(made: Path) -> None:
    """FX calls an argument ``input`` of a module ``input_1``."""
    assert [each.name for each in Model(package_of(made, "digits")).inputs] == ["input"]
    assert _given_name("input_1", {"input", "input_1"}) == "input_1"
