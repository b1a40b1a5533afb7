"""What compilers make of the header where numbers do not tell: instructions, and what they call."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from smelt.codegen.cpp.header import header_text
from smelt.runtime import toolchain


def assembly(text: str, folder: Path) -> str:
    tools = toolchain.find()
    source = folder / "unit.cpp"
    source.write_text(text)
    command = [*tools.command, *tools.compile_flags, "-S", str(source), "-o", "-"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(("element", "dtype"), [("f32", torch.float32), ("f64", torch.float64)])
@pytest.mark.parametrize("vectors", [1, 2])
def test_multiply_adds_of_lanes_are_one_instruction_each(
    tmp_path: Path, element: str, dtype: torch.dtype, vectors: int
) -> None:
    lanes = vectors * toolchain.find().vector_bytes // dtype.itemsize
    three = ", ".join(f"load<{lanes}>({name})" for name in "abc")
    body = f"void run({element}* a, {element}* b, {element}* c) {{ store(c, fma({three})); }}"
    there = "#if defined(__FMA__) || defined(__aarch64__)"
    unit = f"{header_text(frozenset())}\n{there}\nnamespace smelt {{\n{body}\n}}\n#endif\n"
    text = assembly(unit, tmp_path)
    if "run" not in text:
        pytest.skip("this machine multiplies and adds in two instructions")
    found = re.findall(r"\t(?:vfn?m(?:add|sub)\w*|fml[as])\t.*", text)
    assert len(found) == vectors, text


def test_a_parallel_loops_body_is_no_function_that_is_called(tmp_path: Path) -> None:
    """However long it is: it would read what it has from outside in memory."""
    lines = [f"c[begin * {k + 2}] = a[begin * {k + 3}] * b[end * {k}] + a[end * {k}];" for k in range(600)]
    long = "\n".join(lines)
    body = f"void run(f32* a, f32* b, f32* c) {{ in_parallel(9, SMELT_CHUNK(begin, end) {{\n{long}\n}}); }}"
    header = header_text(frozenset({"parallel"}))
    text = assembly(f"{header}\nnamespace smelt {{\n{body}\n}}\n", tmp_path)
    assert "run_copy" in text
    assert not re.search(r"UlllE_clEll", text)  # the name of (long, long) of what has no name
