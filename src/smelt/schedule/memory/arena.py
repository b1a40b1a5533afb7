"""Memory planning of intermediate buffers: one arena, in which buffers that are never live together share
places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import Max

from smelt.records import dataclass
from smelt.schedule.grouping.items import ZERO
from smelt.symbolic import same, size_hint
from smelt.symbolic.affine import divided

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of ``size`` bytes that is written at step ``first`` and last used at step ``last`` (both
    included).
    """

    name: str
    size: Expr
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Arena:
    """Byte offsets by buffer, and the bytes needed in all."""

    offsets: Mapping[str, Expr]
    size: Expr


def plan_arena(lifetimes: list[Lifetime], hints: Mapping[Symbol, int]) -> Arena:
    """Gives every buffer a place so that buffers that are live at the same time do not overlap.

    Buffers of known size are placed largest first, each at the lowest offset that is free for its whole life.
    Buffers of symbolic size follow after them, largest first at the symbols' ``hints``, in slots: each in the
    first slot where it fits, at the bottom or stacked on buffers that are live at the same time. A slot has
    the size of its highest stack, for all sizes. Where that takes less at the ``hints``, buffers of known
    size go into slots as well.

    >>> n = sympy.Integer
    >>> lives = [Lifetime("a", n(64), 0, 1), Lifetime("b", n(64), 1, 2), Lifetime("c", n(64), 2, 3)]
    >>> plan = plan_arena(lives, {})
    >>> plan.offsets["a"], plan.offsets["b"], plan.offsets["c"], plan.size
    (0, 64, 0, 128)
    """
    fixed = _packed([life for life in lifetimes if life.size.is_Integer])
    symbolic = [life for life in lifetimes if not life.size.is_Integer]
    if not symbolic:
        return fixed
    split, mixed = _in_slots(symbolic, fixed, hints), _in_slots(lifetimes, Arena({}, ZERO), hints)
    return min(split, mixed, key=lambda arena: size_hint(arena.size, hints))


def _packed(lifetimes: list[Lifetime]) -> Arena:
    """Buffers of known size, each at the lowest offset that is free."""
    placed: list[tuple[int, int, Lifetime]] = []
    top = 0
    for life in sorted(lifetimes, key=lambda life: (-int(life.size), life.first)):
        size = -(-int(life.size) // ALIGNMENT) * ALIGNMENT
        offset = _lowest(life, size, placed)
        placed.append((offset, size, life))
        top = max(top, offset + size)
    return Arena({life.name: sympy.Integer(offset) for offset, _, life in placed}, sympy.Integer(top))


def _in_slots(lifetimes: list[Lifetime], below: Arena, hints: Mapping[Symbol, int]) -> Arena:
    """``below``, followed by slots for these buffers."""
    slots: list[list[_Place]] = []
    for life in sorted(lifetimes, key=lambda life: (-size_hint(life.size, hints), life.first)):
        found = ((slot, place) for slot in slots if (place := _in_slot(life, slot, hints)) is not None)
        slot, place = next(found, ([], _Place(life, None, hints)))
        if not slot:
            slots.append(slot)
        slot.append(place)
    offsets = dict(below.offsets)
    end: Expr = below.size
    for slot in slots:
        offsets.update((place.life.name, end + place.offset) for place in slot)
        under = {id(place.base) for place in slot}
        end = end + _largest([place for place in slot if id(place) not in under])
    return Arena(offsets, end)


class _Place:
    """The place of a buffer in its slot: at the bottom, or stacked on another one that is live at the same
    time.
    """

    def __init__(self, life: Lifetime, base: _Place | None, hints: Mapping[Symbol, int]) -> None:
        self.life, self.base = life, base
        self.pile: frozenset[Lifetime] = (base.pile if base else frozenset()) | {life}
        self.offset: Expr = base.end if base else ZERO
        self.end: Expr = self.offset + aligned(life.size)
        self.expected_end = size_hint(self.end, hints)


def _in_slot(life: Lifetime, slot: list[_Place], hints: Mapping[Symbol, int]) -> _Place | None:
    """A place for ``life`` that makes the slot no larger at the ``hints``, or None.

    The buffers that are live at the same time have to be one stack, and it goes on top: so they do not
    overlap, for all sizes.
    """
    together = [place for place in slot if _overlap(life, place.life)]
    base = max(together, key=lambda place: len(place.pile), default=None)
    if base is not None and not base.pile.issuperset(place.life for place in together):
        return None
    place = _Place(life, base, hints)
    return place if place.expected_end <= max(other.expected_end for other in slot) else None


def _largest(places: Iterable[_Place]) -> Expr:
    """The largest of the places' ends; equal ones are counted once."""
    different: list[_Place] = []
    for place in places:
        equal = (other for other in different if other.expected_end == place.expected_end)
        if not any(same(place.end, other.end) for other in equal):
            different.append(place)
    return Max(*(place.end for place in different))


def aligned(size: Expr) -> Expr:
    """``size`` rounded up to the alignment, symbolically."""
    return divided(size + (ALIGNMENT - 1), sympy.Integer(ALIGNMENT)) * ALIGNMENT


def _overlap(left: Lifetime, right: Lifetime) -> bool:
    return left.first <= right.last and right.first <= left.last


def _lowest(life: Lifetime, size: int, placed: list[tuple[int, int, Lifetime]]) -> int:
    offset = 0
    for start, length, other in sorted(placed, key=lambda place: place[0]):
        if _overlap(life, other) and start < offset + size and offset < start + length:
            offset = start + length
    return offset
