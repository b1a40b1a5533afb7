"""Boxes hold every element that is touched, and as few others as may be."""

from __future__ import annotations

from itertools import product

import hypothesis.strategies as st
import sympy
import torch
from hypothesis import given, settings
from sympy import Expr, Integer
from torch.utils._sympy.functions import FloorDiv, Mod

from smelt.nest.ir import Axis, AxisKind, Block, For, Let, Stage
from smelt.nest.regions import Facts, covers, extent, interval, solved, touched, union
from smelt.symbolic import evaluate, loop_var

Q, P, R, J, V, W, N = map(loop_var, ("o", "p", "i", "j", "v", "w", "n"))
ZERO = Integer(0)


def load(*index: Expr) -> Let:
    return Let("x", torch.float32, "load", ("A", index))


def nest(var: sympy.Symbol, end: Expr | int, *stmts: object) -> For:
    return For(var, ZERO, sympy.sympify(end), Block(stmts))  # type: ignore[arg-type]


def values(box: object, **at: int) -> object:
    numbers = {loop_var(name): value for name, value in at.items()}
    return tuple(None if s is None else tuple(evaluate(e, numbers) for e in s) for s in box)  # type: ignore


@st.composite
def indices(draw: st.DrawFn) -> Expr:
    """An index of axes ``v`` and ``w``."""
    number = st.integers(-3, 5)
    expr = draw(number) * V + draw(number) * W + draw(st.integers(0, 20))
    kind = draw(st.sampled_from(["plain", "plain", "quotient", "rest", "both"]))
    by = draw(st.integers(2, 5))
    if kind == "quotient":
        return FloorDiv(expr, by) + draw(number) * V
    if kind == "rest":
        return Mod(expr, by)
    return FloorDiv(expr, by) * draw(number) + Mod(V, by) if kind == "both" else expr


@settings(max_examples=150, deadline=None)
@given(
    st.lists(indices(), min_size=1, max_size=2),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 12),
)
def test_a_box_holds_every_element(index: list[Expr], a: int, b: int, c: int, limit: int) -> None:
    """Loops o (outside), i and j (inside); v = o*a + i, kept under a limit; w = j."""
    stage = Stage(
        "S",
        (Axis(V, Integer(limit), Q * a + R), Axis(W, Integer(c), J)),
        Block((load(*index),)),
        where=(sympy.Lt(Q * a + R, limit),),
    )
    piece = nest(R, a, nest(J, c, stage))
    box = touched(piece, "A", Facts({Q: Integer(b)}))
    assert box is not None
    for o in range(b):
        spans = values(box, o=o)
        for i, j in product(range(a), range(c)):
            if o * a + i < limit:
                at = [evaluate(expr, {V: o * a + i, W: j}) for expr in index]
                assert all(s is None or s[0] <= x <= s[1] for s, x in zip(spans, at))  # type: ignore


@settings(max_examples=150, deadline=None)
@given(indices(), st.integers(1, 6), st.integers(1, 6), st.integers(-20, 40), st.integers(0, 9))
def test_solutions_hold_every_point_that_meets_the_span(
    expr: Expr, a: int, b: int, low: int, more: int
) -> None:
    limits = {V: (ZERO, Integer(a - 1)), W: (ZERO, Integer(b - 1))}
    found = solved(expr, expr, (Integer(low), Integer(low + more)), limits, Facts())
    for v, w in product(range(a), range(b)):
        if low <= evaluate(expr, {V: v, W: w}) <= low + more:
            for var, value in ((V, v), (W, w)):
                if var in found:
                    assert int(found[var][0]) <= value <= int(found[var][1])


def test_intervals_are_exact_where_it_counts() -> None:
    seven = {J: (ZERO, Integer(7))}
    facts = Facts({R: Integer(4), J: Integer(8)})
    assert interval(FloorDiv(8 * R + J, 8), seven, facts) == (R, R)
    assert interval(Mod(8 * R + J, 8), seven, facts) == (ZERO, Integer(7))
    assert interval(Mod(J, 16), seven, facts) == (ZERO, Integer(7))
    assert interval(R - J, seven, facts) == (R - 7, R)
    assert interval(N * J, seven, facts) == (ZERO, 7 * N)
    assert interval(J * (R - 2), seven, facts) is None


def test_the_range_of_an_axis_limits_what_is_touched() -> None:
    """Uneven splits touch no more than there is."""
    stage = Stage("S", (Axis(V, Integer(46), 8 * Q + R),), Block((load(V + 2),)), where=(8 * Q + R < 46,))
    assert touched(nest(Q, 6, nest(R, 8, stage)), "A", Facts()) == ((Integer(2), Integer(47)),)
    assert touched(nest(R, 8, stage), "A", Facts({Q: Integer(6)})) == ((8 * Q + 2, 8 * Q + 9),)


def test_axes_that_belong_together_stay_together() -> None:
    """v = i // 8 and w = i % 8: the element 8*v + w is i."""
    axes = (Axis(V, Integer(4), FloorDiv(R, 8)), Axis(W, Integer(8), Mod(R, 8)))
    stage = Stage("S", axes, Block((load(8 * V + W),)))
    assert touched(stage, "A", Facts({R: Integer(32)})) == ((R, R),)


def test_what_is_indirect_may_be_anywhere_in_its_size() -> None:
    at = loop_var("at")
    position = Let("p", torch.int64, "indirect_index", ("y", Integer(7), True, True), at)
    assert touched(Block((position, load(at))), "A", Facts()) == ((ZERO, Integer(6)),)


def test_boxes_join_and_cover() -> None:
    facts = Facts({R: Integer(10)})
    one, other = ((R, R + 1),), ((R + 1, R + 4),)
    assert union(one, other, facts) == ((R, R + 4),)
    assert covers(union(one, other, facts), other, facts)
    assert not covers(one, other, facts)
    assert covers(((R, R + 4),), ((R, R + 9),), facts, shape=(R + 5,))
    assert not covers(((R, R + 4),), (None,), facts)


def test_the_size_of_an_interval_is_the_largest_over_all_turns() -> None:
    """720 channels in groups of 16, of which an iteration needs 360: 22 groups and a half are 23."""
    facts = Facts({Q: Integer(2)})
    span = interval(FloorDiv(360 * Q + R, 16), {R: (ZERO, Integer(359))}, facts)
    assert span is not None and extent(span, facts) == 23


def test_reductions_read_all_of_what_they_reduce() -> None:
    axes = (Axis(V, N, Q), Axis(W, N, J, AxisKind.REDUCE))
    piece = nest(J, N, Stage("S", axes, Block((load(V, W),))))
    assert touched(piece, "A", Facts({Q: N}), shape=(N, N)) == ((Q, Q), (ZERO, N - 1))
