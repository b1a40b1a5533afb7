"""Sizes and indices: SymPy expressions → arithmetic on values of type ``index``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv

from smelt.errors import Unsupported
from smelt.mlir.arrays.expressions import Numbers, evaluate_number
from smelt.mlir.bindings import arith, ir
from smelt.mlir.linalg.scalars import ELEMENTWISE, Scalar, as_index, compare, constant, convert, select, word

_INDEX = {"add": "addi", "sub": "subi", "mul": "muli", "maximum": "maxsi", "minimum": "minsi"}
_INDEX |= {"truncdiv": "divsi", "fmod": "remsi"}
_TESTS = ("eq", "ne", "lt", "le", "gt", "ge")


class IndexArithmetic(Numbers):
    """Numbers at the insertion point: integers of type ``index``; floats and truth values are f64 and i1."""

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> Scalar:
        return constant(value, dtype, ir.IndexType.get() if dtype is torch.int64 else None)

    def to_dtype(self, x: Scalar, dtype: torch.dtype) -> Scalar:
        if x.dtype == dtype:
            return x
        made = convert(x, dtype)
        return Scalar(as_index(made), dtype) if dtype is torch.int64 else made

    def elementwise(self, name: str, *args: Scalar) -> Scalar:
        if any(arg.dtype is not torch.int64 for arg in args[name == "where" :]):
            rule = ELEMENTWISE.get(name)
            if rule is None:
                raise Unsupported(f"{name} of numbers that are no integers, in a size")
            return rule(*map(word, args))
        integers = [Scalar(as_index(arg), torch.int64) for arg in args[name == "where" :]]
        if name == "where":
            return select(args[0], *integers)
        if name in _TESTS:
            return compare(name, *integers)
        x = integers[0].value
        if name in _INDEX:
            return Scalar(getattr(arith, _INDEX[name])(x, integers[1].value), torch.int64)
        zero = self.constant(0, torch.int64)
        if name == "neg":
            return Scalar(arith.subi(zero.value, x), torch.int64)
        if name == "abs":
            return Scalar(arith.maxsi(x, arith.subi(zero.value, x)), torch.int64)
        if name == "floordiv":
            return Scalar(arith.floordivsi(x, integers[1].value), torch.int64)
        if name == "remainder":
            y = integers[1]
            rest = Scalar(arith.remsi(x, y.value), torch.int64)
            signs = arith.xori(compare("lt", rest, zero).value, compare("lt", y, zero).value)
            wrong = Scalar(arith.andi(compare("ne", rest, zero).value, signs), torch.bool)
            return select(wrong, Scalar(arith.addi(rest.value, y.value), torch.int64), rest)
        raise Unsupported(f"{name} in a size")


def whole(expr: Expr) -> Expr:
    """An integer expression (a size or an index) without fractions.

    >>> whole(Symbol("n", integer=True) / 2)
    (n//2)
    """
    if expr.is_integer:
        return expr
    above, below = sympy.fraction(sympy.together(expr))
    return expr if below == 1 else FloorDiv(above, below)


class Sizes(IndexArithmetic):
    """The values of size symbols by name (``symbols``, also filled from outside), and of size expressions.

    Sizes needed inside of an operation's body (`smelt.mlir.linalg.writer`) are computed before the operation,
    so that later operations can use them too.
    """

    def __init__(self, symbols: dict[str, Any]) -> None:
        self.symbols = symbols
        self._memo: dict[Any, Scalar] = {}
        self._points: list[Any] = []

    def symbol(self, symbol: Symbol) -> Scalar:
        if symbol.name not in self.symbols:
            raise Unsupported(f"the size {symbol} is no dimension of an argument")
        found: Scalar = self.symbols[symbol.name]
        return found

    def know(self, name: str, value: Scalar) -> None:
        """Bind a symbol: integers as ``index``."""
        self.symbols[name] = Scalar(as_index(value), torch.int64) if value.dtype is torch.int64 else value

    def number(self, expr: Any) -> Scalar:
        """The value of an expression of sizes: an ``index``, f64 or i1."""
        key = (type(expr), expr)
        made = self._memo.get(key)
        if made is None:
            if self._points:
                with self._points[-1]:
                    made = evaluate_number(expr, self)
            else:
                made = evaluate_number(expr, self)
            self._memo[key] = made
        return made

    def size(self, expr: Expr) -> Any:
        """The value of a size, of type ``index``."""
        return as_index(self.number(whole(expr)))

    def mixed(self, expr: Expr) -> Any:
        """A size in the form that builders take: a Python number if it is static."""
        return int(expr) if expr.is_Integer else self.size(expr)

    @contextmanager
    def before(self, operation: Any) -> Iterator[None]:
        """Inside the block sizes are computed before ``operation`` (or before that of an outer block)."""
        self._points.append(self._points[-1] if self._points else ir.InsertionPoint(operation))
        try:
            yield
        finally:
            self._points.pop()

    @contextmanager
    def region(self) -> Iterator[None]:
        """A region of tensors: values computed inside the block are dropped after it."""
        symbols, memo, points = dict(self.symbols), dict(self._memo), self._points
        self._points = []
        try:
            yield
        finally:
            self.symbols.clear()
            self.symbols.update(symbols)
            self._memo, self._points = memo, points
