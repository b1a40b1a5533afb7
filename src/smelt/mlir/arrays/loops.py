"""Evaluation of loop bodies (see `smelt.loops.interpreter.evaluate_body`) by two methods of a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from sympy import Expr, Symbol

from smelt.errors import SmeltError
from smelt.loops.dependencies import variables
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
)
from smelt.mlir.arrays.dialect import Array, ArrayDialect, Arrays
from smelt.ops import ops
from smelt.symbolic import contiguous_strides, flatten, numel

View = Callable[[StridedView], Array]
Inner = Callable[..., Any]
Dtypes = Sequence[torch.dtype]
Loop = Pointwise | Reduction | Contraction | Scan | Fold | Scatter | Sort
Extents = Mapping[Symbol, Expr]
Turn = tuple[Symbol, Array]
"""The loop variable of a surrounding loop, and its current value."""


class LoopBodies:
    """Evaluates the bodies of one loop graph.

    ``buffers``: the arrays that loads read, as far as they are computed. ``view`` gives the array of a
    strided view of a buffer. With it a target may emit convolutions; else they are sums of products by their
    loop functions.
    """

    def __init__(self, dialect: ArrayDialect, buffers: Mapping[str, Array], view: View | None = None) -> None:
        self.dialect, self.buffers, self.view = dialect, buffers, view
        self.origin = Origin("?")

    # -- methods of a target ------------------------------------------------------------------------

    def mapped(
        self, extents: Extents, function: Inner, dtypes: Dtypes, given: Arrays = (), turn: Turn | None = None
    ) -> list[Array]:
        """The values, of ``dtypes``, of a function at every point of the space ``extents`` (without the
        variable of ``turn``). ``given``: arrays over the space, whose elements are the function's arguments.
        """
        raise NotImplementedError

    def reduced(
        self, kind: str, body: Reduction, value: Inner, given: Arrays = (), dtype: torch.dtype | None = None
    ) -> Array:
        """A reduction of ``value(index, rindex, *elements of given)`` over the space of ``body``, computed
        in and returned as ``dtype``, by default the body's dtype."""
        raise NotImplementedError

    def contraction(self, body: Contraction) -> Array:
        raise NotImplementedError

    def sort(self, body: Sort) -> list[Array]:
        raise NotImplementedError

    def scatter(self, body: Scatter) -> Array:
        raise NotImplementedError

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype for computing means and squares of a dtype."""
        return dtype

    # -- bodies -------------------------------------------------------------------------------------

    def evaluate(self, body: Loop, origin: Origin | None = None) -> list[Array]:
        """The arrays that a body computes, one for each of its results.

        Raises:
            Unsupported: the target cannot express the body.
            SmeltError: SM0501, the loop function is wrong.
        """
        self.origin = origin or Origin("?")
        if isinstance(body, Pointwise):
            index = variables("i", len(body.shape))
            extents = dict(zip(index, body.shape))
            return self.mapped(extents, lambda _: [body.inner_fn(index)], [body.dtype])
        if isinstance(body, Reduction):
            return self._reduction(body)
        if isinstance(body, Contraction):
            return [self.contraction(body)]
        if isinstance(body, Scan):
            return self.scan(body)
        if isinstance(body, Fold):
            return self._fold(body)
        return self.sort(body) if isinstance(body, Sort) else [self.scatter(body)]

    def _reduction(self, body: Reduction) -> list[Array]:
        if body.kind in ("argmax", "argmin"):
            return [self.position(body)]
        if body.kind not in ("welford", "online_softmax"):
            return [self.reduced(body.kind, body, body.inner_fn)]
        if body.kind == "welford":
            return self._welford(body)
        top = self.reduced("max", body, body.inner_fn)

        def power(index: Any, rindex: Any, top: Any) -> Any:
            return ops.exp(ops.sub(body.inner_fn(index, rindex), top))

        return [top, self.reduced("sum", body, power, [top])]

    def position(self, body: Reduction) -> Array:
        """The first position of the extreme value. NaN counts as extreme. The result is the smallest position
        with that value."""
        if any(size == 0 for size in (*body.shape, *body.reduce_shape)):
            return self.dialect.zeros(torch.int64, body.shape)
        top = self.reduced(body.kind.removeprefix("arg"), body, body.inner_fn)
        strides, behind = contiguous_strides(body.reduce_shape), numel(body.reduce_shape)

        def place(index: Any, rindex: Any, top: Any) -> Any:
            value = body.inner_fn(index, rindex)
            hit = ops.eq(value, top)
            if body.dtype.is_floating_point:
                hit = ops.logical_or(hit, ops.isnan(value))
            here = ops.index_expr(flatten(rindex, strides), torch.int64)
            return ops.where(hit, here, ops.index_expr(behind, torch.int64))

        places = replace(body, kind="min", dtype=torch.int64)
        return self.reduced("min", places, place, [top])

    def _welford(self, body: Reduction) -> list[Array]:
        """Mean, squared deviations from it, and the count, by two sums."""
        dtype, wide, count = body.dtype, self.wide(body.dtype), numel(body.reduce_shape)
        extents = dict(zip(variables("i", len(body.shape)), body.shape))
        total = self.reduced("sum", body, body.inner_fn, dtype=wide)

        def share(given: Sequence[Any]) -> list[Any]:
            number = ops.maximum(ops.index_expr(count, wide), ops.constant(1.0, wide))
            return [ops.truediv(given[0], number)]

        def square(index: Any, rindex: Any, mean: Any) -> Any:
            gap = ops.sub(ops.to_dtype(body.inner_fn(index, rindex), wide), mean)
            return ops.mul(gap, gap)

        (mean,) = self.mapped(extents, share, [wide], [total])
        squares = self.reduced("sum", body, square, [mean], wide)
        (counts,) = self.mapped(extents, lambda _: [ops.index_expr(count, dtype)], [dtype])
        return [self.dialect.convert(mean, dtype), self.dialect.convert(squares, dtype), counts]

    def scan(self, body: Scan) -> list[Array]:
        """A loop over ``dim``: the state is a line, and each iteration stores a line of the outputs."""
        dialect, dim, count = self.dialect, body.dim, len(body.state)
        outs = [dialect.zeros(dtype, body.shape) for dtype in body.dtypes]
        if any(size == 0 for size in body.shape):
            return outs
        index = variables("i", len(body.shape))
        line = tuple(size for d, size in enumerate(body.shape) if d != dim)
        state = [dialect.full(first, dtype, line) for dtype, first in body.state]
        dtypes = [*(dtype for dtype, _ in body.state), *body.dtypes]

        def function(given: Sequence[Any]) -> list[Any]:
            after, values = body.inner_fn(index, list(given))
            return [*after, *values]

        def step(position: Array, carried: Sequence[Array]) -> list[Array]:
            extents = dict(zip(index, body.shape))
            made = self.mapped(extents, function, dtypes, carried[:count], (index[dim], position))
            filled = zip(carried[count:], made[count:])
            return [*made[:count], *(dialect.store(out, each, dim, position) for out, each in filled)]

        return dialect.repeat(body.shape[dim], [*state, *outs], step)[count:]

    def _fold(self, body: Fold) -> list[Array]:
        """A loop over the iterations; each part of the state has the shape of the results."""
        state = [self.dialect.full(first, dtype, body.shape) for dtype, first in body.state]
        if any(size == 0 for size in body.shape):
            return state
        index, (number,) = variables("i", len(body.shape)), variables("r", 1)
        extents = {**dict(zip(index, body.shape)), number: body.turns}
        dtypes = [dtype for dtype, _ in body.state]

        def step(position: Array, carried: Sequence[Array]) -> list[Array]:
            return self.mapped(
                extents,
                lambda given: body.inner_fn(index, number, given),
                dtypes,
                carried,
                (number, position),
            )

        return self.dialect.repeat(body.turns, state, step)

    def wrong(self, found: torch.dtype, wanted: torch.dtype) -> SmeltError:
        what = f"the loop function gives {found}, the node says {wanted}"
        return SmeltError("SM0501", what, where=self.origin.where, why=f"in {self.origin.op}")
