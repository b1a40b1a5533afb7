"""Reductions in TOSA, one dimension after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch

from smelt.mlir.arrays.dialect import Array, Number

if TYPE_CHECKING:
    from smelt.mlir.tosa.dialect import Tosa

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)

_NAMES = {"sum": "sum", "prod": "product", "max": "max", "min": "min", "any": "any", "all": "all"}
_ON_BOOLS = {"max": "any", "min": "all", "prod": "all", "sum": "any"}
_LONG_SUM = 1 << 11


def reduce(tosa: Tosa, kind: str, x: Array, dims: Sequence[int]) -> Array:
    """``kind`` over ``dims``, which go away."""
    if x.dtype is torch.bool:
        kind = _ON_BOOLS.get(kind, kind)
    rest = tuple(size for d, size in enumerate(x.shape) if d not in dims)
    if any(size == 0 for size in x.shape):
        return tosa.full(_start(kind, x.dtype), x.dtype, rest)
    dtype = x.dtype
    if dtype is torch.uint8:
        x = tosa.convert(x, torch.int32)
    for dim in sorted(dims, reverse=True):
        x = _along(tosa, kind, x, dim)
    return tosa.convert(tosa.reshape(x, rest), dtype)


def _along(tosa: Tosa, kind: str, x: Array, dim: int) -> Array:
    """One dimension reduced to 1."""
    size = x.shape[dim]
    if size == 1:
        return x
    if kind == "xor_sum":
        return _halved(tosa, "bitwise_xor", x, dim)
    if kind == "sum" and x.dtype.is_floating_point and size.is_Integer and size > _LONG_SUM:
        part = _divisor(int(size))
        if part is not None:
            parts = (sympy.Integer(int(size) // part), sympy.Integer(part))
            split = tosa.reshape(x, (*x.shape[:dim], *parts, *x.shape[dim + 1 :]))
            inner = _reduced(tosa, kind, split, dim + 1)
            x = tosa.reshape(inner, (*x.shape[:dim], parts[0], *x.shape[dim + 1 :]))
    return _reduced(tosa, kind, x, dim)


def _reduced(tosa: Tosa, kind: str, x: Array, dim: int) -> Array:
    held = tosa.held(x)
    if held[dim] != x.shape[dim]:
        x = tosa.solid(x)
        held = x.shape
    held = (*held[:dim], ONE, *held[dim + 1 :])
    shape = (*x.shape[:dim], ONE, *x.shape[dim + 1 :])
    return tosa.write(f"reduce_{_NAMES[kind]}", [x.value], x.dtype, shape, held, axis=_i32(dim))


def _halved(tosa: Tosa, name: str, x: Array, dim: int) -> Array:
    """One half joined with the other until one element is left; 0 makes the size even."""
    while x.shape[dim] != 1:
        half = sympy.Integer((int(x.shape[dim]) + 1) // 2)
        spare = [ZERO] * x.rank
        spare[dim] = 2 * half - x.shape[dim]
        if spare[dim] != 0:
            x = tosa.pad(x, (ZERO,) * x.rank, tuple(spare), 0)
        starts, sizes = [ZERO] * x.rank, list(x.shape)
        sizes[dim] = half
        first = tosa.slice(x, tuple(starts), tuple(sizes), (ONE,) * x.rank)
        starts[dim] = half
        x = tosa.apply(name, first, tosa.slice(x, tuple(starts), tuple(sizes), (ONE,) * x.rank))
    return x


def position_of_extreme(tosa: Tosa, kind: str, x: Array) -> Array:
    """The first largest, or smallest, of the last dimension: int64. NaN counts as the extreme."""
    if any(size == 0 for size in x.shape):
        return tosa.full(0, torch.int64, x.shape[:-1])
    if x.dtype in (torch.bool, torch.uint8):
        x = tosa.convert(x, torch.int32)
    if kind == "argmin":
        x = tosa.apply("neg" if x.dtype.is_floating_point else "bitwise_not", x)
    x = tosa.solid(x)
    found = tosa.write("argmax", [x.value], torch.int32, x.shape[:-1], axis=_i32(x.rank - 1))
    return tosa.convert(found, torch.int64)


def _start(kind: str, dtype: torch.dtype) -> Number:
    """What nothing gives."""
    if dtype is torch.bool:
        return kind == "all"
    if kind in ("max", "min"):
        if dtype.is_floating_point:
            return float("-inf") if kind == "max" else float("inf")
        limits = torch.iinfo(dtype)
        return limits.min if kind == "max" else limits.max
    return 1 if kind == "prod" else 0


def _divisor(size: int) -> int | None:
    """The divisor of ``size`` next to its root, from 16 on."""
    return next((part for part in range(math.isqrt(size), 15, -1) if size % part == 0), None)


def _i32(number: int) -> Any:
    from torch_mlir import ir

    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)
