"""A product that a person schedules by the GPU's recipe is the kernel that smelt makes of PyTorch's call."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import smelt
from smelt import te
from smelt.nest.lanes import lower_for_gpu
from smelt.nest.printer import print_kernel
from smelt.schedule.loops import Target
from smelt.schedule.tilings import Tiles
from smelt.tir import Schedule, ScheduleError, recipes
from tests.codegen.triton.recipes import PROGRAMS, looked_at, texts
from tests.codegen.triton.test_triton import TRITON, said
from tests.nest.staging import same

MODULE = "tests.codegen.triton.recipes"
needs_triton = pytest.mark.skipif(not TRITON.is_dir(), reason="no Triton: make test")
GPU = Target(vector_bytes=4, blocks=True, multiprocessors=4)


def numbered(text: str) -> list[str]:
    """The lines of the last function, its names numbered in order of appearance."""
    body = text[text.rindex("@triton.jit") :].splitlines()
    names: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"n{len(names)}")

    ((head, given),) = re.findall(r"def (\w+)\(([\w, ]+)\)", "\n".join(body))
    known = "|".join([head, *given.split(", ")])
    pattern = re.compile(rf"\b(?:{known}|(?:[vixrm]|at|acc|block|tiles)\d+)\b")
    return [pattern.sub(number, line) for line in body if not line.lstrip().startswith("#")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_is_the_one_of_pytorchs_call(name: str) -> None:
    one, other = texts(name)
    assert numbered(one) == numbered(other)


@pytest.mark.parametrize("name", ["one_tile", "epilogue"])
def test_the_schedule_keeps_what_is_computed(name: str) -> None:
    """Small, for the interpreter; a tile is cut off at each end."""
    program = PROGRAMS[name]
    if name == "epilogue":
        program = replace(program, shapes=((5, 4), (4, 9), (9,)), tiles=Tiles(4, 8, 3))
    same(program.func().kernel, program.schedule(looked_at()).func.kernel, exactly=False)


def test_a_sum_over_lanes_is_initialized_once() -> None:
    """Whether or not a person has decomposed it."""
    sch = PROGRAMS["one_tile"].schedule(looked_at())
    func = PROGRAMS["one_tile"].func()
    by_hand = Schedule(func)
    i, j, k = by_hand.get_loops("product")
    for loop, thread in ((i, "threadIdx.y"), (j, "threadIdx.x"), (k, "threadIdx.z")):
        by_hand.bind(loop, thread)
    for name in dict(sch.get(sch.get_loops("product_update")[-1]).annotations):
        sch.unannotate(sch.get_loops("product_update")[-1], name)
    texts = [print_kernel(lower_for_gpu(each.func.kernel)) for each in (sch, by_hand)]
    without_labels = [re.sub(r"\bproduct_\w+", "product", text) for text in texts]
    assert without_labels[0] == without_labels[1] and "sum()" in texts[0]


def test_names_of_buffers_may_be_those_of_the_text() -> None:
    """A buffer x0 was overwritten by the rows of a tile."""
    sch = PROGRAMS["one_tile"].schedule(looked_at())
    assert [param.name for param in sch.func.kernel.params[:2]] == ["x0", "x1"]
    assert [param.name for param in lower_for_gpu(sch.func.kernel).params] == ["p0", "p1", "p2"]


@needs_triton
@pytest.mark.long
def test_it_runs() -> None:
    found = said(
        MODULE, "interpret", "epilogue", "batches", "bfloat16", "tiles", "descriptors", TRITON_INTERPRET="1"
    )
    for name, each in found.items():
        assert each["far"] < (0.1 if name == "bfloat16" else 1e-4), name
        assert each["kernels"] == 1 and not each["externs"]


@needs_triton
@pytest.mark.long
def test_it_compiles_to_machine_code() -> None:
    found = said(MODULE, "compile", "epilogue", "bfloat16", "descriptors")
    assert {name: each["entries"] for name, each in found.items()} == dict.fromkeys(found, 1)
    assert found["bfloat16"]["multiplies"] and found["descriptors"]["copies"]


def test_its_steps_are_printed_and_repeated() -> None:
    program = PROGRAMS["epilogue"]
    sch = program.schedule(looked_at())
    text = str(sch.trace)
    assert "thread_axis='threadIdx.z'" in text and "ann_key='warps'" in text
    again = Schedule(program.func())
    sch.trace.apply_to_schedule(again)
    assert again.mod.script() == sch.mod.script()
    stored = Schedule(program.func())
    sch.trace.apply_json_to_schedule(sch.trace.as_json(), stored)
    assert stored.mod.script() == sch.mod.script()


def test_convolutions_are_products_too() -> None:
    x, w = te.placeholder((1, 2, 6, 5), name="x"), te.placeholder((3, 2, 3, 3), name="w")
    c, p, q = (te.reduce_axis((0, size), name=name) for size, name in ((2, "c"), (3, "p"), (3, "q")))
    y = te.compute(
        (1, 3, 4, 3),
        lambda n, o, i, j: te.sum(w[o, c, p, q] * x[n, c, i + p, j + q], axis=(c, p, q)),
        name="y",
    )
    func = te.create_prim_func([x, w, y])
    sch = Schedule(func)
    sch.apply(recipes.dots, target=GPU)
    same(func.kernel, sch.func.kernel, exactly=False)
    target = looked_at()
    smelt.build(sch, target=target)["main"].begin(
        *(torch.empty(s) for s in ((1, 2, 6, 5), (3, 2, 3, 3), (1, 3, 4, 3)))
    )
    assert "tl.dot(" in smelt.reports()[-1].text("triton")


def test_what_is_refused() -> None:
    x, y = te.placeholder((8, 8), name="X"), te.placeholder((8, 8), name="Y")
    k = te.reduce_axis((0, 8), name="k")

    def apply(element: Any, shape: tuple[int, ...] = (8, 8)) -> None:
        Schedule(te.create_prim_func([x, y, te.compute(shape, element, name="C")])).apply(
            recipes.dots, target=GPU
        )

    with pytest.raises(ScheduleError, match=r"SM1049: dots of C: it is no sum of products"):
        apply(lambda i, j: te.sum(x[i, k] + y[k, j], axis=k))
    with pytest.raises(ScheduleError, match=r"SM1049: dots of C: its factors have no rows and columns"):
        apply(lambda i, j: te.sum(x[0, k] * y[k, 0], axis=k))
    with pytest.raises(ScheduleError, match=r"SM1049: dots of C: it has no rows"):
        apply(lambda j: te.sum(x[0, k] * y[k, j], axis=k), (8,))
