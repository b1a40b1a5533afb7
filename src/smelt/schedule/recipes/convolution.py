"""The recipe of convolutions on CPUs: a product of patches of the image and filters.

out = X * F:  pack F, in panels of filters
              parallel for each block of positions:
                  copy the patches that they see;  for each few positions:  out = patches F;  the epilogue
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from sympy import Symbol

from smelt.nest.ir import Axis, AxisKind, Stage
from smelt.nest.scopes import reads, writes
from smelt.records import dataclass
from smelt.schedule.loops import Target
from smelt.schedule.recipes.contraction import loads_of, no_product, readers
from smelt.schedule.recipes.tiles import (
    Product,
    extent,
    holding,
    in_tiles,
    operands,
    packed,
    place_tiles,
    sized,
)
from smelt.symbolic.affine import linear, symbols_in

PATCHES = 2**15
"""Limit on the elements of the patches of a block of positions: a part of the second-level cache."""
MOST_AT_ONCE = 2**18
"""Limit on the elements of all patches, and of the result, if there are no blocks of positions."""
FEWEST_BLOCKS = 16
"""So many blocks of positions there are at least, for threads to share, if there are enough tiles."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A block that adds up products of an image's and a filter's elements: its axes, by number. ``positions``
    are those of the result besides the ``filter``; ``terms`` are reduced over, the channels last.
    ``contiguous``: an image's elements of the last two terms are, in memory.
    """

    image: str
    filters: str
    axes: Sequence[Axis]
    positions: Sequence[int]
    filter: int
    terms: Sequence[int]
    contiguous: bool

    @staticmethod
    def of(stage: Stage) -> Convolution:
        """The convolution that a block computes.

        Raises:
            ScheduleError: SM1049, it is none.
        """
        (image, there), (filters, weight) = operands(stage)
        seen, used = (set().union(*map(symbols_in, index)) for index in (there, weight))
        alone = {expr for expr in there if isinstance(expr, Symbol)}
        spatial = [n for n, axis in enumerate(stage.axes) if axis.kind is AxisKind.SPATIAL]
        terms = [n for n, axis in enumerate(stage.axes) if axis.kind is AxisKind.REDUCE]
        positions = [n for n in spatial if stage.axes[n].var not in used]
        others = [n for n in spatial if stage.axes[n].var not in seen]
        if len(positions) + len(others) != len(spatial) or len(others) != 1 or not positions or not terms:
            raise no_product(
                stage, "its axes are not positions, one of filters, and terms; groups are not known"
            )
        if not all(axis.extent.is_Integer for axis in stage.axes):
            raise no_product(stage, "a size is no number")
        terms.sort(key=lambda n: stage.axes[n].var in alone)
        *_, across, _ = (stage.axes[n].var for n in (terms[0], *terms))
        contiguous = len(there) > 1 and linear(there[-2], across)[0] == 1 and there[-1] in alone
        return Convolution(image, filters, stage.axes, positions, others[0], terms, contiguous)

    def size(self, axes: Sequence[int]) -> int:
        return prod(int(self.axes[n].extent) for n in axes)

    def at(self, index: Sequence[Any] | Mapping[int, Any], axes: Sequence[int]) -> Any:
        """The number of an element among all of some axes."""
        number: Any = 0
        for n in axes:
            number = number * int(self.axes[n].extent) + index[n]
        return number

    def map(
        self, *parts: Callable[[Any, Any, Any], Any], spatial: bool = False
    ) -> Callable[..., tuple[Any, ...]]:
        """An index map of (position, filter, term); ``spatial``: of a block without terms."""

        def place(*index: Any) -> tuple[Any, ...]:
            position = self.at(index, self.positions)
            term = None if spatial else self.at(index, self.terms)
            return tuple(part(position, index[self.filter], term) for part in parts)

        return place

    def rows_of_patches(self, *index: Any) -> tuple[Any, ...]:
        """The position, and the terms, of a block whose axes are all but that of filters."""
        whole = [*index[: self.filter], 0, *index[self.filter :]]
        return (self.at(whole, self.positions), *(whole[n] for n in self.terms))


def convolution(sch: Any, target: Target, block: Any) -> None:
    """Schedules a convolution of float32 images, and what is computed from its result.

    ``block``: ``out[…] = sum over terms of X[…] * F[…]``, in any layout, with any strides; no groups. All
    sizes are numbers.

    Raises:
        ScheduleError: SM1049, the block is no such convolution.
    """
    found = Convolution.of(sch.get(block).stmt)
    prepare_image(sch, block, found)
    found = Convolution.of(sch.get(block).stmt)
    after = readers(sch, block)
    patches, panel, copy = as_product(sch, target, block, found)
    if after:
        sch.compute_inline(copy)
    for each in after or [copy]:
        sch.transform_block_layout(each, found.map(lambda p, f, _: p, lambda p, f, _: f, spatial=True))

    # Positions in blocks whose patches stay in the cache, unless all do.
    rows, columns, depth = (found.size(axes) for axes in (found.positions, [found.filter], found.terms))
    height, width = Product.of(sch, block).tile(target)
    size = rows
    if rows * max(depth, columns) > MOST_AT_ONCE:
        size = height * even(rows // height, PATCHES // max(depth, columns) // height)
    in_blocks = size < rows
    if in_blocks:
        p_0, _ = sch.split(sch.get_loops(block)[0], factors=[None, size])
        sch.compute_at(patches, p_0)
    tiles = in_tiles(sch, block, target, width=width)
    for each in after or [copy]:
        sch.reverse_compute_at(each, tiles.j_0 if tiles.deep else tiles.i_0)
    if int(found.axes[found.terms[-1]].extent) % target.lanes and found.contiguous:
        sch.fuse(*sch.get_loops(patches)[-2:])
    for each in (patches, *(after or [copy])):
        sch.vectorize(sch.get_loops(each)[-1])
    (buffer,) = writes(sch.get(panel).stmt)
    pack_filters(sch, panel, found, width, target.lanes)
    if not in_blocks:
        sch.parallel(tiles.j_0)
        sch.parallel(sch.get_loops(patches)[0])
        place_tiles(sch, block, tiles, buffer, width)
        return
    sch.parallel(p_0)
    for loop, count in zip(sized(sch, p_0, rows, size), (size, rows % size)):
        place_tiles(sch, holding(sch, loop, buffer), tiles, buffer, width, count)


def even(tiles: int, most: int) -> int:
    """The tiles in a block, ``most`` at most: the number that leaves the fewest for a last, smaller block,
    of these the largest.

    >>> even(522, 85), even(196, 3), even(7, 3)
    (29, 2, 1)
    """
    most = max(min(most, tiles // FEWEST_BLOCKS), 1)
    return min(range(most, 0, -1), key=lambda size: tiles % size)


def prepare_image(sch: Any, block: Any, found: Convolution) -> None:
    """Has the channels last in the image, in a copy if nothing has computed it, and computes it on threads;
    one that is computed by a mere copy is read where it was.
    """
    there = dict(operands(sch.get(block).stmt))[found.image]
    channel = there.index(found.axes[found.terms[-1]].var)
    writers = [each for each in sch.get_producers(block) if found.image in writes(sch.get(each).stmt)]
    if channel == len(there) - 1 and [len(sch.get(each).stmt.body.stmts) for each in writers] == [2]:
        sch.compute_inline(writers[0])  # there is no padding: a load and a store
        return
    if channel != len(there) - 1:
        writers = writers or [sch.cache_read(block, found.image, "global")]
        (image,) = writes(sch.get(writers[0]).stmt)
        order = [dim for dim in range(len(there)) if dim != channel] + [channel]
        sch.transform_layout(writers[0], image, lambda *index: tuple(index[dim] for dim in order))
    for each in writers:
        *outer, last = sch.get_loops(each)
        sch.vectorize(last)
        for loop in [loop for loop in outer if extent(sch, loop) > 1][:1]:
            sch.parallel(loop)


def as_product(sch: Any, target: Target, block: Any, found: Convolution) -> tuple[Any, Any, Any]:
    """Has a convolution read patches and packed filters, and write a matrix: out[p, f] += patches[p, k] *
    filters[f // width, k, f % width]. Returns the blocks that copy patches, filters, and the result.
    """
    rows, columns, depth = (found.size(axes) for axes in (found.positions, [found.filter], found.terms))
    _, width = Product("", found.image, found.filters, rows, columns, depth, False, False).tile(target)
    panels = found.map(lambda p, f, k: f // width, lambda p, f, k: k, lambda p, f, k: f % width)
    panel = packed(sch, block, found.filters, columns, width, panels)
    places = found.map(lambda p, f, k: p, lambda p, f, k: k)
    patches = sch.reindex_cache_read(block, found.image, "global", places)
    sch.transform_block_layout(patches, found.rows_of_patches)
    copy = sch.reindex_cache_write(block, 0, "global", found.map(lambda p, f, k: p, lambda p, f, k: f))
    matrix = found.map(lambda p, f, k: p, lambda p, f, k: f, lambda p, f, k: k)
    sch.transform_block_layout(block, matrix)
    return patches, panel, copy


def pack_filters(sch: Any, panel: Any, found: Convolution, width: int, lanes: int) -> None:
    """Copies the filters, panel by panel, on threads: along filters where these are contiguous; else along
    terms, transposed in registers.
    """
    stage = sch.get(panel).stmt
    order = sorted([found.filter, *found.terms])
    of = dict(zip(order, stage.axes))
    ((_, index),) = (each.args for each in loads_of(stage.body))
    if index[-1] == of[found.filter].var:
        at = {sch.get(loop).stmt.var: loop for loop in sch.get_loops(panel)}
        f_0, f_1 = sch.split(at[of[found.filter].value], factors=[None, width])
        sch.reorder(f_0, *(at[of[n].value] for n in found.terms if of[n].value in at), f_1)
        sch.vectorize(f_1)
        sch.parallel(f_0)
        return
    *window, channel = found.terms
    one = found.size(window) == 1

    def place(*axes: Any) -> tuple[Any, ...]:
        """The filter, and a term, along which elements are contiguous, and perhaps the channel."""
        at = dict(zip(order, axes))
        f, c = at[found.filter], at[channel]
        return (f, c) if one else (c, f, found.at(at, window))

    sch.transform_block_layout(panel, place)
    *outer, f, k = sch.get_loops(panel)
    f_0, f_1 = sch.split(f, factors=[None, width])
    sch.reorder(f_0, *outer, f_1, k)
    sch.parallel(f_0)
    count = extent(sch, k)
    if found.size([found.filter]) % width or width % lanes or count < lanes:
        return
    f_1, f_2 = sch.split(f_1, factors=[None, lanes])
    k_0, k_1 = sch.split(k, factors=[None, lanes])
    sch.reorder(f_1, k_0, k_1, f_2)
    (source,) = reads(stage)
    for loop in sized(sch, k_0, count, lanes):
        *_, k_1, f_2 = sch.get_loops(holding(sch, loop, source))
        if extent(sch, k_1) == lanes:
            sch.vectorize(k_1)
            sch.turn(f_2)
