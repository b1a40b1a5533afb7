"""Access analysis of loads: index expressions → slices, reshapes, transposes, gathers.

`plan` looks at the indices of one ``ops.load`` over the loop variables of an iteration space and returns the
operations on the whole buffer that give the array of all loaded elements. This module is independent of
targets. The property tests run plans on tensors and compare with evaluating each index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Mod

from smelt.symbolic import contiguous_strides, flatten, loop_var, numel, same, simplify
from smelt.symbolic.affine import expand
from smelt.symbolic.bounds import is_nonnegative
from smelt.symbolic.index import divide, has_division

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)
Shape = tuple[Expr, ...]
Extents = Mapping[Symbol, Expr]


@dataclass(frozen=True, slots=True)
class Transpose:
    """Dimension ``k`` of the result is dimension ``order[k]``."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reshape:
    shape: Shape


@dataclass(frozen=True, slots=True)
class Pad:
    """Adds ``low`` elements before and ``high`` after dimension ``dim``; their values do not matter."""

    dim: int
    low: Expr
    high: Expr


@dataclass(frozen=True, slots=True)
class Slice:
    """Selects ``size`` elements of ``dim`` from ``start``, every ``step``-th."""

    dim: int
    start: Expr
    size: Expr
    step: Expr


@dataclass(frozen=True, slots=True)
class Reverse:
    dim: int


@dataclass(frozen=True, slots=True)
class Windows:
    """Splits ``dim`` in two of ``sizes``: element ``(a, b)`` is at ``start + a*steps[0] + b*steps[1]``.

    ``sizes[1]`` is a small constant.
    """

    dim: int
    start: Expr
    sizes: tuple[Expr, Expr]
    steps: tuple[Expr, Expr]


@dataclass(frozen=True, slots=True)
class Take:
    """Gathers element ``position`` of dimension 0 for every value of the loop variables ``over`` (of extents
    ``sizes``), which become the leading dimensions."""

    position: Expr
    over: tuple[Symbol, ...]
    sizes: Shape


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Dimension ``k`` becomes dimension ``dims[k]`` of ``shape``."""

    shape: Shape
    dims: tuple[int, ...]


Step = Transpose | Reshape | Pad | Slice | Reverse | Windows | Take | Broadcast


@dataclass(frozen=True, slots=True)
class Access:
    """``steps`` on the buffer give an array with one dimension for each of ``variables``, in order."""

    steps: tuple[Step, ...]
    variables: tuple[Symbol, ...]
    shape: Shape


MOST_WINDOWS = 16
"""The maximal number of slices for overlapping windows; larger windows are gathered by position."""


def plan(
    shape: Sequence[Expr],
    index: Sequence[Expr],
    extents: Extents,
    *,
    masked: bool = False,
    opaque: Mapping[Symbol, Sequence[Symbol]] | None = None,
) -> Access:
    """Plan the operations that read ``buffer[index]`` for all values of the loop variables at once.

    Args:
        shape: the buffer's shape.
        index: an expression for each dimension, over loop variables, sizes and opaque symbols.
        extents: loop variable → extent, in the order of the iteration space.
        masked: whether some of the indices may be out of range (the values read there do not matter).
        opaque: symbols that stand for data → the loop variables that the data depends on.

    The result has no dimensions for loop variables of extent 1 or those that no index depends on.

    >>> i, j = loop_var("i"), loop_var("j")
    >>> n = sympy.Integer
    >>> found = plan([n(4), n(6)], [j, i + 2], {i: n(3), j: n(4)})
    >>> found.steps
    (Slice(dim=1, start=2, size=3, step=1), Transpose(order=(1, 0)))
    """
    return _Planner(tuple(shape), extents, masked, opaque or {}).run(list(index))


class _Planner:
    """``shape`` is the current array's shape. ``labels`` names each of its dimensions: a loop variable, or
    the number of a buffer dimension whose index has not been applied yet."""

    def __init__(
        self, shape: Shape, extents: Extents, masked: bool, opaque: Mapping[Symbol, Sequence[Symbol]]
    ) -> None:
        self.shape: list[Expr] = list(shape)
        self.labels: list[Symbol | int] = list(range(len(shape)))
        self.extents = dict(extents)
        self.masked, self.opaque = masked, opaque
        self.steps: list[Step] = []

    def run(self, index: list[Expr]) -> Access:
        unit = {variable: ZERO for variable, extent in self.extents.items() if extent == 1}
        index = [simplify(sympy.sympify(e).xreplace(unit), self.extents) for e in index]
        outer = dict(self.extents)
        index, digits = self._split(index)
        for dims in self._components(index):
            self._component(dims, index)
        self._finish(outer, digits)
        return Access(tuple(self.steps), tuple(self.labels), tuple(self.shape))  # type: ignore[arg-type]

    # -- loop variables that are split into digits ---------------------------------------------------

    def _split(self, index: list[Expr]) -> tuple[list[Expr], dict[Symbol, list[Symbol]]]:
        """Replace ``v`` by digits if indices have only ``v // d`` and ``v % d`` of it for a chain of d."""
        digits: dict[Symbol, list[Symbol]] = {}
        data = {s for expr in index for s in expr.free_symbols if s in self.opaque}
        held = {variable for symbol in data for variable in self.opaque[symbol]}  # type: ignore[index]
        for variable, extent in list(self.extents.items()):
            if variable in held:
                continue
            chain = self._chain(variable, extent, index)
            if chain is None:
                continue
            parts = [loop_var(f"{variable.name}_{n}") for n in range(len(chain) - 1)]
            sizes = [divide(above, below) for below, above in pairwise(chain)]
            value: Expr = ZERO
            for part, size, scale in zip(parts, sizes, chain):
                assert size is not None
                self.extents[part] = size
                value = value + part * scale
            index = [simplify(e.xreplace({variable: value}), self.extents) for e in index]
            digits[variable] = parts[::-1]
        return index, digits

    def _chain(self, variable: Symbol, extent: Expr, index: Sequence[Expr]) -> list[Expr] | None:
        """``[1, d, d*e, … extent]``: each is a multiple of the one before it."""
        cuts: list[Expr] = []
        for expr in index:
            for found in expr.atoms(FloorDiv, Mod):
                if variable not in found.free_symbols:
                    continue
                base, divisor = found.args
                if base == variable:
                    cuts.append(divisor)
                elif isinstance(base, FloorDiv) and base.args[0] == variable:
                    cuts += [base.args[1], base.args[1] * divisor]
        if not cuts:
            return None
        ordered: list[Expr] = [ONE, extent]
        for cut in dict.fromkeys(cuts):
            if cut in ordered or same(cut, extent):
                continue
            place = next((n for n in range(1, len(ordered)) if divide(ordered[n], cut) is not None), None)
            if place is None or divide(cut, ordered[place - 1]) is None:
                return None
            ordered.insert(place, cut)
        return ordered if len(ordered) > 2 else None

    # -- components ---------------------------------------------------------------------------------

    def _variables(self, expr: Expr) -> list[Symbol]:
        """The loop variables that an index depends on, in order."""
        found: set[Symbol] = set()
        for symbol in expr.free_symbols:
            found.update(self.opaque.get(symbol, ()))  # type: ignore[arg-type]
            found.add(symbol)  # type: ignore[arg-type]
        return [v for v in self.extents if v in found and self.extents[v] != 1]

    def _components(self, index: Sequence[Expr]) -> list[list[int]]:
        """Groups of dimensions; the indices of different groups share no loop variable."""
        groups: list[tuple[list[int], set[Symbol]]] = []
        for dim, expr in enumerate(index):
            dims, used = [dim], set(self._variables(expr))
            kept = []
            for group in groups:
                if used & group[1]:
                    dims, used = group[0] + dims, used | group[1]
                else:
                    kept.append(group)
            groups = [*kept, (sorted(dims), used)]
        return [dims for dims, _ in groups]

    def _component(self, dims: list[int], index: Sequence[Expr]) -> None:
        exprs = [index[dim] for dim in dims]
        known = not any(symbol in self.opaque for expr in exprs for symbol in expr.free_symbols)
        if len(dims) == 1 and known and self._affine(dims[0], exprs[0]):
            return
        if len(dims) > 1 and known:
            sizes = [self.shape[self.labels.index(dim)] for dim in dims]
            flat = simplify(expand(flatten(exprs, contiguous_strides(sizes))), self.extents)
            if not has_division(flat) and self._coefficients(flat) is not None:
                self._merge(dims)
                if not self._affine(dims[0], flat):
                    self._take(dims[:1], [flat])
                return
        self._take(dims, exprs)

    # -- steps --------------------------------------------------------------------------------------

    def _move(self, order: Sequence[int]) -> None:
        if list(order) == list(range(len(order))):
            return
        self.steps.append(Transpose(tuple(order)))
        self.shape = [self.shape[d] for d in order]
        self.labels = [self.labels[d] for d in order]

    def _reshape(self, at: int, count: int, sizes: Sequence[Expr], labels: Sequence[Symbol | int]) -> None:
        """Reshape ``count`` dimensions from ``at`` to ``sizes``."""
        if list(sizes) != self.shape[at : at + count]:
            self.shape[at : at + count] = sizes
            self.steps.append(Reshape(tuple(self.shape)))
        self.labels[at : at + count] = labels

    def _merge(self, dims: Sequence[int]) -> None:
        """Merge the buffer's dimensions ``dims`` into the first of them."""
        places = [self.labels.index(dim) for dim in dims]
        if len(places) == 1:
            return
        if places != list(range(places[0], places[0] + len(places))):
            rest = [d for d in range(len(self.shape)) if d not in places]
            before = [d for d in rest if d < places[0]]
            self._move([*before, *places, *rest[len(before) :]])
        at = self.labels.index(dims[0])
        size = numel(self.shape[at : at + len(dims)])
        self._reshape(at, len(dims), [size], [dims[0]])

    def _pad(self, at: int, low: Expr, high: Expr) -> None:
        if low == 0 and high == 0:
            return
        self.steps.append(Pad(at, low, high))
        self.shape[at] = self.shape[at] + low + high

    def _slice(self, at: int, start: Expr, size: Expr, step: Expr) -> None:
        if start == 0 and step == 1 and same(size, self.shape[at]):
            return
        self.steps.append(Slice(at, start, size, step))
        self.shape[at] = size

    # -- affine indices -----------------------------------------------------------------------------

    def _coefficients(self, expr: Expr) -> tuple[Expr, dict[Symbol, Expr]] | None:
        """``(constant, {variable: factor})``; None if the expression is not affine, or a sign is unknown."""
        variables = self._variables(expr)
        factors: dict[Symbol, Expr] = {}
        rest = expand(expr)
        for variable in variables:
            factor = rest.coeff(variable, 1)
            rest = expand(rest - factor * variable)
            if rest.has(variable) or any(factor.has(v) for v in variables):
                return None
            if not (factor.is_positive or factor.is_negative):
                return None
            factors[variable] = factor
        return rest, factors

    def _affine(self, dim: int, expr: Expr) -> bool:
        """Apply an affine index to one dimension by slices; False (and no change) if that is impossible."""
        found = self._coefficients(expr)
        if found is None:
            return False
        start, factors = found
        backwards = [variable for variable, factor in factors.items() if factor.is_negative]
        for variable in backwards:
            start = expand(start + factors[variable] * (self.extents[variable] - 1))
            factors[variable] = -factors[variable]
        order = self._nested(factors)
        if order is None:
            return False
        at = self.labels.index(dim)
        if not order:
            self._point(at, start)
            return True
        if self._layout(order, factors) is None:
            return False
        self._windows(at, start, order, factors)
        for variable in backwards:
            self.steps.append(Reverse(self.labels.index(variable)))
        return True

    def _nested(self, factors: Mapping[Symbol, Expr]) -> list[Symbol] | None:
        """The variables by decreasing factor; None if their order is unknown."""
        order: list[Symbol] = []
        for variable, factor in factors.items():
            place = len(order)
            for n, other in enumerate(order):
                gap = expand(factor - factors[other])
                if not (gap.is_nonnegative or gap.is_nonpositive):
                    if divide(factors[other], factor) is None and divide(factor, factors[other]) is None:
                        return None
                    if divide(factors[other], factor) is not None:
                        continue
                    place = n
                    break
                if gap.is_positive or (gap == 0 and self._larger(variable, other)):
                    place = n
                    break
            order.insert(place, variable)
        return order

    def _larger(self, one: Symbol, other: Symbol) -> bool:
        gap = self.extents[one] - self.extents[other]
        return bool(gap.is_nonnegative)

    def _layout(self, order: Sequence[Symbol], factors: Mapping[Symbol, Expr]) -> str | None:
        """The layout of the outermost variable relative to the others: ``dense``, ``tiled``, ``windows`` or
        ``plain``; None if slices cannot express it."""
        if len(order) == 1:
            return "plain"
        if self._dense(order, factors):
            return "dense"
        first, inner = factors[order[0]], order[1:]
        span = expand(sum((factors[v] * (self.extents[v] - 1) for v in inner), ONE))
        if expand(first - span).is_nonnegative:
            return None if self._layout(inner, factors) is None else "tiled"
        taps = self.extents[order[1]]
        if len(order) == 2 and taps.is_Integer and taps <= MOST_WINDOWS:
            return "windows"
        others = self.extents[order[0]]
        if len(order) == 2 and others.is_Integer and others <= MOST_WINDOWS:
            return "windows"
        return None

    def _dense(self, order: Sequence[Symbol], factors: Mapping[Symbol, Expr]) -> bool:
        return all(
            same(factors[outer], factors[inner] * self.extents[inner]) for outer, inner in pairwise(order)
        )

    def _outside(
        self,
        start: Expr,
        order: Sequence[Symbol],
        factors: Mapping[Symbol, Expr],
        at: int,
        layout: str | None,
    ) -> tuple[Expr, Expr]:
        """The numbers of elements read before the first and behind the last element of the dimension."""
        low: Expr = ZERO
        if self.masked and not is_nonnegative(start, {}):
            low = sympy.Max(0, -start)
        if layout == "tiled":
            last = start + self.extents[order[0]] * factors[order[0]] - 1
        elif self.masked:
            last = start + sum(factors[v] * (self.extents[v] - 1) for v in order)
        else:
            return low, ZERO
        spare = expand(self.shape[at] - 1 - last)
        high = ZERO if is_nonnegative(spare, {}) else sympy.Max(0, -spare)
        return low, high

    def _windows(self, at: int, start: Expr, order: Sequence[Symbol], factors: Mapping[Symbol, Expr]) -> None:
        layout = self._layout(order, factors)
        low, high = self._outside(start, order, factors, at, layout)
        self._pad(at, low, high)
        start = expand(start + low)
        sizes = [self.extents[v] for v in order]
        if layout == "plain":
            self._slice(at, start, sizes[0], factors[order[0]])
            self.labels[at] = order[0]
        elif layout == "dense":
            self._slice(at, start, numel(sizes), factors[order[-1]])
            self._reshape(at, 1, sizes, order)
        elif layout == "tiled":
            tile = factors[order[0]]
            self._slice(at, start, expand(sizes[0] * tile), ONE)
            self._reshape(at, 1, [sizes[0], tile], [order[0], -1])
            self._windows(at + 1, ZERO, order[1:], factors)
        else:
            small = 1 if sizes[1].is_Integer and sizes[1] <= MOST_WINDOWS else 0
            pair = (order[1 - small], order[small])
            extents = (self.extents[pair[0]], self.extents[pair[1]])
            self.steps.append(Windows(at, start, extents, (factors[pair[0]], factors[pair[1]])))
            self.shape[at : at + 1] = extents
            self.labels[at : at + 1] = pair

    def _point(self, at: int, position: Expr) -> None:
        """Select one position of a dimension and drop the dimension."""
        size = self.shape[at]
        if self.masked:
            if not (size.is_positive or (size.is_Integer and size > 0)):
                self._pad(at, ZERO, ONE)
                size = self.shape[at]
            if not (position.is_Integer and size.is_Integer and 0 <= position < size):
                position = sympy.Max(0, sympy.Min(position, size - 1))
        self._slice(at, position, ONE, ONE)
        self._reshape(at, 1, [], [])

    # -- any index ----------------------------------------------------------------------------------

    def _take(self, dims: list[int], exprs: Sequence[Expr]) -> None:
        """Gather the elements at computed positions; this works for every index."""
        over = tuple(v for v in self.extents if any(v in self._variables(e) for e in exprs))
        places = [self.labels.index(dim) for dim in dims]
        self._move([*places, *(d for d in range(len(self.shape)) if d not in places)])
        sizes = self.shape[: len(dims)]
        if self.masked:
            for at, size in enumerate(sizes):
                if not (size.is_positive or (size.is_Integer and size > 0)):
                    self._pad(at, ZERO, ONE)
            sizes = self.shape[: len(dims)]
            exprs = [sympy.Max(0, sympy.Min(e, size - 1)) for e, size in zip(exprs, sizes)]
        self._reshape(0, len(dims), [numel(sizes)], [dims[0]])
        extents = tuple(self.extents[v] for v in over)
        self.steps.append(Take(flatten(exprs, contiguous_strides(sizes)), over, extents))
        self.shape[:1] = extents
        self.labels[:1] = over

    # -- the end ------------------------------------------------------------------------------------

    def _finish(self, outer: Extents, digits: Mapping[Symbol, list[Symbol]]) -> None:
        """Order the dimensions by the loop variables, and merge digits again."""
        sequence = [part for variable in outer for part in digits.get(variable, [variable])]
        rank = {variable: n for n, variable in enumerate(sequence)}
        self._move(sorted(range(len(self.labels)), key=lambda d: rank[self.labels[d]]))  # type: ignore[index]
        if not digits:
            return
        wanted: list[Symbol] = []
        final: list[Symbol] = []
        for variable in outer:
            parts = digits.get(variable, [variable])
            if any(part in self.labels for part in parts):
                wanted += parts
                final.append(variable)
        if wanted != self.labels:
            dims = tuple(wanted.index(label) for label in self.labels)  # type: ignore[arg-type]
            self.shape = [self.extents[part] for part in wanted]
            self.steps.append(Broadcast(tuple(self.shape), dims))
            self.labels = list(wanted)
        sizes = [outer[variable] for variable in final]
        if sizes != self.shape:
            self.steps.append(Reshape(tuple(sizes)))
        self.shape, self.labels = sizes, list(final)
