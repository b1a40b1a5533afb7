"""Array operations in the Torch dialect: the few operations that torch-mlir's pipelines compile correctly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.errors import Unsupported
from smelt.mlir.arrays.dialect import Array, Arrays, Number, Shape, Step, single
from smelt.mlir.bindings import ir
from smelt.mlir.torch_dialect import numbers, order
from smelt.mlir.torch_dialect.elementwise import elementwise, widened
from smelt.mlir.torch_dialect.literals import literal
from smelt.mlir.torch_dialect.operations import Operations
from smelt.symbolic import as_expr, numel, same
from smelt.symbolic.affine import expand

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


class TorchDialect(Operations):
    """Writes value tensors of the Torch dialect."""

    def size(self, expr: Any) -> Array:
        expr = sympy.sympify(expr)
        if isinstance(expr, Expr) and expr.is_integer and not expr.is_Integer:
            key = ("size", expr)
            if key not in self.memo:
                self.memo[key] = self.tensor_of(self.number(expr))
            return self.memo[key]
        return super().size(expr)

    def dimension(self, x: Array, dim: int) -> Array:
        return self.tensor_of(numbers.size_of(x.value, dim, self.constants))

    def know_sizes(self, value: Any, meta: torch.Tensor) -> None:
        """Record the size symbols that are dimensions of a tensor."""
        shape = tuple(as_expr(size) for size in meta.shape)
        if any(isinstance(size, Symbol) and size.name not in self.symbols for size in shape):
            self.know({f"known{len(self.symbols)}": Array(value, meta.dtype, shape)})

    def full(self, value: Number, dtype: torch.dtype, shape: Shape) -> Array:
        key = ("full", repr(value), dtype, tuple(shape))
        if key not in self.memo and dtype is torch.uint8:
            # ``min(iota, 0) + value`` is not folded: passes make an int8 literal of a constant
            places = self.iota(numel(shape), torch.int64)
            zeros = self.write("clamp_max", [places, 0], torch.int64, places.shape)
            wide = self.write("add.Scalar", [zeros, int(value), 1], torch.int64, places.shape)
            made = self.reshape(self.convert(wide, dtype), tuple(shape))
            self.memo[key] = Array(made.value, dtype, tuple(shape), value)
        elif key not in self.memo:
            scalar = literal(single(value, dtype), "scalar")
            made = self.broadcast(Array(scalar, dtype, ()), shape, [])
            self.memo[key] = Array(made.value, dtype, tuple(shape), value)
        return self.memo[key]

    def literal(self, tensor: torch.Tensor, name: str) -> Array:
        shape = tuple(sympy.Integer(size) for size in tensor.shape)
        return Array(literal(tensor, name), tensor.dtype, shape)

    def iota(self, size: Expr, dtype: torch.dtype) -> Array:
        key = ("iota", size)
        if key not in self.memo:
            operands = [0, size, 1, torch.int64, None, None, None]
            self.memo[key] = self.write("arange.start_step", operands, torch.int64, (size,))
        return self.convert(self.memo[key], dtype)

    def seed(self) -> Array:
        limits = torch.iinfo(torch.int64)
        operands = [limits.min, limits.max, [], torch.int64, None, None, None]
        return self.write("randint.low", operands, torch.int64, ())

    def require(self, condition: Array, message: str) -> None:
        holds = condition if condition.rank == 0 else self.write("all", [condition], torch.bool, ())
        attributes = {"message": ir.StringAttr.get(message)}
        ir.Operation.create("torch.runtime.assert", operands=[self.number_of(holds)], attributes=attributes)

    # -- elementwise --------------------------------------------------------------------------------

    def elementwise(self, name: str, *args: Array) -> Array:
        return elementwise(self, name, *args)

    def bitcast(self, x: Array, dtype: torch.dtype) -> Array:
        if x.dtype.is_floating_point or dtype.is_floating_point:
            raise Unsupported("torch-mlir's pipelines cannot look at the bits of floating-point numbers")
        return self.convert(x, dtype)

    def convert(self, x: Array, dtype: torch.dtype) -> Array:
        if x.dtype == dtype:
            return x
        if dtype is torch.bool:
            return self.write("ne.Scalar", [x, 0.0 if x.dtype.is_floating_point else 0], dtype, x.shape)
        if x.dtype is torch.uint8:
            return self.plain_convert(widened(self, x), dtype)
        if x.dtype.is_floating_point and not dtype.is_floating_point:
            x = self.plain_convert(x, torch.int64)
        if {x.dtype, dtype} == {torch.float64, torch.bfloat16}:
            x = self.plain_convert(x, torch.float32)
        return self.plain_convert(x, dtype)

    def parts(self, x: Array) -> tuple[Array, Array]:
        dtype = x.dtype.to_real()
        return self.write("real", [x], dtype, x.shape), self.write("imag", [x], dtype, x.shape)

    def joined(self, real: Array, imaginary: Array) -> Array:
        return self.write("complex", [real, imaginary], real.dtype.to_complex(), real.shape)

    # -- structure ----------------------------------------------------------------------------------

    def broadcast(self, x: Array, shape: Shape, dims: Sequence[int]) -> Array:
        shape = tuple(shape)
        if x.shape == shape:
            return x
        sizes = list(x.shape)
        for place in range(len(shape)):
            if place not in dims:
                sizes.insert(place, ONE)
                x = self.write("unsqueeze", [x, place], x.dtype, tuple(sizes))
        wanted = [-1 if same(size, whole) else whole for size, whole in zip(sizes, shape)]
        if all(each == -1 for each in wanted):
            return self.relabel(x, shape)
        return self.write("expand", [x, wanted, False], x.dtype, shape)

    def reshape(self, x: Array, shape: Shape) -> Array:
        """A reshape through rank 1 if several sizes are dynamic: ``view`` would treat these as 1."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        unknown = [[size for size in sizes if not size.is_Integer] for sizes in (x.shape, shape)]
        if max(map(len, unknown)) <= 1 and (not unknown[1] or 0 not in shape):
            sizes = [size if size.is_Integer else -1 for size in shape]
            return self.write("view", [x, sizes], x.dtype, shape)
        flat = x
        if x.rank != 1:
            whole = (numel(x.shape),)
            flat = (
                self.write("unsqueeze", [x, 0], x.dtype, whole)
                if x.rank == 0
                else self.write("flatten.using_ints", [x, 0, -1], x.dtype, whole)
            )
        if not shape:
            return self.write("squeeze.dim", [flat, 0], x.dtype, ())
        if len(shape) == 1:
            return self.relabel(flat, shape)
        return self.write("unflatten.int", [flat, 0, list(shape)], x.dtype, shape)

    def relabel(self, x: Array, shape: Shape) -> Array:
        shape = tuple(shape)
        kind = self.type(x.dtype, shape)
        if kind == x.value.type:
            return Array(x.value, x.dtype, shape)
        return self.write("torch.tensor_static_info_cast", [x], x.dtype, shape)

    def transpose(self, x: Array, order: Sequence[int]) -> Array:
        if list(order) == list(range(x.rank)):
            return x
        return self.write("permute", [x, list(order)], x.dtype, tuple(x.shape[d] for d in order))

    def slice(self, x: Array, starts: Shape, sizes: Shape, steps: Shape) -> Array:
        shape = list(x.shape)
        for dim, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
            if start == 0 and step == 1 and same(size, shape[dim]):
                continue
            shape[dim] = size
            stop = expand(start + size * step)
            if step != 1:  # not beyond the end
                stop = expand(start + (size - 1) * step + 1) if size != 0 else start
            x = self.write("slice.Tensor", [x, dim, start, stop, step], x.dtype, tuple(shape))
        return x

    def reverse(self, x: Array, dims: Sequence[int]) -> Array:
        return self.write("flip", [x, list(dims)], x.dtype, x.shape)

    def pad(self, x: Array, low: Shape, high: Shape, value: Number) -> Array:
        """Pads by concatenating constant arrays: ``constant_pad_nd`` does not support bool."""
        for dim, sides in enumerate(zip(low, high, strict=True)):
            parts = [x]
            for place, size in zip((0, len(parts)), sides):
                if size != 0:
                    edge = (*x.shape[:dim], size, *x.shape[dim + 1 :])
                    parts.insert(len(parts) if place else 0, self.full(value, x.dtype, edge))
            x = self.concatenate(parts, dim)
        return x

    def concatenate(self, arrays: Sequence[Array], dim: int) -> Array:
        if len(arrays) == 1:
            return arrays[0]
        shape = list(arrays[0].shape)
        shape[dim] = sympy.Add(*(each.shape[dim] for each in arrays))
        return self.write("cat", [list(arrays), dim], arrays[0].dtype, tuple(shape))

    # -- by positions that are data -----------------------------------------------------------------

    def take(self, x: Array, positions: Array) -> Array:
        """``index_select`` along the first dimension."""
        shape = (*positions.shape, *x.shape[1:])
        flat = self.reshape(positions, (numel(positions.shape),))
        rows = self.write("index_select", [x, 0, flat], x.dtype, (*flat.shape, *x.shape[1:]))
        return self.reshape(rows, shape)

    put, reduce, sort = order.put, order.reduce, order.sort

    def matmul(self, lhs: Array, rhs: Array) -> Array:
        shape = (*lhs.shape[:2], rhs.shape[2])
        return self.write("bmm", [lhs, rhs], lhs.dtype, shape)

    # -- control ------------------------------------------------------------------------------------

    def unfolded(self, truth: Any) -> Any:
        """A ``!torch.bool`` that passes cannot fold: ``int(truth) + min(iota, 0) == 1``. They drop the
        condition of a loop if they fold its first value to True."""
        places = self.iota(ONE, torch.int64)
        zero = self.write("clamp_max", [places, 0], torch.int64, places.shape)
        parts = numbers.converted(truth, torch.int64), self.number_of(self.reshape(zero, ()))
        total = numbers.compute("add", parts, self.constants)
        return numbers.compute("eq", [total, self.constants.get(1)], self.constants)

    def loop(self, initial: Arrays, test: Callable[[Arrays], Array], step: Step) -> list[Array]:
        kinds = [(each.dtype, each.shape) for each in initial]
        types = [each.value.type for each in initial]
        most = self.constants.get(torch.iinfo(torch.int64).max)
        first = self.unfolded(self.number_of(test(initial)))
        operands = [most, first, *(each.value for each in initial)]
        made = ir.Operation.create("torch.prim.Loop", results=types, operands=operands, regions=1)
        places = [ir.Location.current] * (1 + len(types))
        block = made.regions[0].blocks.append(ir.Type.parse("!torch.int"), *types, arg_locs=places)
        with ir.InsertionPoint(block), self.region():
            arguments = [Array(value, *kind) for value, kind in zip(list(block.arguments)[1:], kinds)]
            state = [self.relabel(each, shape) for each, (_, shape) in zip(step(arguments), kinds)]
            again = self.number_of(test(state))
            ir.Operation.create(
                "torch.prim.Loop.condition", operands=[again, *(each.value for each in state)]
            )
        return [Array(value, *kind) for value, kind in zip(made.results, kinds)]
