"""The header, parsed once: units include it where it is ready, and have its text where it is not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.codegen.support import SIZE, pointwise
from tests.lowering.harness import lowered

import smelt
from smelt.codegen.cpp import UnitPrinter, header_text, once_text, printer
from smelt.config import Config
from smelt.nest.ir import Argument, Call, Run
from smelt.runtime import library
from smelt.runtime import precompiled as module
from smelt.runtime.cache import Cache
from smelt.runtime.library import Objects, compile_unit
from smelt.runtime.precompiled import BINARY, HEADER, OBJECT, Precompiled, precompiled
from smelt.runtime.toolchain import Toolchain, find
from smelt.schedule import Target, schedule

pytestmark = pytest.mark.skipif(find().family != "gcc", reason="GCC keeps it beside the header")


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_known", {})
        yield


def begun(cache: Cache, toolchain: Toolchain, text: str | None = None) -> Precompiled | None:
    return precompiled(text or header_text(once=False), once_text(), toolchain, cache)


def ready(cache: Cache, toolchain: Toolchain | None = None, text: str | None = None) -> Precompiled:
    found = begun(cache, toolchain or find(), text)
    assert found is not None
    found.thread.join()
    return found


def computed(
    cache: Cache, header: Precompiled | None, key: str = "k"
) -> tuple[tuple[str, ...], torch.Tensor]:
    """The files of a unit of one kernel, and what it gives for 0 to 9."""
    kernel = pointwise("exp", [torch.float32], torch.float32, lanes=8)
    runs = [Run("run", ("x", "y"), (SIZE,), (Call(kernel, (Argument(0), Argument(1))),))]
    objects = Objects(find(), cache, header)
    unit = UnitPrinter(objects).finish(runs)
    job = compile_unit(unit.text, find(), cache, key, parts=unit.parts, objects=objects)
    x, y = torch.arange(10.0), torch.empty(10)
    function = job.result().function("run")
    function.argtypes = [library.ctypes.c_void_p] * 3 + [library.ctypes.c_int64]
    assert function(0, x.data_ptr(), y.data_ptr(), 10) == 0
    return unit.parts, y


def test_units_include_what_is_compiled(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    header = ready(cache)
    assert header.path is not None and header.path.with_name(BINARY).stat().st_size > 10_000
    parts, mine = computed(cache, header)
    assert [part.startswith(f'#include "{header.path}"\nnamespace') for part in parts] == [True]
    without, theirs = computed(Cache(tmp_path / "other"), None)
    assert without == () and torch.equal(mine, theirs)


def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    assert ready(cache) is ready(cache)
    module._known.clear()  # as another process

    def refused(*_: object) -> None:
        raise OSError("no compiler")

    monkeypatch.setattr(module, "start_compiler", refused)
    assert ready(Cache(tmp_path)).include is not None
    other = ready(cache, text=header_text(once=False) + "\n// another smelt's")
    assert other.include is None


def test_what_was_cleared_is_compiled_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first = ready(cache)
    cache.clear()
    assert first.include is None and first.is_lost()
    again = ready(cache)
    assert again is not first and again.include is not None


def test_a_binary_that_is_no_such_thing_is_not_read(tmp_path: Path) -> None:
    """GCC reads the header beside it then, which is the same."""
    cache = Cache(tmp_path)
    header = ready(cache)
    folder = tmp_path / "damaged"
    folder.mkdir()
    assert header.path is not None
    for name in (HEADER, OBJECT):
        shutil.copy(header.path.with_name(name), folder / name)
    (folder / BINARY).write_bytes(b"no header at all")
    header.path = folder / HEADER
    parts, y = computed(cache, header)
    assert str(folder) in parts[0]
    torch.testing.assert_close(y, torch.arange(10.0).exp())


def test_a_header_that_vanishes_leaves_the_text(tmp_path: Path) -> None:
    """It is there when the unit is printed, and gone when the compiler comes to it."""
    cache = Cache(tmp_path)
    header = ready(cache)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / HEADER).write_text("#error gone\n")
    header.path = elsewhere / HEADER
    _, y = computed(cache, header)
    torch.testing.assert_close(y, torch.arange(10.0).exp())
    assert not list((tmp_path / "v1" / "failed").glob("*"))


@pytest.mark.parametrize("is_ready", [True, False])
def test_what_a_program_has_once_is_in_no_part_or_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    monkeypatch.setattr(printer, "LEAST_PART", 100)
    cache, tools = Cache(tmp_path), find()
    graph = lowered(
        lambda x, y: (x.t().contiguous(), x.exp(), y.t().contiguous()),
        torch.randn(512, 384),
        torch.randn(96, 640),
    )
    runs = schedule(graph, Config(fusion=False), Target(tools.vector_bytes)).runs
    objects = Objects(tools, cache, ready(cache) if is_ready else None)
    unit = UnitPrinter(objects).finish(runs, compilers=2)
    assert len(unit.parts) == 2
    for used, defined in (
        ("in_parallel(", "__attribute__((noinline, weak)) void share_out("),
        ("copy_transposed<", "\ntemplate void copy_transposed<SMELT_VECTOR_BYTES"),
    ):
        assert used in unit.text and unit.text.count(defined) == 1
        assert sum(part.count(defined) for part in unit.parts) == (0 if is_ready else 1)
    binary = tmp_path / "made.so"
    assert objects.link(unit.parts, binary)
    library.ctypes.CDLL(str(binary), mode=os.RTLD_NOW)  # all that it calls is there


@pytest.mark.parametrize("command", ["/bin/false", "/nonexistent/g++"])
def test_a_compiler_that_refuses_is_asked_once(tmp_path: Path, command: str) -> None:
    toolchain = replace(find(), command=(command,))
    header = ready(Cache(tmp_path), toolchain)
    assert header.include is None and not header.is_lost()
    assert ready(Cache(tmp_path), toolchain) is header
    assert not list((tmp_path / "v1" / "tmp").glob("*"))


def test_other_compilers_have_the_text(tmp_path: Path) -> None:
    assert begun(Cache(tmp_path), replace(find(), family="clang")) is None


def test_a_fork_begins_anew_where_it_was_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 1\nexit 1\n")
    slow.chmod(0o755)
    toolchain = replace(find(), command=(str(slow),))
    parents = begun(cache, toolchain)
    child = os.fork()
    if child == 0:
        again = begun(cache, toolchain)
        os._exit(0 if again is not parents else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert parents is begun(cache, toolchain)
    parents.thread.join()


def test_programs_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    commands: list[str] = []
    real = library.start_compiler

    def noted(command: list[str], *rest: object) -> object:
        source = next((each for each in command if each.endswith(".cpp")), None)
        if source is not None:
            commands.append(Path(source).read_text().partition("\n")[0])
        return real(command, *rest)

    monkeypatch.setattr(library, "start_compiler", noted)
    x = torch.randn(100)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(lambda x: x.exp() + 1, backend="smelt")(x), x.exp() + 1)
    (header,) = module._known.values()
    header.thread.join()
    commands.clear()
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(lambda x: x.sin() + 1, backend="smelt")(x), x.sin() + 1)
    assert commands == [header.include]
    assert smelt.reports()[-1].text("cpp").startswith("// smelt.h")
