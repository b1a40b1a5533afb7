"""Decompositions for export only: overloads that dispatch resolves, Fourier transforms, complex products,
determinants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop_op

from smelt.contract.spectra import SPECTRA

aten = torch.ops.aten


def _ldexp(self: Tensor, other: Tensor) -> Tensor:
    return self * torch.pow(2.0, other)


# -- overloads ------------------------------------------------------------------------------------------


def _convolution(input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    """The last arguments, which choose among ATen's kernels, are dropped."""
    return aten.convolution.default(input, weight, bias, *geometry[:6])


def _index_put_impl(
    self: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    return aten.index_put.default(self, indices, values, accumulate)


def _collapse(a: Tensor, start: int, end: int) -> Tensor:
    """Dimensions ``start`` to ``end``, both inclusive, as one."""
    return a.reshape(*a.shape[:start], -1, *a.shape[end + 1 :])


def _sum(inp: Tensor, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> Tensor:
    return aten.sum.dim_IntList(inp, dims, dtype=output_dtype)


def _product(inp: Tensor, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> Tensor:
    every = range(inp.dim()) if dims is None else [dim % inp.dim() for dim in dims]
    for dim in sorted(every, reverse=True):
        inp = aten.prod.dim_int(inp, dim, dtype=output_dtype)
    return inp


def _extreme(name: str) -> Callable[..., Tensor]:
    whole = getattr(aten, name).default

    def over(inp: Tensor, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> Tensor:
        found: Tensor = whole(inp, [] if dims is None else dims)
        return found if output_dtype is None else found.to(output_dtype)

    return over


def _all_dims(name: str) -> Callable[..., Any]:
    whole = getattr(aten, name).correction

    def over_all(self: Tensor, unbiased: bool = True) -> Any:
        return whole(self, None, correction=int(unbiased))

    return over_all


def _some_dims(name: str) -> Callable[..., Any]:
    whole = getattr(aten, name).correction

    def over(self: Tensor, dim: Sequence[int] | None, unbiased: bool = True, keepdim: bool = False) -> Any:
        return whole(self, dim, correction=int(unbiased), keepdim=keepdim)

    return over


def _max_pool_backward(rank: int) -> Callable[..., Tensor]:
    def backward(grad: Tensor, self: Tensor, *geometry: Any) -> Tensor:
        """Adds each gradient at its index, even outside of its window.

        Other compilers may not assume that a pooling computed the indices.
        """
        *_, indices = geometry
        wide = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else grad.dtype
        shape = (*self.shape[:-rank], math.prod(self.shape[-rank:]))
        zeros = torch.zeros(shape, dtype=wide, device=grad.device)
        found = zeros.scatter_add(-1, indices.flatten(-rank), grad.flatten(-rank).to(wide))
        return found.reshape(self.shape).to(grad.dtype)

    return backward


# -- determinants ---------------------------------------------------------------------------------------


def _turn(k: Tensor, parts: Tensor, pivots: Tensor, sign: Tensor) -> tuple[Tensor, ...]:
    """One step of the elimination: row ``k`` is exchanged with the row from ``k`` on that has the largest
    number in column ``k``, and subtracted from the rows below."""
    rows = torch.arange(parts.shape[-1])
    here, below = rows == k, rows > k
    column = torch.where(here, parts, 0.0).sum(-1)
    pivot = torch.where(rows >= k, column.abs(), -1.0).argmax(-1, keepdim=True)
    chosen = (rows == pivot).unsqueeze(-1)
    top, own = (torch.where(each, parts, 0.0).sum(-2, keepdim=True) for each in (chosen, here.unsqueeze(-1)))
    moved = torch.where(here.unsqueeze(-1), top, torch.where(chosen, own, parts))
    diagonal = torch.where(here, top, 0.0).sum(-1, keepdim=True)
    factors = torch.where(here, moved, 0.0).sum(-1, keepdim=True) / torch.where(diagonal == 0, 1.0, diagonal)
    rest = torch.where(below, moved - factors * top, torch.where(here, factors, moved))
    parts = torch.where(below.unsqueeze(-1), rest, moved)
    return k + 1, parts, torch.where(here, pivot + 1, pivots), torch.where(pivot == k, sign, -sign)


def _eliminated(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Signs and diagonals, in float64, of matrices after elimination with row pivoting, then ATen's further
    results: the triangular parts and the pivots (if ``x`` is real and contiguous, of its transpose)."""
    real = not x.is_complex()
    parts = (x.mT if x.is_contiguous() and real else x).to(torch.float64 if real else torch.complex128)
    ones = parts.new_ones((*x.shape[:-2], 1))
    pivots = torch.zeros(x.shape[:-1], dtype=torch.int64)
    state: Any = torch.zeros((), dtype=torch.int64), parts, pivots, ones
    _, parts, pivots, sign = while_loop_op(lambda k, parts, *_: k < parts.shape[-1], _turn, state, ())
    diagonal = parts.diagonal(dim1=-2, dim2=-1)
    return sign.squeeze(-1), diagonal, parts.to(x.dtype), pivots.to(torch.int32)


def _determinant(x: Tensor) -> tuple[Tensor, ...]:
    sign, diagonal, *parts = _eliminated(x)
    return (sign * diagonal.prod(-1)).to(x.dtype), *parts


def _sign_and_logarithm(x: Tensor) -> tuple[Tensor, ...]:
    sign, diagonal, *parts = _eliminated(x)
    sign = sign * diagonal.sgn().prod(-1)
    return sign.to(x.dtype), diagonal.abs().log().sum(-1).to(x.dtype.to_real()), *parts


PORTABLE: dict[Any, Callable[..., Any]] = {
    aten._linalg_det.default: _determinant,
    aten._linalg_slogdet.default: _sign_and_logarithm,
    torch.ops.prims.collapse.default: _collapse,
    torch.ops.prims.sum.default: _sum,
    torch.ops.prims.prod.default: _product,
    torch.ops.prims.amax.default: _extreme("amax"),
    torch.ops.prims.amin.default: _extreme("amin"),
    aten._convolution.default: _convolution,
    aten._convolution.deprecated: _convolution,
    aten._index_put_impl.default: _index_put_impl,
    aten.ldexp.Tensor: _ldexp,
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward(2),
    aten.max_pool3d_with_indices_backward.default: _max_pool_backward(3),
    **{getattr(aten, name).default: _all_dims(name) for name in ("var", "var_mean", "std", "std_mean")},
    **{getattr(aten, name).dim: _some_dims(name) for name in ("var", "var_mean", "std", "std_mean")},
    **SPECTRA,
}
"""Overload → its decomposition."""
