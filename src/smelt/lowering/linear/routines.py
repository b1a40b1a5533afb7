"""Routines of linear algebra: functions of ``smelt_linear.h`` on whole matrices, as nodes of the graph.

A routine takes a batch of row-major matrices and computes in float64, whatever the program's dtype: it errs
less than LAPACK in float32. Room that it needs is one of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from sympy import Expr

from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert
from smelt.lowering.tensor import Index, Tensor
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import Block, Kernel, Param, Routine, Shape
from smelt.symbolic import as_expr, contiguous_strides, numel

WIDE = torch.float64
Result = tuple[torch.dtype, Shape]
Numbers = Sequence[int]
Tensors = Sequence[torch.Tensor]


def routine(
    ctx: Builder, name: str, numbers: Sequence[Any], given: Sequence[Tensor], results: Sequence[Result]
) -> tuple[Tensor, ...]:
    """The results of a routine of `REFERENCES`; float operands are converted, all are stored row by row.

    ``numbers`` are sizes and flags: at first the count of matrices.
    """
    stored = [_stored(ctx, x) for x in given]
    kinds = [*((x.dtype, x.shape, False) for x in stored), *((*each, True) for each in results)]
    params = tuple(
        Param(f"p{number}", dtype, shape, contiguous_strides(shape), written)
        for number, (dtype, shape, written) in enumerate(kinds)
    )
    reads, writes = (tuple(each.name for each in params if each.written == side) for side in (False, True))
    sizes = tuple(map(as_expr, numbers))
    called = Routine(f"linear_{name}", "linear", sizes, reads, writes, REFERENCES[name])
    kernel = Kernel(name, params, (), Block((called,)))
    return ctx.native(kernel, stored, results, partial(run_kernel, kernel))


def _stored(ctx: Builder, x: Tensor) -> Tensor:
    """``x`` row by row, in float64 if it has floating numbers."""
    if x.dtype == WIDE or not x.dtype.is_floating_point:
        return ctx.realize_row_major(x)
    return computed(ctx, lambda index: convert(x.load(index), x.dtype, WIDE), x.shape)


def computed(
    ctx: Builder, value: Callable[[Index], Any], shape: Sequence[Expr], dtype: torch.dtype = WIDE
) -> Tensor:
    """A row-major buffer of a shape."""
    return ctx.pointwise(value, shape=shape, dtype=dtype, strides=contiguous_strides(tuple(shape)))


def count_of(x: Tensor) -> Expr:
    """The number of matrices."""
    return numel(x.shape[:-2])


# -- the same by PyTorch's operators, for the interpreter ----------------------------------------------------


def _matrices(x: torch.Tensor, *sizes: int) -> torch.Tensor:
    return x[: sizes[0] * sizes[1] * sizes[2]].view(*sizes)


def _cholesky(numbers: Numbers, given: Tensors) -> Tensors:
    count, n = numbers
    return torch.linalg.cholesky_ex(_matrices(given[0], count, n, n), upper=True)


def _lu(numbers: Numbers, given: Tensors) -> Tensors:
    count, m, n = numbers
    factors, pivots, info = torch.linalg.lu_factor_ex(_matrices(given[0], count, m, n))
    return factors, pivots, _orders(pivots, m), info


def _orders(pivots: torch.Tensor, m: int) -> torch.Tensor:
    found = torch.arange(m).repeat(len(pivots), 1)
    for own, exchanged in zip(found, pivots.tolist()):
        for k, pivot in enumerate(exchanged):
            own[[k, pivot - 1]] = own[[pivot - 1, k]]
    return found


def _order(numbers: Numbers, given: Tensors) -> Tensors:
    count, m, few = numbers
    return (_orders(given[0].view(count, few), m),)


def _triangular(numbers: Numbers, given: Tensors) -> Tensors:
    count, n, k, upper, unit = numbers
    a, b = _matrices(given[0], count, n, n), _matrices(given[1], count, n, k)
    return (torch.linalg.solve_triangular(a, b, upper=bool(upper), unitriangular=bool(unit)),)


def _lu_solve(numbers: Numbers, given: Tensors) -> Tensors:
    count, n, k, transposed = numbers
    factors, order, b = _matrices(given[0], count, n, n), given[1].view(count, n, 1), given[2]
    solve, places = torch.linalg.solve_triangular, order.expand(count, n, k)
    lower = factors.tril(-1) + torch.eye(n, dtype=WIDE)
    b, nothing = _matrices(b, count, n, k), torch.zeros(0, dtype=WIDE)
    if not transposed:
        return solve(factors.triu(), solve(lower, b.gather(1, places), upper=False), upper=True), nothing
    found = solve(lower.mT, solve(factors.triu().mT, b, upper=False), upper=True)
    return torch.zeros_like(b).scatter(1, places, found), nothing


def _householder(numbers: Numbers, given: Tensors) -> Tensors:
    count, m, n = numbers
    return *torch.geqrf(_matrices(given[0], count, m, n)), torch.zeros(0, dtype=WIDE)


def _orthogonal(numbers: Numbers, given: Tensors) -> Tensors:
    count, m, n, few, columns = numbers
    packed, taus = _matrices(given[0], count, m, n)[..., :few], given[1].view(count, few)
    whole = torch.zeros(count, m, columns, dtype=WIDE)
    whole[..., :few] = packed[..., :columns]
    return torch.linalg.householder_product(whole, taus), torch.zeros(0, dtype=WIDE)


def _eigh(numbers: Numbers, given: Tensors) -> Tensors:
    count, n = numbers
    a = _matrices(given[0], count, n, n)
    info = (~a.isfinite().all(-1).all(-1)).to(torch.int32)
    values, vectors = torch.linalg.eigh(a.nan_to_num())
    return values, vectors.mT, info, torch.zeros(0, dtype=WIDE)


def _svd(numbers: Numbers, given: Tensors) -> Tensors:
    count, m, n, rows = numbers
    a = _matrices(given[0], count, n, m)
    info = (~a.isfinite().all(-1).all(-1)).to(torch.int32)
    left, values, right = torch.linalg.svd(a.nan_to_num().mT, full_matrices=rows > n)
    return left.mT, values, right, info


def _exponential(numbers: Numbers, given: Tensors) -> Tensors:
    count, n = numbers
    nothing = torch.zeros(0, dtype=WIDE)
    found = torch.linalg.matrix_exp(_matrices(given[0], count, n, n))
    return found, nothing, nothing, nothing


REFERENCES: dict[str, Callable[[Numbers, Tensors], Tensors]] = {
    "cholesky": _cholesky,
    "lu": _lu,
    "order": _order,
    "triangular": _triangular,
    "lu_solve": _lu_solve,
    "householder": _householder,
    "orthogonal": _orthogonal,
    "eigh": _eigh,
    "svd": _svd,
    "exponential": _exponential,
}
"""Routine → the same on tensors. Results that are room only may be empty."""
