"""Scans by associative functions of two states (`smelt.loops.ir.Associative`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr

from smelt.loops.ir import Associative, Index
from smelt.lowering.builder import Builder
from smelt.lowering.tensor import Tensor
from smelt.ops import ops


def associative_scan(
    ctx: Builder,
    element: Callable[[Index], Sequence[Any]],
    combine: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
    *,
    shape: Sequence[Expr],
    dim: int,
    state: Sequence[tuple[torch.dtype, float | int | bool]],
    dtypes: Sequence[torch.dtype],
    finish: Callable[[Index, Sequence[Any]], Sequence[Any]] = lambda index, state: state,
) -> tuple[Tensor, ...]:
    """`scan` by an associative function of two states (`smelt.loops.ir.Associative`)."""
    inner_fn = Associative(element, combine, finish)
    return ctx.scan(inner_fn, shape=shape, dim=dim, state=state, dtypes=dtypes)


def running_sum(
    ctx: Builder,
    element: Callable[[Index], Any],
    *,
    shape: Sequence[Expr],
    dim: int = 0,
    first: int | float = 0,
    dtype: torch.dtype = torch.int64,
    finish: Callable[[Index, Any], Any] = lambda index, total: total,
    out: torch.dtype | None = None,
) -> Tensor:
    """The sum of ``first`` and all elements so far, in ``dtype``; of it ``finish``, in dtype ``out``."""
    return associative_scan(
        ctx,
        lambda index: [element(index)],
        lambda before, after: [ops.add(before[0], after[0])],
        shape=shape,
        dim=dim,
        state=[(dtype, first)],
        dtypes=[out or dtype],
        finish=lambda index, state: [finish(index, state[0])],
    )[0]
