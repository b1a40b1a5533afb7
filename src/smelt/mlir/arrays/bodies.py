"""Evaluation of each loop IR body on whole arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.dependencies import variables
from smelt.loops.ir import Contraction, Reduction, Scan, Scatter, Sort, accumulator
from smelt.lowering.products.contractions import Geometry, convolution_of
from smelt.mlir.arrays.dialect import Array, Arrays, Dot, Shape
from smelt.mlir.arrays.evaluate import ArrayHandler, Value
from smelt.mlir.arrays.loops import Dtypes, Extents, Inner, LoopBodies, Turn
from smelt.mlir.arrays.scans import associative
from smelt.ops import using
from smelt.symbolic import contiguous_strides, numel
from smelt.symbolic.affine import expand
from smelt.symbolic.index import floor_div

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


class ArrayBodies(LoopBodies):
    """Evaluates loop bodies over whole arrays."""

    def mapped(
        self, extents: Extents, function: Inner, dtypes: Dtypes, given: Arrays = (), turn: Turn | None = None
    ) -> list[Array]:
        values = {} if turn is None else {turn[0]: Value(torch.int64, (), turn[1])}
        extents = {v: size for v, size in extents.items() if v not in values}
        axes = tuple(extents)
        if any(size == 0 for size in extents.values()):
            return [self.dialect.zeros(dtype, tuple(extents.values())) for dtype in dtypes]
        handler = self._handler(extents, values)
        with using(handler):
            found = function([Value(each.dtype, axes, each) for each in given])
        return [
            handler.as_array(self.expect(value, dtype), axes)
            for value, dtype in zip(found, dtypes, strict=True)
        ]

    def _handler(
        self, extents: Mapping[Symbol, Expr], values: Mapping[Symbol, Value] | None = None
    ) -> ArrayHandler:
        return ArrayHandler(self.dialect, self.buffers, extents, values, self.origin)

    def expect(self, value: Any, dtype: torch.dtype) -> Value:
        """The value, if it is of ``dtype``.

        Raises:
            SmeltError: SM0501, the loop function is wrong.
        """
        if value.dtype != dtype:
            raise self.wrong(value.dtype, dtype)
        return value  # type: ignore[no-any-return]

    # -- reductions ---------------------------------------------------------------------------------

    def reduced(
        self, kind: str, body: Reduction, value: Inner, given: Arrays = (), dtype: torch.dtype | None = None
    ) -> Array:
        if any(size == 0 for size in body.shape):
            return self.dialect.zeros(body.dtype, body.shape)
        index, within = variables("i", len(body.shape)), variables("r", len(body.reduce_shape))
        handler = self._handler(dict(zip((*index, *within), (*body.shape, *body.reduce_shape))))
        with using(handler):
            if any(size == 0 for size in body.reduce_shape):
                found: Any = handler.constant(False if body.dtype is torch.bool else 0, body.dtype)
            else:
                found = value(index, within, *(Value(each.dtype, index, each) for each in given))
        found = self.expect(found, body.dtype)
        kept = tuple(v for v in index if v in found.axes)
        array = handler.as_array(found, (*kept, *within))
        if within:
            array = self.dialect.reduce(kind, array, list(range(len(kept), array.rank)))
        return handler.as_array(Value(array.dtype, kept, array), index)

    # -- contractions -------------------------------------------------------------------------------

    def contraction(self, body: Contraction) -> Array:
        """A product of two arrays, each over the loop variables that it depends on."""
        within = accumulator(body.dtype)
        if any(size == 0 for size in body.shape):
            return self.dialect.zeros(body.dtype, body.shape)
        index, over = variables("i", len(body.shape)), variables("r", len(body.reduce_shape))
        handler = self._handler(dict(zip((*index, *over), (*body.shape, *body.reduce_shape))))
        with using(handler):
            if any(size == 0 for size in body.reduce_shape):
                total = handler.constant(0, within)
            elif (convolved := self._convolution(body)) is not None:
                total = Value(within, index, convolved)
            else:
                lhs = self.expect(body.lhs(index, over), within)
                rhs = self.expect(body.rhs(index, over), within)
                total = self._product(handler, lhs, rhs, index, over)
            if body.start is not None:
                start = self.expect(body.start(index), within)
                total = handler.elementwise("add", total, start)
            total = handler.to_dtype(total, body.dtype)
        return handler.as_array(total, index)

    def _convolution(self, body: Contraction) -> Array | None:
        """The result of the dialect's convolution, if the call is one that the dialect has."""
        found = convolution_of(body.call)
        if self.view is None or found is None:
            return None
        operands, geometry = found
        arrays = [self.dialect.convert(self.view(each), accumulator(body.dtype)) for each in operands]
        if len(arrays) == 2:
            return self.dialect.convolution(arrays[0], arrays[1], geometry, body.shape)
        if geometry.transposed:
            return None
        grad, x, weights = arrays
        if body.result == 0:
            return self._input_gradient(grad, weights, geometry, body.shape)
        return self._weight_gradient(grad, x, geometry, body.shape) if geometry.groups == 1 else None

    def _input_gradient(self, grad: Array, weight: Array, geometry: Geometry, shape: Shape) -> Array | None:
        """The input's gradient: the transposed convolution of the result's gradient."""
        behind = []
        for d, (size, seen) in enumerate(zip(shape[2:], grad.shape[2:])):
            reach = geometry.dilation[d] * (weight.shape[2 + d] - 1) + 1 - 2 * geometry.padding[d]
            rest = expand(size - (seen - 1) * geometry.stride[d] - reach)
            if not rest.is_Integer:
                return None
            behind.append(int(rest))
        turned = replace(geometry, transposed=True, output_padding=tuple(behind))
        return self.dialect.convolution(grad, weight, turned, shape)

    def _weight_gradient(self, grad: Array, x: Array, geometry: Geometry, shape: Shape) -> Array | None:
        """The weight's gradient: the input convolved with the result's gradient over the batch. Strides and
        dilations change places."""
        swapped = [1, 0, *range(2, x.rank)]
        data, taps = self.dialect.transpose(x, swapped), self.dialect.transpose(grad, swapped)
        sizes = []
        for d, (size, seen) in enumerate(zip(x.shape[2:], grad.shape[2:])):
            room = size + 2 * geometry.padding[d] - geometry.stride[d] * (seen - 1) - 1
            sizes.append(floor_div(expand(room), sympy.Integer(geometry.dilation[d])) + 1)
        if not all(size.is_Integer for size in sizes):
            return None
        turned = replace(geometry, stride=geometry.dilation, dilation=geometry.stride)
        whole = (data.shape[0], taps.shape[0], *sizes)
        found = self.dialect.convolution(data, taps, turned, whole)
        if found is None:
            return None
        wanted = (shape[1], shape[0], *shape[2:])
        if wanted != whole:
            found = self.dialect.slice(found, (ZERO,) * found.rank, wanted, (ONE,) * found.rank)
        return self.dialect.transpose(found, swapped)

    def _product(
        self,
        handler: ArrayHandler,
        lhs: Value,
        rhs: Value,
        index: Sequence[Symbol],
        over: Sequence[Symbol],
    ) -> Value:
        """``sum over `over` of lhs * rhs``: a dot for variables of both operands; a variable of one operand
        is summed first."""
        dialect = self.dialect
        lhs, rhs = (self._summed(handler, x, [v for v in over if v in x.axes and v not in y.axes])
                    for x, y in ((lhs, rhs), (rhs, lhs)))  # fmt: skip
        free = [v for v in over if v not in lhs.axes and v not in rhs.axes and handler.extents[v] != 1]
        shared = [v for v in over if v in lhs.axes and v in rhs.axes]
        batch = [v for v in index if v in lhs.axes and v in rhs.axes]
        left = [v for v in index if v in lhs.axes and v not in rhs.axes]
        right = [v for v in index if v in rhs.axes and v not in lhs.axes]
        if shared:
            x, y = handler.as_array(lhs, lhs.axes), handler.as_array(rhs, rhs.axes)
            found = Dot(
                tuple(lhs.axes.index(v) for v in batch),
                tuple(rhs.axes.index(v) for v in batch),
                tuple(lhs.axes.index(v) for v in shared),
                tuple(rhs.axes.index(v) for v in shared),
            )
            product = dialect.dot(x, y, found)
            total = Value(product.dtype, (*batch, *left, *right), product)
            in_order = tuple(v for v in index if v in total.axes)
            total = Value(product.dtype, in_order, handler.as_array(total, in_order))
        else:
            total = handler.elementwise("mul", lhs, rhs)
        if free:  # independent of these variables
            count = handler.index_expr(numel([handler.extents[v] for v in free]), total.dtype)
            total = handler.elementwise("mul", total, count)
        return total

    def _summed(self, handler: ArrayHandler, x: Value, variables: Sequence[Symbol]) -> Value:
        if not variables:
            return x
        array = handler.as_array(x, x.axes)
        dims = [x.axes.index(v) for v in variables]
        axes = tuple(v for v in x.axes if v not in variables)
        return Value(x.dtype, axes, self.dialect.reduce("sum", array, dims))

    # -- scans --------------------------------------------------------------------------------------

    def scan(self, body: Scan) -> list[Array]:
        """Scans by doubling if possible, else by a loop."""
        found = None if any(size == 0 for size in body.shape) else associative(self, body)
        return super().scan(body) if found is None else found

    # -- sorting and scattering ---------------------------------------------------------------------

    def sort(self, body: Sort) -> list[Array]:
        rows = self.buffers[body.source]
        found = self.dialect.sort(rows, body.descending)
        results = []
        for each in found:
            if each.shape != body.shape:
                starts, steps = (ZERO,) * each.rank, (ONE,) * each.rank
                each = self.dialect.slice(each, starts, body.shape, steps)
            results.append(each)
        return results

    def scatter(self, body: Scatter) -> Array:
        dialect, base = self.dialect, self.buffers[body.base]
        if any(size == 0 for size in (*body.shape, *base.shape)):
            return base
        index = variables("i", len(body.shape))
        handler = self._handler(dict(zip(index, body.shape)))
        with using(handler):
            value = self.expect(body.inner_fn(index), body.dtype)
            place = body.place(index)
            flat: Any = handler.constant(0, torch.int64)
            strides = contiguous_strides(base.shape)
            for at, stride in zip(place, strides, strict=True):
                position = handler.index_expr(at, torch.int64)
                if stride != 1:
                    position = handler.elementwise("mul", position, handler.index_expr(stride, torch.int64))
                flat = handler.elementwise("add", flat, position)
        count = (numel(body.shape),)
        places, values = (dialect.reshape(handler.as_array(each, index), count) for each in (flat, value))
        result = dialect.put(dialect.reshape(base, (numel(base.shape),)), places, values, body.mode)
        return dialect.reshape(result, base.shape)
