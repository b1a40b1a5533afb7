"""Loops that store one number, as fills: zero halos of convolutions' inputs, tiles before their first sum.

    for i in 58: vector for j in 64: x[3712*i + j + 3712] = 0      →      stage fill: …

A target has one function for all of them (`smelt.nest.ir.Text`).
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from sympy import Expr, Symbol

from smelt.nest.ir import Block, For, Let, Operand, Stage, Stmt, Store, Text
from smelt.nest.primitives.turning import Memories
from smelt.nest.tree import trip_count
from smelt.symbolic import flatten
from smelt.symbolic.affine import linear, replaced, symbols_in, times

ZERO = sympy.Integer(0)
FILLED = (torch.float32, torch.float64, torch.int32, torch.int64)
"""The dtypes that a fill stores."""


Range = tuple[Symbol, Expr, Expr]
"""The variable of a loop, its begin and its end."""


def fill(name: str, dtype: torch.dtype, value: float, index: Sequence[Expr], loops: Sequence[Range]) -> Stage:
    """The fill of the elements at an index in one loop or two; they are adjacent in the last."""
    body = Block((Let("value", dtype, "constant", (value,)), Store(name, tuple(index), "value")))
    for variable, begin, end in reversed(loops):
        body = Block((For(variable, begin, end, body),))
    numbers = tuple(range(len(loops)))
    operand = Operand("Y", dtype, True, 0, numbers, (None, 1)[-len(loops) :])
    counts = tuple(zip(("rows", "length")[-len(loops) :], numbers))
    text = Text("fill", "", (operand,), parts=("fill",), counts=counts, form=("fill", value))
    return Stage("fill", (), body, text=text)


def fills(loop: For, memories: Memories) -> tuple[Stmt, ...]:
    """A nest that only stores numbers, as fills; empty where it does something else."""
    nest, values, stores = [loop], dict[str, Let](), list[Store]()
    while not stores:
        inner = None
        for stmt in nest[-1].body.stmts:
            if isinstance(stmt, Store):
                stores.append(stmt)
            elif isinstance(stmt, For) and inner is None:
                inner = stmt
            elif isinstance(stmt, Let) and stmt.op == "constant":
                values[stmt.name] = stmt
            else:
                return ()
        if (inner is None) != bool(stores):
            return ()
        if inner is not None:
            nest.append(inner)
    variables = {each.var for each in nest}
    if any(not variables.isdisjoint(symbols_in(each.begin) | symbols_in(each.end)) for each in nest):
        return ()
    found = [_fill(nest, store, values.get(store.value), memories) for store in stores]
    return () if None in found else tuple(each for each in found if each is not None)


def _fill(nest: Sequence[For], store: Store, value: Let | None, memories: Memories) -> Stmt | None:
    memory = memories[store.buffer]
    if value is None or store.mode is not None or memory.dtype not in FILLED:
        return None
    flat, variables = flatten(store.index, memory.strides), {each.var for each in nest}
    once: dict[Symbol, Expr] = {}
    steps: dict[Symbol, Expr] = {}
    outer: list[Range] = []
    for each in nest:
        step, rest = linear(flat, each.var)
        if each.var in symbols_in(rest) or not symbols_in(step).isdisjoint(variables):
            return None
        if trip_count(each) == 1:
            once[each.var] = each.begin
        else:
            outer.append((each.var, each.begin, each.end))
            steps[each.var] = step
    if not outer or steps[outer[-1][0]] != 1:
        return None
    variable, begin, end = outer.pop()
    while outer and begin == 0 and end.is_Integer and steps[outer[-1][0]] == end and len(store.index) == 1:
        joined, begin, end = outer[-1][0], times(outer[-1][1], end), times(outer[-1][2], end)
        once[joined] = ZERO
        outer.pop()
    index = [replaced(expr, once) for expr in store.index]
    loops = [*outer[-1:], (variable, begin, end)]
    made: Stmt = fill(store.buffer, memory.dtype, value.args[0], index, loops)
    for var, begin, end in reversed(outer[:-1]):
        made = For(var, begin, end, Block((made,)))
    return made
