"""Loop functions evaluated element by element: the `ops` handler whose values are MLIR values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from sympy import Expr, Symbol

from smelt.loops.straightline import Recordable, replay
from smelt.lowering.tensor import HeldNumber
from smelt.mlir.arrays.decomposed import DECOMPOSED
from smelt.mlir.arrays.expressions import evaluate_number
from smelt.mlir.bindings import ir, scf
from smelt.mlir.linalg.operands import Load
from smelt.mlir.linalg.scalars import (
    ELEMENTWISE,
    LOW,
    Scalar,
    as_index,
    bitcast,
    compare,
    constant,
    convert,
    require,
    select,
    word,
)
from smelt.mlir.linalg.sizes import IndexArithmetic, whole
from smelt.mlir.linalg.writer import Writer
from smelt.ops import TABLE, Handler, Rule, result_dtype, using


class ElementHandler(Handler):
    """Writes the operations of a loop function at the insertion point.

    ``tensors``: the tensors that loads read, with dtypes. ``variables``: the value (of type ``index``) of
    each loop variable. ``loads``: the elements that operands provide already. ``given``: named values that
    the code uses but does not compute.
    """

    def __init__(
        self,
        writer: Writer,
        tensors: Mapping[str, tuple[Any, torch.dtype]],
        variables: Mapping[Symbol, Any],
        loads: Mapping[Load, Scalar] | None = None,
        given: Mapping[str, Scalar] | None = None,
    ) -> None:
        self.writer, self.tensors = writer, tensors
        self.variables: dict[Symbol, Any] = dict(variables)
        self.loads, self.given = loads or {}, dict(given or {})
        self._indices = _Indices(self)

    def run(self, steps: Sequence[Recordable]) -> dict[str, Scalar]:
        """The values of recorded code by name, together with ``given``."""
        with using(self):
            return replay(steps, self, self.given)

    # -- the protocol ------------------------------------------------------------------------------------

    def elementwise(self, name: str, *args: Scalar) -> Scalar:
        args = tuple(word(arg) for arg in args)
        dtype = result_dtype(TABLE[name], [arg.dtype for arg in args])
        if dtype in LOW and TABLE[name].rule in (Rule.SAME, Rule.FLOAT) and name != "nextafter":
            wide = [convert(arg, torch.float32) for arg in args]
            return convert(self.elementwise(name, *wide), dtype)
        rule = ELEMENTWISE.get(name)
        if rule is not None:
            return rule(*args)
        with using(self):
            made: Scalar = DECOMPOSED[name](*args)
        return made

    def load(self, buffer: str, index: Sequence[Expr]) -> Scalar:
        known = self.loads.get((buffer, tuple(index)))
        if known is not None:
            return known
        tensor, dtype = self.tensors[buffer]
        return self.writer.element(tensor, [self.position(expr) for expr in index], dtype)

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> Scalar:
        return constant(value, dtype)

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> Scalar:
        return convert(self.number(expr), dtype)

    def to_dtype(self, x: Scalar, dtype: torch.dtype) -> Scalar:
        return convert(x, dtype)

    def bitcast(self, x: Scalar, dtype: torch.dtype) -> Scalar:
        return bitcast(x, dtype)

    def masked(self, mask: Scalar, body: Callable[[], Scalar], other: float | int | bool) -> Scalar:
        """``scf.if``: the body's operations run only if the mask is true."""
        holder = ir.Module.create()  # the result's type is known after the body is written
        with ir.InsertionPoint(holder.body):
            first = word(body())
        branch = scf.IfOp(mask.value, [first.value.type], has_else=True)
        for operation in list(holder.body.operations):
            branch.then_block.append(operation)
        with ir.InsertionPoint(branch.then_block):
            scf.YieldOp([first.value])
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp([constant(other, first.dtype).value])
        return Scalar(branch.results[0], first.dtype)

    def indirect_index(self, x: Scalar, size: Expr, *, wrap: bool = True, check: bool | str = True) -> Expr:
        position = convert(x, torch.int64)
        extent = self.index_expr(size, torch.int64)
        zero = constant(0, torch.int64)
        if wrap:
            negative = compare("lt", position, zero)
            position = select(negative, ELEMENTWISE["add"](position, extent), position)
        if check:
            inside = ELEMENTWISE["logical_and"](
                compare("ge", position, zero), compare("lt", position, extent)
            )
            require(inside, _OUTSIDE["RuntimeError" if check == "RuntimeError" else "IndexError"])
            position = select(inside, position, zero)
        symbol = Symbol(f"at_{len(self.variables)}_", integer=True, nonnegative=True)
        self.variables[symbol] = as_index(position)
        return symbol

    # -- indices -----------------------------------------------------------------------------------------

    def number(self, expr: Expr) -> Scalar:
        """An expression of loop variables and sizes; integers as ``index``."""
        symbols = expr.free_symbols
        if not any(symbol in self.variables or isinstance(symbol, HeldNumber) for symbol in symbols):
            return self.writer.sizes.number(expr)
        made: Scalar = evaluate_number(expr, self._indices)
        return made

    def position(self, expr: Expr) -> Any:
        """An index expression as a value of type ``index``."""
        return as_index(self.number(whole(expr)))


_OUTSIDE = {
    "IndexError": "IndexError: index out of range in self",
    "RuntimeError": "RuntimeError: index out of bounds",
}


class _Indices(IndexArithmetic):
    """Index expressions, with the current values of loop variables."""

    def __init__(self, handler: ElementHandler) -> None:
        self.handler = handler

    def symbol(self, symbol: Symbol) -> Scalar:
        handler = self.handler
        if symbol in handler.variables:
            return Scalar(handler.variables[symbol], torch.int64)
        if isinstance(symbol, HeldNumber):
            with using(handler):
                return convert(symbol.load(), torch.float64)
        return handler.writer.sizes.number(symbol)
