"""The short cuts for sums give what SymPy gives, object for object."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Expr, Integer, Symbol
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from smelt.symbolic import flatten, loop_var
from smelt.symbolic.affine import (
    divided,
    expand,
    linear,
    order_text,
    plus,
    quotient_of,
    remainder,
    replaced,
    rest_of,
    times,
    total,
)

U, V, W, S = (loop_var(name) for name in ("i", "j", "k", "s0"))
SYMBOLS = (U, V, W, S)


ODD = (
    *(Integer(0), 2 * (U + V), U * (V + 3), FloorDiv(4 * U + W, 6), 3 * Mod(U, 5) * V),
    *(FloorDiv(U * (V + 3), 5), U * FloorDiv(U, 4), 2 * Mod(U, 5) * FloorDiv(V, 3), Mod(FloorDiv(U, 2), 3)),
    *((U + 1) * FloorDiv(V, 3), FloorDiv(U, 4) * (FloorDiv(V, 3) + 2)),
    *((U + FloorDiv(S - 1, 2)) ** 2, 3 * FloorDiv(S - 1, 2) ** 2 * (V + 1), (U - V) * (U + V) * (U + 1)),
    *(Min(U * (V + 1), 7), V * Max(U, 2 * V), FloorDiv((U + 1) ** 2 - 1, 6), (V + 2) * Mod(U * (V + 1), 3)),
)


@st.composite
def sums(draw: st.DrawFn) -> Expr:
    """Sums of products of numbers and symbols; now and then a square, a bracket, a division."""
    terms: list[Expr] = [Integer(draw(st.integers(-9, 9)))]
    for _ in range(draw(st.integers(0, 4))):
        factors = draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, max_size=2))
        terms.append(sympy.Mul(Integer(draw(st.integers(-4, 64))), *factors))
    return sympy.Add(*terms, draw(st.sampled_from(ODD)))


@settings(deadline=None)
@given(sums())
def test_expand_is_sympys(expr: Expr) -> None:
    assert expand(expr) == sympy.expand(expr)


def test_expand_of_other_powers_is_sympys() -> None:
    for expr in (U / (V + 1), (U + 1) ** 2 / (V + 2), 2**U * (V + 1), (U + V) ** 9, U**V):
        assert expand(expr) == sympy.expand(expr)


@settings(deadline=None)
@given(sums(), st.sampled_from(SYMBOLS))
def test_linear_is_sympys_coefficient_and_rest(expr: Expr, var: Symbol) -> None:
    expanded = sympy.expand(expr)
    coefficient = expanded.coeff(var, 1)
    rest = sympy.expand(expanded - coefficient * var)
    found = linear(expr, var)
    assert found == (coefficient, rest)
    assert [str(each) for each in found] == [str(coefficient), str(rest)]


@settings(deadline=None)
@given(sums(), st.sampled_from(SYMBOLS), st.integers(0, 9))
def test_replaced_by_a_number_is_sympys(expr: Expr, var: Symbol, value: int) -> None:
    found, wanted = replaced(expr, {var: Integer(value)}), expr.xreplace({var: Integer(value)})
    assert found == wanted and found.args == wanted.args


@pytest.mark.parametrize("mapping", [{U: V}, {U: 4 * V + W}, {U: Integer(1), V: W}, {S: Integer(2)}, {}])
def test_replaced_by_anything_else_is_sympys(mapping: dict[Symbol, Expr]) -> None:
    for expr in (8 * U + V + 3, U * V, Integer(4), U, FloorDiv(U, 4) + S * U):
        assert replaced(expr, mapping) == expr.xreplace(mapping)


@settings(deadline=None)
@given(sums(), st.sampled_from([*map(Integer, (-2, -1, 0, 1, 3, 48)), S]))
def test_times_is_sympys(expr: Expr, number: Expr) -> None:
    found, wanted = times(expr, number), expr * number
    assert found == wanted and found.args == wanted.args


@settings(deadline=None)
@given(st.lists(st.one_of(sums(), st.sampled_from(SYMBOLS)), max_size=3))
def test_total_is_sympys(terms: list[Expr]) -> None:
    found, wanted = total(terms), sympy.Add(*terms)
    assert found == wanted and found.args == wanted.args


@settings(deadline=None)
@given(sums(), st.integers(-9, 9))
def test_plus_is_sympys(expr: Expr, number: int) -> None:
    found, wanted = plus(expr, Integer(number)), expr + number
    assert found == wanted and found.args == wanted.args


@settings(deadline=None)
@given(sums(), st.integers(1, 49))
def test_quotients_and_rests_are_pytorchs(expr: Expr, number: int) -> None:
    """Made at once or not: what PyTorch makes of them."""
    by = Integer(number)
    if not expr.is_Integer:  # PyTorch's remainder refuses numbers below 0
        rest = remainder(expr, by)
        known = [expr.subs(dict.fromkeys(SYMBOLS, number * k)) % number for k in (0, 3)]
        assert rest == Mod(expr, by) or known == [rest, rest]
    if sympy.gcd_terms(expr).as_coeff_Mul()[0].gcd(by) == 1:
        assert divided(expr, by) == FloorDiv(expr, by)


@settings(deadline=None)
@given(sums(), sums())
def test_order_text_tells_apart_what_differs(one: Expr, other: Expr) -> None:
    assert (order_text(one) == order_text(other)) == (one == other)


def test_flatten_is_the_sum_of_its_products() -> None:
    assert flatten([U, V + 1], [S, Integer(4)], Integer(3)) == U * S + 4 * V + 7


SIZES = st.sampled_from(
    [S, 3 * S, S**2, 2 * S + 4, FloorDiv(S - 1, 2) + 1, S * FloorDiv(S, 3), FloorDiv(S, 9)]
)


@given(sums(), SIZES)
@settings(deadline=None, max_examples=60)
def test_quotients_and_rests_by_a_size(base: Expr, divisor: Expr) -> None:
    assert quotient_of(base, divisor) == FloorDiv(base, divisor)
    assert rest_of(base, divisor) == Mod(base, divisor)


@given(sums(), SIZES, st.integers(1, 49), st.integers(1, 49))
@settings(deadline=None, max_examples=60)
def test_quotients_of_quotients(base: Expr, size: Expr, times_it: int, number: int) -> None:
    """Several divisions are one, by whatever the first one is, for any values."""
    found = divided(times_it * quotient_of(base, size), number)
    for value in (9, 10, 123):
        known = dict.fromkeys(SYMBOLS, value)
        assert found.subs(known) == times_it * (base.subs(known) // size.subs(known)) // number
