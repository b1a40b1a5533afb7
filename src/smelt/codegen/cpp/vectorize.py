"""The plan of a VECTOR loop: the number of lanes, and whether there is a tail."""

from __future__ import annotations

from math import gcd, prod

import sympy
from sympy import Expr
from torch.utils._sympy.functions import Max, Min

from smelt.codegen.cpp.accumulators import updates_in
from smelt.nest.ir import For, Let, Masked, Stmt
from smelt.ops import TABLE
from smelt.records import dataclass

_CHEAP = 8
_WORTH = 11
_UPDATE_COST = {"welford": 5, "argmax": 15, "argmin": 15, "online_softmax": 45}


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """``lanes`` an iteration in the main loop (if ``main``), then ``tail_lanes`` under a mask unless
    ``exact``.
    """

    lanes: int
    tail_lanes: int
    main: bool
    exact: bool


def plan_vector_loop(loop: For, accumulators: dict[str, str]) -> VectorPlan:
    """Lanes for ``loop``; ``accumulators`` (name → kind) are those declared around it.

    A loop that feeds them takes 2 or 4 machine vectors at once while its body is cheap: that many independent
    chains hide the latency of one; a note ``chains`` says how many.
    """
    extent = loop.end - loop.begin
    count = int(extent) if extent.is_Integer else None
    kinds = [accumulators[name] for name in updates_in(loop.body.stmts) if name in accumulators]
    widest = dict(loop.notes).get("chains") or (_chains(loop, kinds) if kinds else 1)
    factor = widest
    while factor > 1 and count is not None and count < 2 * factor * loop.step:
        factor //= 2
    whole = _divisor(extent)
    for candidate in (factor, factor // 2):
        if candidate >= 1 and whole % (candidate * loop.step) == 0:
            return VectorPlan(candidate * loop.step, loop.step, True, True)
    lanes = factor * loop.step
    return VectorPlan(lanes, loop.step, count is None or count >= lanes, False)


def _divisor(expr: Expr) -> int:
    """A number that divides ``expr``, whatever its symbols are.

    >>> block = sympy.Symbol("block", integer=True)
    >>> _divisor(Min(160, 64 * block + 64) - 64 * block)
    32
    """
    if isinstance(expr, (sympy.Add, Min, Max)):
        return gcd(*map(_divisor, expr.args))
    coefficient, rest = expr.as_coeff_Mul()
    if not coefficient.is_Integer:
        return 1
    factors = (each for each in sympy.Mul.make_args(rest) if isinstance(each, (Min, Max)))
    return int(abs(coefficient)) * prod(map(_divisor, factors))


def _chains(loop: For, kinds: list[str]) -> int:
    cost = _cost(loop.body.stmts)
    if cost is None:
        return 1
    cost += sum(_UPDATE_COST.get(kind, 1) for kind in kinds)
    return 4 if cost <= _CHEAP else 2 if cost <= _WORTH else 1


def _cost(stmts: tuple[Stmt, ...]) -> int | None:
    """The cost of a body, or None if there is a loop inside."""
    total = 0
    for stmt in stmts:
        if isinstance(stmt, For):
            return None
        if isinstance(stmt, Masked):
            inner = _cost(stmt.body.stmts)
            if inner is None:
                return None
            total += inner
        elif isinstance(stmt, Let):
            total += TABLE[stmt.op].cost if stmt.op in TABLE else 1
    return total
