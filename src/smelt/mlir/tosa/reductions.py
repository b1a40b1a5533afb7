"""Reductions in TOSA, one dimension at a time."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from smelt.loops.reductions import identity
from smelt.mlir.arrays.dialect import Array
from smelt.mlir.arrays.reductions import divisor, halved, split
from smelt.mlir.attributes import i32
from smelt.mlir.tosa.operations import Operations

ONE = sympy.Integer(1)

_NAMES = {"sum": "sum", "prod": "product", "max": "max", "min": "min", "any": "any", "all": "all"}
_ON_BOOLS = {"max": "any", "min": "all", "prod": "all", "sum": "any"}
_LONG_SUM = 1 << 11


def reduce(tosa: Operations, kind: str, x: Array, dims: Sequence[int]) -> Array:
    """``kind`` over ``dims``, which go away."""
    if x.dtype is torch.bool:
        kind = _ON_BOOLS.get(kind, kind)
    rest = tuple(size for d, size in enumerate(x.shape) if d not in dims)
    if any(size == 0 for size in x.shape):
        return tosa.full(identity(kind, x.dtype), x.dtype, rest)
    dtype = x.dtype
    if dtype is torch.uint8:
        x = tosa.convert(x, torch.int32)
    for dim in sorted(dims, reverse=True):
        x = _along(tosa, kind, x, dim)
    return tosa.convert(tosa.reshape(x, rest), dtype)


def _along(tosa: Operations, kind: str, x: Array, dim: int) -> Array:
    """Reduce one dimension to size 1."""
    size = x.shape[dim]
    if size == 1:
        return x
    if kind == "xor_sum":
        return halved(tosa, "bitwise_xor", x, dim)
    part = divisor(size, _LONG_SUM) if kind == "sum" and x.dtype.is_floating_point else None
    if part is not None:
        inner = _reduced(tosa, kind, split(tosa, x, dim, part), dim + 1)
        x = tosa.reshape(inner, (*x.shape[:dim], size / part, *x.shape[dim + 1 :]))
    return _reduced(tosa, kind, x, dim)


def _reduced(tosa: Operations, kind: str, x: Array, dim: int) -> Array:
    held = tosa.held(x)
    if held[dim] != x.shape[dim]:
        x = tosa.solid(x)
        held = x.shape
    held = (*held[:dim], ONE, *held[dim + 1 :])
    shape = (*x.shape[:dim], ONE, *x.shape[dim + 1 :])
    return tosa.write(f"reduce_{_NAMES[kind]}", [x.value], x.dtype, shape, held, axis=i32(dim))
