"""The parts of attention's nests for a GPU: programs, lanes, products of blocks, scores.

    for some rows on blockIdx.x: for row on threadIdx.y:
        for each block: for column on threadIdx.x: for term on threadIdx.z: sum of left * right
                                                   …

A row of a nest is kept in registers; a sum over ``threadIdx.z`` is a product of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.ir import Attention, AttentionGradients, Attentions
from smelt.loops.record import RecordedValue
from smelt.lowering.dims import convert
from smelt.nest.claims import prove
from smelt.nest.ir import Accumulate, Alloc, Block, For, Let, Stmt, Store, Update
from smelt.nest.primitives import fuse, hoist
from smelt.nest.primitives.kinds import bind
from smelt.ops import ops
from smelt.schedule.grouping.items import Item, Work
from smelt.schedule.loops import Target
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.tiles import F32, ZERO, TileWriter, ceiling
from smelt.schedule.tilings import SMALLEST, power_of_two
from smelt.symbolic import flatten, least, size_hint

Value = Callable[[], Any]
"""A loop function at a known index."""

LARGEST = 256
"""The most terms and columns that fit in registers."""


def tile(narrow: bool, width: int, gradients: bool = False) -> tuple[int, int]:
    """The most rows of a program, and those of a block, for rows of ``width`` elements: as many as registers
    and shared memory hold. ``narrow``: products are of 16-bit floats.
    """
    wide = width > 64
    if narrow:
        return ((32, 32) if wide else (64, 64)) if gradients else (128, 64)
    return 16 if wide and gradients else 32, 16 if wide else 32


def has_blocks(body: Attentions) -> bool:
    """Whether there is a nest of this kind for an attention, or for its gradients."""
    of = body if isinstance(body, Attention) else body.attention
    if of.kept is not None or not body.dtype.is_floating_point:
        return False
    sizes = (body.shape[-1], body.reduce_shape[1])
    return body.dtype.itemsize <= 4 and all(size.is_Integer and 0 < size <= LARGEST for size in sizes)


class Blocks:
    """The base of the builders. ``outputs``: the buffers of the results, None for unused ones."""

    def __init__(self, work: Work, item: Item, outputs: Sequence[str | None], target: Target) -> None:
        body = item.body
        assert isinstance(body, (Attention, AttentionGradients))
        self.work, self.outputs = work, tuple(outputs)
        self.of = body if isinstance(body, Attention) else body.attention
        self.writer = TileWriter(work, item.node.origin, target.lanes)
        self.keys, self.depth = body.reduce_shape
        self.queries, self.columns = body.shape[-2:]
        self.narrow = self._narrow()
        self.rows, self.block = tile(
            self.narrow != F32, int(max(self.columns, self.depth)), isinstance(body, AttentionGradients)
        )

    def _narrow(self) -> torch.dtype:
        """The dtype that weights are rounded to, as ATen's kernels do: that of the values in memory, if they
        are 16-bit floats, whose products have units of their own.
        """
        at = [self.writer.variable() for _ in self.of.shape]
        stmts, value = self.writer.coded(lambda: self.of.value(at), "w")
        made = {stmt.name: stmt for stmt in stmts if isinstance(stmt, Let)}
        last = made.get(value)
        given = made.get(last.args[0]) if last is not None and last.op == "to_dtype" else None
        return given.dtype if given is not None and given.dtype.itemsize == 2 else F32

    def programs(
        self,
        sizes: Sequence[Expr],
        size: Expr,
        row: Callable[[tuple[Expr, ...], Expr, Expr], Iterable[Stmt]],
    ) -> BuiltKernel:
        """The kernel whose programs have some of ``size`` rows each, for all batches of ``sizes``.

        ``row`` makes the statements of a row, from its index and its program's first row and end.
        """
        writer = self.writer
        batch = [writer.variable(each) for each in sizes]
        rows = min(self.rows, max(SMALLEST, power_of_two(size_hint(size, self.work.graph.hints))))
        tile, own = writer.variable(), writer.variable()
        first, beyond = tile * rows, least(size, tile * rows + rows)
        body = Block(tuple(row((*batch, own), first, beyond)))
        nest = Block((For(own, first, beyond, body, thread="threadIdx.y"),))
        outer = [*batch, tile]
        for variable, count in reversed(list(zip(outer, (*sizes, ceiling(size, rows)), strict=True))):
            nest = Block((For(variable, ZERO, count, nest),))
        kernel = prove(writer.plain(nest))  # while loops are apart: sizes may be symbols
        kernel, grid = fuse(kernel, outer, plain=True) if batch else (kernel, tile)
        kernel = hoist(bind(kernel, grid, "blockIdx.x", proved=True))
        return BuiltKernel(kernel, tuple(writer.params), arranged=True)

    # -- products -------------------------------------------------------------------------------------------

    def product(
        self, into: str, terms: Expr, left: Callable[[Symbol], Value], right: Callable[[Symbol], Value]
    ) -> Iterator[Stmt]:
        """``into``: the sum over terms of left * right, as a product of blocks; ``{into}_`` is its value."""

        def term(r: Symbol) -> Iterator[Stmt]:
            one, first = self.writer.coded(left(r), f"{into}l")
            two, second = self.writer.coded(right(r), f"{into}r")
            yield from (*one, *two)
            yield from lets((f"{into}p", "mul", (first, second)))
            yield Update(into, f"{into}p")

        yield Accumulate(into, "sum", F32)
        yield self.lanes(terms, term, "threadIdx.z")
        yield from lets((f"{into}_", "read", (into, 0)))

    def weighted(
        self,
        row: str,
        into: str,
        length: Expr,
        end: Expr,
        value: Callable[[Symbol, Symbol], Value],
        factor: str | None = None,
    ) -> For:
        """``into[c] = into[c] * factor + sum over the block's places p of row[p] * value(p, c)``, for c below
        ``end``.
        """

        def column(c: Symbol) -> Iterator[Stmt]:
            def term(p: Symbol) -> Iterator[Stmt]:
                yield from self.rounded_again(row, p)
                stmts, found = self.writer.coded(value(p, c), "w")
                yield from stmts
                yield from lets(("v1", "mul", ("v0", found)))
                yield Update("sums", "v1")

            yield Accumulate("sums", "sum", F32)
            yield self.lanes(length, term, "threadIdx.z")
            yield read("f0", into, c)
            yield from () if factor is None else lets(("f1", "mul", ("f0", factor)))
            before = "f0" if factor is None else "f1"
            yield from lets(("f2", "read", ("sums", 0)), ("f3", "add", (before, "f2")))
            yield Store(into, (c,), "f3")

        return self.lanes(end, column)

    def weights(self, row: str) -> Alloc:
        """A row of weights."""
        return Alloc(row, self.narrow, (sympy.Integer(self.block),))

    def rounded(self, row: str, place: Symbol, value: str) -> Iterator[Stmt]:
        """Stores a weight."""
        if self.narrow != F32:
            yield Let(f"{value}_narrow", self.narrow, "to_dtype", (value,))
            value = f"{value}_narrow"
        yield Store(row, (place,), value)

    def rounded_again(self, row: str, place: Symbol) -> Iterator[Stmt]:
        """``v0``: a weight."""
        if self.narrow == F32:
            yield read("v0", row, place)
            return
        yield Let("v_narrow", self.narrow, "load", (row, (place,)))
        yield Let("v0", F32, "to_dtype", ("v_narrow",))

    # -- values ---------------------------------------------------------------------------------------------

    def score(self, at: tuple[Expr, ...], key: Expr, product: str) -> tuple[list[Stmt], str]:
        """The score of a product, -inf for a key that is not visible."""
        of = self.of

        def scored() -> object:
            found = of.score((*at, key), RecordedValue(product, F32))
            if of.seen is None:
                return found
            here, end = (ops.index_expr(each, torch.int64) for each in (key, of.seen(at)))
            return ops.where(ops.lt(here, end), found, ops.constant(-math.inf, F32))

        return self.writer.coded(scored, "s", {product: F32})

    def zeros(self, row: str, size: Expr) -> list[Stmt]:
        """A row of zeros, in registers."""
        return [Alloc(row, F32, (size,)), self.lanes(size, lambda c: [Store(row, (c,), "none")])]

    def stored(self, buffer: str, index: tuple[Expr, ...], value: str) -> Store:
        """Stores an element of a result."""
        into = self.writer.param(buffer, written=True)
        return Store(into, (flatten(index, self.work.buffers[buffer].strides),), value)

    def converted(self, buffer: str, index: tuple[Expr, ...], value: str) -> Iterator[Stmt]:
        """Stores an element of a result in its dtype."""
        made, dtype = RecordedValue(value, F32), self.of.dtype
        stmts, found = self.writer.coded(lambda: convert(made, F32, dtype), "h", {value: F32})
        yield from stmts
        yield self.stored(buffer, index, found)

    def lanes(self, end: Expr, body: Callable[[Symbol], Iterable[Stmt]], thread: str = "threadIdx.x") -> For:
        """A loop on lanes."""
        variable = self.writer.variable()
        return For(variable, ZERO, end, Block(tuple(body(variable))), thread=thread)


def length_from(begin: Expr, size: Expr, block: int) -> Expr:
    """The number of elements of a block of ``size`` elements that starts at ``begin``.

    >>> start = sympy.Symbol("b", integer=True, nonnegative=True) * 32
    >>> [length_from(start, sympy.Integer(size), 32) for size in (20, 64, 70)]
    [20, 32, Min(32, 70 - 32*b)]
    """
    if size.is_Integer and size <= block:
        return size
    full = sympy.Integer(block)
    return full if size.is_Integer and size % block == 0 else least(full, size - begin)


def read(name: str, row: str, place: Symbol) -> Let:
    """A value of a row."""
    return Let(name, F32, "load", (row, (place,)))


def lets(*given: tuple[str, str, tuple[object, ...]]) -> Iterator[Let]:
    """Values in float32, comparisons in bool: name, operator, arguments."""
    for name, op, args in given:
        yield Let(name, torch.bool if op in ("eq", "lt") else F32, op, args)


def constants(**given: float) -> Iterator[Let]:
    """Numbers in float32."""
    for name, value in given.items():
        yield Let(name, F32, "constant", (value,))
