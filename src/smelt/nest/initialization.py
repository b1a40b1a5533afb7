"""Initialization of reductions: hoisted in front of the loops that reduce, and done where those have no
iterations.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy
from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import Axis, Block, For, Guard, Kernel, Stage, Stmt
from smelt.nest.primitives.common import in_loops
from smelt.nest.primitives.reductions import first_values
from smelt.nest.stages import Fresh, guarded, names_of
from smelt.nest.tree import (
    accesses,
    local_buffers,
    nested,
    other_axes,
    reduced_axes,
    stages,
    substitute,
    with_blocks,
    with_body,
)
from smelt.records import replace
from smelt.symbolic import free_symbols
from smelt.symbolic.affine import linear, replaced, symbols_in


def hoist_initialization(kernel: Kernel, lanes: int) -> Kernel:
    """Stores the initial values of a reduction in loops of their own, in front of the loops that reduce.

    for k: for i: if k == 0: C[i] = 0; C[i] += x   →   for i: C[i] = 0; for k: for i: C[i] += x

    Elements of empty reductions are initialized as well (`initialize_empty_reductions`).
    """
    del lanes
    return with_body(kernel, _initialized(kernel.body, Fresh(names_of(kernel)), frozenset(), True))


def initialize_empty_reductions(kernel: Kernel) -> Kernel:
    """Initializes the elements of empty reductions, which no iteration of the loops around them reaches.

    for k in n: P; stage C (init: C[i] = 0)   →   if n <= 0: for i: C[i] = 0
                                                  for k in n: P; stage C
    """
    if not any(stage.init is not None for stage in stages(kernel.body)):
        return kernel
    return with_body(kernel, _initialized(kernel.body, Fresh(names_of(kernel)), frozenset(), False))


def _initialized(block: Block, fresh: Fresh, outer: frozenset[Symbol], hoist: bool) -> Block:
    """``outer``: the variables of the loops, and axes of stages, around the block."""
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        inside = outer
        if isinstance(stmt, For):
            found = _hoisted(stmt, fresh) if hoist else None
            if found is not None:
                stmts += found
                continue
            stmts += _empty_initialization(stmt, fresh, outer)
            inside |= {stmt.var}
        elif isinstance(stmt, Stage):
            inside |= {axis.var for axis in stmt.axes}
        stmts.append(
            with_blocks(stmt, lambda inner, inside=inside: _initialized(inner, fresh, inside, hoist))  # type: ignore[misc]
        )
    return Block(tuple(stmts))


# -- where nothing is reduced --------------------------------------------------------------------------------


def _empty_initialization(loop: For, fresh: Fresh, outer: frozenset[Symbol]) -> list[Stmt]:
    """The initializations of the empty reductions inside ``loop``, their outermost loop."""
    found: list[Stmt] = []
    own = local_buffers(loop.body)
    for around, where, stage in _reductions(loop, (), ()):
        assert stage.init is not None
        dropped = {symbol for axis in reduced_axes(stage) for symbol in symbols_in(axis.value)}
        empty = sympy.Or(*(sympy.Le(axis.extent, 0) for axis in reduced_axes(stage)))
        kept_outside = all(buffer in own for buffer, _, is_store in accesses(stage.init) if is_store)
        if empty == sympy.false or loop.var not in dropped or dropped & outer or kept_outside:
            continue
        for each in around:
            if not dropped.isdisjoint(symbols_in(each.begin) | symbols_in(each.end)):
                dropped.add(each.var)
        mixed = [each for each in where if not dropped.isdisjoint(each.free_symbols)]
        unknown = dropped | {symbol for each in mixed for symbol in each.free_symbols}
        loops = [each for each in around if each.var not in dropped]
        variables = {each.var for each in loops} | outer
        axes: list[Axis] = []
        for axis in other_axes(stage):
            if not unknown.isdisjoint(symbols_in(axis.value)):  # all of its values: one initial value for all
                var = fresh(f"{axis.var.name}_whole")
                loops.append(For(var, axis.begin, axis.begin + axis.extent, Block()))
                axis = replace(axis, value=var)
            elif variables.isdisjoint(symbols_in(axis.value)):
                empty = sympy.And(empty, sympy.Gt(axis.extent, 0))
            axes.append(axis)
        known = tuple(each for each in where if each not in mixed)
        begun = first_values(
            replace(stage, axes=tuple(axes), where=known), f"{stage.name}_empty_initialization", loops, fresh
        )
        found += guarded([empty], Block((begun,)))
    return found


def _reductions(
    stmt: Stmt, around: tuple[For, ...], where: tuple[Boolean, ...]
) -> Iterator[tuple[tuple[For, ...], tuple[Boolean, ...], Stage]]:
    """The stages in a statement that have an ``init``, the loops around each, and its conditions; axes of
    outer stages are substituted by their values.
    """
    inner: tuple[Stmt, ...] = ()
    if isinstance(stmt, For):
        inner, around = stmt.body.stmts, (*around, stmt)
    elif isinstance(stmt, Guard):
        inner, where = stmt.body.stmts, (*where, stmt.condition)
    elif isinstance(stmt, Stage):
        where = (*where, *stmt.where)
        if stmt.init is not None:
            yield around, where, stmt
        elif stages(stmt.body):
            inner = substitute(stmt.body, {axis.var: axis.value for axis in stmt.axes}).stmts
    for each in inner:
        yield from _reductions(each, around, where)


# -- in front of the loops that reduce -----------------------------------------------------------------------


def _hoisted(loop: For, fresh: Fresh) -> list[Stmt] | None:
    """A reducing loop with its initialization in front; None for other loops, or where it cannot be split
    off.
    """
    chain, held = nested(loop)
    stage = held[0] if len(held) == 1 else None
    if (
        not isinstance(stage, Stage)
        or stage.init is None
        or any(axis.extent == 0 for axis in other_axes(stage))
    ):
        return None
    reduce = reduced_axes(stage)
    others = [axis.value for axis in other_axes(stage)]
    variables = {symbol for axis in reduce for symbol in symbols_in(axis.value)}
    reducing = {each.var: each.begin for each in chain if each.var in variables}
    kept = [each for each in chain if each.var not in variables]
    bounds = [bound for each in kept for bound in (each.begin, each.end)]
    where = [each for each in stage.where if reducing.keys().isdisjoint(each.free_symbols)]
    mixed = any(
        not {each.var for each in kept}.isdisjoint(e.free_symbols) for e in stage.where if e not in where
    )
    if loop.var not in reducing or mixed or not reducing.keys().isdisjoint(free_symbols([*others, *bounds])):
        return None
    if not all(_rises(axis.value, var) for axis in reduce for var in reducing) or not _same_places(stage):
        return None
    firsts = [sympy.Eq(replaced(axis.value, reducing), axis.begin) for axis in reduce]
    body = Block((first_values(stage, f"{stage.name}_init", chain, fresh),))
    return [*guarded(firsts, body), in_loops(chain, replace(stage, init=None))]


def _rises(expr: Expr, var: Symbol) -> bool:
    """Whether an index increases strictly with ``var``, or does not depend on it."""
    step, rest = linear(expr, var)
    return var not in symbols_in(rest) and bool(step == 0 or (step.is_Integer and step > 0))


def _same_places(stage: Stage) -> bool:
    """Whether a stage accesses the buffer that it initializes only at its current element."""
    assert stage.init is not None
    places = {buffer: index for buffer, index, is_store in accesses(stage.init) if is_store}
    touched = [*accesses(stage.init), *accesses(stage.body)]
    return all(places.get(buffer, index) == index for buffer, index, _ in touched)


__all__ = ["hoist_initialization", "initialize_empty_reductions"]
