"""The recipe of attention on CPUs: a block of queries at a time, whose scores stay in the cache.

out = softmax(Q K^T) V:  pack K, in panels of keys
                         parallel for each head and block of queries:
                             scores = Q[block, :] K;  softmax, row by row;  out[block, :] = weights V
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.nest.ir import Store
from smelt.nest.primitives.common import ScheduleError
from smelt.nest.scopes import writes
from smelt.ops import TABLE
from smelt.records import replace
from smelt.schedule.loops import Target
from smelt.schedule.recipes.contraction import readers
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

SCORES = 2**14
"""Limit on the scores of a block of queries, unless it is one tile: a part of the second-level cache."""
MOST_QUERIES = 64
"""Limit on the queries of a block."""
READS = ("load", "constant", "index_expr")
"""What a block that is inlined does besides operators that cost no more than a division."""


def attention(sch: Any, target: Target, block: Any) -> None:
    """Schedules attention: scores of queries and keys, what is computed from each row of them (softmax), the
    values that they weight, and what is computed from these.

    ``block``: ``out[…, i, c] = sum over j of weights[…, i, j] * V[…, j, c]``, where the weights come from a
    product of Q and K. All sizes are numbers.

    Raises:
        ScheduleError: SM1049, the block is no such product, or the weights come from none.
    """
    weighted = Product.of(sch, block)
    after = readers(sch, block)
    last = after[-1] if after else block
    scores, *others = steps_to(sch, last, block)
    others = without_cheap(sch, others, weighted.lhs)
    keys = Product.of(sch, scores)

    # A block of queries computes all that leads to its results.
    queries = size_of_block(target, [keys, weighted])
    *around, i = sch.get_loops(last)[: len(sch.get_loops(scores)) - 2]
    i_0, _ = sch.split(i, factors=[None, queries])
    for each in reversed([scores, *others[:-1]]):
        sch.compute_at(each, i_0)
    on_threads(sch, around, i_0, weighted.rows % queries)
    rows = [each for each in others if not any(same(sch, each, other) for other in (block, *after))]
    rows_in_cache(sch, rows, weighted.lhs)
    for each in after:
        in_lanes(sch, each)
    tiles = in_tiles(sch, scores, target), in_tiles(sch, block, target)
    panels = [panels_of(sch, *each, target.lanes) for each in zip((scores, block), tiles)]
    rest = weighted.rows % queries
    for loop, count in zip(sized(sch, i_0, weighted.rows, queries), (queries, rest)):
        for (panel, step), made in zip(panels, tiles):
            tile = holding(sch, loop, panel, made.product.result)
            place_tiles(sch, tile, made, panel, step, count)


def without_cheap(sch: Any, blocks: Sequence[Any], result: str) -> list[Any]:
    """Inlines scaling, masks and the like, unless products read them, before the block that writes the
    result: computed again in each reader they are cheaper than a row that is stored and loaded. Returns the
    blocks that are left.
    """
    end = next(n for n, each in enumerate(blocks) if result in writes(sch.get(each).stmt))
    cheap = [each for each in blocks[:end] if _is_cheap(sch, each)]
    for each in cheap:
        sch.compute_inline(each)
    return [each for each in blocks if each not in cheap]


def _is_cheap(sch: Any, block: Any) -> bool:
    stage = sch.get(block).stmt
    used = [sch.get(reader).stmt for reader in sch.get_consumers(block)]
    if not used or stage.init is not None or any(map(is_product, used)):
        return False
    ops = [getattr(each, "op", None) for each in stage.body.stmts if not isinstance(each, Store)]
    most = TABLE["truediv"].cost
    return all(op in READS or (op in TABLE and TABLE[op].cost <= most) for op in ops)


def rows_in_cache(sch: Any, rows: Sequence[Any], result: str) -> None:
    """Computes rows one by one: all blocks in the loop over rows of the one that writes the result."""
    place = next(n for n, each in enumerate(rows) if result in writes(sch.get(each).stmt))
    row = sch.get_loops(rows[place])[-2]
    for each in reversed(rows[:place]):
        sch.compute_at(each, row)
    for each in rows[place + 1 :]:
        sch.reverse_compute_at(each, row)
    for each in rows:
        in_lanes(sch, each)


def size_of_block(target: Target, products: Sequence[Product], scores: int = SCORES) -> int:
    """The number of queries of a block with about so many ``scores``: whole tiles of all products, and few
    unused rows of the last ones.
    """
    count, columns = products[0].rows, products[0].columns

    def rows(size: int) -> list[int]:
        return [replace(each, rows=size).tile(target)[0] for each in products]

    def cost(size: int) -> tuple[int, int]:
        full, rest = divmod(count, size)
        blocks = [size] * full + [rest] * bool(rest)
        return sum(-(-each // tile) * (tile + 1) for each in blocks for tile in rows(size)), -size

    most = min(count, MOST_QUERIES, max(scores // columns, *rows(count)))
    fitting = [
        size for size in range(1, most + 1) if size == count or not any(size % each for each in rows(size))
    ]
    return min(fitting, key=cost)


def steps_to(sch: Any, last: Any, block: Any) -> list[Any]:
    """The blocks from the scores on, which lead to ``last`` through ``block``, in order.

    Raises:
        ScheduleError: SM1049, no product leads to the weights.
    """
    weights = Product.of(sch, block).lhs
    found = leading_to(sch, last, sch.get(block).name_hint, weights) | {sch.get(last).name_hint: last}
    ordered = [each for each in sch.get_child_blocks("root") if sch.get(each).name_hint in found]
    if not is_product(sch.get(ordered[0]).stmt) or same(sch, ordered[0], block):
        raise ScheduleError("attention", f"no product leads to {weights}", code="SM1049")
    return ordered


def leading_to(sch: Any, block: Any, weighting: str, weights: str) -> dict[str, Any]:
    """The blocks that lead to a block, by name, up to the scores. Of the operands of the block ``weighting``
    only the ``weights`` count.
    """
    stage = sch.get(block).stmt
    if stage.name != weighting and is_product(stage):
        return {}
    found: dict[str, Any] = {}
    for each in sch.get_producers(block):
        made = sch.get(each).stmt
        if stage.name != weighting or weights in writes(made):
            found |= {made.name: each, **leading_to(sch, each, weighting, weights)}
    return found


def same(sch: Any, one: Any, other: Any) -> bool:
    """Whether two references are to one block."""
    return bool(sch.get(one).same_as(sch.get(other)))


def in_lanes(sch: Any, block: Any) -> None:
    """Computes, or reduces, elements of a row in lanes."""
    loop = sch.get_loops(block)[-1]
    if sch.get(block).stmt.init is None:
        sch.vectorize(loop)
    else:
        sch.reduce_in_lanes(loop)
