"""Kernels as C++ functions: copies and sums of several sizes are one, what hands values on is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from smelt.codegen.cpp import print_unit
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Alloc,
    Argument,
    Call,
    Carry,
    For,
    Kernel,
    Let,
    LoopKind,
    Run,
    Store,
    Update,
)
from smelt.symbolic import Mod
from tests.codegen.support import Library, block, number, param, single, var

ROW, COLUMN = var("i"), var("j")
F32 = torch.float32


def turned(rows: int, columns: int, origin: str = "") -> Kernel:
    """``out[j, i] = x[i, j]``, eight columns at once."""
    value = (Let("v", F32, "load", ("x", (ROW, COLUMN))), Store("y", (COLUMN, ROW), "v"))
    inner = For(COLUMN, number(0), number(columns), block(*value), LoopKind.VECTOR, 8)
    loop = For(ROW, number(0), number(rows), block(inner))
    params = (param("x", F32, [rows, columns]), param("y", F32, [columns, rows], written=True))
    return Kernel("turned", params, (), block(loop), (origin,) if origin else ())


def summed(rows: int, columns: int) -> Kernel:
    """``out[i]``: the sum of a row."""
    value = (Let("v", F32, "load", ("x", (ROW, COLUMN))), Update("a", "v"))
    inner = For(COLUMN, number(0), number(columns), block(*value), LoopKind.VECTOR, 8)
    ends = (Let("s", F32, "read", ("a", 0)), Store("y", (ROW,), "s"))
    loop = For(ROW, number(0), number(rows), block(Accumulate("a", "sum", F32), inner, *ends))
    params = (param("x", F32, [rows, columns]), param("y", F32, [rows], written=True))
    return Kernel("summed", params, (), block(loop))


def divided(rows: int, columns: int) -> Kernel:
    """``out[i] = x[0, i % columns]``"""
    value = (Let("v", F32, "load", ("x", (number(0), Mod(ROW, number(columns))))), Store("y", (ROW,), "v"))
    loop = For(ROW, number(0), number(rows * columns), block(*value))
    params = (param("x", F32, [rows, columns]), param("y", F32, [rows * columns], written=True))
    return Kernel("divided", params, (), block(loop))


def kept(rows: int, columns: int) -> Kernel:
    """``out[i, j] = x[i, j]``, a row at a time by way of memory of its own."""
    there = (Let("v", F32, "load", ("x", (ROW, COLUMN))), Store("row", (COLUMN,), "v"))
    back = (Let("w", F32, "load", ("row", (COLUMN,))), Store("y", (ROW, COLUMN), "w"))
    loops = [For(COLUMN, number(0), number(columns), block(*each)) for each in (there, back)]
    loop = For(ROW, number(0), number(rows), block(Alloc("row", F32, (number(columns),)), *loops))
    params = (param("x", F32, [rows, columns]), param("y", F32, [rows, columns], written=True))
    return Kernel("kept", params, (), block(loop))


def handed(rows: int, columns: int) -> Kernel:
    """``out[i, j] = x[i, j]``, each number by way of what the iterations of a row hand on."""
    value = (Let("v", F32, "load", ("x", (ROW, COLUMN))), Advance("c", "v"))
    back = (Let("w", F32, "read", ("c", 0)), Store("y", (ROW, COLUMN), "w"))
    inner = For(COLUMN, number(0), number(columns), block(*value, *back))
    loop = For(ROW, number(0), number(rows), block(Carry("c", F32, 0.0), inner))
    params = (param("x", F32, [rows, columns]), param("y", F32, [rows, columns], written=True))
    return Kernel("handed", params, (), block(loop))


def scaled(rows: int, factor: float) -> Kernel:
    """``out[i] = x[i] * factor``"""
    value = (Let("v", F32, "load", ("x", (ROW,))), Let("f", F32, "constant", (factor,)))
    stmts = (*value, Let("w", F32, "mul", ("v", "f")), Store("y", (ROW,), "w"))
    loop = For(ROW, number(0), number(rows), block(*stmts), LoopKind.VECTOR, 8)
    params = (param("x", F32, [rows]), param("y", F32, [rows], written=True))
    return Kernel("scaled", params, (), block(loop))


def functions(text: str) -> list[str]:
    """The heads of the kernels in a unit."""
    return re.findall(r"^static (?:void|i64) kernel_.*(?= {$)", text, re.MULTILINE)


SIZES = ((48, 64), (96, 128), (48, 640), (7, 128))


@pytest.mark.parametrize("make", [turned, summed])
def test_several_sizes_are_one_function_that_is_right_for_each(make, tmp_path: Path) -> None:
    library = Library(tmp_path, [single(make(*size), f"run{k}") for k, size in enumerate(SIZES)])
    assert functions(library.unit.text) == [
        f"static void kernel_{make.__name__}(const f32_buffer* in0, f32_buffer* out1, i64 n0, i64 n1)"
    ]
    for position, size in enumerate(SIZES):
        x = torch.randint(-9, 9, size).float()
        want = x.T if make is turned else x.sum(1)
        y = torch.empty(want.shape)
        library(f"run{position}", x, y)
        assert torch.equal(y, want)


def test_what_is_the_same_in_all_sizes_stays_a_number() -> None:
    text = print_unit([single(turned(48, size), f"run{size}") for size in (64, 128)]).text
    assert functions(text) == ["static void kernel_turned(const f32_buffer* in0, f32_buffer* out1, i64 n0)"]
    assert "for (i64 d0 = 0; d0 < 48; d0 += 1)" in text
    assert "for (i64 d1 = 0; d1 < n0; d1 += 8)" in text
    assert "kernel_turned((f32_buffer*)p0, (f32_buffer*)p1, 128);" in text
    assert "⟨" not in text


def test_fractions_in_which_kernels_differ_are_arguments(tmp_path: Path) -> None:
    """The mean over each size of image, in a model. Whole numbers, 0 and 1 among them, compilers know."""
    factors = (0.25, -0.1, 1e-7)
    runs = [single(scaled(64, factor), f"run{k}") for k, factor in enumerate(factors)]
    library = Library(tmp_path, runs)
    head = "static void kernel_scaled(const f32_buffer* in0, f32_buffer* out1, f32 n0)"
    assert functions(library.unit.text) == [head]
    x = torch.linspace(-3, 3, 64)
    for k, factor in enumerate(factors):
        y = torch.empty(64)
        library(f"run{k}", x, y)
        assert torch.equal(y, x * factor)
    alone = print_unit([single(scaled(64, 0.25))]).text
    assert functions(alone) == [head.replace(", f32 n0", "")] and "splat<8>(0.25f)" in alone
    assert len(functions(print_unit([single(scaled(64, n), f"run{n:.0f}") for n in (0.0, 2.0)]).text)) == 2


def test_a_size_alone_is_written_into_its_function() -> None:
    places = (Argument(0), Argument(1))
    calls = tuple(Call(turned(48, 64, origin), places) for origin in ("here", "there"))
    text = print_unit([Run("run", ("x", "y"), (), calls)]).text
    assert functions(text) == ["static void kernel_turned(const f32_buffer* in0, f32_buffer* out1)"]
    assert text.count("kernel_turned((f32_buffer*)p0, (f32_buffer*)p1);") == 2


def test_a_function_tells_where_all_of_its_kernels_are_from() -> None:
    runs = [single(turned(48, size, f"line {size}"), f"run{size}") for size in (64, 128)]
    assert "// line 64\n// line 128\nstatic void kernel_turned(" in print_unit(runs).text


def test_a_loop_with_a_rest_is_another_function_than_one_without() -> None:
    assert len(functions(print_unit([single(turned(48, n), f"run{n}") for n in (64, 65)]).text)) == 2


@pytest.mark.parametrize("make", [handed, kept, divided])
def test_what_hands_on_its_memory_and_what_divides_keep_their_numbers(make, tmp_path: Path) -> None:
    """All of them do where values are handed on; else those of memory, and those that divide."""
    library = Library(tmp_path, [single(make(*size), f"run{k}") for k, size in enumerate(SIZES)])
    assert len(functions(library.unit.text)) == len(SIZES if make is handed else {size[1] for size in SIZES})
    for position, size in enumerate(SIZES):
        x = torch.rand(size)
        want = x[0].repeat(size[0]) if make is divided else x
        y = torch.empty_like(want)
        library(f"run{position}", x, y)
        assert torch.equal(y, want)
