"""The recipe of attention's gradients on CPUs: a block of queries at a time, for all five products.

dS = P (dP - D), dP = dO V^T:  parallel for each head:
                                   for each block of queries:  S = Q K^T;  P, row by row;  dP;  dS, row by row
                                       dQ[block, :] = dS K;  dK += dS^T Q[block, :];  dV += P^T dO[block, :]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from smelt.nest.scopes import reads, writes
from smelt.schedule.loops import Target
from smelt.schedule.recipes.attention import rows_in_cache, same, size_of_block, steps_to, without_cheap
from smelt.schedule.recipes.tiles import (
    Product,
    holding,
    in_tiles,
    is_product,
    on_threads,
    panels_of,
    place_tiles,
    sized,
)

GRADIENTS = 2**15
"""Limit on the elements of each matrix of a block of queries and all keys."""


def attention_gradients(sch: Any, target: Target, block: Any) -> None:
    """Schedules the gradients of attention by queries, keys and values, and all that they are computed from.

    ``block``: ``dQ[…, i, d] = sum over j of dS[…, i, j] * K[…, j, d]``. Other sums over i of what leads to dS
    (dK, dV) are computed with it. All sizes are numbers.

    Raises:
        ScheduleError: SM1049, the block is no such product, or no product leads to dS.
    """
    first = Product.of(sch, block)
    steps = without_cheap(sch, steps_to(sch, block, block)[:-1], first.lhs)
    products = [each for each in steps if is_product(sch.get(each).stmt)]
    sums = sums_of(sch, steps, block)
    size = size_of_block(target, [Product.of(sch, each) for each in (*products, block)], GRADIENTS)

    # One loop over blocks of queries: rows of dQ, terms of the others.
    loops = []
    for each in in_order(sch, [block, *sums]):
        *around, i, j, k = sch.get_loops(each)
        if same(sch, each, block):
            loops.append(sch.split(i, factors=[None, size])[0])
        else:
            k_0, k_1 = sch.split(k, factors=[None, size])
            sch.reorder(k_0, i, j, k_1)
            loops.append(k_0)
    i_0 = sch.merge(*loops)
    for each in reversed(steps):
        sch.compute_at(each, i_0)
    on_threads(sch, sch.get_loops(block)[: len(around)], i_0, 1)
    for rows, result in rows_of(sch, steps, [block, *sums]):
        rows_in_cache(sch, rows, result)
    made = [(each, in_tiles(sch, each, target)) for each in (*products, block)]
    made += [(each, in_tiles(sch, each, target, over=i_0)) for each in sums]
    panels = [panels_of(sch, each, tiles, target.lanes) for each, tiles in made]
    rest = first.rows % size
    for loop, count in zip(sized(sch, i_0, first.rows, size), (size, rest)):
        for (_, tiles), (panel, step) in zip(made, panels):
            tile = holding(sch, loop, panel, tiles.product.result)
            place_tiles(sch, tile, tiles, panel, step, 0 if tiles.adds else count)


def sums_of(sch: Any, steps: Sequence[Any], block: Any) -> list[Any]:
    """The other blocks that read what the steps compute."""
    known = {sch.get(each).name_hint for each in (*steps, block)}
    found = {sch.get(reader).name_hint: reader for each in steps for reader in sch.get_consumers(each)}
    return [reader for name, reader in found.items() if name not in known]


def in_order(sch: Any, blocks: Sequence[Any]) -> list[Any]:
    """The blocks in the order of the program."""
    places = {sch.get(each).name_hint: n for n, each in enumerate(sch.get_child_blocks("root"))}
    return sorted(blocks, key=lambda each: places[sch.get(each).name_hint])


def rows_of(sch: Any, steps: Sequence[Any], readers: Sequence[Any]) -> Iterator[tuple[list[Any], str]]:
    """The steps between products, and the last buffer of each group; a group ends where others read it."""
    used = {buffer for each in readers for buffer in reads(sch.get(each).stmt)}
    group: list[Any] = []
    for each in steps:
        stage = sch.get(each).stmt
        if is_product(stage):
            group = []
            continue
        group.append(each)
        (result,) = writes(stage)
        if result in used:
            yield group, result
            group = []
