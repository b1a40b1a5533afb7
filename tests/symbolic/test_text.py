"""Python text: evaluating it gives what the expression gives, for generated expressions and by hand."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatPow,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    OpaqueUnaryFn_sqrt,
    PythonMod,
    RoundToInt,
    ToFloat,
    TruncToInt,
)

from smelt.errors import SmeltError
from smelt.runtime.plan_schema import names_in
from smelt.symbolic import evaluate, loop_var
from smelt.symbolic.text import python_text

A, B, C = (loop_var(name) for name in "abc")

_LEAVES = st.one_of(st.sampled_from([A, B, C]), st.integers(-4, 9).map(sympy.Integer))
_DIVISORS = st.integers(1, 7).map(sympy.Integer)


def _grow(inner: st.SearchStrategy[sympy.Expr]) -> st.SearchStrategy[sympy.Expr]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map(lambda p: p[0] + p[1]),
        pair.map(lambda p: p[0] - p[1]),
        pair.map(lambda p: p[0] * p[1]),
        pair.map(lambda p: Max(*p)),
        pair.map(lambda p: Min(*p)),
        st.tuples(inner, _DIVISORS).map(lambda p: FloorDiv(*p)),
        st.tuples(inner, _DIVISORS).map(lambda p: PythonMod(*p)),
    )


@settings(max_examples=150, deadline=None)
@given(st.recursive(_LEAVES, _grow, max_leaves=8), st.tuples(*[st.integers(0, 20)] * 3))
def test_text_means_what_the_expression_means(expr: sympy.Expr, numbers: tuple[int, int, int]) -> None:
    values = dict(zip((A, B, C), numbers))
    names = {symbol.name: number for symbol, number in values.items()}
    assert eval(python_text(expr), {"max": max, "min": min}, names) == evaluate(expr, values)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (A - B, "a - b"),
        (-A, "-a"),
        (-FloorDiv(A, 2), "-(a//2)"),
        (B - FloorDiv(A, 2), "b - a//2"),
        (-2 * A * (B + 1), "-2*a*(b + 1)"),
        (A**2 * B, "a*a*b"),
        (FloorDiv(A + B, 2), "(a + b)//2"),
        (A * Mod(B, 3), "a*(b%3)"),
        (A * B / 2, "(a*b)//2"),
        (sympy.And(A > 1, B >= A), "(a > 1) and (a <= b)"),
    ],
)
def test_text_is_readable(expr: sympy.Basic, text: str) -> None:
    for number in (0, 2, 4):
        values = {A: number, B: 3, C: 1}
        wanted = expr.subs(values)
        got = eval(python_text(expr), {"max": max, "min": min}, {s.name: v for s, v in values.items()})
        assert got == wanted
    if not isinstance(expr, sympy.logic.boolalg.Boolean):
        assert python_text(expr) == text


def test_what_has_no_text_says_so() -> None:
    with pytest.raises(SmeltError, match="SM0510: no text for sin"):
        python_text(sympy.sin(A))
    with pytest.raises(SmeltError, match="SM0510: no text for the power"):
        python_text(sympy.Pow(A, B))


def test_conditions_and_cases() -> None:
    cases = sympy.Piecewise((A + 4, sympy.Lt(A, B)), (B, sympy.And(A > 3, sympy.Ne(B, 2))), (0, True))
    chosen = sympy.ITE(A > 5, B > 2, B < 1)
    for a in range(8):
        for b in range(8):
            names = {"a": a, "b": b, "c": 0}
            values = {A: a, B: b}
            assert eval(python_text(cases), {}, names) == int(cases.subs(values))
            assert eval(python_text(chosen), {}, names) == bool(chosen.subs(values))
            assert eval(python_text(2 * cases + 1), {}, names) == 2 * int(cases.subs(values)) + 1


def test_cases_that_leave_some_out_have_no_text() -> None:
    with pytest.raises(SmeltError) as found:
        python_text(sympy.Piecewise((A, A < B)))
    assert found.value.code == "SM0510"


_N, _M = (sympy.Symbol(name, integer=True, positive=True) for name in "nm")
FLOATING = [
    IntTrueDiv(1, _N),
    FloatTrueDiv(ToFloat(_N), ToFloat(_M + 2)),
    FloatPow(ToFloat(_N), -0.5) * 1.5,
    OpaqueUnaryFn_sqrt(ToFloat(_N * _M)) - 0.1,
    TruncToInt(0.7 * ToFloat(_N)) + 3,
    FloorToInt(1.7 * ToFloat(_N) - 9.5),
    CeilToInt(IntTrueDiv(_N, 3)) * _M,
    RoundToInt(IntTrueDiv(_N, 2)),
]
"""Floating arithmetic on sizes."""


@pytest.mark.parametrize("expr", FLOATING, ids=str)
def test_floating_arithmetic(expr: sympy.Expr) -> None:
    for n in range(1, 12):
        wanted = expr.xreplace({_N: sympy.Integer(n), _M: sympy.Integer(4)})
        got = eval(python_text(expr), {}, {"n": n, "m": 4})
        assert isinstance(got, int) == bool(expr.is_integer)
        assert got == pytest.approx(float(wanted), rel=1e-14)
        assert names_in(python_text(expr)) == {symbol.name for symbol in expr.free_symbols}
