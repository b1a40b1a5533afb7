"""Array operations in StableHLO: static forms for static sizes, dynamic forms for dynamic ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.loops.reductions import identity
from smelt.mlir.arrays.decomposed import DECOMPOSED
from smelt.mlir.arrays.dialect import Array, Number, Shape, single
from smelt.mlir.arrays.reductions import COMBINED, divisor, split
from smelt.mlir.attributes import attribute, elements, i64, i64s, splat
from smelt.mlir.bindings import ir, stablehlo
from smelt.mlir.capabilities import BODIES, CALLS, SEED, Capabilities
from smelt.mlir.stablehlo import products
from smelt.mlir.stablehlo.elementwise import ELEMENTWISE
from smelt.mlir.stablehlo.operations import Operations
from smelt.symbolic import numel, same
from smelt.symbolic.affine import expand

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


class StableHlo(Operations):
    """Writes StableHLO.

    Dynamic sizes are ``?``; operations on them take the sizes as operands, computed (in ``i64``) from the
    arguments' dimensions. The module is a valid portable artifact. Unsigned integers are ``ui8``. StableHLO
    cannot raise: an index out of range reads the nearest element, and the caller must check sizes.
    """

    title = "StableHLO"
    capabilities = Capabilities(BODIES, frozenset({*ELEMENTWISE, *DECOMPOSED}), calls=CALLS | {SEED})

    # -- numbers ------------------------------------------------------------------------------------

    def full(self, value: Number, dtype: torch.dtype, shape: Shape) -> Array:
        if all(size.is_Integer for size in shape):
            return self._splat(value, dtype, shape)
        made = self.broadcast(self._splat(value, dtype, ()), shape, [])
        return Array(made.value, dtype, shape, value)

    def _splat(self, value: Number, dtype: torch.dtype, shape: Shape) -> Array:
        key = ("splat", repr(value), dtype, tuple(shape))
        if key not in self.memo:
            sizes, kind = [int(size) for size in shape], self.element(dtype)
            number = single(value, dtype)
            whole = elements(number.expand(sizes), kind) if 0 in sizes else splat(number, sizes, kind)
            made = self.write("constant", [], dtype, shape, value=whole)
            self.memo[key] = Array(made.value, dtype, made.shape, value)
        return self.memo[key]

    def literal(self, tensor: torch.Tensor, name: str) -> Array:
        shape = tuple(sympy.Integer(size) for size in tensor.shape)
        with ir.Location.name(name):
            return self.write("constant", [], tensor.dtype, shape, value=self.attribute(tensor))

    def iota(self, size: Expr, dtype: torch.dtype) -> Array:
        if size.is_Integer:
            return self.write("iota", [], dtype, (size,), iota_dimension=i64(0))
        return self.write("dynamic_iota", [self.sizes((size,))], dtype, (size,), iota_dimension=i64(0))

    def dimension(self, x: Array, dim: int) -> Array:
        size = self.write("get_dimension_size", [x], torch.int32, (), dimension=i64(dim))
        return self.convert(size, torch.int64)

    def sizes(self, exprs: Sequence[Expr]) -> Array:
        """Sizes as an array of rank 1, as operations take them."""
        key = ("sizes", tuple(exprs))
        if key not in self.memo:
            if all(expr.is_Integer for expr in exprs):
                self.memo[key] = self.literal(
                    torch.tensor([int(e) for e in exprs], dtype=torch.int64), "sizes"
                )
            else:
                parts = [
                    self.full(int(expr), torch.int64, (ONE,))
                    if expr.is_Integer
                    else self.reshape(self.size(expr), (ONE,))
                    for expr in exprs
                ]
                self.memo[key] = parts[0] if len(parts) == 1 else self.concatenate(parts, 0)
        return self.memo[key]

    def seed(self) -> Array:
        limits = torch.iinfo(torch.int64)
        low, high = (self.full(number, torch.int64, ()) for number in (limits.min, limits.max))
        kind = attribute("#stablehlo<rng_distribution UNIFORM>")
        shape = self.literal(torch.empty(0, dtype=torch.int64), "sizes")
        return self.write("rng", [low, high, shape], torch.int64, (), rng_distribution=kind)

    # -- elementwise --------------------------------------------------------------------------------

    def elementwise(self, name: str, *args: Array) -> Array:
        rule = ELEMENTWISE.get(name)
        return NotImplemented if rule is None else rule(self, *args)

    def convert(self, x: Array, dtype: torch.dtype) -> Array:
        if x.dtype == dtype:
            return x
        if dtype is torch.bool:
            return self.apply("ne", x, self.full(0, x.dtype, x.shape))
        if x.dtype.is_floating_point and not dtype.is_floating_point and dtype is not torch.int64:
            x = self.write("convert", [x], torch.int64, x.shape)
        return self.write("convert", [x], dtype, x.shape)

    def bitcast(self, x: Array, dtype: torch.dtype) -> Array:
        return self.write("bitcast_convert", [x], dtype, x.shape)

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
        places = i64s(dims)
        if all(size.is_Integer for size in shape) and all(size.is_Integer for size in x.shape):
            return self.write("broadcast_in_dim", [x], x.dtype, shape, broadcast_dimensions=places)
        operands = [x, self.sizes(shape)]
        grown = [d for d, place in enumerate(dims) if x.shape[d] == 1 and not same(shape[place], ONE)]
        kept = [d for d in range(x.rank) if d not in grown]
        known = {"known_expanding_dimensions": i64s(grown), "known_nonexpanding_dimensions": i64s(kept)}
        return self.write(
            "dynamic_broadcast_in_dim", operands, x.dtype, shape, broadcast_dimensions=places, **known
        )

    def reshape(self, x: Array, shape: Shape) -> Array:
        shape = tuple(shape)
        if x.shape == shape:
            return x
        if all(size.is_Integer for size in shape):
            return self.write("reshape", [x], x.dtype, shape)
        return self.write("dynamic_reshape", [x, self.sizes(shape)], x.dtype, shape)

    def relabel(self, x: Array, shape: Shape) -> Array:
        shape = tuple(shape)
        kind = self.type(x.dtype, shape)
        if kind == x.value.type:
            return Array(x.value, x.dtype, shape)
        if kind.has_static_shape:
            return self.reshape(x, shape)
        return self.write("dynamic_reshape", [x, self.sizes(x.shape)], x.dtype, shape)

    def transpose(self, x: Array, order: Sequence[int]) -> Array:
        if list(order) == list(range(x.rank)):
            return x
        shape = tuple(x.shape[d] for d in order)
        result = self.write("transpose", [x], x.dtype, shape, permutation=i64s(order))
        return self.remember_transposed(result, x, order)

    def slice(self, x: Array, starts: Shape, sizes: Shape, steps: Shape) -> Array:
        ends = tuple(_end(*each) for each in zip(starts, sizes, steps, strict=True))
        if all(e.is_Integer for e in (*starts, *sizes, *steps, *x.shape)):
            return self.write(
                "slice",
                [x],
                x.dtype,
                sizes,
                start_indices=i64s(starts),
                limit_indices=i64s(ends),
                strides=i64s(steps),
            )
        operands = [x, self.sizes(starts), self.sizes(ends), self.sizes(steps)]
        return self.write("real_dynamic_slice", operands, x.dtype, sizes)

    def reverse(self, x: Array, dims: Sequence[int]) -> Array:
        return self.write("reverse", [x], x.dtype, x.shape, dimensions=i64s(dims))

    def pad(self, x: Array, low: Shape, high: Shape, value: Number) -> Array:
        shape = tuple(expand(a + b + c) for a, b, c in zip(x.shape, low, high, strict=True))
        other, inner = self.full(value, x.dtype, ()), (ZERO,) * x.rank
        if all(e.is_Integer for e in (*low, *high)):
            edges = {
                "edge_padding_low": i64s(low),
                "edge_padding_high": i64s(high),
                "interior_padding": i64s(inner),
            }
            return self.write("pad", [x, other], x.dtype, shape, **edges)
        operands = [x, other, *(self.sizes(each) for each in (low, high, inner))]
        return self.write("dynamic_pad", operands, x.dtype, shape)

    def concatenate(self, arrays: Sequence[Array], dim: int) -> Array:
        if len(arrays) == 1:
            return arrays[0]
        shape = list(arrays[0].shape)
        shape[dim] = sympy.Add(*(each.shape[dim] for each in arrays))
        return self.write("concatenate", arrays, arrays[0].dtype, tuple(shape), dimension=i64(dim))

    # -- by positions that are data -----------------------------------------------------------------

    def take(self, x: Array, positions: Array) -> Array:
        rest = list(range(positions.rank, positions.rank + x.rank - 1))
        numbers = stablehlo.GatherDimensionNumbers.get(rest, [0], [], [], [0], positions.rank)
        shape, window = (*positions.shape, *x.shape[1:]), (ONE, *x.shape[1:])
        if all(size.is_Integer for size in window):
            return self.write(
                "gather", [x, positions], x.dtype, shape, dimension_numbers=numbers, slice_sizes=i64s(window)
            )
        operands = [x, positions, self.sizes(window)]
        return self.write("dynamic_gather", operands, x.dtype, shape, dimension_numbers=numbers)

    def pick(self, x: Array, dim: int, position: Array) -> Array:
        sizes = [*x.shape[:dim], ONE, *x.shape[dim + 1 :]]
        if not all(size.is_Integer for size in sizes):
            return super().pick(x, dim, position)
        zero = self.full(0, torch.int64, ())
        places = [position if d == dim else zero for d in range(x.rank)]
        line = self.write("dynamic_slice", [x, *places], x.dtype, tuple(sizes), slice_sizes=i64s(sizes))
        return self.reshape(line, (*x.shape[:dim], *x.shape[dim + 1 :]))

    def store(self, x: Array, line: Array, dim: int, position: Array) -> Array:
        zero = self.full(0, torch.int64, ())
        places = [position if d == dim else zero for d in range(x.rank)]
        update = self.reshape(line, (*x.shape[:dim], ONE, *x.shape[dim + 1 :]))
        return self.write("dynamic_update_slice", [x, update, *places], x.dtype, x.shape)

    def put(self, base: Array, positions: Array, values: Array, mode: str | None) -> Array:
        attributes = {
            "scatter_dimension_numbers": stablehlo.ScatterDimensionNumbers.get([], [0], [], [], [0], 1),
            "indices_are_sorted": ir.BoolAttr.get(False),
            "unique_indices": ir.BoolAttr.get(False),
        }
        operands = [each.value for each in (base, positions, values)]
        made = self.operation("scatter", [base.value.type], operands, attributes, regions=1)
        self._combiner(
            made.regions[0],
            base.dtype,
            lambda old, new: new if mode is None else self.apply(mode, old, new),
        )
        return Array(made.results[0], base.dtype, base.shape)

    def _combiner(self, region: Any, dtype: torch.dtype, combine: Callable[[Array, Array], Array]) -> None:
        """A region that combines two elements."""
        self.fill(region, [(dtype, ()), (dtype, ())], lambda parts: [combine(*parts)])

    # -- reductions and order -----------------------------------------------------------------------

    def reduce(self, kind: str, x: Array, dims: Sequence[int]) -> Array:
        x, dims = self.untransposed(x, dims)
        if kind == "sum" and x.dtype.is_floating_point:
            return self._sum(x, dims)
        return self._reduce(kind, x, dims)

    def _sum(self, x: Array, dims: Sequence[int]) -> Array:
        """Long sums in parts: StableHLO leaves the order open, and a sequential sum loses precision."""
        count = numel([x.shape[d] for d in dims])
        if count.is_Integer and count <= _LONG_SUM:
            return self._reduce("sum", x, dims)
        for dim in sorted(dims, reverse=True):
            part = divisor(x.shape[dim], _LONG_SUM)
            if part is not None:
                x = self._reduce("sum", split(self, x, dim, part), [dim + 1])
            x = self._reduce("sum", x, [dim])
        return x

    def _reduce(self, kind: str, x: Array, dims: Sequence[int]) -> Array:
        start = self.full(identity(kind, x.dtype), x.dtype, ())
        shape = tuple(size for d, size in enumerate(x.shape) if d not in dims)
        attributes = {"dimensions": i64s(sorted(dims))}
        made = self.operation(
            "reduce", [self.type(x.dtype, shape)], [x.value, start.value], attributes, regions=1
        )
        self._combiner(made.regions[0], x.dtype, lambda old, new: self.apply(COMBINED[kind], old, new))
        return Array(made.results[0], x.dtype, shape)

    def sort(self, x: Array, descending: bool) -> tuple[Array, Array]:
        if x.rank == 0:
            return x, self.full(0, torch.int64, ())
        dim = x.rank - 1
        places = self.broadcast(self.iota(x.shape[-1], torch.int64), x.shape, [dim])
        attributes = {"dimension": i64(dim), "is_stable": ir.BoolAttr.get(True)}
        made = self.operation(
            "sort", [x.value.type, places.value.type], [x.value, places.value], attributes, regions=1
        )

        def before(parts: Sequence[Array]) -> list[Array]:
            one, other = (parts[1], parts[0]) if descending else (parts[0], parts[1])
            result = self.apply("lt", one, other)
            if x.dtype.is_floating_point:
                nan, other_nan = (self.apply("isnan", each) for each in (one, other))
                result = self.apply("logical_or", result, self.apply("lt", nan, other_nan))
            return [result]

        kinds: list[tuple[torch.dtype, Shape]] = [(x.dtype, ())] * 2 + [(torch.int64, ())] * 2
        self.fill(made.regions[0], kinds, before)
        values, positions = made.results
        return Array(values, x.dtype, x.shape), Array(positions, torch.int64, x.shape)

    dot, convolution = products.dot, products.convolution


_LONG_SUM = 1 << 13


def _end(start: Expr, size: Expr, step: Expr) -> Expr:
    """The position behind the last element of a slice."""
    if size == 0:
        return start
    if size.is_Integer or step == 1:
        return expand(start + (size - 1) * step + 1)
    return sympy.Max(start, expand(start + (size - 1) * step + 1))
