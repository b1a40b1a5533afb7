"""The recipe of matrix products on GPUs, for smelt's nests and for people's schedules.

    for i, j: acc; for k: acc += a[i, k] * b[k, j]; …; c[i, j] = acc
        →  for tile on blockIdx.x: for i on threadIdx.y: for j on threadIdx.x:
               acc; for k' in depth/32: for k on threadIdx.z: acc += a[i, k] * b[k, j]
               …; c[i, j] = acc

A loop on ``threadIdx.z`` adds products of two values, of which one depends on rows and terms and the other on
terms and columns: it becomes one multiplication of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.records import dataclass
from smelt.schedule.loops import Target
from smelt.schedule.recipes.contraction import Contraction, no_product, readers
from smelt.schedule.tilings import Extents, Tiles, divisor_of, usual_tiles

TOGETHER = 8
"""The most tiles of rows that use the same columns one after another, while these are in the cache."""


def dots(sch: Any, target: Target, block: Any, tiles: Tiles | None = None) -> None:
    """Schedules a product, perhaps of batches, of computed factors or a convolution, and what is computed
    from it, as one kernel of a GPU.

    ``block``: a sum of products; its sizes are numbers. ``tiles``: those of the rule by default.

    Raises:
        ScheduleError: SM1049, the block is no such product.
    """
    del target
    stage = sch.get(block).stmt
    product = Contraction.of(stage, "dots")
    if not product.rows or not all(axis.extent.is_Integer for axis in stage.axes):
        raise no_product(stage, "it has no rows, or a size is no number", "dots of")
    groups = product.batch, product.rows, product.columns, product.terms
    if tiles is None:
        b, m, n, k = map(product.size, groups)
        tiles = usual_tiles(Extents(b, m, n, k, product.narrow), 1)
    of = dict(zip((axis.var for axis in stage.axes), sch.get_loops(block), strict=True))
    batch, rows, columns, terms = ([of[axis.var] for axis in group] for group in groups)
    around, lanes = [*batch, *rows, *columns], Lanes(rows, columns, terms)
    sch.reorder(*around, *terms)
    sch.decompose_reduction(block, terms[0])
    *_, column, _ = tile(sch, sch.split, batch, lanes, tiles)
    for reader in readers(sch, block):
        sch.reverse_compute_at(reader, column)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The loops of a product that become lanes, outermost first."""

    rows: Sequence[Any]
    columns: Sequence[Any]
    terms: Sequence[Any]


def tile(
    steps: Any,
    cut: Callable[..., Sequence[Any]],
    batch: Sequence[Any],
    lanes: Lanes,
    tiles: Tiles,
    programs: int | None = None,
) -> tuple[Any, Any, Any]:
    """Tiles the loops of a product, which are in one another, and binds them to programs and lanes. Returns
    the loops over the rows, columns and terms of a tile.

    ``steps``: a schedule, or what has its `split`, `fuse`, `reorder`, `bind`, `annotate` and `get`. ``cut``
    splits a loop into tiles. ``programs``: so many take tile after tile, if descriptors load these; None:
    each tile has its own.
    """
    i, j, k = (_fused(steps, loops) for loops in (lanes.rows, lanes.columns, lanes.terms))
    sizes = (steps.get(loop).extent for loop in (i, j, k))
    whole = tuple(int(size) if size.is_Integer else size for size in sizes)
    rows, i = _tiled(steps, cut, i, tiles.rows)
    columns, j = _tiled(steps, cut, j, tiles.columns)
    _, k = _tiled(steps, cut, k, tiles.depth)
    steps.reorder(*rows, *columns, i, j)
    outer = [*rows, *columns]
    if rows and columns:
        outer = _together(steps, *rows, *columns)
    outer = [*batch, *outer]
    if outer:
        grid = _fused(steps, outer)
        count = steps.get(grid).extent
        if programs and tiles.descriptors and not (count.is_Integer and count <= programs):
            several, grid = steps.split(grid, factors=[None, programs])
            steps.reorder(grid, several)
        steps.bind(grid, "blockIdx.x")
    for loop, thread in ((i, "threadIdx.y"), (j, "threadIdx.x"), (k, "threadIdx.z")):
        steps.bind(loop, thread)
    for name, value in (*tiles.notes, ("extents", whole)):
        steps.annotate(k, name, value)
    return i, j, k


def _fused(steps: Any, loops: Sequence[Any]) -> Any:
    return steps.fuse(*loops) if len(loops) > 1 else loops[0]


def _tiled(steps: Any, cut: Callable[..., Sequence[Any]], loop: Any, size: int) -> tuple[list[Any], Any]:
    """Splits a loop into tiles: the loop over them, unless one is all, and the loop in one."""
    extent = steps.get(loop).extent
    if extent.is_Integer and extent <= size:
        return [], loop
    outer, inner = cut(loop, factors=[None, size])
    return [outer], inner


def _together(steps: Any, rows: Any, columns: Any) -> list[Any]:
    """The loops over tiles: some tiles of rows use the same columns one after another."""
    count = steps.get(rows).extent
    together = divisor_of(count, TOGETHER)
    if together == 1 or count == together:
        return [rows, columns]
    group, rows = steps.split(rows, factors=[None, together], disable_predication=True)
    steps.reorder(group, columns, rows)
    return [group, columns, rows]
