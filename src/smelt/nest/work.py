"""The work of a kernel in operations and bytes, for performance tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from sympy import Expr, Symbol

from smelt.nest.ir import (
    AxisKind,
    Block,
    For,
    Guard,
    Kernel,
    Let,
    Masked,
    Routine,
    SortRow,
    Stage,
    Store,
    Update,
)
from smelt.ops import TABLE
from smelt.records import dataclass
from smelt.symbolic import numel, size_hint

_FREE = ("maximum", "minimum", "where")
"""Operators that count as no arithmetic."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a kernel. ``operations``: executed, in units of one floating-point addition (an exponential
    counts 10, a fused multiply-add 2); ``moved``: bytes read and bytes written, each element of a buffer
    once.
    """

    operations: int
    moved: int


def work(kernel: Kernel, hints: Mapping[Symbol, int]) -> Work:
    """The work of one call of ``kernel`` at the sizes ``hints``.

    >>> import sympy, torch
    >>> from smelt.nest.ir import Param
    >>> i, n = sympy.symbols("i n", integer=True, nonnegative=True)
    >>> x = Param("x", torch.float32, (n,), (sympy.Integer(1),), written=True)
    >>> body = Block((Let("v", torch.float32, "load", ("x", (i,))),
    ...               Let("w", torch.float32, "add", ("v", "v")), Store("x", (i,), "w")))
    >>> loop = For(i, sympy.Integer(0), n, body)
    >>> work(Kernel("double", (x,), (n,), Block((loop,))), {n: 100})
    Work(operations=100, moved=800)
    """
    counter = _Counter(hints)
    counter.block(kernel.body, 1.0, {})
    moved = 0.0
    for param in kernel.params:
        whole = size_hint(numel(param.shape), hints)
        touched = min(counter.loads[param.name], whole) + min(counter.stores[param.name], whole)
        moved += touched * param.dtype.itemsize
    return Work(round(counter.operations), round(moved))


class _Counter:
    def __init__(self, hints: Mapping[Symbol, int]) -> None:
        self.hints = dict(hints)
        self.operations = 0.0
        self.loads: dict[str, float] = defaultdict(float)
        self.stores: dict[str, float] = defaultdict(float)

    def block(self, block: Block, times: float, last: Mapping[Symbol, int]) -> None:
        """``times``: how often the block runs; ``last``: the last iterations of the loops around it."""
        for stmt in block.stmts:
            if isinstance(stmt, For):
                trips = self._trips(stmt, last)
                whole = self._value(stmt.end, dict.fromkeys(last, 0))
                self.block(stmt.body, times * trips, {**last, stmt.var: max(whole - 1, 0)})
            elif isinstance(stmt, Stage):
                if stmt.init is not None:
                    reduced = (a.extent for a in stmt.axes if a.kind is AxisKind.REDUCE)
                    once = max(self._value(numel(reduced), last), 1)
                    self.block(stmt.init, times / once, last)
                self.block(stmt.body, times, last)
            elif isinstance(stmt, (Masked, Guard)):
                self.block(stmt.body, times, last)
            elif isinstance(stmt, Let):
                if stmt.index is not None:  # at most: it is below the size that it is checked against
                    self.hints[stmt.index] = max(self._value(stmt.args[1], last) - 1, 0)
                if stmt.op == "load":
                    self.loads[stmt.args[0]] += times
                elif stmt.op == "fma":
                    self.operations += 2 * times
                elif stmt.op in TABLE and stmt.op not in _FREE and stmt.dtype.is_floating_point:
                    self.operations += TABLE[stmt.op].cost * times
            elif isinstance(stmt, Store):
                self.stores[stmt.buffer] += times
                self.operations += times if stmt.mode is not None else 0
            elif isinstance(stmt, Update):
                self.operations += times
            elif isinstance(stmt, Routine):
                self.operations += times * math.prod(max(self._value(each, {}), 1) for each in stmt.numbers)
            elif isinstance(stmt, SortRow):
                length = max(self._value(stmt.length, {}), 1)
                self.operations += times * length * math.log2(length + 1)
                self.loads[stmt.source] += times * length
                for name in (stmt.values, stmt.positions):
                    if name is not None:
                        self.stores[name] += times * self._value(stmt.limit, {})

    def _trips(self, loop: For, last: Mapping[Symbol, int]) -> float:
        """The average trip count of a loop; a loop with a clipped end has fewer iterations in its last
        block.
        """
        extent = loop.end - loop.begin
        first = max(self._value(extent, dict.fromkeys(last, 0)), 0)
        around = [symbol for symbol in last if extent.has(symbol)]
        if len(around) != 1:
            return first
        trips = last[around[0]] + 1
        return ((trips - 1) * first + max(self._value(extent, last), 0)) / trips

    def _value(self, expr: Expr, loops: Mapping[Symbol, int]) -> int:
        return size_hint(expr, {**self.hints, **loops})
