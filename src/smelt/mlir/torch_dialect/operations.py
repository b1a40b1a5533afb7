"""The base class that writes operations of the Torch dialect on value tensors and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from sympy import Expr, Symbol

from smelt.errors import Unsupported
from smelt.mlir.arrays.dialect import Array, Number, Shape
from smelt.mlir.arrays.expressions import Numbers, evaluate_number
from smelt.mlir.bindings import ir
from smelt.mlir.target import Target
from smelt.mlir.torch_dialect import numbers
from smelt.mlir.torch_dialect.arguments import Constants
from smelt.mlir.torch_dialect.types import element


class Operations(Target):
    """Writes operations of the Torch dialect.

    ``constants``: the constants of the current function or region. Sizes are operands of type
    ``!torch.int``, computed from the dimensions of the arguments (`number`).
    """

    raises = True
    namespace, branching, ending = "torch", "prim.If", "prim.If.yield"

    def __init__(self, constants: Constants) -> None:
        super().__init__()
        self.constants = constants

    # -- operations ---------------------------------------------------------------------------------

    def type(self, dtype: torch.dtype, shape: Shape) -> Any:
        sizes = ",".join(str(size) if size.is_Integer else "?" for size in shape)
        return ir.Type.parse(f"!torch.vtensor<[{sizes}],{element(dtype)}>")

    def write(self, name: str, operands: Sequence[Any], dtype: torch.dtype, shape: Shape) -> Array:
        """``torch.aten.NAME`` with one result. An operand may be an array or a list of numbers; a number,
        dtype or None becomes a constant."""
        values = [self._operand(each) for each in operands]
        full_name = name if name.startswith("torch.") else f"torch.aten.{name}"
        made = ir.Operation.create(full_name, results=[self.type(dtype, shape)], operands=values)
        return Array(made.results[0], dtype, tuple(shape))

    def _operand(self, operand: Any) -> Any:
        if isinstance(operand, Array):
            return operand.value
        if isinstance(operand, Expr):
            return self.number(operand)
        if isinstance(operand, (list, tuple)):
            kind = "vtensor" if operand and isinstance(operand[0], Array) else "int"
            return numbers.list_of([self._operand(each) for each in operand], kind)
        return operand if hasattr(operand, "type") else self.constants.get(operand)

    # -- numbers ------------------------------------------------------------------------------------

    def number(self, expr: Expr) -> Any:
        """A size as ``!torch.int``."""
        key = ("number", expr)
        if key not in self.memo:
            self.memo[key] = evaluate_number(expr, _Numbers(self))
        return self.memo[key]

    def tensor_of(self, number: Any) -> Array:
        """A ``!torch.int``, ``!torch.float`` or ``!torch.bool`` as an array of rank 0."""
        dtype = numbers.DTYPES[str(number.type)]
        whole = numbers.converted(number, torch.int64) if dtype is torch.bool else number
        made = self.write("scalar_tensor", [whole, dtype, None, None, None], dtype, ())
        self.memo["number of", made.value] = number
        return made

    def number_of(self, x: Array) -> Any:
        """The element of an array of rank 0, as a number of the dialect."""
        key = ("number of", x.value)
        if key not in self.memo:
            self.memo[key] = numbers.item(x.value, torch.empty((), dtype=x.dtype).item())
        return self.memo[key]

    def truth(self, condition: Array) -> Any:
        return self.number_of(condition)

    def plain_convert(self, x: Array, dtype: torch.dtype) -> Array:
        """A conversion by torch-mlir's pipelines, which treat uint8 as int8."""
        if x.dtype == dtype:
            return x
        return self.write("torch.prims.convert_element_type", [x, dtype], dtype, x.shape)

    def sorted(self, x: Array, descending: bool) -> tuple[Array, Array]:
        """``aten.sort`` along the last dimension."""
        types = [self.type(x.dtype, x.shape), self.type(torch.int64, x.shape)]
        operands = [x.value, self.constants.get(-1), self.constants.get(descending)]
        values, positions = ir.Operation.create("torch.aten.sort", results=types, operands=operands).results
        return Array(values, x.dtype, x.shape), Array(positions, torch.int64, x.shape)

    def gather(self, x: Array, dim: int, positions: Array) -> Array:
        """``aten.gather``; positions are in range."""
        return self.write("gather", [x, dim, positions, False], x.dtype, positions.shape)

    @contextmanager
    def region(self) -> Iterator[None]:
        outer = self.constants
        self.constants = Constants(outer)
        try:
            with super().region():
                yield
        finally:
            self.constants = outer


class _Numbers(Numbers):
    """Numbers of types ``!torch.int``, ``!torch.float``, ``!torch.bool``."""

    def __init__(self, dialect: Operations) -> None:
        self.dialect = dialect

    def symbol(self, symbol: Symbol) -> Any:
        dialect, key = self.dialect, ("number", symbol.name)
        if key not in dialect.memo:
            if symbol.name not in dialect.symbols:
                raise Unsupported(f"the size {symbol} is no dimension of an argument")
            dialect.memo[key] = dialect.number_of(dialect.symbols[symbol.name])
        return dialect.memo[key]

    def constant(self, value: Number, dtype: torch.dtype) -> Any:
        return self.dialect.constants.get(torch.tensor(value, dtype=dtype).item())

    def dtype_of(self, value: Any) -> torch.dtype:
        return numbers.DTYPES[str(value.type)]

    def to_dtype(self, x: Any, dtype: torch.dtype) -> Any:
        return numbers.converted(x, dtype)

    def elementwise(self, name: str, *args: Any) -> Any:
        return numbers.compute(name, args, self.dialect.constants)
