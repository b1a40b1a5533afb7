"""The GPU recipe of matrix products on smelt's own nests: finds the loops of a product, and tiles them as
people's schedules do (`smelt.schedule.recipes.dots`).

Convolutions have several loops of rows and terms, which are fused; loops that both values depend on are a
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from sympy import Expr, Symbol

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
from smelt.schedule.recipes.dots import Lanes, tile
from smelt.schedule.tilings import Extents, Tiles, usual_tiles
from smelt.symbolic import size_hint


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
    loops to programs and lanes (`smelt.schedule.recipes.dots.tile`).
    """
    kernel, notes = _without_notes(kernel)
    found = dot_of(kernel)
    if found is None or not found.rows:
        return kernel
    extents = _extents(kernel, found, context)
    tiles = Tiles(**notes) if notes else usual_tiles(extents, 1)
    steps = Steps(reorder(kernel, [*found.batch, *found.rows, *found.columns], proved=True))
    lanes = Lanes(found.rows, found.columns, found.terms)
    tile(steps, steps.cut, found.batch, lanes, tiles, context.target.multiprocessors)
    return steps.kernel


class Steps:
    """A schedule's steps on plain loops that are known to be independent; loops are their variables."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def get(self, var: Symbol) -> Sized:
        return Sized(trip_count(find(self.kernel.body, var)))

    def split(
        self, var: Symbol, factors: Sequence[int | None], disable_predication: bool = False
    ) -> list[Symbol]:
        self.kernel, made = split(self.kernel, var, factors, predicated=not disable_predication)
        return made

    def cut(self, var: Symbol, factors: Sequence[int | None]) -> list[Symbol]:
        """`split`, with the remainder in the bounds of the inner loop."""
        self.kernel, made = split(self.kernel, var, factors, plain=True)
        return made

    def fuse(self, *variables: Symbol) -> Symbol:
        self.kernel, made = fuse(self.kernel, variables, plain=True)
        return made

    def reorder(self, *variables: Symbol) -> None:
        self.kernel = reorder(self.kernel, variables, proved=True)

    def bind(self, var: Symbol, thread: str) -> None:
        self.kernel = bind(self.kernel, var, thread, proved=True)

    def annotate(self, var: Symbol, key: str, value: Any) -> None:
        self.kernel = annotate(self.kernel, var, key, value)


class Sized(NamedTuple):
    """What `tile` asks a loop for."""

    extent: Expr


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
