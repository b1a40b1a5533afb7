"""Array operations in TOSA."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import SmeltError
from smelt.loops.philox import GENERATOR
from smelt.mlir.arrays.decomposed import DECOMPOSED
from smelt.mlir.arrays.dialect import Array, Number, Shape, single
from smelt.mlir.attributes import i32, i32s
from smelt.mlir.bindings import ir, tensor
from smelt.mlir.capabilities import BODIES, CALLS, Capabilities
from smelt.mlir.isolated import transformed
from smelt.mlir.target import SIMPLIFYING
from smelt.mlir.tosa import order, products, reductions, shapes
from smelt.mlir.tosa.elementwise import ELEMENTWISE, elementwise, narrowed, truncated, widened
from smelt.mlir.tosa.operations import Operations, is_empty
from smelt.symbolic.affine import expand

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)
SEED = "seed"
"""The name of the variable with the random generator's state."""


class Tosa(Operations):
    """Writes TOSA (MLIR's dialect of the specification 1.x, with its extensions for int64 and float64).

    A value may have one element along a dimension of larger size in its array: TOSA's elementwise operations
    broadcast it, and `solid` expands it for other operations. Integers are signless, uint8 is ``i8``. TOSA
    lacks empty arrays, which are ``arith.constant``, and access to the bits of floats, which is
    ``tensor.bitcast``. Dynamic sizes are read from the function's arguments by ``tosa.dim`` and computed by
    operations on shapes. TOSA cannot raise: an index out of range reads the nearest element, and the caller
    must check sizes. A division is a product with the reciprocal. The seed of random numbers is a
    ``tosa.variable`` that each run updates. Complex arguments and results are pairs of reals in a last
    dimension of two.
    """

    title = "TOSA"
    capabilities = Capabilities(BODIES, frozenset({*ELEMENTWISE, *DECOMPOSED}), calls=CALLS)

    def __init__(self) -> None:
        super().__init__()
        self.seeded = False
        self._entry: tuple[Any, dict[Any, Any], dict[str, Array]] | None = None

    def solid(self, x: Array) -> Array:
        """The array with all its elements in its value."""
        held = self.held(x)
        if held == x.shape:
            return x
        if is_empty(x.shape):
            return self.empty(x.dtype, x.shape)
        repeats = tuple(size if here != size else ONE for here, size in zip(held, x.shape))
        if all(size.is_Integer for size in x.shape) and x.number is not None:
            return self._constant(single(x.number, x.dtype), x.shape)
        return self.write("tile", [x.value, shapes.operand(self, repeats)], x.dtype, x.shape)

    # -- numbers --------------------------------------------------------------------------------------

    def literal(self, tensor: torch.Tensor, name: str) -> Array:
        shape = tuple(sympy.Integer(size) for size in tensor.shape)
        if is_empty(shape):
            return self.empty(tensor.dtype, shape)
        if tensor.is_floating_point() and not tensor.any():  # `elementwise` must see a 0
            signs = tensor.signbit()
            if bool(signs.all()) or not bool(signs.any()):
                return self.full(-0.0 if bool(signs.any()) else 0.0, tensor.dtype, shape)
        with ir.Location.name(name):
            return self.write("const", [], tensor.dtype, shape, values=self.attribute(tensor))

    def iota(self, size: Expr, dtype: torch.dtype) -> Array:
        key = ("iota", size)
        if key not in self.memo:
            if size.is_Integer:
                self.memo[key] = self.literal(torch.arange(int(size)), "iota")
            else:
                self.memo[key] = self._at_entry(key, lambda: shapes.counted(self, size))
        found = self.memo[key]
        return found if dtype is torch.int64 else self.convert(found, dtype)

    def seed(self) -> Array:
        self.seeded = True
        held = {"name": ir.StringAttr.get(SEED)}
        kind = self.type(torch.int64, ())
        before = Array(self.operation("variable_read", [kind], [], held).results[0], torch.int64, ())
        factor, step = (self.full(number, torch.int64, ()) for number in GENERATOR)
        after = self.apply("add", self.apply("mul", before, factor), step)
        self.operation("variable_write", [], [after.value], held)
        return after

    def declare(self) -> None:
        if self.seeded:
            attributes = {
                "sym_name": ir.StringAttr.get(SEED),
                "type": ir.TypeAttr.get(self.element(torch.int64)),
                "var_shape": ir.Attribute.parse("dense<> : tensor<0xindex>"),
                "initial_value": ir.Attribute.parse("dense<0> : tensor<i64>"),
            }
            self.operation("variable", [], [], attributes)

    def dimension(self, x: Array, dim: int) -> Array:
        return shapes.counted_size(self, x, dim)

    def know(self, arguments: Mapping[str, Array], conditions: Iterable[Any] = ()) -> None:
        for array in arguments.values():
            for dim, size in enumerate(array.shape):
                if not size.is_Integer:
                    self.extents.setdefault(size, (array, dim))
        super().know(arguments)
        known = dict(self.memo), dict(self.symbols)
        self._entry = shapes.constant(self, []).owner, *known

    def _at_entry(self, key: Any, make: Callable[[], Array]) -> Array:
        """Compute a value that depends only on the arguments' sizes once, at the function's entry."""
        if self._entry is None:
            return make()
        first, memo, symbols = self._entry
        if key not in memo:
            with ir.InsertionPoint(first), self.region():
                self.memo = dict(memo)
                self.symbols.clear()
                self.symbols.update(symbols)
                memo[key] = make()
        return memo[key]

    # -- elementwise ----------------------------------------------------------------------------------

    def elementwise(self, name: str, *args: Array) -> Array:
        return elementwise(self, name, *args)

    def convert(self, x: Array, dtype: torch.dtype) -> Array:
        if x.dtype == dtype:
            return x
        if x.dtype is torch.uint8:
            return x if dtype is torch.uint8 else self.convert(widened(self, x), dtype)
        if dtype is torch.uint8:
            return narrowed(self, self.convert(x, torch.int32))
        if x.dtype.is_floating_point and dtype is torch.bool:
            return self.apply(
                "ne", x, self.full(0.0, x.dtype, x.shape)
            )  # passes may fold a cast of NaN to False
        if x.dtype is torch.bool:  # upstream folds a cast of True to -1
            one, zero = (self.full(number, dtype, x.shape) for number in (1, 0))
            return self.plain("select", [x, one, zero], dtype)
        if x.dtype.is_floating_point and not dtype.is_floating_point:
            x = truncated(self, x)
        if torch.bfloat16 in (x.dtype, dtype) and {x.dtype, dtype} & {torch.float16, torch.float64}:
            x = self.convert(x, torch.float32)
        return self.plain("cast", [x], dtype)

    def bitcast(self, x: Array, dtype: torch.dtype) -> Array:
        if not (x.dtype.is_floating_point or dtype.is_floating_point):
            return Array(x.value, dtype, x.shape)
        return Array(tensor.bitcast(self.type(dtype, self.held(x)), x.value), dtype, x.shape)

    # -- structure ------------------------------------------------------------------------------------

    def broadcast(self, x: Array, shape: Shape, dims: Sequence[int]) -> Array:
        shape = tuple(shape)
        if is_empty(shape):
            return self.empty(x.dtype, shape)
        if x.number is not None:
            return self.full(x.number, x.dtype, shape)
        held = self.held(x)
        sizes = [ONE] * len(shape)
        for d, place in enumerate(dims):
            sizes[place] = held[d]
        value = x.value
        if tuple(sizes) != held:
            value = self._reshaped_value(x, tuple(sizes))
        return Array(value, x.dtype, shape)

    def _reshaped_value(self, x: Array, held: Shape) -> Any:
        operands = [x.value, shapes.operand(self, shapes.one_unknown(held))]
        return self.write("reshape", operands, x.dtype, held).value

    def reshape(self, x: Array, shape: Shape) -> Array:
        shape = tuple(shape)
        if x.shape == shape:
            return x
        if is_empty(shape):
            return self.empty(x.dtype, shape)
        if x.number is not None:
            return self.full(x.number, x.dtype, shape)
        return Array(self._reshaped_value(self.solid(x), shape), x.dtype, shape)

    def relabel(self, x: Array, shape: Shape) -> Array:
        shape = tuple(shape)
        if x.shape == shape:
            return x
        held = tuple(ONE if here == 1 else size for here, size in zip(self.held(x), shape, strict=True))
        if self.type(x.dtype, held) == x.value.type:
            return Array(x.value, x.dtype, shape, x.number)
        return Array(self._reshaped_value(x, held), x.dtype, shape)

    def transpose(self, x: Array, order: Sequence[int]) -> Array:
        if list(order) == list(range(x.rank)):
            return x
        shape = tuple(x.shape[d] for d in order)
        if is_empty(shape):
            return self.empty(x.dtype, shape)
        if x.number is not None:
            return self.full(x.number, x.dtype, shape)
        held = self.held(x)
        result = self.write(
            "transpose", [x.value], x.dtype, shape, tuple(held[d] for d in order), perms=i32s(order)
        )
        return self.remember_transposed(result, x, order)

    def slice(self, x: Array, starts: Shape, sizes: Shape, steps: Shape) -> Array:
        shape = tuple(sizes)
        if is_empty(shape):
            return self.empty(x.dtype, shape)
        if x.number is not None:
            return self.full(x.number, x.dtype, shape)
        repeated = [here == 1 and here != size for here, size in zip(self.held(x), x.shape)]
        line = Array(x.value, x.dtype, self.held(x))
        starts = tuple(ZERO if lazy else each for lazy, each in zip(repeated, starts))
        wanted = tuple(ONE if lazy else each for lazy, each in zip(repeated, sizes))
        if all(step == 1 or lazy or size == 1 for lazy, step, size in zip(repeated, steps, sizes)):
            found = self._cut(line, starts, wanted)
        else:
            found = self._cut_in_steps(line, starts, wanted, steps, repeated)
        return Array(found.value, x.dtype, shape)

    def _cut(self, x: Array, starts: Shape, sizes: Shape) -> Array:
        if all(start == 0 for start in starts) and tuple(sizes) == x.shape:
            return x
        operands = [x.value, shapes.operand(self, starts), shapes.operand(self, sizes)]
        return self.write("slice", operands, x.dtype, sizes)

    def _cut_in_steps(
        self, x: Array, starts: Shape, sizes: Shape, steps: Shape, repeated: Sequence[bool]
    ) -> Array:
        """Slice whole strides and keep the first element of each: TOSA's slices have no strides."""
        spread = [
            size if lazy or step == 1 else expand(size * step)
            for lazy, size, step in zip(repeated, sizes, steps)
        ]
        missing = [
            expand(start + size - have) if step != 1 and not lazy else ZERO
            for lazy, start, size, have, step in zip(repeated, starts, spread, x.shape, steps)
        ]
        high = tuple(
            ZERO if each.is_nonpositive else each if each.is_Integer else step - 1
            for each, step in zip(missing, steps)
        )
        if any(each != 0 for each in high):
            x = self.pad(x, (ZERO,) * x.rank, high, 0)
        x = self._cut(x, starts, tuple(spread))
        parts: list[Expr] = []
        inner: list[int] = []
        for lazy, size, step in zip(repeated, sizes, steps):
            parts.append(size)
            if step != 1 and not lazy:
                inner.append(len(parts))
                parts.append(step)
        x = self.reshape(x, tuple(parts))
        ones = tuple(ONE if n in inner else size for n, size in enumerate(parts))
        return self.reshape(self._cut(x, (ZERO,) * x.rank, ones), tuple(sizes))

    def reverse(self, x: Array, dims: Sequence[int]) -> Array:
        if is_empty(x.shape) or x.number is not None:
            return x
        held, value = self.held(x), x.value
        for dim in dims:
            if held[dim] != 1:
                value = self.write("reverse", [value], x.dtype, held, axis=i32(dim)).value
        return Array(value, x.dtype, x.shape)

    def pad(self, x: Array, low: Shape, high: Shape, value: Number) -> Array:
        shape = tuple(expand(a + b + c) for a, b, c in zip(x.shape, low, high, strict=True))
        if is_empty(shape):
            return self.empty(x.dtype, shape)
        if is_empty(x.shape) or (x.number is not None and repr(x.number) == repr(value)):
            return self.full(value, x.dtype, shape)
        x = self.solid(x)
        around = shapes.operand(self, tuple(size for pair in zip(low, high) for size in pair))
        return self.write("pad", [x.value, around, self.full(value, x.dtype, (ONE,)).value], x.dtype, shape)

    def concatenate(self, arrays: Sequence[Array], dim: int) -> Array:
        shape = list(arrays[0].shape)
        shape[dim] = sympy.Add(*(each.shape[dim] for each in arrays))
        parts = [self.solid(each) for each in arrays if not is_empty(each.shape)]
        if not parts:
            return self.empty(arrays[0].dtype, tuple(shape))
        if len(parts) == 1:
            return self.relabel(parts[0], tuple(shape))
        return self.write(
            "concat", [each.value for each in parts], parts[0].dtype, tuple(shape), axis=i32(dim)
        )

    take, put = order.take, order.put

    # -- reductions and order -------------------------------------------------------------------------

    def reduce(self, kind: str, x: Array, dims: Sequence[int]) -> Array:
        return reductions.reduce(self, kind, *self.untransposed(x, dims))

    sort = order.sort
    matmul, convolution = products.matmul, products.convolution

    # -- results --------------------------------------------------------------------------------------

    def simplified(self, module: Any) -> Any:
        """Simplify in a separate process, because upstream's TOSA patterns may crash it."""
        try:
            return transformed(module, [(SIMPLIFYING, "simplifying TOSA")])
        except SmeltError:
            return module  # correct, but longer

    def finish(self, array: Array, dtype: torch.dtype) -> Array:
        return self.solid(super().finish(array, dtype))
