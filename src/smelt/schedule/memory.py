"""Where intermediate buffers live: one arena, a place for each, places shared by buffers that never live
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import Max

from smelt.symbolic import FloorDiv, same, size_hint

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
    """Give every buffer a place so that buffers that live at the same time do not overlap.

    Buffers of known size are placed largest first, each at the lowest offset that is free for its whole life.
    Buffers of symbolic size follow behind them, largest first at the symbols' ``hints``: each in the first
    slot that is free for its whole life; a slot is as large as the largest of those in it.

    >>> n = sympy.Integer
    >>> lives = [Lifetime("a", n(64), 0, 1), Lifetime("b", n(64), 1, 2), Lifetime("c", n(64), 2, 3)]
    >>> plan = plan_arena(lives, {})
    >>> plan.offsets["a"], plan.offsets["b"], plan.offsets["c"], plan.size
    (0, 64, 0, 128)
    """
    fixed = [life for life in lifetimes if life.size.is_Integer]
    symbolic = [life for life in lifetimes if not life.size.is_Integer]
    placed: list[tuple[int, int, Lifetime]] = []
    offsets: dict[str, Expr] = {}
    top = 0
    for life in sorted(fixed, key=lambda life: (-int(life.size), life.first)):
        size = -(-int(life.size) // ALIGNMENT) * ALIGNMENT
        offset = _lowest(life, size, placed)
        placed.append((offset, size, life))
        offsets[life.name] = sympy.Integer(offset)
        top = max(top, offset + size)
    slots: list[list[Lifetime]] = []
    for life in sorted(symbolic, key=lambda life: (-size_hint(life.size, hints), life.first)):
        free = (slot for slot in slots if not any(_overlap(life, member) for member in slot))
        slot = next(free, None)
        if slot is None:
            slots.append([life])
        else:
            slot.append(life)
    end: Expr = sympy.Integer(top)
    for slot in slots:
        offsets.update((life.name, end) for life in slot)
        end = end + aligned(_largest([life.size for life in slot]))
    return Arena(offsets, end)


def _largest(sizes: Iterable[Expr]) -> Expr:
    """The largest of sizes, those that are equal taken once."""
    different: list[Expr] = []
    for size in sizes:
        if not any(same(size, other) for other in different):
            different.append(size)
    return different[0] if len(different) == 1 else Max(*different)


def aligned(size: Expr) -> Expr:
    """``size`` rounded up to the alignment, symbolically."""
    return FloorDiv(size + (ALIGNMENT - 1), sympy.Integer(ALIGNMENT)) * ALIGNMENT


def _overlap(left: Lifetime, right: Lifetime) -> bool:
    return left.first <= right.last and right.first <= left.last


def _lowest(life: Lifetime, size: int, placed: list[tuple[int, int, Lifetime]]) -> int:
    offset = 0
    for start, length, other in sorted(placed, key=lambda place: place[0]):
        if _overlap(life, other) and start < offset + size and offset < start + length:
            offset = start + length
    return offset
