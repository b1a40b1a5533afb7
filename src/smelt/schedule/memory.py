"""Where intermediate buffers live: one arena, a place for each, places shared by buffers that never live
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy
from sympy import Expr

from smelt.symbolic import FloorDiv, same

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


def plan_arena(lifetimes: list[Lifetime]) -> Arena:
    """Give every buffer a place so that buffers that live at the same time do not overlap.

    Buffers of known size are placed largest first, each at the lowest offset that is free for its whole life.
    Buffers of symbolic size follow behind them; there a place is shared only by buffers of provably equal
    size.

    >>> n = sympy.Integer
    >>> lives = [Lifetime("a", n(64), 0, 1), Lifetime("b", n(64), 1, 2), Lifetime("c", n(64), 2, 3)]
    >>> plan = plan_arena(lives)
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
    slots: list[tuple[Expr, Expr, list[Lifetime]]] = []
    end: Expr = sympy.Integer(top)
    for life in sorted(symbolic, key=lambda life: life.first):
        for offset_expr, size_expr, members in slots:
            if same(size_expr, life.size) and not any(_overlap(life, member) for member in members):
                members.append(life)
                offsets[life.name] = offset_expr
                break
        else:
            slots.append((end, life.size, [life]))
            offsets[life.name] = end
            end = end + aligned(life.size)
    return Arena(offsets, end)


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
