"""Discovery of the compiler: which one, its identity, and what is said when there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from smelt.errors import ToolchainError
from smelt.runtime import toolchain as module
from smelt.runtime.toolchain import FLAGS, find, isa_of


@pytest.fixture(autouse=True)
def _forget() -> None:
    module._find.cache_clear()


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_finds_a_compiler_and_describes_it() -> None:
    found = find()
    assert os.path.isabs(found.command[0]) and found.family in ("gcc", "clang") and found.version[0].isdigit()
    assert found.vector_bytes in (8, 16, 32, 64)
    for part in (found.command[0], found.version, found.cpu, *found.compile_flags):
        assert part in found.identity
    assert find() is found
    assert "-ffast-math" not in FLAGS and "-ffp-contract=off" in FLAGS


def test_cxx_comes_first_and_may_have_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = find().command[0]
    wrapped = script(tmp_path / "my-c++", f'exec {real} "$@"\n')
    monkeypatch.setenv("CXX", f"{wrapped} -DOPTION")
    found = find()
    assert found.command == (str(wrapped), "-DOPTION")
    assert "-DOPTION" in found.identity


def test_order_of_compilers_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = find().command[0]
    monkeypatch.delenv("CXX", raising=False)
    clang = script(tmp_path / "clang++", f'exec {real} "$@"\n')
    monkeypatch.setenv("PATH", str(tmp_path))
    script(clang, f'PATH=/usr/bin:/bin exec {real} "$@"\n')
    assert find().command == (str(clang),)
    gcc = script(tmp_path / "g++", f'PATH=/usr/bin:/bin exec {real} "$@"\n')
    monkeypatch.setenv("PATH", str(tmp_path) + ":")
    assert find().command == (str(gcc),)


def test_no_compiler_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    for path in ("", str(tmp_path)):
        monkeypatch.setenv("PATH", path)
        with pytest.raises(ToolchainError, match=r"apt install g\+\+") as caught:
            find()
        assert caught.value.code == "SM0201"


def test_cxx_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    with pytest.raises(ToolchainError, match="no-such-compiler") as caught:
        find()
    assert caught.value.code == "SM0202"


@pytest.mark.parametrize("text", ["echo cannot work >&2; exit 1\n", "exit 0\n", "kill -9 $$\n"])
def test_compiler_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CXX", str(script(tmp_path / "broken", text)))
    with pytest.raises(ToolchainError) as caught:
        find()
    assert caught.value.code == "SM0203"
    if "cannot" in text:
        assert caught.value.why == "cannot work"


def test_compiler_that_cannot_be_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "odd"
    path.write_bytes(b"\x7fELFnonsense")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    with pytest.raises(ToolchainError, match="does not run") as caught:
        find()
    assert caught.value.code == "SM0203"


def test_falls_back_from_native_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = find().command[0]
    refusing = script(
        tmp_path / "plain",
        'for a in "$@"; do case "$a" in -m*=native) echo bad option >&2; exit 1;; esac; done\n'
        f'exec {real} "$@"\n',
    )
    monkeypatch.setenv("CXX", str(refusing))
    found = find()
    assert found.tuning == () and not any("native" in flag for flag in found.compile_flags)


def test_a_warm_process_starts_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    first = find()
    module._find.cache_clear()

    def forbidden(*args: object, **more: object) -> None:
        raise AssertionError("started a program")

    monkeypatch.setattr(subprocess, "run", forbidden)
    assert find() == first


def test_a_changed_compiler_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = find().command[0]
    wrapped = script(tmp_path / "c++", f'exec {real} "$@"\n')
    monkeypatch.setenv("CXX", str(wrapped))
    find()
    module._find.cache_clear()
    script(wrapped, "echo gone >&2; exit 1\n")
    with pytest.raises(ToolchainError, match="gone"):
        find()


def test_an_unusable_cache_does_not_hide_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    assert find().command


@pytest.mark.parametrize(
    "macros, expected",
    [
        ({"__SSE2__", "__AVX__", "__AVX2__", "__AVX512F__"}, ("avx2", 32)),
        ({"__AVX2__", "__AVX512F__", "__AVX512BW__", "__AVX512DQ__", "__AVX512VL__"}, ("avx512", 64)),
        ({"__SSE2__", "__AVX__"}, ("avx", 32)),
        ({"__SSE2__"}, ("sse2", 16)),
        ({"__ARM_NEON"}, ("neon", 16)),
        (set(), ("scalar", 8)),
    ],
)
def test_instruction_sets(macros: set[str], expected: tuple[str, int]) -> None:
    assert isa_of(macros) == expected
