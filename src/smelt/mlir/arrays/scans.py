"""Scans on whole arrays: associative operators (running sums) by doubling, all others by a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.ir import Scan
from smelt.mlir.arrays.dialect import Array, ArrayDialect
from smelt.mlir.arrays.evaluate import ArrayHandler, Value
from smelt.ops import using

ZERO = sympy.Integer(0)

ASSOCIATIVE = ("add", "mul", "maximum", "minimum", "logical_and", "logical_or", "bitwise_xor")
"""Operators of two values that are associative (sums up to rounding)."""


class NotAssociativeError(Exception):
    """The scan's state is not only used as in ``state = operator(state, value)``."""


class _State(Value):
    """The state that a scan's iteration starts from."""

    __slots__ = ()


class RunningHandler(ArrayHandler):
    """Runs one iteration of a scan over the whole space, with the state as an operand of an associative
    operator. The states after all iterations (``after``) then follow at once.

    ``along``: the loop variable of the scan; ``first``: the initial state.
    """

    along: Symbol
    first: float | int | bool
    after: Value | None = None

    def elementwise(self, name: str, *args: Value) -> Value:
        if not any(isinstance(arg, _State) for arg in args):
            return super().elementwise(name, *args)
        values = [arg for arg in args if not isinstance(arg, _State)]
        if name not in ASSOCIATIVE or len(values) != 1 or self.after is not None:
            raise NotAssociativeError
        everything = tuple(self.extents)
        array = self.as_array(values[0], everything)
        array = running(self.dialect, name, array, everything.index(self.along))
        first = self.constant(self.first, array.dtype)
        if not _is_neutral(name, self.first, array.dtype):
            self.after = super().elementwise(name, first, Value(array.dtype, everything, array))
        else:
            self.after = Value(array.dtype, everything, array)
        return self.after

    def to_dtype(self, x: Value, dtype: torch.dtype) -> Value:
        _refuse(x)
        return super().to_dtype(x, dtype)

    def bitcast(self, x: Value, dtype: torch.dtype) -> Value:
        _refuse(x)
        return super().bitcast(x, dtype)

    def as_array(self, value: Value, axes: Sequence[Symbol]) -> Array:
        _refuse(value)
        return super().as_array(value, axes)

    def indirect_index(self, x: Value, size: Expr, *, wrap: bool = True, check: bool | str = True) -> Expr:
        _refuse(x)
        return super().indirect_index(x, size, wrap=wrap, check=check)


def _refuse(value: Value) -> None:
    if isinstance(value, _State):
        raise NotAssociativeError


def _is_neutral(name: str, number: float | int | bool, dtype: torch.dtype) -> bool:
    if name in ("maximum", "minimum"):
        if dtype is torch.bool:
            return number == (name == "minimum")
        if dtype.is_floating_point:
            return number == (float("-inf") if name == "maximum" else float("inf"))
        limits = torch.iinfo(dtype)
        return number == (limits.min if name == "maximum" else limits.max)
    return number == {"mul": 1, "logical_and": True}.get(name, 0)


def running(dialect: ArrayDialect, name: str, x: Array, dim: int) -> Array:
    """``out[k] = x[0] op x[1] op … x[k]`` along a static dimension. Each round combines elements at twice the
    distance (Hillis and Steele 1986)."""
    size = int(x.shape[dim])
    distance = 1
    while distance < size:
        far, rest = sympy.Integer(distance), sympy.Integer(size - distance)
        head, left = (dialect.part(x, dim, ZERO, each) for each in (far, rest))
        right = dialect.part(x, dim, far, rest)
        x = dialect.concatenate([head, dialect.apply(name, left, right)], dim)
        distance *= 2
    return x


def associative(
    body: Scan,
    handler: RunningHandler,
    variables: Sequence[Symbol],
    expect: Callable[[Any, torch.dtype], Value],
) -> list[Array] | None:
    """The outputs of a scan that only joins its state with a value, associatively; None for other scans."""
    if len(body.state) != 1 or not body.shape[body.dim].is_Integer:
        return None
    handler.along, handler.first = variables[body.dim], body.state[0][1]
    try:
        with using(handler):
            after, values = body.inner_fn(tuple(variables), [_State(body.state[0][0])])
            if handler.after is None or after[0] is not handler.after:
                return None
            results: list[Any] = [
                handler.as_array(expect(value, dtype), variables)
                for value, dtype in zip(values, body.dtypes, strict=True)
            ]
    except NotAssociativeError:
        return None
    return results
