"""Decomposition of distances between rows: ``cdist`` and ``pdist``, forward and backward.

The formulas are those of ``aten/src/ATen/native/cpu/DistanceOpsKernel.cpp``; a distance of 0 has no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
FEW_ROWS = 25
"""The largest number of rows on both sides for which euclidean distances use no matrix product."""


def _norm(difference: Tensor, p: float) -> Tensor:
    """The p-norm over the last dimension."""
    size = difference.abs()
    if p == 0:
        return (difference != 0).to(difference.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    if math.isinf(p):
        return size.amax(-1) if difference.shape[-1] != 0 else size.sum(-1)
    return size.pow(p).sum(-1).pow(1 / p)


def _norm_gradient(difference: Tensor, distance: Tensor, grad: Tensor, p: float) -> Tensor:
    """``grad`` times the p-norm's gradient by ``difference``; distance and grad lack its last dimension."""
    distance, grad = distance.unsqueeze(-1), grad.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return grad * difference.sgn()
    if math.isinf(p):
        return grad * difference.sgn() * (difference.abs() == distance)
    if p == 2:
        each = grad * difference / distance
    elif p < 2:
        each = difference.sgn() * difference.abs().pow(p - 1) * grad / distance.pow(p - 1)
        each = torch.where(difference == 0, torch.zeros_like(each), each) if p < 1 else each
    else:
        each = difference * difference.abs().pow(p - 2) * grad / distance.pow(p - 1)
    return torch.where(distance == 0, torch.zeros_like(each), each)


def cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Distances of all rows of x1 (…, P, M) to all rows of x2 (…, R, M): (…, P, R).

    The use of a matrix product for euclidean distances is eager's decision: mode 1 always, mode 2 never, else
    for more than 25 rows.
    """
    by_product = compute_mode == 1 or x1.shape[-2] > FEW_ROWS or x2.shape[-2] > FEW_ROWS
    if p == 2 and compute_mode != 2 and by_product:
        return _euclidean(x1, x2)
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def _euclidean(x1: Tensor, x2: Tensor) -> Tensor:
    """``sqrt(|a|**2 - 2 a b + |b|**2)`` as one matrix product."""
    left, right = (x * x for x in (x1, x2))
    squares = left.sum(-1, keepdim=True), right.sum(-1, keepdim=True)
    padded1 = torch.cat([x1 * -2, squares[0], torch.ones_like(squares[0])], -1)
    padded2 = torch.cat([x2, torch.ones_like(squares[1]), squares[1]], -1)
    return torch.matmul(padded1, padded2.mT).clamp_min(0).sqrt()


def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """The gradient by x1, given that of the distances (…, P, R)."""
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return _norm_gradient(difference, cdist, grad, p).sum(-2)


def _pairs(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(count, count, 1, device=device).unbind(0)
    return rows, columns


def pdist_forward(x: Tensor, p: float = 2.0) -> Tensor:
    """Distances of row i to row j of x (N, M) for all i < j, row after row."""
    rows, columns = _pairs(x.shape[0], x.device)
    return _norm(x[rows] - x[columns], p)


def pdist_backward(grad: Tensor, x: Tensor, p: float, pdist: Tensor) -> Tensor:
    """The gradient by x (N, M)."""
    rows, columns = _pairs(x.shape[0], x.device)
    each = _norm_gradient(x[rows] - x[columns], pdist, grad, p)
    return torch.zeros_like(x).index_add(0, rows, each).index_add(0, columns, -each)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._cdist_forward.default: cdist_forward,
    aten._cdist_backward.default: cdist_backward,
    aten._pdist_forward.default: pdist_forward,
    aten._pdist_backward.default: pdist_backward,
}
