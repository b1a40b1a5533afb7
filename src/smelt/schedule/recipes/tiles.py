"""Register tiles of products: what all recipes with products share.

for i, j, k: C[i, j] += A[i, k] * B[k, j]
    →  for panels of columns j_0, tiles of rows i_0, parts of terms k_0:  tile(C, A, B)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sympy import Expr, Integer, Symbol

from smelt.nest.intrinsics import tile_name, transpose
from smelt.nest.ir import AxisKind, Let, Stage, Store
from smelt.nest.primitives.common import ScheduleError
from smelt.nest.scopes import reads, shapes_of, writes
from smelt.records import dataclass
from smelt.schedule.loops import Target
from smelt.schedule.products.product_tiles import DEEP, accumulators_of, tile_rows
from smelt.schedule.products.tiles import DEPTH, panel_width
from smelt.schedule.recipes.contraction import Contraction, no_product
from smelt.symbolic.affine import symbols_in

Place = Callable[..., tuple[Any, ...]]
"""An index map."""
MOST_IN_PLACE = 64
"""Limit on the columns of an operand whose panels are read in place: at a larger distance, rows of a panel
map to the same sets of the first-level cache.
"""


@dataclass(frozen=True, slots=True)
class Product:
    """A block ``C[…, i, j] += lhs[…] * rhs[…]``: its operands, and the numbers of rows i, columns j and terms
    k of the loops around it. ``lhs_transposed``: ``lhs[…, k, i]``; ``rhs_transposed``: ``rhs[…, j, k]``.
    """

    result: str
    lhs: str
    rhs: str
    rows: int
    columns: int
    depth: int
    lhs_transposed: bool
    rhs_transposed: bool

    @staticmethod
    def of(sch: Any, block: Any) -> Product:
        """The product that a block computes; the last three loops around it are i, j and k.

        Raises:
            ScheduleError: SM1049, it is none.
        """
        stage: Stage = sch.get(block).stmt
        (lhs, left), (rhs, right) = operands(stage)
        loops = [sch.get(loop) for loop in sch.get_loops(block)[-3:]]
        axes = [[axis for axis in stage.axes if loop.stmt.var in symbols_in(axis.value)] for loop in loops]
        kinds = [axis.kind for each in axes for axis in each]
        if kinds != [AxisKind.SPATIAL, AxisKind.SPATIAL, AxisKind.REDUCE]:
            raise no_product(stage, "its last three loops are not rows, columns and terms")
        i, j, k = (axis.var for (axis,) in axes)
        if j in _symbols(left) or i in _symbols(right):
            raise no_product(stage, f"the rows {i} are not of {lhs} alone, or the columns {j} not of {rhs}")
        if not all(loop.extent.is_Integer for loop in loops):
            raise no_product(stage, "a size is no number")
        (result,) = writes(stage)
        rows, columns, depth = (int(loop.extent) for loop in loops)
        return Product(result, lhs, rhs, rows, columns, depth, left[-1] == i, right[-1] == k)

    def tile(self, target: Target, width: int = 0) -> tuple[int, int]:
        """Rows and columns of a register tile; ``width``: these columns."""
        often = min(self.rows, self.depth)
        width = width or panel_width(
            Integer(self.columns), target.lanes, large=target.large_tiles, often=often
        )
        most = accumulators_of(target, width)
        return tile_rows(self.rows, width // target.lanes, most), width


def is_product(stage: Stage) -> bool:
    """Whether a block is a product of matrices: each operand has an axis of its own."""
    try:
        return bool(Contraction.of(stage, "a product").rows)
    except ScheduleError:
        return False


def operands(stage: Stage) -> list[tuple[str, tuple[Expr, ...]]]:
    """The two elements whose products a block adds up: buffers and indices.

    Raises:
        ScheduleError: SM1049, it does something else.
    """
    loads = {s.name: s.args for s in stage.body.stmts if isinstance(s, Let) and s.op == "load"}
    made = [s for s in stage.body.stmts if isinstance(s, Let) and s.op == "mul"]
    *others, store = stage.body.stmts
    sums = isinstance(store, Store) and store.mode == "add" and len(others) == 3 and len(loads) == 2
    if not sums or len(made) != 1:
        raise no_product(stage, "it is no sum of products of two elements")
    return [loads[name] for name in made[0].args]


def _symbols(index: tuple[Expr, ...]) -> set[Symbol]:
    return {symbol for each in index for symbol in symbols_in(each)}


# -- tiles ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tiles:
    """A product's loops after `in_tiles`: ``around``, the panel ``j_0``, ``parts`` of the terms, and the tile
    of rows ``i_0``, before the parts unless the product is ``deep``. ``width`` of a panel.
    """

    product: Product
    rows: int
    width: int
    deep: bool
    around: Sequence[Any]
    j_0: Any
    parts: Sequence[Any]
    i_0: Any
    adds: bool

    def levels(self, rows: int = 0) -> list[tuple[int, int, int]]:
        """The loops whose last piece may be smaller: their numbers among those around a tile, the size that
        the pieces make up, and that of a piece. ``rows``: instead of the product's.
        """
        product = self.product
        sizes = {self.j_0: (product.columns, self.width), self.i_0: (rows or product.rows, self.rows)}
        if product.depth > DEPTH:
            sizes[self.parts[-1]] = product.depth, DEPTH
        order = [*self.around, self.j_0, *inner_loops(self.parts, self.i_0, self.deep)]
        return [(number, *sizes[loop]) for number, loop in enumerate(order) if loop in sizes]


def in_tiles(sch: Any, block: Any, target: Target, width: int = 0, over: Any = None) -> Tiles:
    """Splits the last three loops of a product into panels of columns, tiles of rows, and parts of the terms
    that a register sums. ``width`` of panels that there are already; ``over``: an outer loop over terms.
    """
    product = Product.of(sch, block)
    rows, width = product.tile(target, width)
    *around, i, j, k = sch.get_loops(block)
    parts, deep = [], product.depth > DEEP
    i_0, i_1 = sch.split(i, factors=[None, rows])
    j_0, j_1 = sch.split(j, factors=[None, width])
    if product.depth > DEPTH:  # a register that sums too many terms is not accurate
        k_0, k = sch.split(k, factors=[None, DEPTH])
        parts.append(k_0)
    sch.reorder(j_0, *inner_loops(parts, i_0, deep), i_1, j_1, k)
    if parts or over is not None:
        zeros = sch.decompose_reduction(block, parts[0] if over is None else over)
        sch.vectorize(sch.get_loops(zeros)[-1])
    adds = bool(parts) or over is not None
    return Tiles(product, rows, width, deep, around, j_0, parts, i_0, adds)


def inner_loops(parts: Sequence[Any], i_0: Any, deep: bool) -> list[Any]:
    """The order of the loops in a panel: a deep one is used part by part, for all rows."""
    return [*parts, i_0] if deep else [i_0, *parts]


def place_tiles(
    sch: Any, block: Any, tiles: Tiles, panel: str, step: int, rows: int = 0
) -> list[tuple[Any, int]]:
    """Replaces the tiles of a product by intrinsics, each of its own size, after all other steps. The columns
    are read from the buffer ``panel``, whose rows have a distance of ``step``. ``rows`` there are, if not the
    product's. Returns the tiles' blocks, and the columns of each.
    """
    made = []
    for tile in pieces(sch, block, panel, tiles.product.result, tiles.levels(rows)):
        *around, r, c, _ = sch.get_loops(tile)
        height, columns = extent(sch, r), extent(sch, c)
        transposed = tiles.product.lhs_transposed
        sch.tensorize(r, tile_name(height, columns, step, adds=tiles.adds, transposed=transposed))
        made.append((holding(sch, around[-1], panel, tiles.product.result), columns))
    return made


def pieces(
    sch: Any, block: Any, buffer: str, result: str, levels: Sequence[tuple[int, int, int]]
) -> list[Any]:
    """The blocks that read a buffer and write the result, after some of the loops around them, by number,
    have been `sized`.
    """
    if not levels:
        return [block]
    (number, size, step), *rest = levels
    loops = sized(sch, sch.get_loops(block)[number], size, step)
    inside = [holding(sch, loop, buffer, result) for loop in loops]
    return [each for one in inside for each in pieces(sch, one, buffer, result, rest)]


def on_threads(sch: Any, around: Sequence[Any], loop: Any, rest: int) -> None:
    """Runs loops on threads: those ``around`` a loop over pieces, and the loop, unless it will be partitioned
    (`sized`), for loops on threads lie in each other alone.
    """
    for each in (*around, loop) if not (rest and around) else around:
        sch.parallel(each)


def sized(sch: Any, loop: Any, size: int, step: int) -> list[Any]:
    """A loop over pieces of ``size``, partitioned so that all pieces of one loop have the same size."""
    full, rest = divmod(size, step)
    loops = sch.loop_partition(loop, factors=[full, None]) if full and rest else [loop]
    for each in loops if rest else []:
        sch.tighten(each)
    return list(loops)


# -- panels --------------------------------------------------------------------------------------------------


def packed(sch: Any, block: Any, buffer: str, columns: int, width: int, place: Place) -> Any:
    """The block that packs the columns of a product's second operand, in panels, term by term; ``place`` maps
    the axes of the product to the index in panels.
    """
    panel = sch.reindex_cache_read(block, buffer, "global", place)
    if columns % width:
        sch.storage_align(panel, 0, axis=-2, factor=width, offset=0)
    return panel


def in_panels(width: int) -> Place:
    """The index in packed panels of an element that rhs has in an iteration."""

    def place(*index: Any) -> tuple[Any, ...]:
        *batch, _, j, k = index
        return (*batch, j // width, k, j % width)

    return place


def panels_of(sch: Any, block: Any, tiles: Tiles, lanes: int) -> tuple[str, int]:
    """The buffer with the panels of a product's second operand, and the distance of their rows: packed ahead,
    on threads, or the operand itself, if its rows are in few cache lines.
    """
    product, width = tiles.product, tiles.width
    if not product.rhs_transposed and product.columns <= MOST_IN_PLACE:
        return product.rhs, int(shapes_of(sch.func.kernel)[product.rhs][-1])
    panel = packed(sch, block, product.rhs, product.columns, width, in_panels(width))
    (made,) = writes(sch.get(panel).stmt)
    *around, j, _ = sch.get_loops(panel)
    j_0, _ = sch.split(j, factors=[None, width])
    on_threads(sch, around, j_0, product.columns % width)
    for loop in sized(sch, j_0, product.columns, width):
        pack(sch, holding(sch, loop, product.rhs), product.rhs_transposed, lanes)
    return made, width


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


def holding(sch: Any, loop: Any, buffer: str, result: str = "") -> Any:
    """The block in a loop that reads a buffer, and writes the result if one is given."""
    found = ((each, sch.get(each).stmt) for each in sch.get_child_blocks(loop))
    return next(
        each for each, stage in found if buffer in reads(stage) and (not result or result in writes(stage))
    )


def extent(sch: Any, loop: Any) -> int:
    """The number of iterations of a loop."""
    return int(sch.get(loop).extent)
