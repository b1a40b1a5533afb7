"""A register tile as a stage: targets print its form, its body is the definition (`smelt.nest.ir.Text`).

C[rows, width] = sum over terms of A[rows, terms] * P[terms, width]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import sympy
import torch
from sympy import Expr, Symbol

from smelt.nest.intrinsics import RESULTS
from smelt.nest.ir import (
    Advance,
    Block,
    Carry,
    For,
    Let,
    LoopKind,
    Operand,
    Prefetch,
    Stage,
    Stmt,
    Store,
    Text,
)
from smelt.records import dataclass
from smelt.symbolic.affine import affine, linear, symbols_in

ZERO = sympy.Integer(0)
F32 = torch.float32
Element = tuple[str, tuple[Expr, ...]]
"""A buffer, and the index of an element."""
Range = tuple[Symbol, Expr, Expr]
"""A loop over terms: its variable, its begin and its end."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The elements of a tile in an iteration of its loops.

    ``step``: the distance of terms in the panel, where its index has several dimensions. ``ahead``: what is
    prefetched with each term. ``result``: what happens to a sum (`smelt.nest.intrinsics.RESULTS`);
    ``factor``: the element that a row's are scaled by.
    """

    lhs: Element
    panel: Element
    into: Element
    step: int = 0
    ahead: Element | None = None
    result: str = "store"
    factor: Element | None = None

    def sums(self, terms: Sequence[Range], innermost: LoopKind = LoopKind.SERIAL) -> list[Stmt]:
        """The statements for an element of the result."""
        body: tuple[Stmt, ...] = (
            *(() if self.ahead is None else (Prefetch(*self.ahead),)),
            Let("a", F32, "load", self.lhs),
            Let("q", F32, "load", self.panel),
            Let("s", F32, "read", ("total", 0)),
            Let("n", F32, "fma", ("a", "q", "s")),
            Advance("total", "n"),
        )
        kind = innermost
        for variable, begin, end in reversed(terms):
            body = (For(variable, begin, end, Block(body), kind),)
            kind = LoopKind.SERIAL
        stmts = [Carry("total", F32, 0.0), *body, Let("sum", F32, "read", ("total", 0))]
        op, args = RESULTS[self.result]
        if "factor" in args:
            assert self.factor is not None
            stmts.append(Let("factor", F32, "load", self.factor))
        if "before" in args:
            stmts.append(Let("before", F32, "load", self.into))
        if op:
            stmts.append(Let("result", F32, op, args))
        return [*stmts, Store(*self.into, "result" if op else "sum")]

    def stage(
        self, row: Symbol, column: Symbol, terms: Sequence[Range], rows: int, width: int, lanes: int
    ) -> Stage | None:
        """The tile as a stage; None if addresses do not advance by a stride with each loop.

        Rows may be anywhere: where they have no stride, each has a pointer.
        """
        over = [variable for variable, _, _ in terms]
        loops = {row: 0, column: 1, **{variable: number for number, variable in enumerate(over, 2)}}
        _, used = RESULTS[self.result]
        scaled, loaded = "factor" in used, "before" in used
        step = stride(self.panel, over[-1])
        step = self.step if step is None else int(step) if step.is_Integer else 0
        contiguous = all(stride(each, column) == 1 for each in (self.panel, self.into))
        if not contiguous or not step:
            return None
        adjacent = {over[-1]: 1} if stride(self.lhs, over[-1]) == 1 else {}
        operands = [
            _operand("A", 0, self.lhs, (row, *over), loops, adjacent),
            _operand("P", 1, self.panel, (*over, column), loops, {over[-1]: step, column: 1}),
            _operand("C", 2 + scaled, self.into, (row, column), loops, {column: 1}, written=True),
        ]
        if scaled and self.factor is not None:
            operands.append(_operand("F", 2, self.factor, (row,), loops))
        if self.ahead is not None:
            operands.append(_operand("N", 3 + scaled + loaded, self.ahead, over, loops))
        found = tuple(operand for operand in operands if operand is not None)
        if len(found) < len(operands):
            return None
        body: Stmt = For(column, ZERO, sympy.Integer(width), Block(tuple(self.sums(terms))))
        body = For(row, ZERO, sympy.Integer(rows), Block((body,)))
        counts = tuple((f"n{number}", loops[variable]) for number, variable in enumerate(over))
        form = ("register_tile", rows, width, lanes, self.result, 0)
        return Stage("tile", (), Block((body,)), text=Text("tile", "", found, counts=counts, form=form))


def _operand(
    name: str,
    access: int,
    element: Element,
    over: Sequence[Symbol],
    loops: Mapping[Symbol, int],
    strides: Mapping[Symbol, int] = MappingProxyType({}),
    *,
    written: bool = False,
) -> Operand | None:
    """The operand that is accessed at an element; ``strides``: known ones. None if a loop has none there."""
    _, index = element
    parts, each = [affine(expr, over) for expr in index], None
    if None in parts and loops[over[0]] == 0:  # rows
        each, over = over[0], over[1:]
        parts = [affine(expr, over) for expr in index]
    others = loops.keys() - {*over, each}
    for found in parts:
        if found is None:
            return None
        coefficients, rest = found
        inside = frozenset().union(*map(symbols_in, coefficients))
        if not inside.isdisjoint(loops) or not symbols_in(rest).isdisjoint(others):
            return None
    need = tuple(strides.get(symbol) for symbol in over)
    numbers = tuple(loops[symbol] for symbol in over)
    return Operand(name, F32, written, access, numbers, need, None if each is None else loops[each])


def stride(element: Element, symbol: Symbol) -> Expr | None:
    """The distance of elements in iterations of a loop, if the index alone says it."""
    *outer, innermost = element[1]
    return None if any(expr.has(symbol) for expr in outer) else linear(innermost, symbol)[0]
