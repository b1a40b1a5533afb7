"""Gathers, scatters and sorts in TOSA."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from smelt.errors import Unsupported
from smelt.mlir.arrays.dialect import Array
from smelt.mlir.tosa.operations import Operations
from smelt.symbolic import numel

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)

_MOST_COMPARED = 1 << 22
_MOST_SORTED = 1 << 24


def take(tosa: Operations, x: Array, positions: Array) -> Array:
    """``tosa.gather`` of rows: ``out[*w, *rest] = x[positions[*w], *rest]``."""
    shape = (*positions.shape, *x.shape[1:])
    if any(size == 0 for size in shape):
        return tosa.empty(x.dtype, shape)
    if x.number is not None:
        return tosa.full(x.number, x.dtype, shape)
    count, row = numel(positions.shape), numel(x.shape[1:])
    rows = tosa.solid(tosa.reshape(x, (ONE, x.shape[0], row)))
    return tosa.reshape(_gathered(tosa, rows, tosa.reshape(positions, (ONE, count))), shape)


def _gathered(tosa: Operations, rows: Array, positions: Array) -> Array:
    """``out[n, w, c] = rows[n, positions[n, w], c]``."""
    rows, places = tosa.solid(rows), tosa.solid(tosa.convert(positions, torch.int32))
    shape = (rows.shape[0], positions.shape[1], rows.shape[2])
    return tosa.write("gather", [rows.value, places.value], rows.dtype, shape)


def put(tosa: Operations, base: Array, positions: Array, values: Array, mode: str | None) -> Array:
    """``base[positions[w]] (mode)= values[w]``, one position after the other.

    TOSA's scatter forbids repeated positions: few elements are compared with every place, and a loop stores
    more.
    """
    places, count = base.shape[0], values.shape[0]
    if places == 0 or count == 0:
        return base
    work = places * count
    if work.is_Integer and work <= _MOST_COMPARED:
        if mode is None:
            return _last(tosa, base, positions, values)
        if not (mode in ("add", "mul") and base.dtype.is_floating_point and count > 64):
            return _joined(tosa, base, positions, values, mode)
    return _one_by_one(tosa, base, positions, values, mode)


def _hits(tosa: Operations, places: sympy.Expr, positions: Array) -> Array:
    """``[place, w]``: whether value w is stored at the place."""
    both = (places, positions.shape[0])
    here = tosa.broadcast(tosa.convert(tosa.iota(places, torch.int64), positions.dtype), both, [0])
    return tosa.apply("eq", here, tosa.broadcast(positions, both, [1]))


def _last(tosa: Operations, base: Array, positions: Array, values: Array) -> Array:
    """The last value stored at each place, by a gather."""
    places, count = base.shape[0], values.shape[0]
    hits = _hits(tosa, places, positions)
    turn = tosa.broadcast(tosa.iota(count, torch.int64), hits.shape, [1])
    none = tosa.full(-1, torch.int64, hits.shape)
    last = tosa.reduce("max", tosa.apply("where", hits, turn, none), [1])
    zero = tosa.full(0, torch.int64, (places,))
    chosen = tosa.take(values, tosa.apply("maximum", last, zero))
    return tosa.apply("where", tosa.apply("ge", last, zero), chosen, base)


_KINDS = {"add": ("sum", 0), "mul": ("prod", 1)}


def _joined(tosa: Operations, base: Array, positions: Array, values: Array, mode: str) -> Array:
    """All values for a place combined with each other, then with the element there."""
    hits = _hits(tosa, base.shape[0], positions)
    spread = tosa.broadcast(values, hits.shape, [1])
    if mode in _KINDS:
        kind, neutral = _KINDS[mode]
        other = tosa.full(neutral, values.dtype, hits.shape)
        return tosa.apply(mode, base, tosa.reduce(kind, tosa.apply("where", hits, spread, other), [1]))
    there = tosa.broadcast(base, hits.shape, [0])
    best = tosa.reduce("max" if mode == "maximum" else "min", tosa.apply("where", hits, spread, there), [1])
    return tosa.apply(mode, base, best)


def _one_by_one(tosa: Operations, base: Array, positions: Array, values: Array, mode: str | None) -> Array:
    count = values.shape[0]
    rows = tosa.solid(tosa.reshape(base, (ONE, base.shape[0], ONE)))
    places = tosa.solid(tosa.convert(positions, torch.int32))
    items = tosa.solid(values)

    def test(state: Sequence[Array]) -> Array:
        return tosa.apply("lt", state[0], tosa.size(count))

    def step(state: Sequence[Array]) -> list[Array]:
        turn, filled = state
        place = tosa.reshape(tosa.take(places, turn), (ONE, ONE))
        item = tosa.reshape(tosa.take(items, turn), (ONE, ONE, ONE))
        if mode is not None:
            item = tosa.apply(mode, _gathered(tosa, filled, place), item)
        operands = [filled.value, tosa.solid(place).value, tosa.solid(item).value]
        after = tosa.write("scatter", operands, filled.dtype, filled.shape)
        return [tosa.apply("add", turn, tosa.full(1, torch.int64, ())), after]

    start = tosa.full(0, torch.int64, ())
    return tosa.reshape(tosa.loop([start, rows], test, step)[1], base.shape)


def sort(tosa: Operations, x: Array, descending: bool) -> tuple[Array, Array]:
    """Sort by counting the preceding elements of every element; then each place selects its element.

    Raises:
        Unsupported: a row is so long that the pairs of its elements do not fit into memory.
    """
    if x.rank == 0:
        return x, tosa.full(0, torch.int64, ())
    size, outer = x.shape[-1], x.shape[:-1]
    count = numel(outer)
    if any(each == 0 for each in x.shape):
        return x, tosa.empty(torch.int64, x.shape)
    work = count * size * size
    if work.is_Integer and work > _MOST_SORTED:
        raise Unsupported(f"TOSA has no sort, and rows of {size} are too long to compare all their pairs")
    rows = tosa.solid(tosa.reshape(x, (count, size)))
    pairs = (count, size, size)
    one, other = tosa.broadcast(rows, pairs, [0, 1]), tosa.broadcast(rows, pairs, [0, 2])
    before, equal = tosa.apply("gt" if descending else "lt", other, one), tosa.apply("eq", other, one)
    if x.dtype.is_floating_point:
        nan, other_nan = tosa.apply("isnan", one), tosa.apply("isnan", other)
        first, second = (other_nan, nan) if descending else (nan, other_nan)
        only = tosa.apply("logical_and", first, tosa.apply("logical_not", second))
        before = tosa.apply("logical_or", before, only)
        equal = tosa.apply("logical_or", equal, tosa.apply("logical_and", nan, other_nan))
    places = tosa.iota(size, torch.int64)
    here, there = tosa.broadcast(places, pairs, [1]), tosa.broadcast(places, pairs, [2])
    earlier = tosa.apply("logical_and", equal, tosa.apply("lt", there, here))
    before = tosa.apply("logical_or", before, earlier)
    rank = tosa.reduce("sum", tosa.convert(before, torch.int32), [2])
    # [row, place, element]: whether the element belongs to this place
    mine = tosa.apply(
        "eq",
        tosa.broadcast(rank, pairs, [0, 2]),
        tosa.convert(tosa.broadcast(places, pairs, [1]), torch.int32),
    )
    chosen = tosa.apply("where", mine, there, tosa.full(0, torch.int64, pairs))
    positions = tosa.reduce("sum", chosen, [2])
    values = _gathered(tosa, tosa.reshape(rows, (count, size, ONE)), positions)
    return tosa.reshape(values, x.shape), tosa.reshape(positions, x.shape)
