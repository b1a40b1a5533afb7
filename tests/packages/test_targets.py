"""Libraries for each target: the code they hold, what they need, and what old processors run of it."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from smelt.errors import SmeltError, ToolchainError
from smelt.packages.build import build_library
from smelt.packages.build_files import build_files
from smelt.packages.targets import LEVELS, TARGETS, find_target, levels_of, native

X86 = native().machine == "x86_64"


def _sources(folder: Path, levels: Sequence[str]) -> Path:
    """A model whose kernels share a weak function template, as those of all levels would without their
    namespaces.
    """
    sources = folder / "src"
    sources.mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "include" / "smelt_model.h").write_text("#define ANSWER 42\n")
    for level in levels:
        name = LEVELS[level].identifier
        (sources / f"kernels_{name}_0.cpp").write_text(
            f"#define smelt toy_{name}\n"
            "namespace smelt {\n"
            "template <class T> __attribute__((noinline)) void scale(T* x, long long n) {\n"
            "  for (long long i = 0; i < n; ++i) x[i] = x[i] * 3 + 1;\n"
            "}\n"
            "}\n"
            f'extern "C" void toy_run_{name}(float* x, long long n) {{ smelt::scale(x, n); }}\n'
        )
    (sources / "toy.c").write_text(
        '#include "smelt_model.h"\n'
        "#if defined(_WIN32)\n#define EXPORT __declspec(dllexport)\n"
        '#else\n#define EXPORT __attribute__((visibility("default")))\n#endif\n'
        "#if defined(__aarch64__)\n#define RUN toy_run_aarch64\n#else\n#define RUN toy_run_x86_64\n#endif\n"
        "void RUN(float*, long long);\n"
        "int toy_hidden(void) { return ANSWER; }\n"
        "EXPORT int toy_answer(void) { return toy_hidden(); }\n"
        "EXPORT void toy_run(float* x, long long n) { RUN(x, n); }\n"
    )
    return sources


def test_levels_are_ordered_and_have_the_one_that_all_processors_have() -> None:
    assert [each.name for each in levels_of("x86_64")] == ["x86-64-v4", "x86-64-v3", "x86-64"]
    assert [each.name for each in levels_of("aarch64", ["x86-64-v4"])] == ["aarch64"]
    best = levels_of("x86_64", list(LEVELS))
    assert best[0].name == "x86-64-v4+vnni+bf16+amx" and best[0].target.matrix_tiles
    assert [level.machine for level in best] == ["x86_64"] * 5 + [""]


def test_names_that_are_none_are_errors() -> None:
    with pytest.raises(SmeltError, match=r"SM1410: there is no target 'sparc-solaris'"):
        find_target("sparc-solaris")
    with pytest.raises(SmeltError, match=r"SM1411: there is no level 'avx9'"):
        levels_of("x86_64", ["avx9"])
    assert find_target("native") in TARGETS.values()


def test_without_zig_the_error_has_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match=r"SM1412(.|\n)*pip install ziglang"):
        build_library(_sources(tmp_path, ["x86-64"]), "toy", "x86_64-linux-musl", tmp_path / "lib")


def test_what_a_compiler_refuses_is_an_error_with_its_words(tmp_path: Path) -> None:
    sources = _sources(tmp_path, [native_level()])
    (sources / "broken.c").write_text("int broken(void) { return nothing_of_this_name; }\n")
    with pytest.raises(ToolchainError, match=r"SM1413(.|\n)*make broken.c(.|\n)*nothing_of_this_name"):
        build_library(sources, "toy", "native", tmp_path / "lib")
    assert not list((tmp_path / "lib").iterdir())


def native_level() -> str:
    return "x86-64" if X86 else "aarch64"


def test_a_library_exports_its_functions_and_needs_the_c_library_alone(
    tmp_path: Path,
) -> None:
    levels = [each.name for each in levels_of(native().machine, list(LEVELS))]
    shared, _static = build_library(_sources(tmp_path, levels), "toy", "native", tmp_path / "lib")
    loaded = ctypes.CDLL(str(shared))
    x = (ctypes.c_float * 5)(*range(5))
    loaded.toy_run(x, ctypes.c_longlong(5))
    assert list(x) == [1, 4, 7, 10, 13] and loaded.toy_answer() == 42
    assert not hasattr(loaded, "toy_hidden")
    if shutil.which("readelf"):
        said = subprocess.run(["readelf", "-dlW", shared], capture_output=True, text=True, check=True).stdout
        assert set(re.findall(r"NEEDED.*\[(.*)\]", said)) <= {"libc.so.6", "libm.so.6", "libc.so"}
        assert "SONAME" in said and "TEXTREL" not in said
        assert re.search(r"GNU_STACK.* RW ", said)


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for place in ("one", "another/folder"):
        sources = _sources(tmp_path / place, [native_level()])
        files = build_library(sources, "toy", "native", tmp_path / place / "lib")
        made.append([file.read_bytes() for file in files])
    assert made[0] == made[1]


@pytest.mark.skipif(not X86 or not shutil.which("nm"), reason="needs x86 and binutils")
def test_levels_share_no_weak_function(tmp_path: Path) -> None:
    levels = [name for name, level in LEVELS.items() if level.machine == "x86_64"]
    _, static = build_library(_sources(tmp_path, levels), "toy", "native", tmp_path / "lib")
    said = subprocess.run(["nm", static], capture_output=True, text=True, check=True).stdout
    weak = re.findall(r" [VWu] (\S+)", said)
    assert len(weak) == len(set(weak)) == len(levels)


@pytest.mark.parametrize("tool", ["make", "cmake"])
def test_a_bare_folder_builds_with(tool: str, tmp_path: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}")
    sources = _sources(tmp_path, [each.name for each in levels_of(native().machine, list(LEVELS))])
    for file, text in build_files("toy", [each.name for each in sources.iterdir()]).items():
        (tmp_path / file).write_text(text)
    commands = {
        "make": [["make", "-j2"]],
        "cmake": [["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"]],
    }
    for command in commands[tool]:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    shared, static = (tmp_path / "build" / each for each in native().libraries("toy"))
    loaded = ctypes.CDLL(str(shared))
    assert loaded.toy_answer() == 42 and not hasattr(loaded, "toy_hidden") and static.exists()


@pytest.mark.skipif(not X86 or not shutil.which("aarch64-linux-gnu-g++"), reason="no g++ for ARM")
def test_make_asks_the_compiler_for_its_processor(tmp_path: Path) -> None:
    sources = _sources(tmp_path, ["x86-64", "aarch64"])
    files = build_files("toy", [each.name for each in sources.iterdir()])
    (tmp_path / "Makefile").write_text(files["Makefile"])
    arm = [f"{word}=aarch64-linux-gnu-{tool}" for word, tool in (("CC", "gcc"), ("CXX", "g++"))]
    subprocess.run(["make", *arm], cwd=tmp_path, capture_output=True, check=True)
    image = (tmp_path / "build" / "libtoy.so").read_bytes()
    assert int.from_bytes(image[18:20], "little") == 183  # EM_AARCH64
