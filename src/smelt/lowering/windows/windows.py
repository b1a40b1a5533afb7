"""Sliding windows: the inputs of a pooling's output, and the outputs that an input counts in.

A `Window` is one dimension: ``count`` candidates per output, each with a position and tests whether it is
real. Small static windows are unrolled into a chain of operators; others become a `Reduction` over the
candidates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert, fold
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.records import dataclass
from smelt.symbolic import FloorDiv, as_expr, numel
from smelt.symbolic.affine import divided
from smelt.symbolic.signs import least

UNROLLED = 25
"""The largest number of candidates that are unrolled."""

Test = tuple[str, Expr, Expr]
"""(comparison operator, left, right) of two index expressions."""


@dataclass(frozen=True, slots=True)
class Window:
    """One dimension: candidate ``k`` of ``count`` for ``o`` is ``position(o, k)`` if ``tests(o, k)`` hold."""

    count: Expr
    position: Callable[[Expr, Expr], Expr]
    tests: Callable[[Expr, Expr], list[Test]]


def holds(tests: Sequence[Test]) -> Any:
    """The conjunction of at least one test, as a bool value."""
    values = [
        getattr(ops, name)(ops.index_expr(left, torch.int64), ops.index_expr(right, torch.int64))
        for name, left, right in tests
    ]
    return fold(lambda left, right: ops.logical_and(left, right), values)


# -- windows of outputs over inputs --------------------------------------------------------------------------


def sliding(
    size: Expr, out: Expr, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> Window:
    """Inputs ``o*stride - padding + k*dilation`` within ``[0, size)``; needless tests are left out.

    Candidates after the last input even in the first window are left out: with ``ceil_mode`` or padding a
    window may be larger than the inputs.
    """
    top = _furthest_start(size, out, kernel, stride, padding, dilation, ceil_mode)
    count = as_expr(kernel)
    if size.is_Integer or (ceil_mode and kernel > UNROLLED):
        count = least(count, FloorDiv(size - 1 + padding, dilation) + 1)

    def position(o: Expr, k: Expr) -> Expr:
        return o * stride - padding + k * dilation

    def tests(o: Expr, k: Expr) -> list[Test]:
        found: list[Test] = []
        known = k.is_Integer
        if padding > 0 and not (known and int(k) * dilation >= padding):
            found.append(("ge", position(o, k), as_expr(0)))
        reach = top + (k if known else count - 1) * dilation if top is not None else None
        if reach is None or (reach - size + 1).is_nonpositive is not True:
            found.append(("lt", position(o, k), size))
        return found

    return Window(count, position, tests)


def _furthest_start(
    size: Expr, out: Expr, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> Expr | None:
    """The largest first position of a window (for dynamic sizes an upper bound), None if not known."""
    if size.is_Integer and out.is_Integer:
        return (out - 1) * stride - padding
    if ceil_mode:
        return None
    return size + padding - 1 - (kernel - 1) * dilation


def adaptive(size: Expr, out: Expr) -> Window:
    """Inputs ``floor(o*size/out)`` up to ``ceil((o+1)*size/out)``: windows that cover the input evenly."""
    if size.is_Integer and out.is_Integer and out > 0 and size % out == 0:
        kernel = size / out
        return Window(kernel, lambda o, k: o * kernel + k, lambda o, k: [])
    if out == 1:
        return Window(size, lambda o, k: k, lambda o, k: [])
    if out == 0:  # no output reads the windows
        return Window(as_expr(1), lambda o, k: k, lambda o, k: [])

    def position(o: Expr, k: Expr) -> Expr:
        return FloorDiv(o * size, out) + k

    def tests(o: Expr, k: Expr) -> list[Test]:
        return [("lt", position(o, k), adaptive_end(o, size, out))]

    if size.is_Integer and out.is_Integer:
        spans = [-((-(o + 1) * size) // out) - (o * size) // out for o in range(int(out))]
        return Window(as_expr(max(spans, default=1)), position, tests)
    return Window(FloorDiv(size + out - 1, out) + 1, position, tests)


def adaptive_end(o: Expr, size: Expr, out: Expr) -> Expr:
    """The end of adaptive window ``o`` (exclusive)."""
    return FloorDiv((o + 1) * size + out - 1, out)


# -- the other way round: outputs whose window holds an input ------------------------------------------------


def covering(out: Expr, kernel: int, stride: int, padding: int, dilation: int) -> Window:
    """Outputs whose sliding window may contain input ``i``, from the last one backwards."""
    span = (kernel - 1) * dilation + 1
    count = -(-span // stride)
    if out.is_Integer and out < count:  # windows larger than the inputs: each output is a candidate

        def reaches(i: Expr, k: Expr) -> list[Test]:
            offset = i + padding - k * stride
            return [("ge", offset, as_expr(0)), ("lt", offset, as_expr(span))]

        return Window(out, lambda i, k: k, reaches)

    def position(i: Expr, k: Expr) -> Expr:
        return divided(i + padding, stride) - (count - 1 - k)

    def tests(i: Expr, k: Expr) -> list[Test]:
        o = position(i, k)
        found: list[Test] = [("ge", o, as_expr(0)), ("lt", o, out)]
        if span % stride != 0 or dilation != 1:
            found.append(("lt", i + padding - o * stride, as_expr(span)))
        return found

    return Window(as_expr(count), position, tests)


def covering_adaptive(size: Expr, out: Expr) -> Window:
    """Outputs whose adaptive window contains input ``i``."""
    if size.is_Integer and out.is_Integer and out > 0 and size % out == 0:
        kernel = size / out
        return Window(as_expr(1), lambda i, k: divided(i, kernel), lambda i, k: [])
    if out == 1:
        return Window(as_expr(1), lambda i, k: as_expr(0), lambda i, k: [])

    def position(i: Expr, k: Expr) -> Expr:
        return FloorDiv(i * out, size) + k

    def tests(i: Expr, k: Expr) -> list[Test]:
        o = position(i, k)
        return [("lt", o, out), ("le", FloorDiv(o * size, out), i)]

    if size.is_Integer and out.is_Integer:
        spans = [-((-(i + 1) * out) // size) - (i * out) // size for i in range(int(size))]
        return Window(as_expr(max(spans, default=1)), position, tests)
    return Window(FloorDiv(out + size - 1, size) + 1, position, tests)


# -- going through candidates --------------------------------------------------------------------------------


def unrolled(windows: Sequence[Window]) -> bool:
    """Whether the number of candidates is known and small enough to unroll them."""
    total = numel(window.count for window in windows)
    return bool(total.is_Integer and total <= UNROLLED)


def candidates(windows: Sequence[Window]) -> list[tuple[Expr, ...]]:
    """All candidate numbers of unrolled windows, in row-major order."""
    ranges = [range(int(window.count)) for window in windows]
    return [tuple(map(sympy.Integer, numbers)) for numbers in itertools.product(*ranges)]


def positions(windows: Sequence[Window], places: Index, numbers: Index) -> list[Expr]:
    """The position of candidate ``numbers`` for the output (or input) at ``places``."""
    return [window.position(o, k) for window, o, k in zip(windows, places, numbers, strict=True)]


def all_tests(windows: Sequence[Window], places: Index, numbers: Index) -> list[Test]:
    """The tests of every dimension."""
    return [
        test for window, o, k in zip(windows, places, numbers, strict=True) for test in window.tests(o, k)
    ]


def window_value(
    windows: Sequence[Window],
    places: Index,
    numbers: Index,
    value: Callable[[list[Expr]], Any],
    other: float | int,
) -> Any:
    """``value`` at a candidate's position, or ``other`` if the candidate is not real."""
    where = positions(windows, places, numbers)
    tests = all_tests(windows, places, numbers)
    return ops.masked(holds(tests), lambda: value(where), other) if tests else value(where)


def window_reduce(
    ctx: Builder,
    kind: str,
    shape: Sequence[Expr],
    outer: int,
    windows: Sequence[Window],
    value: Callable[[Index, list[Expr]], Any],
    dtype: torch.dtype,
    other: float | int,
    finish: Callable[[Any, Index], Any],
    out: torch.dtype,
) -> Tensor:
    """``finish(sum or max over the window)`` for each index; windows slide over the last dimensions.

    ``value(index, positions)`` is of ``dtype``; ``finish(value, index)`` too, and is then rounded to ``out``.
    """
    combine = {"sum": ops_add, "max": ops_maximum}[kind]

    def one(index: Index, numbers: Index) -> Any:
        return window_value(windows, index[outer:], numbers, lambda where: value(index, where), other)

    if unrolled(windows):
        numbers = candidates(windows)

        def chain(index: Index) -> Any:
            total = fold(combine, [one(index, number) for number in numbers])
            return convert(finish(total, index), dtype, out)

        return ctx.pointwise(chain, shape=shape, dtype=out)
    (total,) = ctx.reduction(kind, one, shape=shape, reduce_shape=[w.count for w in windows], dtype=dtype)
    return ctx.pointwise(
        lambda index: convert(finish(total.load(index), index), dtype, out), shape=shape, dtype=out
    )


def ops_add(left: Any, right: Any) -> Any:
    return ops.add(left, right)


def ops_maximum(left: Any, right: Any) -> Any:
    return ops.maximum(left, right)
