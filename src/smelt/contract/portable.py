"""Decompositions for export only: overloads that dispatch resolves, Fourier transforms, complex products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

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


PORTABLE: dict[Any, Callable[..., Any]] = {
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
