"""Reductions: an element of a tensor as a reduction over additional axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr

from smelt.loops.reductions import identity
from smelt.nest.stages import KINDS
from smelt.te.dtypes import NAMES, number
from smelt.te.errors import refuse
from smelt.te.index import Idx, IterVar, as_index, made
from smelt.te.value import Elementwise, Number, Place, Value, as_value, binary, cast


class Hole(Value):
    """An operand of a combiner, bound when values are combined."""

    def __init__(self, label: str, kind: torch.dtype) -> None:
        super().__init__(kind)
        self.label = label

    def said(self, place: Place) -> Any:
        raise AssertionError("a combiner's operand is known where it is run")


class Combined:
    """Values that are reduced over axes together: one for each output.

    ``kind``: the reduction's name if it is one of `smelt.loops.reductions.MODES`. ``initial``: the elements'
    initial values. ``combine(before, values)`` returns the next ones.
    """

    def __init__(
        self,
        name: str,
        values: Sequence[Value],
        axes: Sequence[IterVar],
        where: Value | None,
        initial: Sequence[Value],
        combiner: tuple[Sequence[Hole], Sequence[Hole], Sequence[Value]] | None,
        kind: str | None,
    ) -> None:
        self.name, self.values, self.axes, self.where = name, tuple(values), tuple(axes), where
        self.initial, self.combiner, self.kind = tuple(initial), combiner, kind
        self.outputs = tuple(Reduced(self, output) for output in range(len(values)))

    @property
    def is_plain(self) -> bool:
        """Whether it equals a reduction of the loop IR."""
        if self.kind is None or not isinstance(self.initial[0], Number):
            return False
        return self.initial[0].value == identity(self.kind, self.values[0].kind)

    @property
    def expressions(self) -> tuple[Value, ...]:
        """All expressions that the reduction evaluates: values, conditions, initial values, combiners."""
        results = () if self.combiner is None else self.combiner[2]
        where = () if self.where is None else (self.where,)
        return (*self.values, *where, *self.initial, *results)

    def combine(self, place: Place, before: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """The next elements, under the current handler."""
        assert self.combiner is not None
        left, right, results = self.combiner
        inside = place.inside()
        for hole, value in zip((*left, *right), (*before, *values)):
            inside.known[id(hole)] = (hole, value)
        return [result.run(inside) for result in results]


class Reduced(Value):
    """One output of a reduction. It must be a whole body: no further computation uses it there."""

    def __init__(self, of: Combined, output: int) -> None:
        super().__init__(of.values[output].kind, of.values)
        self.of, self.output = of, output

    @property
    def axes(self) -> tuple[IterVar, ...]:
        return self.of.axes

    def said(self, place: Place) -> Any:
        raise AssertionError("create_prim_func makes loops of a reduction")


class Reducer:
    """A function that reduces: ``te.sum(value, axis=k)``; on two values, their combination.

    ``fcombine(x, y)`` and ``fidentity(dtype)`` take as many values as there are outputs: numbers for one,
    tuples for several.
    """

    def __init__(
        self, fcombine: Callable[..., Any], fidentity: Callable[..., Any], name: str = "reduce"
    ) -> None:
        self.fcombine, self.fidentity, self.__name__ = fcombine, fidentity, name

    def __call__(self, expr: Any, axis: Any = None, where: Any = None, init: Any = None, *more: Any) -> Any:
        if are_axes(axis):
            return self._reduce(expr, axis, where, init)
        if axis is None:
            remedy = f"k = te.reduce_axis((0, n)); te.{self.__name__}(value, axis=k)"
            refuse("SM1105", f"{self.__name__}: no axis to reduce over", remedy=remedy)
        result = self.fcombine(expr, axis)
        for other in (where, init, *more):
            if other is not None:
                result = self.fcombine(result, other)
        return result

    def _reduce(self, expr: Any, axis: Any, where: Any, init: Any) -> Any:
        several = isinstance(expr, (tuple, list))
        values = [as_value(each) for each in (expr if several else [expr])]
        for value in values:
            if isinstance(value, Reduced):
                _nested(self.__name__)
        axes = list(axis) if isinstance(axis, (tuple, list)) else [axis]
        for each in axes:
            if not each.reduce:
                refuse("SM1105", f"{self.__name__}: {each.name} is no reduce_axis")
        kinds = [value.kind for value in values]
        values = [cast(value, value.kind) for value in values]
        combiner, results = self._combiner(kinds)
        initial = self._initial(kinds, init)
        kind = _known_kind(*combiner, results)
        condition = None if where is None else as_condition(where)
        of = Combined(self.__name__, values, axes, condition, initial, (*combiner, results), kind)
        return of.outputs if several else of.outputs[0]

    def _combiner(self, kinds: Sequence[torch.dtype]) -> tuple[tuple[list[Hole], list[Hole]], list[Value]]:
        left = [Hole(f"x{d}" if len(kinds) > 1 else "x", kind) for d, kind in enumerate(kinds)]
        right = [Hole(f"y{d}" if len(kinds) > 1 else "y", kind) for d, kind in enumerate(kinds)]
        single = len(kinds) == 1
        result = self.fcombine(left[0], right[0]) if single else self.fcombine(tuple(left), tuple(right))
        return (left, right), self._outputs("combiner", result, kinds)

    def _outputs(self, what: str, result: Any, kinds: Sequence[torch.dtype]) -> list[Value]:
        results = [result] if not isinstance(result, (tuple, list)) else list(result)
        if len(results) != len(kinds):
            refuse(
                "SM1109", f"{self.__name__}: the {what} gives {len(results)} values, {len(kinds)} are reduced"
            )
        found = []
        for value, kind in zip(map(as_value, results), kinds):
            if value.kind != kind and not getattr(value, "weak", False):
                names = f"{value.dtype}, and {NAMES[kind]} is reduced"
                refuse("SM1109", f"{self.__name__}: the {what} gives {names}")
            found.append(cast(value, kind))
        return found

    def _initial(self, kinds: Sequence[torch.dtype], init: Any) -> list[Value]:
        if init is None:
            result = self.fidentity(*(NAMES[kind] for kind in kinds))
            return self._outputs("identity", result, kinds)
        given = list(init) if isinstance(init, (tuple, list)) else [init]
        if len(given) != len(kinds):
            refuse("SM1109", f"{self.__name__}: init has {len(given)} values, {len(kinds)} are reduced")
        return [cast(as_value(each), kind) for each, kind in zip(given, kinds)]


def _nested(name: str) -> None:
    what = f"{name}: a reduction inside of an expression"
    refuse("SM1105", what, remedy="te.compute it as a tensor of its own, and read that")


def are_axes(axis: Any) -> bool:
    if isinstance(axis, IterVar):
        return axis.reduce
    return isinstance(axis, (tuple, list)) and all(isinstance(each, IterVar) for each in axis)


def as_condition(value: Any) -> Value:
    """A value as a condition: numbers hold if they are not 0."""
    found = as_value(value)
    return found if found.kind is torch.bool else binary("ne", found, 0)


def _known_kind(left: Sequence[Hole], right: Sequence[Hole], results: Sequence[Value]) -> str | None:
    """The loop IR's reduction that equals a combiner, or None."""
    if len(results) != 1 or not isinstance(results[0], Elementwise):
        return None
    (result,) = results
    assert isinstance(result, Elementwise)
    operands = {id(part) for part in result.parts}
    return KINDS.get(result.op) if operands == {id(left[0]), id(right[0])} else None


def comm_reducer(
    fcombine: Callable[..., Any], fidentity: Callable[..., Any], name: str = "reduce"
) -> Reducer:
    """A user-defined reduction, in any order: ``fcombine`` is associative and commutative.

    >>> from smelt import te
    >>> A, k = te.placeholder((4, 3), name="A"), te.reduce_axis((0, 3), "k")
    >>> longest = te.comm_reducer(lambda x, y: te.max(te.abs(x), te.abs(y)), lambda t: te.const(0, t))
    >>> te.compute((4,), lambda i: longest(A[i, k], axis=k)).shape
    (4,)

    Raises:
        SmeltError: SM1109, combiner or identity give another number of values, or other dtypes.
    """
    return Reducer(fcombine, fidentity, name)


def _extreme(op: str, index: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def combine(a: Any, b: Any) -> Any:
        if (isinstance(a, Idx) or isinstance(b, Idx)) and None not in (as_index(a), as_index(b)):
            wide = (
                torch.int64 if torch.int64 in (getattr(a, "kind", 0), getattr(b, "kind", 0)) else torch.int32
            )
            return made(index(*map(_expr, (a, b))), wide)
        if not isinstance(a, Value) and not isinstance(b, Value):
            a = as_value(a)
        return binary(op, a, b)

    return combine


def _expr(value: Any) -> Expr:
    expr = as_index(value)
    assert expr is not None
    return expr


def _identity(kind: str) -> Callable[[str], Number]:
    def of(dtype: str) -> Number:
        from smelt.te.dtypes import kind_of

        return Number(identity(kind, kind_of(dtype)), kind_of(dtype))

    return of


def _add(a: Any, b: Any) -> Any:
    return as_value(a) + b if not isinstance(a, Value) and not isinstance(b, Value) else a + b


def _mul(a: Any, b: Any) -> Any:
    return as_value(a) * b if not isinstance(a, Value) and not isinstance(b, Value) else a * b


def _index_max(a: Expr, b: Expr) -> Expr:
    from torch.utils._sympy.functions import Max

    return Max(a, b)


def _index_min(a: Expr, b: Expr) -> Expr:
    from torch.utils._sympy.functions import Min

    return Min(a, b)


sum = Reducer(_add, _identity("sum"), "sum")
prod = Reducer(_mul, _identity("prod"), "prod")
max = Reducer(_extreme("maximum", _index_max), _identity("max"), "max")
min = Reducer(_extreme("minimum", _index_min), _identity("min"), "min")


def _first(better: str) -> Callable[[Any, Any], Any]:
    """The better of two (index, value): NaN before all; the smaller index among equal values."""

    def combine(x: Any, y: Any) -> Any:
        from smelt.te.functions import select

        (i, a), (j, b) = x, y
        more = binary(better, a, b)
        same = binary("eq", a, b)
        if a.kind.is_floating_point:
            lost, other = binary("ne", a, a), binary("ne", b, b)
            more = (more & ~other) | (lost & ~other)
            same = same | (lost & other)
        keep = more | (same & binary("le", i, j))
        return select(keep, i, j), select(keep, a, b)

    return combine


def _nowhere(kind: str) -> Callable[[str, str], Any]:
    def identities(index: str, value: str) -> Any:
        from smelt.te.dtypes import kind_of

        at = kind_of(index)
        return Number(number(torch.iinfo(at).max, at), at), _identity(kind)(value)

    return identities


argmax = Reducer(_first("gt"), _nowhere("max"), "argmax")
argmin = Reducer(_first("lt"), _nowhere("min"), "argmin")

__all__ = [
    *("Combined", "Reduced", "Reducer", "are_axes", "argmax", "argmin", "as_condition", "comm_reducer"),
    *("max", "min", "prod", "sum"),
]
