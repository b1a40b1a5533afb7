"""Schedules written without the primitives: for tests of what comes after them."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
from sympy import Symbol

from smelt.nest.ir import Block, For, Kernel, LoopKind, Stage, Stmt
from smelt.nest.stages import Fresh, names_of
from smelt.nest.tree import find, replace_loop, rewritten, substitute, with_body
from smelt.records import replace
from smelt.symbolic.affine import divided


def cut(kernel: Kernel, var: Symbol, factor: int) -> tuple[Kernel, Symbol, Symbol]:
    """The loop over ``var`` as two, the inner one of ``factor`` iterations, conditional at the tail."""
    fresh = Fresh(names_of(kernel))
    outer, inner = fresh(f"{var.name}_0"), fresh(f"{var.name}_1")
    loop = find(kernel.body, var)
    at = outer * factor + inner
    even = loop.end.is_Integer and int(loop.end) % factor == 0

    def guard(stmt: Stmt) -> Sequence[Stmt] | None:
        if isinstance(stmt, Stage) and not even:
            return [replace(stmt, where=(*stmt.where, sympy.Lt(at, loop.end)))]
        return None

    body = substitute(rewritten(loop.body, guard), {var: at})
    within = For(inner, sympy.Integer(0), sympy.Integer(factor), body)
    new = For(
        outer, sympy.Integer(0), divided(loop.end + factor - 1, sympy.Integer(factor)), Block((within,))
    )
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (new,))), outer, inner


def reorder(kernel: Kernel, order: Sequence[Symbol]) -> Kernel:
    """Perfectly nested loops in another order."""
    loops = {var: find(kernel.body, var) for var in order}
    outer = max(loops.values(), key=lambda loop: sum(each.var != loop.var for each in _inside(loop)))
    innermost = min(loops.values(), key=lambda loop: len(_inside(loop)))
    body = innermost.body
    for var in reversed(order):
        body = Block((replace(loops[var], body=body),))
    return with_body(kernel, replace_loop(kernel.body, outer.var, lambda _: body.stmts))


def _inside(loop: For) -> list[For]:
    found = []
    inner = loop.body.stmts[0] if loop.body.stmts else None
    while isinstance(inner, For):
        found.append(inner)
        inner = inner.body.stmts[0]
    return found


def run_as(kernel: Kernel, var: Symbol, kind: LoopKind) -> Kernel:
    return with_body(kernel, replace_loop(kernel.body, var, lambda loop: (replace(loop, kind=kind),)))
