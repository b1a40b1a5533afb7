"""Contractions that become matrix products once some of their dimensions are split.

    groups:  out[n, 8*g + c, o] = sum of x[n, 4*g + k, …] w[8*g + c, k, …]      the batch is g, columns are c
    phases:  out[n, c, 2*q + f] = sum of x[n, k, q - j + …] w[k, c, 2*j + …]    a batch of two, own taps

Groups are found from FloorDiv and Mod of a channel by a number. A phase is a position modulo the stride of a
transposed convolution: it selects the taps that contribute, so that no other one is multiplied. Both are
found in the loop functions, not by the names of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import gcd

import sympy
from sympy import Expr, Symbol

from smelt.loops.dependencies import variables
from smelt.loops.ir import Contraction, Graph, Index, Value
from smelt.loops.straightline import Instruction, MaskedInstruction, Recordable
from smelt.records import dataclass, replace
from smelt.schedule.products.operands import (
    Codes,
    Phase,
    Product,
    Split,
    as_product,
    expressions,
    loads_of,
    operand_code,
    operand_codes,
    symbols_of,
)
from smelt.schedule.products.panels import Panels
from smelt.symbolic import FloorDiv, Mod, least, loop_var, simplify
from smelt.symbolic.affine import affine, divided, expand, remainder

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)
_TAP = loop_var("tap")


def product_of(body: Contraction, graph: Graph, frozen: Collection[str] = ()) -> Product | None:
    """The contraction as a matrix product (`as_product`), its groups and phases split.

    ``frozen``: constant buffers.
    """
    return graph.worked_out("product", body, lambda: _product_of(body, graph, frozen), frozenset(frozen))


def _product_of(body: Contraction, graph: Graph, frozen: Collection[str]) -> Product | None:
    if isinstance(body.rhs, Panels):
        return replace(body.rhs.product, body=body)
    product = _product(body, graph)
    if product is None or not frozen:
        return product
    read = {buffer for buffer, _ in loads_of(operand_code(product.body.rhs, product.body, graph))}
    return replace(product, frozen=bool(read) and all(buffer in frozen for buffer in read))


def _product(body: Contraction, graph: Graph) -> Product | None:
    codes = operand_codes(body, graph)
    found = _split_dimensions(body, graph, codes)
    product = None if found is None else as_product(found[0], graph, found[1])
    return as_product(body, graph, None, codes) if product is None or not _differ(product) else product


def _differ(product: Product) -> bool:
    """Whether the pieces of each dimension have different roles: views divide indices as well."""
    assert product.split is not None
    roles = {
        dim: number
        for number, dims in enumerate((product.batch, product.rows, product.columns))
        for dim in dims
    }
    pieces = [product.split.pieces(dim) for dim in range(len(product.split.steps))]
    return all(len(dims) == 1 or roles[dims[0]] != roles[dims[1]] for dims in pieces)


def _split_dimensions(body: Contraction, graph: Graph, codes: Codes) -> tuple[Contraction, Split] | None:
    left, right = codes
    strided = _strided(left, body)
    groups = _groups(left, right, body)
    outer = variables("i", len(body.shape))
    if not (strided or groups) or symbols_of(right) & {outer[dim] for dim in strided}:
        return None
    rank = len(body.shape)
    steps = tuple(strided[dim].stride if dim in strided else groups.get(dim) for dim in range(rank))
    split = Split(body, steps)
    shape: list[Expr] = []
    for size, step in zip(body.shape, steps):
        shape += [size] if step is None else [divided(size + step - 1, step), sympy.Integer(step)]
    terms = list(body.reduce_shape)
    for each in strided.values():
        if each.factor != 0:
            terms[each.term] = sympy.Integer(-(-each.taps // each.tap_step))
    strided = {
        dim: replace(each, taps=int(terms[each.term])) if each.factor == 0 else each
        for dim, each in strided.items()
    }
    symbols = variables("i", len(shape))
    pieces = {dim: split.pieces(dim)[1] for dim in strided}
    phases = tuple(each.phase(pieces[dim], symbols[pieces[dim]]) for dim, each in sorted(strided.items()))
    split = replace(split, phases=phases)
    made = replace(
        body,
        shape=tuple(shape),
        reduce_shape=tuple(terms),
        lhs=_Left(body.lhs, split, strided),
        rhs=_Right(body.rhs, split, strided),
        start=None,
    )
    if _TAP in symbols_of(operand_code(_Left(body.lhs, split, strided, _TAP), made, graph)):
        return None  # a window's elements are no function of the quotient alone
    return made, split


# -- groups ------------------------------------------------------------------------------------------------


def _groups(left: Sequence[Recordable], right: Sequence[Recordable], body: Contraction) -> dict[int, int]:
    """Dimensions of the result that both operands use and that one number divides, and that number."""
    seen = symbols_of(left) & symbols_of(right)
    symbols = {symbol: dim for dim, symbol in enumerate(variables("i", len(body.shape))) if symbol in seen}
    found: dict[int, set[Expr]] = {}
    for expr in (*expressions(left), *expressions(right)) if symbols else ():
        for division in expr.atoms(FloorDiv, Mod):
            position, divisor = division.args
            if position in symbols and divisor.is_Integer:
                found.setdefault(symbols[position], set()).add(divisor)
    return {
        dim: int(min(divisors))
        for dim, divisors in found.items()
        if len(divisors) == 1 and body.shape[dim].is_Integer and body.shape[dim] % min(divisors) == 0
    }


# -- phases ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Strided:
    """lhs is 0 unless ``stride`` divides ``position + factor * tap + offset``; ``tap`` is summed dimension
    ``term`` with ``taps`` elements. A position is ``stride * quotient + phase``, its taps are ``first(phase)
    + tap_step * j``, and lhs reads ``quotient + factor * tap_step / stride * j + seen(phase)``.
    """

    stride: int
    factor: int
    offset: int
    term: int
    taps: int

    @property
    def common(self) -> int:
        return gcd(self.factor, self.stride)

    @property
    def tap_step(self) -> int:
        return self.stride // self.common

    def first(self, phase: Expr) -> Expr:
        """The first tap of a phase, if any."""
        inverse = pow(-self.factor // self.common, -1, self.tap_step)
        share = divided(phase + self.offset % self.stride, self.common)
        return self._known(remainder(inverse * share, self.tap_step), phase)

    def seen(self, phase: Expr) -> Expr:
        if self.factor == -1:
            return self._known(divided(phase + self.offset, self.stride), phase)
        return self._known(divided(phase + self.offset + self.factor * self.first(phase), self.stride), phase)

    def count(self, phase: Expr) -> Expr:
        """The number of taps of a phase."""
        count = divided(self.taps - 1 + self.tap_step - self.first(phase), self.tap_step)
        if self.common > 1:
            rest = remainder(phase + self.offset % self.stride, self.common)
            count = count * divided(self.common - rest, self.common)
        return self._known(count, phase)

    def phase(self, dim: int, symbol: Symbol) -> Phase:
        phases = [sympy.Integer(phase) for phase in range(self.stride)]
        seen = [int(self.seen(phase)) for phase in phases]
        counts = {self.count(phase) for phase in phases}
        shift = self._known(self.seen(symbol) - self.least, symbol)
        if self.factor == -1:
            shift = self._known(divided(symbol + self.offset - self.stride * self.least, self.stride), symbol)
        every = counts == {sympy.Integer(-(-self.taps // self.tap_step))}
        return Phase(dim, shift, max(seen) - self.least, self.term, None if every else self.count(symbol))

    @property
    def least(self) -> int:
        """The smallest offset that the phases read."""
        return min(int(self.seen(sympy.Integer(phase))) for phase in range(self.stride))

    def _known(self, expr: Expr, phase: Expr) -> Expr:
        return simplify(expr, {phase: sympy.Integer(self.stride)} if isinstance(phase, Symbol) else {})


def _strided(left: Sequence[Recordable], body: Contraction) -> dict[int, _Strided]:
    """Positions of the result at which lhs is 0 unless a stride divides them plus a tap."""
    outer, terms = variables("i", len(body.shape)), variables("r", len(body.reduce_shape))
    found: dict[int, _Strided] = {}
    for expr in _zero(left):
        if not (isinstance(expr, Mod) and expr.args[1].is_Integer):
            continue
        taken = affine(expand(expr.args[0]), (*outer, *terms))
        if taken is None or not taken[1].is_Integer:
            return {}
        dims = [d for d in range(len(outer)) if taken[0][d] != 0]
        taps = [t for t in range(len(terms)) if taken[0][len(outer) + t] != 0]
        if len(dims) != 1 or len(taps) > 1 or taken[0][dims[0]] != 1 or dims[0] in found:
            return {}
        term = taps[0] if taps else max(t for t in range(len(terms)))
        factor, size = taken[0][len(outer) + term], body.reduce_shape[term]
        if not (size.is_Integer and factor.is_Integer):
            return {}
        found[dims[0]] = _Strided(int(expr.args[1]), int(factor), int(taken[1]), term, int(size))
    return found


def _zero(steps: Sequence[Recordable]) -> Iterator[Expr]:
    """The index expressions that must be 0 for the last value to be nonzero."""
    last = steps[-1] if steps else None
    if not isinstance(last, MaskedInstruction) or last.other != 0:
        return
    known = {step.name: step for step in steps if isinstance(step, Instruction)}
    open_ = [last.mask]
    while open_:
        step = known.get(open_.pop())
        if step is None:
            continue
        if step.op == "logical_and":
            open_ += step.args
        elif step.op == "eq":
            sides = [known.get(name) for name in step.args]
            exprs = [side.args[0] for side in sides if side is not None and side.op == "index_expr"]
            if len(exprs) == 2 and ZERO in exprs:
                yield exprs[0] if exprs[1] == 0 else exprs[1]


# -- the operands ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Left:
    """A loop function over the pieces: lhs, with the read position of a phase (`Phase`) in its place.

    ``tap``: the first tap; lhs does not depend on it.
    """

    function: Callable[[Index, Index], Value]
    split: Split
    strided: Mapping[int, _Strided]
    tap: Expr = ZERO

    def __call__(self, index: Index, rindex: Index) -> Value:
        terms = list(rindex)
        where: list[Expr] = []
        for dim, step in enumerate(self.split.steps):
            place = [index[piece] for piece in self.split.pieces(dim)]
            strided = self.strided.get(dim)
            if strided is not None:
                if strided.factor != 0:
                    terms[strided.term] = strided.tap_step * rindex[strided.term] + self.tap
                at = strided.stride * (place[0] + place[1] + strided.least)
                where.append(at - strided.offset - strided.factor * self.tap)
            else:
                where.append(place[0] if step is None else step * place[0] + place[1])
        return self.function(tuple(where), tuple(terms))


@dataclass(frozen=True, slots=True)
class _Right:
    """A loop function over the pieces: rhs at the taps of a phase; the last one beyond them."""

    function: Callable[[Index, Index], Value]
    split: Split
    strided: Mapping[int, _Strided]

    def __call__(self, index: Index, rindex: Index) -> Value:
        terms = list(rindex)
        where: list[Expr] = []
        counted = {phase.term for phase in self.split.phases if phase.count is not None}
        for dim, step in enumerate(self.split.steps):
            place = [index[piece] for piece in self.split.pieces(dim)]
            strided = self.strided.get(dim)
            where.append(place[0] if step is None else step * place[0] + place[1])
            if strided is not None and strided.factor != 0:
                tap = strided.tap_step * rindex[strided.term] + strided.first(place[1])
                terms[strided.term] = least(tap, strided.taps - 1) if strided.term in counted else tap
        return self.function(tuple(where), tuple(terms))
