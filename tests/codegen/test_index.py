"""Index expressions as C++ text: cases and conditions."""

from __future__ import annotations

import pytest
import sympy

from smelt.codegen.cpp.index import index_text
from smelt.errors import SmeltError
from smelt.symbolic import loop_var

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
