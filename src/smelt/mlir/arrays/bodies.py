"""Each body of the loop IR on whole arrays (see `smelt.loops.interpreter.evaluate_body`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.ir import (
    Contraction,
    Fold,
    Origin,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    StridedView,
    accumulator,
)
from smelt.mlir.arrays.convolutions import FORWARD, convolution_of
from smelt.mlir.arrays.dialect import Array, ArrayDialect, ConvolutionGeometry, Dot, Shape
from smelt.mlir.arrays.evaluate import ArrayHandler, Value, expect
from smelt.mlir.arrays.scans import RunningHandler, associative
from smelt.ops import using
from smelt.symbolic import contiguous_strides, loop_var, numel
from smelt.symbolic.affine import expand
from smelt.symbolic.index import floor_div

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)

View = Callable[[StridedView], Array]

Loop = Pointwise | Reduction | Contraction | Scan | Fold | Scatter | Sort


class ArrayBodies:
    """Evaluates loop bodies over whole arrays.

    ``buffers``: what loads see. ``view`` gives the array of a strided view of a buffer: with it a convolution
    may be one (see `ArrayDialect.convolution`), else it is the sum of products that its loop functions say.
    """

    def __init__(self, dialect: ArrayDialect, buffers: Mapping[str, Array], view: View | None = None) -> None:
        self.dialect, self.buffers, self.view = dialect, buffers, view
        self.origin = Origin("?")

    def evaluate(self, body: Loop, origin: Origin | None = None) -> list[Array]:
        """The arrays that a body computes, one for each of its results.

        Raises:
            Unsupported: the dialect has no way.
            SmeltError: SM0501, the loop function is wrong.
        """
        self.origin = origin or Origin("?")
        if isinstance(body, Pointwise):
            return [self._pointwise(body)]
        if isinstance(body, Reduction):
            return self._reduction(body)
        if isinstance(body, Contraction):
            return [self._contraction(body)]
        if isinstance(body, Scan):
            return self._scan(body)
        if isinstance(body, Fold):
            return self._fold(body)
        if isinstance(body, Sort):
            return self._sort(body)
        return [self._scatter(body)]

    def _space(
        self, shape: Sequence[Expr], without: int | None = None, values: Mapping[Symbol, Value] | None = None
    ) -> tuple[ArrayHandler, tuple[Symbol, ...]]:
        variables = tuple(loop_var(f"i{d}") for d in range(len(shape)))
        extents = {v: size for d, (v, size) in enumerate(zip(variables, shape)) if d != without}
        return ArrayHandler(self.dialect, self.buffers, extents, values, self.origin), variables

    # -- pointwise and reductions -------------------------------------------------------------------

    def _pointwise(self, body: Pointwise) -> Array:
        if any(size == 0 for size in body.shape):
            return self._zeros(body.dtype, body.shape)
        handler, variables = self._space(body.shape)
        with using(handler):
            value = expect(body.inner_fn(variables), body.dtype, self.origin)
        return handler.as_array(value, variables)

    def _zeros(self, dtype: torch.dtype, shape: Shape) -> Array:
        return self.dialect.full(False if dtype is torch.bool else 0, dtype, shape)

    def _reduction(self, body: Reduction) -> list[Array]:
        space = (*body.shape, *body.reduce_shape)
        rank = len(body.shape)
        if any(size == 0 for size in body.shape):
            count = {"welford": 3, "online_softmax": 2}.get(body.kind, 1)
            dtype = torch.int64 if body.kind.startswith("arg") else body.dtype
            return [self._zeros(dtype, body.shape)] * count
        handler, variables = self._space(space)
        with using(handler):
            if any(size == 0 for size in body.reduce_shape):
                value = handler.constant(False if body.dtype is torch.bool else 0, body.dtype)
            else:
                value = body.inner_fn(variables[:rank], variables[rank:])
        value = expect(value, body.dtype, self.origin)
        within = variables[rank:]
        kept = tuple(v for v in variables[:rank] if v in value.axes)
        array = handler.as_array(value, (*kept, *within))
        results = self._reduced(body.kind, array, len(kept))
        return [handler.as_array(Value(each.dtype, kept, each), variables[:rank]) for each in results]

    def _reduced(self, kind: str, x: Array, kept: int) -> list[Array]:
        """``kind`` over all dimensions of ``x`` from ``kept`` on."""
        dialect, dims = self.dialect, list(range(kept, x.rank))
        if kind in ("argmax", "argmin"):
            rows = dialect.reshape(x, (*x.shape[:kept], numel(x.shape[kept:])))
            return [dialect.position_of_extreme(kind, rows)]
        if kind not in ("welford", "online_softmax"):
            return [dialect.reduce(kind, x, dims) if dims else x]
        outer, same_dims = x.shape[:kept], list(range(kept))

        def spread(part: Array) -> Array:
            return dialect.broadcast(part, x.shape, same_dims)

        if kind == "online_softmax":
            largest = dialect.reduce("max", x, dims) if dims else x
            total = dialect.apply("exp", dialect.apply("sub", x, spread(largest)))
            return [largest, dialect.reduce("sum", total, dims) if dims else total]
        number = dialect.convert(dialect.size(numel(x.shape[kept:])), x.dtype)
        count = dialect.broadcast(number, outer, [])
        mean = dialect.apply("truediv", dialect.reduce("sum", x, dims) if dims else x, count)
        gap = dialect.apply("sub", x, spread(mean))
        squares = dialect.apply("mul", gap, gap)
        return [mean, dialect.reduce("sum", squares, dims) if dims else squares, count]

    # -- contractions -------------------------------------------------------------------------------

    def _contraction(self, body: Contraction) -> Array:
        """A product of two arrays, each over the loop variables that it depends on."""
        rank, within = len(body.shape), accumulator(body.dtype)
        if any(size == 0 for size in body.shape):
            return self._zeros(body.dtype, body.shape)
        handler, variables = self._space((*body.shape, *body.reduce_shape))
        index, over = variables[:rank], variables[rank:]
        with using(handler):
            if any(size == 0 for size in body.reduce_shape):
                total = handler.constant(0, within)
            elif (convolved := self._convolution(body)) is not None:
                total = Value(within, index, convolved)
            else:
                lhs = expect(body.lhs(index, over), within, self.origin)
                rhs = expect(body.rhs(index, over), within, self.origin)
                total = self._product(handler, lhs, rhs, index, over)
            if body.start is not None:
                start = expect(body.start(index), within, self.origin)
                total = handler.elementwise("add", total, start)
            total = handler.to_dtype(total, body.dtype)
        return handler.as_array(total, index)

    def _convolution(self, body: Contraction) -> Array | None:
        """What the dialect's own convolution gives, if the call is one and the dialect has it."""
        found = convolution_of(body.call)
        if self.view is None or found is None:
            return None
        operands, geometry = found
        arrays = [self.dialect.convert(self.view(each), accumulator(body.dtype)) for each in operands]
        if body.call.target == FORWARD:
            return self.dialect.convolution(arrays[0], arrays[1], geometry, body.shape)
        if geometry.transposed:
            return None
        grad, x, weights = arrays
        if body.result == 0:
            return self._input_gradient(grad, weights, geometry, body.shape)
        return self._weight_gradient(grad, x, geometry, body.shape) if geometry.groups == 1 else None

    def _input_gradient(
        self, grad: Array, weight: Array, geometry: ConvolutionGeometry, shape: Shape
    ) -> Array | None:
        """The transposed convolution of the result's gradient."""
        behind = []
        for d, (size, seen) in enumerate(zip(shape[2:], grad.shape[2:])):
            reach = geometry.dilation[d] * (weight.shape[2 + d] - 1) + 1 - 2 * geometry.padding[d]
            rest = expand(size - (seen - 1) * geometry.stride[d] - reach)
            if not rest.is_Integer:
                return None
            behind.append(int(rest))
        turned = replace(geometry, transposed=True, output_padding=tuple(behind))
        return self.dialect.convolution(grad, weight, turned, shape)

    def _weight_gradient(
        self, grad: Array, x: Array, geometry: ConvolutionGeometry, shape: Shape
    ) -> Array | None:
        """The input convolved with the result's gradient, over the batch; strides and dilations change
        places."""
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
        """``sum over `over` of lhs * rhs``: a dot where both depend on the variable, else the sum first."""
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
        if free:  # the same for every value of these
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

    def _scan(self, body: Scan) -> list[Array]:
        """By doubling where that is possible, else a loop over ``dim``: the state is a line, the
        outputs are filled line by line.
        """
        dialect, dim = self.dialect, body.dim
        outs = [self._zeros(dtype, body.shape) for dtype in body.dtypes]
        if any(size == 0 for size in body.shape):
            return outs
        variables = tuple(loop_var(f"i{d}") for d in range(len(body.shape)))
        extents = dict(zip(variables, body.shape))
        found = associative(
            body, RunningHandler(dialect, self.buffers, extents, None, self.origin), variables
        )
        if found is not None:
            return found
        line = tuple(size for d, size in enumerate(body.shape) if d != dim)
        state = [dialect.full(first, dtype, line) for dtype, first in body.state]
        along = loop_var(f"i{dim}")

        def step(position: Array, carried: Sequence[Array]) -> list[Array]:
            before, filled = carried[: len(state)], carried[len(state) :]
            handler, variables = self._space(body.shape, dim, {along: Value(torch.int64, (), position)})
            others = tuple(v for d, v in enumerate(variables) if d != dim)
            with using(handler):
                given = [Value(part.dtype, others, part) for part in before]
                after, values = body.inner_fn(variables, given)
            lines = self._arrays(handler, after, [dtype for dtype, _ in body.state], others)
            made = self._arrays(handler, values, body.dtypes, others)
            return [*lines, *(dialect.store(out, each, dim, position) for out, each in zip(filled, made))]

        return dialect.repeat(body.shape[dim], [*state, *outs], step)[len(state) :]

    def _arrays(
        self,
        handler: ArrayHandler,
        values: Sequence[Value],
        dtypes: Sequence[torch.dtype],
        axes: Sequence[Symbol],
    ) -> list[Array]:
        """Values, of ``dtypes``, as arrays over ``axes``."""
        pairs = zip(values, dtypes, strict=True)
        return [handler.as_array(expect(value, dtype, self.origin), axes) for value, dtype in pairs]

    def _fold(self, body: Fold) -> list[Array]:
        """A loop over the turns; each part of the state has the shape of the results."""
        dialect = self.dialect
        state = [dialect.full(first, dtype, body.shape) for dtype, first in body.state]
        if any(size == 0 for size in body.shape):
            return state

        def step(position: Array, carried: Sequence[Array]) -> list[Array]:
            turn = loop_var("r0")
            handler, variables = self._space(body.shape, None, {turn: Value(torch.int64, (), position)})
            with using(handler):
                given = [Value(part.dtype, variables, part) for part in carried]
                after = body.inner_fn(variables, turn, given)
            return self._arrays(handler, after, [dtype for dtype, _ in body.state], variables)

        return dialect.repeat(body.turns, state, step)

    # -- sorting and scattering ---------------------------------------------------------------------

    def _sort(self, body: Sort) -> list[Array]:
        rows = self.buffers[body.source]
        found = self.dialect.sort(rows, body.descending)
        results = []
        for each in found:
            if each.shape != body.shape:
                starts, steps = (ZERO,) * each.rank, (ONE,) * each.rank
                each = self.dialect.slice(each, starts, body.shape, steps)
            results.append(each)
        return results

    def _scatter(self, body: Scatter) -> Array:
        dialect, base = self.dialect, self.buffers[body.base]
        if any(size == 0 for size in (*body.shape, *base.shape)):
            return base
        handler, variables = self._space(body.shape)
        with using(handler):
            value = expect(body.inner_fn(variables), body.dtype, self.origin)
            place = body.place(variables)
            flat: Any = handler.constant(0, torch.int64)
            strides = contiguous_strides(base.shape)
            for at, stride in zip(place, strides, strict=True):
                position = handler.index_expr(at, torch.int64)
                if stride != 1:
                    position = handler.elementwise("mul", position, handler.index_expr(stride, torch.int64))
                flat = handler.elementwise("add", flat, position)
        count = (numel(body.shape),)
        places, values = (dialect.reshape(handler.as_array(each, variables), count) for each in (flat, value))
        result = dialect.put(dialect.reshape(base, (numel(base.shape),)), places, values, body.mode)
        return dialect.reshape(result, base.shape)
