"""Tiles of matrix products on GPUs: the rule, and the candidates that mode ``max`` measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from sympy import Expr

from smelt.records import dataclass, replace

SMALLEST, LARGEST, NARROW_LARGEST = 16, 64, 128
"""Rows and columns of a tile: the fewest that a GPU multiplies at once, the most, and the most where all
operands are 16-bit floats, which have units of their own.
"""
DEPTH = 32
"""Terms of a block."""
MANY = 4096
"""Elements of a tile that eight warps share."""
LEAST_TERMS = 256
"""The fewest terms of a part."""
MOST_PARTS = 32
SHARED = 160 * 1024
"""Bytes of the blocks that are on their way at once."""
SHAPES = (
    *((128, 128, 32), (128, 128, 64), (128, 256, 64), (256, 128, 64), (128, 64, 64), (64, 128, 64)),
    *((64, 64, 64), (64, 32, 64), (32, 64, 64), (16, 64, 128), (64, 16, 128), (16, 128, 64), (32, 32, 64)),
)
"""Rows, columns and terms of the tiles of 16-bit floats that are measured."""
WIDE_SHAPES = (
    (64, 64, 32),
    (128, 64, 32),
    (64, 128, 32),
    (64, 64, 16),
    (32, 32, 32),
    (16, 64, 32),
    (64, 16, 32),
)
"""Those of float32."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """``rows``, ``columns`` and ``depth`` (terms) of the blocks that a program multiplies. ``parts``: of the
    terms, each with sums of its own, which a second kernel adds in order. ``stages``: the blocks that are
    loaded ahead. ``descriptors``: a GPU's copy engine loads them, and each program has several tiles.

    >>> print(Tiles(128, 64, 32, parts=4, descriptors=True))
    128x64x32, 4 parts, 4 warps, 3 stages, descriptors
    """

    rows: int
    columns: int
    depth: int
    parts: int = 1
    warps: int = 4
    stages: int = 3
    descriptors: bool = False

    def __str__(self) -> str:
        parts = [f"{self.rows}x{self.columns}x{self.depth}"]
        parts += [f"{self.parts} parts"] if self.parts > 1 else []
        parts += [f"{self.warps} warps", f"{self.stages} stages"]
        return ", ".join([*parts, "descriptors"] if self.descriptors else parts)

    @property
    def notes(self) -> tuple[tuple[str, Any], ...]:
        """As annotations of a loop."""
        return tuple(asdict(self).items())


@dataclass(frozen=True, slots=True)
class Extents:
    """The sizes of a product, as numbers. ``narrow``: its operands are 16-bit floats."""

    batch: int
    rows: int
    columns: int
    terms: int
    narrow: bool

    def tiles(self, tiles: Tiles) -> int:
        """The tiles of the result."""
        return self.batch * -(-self.rows // tiles.rows) * -(-self.columns // tiles.columns)


def usual_tiles(extents: Extents, multiprocessors: int, split: Sequence[Expr] = ()) -> Tiles:
    """The tiles of the rule; ``split``: the dimensions of the terms that may be split into parts."""
    largest = NARROW_LARGEST if extents.narrow else LARGEST
    rows, columns = (
        min(largest, max(SMALLEST, power_of_two(size))) for size in (extents.rows, extents.columns)
    )
    depth = min(DEPTH, max(SMALLEST, power_of_two(extents.terms)))
    tiles = Tiles(rows, columns, depth, warps=8 if rows * columns >= MANY else 4)
    return replace(tiles, parts=_parts(extents, tiles, multiprocessors, split))


def _parts(extents: Extents, tiles: Tiles, multiprocessors: int, split: Sequence[Expr]) -> int:
    """The parts of the terms for which there are programs enough for all multiprocessors."""
    programs = max(1, extents.tiles(tiles))
    wanted = min(multiprocessors // programs, extents.terms // LEAST_TERMS, MOST_PARTS)
    return max((divisor_of(size, wanted) for size in split), default=1) if wanted > 1 else 1


def split_dim(split: Sequence[Expr], parts: int) -> int | None:
    """The dimension that is split into so many equal parts; None if there is none."""
    return next((d for d, size in enumerate(split) if size.is_Integer and int(size) % parts == 0), None)


def candidates(
    extents: Extents, multiprocessors: int, descriptors: bool, split: Sequence[Expr]
) -> Iterator[Tiles]:
    """Tiles to measure, those of the rule first: no larger than the product, with and without parts."""
    usual = usual_tiles(extents, multiprocessors, split)
    yield usual
    size = 2 if extents.narrow else 4
    fits = [power_of_two(max(each, SMALLEST)) for each in (extents.rows, extents.columns, extents.terms)]
    seen = {usual}
    for rows, columns, depth in SHAPES if extents.narrow else WIDE_SHAPES:
        if rows > fits[0] or columns > fits[1] or depth > fits[2]:
            continue
        stages = max(2, min(4, SHARED // ((rows + columns) * depth * size)))
        plain = Tiles(rows, columns, depth, warps=8 if rows * columns >= 4 * MANY else 4, stages=stages)
        parts = _parts(extents, plain, multiprocessors, split)
        found = [plain]
        if parts > 1:
            found.append(replace(plain, parts=parts))
        if descriptors and rows * columns >= 2 * MANY:
            found.append(replace(plain, descriptors=True))
        for each in found:
            if each not in seen:
                seen.add(each)
                yield each


def divisor_of(size: Expr, most: int) -> int:
    """The largest divisor of a size that is a number, up to ``most``."""
    return (
        max((each for each in range(1, most + 1) if int(size) % each == 0), default=1)
        if size.is_Integer
        else 1
    )


def power_of_two(size: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(0, size - 1).bit_length()
