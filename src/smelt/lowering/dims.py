"""Dimensions and dtypes as rows need them: canonical dims, the compute dtype, typed loads, broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.layouts import real_dtype
from smelt.lowering.numbers import constant
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import as_expr

ZERO = sympy.Integer(0)


def canonical_dim(dim: int, rank: int) -> int:
    """A dimension counted from the front; a 0-d tensor takes 0 and -1 as a 1-d one does.

    Raises:
        Unsupported: there is no such dimension. Some metadata functions accept it, ATen does not.

    >>> canonical_dim(-1, 3)
    2
    """
    least = max(rank, 1)
    if not -least <= dim < least:
        raise Unsupported(f"dimension {dim} of {rank}: eager refuses it")
    return dim % least


def canonical_dims(dims: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """The dims of a reduction in ascending order; None and an empty list mean all of them.

    >>> canonical_dims([-1, 0], 3)
    (0, 2)
    >>> canonical_dims([], 2)
    (0, 1)
    """
    if dims is None:
        return tuple(range(rank))
    listed = [dims] if isinstance(dims, int) else list(dims)
    if not listed:
        return tuple(range(rank))
    found = {canonical_dim(dim, rank) for dim in listed}
    return tuple(sorted(found)) if rank else ()


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype an operator computes in: float32 for float16 and bfloat16, the dtype itself otherwise.

    >>> compute_dtype(torch.bfloat16)
    torch.float32
    """
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def convert(value: Any, source: torch.dtype, target: torch.dtype) -> Any:
    """``value`` of dtype ``source`` as dtype ``target``; unchanged if they are the same."""
    return value if source == target else ops.to_dtype(value, target)


def load_as(x: Tensor, index: Index, dtype: torch.dtype) -> Any:
    """The element of ``x`` at ``index``, as ``dtype``."""
    return convert(x.load(index), x.dtype, dtype)


def load_or(x: Tensor | None, index: Index, dtype: torch.dtype, default: float) -> Any:
    """The element of an optional tensor (a weight, a bias), or ``default``."""
    return ops.constant(default, dtype) if x is None else load_as(x, index, dtype)


def cast(ctx: Builder, x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` as a tensor of ``dtype``: itself if it has that dtype already."""
    if x.dtype == dtype:
        return x
    return ctx.pointwise(lambda index: ops.to_dtype(x.load(index), dtype), shape=x.shape, dtype=dtype)


def fill(ctx: Builder, shape: Sequence[Expr], dtype: torch.dtype, value: float | int | bool | Expr) -> Tensor:
    """A buffer filled with one number."""
    return ctx.pointwise(lambda index: constant(value, dtype), shape=shape, dtype=dtype)


def broadcast_index(index: Index, shape: Sequence[Expr]) -> list[Expr]:
    """The index into a tensor of ``shape`` that is broadcast to the shape ``index`` iterates over.

    >>> i, j = sympy.symbols("i j")
    >>> broadcast_index([i, j], [sympy.Integer(1)])
    [0]
    """
    offset = len(index) - len(shape)
    return [ZERO if size == 1 else index[offset + dim] for dim, size in enumerate(shape)]


def broadcast_shape(*shapes: Sequence[Expr]) -> tuple[Expr, ...]:
    """The shape that all the shapes broadcast to.

    >>> broadcast_shape([sympy.Integer(2), sympy.Integer(1)], [sympy.Integer(3)])
    (2, 3)
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Expr] = []
    for dim in range(rank):
        sizes = [shape[dim - rank + len(shape)] for shape in shapes if dim - rank + len(shape) >= 0]
        result.append(next((size for size in sizes if size != 1), sympy.Integer(1)))
    return tuple(result)


def unsqueezed(x: Tensor, shape: Sequence[Expr], kept: Sequence[int]) -> Tensor:
    """``x`` with size-1 dimensions put back: its dimension ``i`` is dimension ``kept[i]`` of ``shape``."""
    return x.view(tuple(shape), lambda index: [index[dim] for dim in kept])


def expanded(x: Tensor, shape: Sequence[Expr]) -> Tensor:
    """``x`` broadcast to ``shape``, as a view."""
    own = x.shape
    return x if own == tuple(shape) else x.view(tuple(shape), lambda index: broadcast_index(index, own))


def static(value: Any, what: str) -> int:
    """A number that has to be known while compiling.

    Raises:
        Unsupported: the number depends on a dynamic size.
    """
    expr = as_expr(value)
    if not expr.is_Integer:
        raise Unsupported(f"{what} must be static")
    return int(expr)


def result_dtype(ctx: Builder, position: int) -> torch.dtype:
    """The dtype of result number ``position`` of the current node."""
    return real_dtype(ctx.result[position].dtype)


def result_shape(ctx: Builder, position: int) -> tuple[Expr, ...]:
    """The shape of result number ``position`` of the current node."""
    return tuple(as_expr(size) for size in ctx.result[position].shape)


def fold(combine: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """``combine`` over a list, from the left."""
    result = values[0]
    for value in values[1:]:
        result = combine(result, value)
    return result
