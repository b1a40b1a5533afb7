"""Every rule of the index algebra, proved by running both sides over small ranges, all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from smelt.symbolic import (
    contiguous_strides,
    evaluate,
    flatten,
    loop_var,
    refine,
    reshape_index,
    same,
    simplify,
    unflatten,
)
from smelt.symbolic.bounds import bounds, is_nonnegative, less_than
from smelt.symbolic.expr import size_hint, usual_form
from smelt.symbolic.index import divide, floor_div, match_groups, modulo, split_multiple

A, B, C = (loop_var(name) for name in "abc")
S0 = Symbol("s0", integer=True, positive=True)
S1 = Symbol("s1", integer=True, positive=True)


def n(*numbers: int) -> tuple[Expr, ...]:
    return tuple(sympy.Integer(number) for number in numbers)


def every(extents: Mapping[Symbol, int]) -> Iterator[dict[Symbol, int]]:
    """Every assignment of loop variables."""
    for numbers in itertools.product(*(range(extent) for extent in extents.values())):
        yield dict(zip(extents, numbers))


def ravel(index: Sequence[int], shape: Sequence[int]) -> int:
    flat = 0
    for position, size in zip(index, shape, strict=True):
        assert 0 <= position < size
        flat = flat * size + position
    return flat


def shapes(total: int, rank: int) -> Iterator[tuple[int, ...]]:
    """Every shape of this rank with this many elements."""
    if rank == 0:
        if total == 1:
            yield ()
        return
    for size in range(1, total + 1):
        if total % size == 0:
            for rest in shapes(total // size, rank - 1):
                yield (size, *rest)


# -- division over one and two variables -------------------------------------------------------------------


@pytest.mark.parametrize("divisor", [1, 2, 3, 4, 6, 12])
def test_floor_div_and_modulo_of_every_small_affine_index(divisor: int) -> None:
    for a, b, c in itertools.product((-4, -1, 0, 1, 2, 3, 4, 6), (-3, 0, 1, 2, 6), (-5, 0, 1, 7)):
        expr = a * A + b * B + c
        for extents in ({A: 1, B: 3}, {A: 3, B: 2}, {A: 4, B: 6}):
            known = {symbol: sympy.Integer(extent) for symbol, extent in extents.items()}
            quotient = floor_div(expr, sympy.Integer(divisor), known)
            rest = modulo(expr, sympy.Integer(divisor), known)
            for values in every(extents):
                number = evaluate(expr, values)
                assert evaluate(quotient, values) == number // divisor, (expr, divisor, extents, quotient)
                assert evaluate(rest, values) == number % divisor, (expr, divisor, extents, rest)


@pytest.mark.parametrize("divisor", [2, 3, 4, 12])
def test_what_is_left_never_divides_a_negative_number(divisor: int) -> None:
    """C rounds to zero: a kernel may divide only what is not negative."""
    for a, b, c in itertools.product((-4, -1, 1, 3), (-3, 1, 6), (-5, 0, 7)):
        expr = a * A + b * B + c
        extents = {A: 3, B: 4}
        known = {symbol: sympy.Integer(extent) for symbol, extent in extents.items()}
        for result in (floor_div(expr, sympy.Integer(divisor), known), modulo(expr, n(divisor)[0], known)):
            for node in result.atoms(FloorDiv, Mod):
                assert all(evaluate(node.args[0], values) >= 0 for values in every(extents)), (expr, result)


@pytest.mark.parametrize(
    ("expr", "divisor", "extents", "quotient", "rest"),
    [
        (8 * A + B, 8, {B: 8}, A, B),
        (8 * A + B, 8, {B: 9}, A + FloorDiv(B, 8), Mod(B, 8)),
        (6 * A + B, 12, {A: 9, B: 6}, FloorDiv(A, 2), 6 * Mod(A, 2) + B),
        (A + 4, 4, {A: 4}, A * 0 + 1, A),
        (A - 1, 4, {A: 9}, FloorDiv(A + 3, 4) - 1, Mod(A + 3, 4)),
        (-A, 4, {A: 4}, FloorDiv(4 - A, 4, evaluate=False) - 1, Mod(4 - A, 4, evaluate=False)),
        (A, 4, {A: 4}, A * 0, A),
        (FloorDiv(A, 3), 2, {A: 100}, FloorDiv(A, 6), Mod(FloorDiv(A, 3), 2)),
        (FloorDiv(A, 3), 2, {A: 6}, A * 0, FloorDiv(A, 3)),
        (4 * A + Mod(B, 4), 4, {A: 9, B: 99}, A, Mod(B, 4)),
        (sympy.Integer(-7), 4, {}, sympy.Integer(-2), sympy.Integer(1)),
    ],
)
def test_rules_give_the_form_that_their_docstrings_show(
    expr: Expr, divisor: int, extents: dict[Symbol, int], quotient: Expr, rest: Expr
) -> None:
    known = {symbol: sympy.Integer(extent) for symbol, extent in extents.items()}
    assert floor_div(expr, sympy.Integer(divisor), known) == quotient
    assert modulo(expr, sympy.Integer(divisor), known) == rest


def test_a_hint_is_found_where_a_divisor_has_none() -> None:
    """A number unknown while compiling may leave a divisor 0, which the program's own never is."""
    rate = FloorDiv(A, 16000)
    assert size_hint(FloorDiv(S0, rate), {S0: 96, A: 48000}) == 32
    assert size_hint(FloorDiv(S0, rate), {S0: 96}) == 64
    assert size_hint(FloorDiv(S0 + rate - 1, 128 * rate) + 1, {}, default=5) == 5


def test_symbolic_divisors() -> None:
    extents = {A: S1, B: S0, C: sympy.Integer(128)}
    assert floor_div(S0 * A + B, S0, extents) == A
    assert modulo(S0 * A + B, S0, extents) == B
    assert modulo(sympy.Integer(-1), S0, extents) == S0 - 1
    assert floor_div(128 * S0 * A + 128 * B + C, 128 * S0, extents) == A
    assert modulo(128 * S0 * A + 128 * B + C, 128 * S0, extents) == 128 * B + C
    lines = FloorDiv(S0 - 1, 4) + 1
    tiles = {A: FloorDiv(lines, 8), B: lines}
    assert floor_div(sympy.expand(lines * B) + 8 * A + 7, lines, tiles) == B
    assert modulo(sympy.expand(lines * B) + 8 * A + 7, lines, tiles) == 8 * A + 7
    assert not less_than(8 * A + 8, lines, tiles)
    left = floor_div(S0 * A + C, S0, extents)
    right = modulo(S0 * A + C, S0, extents)
    for s0 in (1, 2, 5):
        for values in every({A: 3, C: 12}):
            numbers = {**values, S0: s0}
            assert evaluate(left, numbers) == (s0 * values[A] + values[C]) // s0
            assert evaluate(right, numbers) == (s0 * values[A] + values[C]) % s0


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (4 * FloorDiv(A, 4) + Mod(A, 4), A),
        (24 * FloorDiv(A, 12) + 8 * Mod(FloorDiv(A, 4), 3) + 2 * Mod(A, 4) + B, 2 * A + B),
        (S0 * FloorDiv(A, S0) + Mod(A, S0), A),
        (S0 * S0 * FloorDiv(A, S0 * S0) + S0 * Mod(FloorDiv(A, S0), S0) + Mod(A, S0), A),
        (3 * FloorDiv(A, 4) + Mod(A, 4), 3 * FloorDiv(A, 4) + Mod(A, 4)),
        (4 * FloorDiv(B, 4) + Mod(A, 4), 4 * FloorDiv(B, 4) + Mod(A, 4)),
    ],
)
def test_quotient_and_remainder_find_together_again(parts: Expr, whole: Expr) -> None:
    assert simplify(parts, {A: 1000 * S0, B: sympy.Integer(1000)}) == whole


def test_split_multiple_loses_nothing() -> None:
    for a, b, c in itertools.product((-4, 0, 3, 8), (-2, 1, 4), (-9, 0, 5)):
        for divisor in (sympy.Integer(1), sympy.Integer(4), S0, 4 * S0, S0 + 1, 4 * S0 + 1):
            expr = a * A + b * B * S0 + c + a * B
            quotient, rest = split_multiple(expr, divisor)
            assert same(expr, quotient * divisor + rest)


def test_simplified_sizes_have_the_form_that_sizes_from_pytorch_have() -> None:
    for size in (FloorDiv(S0 - 1, 4) + 1, FloorDiv(S0 + 3, 4), FloorDiv(S0 + 7, 4), FloorDiv(S0, 4)):
        simple = simplify(size, {})
        assert usual_form(size) == simple
        assert all(evaluate(simple, {S0: s0}) == evaluate(size, {S0: s0}) for s0 in range(1, 20))
    assert simplify(FloorDiv(S0 + 3, 4), {}) == FloorDiv(S0 - 1, 4) + 1


# -- bounds ------------------------------------------------------------------------------------------------


_LEAVES = st.one_of(st.sampled_from([A, B]), st.integers(-3, 6).map(sympy.Integer))


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    pair = st.tuples(inner, inner)
    divided = st.tuples(inner, st.integers(1, 6).map(sympy.Integer))
    return st.one_of(
        pair.map(lambda p: p[0] + p[1]),
        pair.map(lambda p: p[0] - p[1]),
        pair.map(lambda p: p[0] * p[1]),
        pair.map(lambda p: Max(*p)),
        pair.map(lambda p: Min(*p)),
        divided.map(lambda p: FloorDiv(*p)),
        divided.map(lambda p: p[0] % p[1] if p[0].is_Integer else Mod(*p, evaluate=False)),
    )


EXPRESSIONS = st.recursive(_LEAVES, _grow, max_leaves=7)
EXTENTS = st.fixed_dictionaries({A: st.integers(1, 7), B: st.integers(1, 5)})


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, EXTENTS)
def test_simplify_changes_no_value(expr: Expr, extents: dict[Symbol, int]) -> None:
    known = {symbol: sympy.Integer(extent) for symbol, extent in extents.items()}
    if not _divides_only_what_is_not_negative(expr, extents):
        return  # such a Mod has no meaning to SymPy
    simple = simplify(expr, known)
    for values in every(extents):
        assert evaluate(simple, values) == evaluate(expr, values), (expr, simple, extents)


def _divides_only_what_is_not_negative(expr: Expr, extents: Mapping[Symbol, int]) -> bool:
    parts = [node.args[0] for node in expr.atoms(Mod)]
    return all(evaluate(part, values) >= 0 for part in parts for values in every(extents))


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, EXTENTS, st.integers(1, 9))
def test_bounds_hold(expr: Expr, extents: dict[Symbol, int], limit: int) -> None:
    known = {symbol: sympy.Integer(extent) for symbol, extent in extents.items()}
    low, high = bounds(expr, known)
    numbers = [evaluate(expr, values) for values in every(extents)]
    assert low is None or low <= min(numbers)
    assert high is None or high >= max(numbers)
    if is_nonnegative(expr, known):
        assert min(numbers) >= 0
    if less_than(expr, sympy.Integer(limit), known):
        assert min(numbers) >= 0
        assert max(numbers) < limit


def test_bounds_are_tight_for_affine_indices_and_symbolic_sizes() -> None:
    assert bounds(4 * A - B + 1, {A: n(3)[0], B: n(4)[0]}) == (-2, 9)
    assert bounds(S0 - 1 - A, {A: S0}) == (0, S0 - 1)
    assert less_than(128 * A + B, 128 * S0, {A: S0, B: n(128)[0]})
    assert not less_than(128 * A + B, 128 * S0, {A: S0, B: n(129)[0]})
    assert less_than(S0 - 1 - A, S0, {A: S0})
    assert not less_than(S1, S0, {})


# -- shapes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [1, 2, 4, 6, 12])
def test_flatten_and_unflatten_are_inverse_for_every_shape(total: int) -> None:
    flat = Symbol("f", integer=True, nonnegative=True)
    for rank in (0, 1, 2, 3):
        for shape in shapes(total, rank):
            sizes = n(*shape)
            index = unflatten(flat, sizes, {flat: sympy.Integer(total)})
            back = flatten(index, contiguous_strides(sizes))
            for number in range(total):
                got = [evaluate(coordinate, {flat: number}) for coordinate in index]
                assert ravel(got, shape) == number
                assert evaluate(back, {flat: number}) == number


@pytest.mark.parametrize("total", [1, 4, 6, 12])
def test_reshape_index_of_every_pair_of_shapes(total: int) -> None:
    every_shape = [shape for rank in (0, 1, 2, 3) for shape in shapes(total, rank)]
    for old, new in itertools.product(every_shape, every_shape):
        variables = [A, B, C][: len(new)]
        found = reshape_index(n(*old), n(*new), variables)
        assert len(found) == len(old)
        for values in every(dict(zip(variables, new))):
            got = [evaluate(expr, values) for expr in found]
            assert ravel(got, old) == ravel([values[v] for v in variables], new), (old, new, found)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_reshape_index_of_larger_shapes(data: Any) -> None:
    old = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    total = math.prod(old)
    candidates = list(itertools.islice((s for r in (1, 2, 3, 4) for s in shapes(total, r)), 400))
    new = data.draw(st.sampled_from(candidates))
    variables = [loop_var(f"i{d}") for d in range(len(new))]
    found = reshape_index(n(*old), n(*new), variables)
    for values in itertools.islice(every(dict(zip(variables, new))), 150):
        got = [evaluate(expr, values) for expr in found]
        assert ravel(got, old) == ravel([values[v] for v in variables], new), (old, new, found)


_SYMBOLIC = [
    ((S0, n(12)[0]), (S0, *n(3, 4))),
    ((S0 * 128, n(6)[0]), (S0, *n(128, 6))),
    ((S0, *n(128, 6)), (S0 * 128, n(6)[0])),
    ((S0, S1, *n(4)), (S0 * S1, *n(2, 2))),
    ((S0 * S1, *n(4)), (S0, S1, *n(4))),
    ((S0, n(1)[0], S1), (S0, S1)),
    ((n(1)[0], S0), (S0, *n(1, 1))),
    ((2 * S0, n(3)[0]), (*n(2), S0, *n(3))),
    ((2 * S0,), (S0, *n(2))),
    ((S0, *n(6)), (*n(2), S0, *n(3))),
    ((S0, S1), (S1, S0)),
    ((S0 + 1, *n(4)), (S0 + 1, *n(2, 2))),
    (((S0 + 1) * 4,), (S0 + 1, *n(4))),
]


@pytest.mark.parametrize(("old", "new"), _SYMBOLIC)
def test_reshape_index_with_symbolic_sizes(old: tuple[Expr, ...], new: tuple[Expr, ...]) -> None:
    variables = [A, B, C][: len(new)]
    found = reshape_index(old, new, variables)
    for s0, s1 in itertools.product((1, 2, 3), (1, 3)):
        sizes = {S0: s0, S1: s1}
        old_shape = [evaluate(size, sizes) for size in old]
        new_shape = [evaluate(size, sizes) for size in new]
        assert math.prod(old_shape) == math.prod(new_shape), "the case is wrong"
        for values in itertools.islice(every(dict(zip(variables, new_shape))), 400):
            got = [evaluate(expr, {**values, **sizes}) for expr in found]
            assert ravel(got, old_shape) == ravel([values[v] for v in variables], new_shape), found


def test_reshape_index_merges_symbolic_dimensions_without_division() -> None:
    assert reshape_index((S0, *n(12)), (S0, *n(3, 4)), [A, B, C]) == [A, 4 * B + C]
    assert reshape_index((S0 * 128, *n(6)), (S0, *n(128, 6)), [A, B, C]) == [128 * A + B, C]
    assert reshape_index((S0 * S1, *n(4)), (S0, S1, *n(4)), [A, B, C]) == [S1 * A + B, C]


def test_reshape_index_of_an_index_that_is_not_a_variable() -> None:
    found = reshape_index(n(4, 6), n(2, 2, 6), [FloorDiv(A, 3), B, 5 - C])
    for values in every({A: 6, B: 2, C: 6}):
        got = [evaluate(expr, values) for expr in found]
        assert ravel(got, (4, 6)) == ravel([values[A] // 3, values[B], 5 - values[C]], (2, 2, 6))


def test_reshape_index_trusts_that_an_index_is_in_range() -> None:
    at = Symbol("at", integer=True)  # an indirect index: nothing is known but that it is checked
    assert reshape_index(n(4, 6), n(2, 2, 6), [A, B, at]) == [2 * A + B, at]
    found = reshape_index(n(6, 2), n(3, 4), [A, 2 * at + B])
    for values in every({A: 3, at: 2, B: 2}):
        got = [evaluate(expr, values) for expr in found]
        assert ravel(got, (6, 2)) == 4 * values[A] + 2 * values[at] + values[B]


@pytest.mark.parametrize(
    ("old", "new"),
    [((0,), (0, 3)), ((2, 0), (0, 3)), ((0, 4), (2, 0, 2)), ((3, 0, 2), (0,)), ((0, 1), (1, 0))],
)
def test_reshape_of_nothing_raises_nothing(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    assert len(reshape_index(n(*old), n(*new), [A, B, C][: len(new)])) == len(old)
    assert unflatten(A, n(*old)) == [0] * len(old)


def test_match_groups_pairs_equal_products_in_the_shortest_runs() -> None:
    every_shape = [shape for rank in (1, 2, 3) for shape in shapes(12, rank)]
    for old, new in itertools.product(every_shape, every_shape):
        groups = match_groups(n(*old), n(*new))
        assert [d for left, _ in groups for d in left] == list(range(len(old)))
        assert [d for _, right in groups for d in right] == list(range(len(new)))
        for left, right in groups:
            assert math.prod(old[d] for d in left) == math.prod(new[d] for d in right)
            for a, b in itertools.product(range(1, len(left)), range(1, len(right))):
                head = math.prod(old[d] for d in left[:a])
                assert head != math.prod(new[d] for d in right[:b]) or head == 1, "a shorter run was possible"


def test_match_groups_with_symbols() -> None:
    assert match_groups((S0, *n(128, 768)), (S0 * 128, *n(768))) == (((0, 1), (0,)), ((2,), (1,)))
    assert match_groups((S0 * 128, *n(768)), (S0, *n(128, 12, 64))) == (((0,), (0, 1)), ((1,), (2, 3)))
    assert match_groups((S0, S1), (S1, S0)) == (((0, 1), (0, 1)),)


def _merges(coarse: Sequence[int], fine: Sequence[int]) -> bool:
    """Whether ``coarse`` is got from ``fine`` by multiplying neighbours."""
    rest = list(fine)
    for size in coarse:
        product = 1
        while product < size and rest:
            product *= rest.pop(0)
        if product != size:
            return False
    return not rest


@pytest.mark.parametrize("total", [1, 6, 8, 12, 30])
def test_refine_gives_the_coarsest_shape_of_which_both_are_merges(total: int) -> None:
    every_shape = [shape for rank in (1, 2, 3) for shape in shapes(total, rank)]
    fine_shapes = [shape for rank in (0, 1, 2, 3, 4, 5) for shape in shapes(total, rank) if 1 not in shape]
    for left, right in itertools.product(every_shape[:40], every_shape[:40]):
        a, b = ([size for size in shape if size != 1] for shape in (left, right))
        common = [shape for shape in fine_shapes if _merges(a, shape) and _merges(b, shape)]
        found = refine(n(*left), n(*right))
        if found is None:
            assert not common, (left, right)
        else:
            assert tuple(found) in common
            assert len(found) == min(map(len, common))


def test_refine_with_symbols() -> None:
    assert refine((S0, *n(128, 768)), (S0 * 128, *n(12, 64))) == [S0, *n(128, 12, 64)]
    assert refine((S0 * 128,), (S0, *n(128))) == [S0, *n(128)]
    assert refine((S0,), (S1,)) is None
    assert refine((S0 + 1, *n(4)), ((S0 + 1) * 4,)) == [S0 + 1, *n(4)]


def test_divide_gives_whole_quotients_only() -> None:
    for a, b in itertools.product(range(13), range(1, 7)):
        found = divide(*n(a, b))
        assert found == (a // b if a % b == 0 else None)
    assert divide(S0 * 128, n(128)[0]) == S0
    assert divide(S0 * 128, S0 * 4) == 32
    assert divide(S0, n(2)[0]) is None
    assert divide(S0, S1) is None
    assert divide(*n(3, 0)) is None


def test_half_of_a_sum_is_not_a_whole_quotient() -> None:
    """The denominators inside of a sum were overlooked."""
    assert divide(S0 + 1, n(2)[0]) is None
    assert divide(2 * S0 + 2, n(2)[0]) == S0 + 1


def test_strides_of_an_empty_shape_are_atens() -> None:
    assert contiguous_strides(n(2, 0, 3)) == n(3, 3, 1)
    assert contiguous_strides((S0, *n(3))) == n(3, 1)
    assert contiguous_strides(()) == ()
