"""Checks of a te program: every index is proved to be inside its tensor, every axis is used at its place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from sympy import Expr, Integer, Mul, Symbol

from smelt.errors import SmeltError
from smelt.nest.inside import ends_of
from smelt.symbolic import FloorDiv, Mod, simplify
from smelt.symbolic.affine import expand, linear, replaced, symbols_in
from smelt.symbolic.bounds import bounds, is_nonnegative
from smelt.te.errors import refusal, refuse
from smelt.te.index import Idx, Unknown, as_index
from smelt.te.reductions import Reduced
from smelt.te.value import Choice, Elementwise, Found, Load, Value, lookups_in

if TYPE_CHECKING:
    from smelt.te.tensor import ComputeOp, Tensor

Facts = tuple[Expr, ...]
"""Expressions that are known not to be negative."""

ZERO, ONE = Integer(0), Integer(1)


def computed(op: ComputeOp) -> tuple[tuple[Tensor, ...], SmeltError | None]:
    """The tensors that an operation reads, in order, after its bodies are checked. The second result is None,
    or the error of functions made of it: sizes decide whether an index is inside.

    Raises:
        SmeltError: SM1101, SM1105.
    """
    extents: dict[Symbol, Expr] = {axis.symbol: axis.extent for axis in op.axis}
    checker = _Checker(op.name, extents, op.axis[0].symbol if op.axis else None)
    checker.bodies(op.body)
    return tuple(checker.tensors.values()), checker.open


def stepped(op: ComputeOp, states: Collection[int], first: Expr) -> SmeltError | None:
    """The reason why an operation's rows, from ``first`` on, are no scan steps, or None.

    An index may be outside its tensor, or a row of ``states`` (ids of tensors) is not an earlier one.
    """
    rows = op.axis[0].symbol
    checker = _Checker(op.name, {axis.symbol: axis.extent for axis in op.axis}, rows, first, states)
    try:
        checker.bodies(op.body)
    except SmeltError as error:
        return error
    return checker.open


def one_reduction(name: str, bodies: Sequence[Value]) -> None:
    """Refuse outputs that do not belong to one reduction, if there is a reduction."""
    groups = {id(body.of) if isinstance(body, Reduced) else None for body in bodies}
    if len(groups) > 1:
        what = f"{name}: its outputs are not those of one reduction"
        refuse("SM1105", what, remedy="te.compute one tensor for each")


class _Checker:
    """Checks bodies. ``rows``: the first axis, from ``first`` on; rows of ``states`` are read before it."""

    def __init__(
        self,
        name: str,
        extents: dict[Symbol, Expr],
        rows: Symbol | None,
        first: Expr | None = None,
        states: Collection[int] = (),
    ) -> None:
        self.name, self.extents, self.rows, self.states = name, extents, rows, states
        self.is_step = first is not None
        self.facts: Facts = () if first is None or rows is None else (rows - first,)
        self.tensors: dict[int, Tensor] = {}
        self.seen: set[tuple[int, Facts, bool]] = set()
        self.open: SmeltError | None = None
        self.within: set[Symbol] = set()
        """Axes whose extents depend on others; facts bound them."""

    def bodies(self, bodies: Sequence[Value]) -> None:
        for body in bodies:
            if isinstance(body, Reduced):
                self.reduced(body)
            else:
                self.value(body, self.facts)

    def reduced(self, body: Reduced) -> None:
        axes = body.of.axes
        if len({axis.symbol for axis in axes}) != len(axes):
            refuse("SM1105", f"{self.name}: an axis is reduced over twice")
        for value in body.of.initial:
            self.value(value, self.facts)
        facts = self.facts
        for axis in axes:
            self.index(axis.extent)
            if symbols_in(axis.extent).isdisjoint((*self.extents, *self.within)):
                self.extents[axis.symbol] = axis.extent
            else:
                self.within.add(axis.symbol)
                facts = (*facts, expand(axis.extent - 1 - axis.symbol))
        if body.of.where is not None:
            self.value(body.of.where, facts)
            facts = (*facts, *known_of(body.of.where, True, self.extents))
        for value in (*body.of.values, *(body.of.combiner[2] if body.of.combiner else ())):
            self.value(value, facts, body.of.where is None)

    def value(self, value: Value, facts: Facts, always: bool = True) -> None:
        """Check a value. ``always``: it is computed for every index."""
        if (id(value), facts, always) in self.seen:
            return
        self.seen.add((id(value), facts, always))
        if isinstance(value, Reduced):
            what = f"{self.name}: a reduction inside of an expression"
            refuse("SM1105", what, remedy="te.compute it as a tensor of its own, and read that")
        if isinstance(value, Idx):
            self.index(value.expr)
        elif isinstance(value, Load):
            self.load(value, facts, always)
        if isinstance(value, Choice) and value.lazy:
            condition, then, other = value.parts
            self.value(condition, facts, always)
            self.value(then, (*facts, *known_of(condition, True, self.extents)), False)
            self.value(other, (*facts, *known_of(condition, False, self.extents)), False)
        else:
            for part in value.parts:
                self.value(part, facts, always)

    def index(self, expr: Expr) -> None:
        for symbol in symbols_in(expr):
            if isinstance(symbol, Found):  # its use as an index is checked
                self.extents.setdefault(symbol, symbol.lookup.size)
            known = symbol in self.extents or symbol in self.within
            if isinstance(symbol, Unknown) and not symbol.is_size and not known:
                what = f"{self.name}: {symbol.label} is used where nothing goes through it"
                refuse(
                    "SM1105", what, remedy=f"te.sum(value, axis={symbol.label}), or another reduction over it"
                )

    def load(self, load: Load, facts: Facts, always: bool) -> None:
        self.tensors.setdefault(id(load.tensor), load.tensor)
        for dim, (at, size) in enumerate(zip(load.index, load.tensor.sizes)):
            self.index(at)
            if any(extent == 0 for extent in self.extents.values()):
                continue
            self.inside(load, dim, at, size, facts, always)
        if id(load.tensor) in self.states and not self._is_before(load.index[0], facts):
            what = f"{self.name}: {load}: nothing shows that the row is one before"
            refuse("SM1111", what, remedy="a step reads S[t - 1, i], S[t - 2, i] …")

    def inside(self, load: Load, dim: int, at: Expr, size: Expr, facts: Facts, always: bool) -> None:
        """Refuse an index that is not in ``[0, size)``.

        If only sizes decide that, each call checks it (`smelt.nest.inside`); if they do so under a condition,
        the refusal is kept.
        """
        below = shown(at, self.extents, facts)
        above = shown(expand(size - 1 - at), self.extents, facts)
        if below and above:
            return
        name = load.tensor.name
        low, high = bounds(at, self.extents)
        if not above:
            known = high is not None and high.is_Integer and size.is_Integer
            what = (
                f"index reaches {high}, {name} has {size}" if known else f"nothing shows that {at} < {size}"
            )
        else:
            known = low is not None and low.is_Integer
            what = f"index begins at {low}, {name} at 0" if known else f"nothing shows that {at} >= 0"
        where = f" (dimension {dim})" if len(load.index) > 1 else ""
        remedy = "te.if_then_else(condition, value, other) where only some indices are inside"
        found = refusal("SM1101", f"{self.name}: {load}: {what}{where}", remedy=remedy)
        if not self.is_step and above and self._may_be_before(load, dim, at):
            self.open = self.open or found
            return
        past = high is not None and not above and is_nonnegative(expand(high - size), {})
        if known or past or not any(isinstance(s, Unknown) and s.is_size for s in symbols_in(size - at)):
            raise found
        if self.is_step or not always or not self._is_checked(at):
            self.open = self.open or found

    def _is_checked(self, at: Expr) -> bool:
        """Whether each call checks that an index is inside its tensor."""
        ranges = {axis: (ZERO, extent - 1) for axis, extent in self.extents.items()}
        sizes = [
            s
            for s in symbols_in(at).union(*map(symbols_in, self.extents.values()))
            if s not in ranges and s not in self.within
        ]
        return not lookups_in(at) and ends_of(at, ranges, sizes) is not None

    def _is_before(self, at: Expr, facts: Facts) -> bool:
        assert self.rows is not None
        return shown(expand(self.rows - 1 - at), self.extents, facts)

    def _may_be_before(self, load: Load, dim: int, at: Expr) -> bool:
        """Whether an index may be an earlier row of a scan's state than the computed one."""
        if self.rows is None or dim > 0 or not load.tensor.op.is_given:
            return False
        back = expand(self.rows - at)
        return bool(back.is_Integer and back > 0)


# -- facts from conditions -----------------------------------------------------------------------------------


def known_of(condition: Value, holds: bool, extents: Mapping[Symbol, Expr]) -> Facts:
    """Expressions that are not negative if a condition holds (or if it does not)."""
    if not isinstance(condition, Elementwise):
        return ()
    parts, op = condition.parts, condition.op
    if op == "logical_not" or (op == "bitwise_not" and condition.kind is torch.bool):
        return known_of(parts[0], not holds, extents)
    if op in _JOINED[holds] and condition.kind is torch.bool:
        return tuple(fact for part in parts for fact in known_of(part, holds, extents))
    if len(parts) != 2:
        return ()
    a, b = as_index(parts[0]), as_index(parts[1])
    if a is None or b is None:
        return ()
    op = op if holds else _OPPOSITE.get(op, op)
    difference = expand(a - b)
    if op == "ne":
        return tuple(expand(side - 1) for side in (difference, -difference) if is_nonnegative(side, extents))
    return tuple(expand(fact) for fact in _FACTS.get(op, lambda d: ())(difference))


_JOINED = {True: ("logical_and", "bitwise_and"), False: ("logical_or", "bitwise_or")}
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_FACTS: dict[str, Any] = {
    "lt": lambda d: (-d - 1,),
    "le": lambda d: (-d,),
    "gt": lambda d: (d - 1,),
    "ge": lambda d: (d,),
    "eq": lambda d: (d, -d),
}


def shown(expr: Expr, extents: Mapping[Symbol, Expr], facts: Facts) -> bool:
    """Whether ``expr`` is proved not to be negative, from the extents of axes and from conditions.

    >>> i, n = Symbol("i", integer=True, nonnegative=True), Symbol("n", integer=True, nonnegative=True)
    >>> shown(n - 1 - Mod(i, n), {i: 3 * n}, ()), shown(n - 1 - i, {i: 3 * n}, ()), shown(n - i, {}, (n - i,))
    (True, False, True)
    """
    sizes = _positive(extents.values())
    if sizes:  # an axis has elements, or there is nothing to prove
        expr, facts = replaced(expr, sizes), tuple(replaced(fact, sizes) for fact in facts)
        extents = {symbol: replaced(extent, sizes) for symbol, extent in extents.items()}
    if _never_negative(expr, extents):
        return True
    if not facts:
        return False
    if _by_sums(expr, extents, facts, 3):
        return True
    values, ranges = _narrowed(extents, facts)
    if any(extent.is_nonpositive for extent in ranges.values()):
        return True  # nothing is read there
    return _by_sums(replaced(expr, values), ranges, tuple(replaced(f, values) for f in facts), 2)


def _positive(extents: Iterable[Expr]) -> dict[Symbol, Expr]:
    """The sizes that are at least 1 if extents are, as symbols with that assumption."""
    return {
        factor: Symbol(factor.name, integer=True, positive=True)
        for extent in extents
        for factor in Mul.make_args(extent)
        if isinstance(factor, Symbol) and not factor.is_positive
    }


def _never_negative(expr: Expr, extents: Mapping[Symbol, Expr]) -> bool:
    if is_nonnegative(expr, extents):
        return True
    low, _ = bounds(expr, extents)
    return low is not None and not low.is_Integer and is_nonnegative(simplify(low, {}), {})


def _by_sums(expr: Expr, extents: Mapping[Symbol, Expr], facts: Facts, depth: int) -> bool:
    """``expr`` is not negative if ``expr - n*fact`` is not, for a fact and a positive number n."""
    if _never_negative(expr, extents):
        return True
    if depth == 0:
        return False
    for fact in facts:
        for times in _multiples(expr, fact):
            rest = expand(expr - times * fact)
            if _by_sums(rest, extents, tuple(other for other in facts if other != fact), depth - 1):
                return True
    return False


def _multiples(expr: Expr, fact: Expr) -> set[Expr]:
    found = set()
    for symbol in symbols_in(expr) & symbols_in(fact):
        (a, _), (b, _) = linear(expr, symbol), linear(fact, symbol)
        if a.is_Integer and b.is_Integer and a * b > 0 and a % b == 0:
            found.add(a / b)
    atoms = (FloorDiv, Mod)
    if not found and symbols_in(expr) & symbols_in(fact) and (expr.has(*atoms) or fact.has(*atoms)):
        found.add(ONE)
    return found


def _narrowed(extents: Mapping[Symbol, Expr], facts: Facts) -> tuple[dict[Symbol, Expr], dict[Symbol, Expr]]:
    """The axes narrowed by facts about single ones: ``i >= 2`` replaces i by ``i + 2``."""
    values: dict[Symbol, Expr] = {}
    ranges = dict(extents)
    for symbol in extents:
        ends: list[Expr] = [ranges[symbol]]
        for fact in facts:
            step, rest = linear(fact, symbol)
            if symbols_in(rest) & set(extents):
                continue
            if step == 1 and not is_nonnegative(rest, {}):  # symbol >= -rest
                low = expand(-rest)
                if values.get(symbol) is None and (is_nonnegative(low, {})):
                    values[symbol] = symbol + low
            elif step == -1:  # symbol <= rest
                ends.append(rest + 1)
        end = _least(ends)
        low = values[symbol] - symbol if symbol in values else Integer(0)
        ranges[symbol] = expand(end - low)
    return values, ranges


def _least(ends: Sequence[Expr]) -> Expr:
    numbers = [end for end in ends if end.is_Integer]
    if len(numbers) == len(ends):
        return min(numbers)
    for end in ends[1:]:
        if is_nonnegative(expand(ends[0] - end), {}):
            return end
    return ends[0]


__all__ = ["computed", "known_of", "one_reduction", "shown"]
