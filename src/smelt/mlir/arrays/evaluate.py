"""Evaluation of loop functions on whole arrays: the `ops` handler for targets without loops.

A value is an array over the loop variables that it depends on. It is broadcast over other variables only if
another operand needs that. Numbers stay numbers until an operation needs them as an array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.errors import SmeltError, Unsupported
from smelt.loops.elementwise import apply
from smelt.loops.ir import Origin
from smelt.lowering.tensor import HeldNumber
from smelt.mlir.arrays import access
from smelt.mlir.arrays.decomposed import DECOMPOSED
from smelt.mlir.arrays.dialect import Array, ArrayDialect, Number, Shape, single
from smelt.mlir.arrays.expressions import Numbers, evaluate_number
from smelt.mlir.arrays.intervals import Interval, Test, box
from smelt.ops import Handler, ops, using
from smelt.symbolic import same
from smelt.symbolic.affine import expand

ZERO = sympy.Integer(0)


@dataclass(frozen=True, slots=True)
class Value:
    """A value over the iteration space. ``array`` has one dimension for each of the loop variables ``axes``;
    if it is None, ``number`` is the value everywhere.

    ``expr``: the index expression of this value, if it is one. ``tests``: the comparisons of index
    expressions whose conjunction this value is. ``pieces``: the values that this concatenates along one loop
    variable.
    """

    dtype: torch.dtype
    axes: tuple[Symbol, ...] = ()
    array: Array | None = None
    number: Number | None = None
    expr: Expr | None = None
    tests: tuple[Test, ...] | None = None
    pieces: Pieces | None = None


@dataclass(frozen=True, slots=True)
class Pieces:
    """Values concatenated along ``variable``: part n from ``bounds[n]`` to ``bounds[n + 1]``. The array of
    each part names its dimensions by the ``axes`` of the whole."""

    variable: Symbol
    bounds: tuple[Expr, ...]
    parts: tuple[Value, ...]


class ArrayHandler(Numbers, Handler):
    """Runs loop functions over an iteration space; index expressions are values of it too.

    ``extents``: the space, loop variable → extent, in order. ``buffers``: the arrays that loads read.
    ``values``: the values of symbols for data (the iteration of a scan). If an index read from data
    (`indirect_index`) is out of range, the run raises if the dialect can raise; else the nearest index in
    range is read.
    """

    def __init__(
        self,
        dialect: ArrayDialect,
        buffers: Mapping[str, Array],
        extents: Mapping[Symbol, Expr],
        values: Mapping[Symbol, Value] | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.dialect, self.buffers = dialect, buffers
        self.extents = dict(extents)
        self.values: dict[Symbol, Value] = dict(values or {})
        self.origin = origin or Origin("?")
        self._masks: list[Value] = []
        self._inside: dict[Symbol, tuple[Symbol, Interval]] = {}
        self._iotas: dict[Symbol, Value] = {}

    # -- the protocol -------------------------------------------------------------------------------

    def elementwise(self, name: str, *args: Value) -> Value:
        if name in _DIVIDES and not args[1].dtype.is_floating_point:
            args = (args[0], self._divisor(args[1]))
        return self.divide(name, *args)

    def divide(self, name: str, *args: Value) -> Value:
        """An elementwise operation; its divisors are not 0."""
        folded = _folded(name, args)
        if folded is not None:
            return folded
        args = tuple(map(self._localized, args))
        if name == "where":
            joined = self._joined(*args)
            if joined is not None:
                return joined
        axes = self._union(args)
        operands = [self.as_array(arg, axes) for arg in args]
        found = self.dialect.elementwise(name, *operands)
        if found is NotImplemented:
            return self._decomposed(name, args)
        return Value(found.dtype, axes, found, tests=_tests(name, args))

    def load(self, buffer: str, index: Sequence[Expr]) -> Value:
        array = self.buffers[buffer]
        if len(index) != array.rank:
            raise SmeltError(
                "SM0501",
                f"load of {buffer} with {len(index)} indices, it has {array.rank} dimensions",
                where=self.origin.where,
            )
        if any(size == 0 for size in array.shape):  # nothing is read: masked out, or the space is empty
            return Value(array.dtype, (), None, False if array.dtype is torch.bool else 0)
        index = [self._inner(expr) for expr in index]
        used = {symbol for expr in index for symbol in expr.free_symbols}
        opaque = {s: self._localized(value).axes for s, value in self.values.items() if s in used}
        found = access.plan(array.shape, index, self.extents, masked=bool(self._masks), opaque=opaque)
        return Value(array.dtype, found.variables, self.read(array, found))

    def constant(self, value: Number, dtype: torch.dtype) -> Value:
        return Value(dtype, (), None, value)

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> Value:
        expr = self._inner(sympy.sympify(expr))
        value = self.to_dtype(evaluate_number(expr, self), dtype)
        return replace(value, expr=expr) if dtype is torch.int64 else value

    def to_dtype(self, x: Value, dtype: torch.dtype) -> Value:
        if x.dtype == dtype:
            return x
        if x.array is None:
            number = single(x.number, x.dtype).to(dtype)
            return Value(dtype, (), None, number.item())
        return Value(dtype, x.axes, self.dialect.convert(x.array, dtype))

    def bitcast(self, x: Value, dtype: torch.dtype) -> Value:
        return Value(dtype, x.axes, self.dialect.bitcast(self.as_array(x, x.axes), dtype))

    def masked(self, mask: Value, body: Callable[[], Value], other: Number) -> Value:
        found = None if mask.tests is None else box(mask.tests, self.extents)
        if found is not None:
            return self._boxed(found, body, other)
        self._masks.append(mask)
        try:
            value = body()
        finally:
            self._masks.pop()
        return self.elementwise("where", mask, value, self.constant(other, value.dtype))

    def indirect_index(self, x: Value, size: Expr, *, wrap: bool = True, check: bool | str = True) -> Expr:
        position = self.to_dtype(x, torch.int64)
        extent = self.index_expr(size, torch.int64)
        zero = self.constant(0, torch.int64)
        if wrap:
            negative = self.elementwise("lt", position, zero)
            position = self.elementwise(
                "where", negative, self.elementwise("add", position, extent), position
            )
        if check:
            inside = self.elementwise("ge", position, zero)
            inside = self.elementwise("logical_and", inside, self.elementwise("lt", position, extent))
            kind = "RuntimeError" if check == "RuntimeError" else "IndexError"
            self._require(inside, f"{kind}: index out of range in {self.origin.op}")
        if check or self._masks:
            last = self.index_expr(size - 1, torch.int64)
            position = self.elementwise("maximum", self.elementwise("minimum", position, last), zero)
        symbol = Symbol(f"indirect{len(self.values)}", integer=True)
        self.values[symbol] = position
        return symbol

    def _require(self, condition: Value, message: str) -> None:
        """Raise at run time if the condition is false and no mask hides it."""
        if not self.dialect.raises:
            return
        for mask in self._masks:
            condition = self.elementwise("logical_or", condition, self.elementwise("logical_not", mask))
        if condition.array is not None or not condition.number:
            self.dialect.require(self.as_array(condition, condition.axes), message)

    # -- values as arrays ---------------------------------------------------------------------------

    def shape_of(self, axes: Sequence[Symbol]) -> Shape:
        return tuple(self.extents[axis] for axis in axes)

    def as_array(self, value: Value, axes: Sequence[Symbol]) -> Array:
        """The value as an array with one dimension for each of ``axes``, which include its own axes."""
        axes = tuple(axes)
        value = self._localized(value)
        shape = self.shape_of(axes)
        if value.array is None:
            assert value.number is not None
            return self.dialect.full(value.number, value.dtype, shape)
        array = value.array
        if value.axes == axes:
            return array
        order = sorted(range(len(value.axes)), key=lambda d: axes.index(value.axes[d]))
        if order != list(range(len(order))):
            array = self.dialect.transpose(array, order)
        if array.rank == len(axes):
            return array
        return self.dialect.broadcast(array, shape, [axes.index(value.axes[d]) for d in order])

    def _union(self, values: Sequence[Value]) -> tuple[Symbol, ...]:
        used = {axis for value in values for axis in value.axes}
        return tuple(axis for axis in self.extents if axis in used)

    def symbol(self, symbol: Symbol) -> Value:
        """The value of a loop variable, a size or a symbol for data."""
        if symbol in self.values:
            return self.values[symbol]
        if symbol in self.extents:
            if self.extents[symbol] == 1:
                return self.constant(0, torch.int64)
            if symbol not in self._iotas:
                made = self.dialect.iota(self.extents[symbol], torch.int64)
                self._iotas[symbol] = Value(torch.int64, (symbol,), made)
            return self._iotas[symbol]
        if isinstance(symbol, HeldNumber):
            return self.to_dtype(symbol.load(), torch.float64)
        number = self.dialect.size(symbol)
        return Value(number.dtype, (), number)

    # -- parts of the space ---------------------------------------------------------------------------

    def _boxed(self, found: Mapping[Symbol, Interval], body: Callable[[], Value], other: Number) -> Value:
        """Evaluate ``body`` only inside of a box, and fill the space around it with ``other``."""
        outer, inside, known = self.extents, self._inside, set(self.values)
        parts = {v: span for v, span in found.items() if span != (ZERO, outer[v])}
        names = {v: Symbol(f"{v.name}_", integer=True, nonnegative=True) for v in parts}
        sizes = {v: expand(end - start) for v, (start, end) in parts.items()}
        self.extents = {names.get(v, v): sizes.get(v, size) for v, size in outer.items()}
        self._inside = {**inside, **{v: (names[v], parts[v]) for v in parts}}
        try:
            if any(size == 0 for size in sizes.values()):
                value = None
            else:
                value = self._localized(body())
                axes = tuple(a for a in self.extents if a in value.axes or a in names.values())
                array = self.as_array(value, axes)
        finally:
            self.extents, self._inside = outer, inside
            for symbol in set(self.values) - known:
                del self.values[symbol]
            for name in names.values():
                self._iotas.pop(name, None)
        if value is None:
            return self.constant(other, self._dtype_of(body))
        back = {name: v for v, name in names.items()}
        axes = tuple(back.get(axis, axis) for axis in axes)
        return self._surrounded(Value(array.dtype, axes, array), parts, other)

    def _dtype_of(self, body: Callable[[], Value]) -> torch.dtype:
        """The dtype of a function's result; its operations are not used."""
        self._masks.append(self.constant(False, torch.bool))
        try:
            return body().dtype
        finally:
            self._masks.pop()

    def _surrounded(self, inner: Value, parts: Mapping[Symbol, Interval], other: Number) -> Value:
        """``inner`` padded with ``other`` to the extents of the space."""
        if not parts:
            return inner
        assert inner.array is not None
        low, high = [], []
        for axis in inner.axes:
            start, end = parts.get(axis, (ZERO, self.extents[axis]))
            low.append(start)
            high.append(expand(self.extents[axis] - end))
        padded = self.dialect.pad(inner.array, tuple(low), tuple(high), other)
        padded = self.dialect.relabel(padded, self.shape_of(inner.axes))
        pieces = None
        if len(parts) == 1:
            ((variable, (start, end)),) = parts.items()
            number, extent = self.constant(other, inner.dtype), self.extents[variable]
            bounds, values = [ZERO], []
            for bound, value in ((start, number), (end, inner), (extent, number)):
                if not same(bound, bounds[-1]):
                    bounds.append(bound)
                    values.append(value)
            pieces = Pieces(variable, tuple(bounds), tuple(values))
        return Value(inner.dtype, inner.axes, padded, pieces=pieces)

    def _joined(self, condition: Value, x: Value, y: Value) -> Value | None:
        """``where`` as a concatenation: the condition is an interval of one loop variable, and both values
        are pieces along it."""
        if condition.tests is None or x.pieces is None or y.pieces is None:
            return None
        found = box(condition.tests, self.extents)
        variable = x.pieces.variable
        if found is None or list(found) != [variable] or y.pieces.variable != variable:
            return None
        start, end = found[variable]
        chosen = _between(x.pieces, start, end)
        before = _between(y.pieces, ZERO, start)
        after = _between(y.pieces, end, self.extents[variable])
        if chosen is None or before is None or after is None:
            return None
        cut = [*before, *chosen, *after]
        bounds = (ZERO, *(bound for bound, _ in cut))
        parts = tuple(value for _, value in cut)
        axes = tuple(a for a in self.extents if a == variable or any(a in part.axes for part in parts))
        at = axes.index(variable)
        arrays = []
        for low, high, part in zip(bounds, bounds[1:], parts):
            shape = tuple(high - low if n == at else self.extents[axis] for n, axis in enumerate(axes))
            arrays.append(self._part(part, axes, shape))
        joined = self.dialect.relabel(self.dialect.concatenate(arrays, at), self.shape_of(axes))
        return Value(x.dtype, axes, joined, pieces=Pieces(variable, bounds, parts))

    def _part(self, part: Value, axes: tuple[Symbol, ...], shape: Shape) -> Array:
        """A piece as an array of ``shape``."""
        if part.array is None:
            assert part.number is not None
            return self.dialect.full(part.number, part.dtype, shape)
        if part.axes == axes:
            return part.array
        return self.dialect.broadcast(part.array, shape, [axes.index(axis) for axis in part.axes])

    def _inner(self, expr: Expr) -> Expr:
        """An expression of loop variables, in the variables of the current box."""
        if not self._inside or not any(v in expr.free_symbols for v in self._inside):
            return expr
        renamed = {}
        for v in self._inside:
            place: Expr = v
            while place.free_symbols & self._inside.keys():
                place = place.xreplace({s: n + span[0] for s, (n, span) in self._inside.items()})
            renamed[v] = place
        return expr.xreplace(renamed)

    def _localized(self, value: Value) -> Value:
        """A value from outside of the current box, sliced to the box."""
        while value.array is not None and any(axis in self._inside for axis in value.axes):
            array, axes = value.array, list(value.axes)
            starts, sizes = [ZERO] * array.rank, list(array.shape)
            for n, axis in enumerate(axes):
                if axis in self._inside:
                    axes[n], (start, end) = self._inside[axis]
                    starts[n], sizes[n] = start, expand(end - start)
            steps = (sympy.Integer(1),) * array.rank
            part = self.dialect.slice(array, tuple(starts), tuple(sizes), steps)
            value = Value(value.dtype, tuple(axes), part)
        return value

    def _divisor(self, value: Value) -> Value:
        """A divisor with 1 in place of 0. The program raises for 0 if the dialect can raise."""
        if value.array is None:
            if value.number == 0:
                self._require(self.constant(False, torch.bool), "RuntimeError: ZeroDivisionError")
            return value if value.number != 0 else self.constant(1, value.dtype)
        zero = self.elementwise("eq", value, self.constant(0, value.dtype))
        self._require(self.elementwise("logical_not", zero), "RuntimeError: ZeroDivisionError")
        return self.elementwise("where", zero, self.constant(1, value.dtype), value)

    def _decomposed(self, name: str, args: Sequence[Value]) -> Value:
        if name not in DECOMPOSED:
            raise Unsupported(f"{name} has no form in {type(self.dialect).__name__}")
        with using(self):
            return DECOMPOSED[name](*args)

    # -- loads --------------------------------------------------------------------------------------

    def read(self, array: Array, found: access.Access) -> Array:
        """Run the steps of an access."""
        for step in found.steps:
            array = self._step(array, step)
        return array

    def _step(self, array: Array, step: access.Step) -> Array:
        dialect, rank = self.dialect, array.rank
        if isinstance(step, access.Transpose):
            return dialect.transpose(array, step.order)
        if isinstance(step, access.Reshape):
            return dialect.reshape(array, step.shape)
        if isinstance(step, access.Broadcast):
            return dialect.broadcast(array, step.shape, step.dims)
        if isinstance(step, access.Reverse):
            return dialect.reverse(array, [step.dim])
        if isinstance(step, access.Pad):
            low, high = ([ZERO] * rank for _ in range(2))
            low[step.dim], high[step.dim] = step.low, step.high
            other = False if array.dtype is torch.bool else 0
            return dialect.pad(array, tuple(low), tuple(high), other)
        if isinstance(step, access.Slice):
            return dialect.part(array, step.dim, step.start, step.size, step.step)
        if isinstance(step, access.Windows):
            return self._windows(array, step)
        return dialect.take(array, self._positions(step))

    def _windows(self, array: Array, step: access.Windows) -> Array:
        """One slice for each position in the window, stacked."""
        dialect, place = self.dialect, step.dim + 1
        (count, taps), (stride, distance) = step.sizes, step.steps
        starts = [step.start + tap * distance for tap in range(int(taps))]
        parts = [dialect.part(array, step.dim, start, count, stride) for start in starts]
        shape = (*parts[0].shape[:place], sympy.Integer(1), *parts[0].shape[place:])
        return dialect.concatenate([dialect.reshape(part, shape) for part in parts], place)

    def _positions(self, step: access.Take) -> Array:
        """The positions of a gather; its loop variables may be digits of the space's variables."""
        digits = {v: size for v, size in zip(step.over, step.sizes) if v not in self.extents}
        self.extents.update(digits)
        try:
            masks, self._masks = self._masks, []
            return self.as_array(self.index_expr(step.position, torch.int64), step.over)
        finally:
            self._masks = masks
            for digit in digits:
                del self.extents[digit]
                self._iotas.pop(digit, None)


_DIVIDES = ("fmod", "remainder", "floordiv", "truncdiv")


def _folded(name: str, args: Sequence[Value]) -> Value | None:
    """The result if no operation is needed: constants folded, and operations that leave a value unchanged."""
    if all(arg.array is None for arg in args):
        numbers = [single(arg.number, arg.dtype) for arg in args]
        result = apply(name, numbers)
        return Value(result.dtype, (), None, result.item())
    if name == "where" and args[0].array is None:
        return args[1] if args[0].number else args[2]
    if name in ("logical_and", "logical_or"):
        for one, other in (args, args[::-1]):
            if one.array is None:
                return other if one.number == (name == "logical_and") else one
    if name in ("add", "mul") and args[0].dtype is torch.int64:
        neutral = 0 if name == "add" else 1
        for one, other in (args, args[::-1]):
            if one.array is None and one.number == neutral:
                return other
    return None


def _tests(name: str, args: Sequence[Value]) -> tuple[Test, ...] | None:
    """The comparisons of index expressions that the result of a comparison or of a conjunction implies."""
    if name in ("ge", "gt", "lt", "le"):
        left, right = (_expression(arg) for arg in args)
        return None if left is None or right is None else ((name, left, right),)
    if name == "logical_and" and args[0].tests is not None and args[1].tests is not None:
        return (*args[0].tests, *args[1].tests)
    return None


def _expression(value: Value) -> Expr | None:
    if value.expr is None and value.array is None and value.dtype is torch.int64:
        return sympy.Integer(int(value.number))  # type: ignore[arg-type]
    return value.expr


def _between(pieces: Pieces, start: Expr, end: Expr) -> list[tuple[Expr, Value]] | None:
    """``(end, value)`` of the pieces between two bounds; None if a bound is inside of a piece."""
    places = []
    for bound in (start, end):
        place = next((n for n, each in enumerate(pieces.bounds) if same(each, bound)), None)
        if place is None:
            return None
        places.append(place)
    first, last = places
    return list(zip(pieces.bounds[first + 1 : last + 1], pieces.parts[first:last]))


class EvaluatedArrays(ArrayDialect):
    """An array dialect that uses its own operations for sizes and for elementwise rows that it lacks."""

    def apply(self, name: str, *args: Array) -> Array:
        return through(self, getattr(ops, name), *args)

    def size(self, expr: Any) -> Array:
        expr = sympy.sympify(expr)
        unknown = [symbol for symbol in expr.free_symbols if symbol.name not in self.symbols]
        if unknown:
            raise Unsupported(f"the size {unknown[0]} is no dimension of an argument")
        if isinstance(expr, Symbol):
            return self.symbols[expr.name]
        handler = ArrayHandler(self, {}, {})
        return handler.as_array(evaluate_number(expr, handler), ())


def through(dialect: ArrayDialect, function: Callable[..., Value], *args: Array) -> Array:
    """Evaluate a loop function on the elements of arrays of one shape."""
    axes = tuple(Symbol(f"_axis{d}", integer=True, nonnegative=True) for d in range(args[0].rank))
    handler = ArrayHandler(dialect, {}, dict(zip(axes, args[0].shape)))
    with using(handler):
        values = [
            Value(arg.dtype, axes, arg) if arg.number is None else Value(arg.dtype, (), None, arg.number)
            for arg in args
        ]
        return handler.as_array(function(*values), axes)
