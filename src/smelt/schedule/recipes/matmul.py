"""The recipe of matrix products on CPUs.

C = A B:  parallel for each panel of columns:
              pack the panel of B
              for each few rows:  C[rows, panel] = A[rows, :] panel, in registers;  the epilogue
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sympy import Expr, Symbol

from smelt.nest.intrinsics import tile_name, transpose
from smelt.nest.ir import AxisKind, Let, Stage, Store
from smelt.nest.primitives.common import ScheduleError
from smelt.nest.scopes import reads, writes
from smelt.records import dataclass
from smelt.schedule.loops import Target
from smelt.schedule.products.product_tiles import DEEP, MOST_TILES, accumulators_of, tile_rows
from smelt.schedule.products.tiles import DEPTH, is_short, panel_width
from smelt.schedule.recipes.contraction import readers
from smelt.schedule.recipes.dots import dots
from smelt.schedule.recipes.few_rows import few_rows, has_few_rows


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
    product = Product.of(sch.get(block).stmt)
    rows, width = product.tile(target)
    tiles = int(product.rows) // rows
    ahead = -(-width // tiles) if product.rhs_transposed and 2 <= tiles <= MOST_TILES else 0
    short, deep = is_short(product.depth), product.depth > DEEP

    # Panels of columns, of which each is packed term by term; tiles of rows.
    panel = sch.reindex_cache_read(block, product.rhs, "global", product.in_panels(width))
    if product.columns % width:
        sch.storage_align(panel, 0, axis=-2, factor=width, offset=0)
    *batch, i, j, k = sch.get_loops(block)
    i_0, i_1 = sch.split(i, factors=[None, rows])
    j_0, j_1 = sch.split(j, factors=[None, width])
    parts = []
    if not short:  # a register that sums too many terms is not accurate
        *parts, k = sch.split(k, factors=[None, DEPTH])
    outer = [*batch, j_0, *parts, i_0] if deep else [*batch, j_0, i_0, *parts]
    sch.reorder(*outer, i_1, j_1, k)
    sch.compute_at(panel, parts[0] if deep else j_0)  # all terms of a deep panel do not fit the cache
    for loop in outer[: len(batch) + 1]:
        sch.parallel(loop)
    if parts:
        zeros = sch.decompose_reduction(block, parts[0])
        sch.vectorize(sch.get_loops(zeros)[-1])
    for reader in readers(sch, block):
        sch.reverse_compute_at(reader, j_0 if deep else i_0)
        sch.vectorize(sch.get_loops(reader)[-1])

    # The last panel, the last tile of rows and the last part of the terms have sizes of their own.
    sizes = {
        i_0: (product.rows, rows),
        j_0: (product.columns, width),
        **dict.fromkeys(parts, (product.depth, DEPTH)),
    }
    (packed,) = writes(sch.get(panel).stmt)
    blocks = pieces(sch, block, packed, [(n, *sizes[loop]) for n, loop in enumerate(outer) if loop in sizes])
    for each in sch.get_producers(blocks[0]):
        if packed in writes(sch.get(each).stmt):
            pack(sch, each, product.rhs_transposed, target.lanes)
    for tile in blocks:
        *around, r, c, _ = sch.get_loops(tile)
        shape = extent(sch, r), extent(sch, c)
        sch.tensorize(r, tile_name(*shape, width, adds=not short, transposed=product.lhs_transposed))
        if ahead and shape[1] == width:
            tile = holding(sch, around[-1], packed)
            sch.prefetch(tile, product.rhs, product.next_panel(width, ahead), ahead)


def pieces(sch: Any, block: Any, packed: str, levels: Sequence[tuple[int, Any, int]]) -> list[Any]:
    """The blocks of tiles, after some of the loops around them, by number, have been `sized`."""
    if not levels:
        return [block]
    (number, size, step), *rest = levels
    loops = sized(sch, sch.get_loops(block)[number], int(size), step)
    return [each for loop in loops for each in pieces(sch, holding(sch, loop, packed), packed, rest)]


def sized(sch: Any, loop: Any, size: int, step: int) -> list[Any]:
    """A loop over pieces of ``size``, partitioned so that all pieces of one loop have the same size."""
    full, rest = divmod(size, step)
    loops = sch.loop_partition(loop, factors=[full, None]) if full and rest else [loop]
    for each in loops if rest else []:
        sch.tighten(each)
    return list(loops)


def pack(sch: Any, block: Any, transposed: bool, lanes: int) -> None:
    """Copies a panel along its columns; along its terms, and transposed in registers, where these are
    contiguous in the source.
    """
    *_, j, k = sch.get_loops(block)
    if not transposed:
        sch.reorder(k, j)
        sch.vectorize(j)
        return
    sizes = [extent(sch, loop) for loop in (j, k)]
    j_0, j_1 = sch.split(j, factors=[None, lanes])
    k_0, k_1 = sch.split(k, factors=[None, lanes])
    sch.reorder(j_0, k_0, j_1, k_1)
    (source,) = reads(sch.get(block).stmt)
    for down in sized(sch, j_0, sizes[0], lanes):
        inside = holding(sch, down, source)
        for across in sized(sch, sch.get_loops(inside)[-3], sizes[1], lanes):
            *_, j_1, k_1 = sch.get_loops(holding(sch, across, source))
            if (extent(sch, j_1), extent(sch, k_1)) == (lanes, lanes):
                sch.tensorize(j_1, transpose(lanes).name)


def holding(sch: Any, loop: Any, buffer: str) -> Any:
    """The block in a loop that reads a buffer."""
    return next(each for each in sch.get_child_blocks(loop) if buffer in reads(sch.get(each).stmt))


def extent(sch: Any, loop: Any) -> int:
    """The number of iterations of a loop."""
    return int(sch.get(loop).extent)


@dataclass(frozen=True, slots=True)
class Product:
    """The operands of a product's block, and its sizes. ``lhs_transposed``: ``lhs[…, k, i]``;
    ``rhs_transposed``: ``rhs[…, j, k]``.
    """

    lhs: str
    rhs: str
    rows: Expr
    columns: Expr
    depth: Expr
    lhs_transposed: bool
    rhs_transposed: bool

    @staticmethod
    def of(stage: Stage) -> Product:
        """The product that a block computes.

        Raises:
            ScheduleError: SM1049, it is none.
        """
        loads = {s.name: s.args for s in stage.body.stmts if isinstance(s, Let) and s.op == "load"}
        made = [s for s in stage.body.stmts if isinstance(s, Let) and s.op == "mul"]
        *others, store = stage.body.stmts
        sums = isinstance(store, Store) and store.mode == "add" and len(others) == 3 and len(loads) == 2
        kinds = [axis.kind for axis in stage.axes]
        if not sums or len(made) != 1 or kinds != [AxisKind.SPATIAL] * (len(kinds) - 1) + [AxisKind.REDUCE]:
            raise _no_product(stage, "it is no sum of products of two elements over one axis")
        sizes = [axis.extent for axis in stage.axes]
        if len(sizes) < 3 or not all(size.is_Integer for size in sizes):
            raise _no_product(stage, "it has less than rows and columns, or a size is no number")
        (lhs, left), (rhs, right) = (loads[name] for name in made[0].args)
        i, j, k = (axis.var for axis in stage.axes[-3:])
        if j in _symbols(left) or i in _symbols(right):
            raise _no_product(stage, f"the rows {i} are not of {lhs} alone, or the columns {j} not of {rhs}")
        rows, columns, depth = sizes[-3:]
        return Product(lhs, rhs, rows, columns, depth, left[-1] == i, right[-1] == k)

    def tile(self, target: Target) -> tuple[int, int]:
        """Rows and columns of a register tile."""
        often = int(min(self.rows, self.depth))
        width = panel_width(self.columns, target.lanes, large=target.large_tiles, often=often)
        most = accumulators_of(target, width)
        return tile_rows(int(self.rows), width // target.lanes, most), width

    def in_panels(self, width: int) -> Callable[..., tuple[Any, ...]]:
        """The index in packed panels of an element that rhs has in an iteration."""

        def place(*index: Any) -> tuple[Any, ...]:
            *batch, _, j, k = index
            return (*batch, j // width, k, j % width)

        return place

    def next_panel(self, width: int, share: int) -> Callable[..., tuple[Any, ...]]:
        """The begin of a tile's share of the next panel's columns in rhs, as an index of its block's axes."""
        terms = self.depth if is_short(self.depth) else DEPTH

        def place(*index: Any) -> tuple[Any, ...]:
            *batch, i, j, k = index
            return (*batch, (j + 1) * width, (i * self.depth + k * terms) * share)

        return place


def _symbols(index: tuple[Expr, ...]) -> set[Symbol]:
    return {symbol for each in index for symbol in each.free_symbols}


def _no_product(stage: Stage, why: str) -> ScheduleError:
    return ScheduleError(f"matmul of {stage.name}", why, code="SM1049", remedy="schedule it step by step")
