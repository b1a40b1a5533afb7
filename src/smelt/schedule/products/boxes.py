"""Boxes: the part of a buffer that an operand of a product reads, with zeros outside of the buffer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import sympy
from sympy import Expr, Symbol

from smelt.loops.dependencies import variables
from smelt.loops.ir import Contraction, Graph, Index, Value
from smelt.ops import ops
from smelt.records import dataclass, replace
from smelt.schedule.products.operands import (
    Product,
    expressions,
    loads_of,
    looks_up,
    operand_code,
)
from smelt.symbolic import simplify
from smelt.symbolic.affine import affine, difference, divided, expand, linear, replaced, times, total
from smelt.symbolic.bounds import bounds

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


@dataclass(frozen=True, slots=True)
class Boxed:
    """An operand as a plain load from a box: its region of a buffer, padded beyond the edges, in a new
    layout.

    ``shape``: of the box. ``fill``: the loop function of its elements. ``places``: the index that the operand
    reads at, over ``symbols``, the variables of the result and the terms.
    """

    shape: tuple[Expr, ...]
    fill: Callable[[Index], Value]
    places: tuple[Expr, ...]
    symbols: tuple[Symbol, ...]

    def load(self, buffer: str) -> Callable[[Index, Index], Value]:
        """The loop function of the operand, read from the box in ``buffer``."""
        return Place(buffer, self.places, self.symbols)


@dataclass(frozen=True, slots=True)
class Place:
    """A loop function over (index, rindex): the element of ``buffer`` at ``places`` over ``symbols``."""

    buffer: str
    places: tuple[Expr, ...]
    symbols: tuple[Symbol, ...]

    def __call__(self, index: Index, rindex: Index) -> Value:
        where = dict(zip(self.symbols, (*index, *rindex), strict=True))
        return ops.load(self.buffer, tuple(replaced(expr, where) for expr in self.places))


def box(product: Product, graph: Graph, operand: Literal["lhs", "rhs"] = "lhs") -> Boxed | None:
    """The box of an operand that reads one buffer, if its element depends on the position in it alone.

    A convolution's window at output ``o`` and tap ``k`` sees position ``2*o + k - 3``, or zero beyond the
    edges: both are functions of that position, so a padded copy has it at ``2*o + k``. The contiguous
    dimension comes last: columns in rhs, and in lhs where that has them, else terms.
    """
    return graph.worked_out(f"box of {operand}", product, lambda: _box(product, graph, operand))


def _box(product: Product, graph: Graph, operand: Literal["lhs", "rhs"]) -> Boxed | None:
    phases = () if product.split is None else product.split.phases
    shape = list(product.body.shape)
    for phase in phases:
        shape[phase.dim] = sympy.Integer(phase.most + 1)
    body = replace(product.body, shape=tuple(shape))
    function = body.lhs if operand == "lhs" else body.rhs
    steps = operand_code(function, body, graph)
    loads = loads_of(steps)
    if len(loads) != 1 or looks_up(steps):
        return None
    ((_, places),) = loads
    outer, terms = variables("i", len(body.shape)), variables("r", len(body.reduce_shape))
    symbols = (*outer, *terms)
    extents = dict(zip(symbols, (*body.shape, *body.reduce_shape)))
    boxed: list[_Side] = []
    for place in places:
        side = _side(place, symbols, extents, {each.variable for each in boxed})
        if side is None:
            return None
        boxed.append(side)
    at = {side.variable: side.solved(place) for side, place in zip(boxed, places) if side.variable}
    wanted = set(symbols)
    if any(expand(replaced(expr, at)).free_symbols & wanted for expr in set(expressions(steps))):
        return None
    batch = {outer[d] for d in product.batch}
    in_columns = operand == "rhs" or product.shared
    last = {outer[d] for d in product.columns} if in_columns else set(terms)

    def rank(number: int) -> int:
        inside = {symbol for symbol in places[number].free_symbols & wanted if extents[symbol] != 1}
        own = inside - batch
        return 2 if own and own <= last else int(bool(own or not inside))

    order = sorted(range(len(places)), key=rank)
    sides = [boxed[number] for number in order]
    sizes = tuple(side.size for side in sides)
    fill = _Fill(
        body, function, tuple((side.variable, side.origin, side.step, side.factor) for side in sides)
    )
    shifts = {outer[phase.dim]: phase.shift for phase in phases}
    seen = (divided(difference(places[n], boxed[n].least), boxed[n].step) for n in order)
    return Boxed(sizes, fill, tuple(replaced(place, shifts) for place in seen), symbols)


@dataclass(frozen=True, slots=True)
class _Side:
    """A dimension of a box: positions ``least``, ``least + step``, … read through ``variable``, whose
    coefficient is ``factor``; ``origin``: the value of that variable at ``least`` with all others 0.
    """

    variable: Symbol | None
    factor: int
    least: Expr
    step: int
    size: Expr
    origin: Expr

    def solved(self, place: Expr) -> Expr:
        """The variable as a function of the position and the other variables."""
        assert self.variable is not None
        seen = Symbol(f"seen_{self.variable}", integer=True)
        others = linear(place, self.variable)[1]
        away = total([seen, times(others, -ONE)])
        return away if self.factor == 1 else away / self.factor


def _side(
    place: Expr, symbols: Sequence[Symbol], extents: dict[Symbol, Expr], taken: set[Symbol | None]
) -> _Side | None:
    place = expand(place)
    found = affine(place, symbols)
    if found is None:
        return None
    factors = {s: c for s, c in zip(symbols, found[0]) if c != 0}
    if not all(factor.is_Integer for factor in factors.values()):
        return None
    least, most = bounds(place, extents)
    if least is None or most is None:
        return None
    if not factors:
        return _Side(None, 1, least, 1, ONE, ZERO)
    free = [symbol for symbol in factors if symbol not in taken]
    if not free:
        return None
    variable = min(free, key=lambda symbol: abs(int(factors[symbol])))
    step = math.gcd(*map(int, factors.values()))
    factor = int(factors[variable])
    size = simplify(expand((most - least) / step + 1), {})
    return _Side(variable, factor, least, step, size, expand((least - found[1]) / factor))


@dataclass(frozen=True, slots=True)
class _Fill:
    """A loop function: an operand at the positions of a box; each side's (variable, origin, step, factor)."""

    body: Contraction
    function: Callable[[Index, Index], Value]
    sides: tuple[tuple[Symbol | None, Expr, int, int], ...]

    def __call__(self, index: Index) -> Value:
        outer, terms = (
            variables("i", len(self.body.shape)),
            variables("r", len(self.body.reduce_shape)),
        )
        where: dict[Symbol, Expr] = dict.fromkeys((*outer, *terms), ZERO)
        for position, (variable, origin, step, factor) in zip(index, self.sides, strict=True):
            if variable is not None:
                where[variable] = expand(origin + position * sympy.Rational(step, factor))
        return self.function(tuple(where[s] for s in outer), tuple(where[s] for s in terms))
