"""Positions for compacting the nonzero elements of a mask: counts and positions by a scan."""

from __future__ import annotations

from typing import Any

import torch
from sympy import Expr

from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert
from smelt.lowering.reductions.reductions import is_nonzero
from smelt.lowering.running import running_sum
from smelt.lowering.shapes.views import reshape
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import numel
from smelt.symbolic.affine import expand


def flattened(x: Tensor) -> Tensor:
    """``x`` as a view of one dimension, its elements in row-major order."""
    return reshape(x, [numel(x.shape)])


def positions_of(ctx: Builder, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The number of nonzero elements of ``mask``, and the number of them before each element.

    Returns:
        (count, positions): int64 tensors, ``count`` 0-d, ``positions`` of the shape of ``mask``. The position
        of a nonzero element is its row in `torch.nonzero` (its element in `masked_select`); elements go in
        row-major order. Compact with a scatter to ``positions`` at the mask's true elements, or gather a
        source at ``positions``.

    mask = [0, 1, 1, 0, 1]  →  count = 3, positions = [0, 0, 1, 2, 2]
    """
    flat = flattened(mask)

    def one(index: Index) -> Any:
        return convert(is_nonzero(flat, index), torch.bool, torch.int64)

    positions = running_sum(ctx, one, shape=flat.shape, finish=lambda index, sum_: ops.sub(sum_, one(index)))
    (count,) = ctx.reduction(
        "sum",
        lambda index, rindex: one(rindex),
        shape=(),
        reduce_shape=flat.shape,
        dtype=torch.int64,
    )
    return count, reshape(positions, mask.shape)


def compacted_place(
    mask: Tensor, positions: Tensor, index: Index, size: Expr, limit: Expr | None = None
) -> Expr:
    """The position at which a scatter into ``size + 1`` elements writes element ``index`` of a masked tensor.

    It is the element's position if the mask holds (and the position is less than ``limit``, if given), else
    the last one, which nobody reads.
    """
    place = positions.load(index)
    keeps = is_nonzero(mask, index)
    if limit is not None:
        keeps = ops.logical_and(keeps, ops.lt(place, ops.index_expr(limit, torch.int64)))
    chosen = ops.where(keeps, place, ops.index_expr(size, torch.int64))
    return ops.indirect_index(chosen, expand(size + 1), wrap=False, check=False)
