"""The GPU recipe of matrix products: tiles of rows and columns, whose sums are products of small blocks.

    for i, j: acc; for k: acc += a[i, k] * b[k, j]; …; c[i, j] = acc
        →  for tile on blockIdx.x: for i on threadIdx.y: for j on threadIdx.x:
               acc; for k' in depth/32: for k on threadIdx.z: acc += a[i, k] * b[k, j]
               …; c[i, j] = acc

A loop on ``threadIdx.z`` adds products of two values, of which one depends on rows and terms and the other on
terms and columns: it becomes one multiplication of blocks. Convolutions have several loops of rows and terms,
which are fused; loops that both values depend on are a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from sympy import Symbol

from smelt.nest.ir import Accumulate, Alloc, Block, Carry, For, Kernel, Let, Masked, Update
from smelt.nest.primitives import fuse, inner_loop, not_parallel, own_memory, reorder, split
from smelt.nest.primitives.kinds import annotate, bind
from smelt.nest.tree import (
    accesses,
    find,
    loops,
    needed,
    replace_loop,
    symbols_of,
    trip_count,
    walk,
    with_body,
)
from smelt.records import dataclass, replace
from smelt.schedule.loops import NestContext
from smelt.schedule.products.elements import chain_of
from smelt.schedule.tilings import Extents, Tiles, divisor_of, usual_tiles
from smelt.symbolic import size_hint

TOGETHER = 8
"""The most tiles of rows that use the same columns one after another, while these are in the cache."""


@dataclass(frozen=True, slots=True)
class Dot:
    """The loops of a product, outermost first. ``narrow``: both operands are read as 16-bit floats."""

    batch: list[Symbol]
    rows: list[Symbol]
    columns: list[Symbol]
    terms: list[Symbol]
    narrow: bool


def choose_dots(kernel: Kernel, context: NestContext) -> Kernel:
    """Tiles a nest that is a matrix product, by the annotations of its terms or by the rule, and binds its
    loops to programs and lanes.
    """
    kernel, notes = _without_notes(kernel)
    found = dot_of(kernel)
    if found is None or not found.rows:
        return kernel
    extents = _extents(kernel, found, context)
    tiles = Tiles(**notes) if notes else usual_tiles(extents, 1)
    kernel = reorder(kernel, [*found.batch, *found.rows, *found.columns], proved=True)
    kernel, i = fused(kernel, found.rows)
    kernel, j = fused(kernel, found.columns)
    kernel, k = fused(kernel, found.terms)
    whole = tuple(trip_count(find(kernel.body, var)) for var in (i, j, k))
    kernel, rows, i = _tiled(kernel, i, tiles.rows)
    kernel, columns, j = _tiled(kernel, j, tiles.columns)
    kernel, _, k = _tiled(kernel, k, tiles.depth)
    kernel = reorder(kernel, [*rows, *columns, i, j], proved=True)
    if rows and columns:
        kernel, (rows, columns) = _together(kernel, *rows, *columns)
    outer = [*found.batch, *rows, *columns]
    if outer:
        kernel, grid = fused(kernel, outer)
        count = trip_count(find(kernel.body, grid))
        if tiles.descriptors and not (count.is_Integer and count <= context.target.multiprocessors):
            kernel, (several, grid) = split(kernel, grid, [None, context.target.multiprocessors])
            kernel = reorder(kernel, [grid, several], proved=True)
        kernel = bind(kernel, grid, "blockIdx.x", proved=True)
    for var, thread in ((i, "threadIdx.y"), (j, "threadIdx.x"), (k, "threadIdx.z")):
        kernel = bind(kernel, var, thread, proved=True)
    for name, value in (*tiles.notes, ("extents", whole)):
        kernel = annotate(kernel, k, name, value)
    return kernel


def _without_notes(kernel: Kernel) -> tuple[Kernel, dict[str, Any]]:
    """The kernel without the annotations of its loops, and these."""
    notes: dict[str, Any] = {}
    for loop in loops(kernel.body):
        if loop.notes:
            notes |= dict(loop.notes)
            bare = (replace(loop, notes=()),)
            kernel = with_body(kernel, replace_loop(kernel.body, loop.var, _always(bare)))
    return kernel, notes


def _always(stmts: tuple[For, ...]) -> Callable[[For], tuple[For, ...]]:
    return lambda _: stmts


def _extents(kernel: Kernel, dot: Dot, context: NestContext) -> Extents:
    def size(variables: list[Symbol]) -> int:
        return prod(size_hint(trip_count(find(kernel.body, var)), context.hints) for var in variables)

    return Extents(size(dot.batch), size(dot.rows), size(dot.columns), size(dot.terms), dot.narrow)


def _tiled(kernel: Kernel, var: Symbol, tile: int) -> tuple[Kernel, list[Symbol], Symbol]:
    """Splits a loop into tiles: the loop over them, unless one is all, and the loop in one."""
    size = trip_count(find(kernel.body, var))
    if size.is_Integer and size <= tile:
        return kernel, [], var
    kernel, (outer, inner) = split(kernel, var, [None, tile], plain=True)
    return kernel, [outer], inner


def _together(
    kernel: Kernel, rows: Symbol, columns: Symbol
) -> tuple[Kernel, tuple[list[Symbol], list[Symbol]]]:
    """The loops over tiles: some tiles of rows use the same columns one after another."""
    count = trip_count(find(kernel.body, rows))
    together = divisor_of(count, TOGETHER)
    if together == 1 or count == together:
        return kernel, ([rows], [columns])
    kernel, (group, rows) = split(kernel, rows, [None, together], predicated=False)
    return reorder(kernel, [group, columns, rows], proved=True), ([group], [columns, rows])


def dot_of(kernel: Kernel) -> Dot | None:
    """The loops of a nest whose only sum is a matrix product; None if it is something else."""
    chain = chain_of(kernel)
    block = chain[-1].body if chain else kernel.body
    sums = [stmt for stmt in block.stmts if isinstance(stmt, Accumulate)]
    inner = [stmt for stmt in block.stmts if isinstance(stmt, For)]
    if len(sums) != 1 or len(inner) != 1 or sums[0].kind != "sum" or not sums[0].dtype.is_floating_point:
        return None
    if any(isinstance(stmt, (Alloc, Carry)) for stmt in walk(kernel.body)):
        return None
    terms = [inner[0]]
    while (each := inner_loop(terms[-1])) is not None:
        terms.append(each)
    if any(not_parallel(loop, own_memory(kernel, loop)) is not None for loop in chain):
        return None
    operands = operands_of(terms[-1].body, sums[0].name)
    if operands is None or any(loop.begin != 0 for loop in (*chain, *terms)):
        return None
    left, right = (symbols_of(needed(terms[-1].body, name)) for name in operands)
    variables = [loop.var for loop in chain]
    if variables and variables[-1] in left:
        left, right = right, left
    rows = [var for var in variables if var in left and var not in right]
    columns = [var for var in variables if var in right and var not in left]
    batch = [var for var in variables if var in left and var in right]
    if not columns or len(rows) + len(columns) + len(batch) != len(variables):
        return None
    bounds = {symbol for loop in (*chain, *terms) for symbol in loop.end.free_symbols}
    if not bounds.isdisjoint([*variables, *(loop.var for loop in terms)]):
        return None
    read = {buffer for buffer, _, stored in accesses(terms[-1].body) if not stored}
    narrow = all(param.dtype.itemsize == 2 for param in kernel.params if param.name in read)
    return Dot(batch, rows, columns, [loop.var for loop in terms], narrow)


def operands_of(block: Block, name: str) -> tuple[str, str] | None:
    """The two values whose product is added to an accumulator by a loop that does nothing else."""
    last = block.stmts[-1] if block.stmts else None
    if not isinstance(last, Update) or last.acc != name or last.merge or last.position is not None:
        return None
    if not all(isinstance(stmt, (Let, Masked)) for stmt in block.stmts[:-1]):
        return None
    made = next((stmt for stmt in block.stmts if isinstance(stmt, Let) and stmt.name == last.value), None)
    if made is None or made.op != "mul" or made.args[0] == made.args[1]:
        return None
    return made.args[0], made.args[1]


def fused(kernel: Kernel, variables: list[Symbol]) -> tuple[Kernel, Symbol]:
    """Fuses loops; one is left as it is."""
    return fuse(kernel, variables, plain=True) if len(variables) > 1 else (kernel, variables[0])
