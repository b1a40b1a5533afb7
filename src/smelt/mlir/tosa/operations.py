"""The base class that writes TOSA operations: dimensions of size 1 in values are broadcast implicitly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.mlir.arrays.dialect import Array, Number, Shape, single
from smelt.mlir.attributes import splat
from smelt.mlir.bindings import arith, ir
from smelt.mlir.target import Target

ONE = sympy.Integer(1)


class Operations(Target):
    """Writes operations of TOSA.

    ``extents``: size expression → the argument, and its dimension of this size.
    """

    complexes = False
    namespace, branching, looping, ending = "tosa", "cond_if", "while_loop", "yield"

    def __init__(self) -> None:
        super().__init__()
        self.extents: dict[Expr, tuple[Array, int]] = {}

    # -- types and operations -------------------------------------------------------------------------

    def element(self, dtype: torch.dtype) -> Any:
        if dtype in (torch.uint16, torch.uint32, torch.uint64):
            raise Unsupported(f"TOSA has no {str(dtype).removeprefix('torch.')}")
        return super().element(dtype)

    def write(
        self,
        name: str,
        operands: Sequence[Any],
        dtype: torch.dtype,
        shape: Shape,
        held: Shape | None = None,
        **attributes: Any,
    ) -> Array:
        """An operation with one result, which has ``shape``; ``held``: the sizes of its value."""
        shape = tuple(shape)
        kind = self.type(dtype, shape if held is None else held)
        return Array(self.operation(name, [kind], operands, attributes).results[0], dtype, shape)

    def held(self, x: Array) -> Shape:
        """The sizes of an array's value: 1 for dimensions to be broadcast."""
        kind = ir.RankedTensorType(x.value.type)
        return tuple(
            x.shape[d] if kind.is_dynamic_dim(d) else sympy.Integer(kind.get_dim_size(d))
            for d in range(x.rank)
        )

    def empty(self, dtype: torch.dtype, shape: Shape) -> Array:
        """An array without elements."""
        kind = self.type(dtype, shape)
        if not kind.has_static_shape:
            raise Unsupported("an array without elements whose other sizes are dynamic")
        return Array(
            arith.ConstantOp(kind, ir.Attribute.parse(f"dense<> : {kind}")).result, dtype, tuple(shape)
        )

    def full(self, value: Number, dtype: torch.dtype, shape: Shape) -> Array:
        shape = tuple(shape)
        if is_empty(shape):
            return self.empty(dtype, shape)
        key = ("full", repr(value), dtype, len(shape))
        if key not in self.memo:
            self.memo[key] = self._constant(single(value, dtype), (ONE,) * len(shape)).value
        return Array(self.memo[key], dtype, shape, value)

    def _constant(self, number: torch.Tensor, shape: Shape) -> Array:
        dtype, sizes = number.dtype, [int(size) for size in shape]
        if dtype in (torch.bool, torch.bfloat16) or not sizes:
            values = self.attribute(number.expand(sizes))
        else:
            values = splat(number, sizes, self.element(dtype))
        return self.write("const", [], dtype, shape, values=values)

    def plain(
        self, name: str, args: Sequence[Array], dtype: torch.dtype, *more: Any, **attributes: Any
    ) -> Array:
        """An elementwise operation on arrays of one shape; ``more``: operands after them."""
        shape = args[0].shape
        if is_empty(shape):
            return self.empty(dtype, shape)
        held = list(self.held(args[0]))
        for arg in args[1:]:
            for d, size in enumerate(self.held(arg)):
                if held[d] == 1 or (size.is_Integer and size != 1):
                    held[d] = size
        operands = [*(each.value for each in args), *more]
        return self.write(name, operands, dtype, shape, tuple(held), **attributes)


def is_empty(shape: Shape) -> bool:
    """Whether arrays of this shape have no elements."""
    return any(size == 0 for size in shape)
