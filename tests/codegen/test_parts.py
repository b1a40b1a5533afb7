"""A large unit in several files: each kernel in one of them, and they link to what the whole is; also where
some were compiled before the rest was printed.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import conv2d

from smelt.codegen.cpp import printer
from smelt.codegen.cpp.scope import Function
from smelt.config import Config
from smelt.nest.ir import Argument, Call, Kernel, Run
from smelt.runtime import library
from smelt.runtime.cache import Cache
from smelt.runtime.library import Library, Objects, compile_unit
from smelt.runtime.toolchain import find
from smelt.schedule import Target, schedule
from tests.codegen.support import SIZE, pointwise
from tests.codegen.test_functions import handed
from tests.lowering.harness import lowered

NAMES = ("exp", "sin", "cos", "tanh", "sqrt")


def runs() -> list[Run]:
    """Five kernels in one run, the first of them in another one too."""
    kernels = [pointwise(op, [torch.float32], torch.float32, lanes=8) for op in NAMES]
    calls = [Call(kernel, (Argument(0), Argument(k + 1))) for k, kernel in enumerate(kernels)]
    results = tuple(f"y{k}" for k in range(len(calls)))
    return [
        Run("all_of_them", ("x", *results), (SIZE,), tuple(calls)),
        Run("first", ("x", "y0"), (SIZE,), (calls[0],)),
    ]


def computed(library: Library, x: torch.Tensor) -> list[torch.Tensor]:
    results = [torch.empty_like(x) for _ in NAMES]
    function = library.function("all_of_them")
    function.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int64]
    assert function(0, *(t.data_ptr() for t in (x, *results)), len(x)) == 0
    return results


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printer, "LEAST_PART", 200)
    monkeypatch.setattr(printer, "LEAST_EARLY", 200)
    monkeypatch.setattr(library, "compilers", lambda: 3)


def test_a_small_unit_stays_one() -> None:
    assert printer.print_unit(runs(), compilers=4).parts == ()


@pytest.mark.usefixtures("small_parts")
def test_the_whole_does_not_depend_on_the_number_of_compilers() -> None:
    one, three = printer.print_unit(runs()), printer.print_unit(runs(), compilers=3)
    assert one.parts == () and len(three.parts) == 3
    assert (one.text, one.errors) == (three.text, three.errors)
    for name in NAMES:
        head = re.compile(rf"^void kernel_{name}\w*\(.*\) {{$", re.MULTILINE)
        assert [len(head.findall(part)) for part in three.parts].count(1) == 1
        assert len(re.findall(rf"^void kernel_{name}\w*\(.*\);$", three.parts[0], re.MULTILINE)) == 1


def test_files_are_even_by_what_compilers_have_to_do() -> None:
    """Each function costs something, however short; assembly is copied."""
    short, statements = "  a();\n", "  b = c + d;\n" * 2000
    assembly = '      "vmovups 0(%%rcx), %%zmm0\\n"\n' * 2000
    bodies = {"long": statements, "tile": assembly, **{f"short{n}": short for n in range(3)}}
    functions = [Function(f"kernel_{name}", "", body, False, frozenset()) for name, body in bodies.items()]
    parts = printer.UnitPrinter()._parts(functions, [], frozenset(), 2)
    names = [set(re.findall(r"^void kernel_(\w+)\(\) {$", part, re.MULTILINE)) for part in parts]
    assert sorted(map(sorted, names)) == [["long"], ["short0", "short1", "short2", "tile"]]


@pytest.mark.usefixtures("small_parts")
def test_parts_link_to_a_library_that_computes_the_same(tmp_path: Path) -> None:
    unit = printer.print_unit(runs(), compilers=3)
    x = torch.rand(100)
    found = []
    for number, parts in enumerate((unit.parts, ())):
        job = compile_unit(unit.text, find(), Cache(tmp_path / str(number)), "k", parts=parts)
        found.append(computed(job.result(), x))
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_a_part_that_is_refused_is_told_of_the_whole(tmp_path: Path) -> None:
    whole = 'extern "C" __attribute__((visibility("default"))) long long answer(char*) { return 42; }\n'
    job = compile_unit(whole, find(), Cache(tmp_path), "k", parts=(whole, "no C++ at all"))
    assert job.result().function("answer")(0) == 42


def rows() -> list[Run]:
    """Three kernels whose text is known as soon as they are, and a copy, whose is not."""
    kernels = [handed(5, size) for size in (40, 48, 56)]
    copy = pointwise("exp", [torch.float32], torch.float32, lanes=8)
    calls = (
        *(Call(kernel, (Argument(0), Argument(k + 1))) for k, kernel in enumerate(kernels)),
        Call(copy, (Argument(0), Argument(4))),
    )
    return [Run("rows", ("x", "y0", "y1", "y2", "y3"), (SIZE,), calls)]


def check_rows(library: Library) -> None:
    x, copy = torch.rand(5 * 56), torch.empty(5 * 56)
    results = [torch.empty(5 * size) for size in (40, 48, 56)]
    function = library.function("rows")
    function.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64]
    assert function(0, *(t.data_ptr() for t in (x, *results, copy)), len(x)) == 0
    for size, result in zip((40, 48, 56), results):
        assert torch.equal(result, x[: 5 * size])
    torch.testing.assert_close(copy, x.exp())


def printed_early(objects: Objects, wait: bool = True) -> printer.CppUnit:
    """The unit of `rows`, whose kernels were handed on one by one; a compiler is free for each that we
    ``wait`` for.
    """
    unit = printer.UnitPrinter(objects)
    for call in rows()[0].calls:
        unit.add(call.kernel)
        while wait and not objects.free():
            time.sleep(0.001)
    return unit.finish(rows())


@pytest.mark.usefixtures("small_parts")
def test_kernels_are_compiled_while_others_are_not_there_yet(tmp_path: Path) -> None:
    objects = Objects(find(), Cache(tmp_path))
    unit = printed_early(objects)
    assert len(objects.files) == 3 and len(unit.parts) == 1
    assert unit.text == printer.print_unit(rows()).text
    head = re.compile(r"^void kernel_(\w+)\(.*\) {$", re.MULTILINE)
    assert head.findall(unit.parts[0]) == ["exp_float32_to_float32_8"]
    job = compile_unit(unit.text, find(), Cache(tmp_path), "k", parts=unit.parts, objects=objects)
    check_rows(job.result())
    folder = Path(objects.files[0]).parent
    assert len(list(folder.glob("*.o"))) == 4
    del objects, job
    assert not folder.exists()


@pytest.mark.usefixtures("small_parts")
def test_no_more_compilers_run_early_than_there_are_processors_besides_pythons(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    objects = Objects(replace(find(), command=(str(slow),)), Cache(tmp_path))
    unit = printed_early(objects, wait=False)
    assert len(objects.files) == 2 and not objects.free()
    assert "void kernel_handed_3(" in unit.parts[0]
    running, folder = list(objects._running), Path(objects.files[0]).parent
    del objects
    assert all(run.returncode is not None for run in running) and not folder.exists()


@pytest.mark.usefixtures("small_parts")
def test_what_was_compiled_early_and_refused_is_compiled_with_the_whole(tmp_path: Path) -> None:
    objects = Objects(find(), Cache(tmp_path))
    unit = printed_early(objects)
    objects.start("no C++ at all")
    check_rows(compile_unit(unit.text, find(), Cache(tmp_path), "k", None, unit.parts, objects).result())


@pytest.mark.usefixtures("small_parts")
def test_a_fork_compiles_the_whole(tmp_path: Path) -> None:
    objects = Objects(find(), Cache(tmp_path))
    unit = printed_early(objects)
    child = os.fork()
    if child == 0:  # OpenMP does not survive a fork: what was compiled runs in the parent
        try:
            job = compile_unit(unit.text, find(), Cache(tmp_path), "k", None, unit.parts, objects)
            os._exit(0 if job.result().function("rows") and not job.cached else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    job = compile_unit(unit.text, find(), Cache(tmp_path), "k", None, unit.parts, objects)
    check_rows(job.result())
    assert job.cached
    check_rows(compile_unit(unit.text, find(), Cache(tmp_path), "other", None, unit.parts, objects).result())


def test_kernels_that_are_ready_are_those_that_run() -> None:
    """A convolution with a border, a sum in the place of an operand: nothing is compiled in vain."""

    def block(x: torch.Tensor, wide: torch.Tensor, deep: torch.Tensor) -> torch.Tensor:
        y = conv2d(x, wide).relu()
        return (y + conv2d(y, deep, padding=1, groups=32)).relu().softmax(1)

    inputs = torch.randn(1, 16, 14, 14), torch.randn(32, 16, 1, 1), torch.randn(32, 1, 3, 3)
    graph = lowered(block, *inputs)
    found: list[Kernel] = []
    target = Target(32)
    scheduled = schedule(graph, Config(), target, ready=found.append)
    called = [call.kernel for run in scheduled.runs for call in run.calls]
    assert any("tiled" in kernel.name for kernel in called)
    assert {id(kernel) for kernel in called} <= {id(kernel) for kernel in found}
    assert len({replace(kernel, name="") for kernel in found}) == len({id(kernel) for kernel in called})
