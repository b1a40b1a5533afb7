"""What is never negative, and the lesser of two: what SymPy finds, and true at every point."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from sympy import Expr, Integer, Symbol
from torch.utils._sympy.functions import Min, Mod

from smelt.symbolic.expr import evaluate
from smelt.symbolic.signs import least, never_negative
from tests.symbolic.test_affine import SYMBOLS, U, V, sums

POINTS = [dict(zip(SYMBOLS, numbers)) for numbers in product((0, 1, 5, 64), repeat=len(SYMBOLS))]
SIZE = Symbol("n", integer=True, positive=True)


@settings(deadline=None, max_examples=40)
@given(sums())
def test_never_negative_is_what_sympy_finds_and_true(expr: Expr) -> None:
    found = never_negative(expr)
    assert found or not expr.is_nonnegative
    assert not found or all(evaluate(expr, point) >= 0 for point in POINTS)


def test_a_positive_size_is_at_least_one() -> None:
    assert never_negative(SIZE - 1) and not never_negative(SIZE - 2)
    assert not never_negative(SIZE - U) and never_negative(SIZE * U + Mod(V, 3))


def test_a_symbol_of_either_sign_is_left_to_sympy() -> None:
    either = Symbol("x", integer=True)
    assert never_negative(either**2) and not never_negative(either)


@settings(deadline=None, max_examples=40)
@given(sums(), sums())
def test_the_lesser_is_pytorchs_at_every_point(left: Expr, right: Expr) -> None:
    found = least(left, right)
    for point in POINTS:
        assert evaluate(found, point) == min(evaluate(left, point), evaluate(right, point))


def test_what_is_known_to_be_less_is_no_minimum() -> None:
    assert least(2 * U, 2 * U + 3) == 2 * U and least(U + SIZE, U + 1) == U + 1
    assert least(16 * U + 16, 40) == Min(Integer(40), 16 * U + 16)
    assert least(U, V) == Min(U, V)
