# ruff: noqa: N803, N805
"""What is wrong in a script is said with its line and column, and what would be right."""

import pytest
import torch

from smelt import script
from smelt.errors import SmeltError
from smelt.script import from_source
from smelt.script import ir as I
from smelt.script import tir as T
from tests.support import refusals


def refused(line, code, *words):
    text = str(refusals.refused(code, lambda: from_source(PROGRAM.format(line=line)), *words))
    assert "<script>:4:" in text and "^" in text, text


PROGRAM = """@T.prim_func
def main(A: T.Buffer((8, 4), "float32"), B: T.Buffer((8,), "int32")):
    for i in range(8):
        {line}
"""


@pytest.mark.parametrize(
    "line, code, words",
    [
        ("B[i] = = 3", "SM1202", ["4:16"]),
        ("B[i] = T.mxa(B[i], 3)", "SM1203", ["mxa", "did you mean 'max'", "4:16"]),
        ("for j in T.paralel(8): pass", "SM1203", ["did you mean 'parallel'", "4:18"]),
        ("B[i] = [1, 2]", "SM1204", ["4:16"]),
        ("while True: pass", "SM1204", ["while", "4:9"]),
        ("B[ii] = 3", "SM1205", ["did you mean 'i'", "4:11"]),
        ("C[i] = 3", "SM1205", ["no buffer C", "4:9"]),
        ("A[i] = T.float32(0.0)", "SM1206", ["2 dimensions", "4:9"]),
        ("B[i] = B[0] + A[i, 0]", "SM1207", ["T.Cast", "4:16"]),
        ('B[i] = T.min_value("flaot32")', "SM1204", ["flaot32", "float32"]),
    ],
)
def test_errors(line, code, words):
    refused(line, code, *words)


@pytest.mark.parametrize("line", ["x = x + B[i]", "x += B[i]", "y = x\n        if i < 2:\n            x = y"])
def test_a_name_is_not_given_again_in_an_inner_block(line):
    text = (
        PROGRAM.format(line=line).replace("    for i in", "    x = B[0]\n    for i in", 1) + "\n    B[0] = x"
    )
    with pytest.raises(SmeltError, match="x is a name for another value outside of this block") as caught:
        from_source(text)
    assert caught.value.code == "SM1204" and "alloc_buffer" in str(caught.value)


def test_what_is_compared_is_a_program():
    with pytest.raises(SmeltError, match="SM1208"):
        script.structural_equal(3, 4)


def test_the_first_difference_is_shown():
    one, other = (from_source(PROGRAM.format(line=f"B[i] = {number}")) for number in (3, 4))
    with pytest.raises(SmeltError, match="SM1209") as caught:
        script.assert_structural_equal(one, other)
    assert "= 3" in str(caught.value) and "= 4" in str(caught.value)


def test_decorators_read_and_never_run():
    size, kind = 8, "float32"

    @I.ir_module
    class Module:
        I.module_attrs({"a": 1})

        @T.prim_func
        def main(A: T.Buffer((size,), kind), B: T.Buffer((size,), kind)):
            for i in range(size):
                B[i] = T.if_then_else(0 < i < 3, A[i], T.min_value("float32"))

    (func,) = Module.functions.values()
    assert Module.attrs == {"a": 1} and func.kernel.params[0].shape == (8,) and not func.kernel.sizes
    assert "T.Buffer((8,)" in Module.script()


def test_the_place_of_an_error_is_that_of_the_file():
    with pytest.raises(SmeltError) as caught:

        @T.prim_func
        def main(A: T.Buffer((8,), "float32")):
            A[0, 1] = T.float32(0.0)

    line = main_line()
    assert f"{__file__}:{line}:13" in str(caught.value), str(caught.value)


def main_line():
    with open(__file__) as file:
        return next(n for n, line in enumerate(file, 1) if line.strip() == "A[0, 1] = T.float32(0.0)")


def test_limits_are_numbers():
    func = from_source(PROGRAM.format(line='A[i, 0] = T.max_value("float32")'))
    assert repr(torch.finfo(torch.float32).max) in func.script()
