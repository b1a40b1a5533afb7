"""Places in the arena: nothing that lives at the same time overlaps, whatever the sizes are."""

from __future__ import annotations

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv

from smelt.schedule.memory.arena import Lifetime, plan_arena

S, T = sympy.symbols("s t", integer=True, positive=True)
SIZES = [
    4 * S,
    8 * S,
    64 * S * T,
    4 * S**2,
    12 * FloorDiv(S, 2) ** 2,
    4 * T,
    sympy.Integer(100),
    sympy.Integer(8),
]

lives = st.lists(st.tuples(st.sampled_from(SIZES), st.integers(0, 12), st.integers(0, 6)), max_size=14)


@settings(max_examples=60, deadline=None)
@given(lives, st.integers(1, 90), st.integers(1, 90))
def test_places_of_symbolic_sizes(drawn: list[tuple[sympy.Expr, int, int]], s: int, t: int) -> None:
    buffers = [
        Lifetime(f"b{k}", sympy.sympify(size), first, first + length)
        for k, (size, first, length) in enumerate(drawn)
    ]
    arena = plan_arena(buffers, {S: 10, T: 3})
    values = {S: s, T: t}
    places = [(b, int(arena.offsets[b.name].subs(values)), int(b.size.subs(values))) for b in buffers]
    end = int(arena.size.subs(values))
    for life, begin, size in places:
        assert begin % 64 == 0 and begin + size <= end
        for other, start, length in places:
            together = life.first <= other.last and other.first <= life.last
            if life is not other and together:
                assert begin + size <= start or start + length <= begin


def test_different_sizes_share_a_place() -> None:
    """One chain of buffers needs two places, however their sizes differ."""
    chain = [Lifetime(f"b{k}", size, k, k + 1) for k, size in enumerate((8 * S, 64 * S * T, 4 * S**2, 4 * T))]
    offsets = plan_arena(chain, {S: 10, T: 3}).offsets
    assert len(set(offsets.values())) == 2


def test_small_ones_lie_side_by_side_where_a_large_one_was() -> None:
    """Whatever the size of the large one is known to be."""
    for large in (64 * S, sympy.Integer(640)):
        small = [Lifetime(f"b{k}", 16 * S, first, last) for k, (first, last) in enumerate([(2, 4), (3, 5)])]
        arena = plan_arena([Lifetime("large", large, 0, 1), *small], {S: 10})
        assert int(arena.size.subs({S: 10})) == 640
        assert int(arena.size.subs({S: 100})) == max(3200, int(large.subs({S: 100})))
