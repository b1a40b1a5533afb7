"""Determinants on whole arrays: elimination with row pivoting, of all matrices at once, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt.errors import Unsupported
from smelt.mlir.arrays.dialect import Array, ArrayDialect
from smelt.mlir.arrays.evaluate import elementwise_on
from smelt.symbolic import numel

WIDE = torch.float64


def determinants(dialect: ArrayDialect, x: Array) -> tuple[Array, Array, Array]:
    """The determinants of ``x`` (…, n, n), their signs, and the logarithms of their sizes: (…) each.

    Raises:
        Unsupported: they are not of floating numbers, or the dialect has no loops.
    """
    if not x.dtype.is_floating_point:
        raise Unsupported(f"determinants of {x.dtype} matrices")
    outer, size = x.shape[:-2], x.shape[-1]
    count = numel(outer)
    wide = x if x.dtype is WIDE else dialect.convert(x, WIDE)
    first = [dialect.full(number, WIDE, (count,)) for number in (1.0, 1.0, 0.0)]
    if not any(each == 0 for each in x.shape):
        matrices = dialect.reshape(wide, (count, size, size))
        turn = dialect.full(0, torch.int64, ())

        def test(state: Sequence[Array]) -> Array:
            return elementwise_on(dialect, "lt", state[0], dialect.size(size))

        found = dialect.loop([turn, matrices, *first], test, _Elimination(dialect).step)
        first = found[2:]
    whole, sign, logarithm = (
        each if each.dtype == x.dtype else dialect.convert(each, x.dtype)
        for each in (dialect.reshape(part, outer) for part in first)
    )
    return whole, sign, logarithm


class _Elimination:
    def __init__(self, dialect: ArrayDialect) -> None:
        self.dialect = dialect

    def apply(self, name: str, *args: Array) -> Array:
        return elementwise_on(self.dialect, name, *args)

    def full(self, number: float, like: Array) -> Array:
        return self.dialect.full(number, like.dtype, like.shape)

    def step(self, state: Sequence[Array]) -> list[Array]:
        """One column: its largest number from the diagonal on goes there, what is below is eliminated."""
        dialect, apply = self.dialect, self.apply
        turn, matrices, whole, sign, logarithm = state
        line, batch = matrices.shape[:2], matrices.shape[:1]
        rows = dialect.broadcast(dialect.iota(line[1], torch.int64), line, [1])
        here = dialect.broadcast(turn, line, [])
        column = dialect.pick(matrices, 2, turn)
        sizes = apply("where", apply("ge", rows, here), apply("abs", column), self.full(-1.0, column))
        best = dialect.position_of_extreme("argmax", sizes)
        matrices = self.swapped(matrices, rows, here, dialect.broadcast(best, line, [0]))
        column, row = dialect.pick(matrices, 2, turn), dialect.pick(matrices, 1, turn)
        pivot = dialect.pick(row, 1, turn)
        one, minus = self.full(1.0, pivot), self.full(-1.0, pivot)
        divisor = apply("where", apply("eq", pivot, self.full(0.0, pivot)), one, pivot)
        factors = apply("truediv", column, dialect.broadcast(divisor, line, [0]))
        factors = apply("where", apply("gt", rows, here), factors, self.full(0.0, factors))
        taken = apply(
            "mul",
            dialect.broadcast(factors, matrices.shape, [0, 1]),
            dialect.broadcast(row, matrices.shape, [0, 2]),
        )
        stayed = apply("eq", best, dialect.broadcast(turn, batch, []))
        signed = apply("mul", apply("where", stayed, one, minus), pivot)
        return [
            apply("add", turn, dialect.full(1, torch.int64, ())),
            apply("sub", matrices, taken),
            apply("mul", whole, signed),
            apply("mul", sign, apply("sign", signed)),
            apply("add", logarithm, apply("log", apply("abs", pivot))),
        ]

    def swapped(self, matrices: Array, rows: Array, one: Array, other: Array) -> Array:
        """Each matrix with two of its rows in each other's place."""
        dialect, apply = self.dialect, self.apply
        count, size = rows.shape
        source = apply("where", apply("eq", rows, other), one, rows)
        source = apply("where", apply("eq", rows, one), other, source)
        start = dialect.broadcast(dialect.iota(count, torch.int64), rows.shape, [0])
        height = dialect.broadcast(dialect.size(size), rows.shape, [])
        places = apply("add", source, apply("mul", start, height))
        return dialect.take(dialect.reshape(matrices, (numel([count, size]), size)), places)
