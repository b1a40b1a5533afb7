"""Determinants: elimination with row pivoting, one matrix after the other, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.loops.ir import StridedView
from smelt.mlir.linalg.bodies import Bodies
from smelt.mlir.linalg.operands import ZERO
from smelt.mlir.linalg.scalars import ELEMENTWISE, Scalar, compare, constant, select
from smelt.mlir.linalg.writer import ONE, Writer

WIDE = torch.float64


def determinants(bodies: Bodies, view: StridedView, matrices: Any) -> tuple[Any, Any, Any]:
    """The determinants of ``matrices``, tensor of ``view``; their signs; the logarithms of their sizes.

    Raises:
        Unsupported: they are not of floating numbers.
    """
    writer = bodies.writer
    dtype = bodies.dtypes[view.buffer]
    if not dtype.is_floating_point:
        raise Unsupported(f"determinants of {dtype} matrices")
    wide = bodies.converted(matrices, dtype, WIDE, view.shape)
    batch, size = view.shape[:-2], view.shape[-1]
    outs = [writer.empty(WIDE, batch) for _ in range(3)]

    def matrix(at: list[Any], state: list[Any]) -> list[Any]:
        from torch_mlir.dialects import tensor

        shape = [*([ONE] * len(batch)), size, size]
        starts, steps = [*at, ZERO, ZERO], [ONE] * len(shape)
        kept = (len(shape) - 2, len(shape) - 1)
        work = writer.slice(wide, starts, shape, steps, kept)
        found = _Elimination(writer, size).run(work)
        return [tensor.insert(value, out, at) for value, out in zip(found, state)]

    whole, sign, logarithm = writer.loops(batch, outs, matrix)
    return whole, sign, logarithm


class _Elimination:
    def __init__(self, writer: Writer, size: Expr) -> None:
        from torch_mlir import ir
        from torch_mlir.dialects import arith

        self.writer = writer
        self.count = writer.sizes.size(size)
        self.zero, self.one = (arith.constant(ir.IndexType.get(), n) for n in range(2))

    def run(self, work: Any) -> list[Any]:
        """Determinant, its sign, and the logarithm of its size."""
        first = [constant(number, WIDE).value for number in (1.0, 1.0, 0.0)]
        return self._for(self.zero, [work, *first], self._step)[1:]

    def _step(self, k: Any, state: Sequence[Any]) -> list[Any]:
        from torch_mlir.dialects import arith

        work, whole, sign, logarithm = state
        pivot = self._pivot(work, k)
        work = self._for(self.zero, [work], lambda j, rest: [self._swap(rest[0], k, pivot, j)])[0]
        value, zero = self._at(work, k, k), constant(0.0, WIDE)
        stays = Scalar(arith.cmpi(arith.CmpIPredicate.eq, pivot, k), torch.bool)
        turned = select(stays, constant(1.0, WIDE), constant(-1.0, WIDE))
        times, one = ELEMENTWISE["mul"], constant(1.0, WIDE)
        signed = ELEMENTWISE["copysign"](one, value)
        signed = select(compare("eq", value, zero), zero, signed)
        whole = times(Scalar(whole, WIDE), times(value, turned))
        sign = times(Scalar(sign, WIDE), times(signed, turned))
        logarithm = ELEMENTWISE["add"](Scalar(logarithm, WIDE), ELEMENTWISE["log"](ELEMENTWISE["abs"](value)))
        singular = compare("eq", value, zero)
        divisor = select(singular, one, value)
        after = arith.addi(k, self.one)

        def row(i: Any, rest: Sequence[Any]) -> list[Any]:
            factor = ELEMENTWISE["truediv"](self._at(rest[0], i, k), divisor)
            return self._for(after, [rest[0]], lambda j, each: [self._less(each[0], i, k, j, factor)])

        work = self._for(after, [work], row)[0]
        return [work, whole.value, sign.value, logarithm.value]

    def _pivot(self, work: Any, k: Any) -> Any:
        """The row, from ``k`` on, with the largest element in column ``k``."""
        from torch_mlir.dialects import arith

        def look(i: Any, state: Sequence[Any]) -> list[Any]:
            size = ELEMENTWISE["abs"](self._at(work, i, k))
            better = compare("gt", size, Scalar(state[0], WIDE)).value
            return [arith.select(better, size.value, state[0]), arith.select(better, i, state[1])]

        return self._for(k, [constant(-1.0, WIDE).value, k], look)[1]

    def _swap(self, work: Any, a: Any, b: Any, column: Any) -> Any:
        from torch_mlir.dialects import tensor

        upper, lower = self._at(work, a, column), self._at(work, b, column)
        work = tensor.insert(lower.value, work, [a, column])
        return tensor.insert(upper.value, work, [b, column])

    def _less(self, work: Any, i: Any, k: Any, j: Any, factor: Scalar) -> Any:
        from torch_mlir.dialects import tensor

        part = ELEMENTWISE["mul"](factor, self._at(work, k, j))
        rest = ELEMENTWISE["sub"](self._at(work, i, j), part)
        return tensor.insert(rest.value, work, [i, j])

    def _at(self, work: Any, row: Any, column: Any) -> Scalar:
        return self.writer.element(work, [row, column], WIDE)

    def _for(
        self, start: Any, state: Sequence[Any], body: Callable[[Any, Sequence[Any]], Sequence[Any]]
    ) -> list[Any]:
        from torch_mlir import ir
        from torch_mlir.dialects import scf

        loop = scf.ForOp(start, self.count, self.one, list(state))
        with ir.InsertionPoint(loop.body):
            scf.YieldOp(list(body(loop.induction_variable, list(loop.inner_iter_args))))
        return list(loop.results)
