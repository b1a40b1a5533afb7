"""A large unit in several files: each kernel in one of them, and they link to what the whole is."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch

from smelt.codegen.cpp import printer
from smelt.nest.ir import Argument, Call, Run
from smelt.runtime.cache import Cache
from smelt.runtime.library import compile_unit
from smelt.runtime.toolchain import find
from tests.codegen.support import SIZE, pointwise

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


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printer, "LEAST_PART", 200)


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


@pytest.mark.usefixtures("small_parts")
def test_parts_link_to_a_library_that_computes_the_same(tmp_path: Path) -> None:
    unit = printer.print_unit(runs(), compilers=3)
    x = torch.rand(100)
    found = []
    for number, parts in enumerate((unit.parts, ())):
        job = compile_unit(unit.text, find(), Cache(tmp_path / str(number)), "k", parts=parts)
        results = [torch.empty(100) for _ in NAMES]
        function = job.result().function("all_of_them")
        function.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int64]
        assert function(0, *(t.data_ptr() for t in (x, *results)), 100) == 0
        found.append(results)
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_a_part_that_is_refused_is_told_of_the_whole(tmp_path: Path) -> None:
    whole = 'extern "C" __attribute__((visibility("default"))) long long answer(char*) { return 42; }\n'
    job = compile_unit(whole, find(), Cache(tmp_path), "k", parts=(whole, "no C++ at all"))
    assert job.result().function("answer")(0) == 42
