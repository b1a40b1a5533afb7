"""Index expressions: axes, sizes and expressions of them, as SymPy. They are values too."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from sympy import Expr, Integer, Symbol
from torch.utils._sympy.functions import Max, Min

from smelt.ops import ops
from smelt.symbolic.affine import divided, expand, remainder, symbols_in
from smelt.te.dtypes import NAMES, kind_of
from smelt.te.errors import refuse
from smelt.te.value import Number, Place, Value, binary, lookups_in

_numbers = itertools.count()


class Unknown(Symbol):
    """A symbol of a te program, unique despite its name. ``is_size``: it is known before loops run."""

    __slots__ = ("is_size", "label")
    label: str
    is_size: bool

    def __new__(cls, label: str, is_size: bool) -> Unknown:
        made = Symbol.__xnew__(cls, f"{label}${next(_numbers):09}", integer=True, nonnegative=True)
        made.label, made.is_size = label, is_size
        return made

    def _sympystr(self, printer: Any) -> str:
        return self.label


class Idx(Value):
    """An integer that depends on loops and sizes only.

    Arithmetic with other indices gives an index; with other values it gives a value.
    """

    def __init__(self, expr: Expr, kind: torch.dtype = torch.int32) -> None:
        super().__init__(kind, [found.lookup for found in lookups_in(expr)])
        self.expr = expr

    @property
    def is_size(self) -> bool:
        """Whether it depends on sizes only."""
        return all(getattr(symbol, "is_size", True) for symbol in symbols_in(self.expr))

    def _sympy_(self) -> Expr:
        return self.expr

    def said(self, place: Place) -> Any:
        return ops.index_expr(place.at(self.expr), self.kind)

    def _with(self, other: Any, f: Callable[[Expr, Expr], Expr], op: str, turned: bool = False) -> Any:
        expr = as_index(other)
        if expr is None:
            return binary(op, other, self) if turned else binary(op, self, other)
        kind = self.kind
        if (
            isinstance(other, Value)
            and not getattr(other, "weak", False)
            and other.kind.itemsize > kind.itemsize
        ):
            kind = other.kind
        return made(f(expr, self.expr) if turned else f(self.expr, expr), kind)

    def __add__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a + b, "add")

    def __radd__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a + b, "add", True)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a - b, "sub")

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a - b, "sub", True)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: expand(a * b), "mul")

    def __rmul__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: expand(a * b), "mul", True)

    def __floordiv__(self, other: Any) -> Any:
        return self._with(other, _floordiv, "floordiv")

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with(other, _floordiv, "floordiv", True)

    def __mod__(self, other: Any) -> Any:
        return self._with(other, _floormod, "remainder")

    def __rmod__(self, other: Any) -> Any:
        return self._with(other, _floormod, "remainder", True)

    def __neg__(self) -> Any:
        return made(-self.expr, self.kind)

    def maximum(self, other: Any) -> Any:
        return self._with(other, Max, "maximum")

    def minimum(self, other: Any) -> Any:
        return self._with(other, Min, "minimum")

    def __index__(self) -> int:
        return int(self)

    def __int__(self) -> int:
        if not self.expr.is_Integer:
            refuse("SM1104", f"{self} is not known while a tensor expression is written")
        return int(self.expr)

    def decided(self) -> bool | None:
        return bool(self.expr != 0) if self.expr.is_Integer else None

    def converted(self, kind: torch.dtype) -> Value:
        whole = kind in (torch.int32, torch.int64)
        return Idx(self.expr, kind) if whole else super().converted(kind)

    __hash__ = object.__hash__

    @property
    def name(self) -> str:
        return str(getattr(self.expr, "label", self.expr))


class Var(Idx):
    """A size that a call determines (`te.var`)."""

    def __init__(self, name: str, kind: torch.dtype) -> None:
        super().__init__(Unknown(name, is_size=True), kind)


class IterVar(Idx):
    """An axis of iteration: over the elements of a tensor, or over a reduction.

    It takes the ``extent`` numbers from ``begin`` on. ``var`` is the axis; ``dom`` its range.
    """

    def __init__(self, name: str, begin: Expr, extent: Expr, kind: torch.dtype, reduce: bool) -> None:
        symbol = Unknown(name, is_size=False)
        super().__init__(symbol + begin, kind)
        self.symbol, self.begin, self.extent, self.reduce = symbol, begin, extent, reduce

    @property
    def name(self) -> str:
        return self.symbol.label

    @property
    def var(self) -> IterVar:
        return self

    @property
    def dom(self) -> Range:
        return Range(public(self.begin, self.kind), public(self.extent, self.kind))


class Range:
    """The ``extent`` numbers from ``min`` on."""

    def __init__(self, begin: Any, extent: Any) -> None:
        self.min, self.extent = begin, extent

    def __repr__(self) -> str:
        return f"Range({self.min}, {self.min + self.extent})"


def made(expr: Expr, kind: torch.dtype) -> Any:
    """An index for an expression; a plain number for a constant."""
    return int(expr) if expr.is_Integer else Idx(expr, kind)


def public(expr: Expr, kind: torch.dtype = torch.int32) -> Any:
    """A size in its public form: a Python number if it is constant."""
    return made(expr, kind)


def as_index(value: Any) -> Expr | None:
    """The index expression of an `Idx` or an integer, else None."""
    if isinstance(value, Idx):
        return value.expr
    if isinstance(value, Expr):
        return value
    if isinstance(value, Number) and value.kind is not torch.bool and not value.kind.is_floating_point:
        return Integer(value.value)
    if isinstance(value, (bool, float, Value)) or not hasattr(value, "__index__"):
        return None
    return Integer(value.__index__())


def as_size(value: Any, what: str, of_axes: bool = False) -> Expr:
    """A size as an expression. ``of_axes``: it may contain axes.

    Raises:
        SmeltError: SM1110, it is no size, or negative.
    """
    if isinstance(value, float) and value == int(value):
        value = int(value)
    expr = as_index(value)
    if expr is None or (isinstance(value, Idx) and not (value.is_size or of_axes)):
        refuse("SM1110", f"{what}: {value!r} is no size", remedy="integers, and expressions of te.var")
    if expr.is_negative:
        refuse("SM1110", f"{what}: a size of {expr}")
    return expr


def _nonzero(divisor: Expr) -> None:
    if divisor == 0:
        refuse("SM1107", "an index is divided by 0")


def _floordiv(a: Expr, b: Expr) -> Expr:
    _nonzero(b)
    if a.is_Integer and b.is_Integer:
        return Integer(int(a) // int(b))
    return divided(a, b)


def _floormod(a: Expr, b: Expr) -> Expr:
    _nonzero(b)
    if a.is_Integer and b.is_Integer:
        return Integer(int(a) % int(b))
    return remainder(a, b)


def var(name: str = "tindex", dtype: Any = "int32", span: Any = None) -> Var:
    """A number that each call determines: a size in parameters' shapes, or a parameter. It is not negative.

    >>> n = var("n")
    >>> n * 2 + 1, n == n
    (2*n + 1, n == n)
    """
    return Var(name, _integer(dtype))


def size_var(name: str = "size", dtype: Any = "int32", span: Any = None) -> Var:
    """A `var`, which is not negative, as all sizes."""
    return var(name, dtype)


def reduce_axis(dom: Any, name: str = "rv", thread_tag: str = "", span: Any = None) -> IterVar:
    """An axis to reduce over: ``dom`` is ``(begin, end)``.

    The end may depend on axes of the tensor, and on axes that are reduced before: ``lambda i: te.sum(A[i, k],
    axis=k)`` with ``k`` up to ``i``.
    """
    if isinstance(dom, Range):
        begin, extent = as_size(dom.min, name), as_size(dom.extent, name, True)
    else:
        begin, end = (as_index(each) for each in dom)
        if begin is None or end is None:
            refuse("SM1110", f"{name}: {dom!r} is no range", remedy="(begin, end)")
        extent = as_size(made(expand(end - begin), torch.int32), name, True)
    wide = any(
        isinstance(each, Idx) and each.kind is torch.int64 for each in (dom if isinstance(dom, tuple) else ())
    )
    return IterVar(name, begin, extent, torch.int64 if wide else torch.int32, reduce=True)


def _integer(dtype: Any) -> torch.dtype:
    kind = kind_of(dtype)
    if kind.is_floating_point or kind is torch.bool:
        refuse("SM1110", f"a size is an integer, not {NAMES[kind]}")
    return kind


__all__ = [
    *("Idx", "IterVar", "Range", "Unknown", "Var", "as_index", "as_size", "made", "public"),
    *("reduce_axis", "size_var", "var"),
]
