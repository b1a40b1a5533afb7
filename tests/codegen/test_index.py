"""Index expressions as C++ text: cases and conditions."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import sympy

from smelt.codegen.index import Names, index_text
from smelt.errors import SmeltError
from smelt.runtime import toolchain
from smelt.symbolic import FloorDiv, Mod, loop_var
from tests.codegen.support import COMPILER, FLAGS

A, B = loop_var("a"), loop_var("b")
NAMES = {A: "a", B: "b"}


def as_python(text: str) -> str:
    """The few operators of C++ that occur here, as Python's (``c ? x : y`` is written by hand)."""
    return text.replace("&&", "and").replace("||", "or").replace("!(", "not (")


def test_cases_are_conditional_expressions() -> None:
    expr = sympy.Piecewise((A + 4, sympy.Lt(A, B)), (B, sympy.Eq(A, 3)), (0, True))
    assert index_text(expr, NAMES) == "((a < b) ? a + 4 : (a == 3) ? b : 0)"
    assert index_text(expr * 2 + 1, NAMES) == "((a < b) ? a + 4 : (a == 3) ? b : 0)*2 + 1"


@pytest.mark.parametrize(
    "condition",
    [sympy.And(A < 3, B > 1), sympy.Or(A < 1, sympy.Ne(B, 2)), sympy.Not(sympy.And(A < 2, B < 2))],
)
def test_conditions_mean_what_they_mean(condition: sympy.Basic) -> None:
    text = index_text(sympy.Piecewise((1, condition), (0, True)), NAMES)
    head = as_python(text.removeprefix("(").removesuffix(" ? 1 : 0)"))
    for a in range(5):
        for b in range(5):
            assert bool(eval(head, {}, {"a": a, "b": b})) == bool(condition.subs({A: a, B: b}))


def test_cases_that_leave_some_out_have_no_text() -> None:
    with pytest.raises(SmeltError) as found:
        index_text(sympy.Piecewise((A, A < B)), NAMES)
    assert found.value.code == "SM0802"


def test_division_by_what_stays_the_same_multiplies() -> None:
    """One divider for each divisor; what is shared has the symbols that it is made of."""
    size = sympy.Symbol("s", integer=True)
    asked: list[tuple[str, frozenset[sympy.Symbol]]] = []

    def share(text: str, symbols: frozenset[sympy.Symbol]) -> str:
        asked.append((text, symbols))
        return f"q{len(asked)}"

    names = Names({size: "s0"}, share)
    names.update(NAMES)
    assert index_text(FloorDiv(A + B, size) * 4 + Mod(A, size) + FloorDiv(A, B), names) == "(a/b) + q1*4 + q2"
    assert dict(asked) == {
        "by0.quotient(a + b)": {A, B},
        "by0.rest(a)": {A},
    }
    assert names.dividers == {"s0": "by0"}
    assert index_text(FloorDiv(A, size), names.in_lanes({A: "(a + k)"})) == "by0.quotient((a + k))"


HEADER = Path(toolchain.__file__).parents[1] / "codegen" / "cpp" / "include"


def test_the_divider_divides(tmp_path: Path) -> None:
    """At and around the limits of its multiplication, by any sign, and by zero without a trap."""
    source, library = tmp_path / "divide.cpp", tmp_path / "divide.so"
    text = "".join((HEADER / name).read_text() for name in ("smelt.h", "smelt_arithmetic.h"))
    source.write_text(
        f"{text}\nusing namespace smelt;\n"
        'extern "C" {\n'
        "#pragma GCC visibility push(default)\n"
        "i64 quotient(i64 n, i64 by) { return divider(by).quotient(n); }\n"
        "i64 rest(i64 n, i64 by) { return divider(by).rest(n); }\n"
        "}\n"
    )
    assert COMPILER is not None
    subprocess.run([COMPILER, *FLAGS, str(source), "-o", str(library)], check=True)
    built = ctypes.CDLL(str(library))
    for function in (built.quotient, built.rest):
        function.argtypes, function.restype = [ctypes.c_int64] * 2, ctypes.c_int64
    edge = 1 << 32
    numbers = [0, 1, 2, 6, 7, 8, 48, 49, 1000003, edge - 2, edge - 1, edge, edge + 1, 1 << 40, -1, -7, -8]
    for by in (1, 2, 3, 7, 49, 1000003, edge - 1, edge, edge + 1, -1, -7):
        for n in numbers:
            assert (built.quotient(n, by), built.rest(n, by)) == (n // by, n % by), (n, by)
    assert built.quotient(5, 0) == 0
