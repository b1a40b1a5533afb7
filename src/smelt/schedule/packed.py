"""Loops over packed numbers and over pairs of 16-bit numbers: their indices as other loops' are, so that the
usual arrangement of loops reads adjacent memory.
"""

from __future__ import annotations

from itertools import pairwise

import sympy
import torch

from smelt.nest.dependence import carried_updates
from smelt.nest.ir import Block, For, Kernel, Let, LoopKind, Store
from smelt.nest.primitives import inner_loop, split, unroll
from smelt.nest.tree import accesses, exprs_of, loops, replace_loop, trip_count, walk
from smelt.records import replace
from smelt.schedule.loops import NestContext
from smelt.symbolic import FloorDiv, Mod
from smelt.symbolic.affine import coefficient, divided, remainder, replaced


def rounded_by(loop: For) -> list[int]:
    """The numbers that divide the loop's variable where an index is rounded, largest first: iterations of a
    group share an element, or a byte.
    """
    parts = {part for expr in exprs_of(loop.body) for part in expr.atoms(FloorDiv, Mod) if part.has(loop.var)}
    return sorted({int(part.args[1]) for part in parts if part.args[1].is_Integer}, reverse=True)


def split_rounded(kernel: Kernel, context: NestContext) -> Kernel:
    """Splits innermost loops whose indices are rounded, as those of packed numbers are, into groups that
    share an element, so that lanes read adjacent memory, or one element.

    for i in 64: a[16*(i//32) + i%16] …   →   for g in 2: unroll for h in 2: for l in 16: a[16*g + l] …
    """
    lanes = context.target.lanes
    for loop in loops(kernel.body) if context.config.vectorize else ():
        sizes, extent = rounded_by(loop), trip_count(loop)
        fixed = any(isinstance(stmt, For) for stmt in walk(loop.body))
        fixed |= context.config.ordered and carried_updates(loop) != []
        if fixed or loop.kind is not LoopKind.SERIAL or not sizes or not extent.is_Integer:
            continue
        if not all(
            coefficient(index[0], loop.var) == 1 for _, index, stored in accesses(loop.body) if stored
        ):
            continue
        steps = [int(extent), *sizes, *([lanes] if sizes[-1] > lanes else [])]
        if steps[-1] != lanes or steps[0] == lanes or any(a % b for a, b in pairwise(steps)):
            continue
        factors = [a // b for a, b in pairwise(steps[1:])]
        kernel, parts = split(kernel, loop.var, [None, *factors, lanes], predicated=False)
        if factors:
            kernel = unroll(kernel, parts[-2])
    return kernel


def pairs_as_one(kernel: Kernel, context: NestContext) -> Kernel:
    """Copies pairs of 16-bit numbers as 32 bits each.

    for i: for p in 2: b[2*f(i) + p] = a[2*g(i) + p]: bf16   →   for i: b[f(i)] = a[g(i)]: i32
    """
    del context
    around = loops(kernel.body)
    if not around or trip_count(around[-1]) != 2 or len(kernel.body.stmts) != 1:
        return kernel
    *outer, pair = around
    if not outer or any(inner_loop(a) is not b for a, b in pairwise(around)):
        return kernel
    stmts = pair.body.stmts
    if len(stmts) != 2 or any(param.dtype.itemsize != 2 for param in kernel.params):
        return kernel
    load, store = stmts
    if not (isinstance(load, Let) and load.op == "load" and isinstance(store, Store) and store.mode is None):
        return kernel
    rests = [replaced(index, {pair.var: sympy.Integer(0)}) for _, (index,), _ in accesses(pair.body)]
    adjacent = all(coefficient(index, pair.var) == 1 for _, (index,), _ in accesses(pair.body))
    sizes = [param.shape[0] for param in kernel.params]
    if store.value != load.name or not adjacent or any(remainder(each, 2) != 0 for each in (*rests, *sizes)):
        return kernel
    source, place = (divided(each, 2) for each in rests)
    whole = (
        replace(load, dtype=torch.int32, args=(load.args[0], (source,))),
        replace(store, index=(place,)),
    )
    params = tuple(
        replace(param, dtype=torch.int32, shape=(divided(param.shape[0], 2),)) for param in kernel.params
    )
    body = replace_loop(kernel.body, outer[-1].var, lambda loop: (replace(loop, body=Block(whole)),))
    return replace(kernel, params=params, body=body)
