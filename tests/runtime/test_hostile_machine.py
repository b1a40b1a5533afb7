"""Machines where compiling fails: no room, a compiler that hangs, odd folders, folders without execution.

The program's answer is right all the same, and what is wrong is said once.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.errors import SmeltError
from smelt.runtime import cache as cache_module
from smelt.runtime import library, process
from smelt.runtime import toolchain as toolchain_module
from smelt.runtime.cache import Cache, private_places


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(process, "_hung", {})
    smelt.reset()
    toolchain_module._find.cache_clear()
    yield
    smelt.reset()
    toolchain_module._find.cache_clear()


def compiler(folder: Path, line: str) -> str:
    """A compiler that runs a line of shell before it compiles."""
    real = toolchain_module.find().command[0]
    program = folder / "slower"
    program.write_text(f'#!/bin/sh\n{line}\nexec {real} "$@"\n')
    program.chmod(0o755)
    return str(program)


def is_right(factor: float, **options: Any) -> str:
    """Compile and run a small program; how it was run."""
    run = torch.compile(lambda x: (x * factor).relu().sum(-1), backend="smelt", options=options)
    x = torch.randn(6, 16)
    torch.testing.assert_close(run(x), (x * factor).relu().sum(-1))
    return smelt.reports()[-1].kind


LIMITED = """if True:
    import os, resource, sys, torch, logging, warnings
    import smelt
    def f(x): return (x @ x).softmax(-1) + torch.special.i0(x)
    def step(x, w):
        loss = ((x @ w).relu() * 3).sum()
        loss.backward()
        return w.grad
    x = torch.randn(8, 8)
    w = torch.randn(8, 8, requires_grad=True)
    expected = step(x, w).clone()
    w.grad = None
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(torch.compile(f, backend="smelt")(x), f(x))
        torch.testing.assert_close(torch.compile(step, backend="smelt")(x, w), expected)
    said = [each for each in caught if "smelt" in str(each.message)]
    print(len(said), sorted({each.kind for each in smelt.reports()}))
"""


@pytest.mark.parametrize("limit", [100, 20000])
def test_a_limit_on_the_size_of_files(tmp_path: Path, limit: int) -> None:
    """Neither the cache nor a temporary directory takes what a compiler writes."""
    environment = {**os.environ, "SMELT_CACHE_DIR": str(tmp_path / "limited")}
    words = [sys.executable, "-c", LIMITED, str(limit)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=1)[0] == "1", done.stdout + done.stderr
    assert "eager" in done.stdout and done.stderr.count("SM0508") == 1, done.stdout + done.stderr


def test_a_cache_without_room_is_left_for_a_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is the compiler that finds no room."""
    full = f'case "$*" in *{tmp_path}/cache/*) echo "error: No space left on device" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", compiler(tmp_path, full))
    with pytest.warns(RuntimeWarning, match="No space|no space") as caught:
        assert is_right(1.25) == "inference"
        assert is_right(1.75) == "inference"
    assert len([each for each in caught if "cannot be written" in str(each.message)]) == 1


def test_nowhere_to_write_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "c")

    def full(*args: object, **more: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(cache_module, "_write", full)
    for _ in range(2):
        with pytest.warns() if not cache.degraded else pytest.MonkeyPatch.context():
            with pytest.raises(SmeltError) as caught:
                cache.put("k", {"plan.json": b"{}"})
            assert caught.value.code == "SM0508" and "quota" in str(caught.value).lower()
    assert cache.get("k") is None


def test_private_places_are_tried_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(cache_module.tempfile, "gettempdir", lambda: "/proc/self")  # cannot be written
    assert next(private_places()) == "/proc/self"
    with pytest.warns(RuntimeWarning):
        cache = Cache(tmp_path / "file" / "cache")
    assert cache.put("k", {"plan.json": b"{}"}).read("plan.json") == b"{}"


@pytest.mark.skipif(shutil.which("ps") is None, reason="no ps to look for processes with")
def test_a_compiler_that_hangs_is_ended_and_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hanging = f'case "$*" in *-dM*) ;; *) echo $$ >> {tmp_path}/asked; sleep 1000 & wait;; esac'
    monkeypatch.setenv("CXX", compiler(tmp_path, hanging))
    with caplog.at_level(logging.WARNING, logger="smelt"):
        assert is_right(2.25, compiler_seconds=1) == "eager"
        library.wait_for_all()
        asked = (tmp_path / "asked").read_text()
        assert is_right(2.75, compiler_seconds=1) == "eager"
    assert (tmp_path / "asked").read_text() == asked
    assert caplog.text.count("SM0507") == 1 and "compiler_seconds" in caplog.text
    for each in asked.split():  # its children too: they are of the session that it leads
        ended = time.monotonic() + 10
        while os.path.exists(f"/proc/{each}") and time.monotonic() < ended:
            time.sleep(0.01)
        left = subprocess.run(["ps", "-o", "pid=,stat=", "-s", each], capture_output=True, text=True).stdout
        assert not [line for line in left.splitlines() if "Z" not in line], left


def test_a_training_step_goes_on_where_the_compiler_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward too: the backward was promised how its outputs lie."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 3, 9, 9)
    model(x).square().sum().backward()
    expected = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    model.zero_grad()
    monkeypatch.setenv("CXX", compiler(tmp_path, 'case "$*" in *-dM*) ;; *) sleep 1000;; esac'))
    run = torch.compile(model, backend="smelt", options={"compiler_seconds": 1})
    run(x).square().sum().backward()
    torch.testing.assert_close([each.grad for each in model.parameters()], expected)
    assert {each.kind for each in smelt.reports()} == {"eager"}


def test_a_compiler_that_hangs_when_it_is_asked_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, f"echo $$ >> {tmp_path}/asked; sleep 1000"))
    monkeypatch.setattr(toolchain_module, "PROBE_SECONDS", 0.3)
    for _ in range(2):
        with pytest.raises(SmeltError) as caught:
            toolchain_module.find()
        assert caught.value.code == "SM0507"
    assert is_right(3.25) == "eager"
    assert len((tmp_path / "asked").read_text().split()) == 1


@pytest.mark.parametrize("cxx", ['g++ "-O2', "g++ 'a", "g++ \\", '"'])
def test_cxx_with_an_open_quote(cxx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(SmeltError, match="CXX") as caught:
        toolchain_module.find()
    assert caught.value.code == "SM0202" and "words" in caught.value.what
    with pytest.raises(Exception, match="SM0202"):
        is_right(4.25)


ODD = [
    'quo"te',
    "semi;colon",
    "a space",
    "per%cent%s",
    "new\nline",
    "-x",
    "$ORIGIN",
    "back\\slash",
    "'",
    "ä#",
]


@pytest.mark.parametrize("name", ODD)
def test_cache_folders_with_odd_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMELT_CACHE_DIR", name)  # relative: a compiler takes "-x" for an option
    assert is_right(5.25) == "inference"
    monkeypatch.chdir("/")
    assert list(Cache(tmp_path / name).entries())
    library.wait_for_all()


def test_a_cache_where_nothing_may_be_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library is copied elsewhere; where that cannot be executed either, PyTorch runs the program."""
    real, refused = library.ctypes.CDLL, [str(tmp_path)]

    def noexec(name: str, *args: Any, **more: Any) -> Any:
        if any(str(name).startswith(each) for each in refused):
            raise OSError(f"{name}: failed to map segment from shared object")
        return real(name, *args, **more)

    monkeypatch.setattr(library.ctypes, "CDLL", noexec)
    assert is_right(6.25) == "inference"
    refused += list(private_places())
    assert is_right(6.75) == "eager"
    assert "SM0205" in smelt.reports()[-1].fallbacks[0].reason
