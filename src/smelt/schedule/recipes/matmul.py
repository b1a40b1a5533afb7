"""The recipe of matrix products on CPUs.

C = A B:  parallel for each panel of columns:
              pack the panel of B
              for each few rows:  C[rows, panel] = A[rows, :] panel, in registers;  the epilogue
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.nest.scopes import writes
from smelt.schedule.loops import Target
from smelt.schedule.products.product_tiles import MOST_TILES
from smelt.schedule.products.tiles import DEPTH
from smelt.schedule.recipes.contraction import readers
from smelt.schedule.recipes.dots import dots
from smelt.schedule.recipes.few_rows import few_rows, has_few_rows
from smelt.schedule.recipes.tiles import Tiles, in_panels, in_tiles, on_threads, pack, packed, place_tiles


def matmul(sch: Any, target: Target, block: Any) -> None:
    """Schedules a product of float32 matrices, or of batches of them, and what is computed from it; for a GPU
    by `dots`, with few rows by `few_rows`.

    ``block``: ``C[…, i, j] = sum over k of A[…] * B[…]``, with A's rows i and B's columns j. All sizes are
    numbers.

    Raises:
        ScheduleError: SM1049, the block is no such product.
    """
    if target.blocks:
        dots(sch, target, block)
        return
    if has_few_rows(sch.get(block).stmt, target):
        few_rows(sch, target, block)
        return
    tiles = in_tiles(sch, block, target)
    product, width = tiles.product, tiles.width
    panel = packed(sch, block, product.rhs, product.columns, width, in_panels(width))
    sch.compute_at(panel, tiles.parts[0] if tiles.deep else tiles.j_0)  # all terms of a deep one are too many
    on_threads(sch, tiles.around, tiles.j_0, product.columns % width)
    for reader in readers(sch, block):
        sch.reverse_compute_at(reader, tiles.j_0 if tiles.deep else tiles.i_0)
        sch.vectorize(sch.get_loops(reader)[-1])
    (buffer,) = writes(sch.get(panel).stmt)
    blocks = place_tiles(sch, block, tiles, buffer, width)
    for each in sch.get_producers(blocks[0][0]):
        if buffer in writes(sch.get(each).stmt):
            pack(sch, each, product.rhs_transposed, target.lanes)
    prefetch_panels(sch, blocks, tiles)


def prefetch_panels(sch: Any, blocks: Sequence[tuple[Any, int]], tiles: Tiles) -> None:
    """Prefetches, while a panel is used, the source of the next one: short lines of many columns, far from
    each other, which hardware does not prefetch.
    """
    product, width = tiles.product, tiles.width
    count = product.rows // tiles.rows
    if not product.rhs_transposed or not 2 <= count <= MOST_TILES:
        return
    share, terms = -(-width // count), min(product.depth, DEPTH)

    def place(*index: Any) -> tuple[Any, ...]:
        """The begin of a tile's share of the next panel's columns, as an index of its block's axes."""
        *batch, i, j, k = index
        return (*batch, (j + 1) * width, (i * product.depth + k * terms) * share)

    for tile, columns in blocks:
        if columns == width:
            sch.prefetch(tile, product.rhs, place, share)
