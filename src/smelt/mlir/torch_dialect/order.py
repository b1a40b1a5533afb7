"""Reductions, sorts and scatters in the Torch dialect."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt.loops.reductions import identity
from smelt.mlir.arrays.dialect import Array
from smelt.mlir.arrays.reductions import halved, split
from smelt.mlir.torch_dialect.operations import Operations

LONG_SUM = 1 << 13
"""The maximal length of floating-point sums without splitting: long sequential sums lose precision."""

_ON_BOOLS = {"any": "max", "all": "min", "sum": "max", "prod": "min"}


def reduce(dialect: Operations, kind: str, x: Array, dims: Sequence[int]) -> Array:
    """``kind`` over ``dims``, which go away: narrow integers in int64, truth values as 0 and 1."""
    dtype = x.dtype
    if dtype is torch.bool:
        kind = _ON_BOOLS.get(kind, kind)
    rest = tuple(size for d, size in enumerate(x.shape) if d not in dims)
    if any(size == 0 for size in x.shape):
        return dialect.full(identity(kind, dtype), dtype, rest)
    if not dtype.is_floating_point:
        x = dialect.convert(x, torch.int64)
    if kind == "xor_sum":
        for dim in sorted(dims, reverse=True):
            x = halved(dialect, "bitwise_xor", x, dim)
        return dialect.convert(dialect.reshape(x, rest), dtype)
    if kind == "sum" and dtype.is_floating_point:
        x, dims = _in_parts(dialect, x, dims)
    return dialect.convert(_reduced(dialect, kind, x, dims), dtype)


def _reduced(dialect: Operations, kind: str, x: Array, dims: Sequence[int]) -> Array:
    rest = tuple(size for d, size in enumerate(x.shape) if d not in dims)
    if kind in ("max", "min"):
        return dialect.write(f"a{kind}", [x, list(dims), False], x.dtype, rest)
    if kind == "sum":
        return dialect.write("sum.dim_IntList", [x, list(dims), False, None], x.dtype, rest)
    for dim in sorted(dims, reverse=True):
        rest = tuple(size for d, size in enumerate(x.shape) if d != dim)
        x = dialect.write("prod.dim_int", [x, dim, False, None], x.dtype, rest)
    return x


def _in_parts(dialect: Operations, x: Array, dims: Sequence[int]) -> tuple[Array, list[int]]:
    """Sum parts of a long dimension first, then parts of their sums."""
    for dim in dims:
        if x.shape[dim].is_Integer and x.shape[dim] <= LONG_SUM:
            continue
        while x.shape[dim].is_Integer and (part := _part(int(x.shape[dim]))) is not None:
            x = _reduced(dialect, "sum", split(dialect, x, dim, part), [dim + 1])
    return x, list(dims)


def _part(size: int) -> int | None:
    """The largest proper divisor of ``size`` up to 64; None below 4."""
    return next((part for part in range(min(64, size - 1), 3, -1) if size % part == 0), None)


def sort(dialect: Operations, x: Array, descending: bool) -> tuple[Array, Array]:
    """Sort by ``aten.sort``, which is stable in torch-mlir's pipelines but does not order NaN: first the
    numbers, with infinity for NaN, then by whether they are NaN."""
    if x.rank == 0:
        return x, dialect.full(0, torch.int64, ())
    last = x.rank - 1
    if any(size == 0 for size in x.shape):
        return x, dialect.full(0, torch.int64, x.shape)
    if not x.dtype.is_floating_point:
        keys = dialect.convert(x, torch.int64)
        values, positions = dialect.sorted(keys, descending)
        return dialect.convert(values, x.dtype), positions
    nan = dialect.apply("isnan", x)
    infinity = dialect.full(float("inf"), x.dtype, x.shape)
    _, positions = dialect.sorted(dialect.apply("where", nan, infinity, x), descending)
    missing = dialect.gather(dialect.convert(nan, torch.int64), last, positions)
    _, order = dialect.sorted(missing, descending)
    positions = dialect.gather(positions, last, order)
    return dialect.gather(x, last, positions), positions


def put(dialect: Operations, base: Array, positions: Array, values: Array, mode: str | None) -> Array:
    """``base[positions] (mode)= values``, one position after the other."""
    dtype = base.dtype
    if base.shape[0] == 0 or values.shape[0] == 0:
        return base
    if not dtype.is_floating_point:
        base, values = (dialect.convert(each, torch.int64) for each in (base, values))
    if mode in (None, "add"):
        operands = [base, [positions], values, mode == "add"]
        return dialect.convert(dialect.write("index_put", operands, base.dtype, base.shape), dtype)
    operands = [base, 0, positions, values, _REDUCTIONS[mode], True]
    return dialect.convert(dialect.write("scatter_reduce.two", operands, base.dtype, base.shape), dtype)


_REDUCTIONS = {
    "mul": "prod",
    "maximum": "amax",
    "minimum": "amin",
    "logical_or": "amax",
    "logical_and": "amin",
}
