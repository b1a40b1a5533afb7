"""Sums, extremes and their positions, sorts, running sums, and products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smelt.relax.operators.shapes import Axes, axes_of
from smelt.relax.operators.table import OPERATORS, aten, composed, operator
from smelt.relax.types import torch_dtype


@operator("sum")
def sum_(x: Tensor, /, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return torch.sum(
        x, axes_of(axis, x.dim()), keepdims, dtype=None if x.dtype.is_floating_point else x.dtype
    )


@operator("prod")
def prod(x: Tensor, /, axis: Axes = None, keepdims: bool = False) -> Tensor:
    if x.dtype is torch.bool:
        return torch.all(x, axes_of(axis, x.dim()), keepdims)
    dtype = None if x.dtype.is_floating_point else x.dtype
    for each in sorted((each % max(x.dim(), 1) for each in axes_of(axis, x.dim())), reverse=True):
        x = torch.prod(x, each, keepdims, dtype=dtype)
    return x


@operator("max")
def max_(x: Tensor, /, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return torch.amax(x, axes_of(axis, x.dim()), keepdims)


@operator("min")
def min_(x: Tensor, /, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return torch.amin(x, axes_of(axis, x.dim()), keepdims)


@operator("mean")
def mean(x: Tensor, /, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return torch.mean(x, axes_of(axis, x.dim()), keepdims)


@operator("variance")
def variance(x: Tensor, /, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return torch.var(x, axes_of(axis, x.dim()), correction=0, keepdim=keepdims)


@operator("std")
def std(x: Tensor, /, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return torch.sqrt(torch.var(x, axes_of(axis, x.dim()), correction=0, keepdim=keepdims))


@operator("median")
def median(x: Tensor, /, axis: Axes = None, keepdims: bool = False) -> Any:
    if axis is None:
        return torch.median(x)
    (dim,) = axes_of(axis, x.dim())
    return tuple(torch.median(x, dim, keepdims))


@operator("argmax")
def argmax(x: Tensor, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    return aten.argmax.default(x, axis, keepdims)


@operator("argmin")
def argmin(x: Tensor, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    return aten.argmin.default(x, axis, keepdims)


def _running(
    run: Any, data: Tensor, axis: int | None, dtype: str | None, exclusive: bool, first: int
) -> Tensor:
    if axis is None:
        data, axis = data.reshape(-1), 0
    found = run(data, axis, dtype=torch_dtype(dtype) if dtype else data.dtype)
    if not exclusive:
        return found
    start = torch.full_like(torch.narrow(found, axis, 0, 1), first)
    return torch.cat([start, torch.narrow(found, axis, 0, data.shape[axis] - 1)], axis)


@operator("cumsum")
def cumsum(
    data: Tensor, /, axis: int | None = None, dtype: str | None = None, exclusive: bool = False
) -> Tensor:
    return _running(torch.cumsum, data, axis, dtype, exclusive, 0)


@operator("cumprod")
def cumprod(
    data: Tensor, /, axis: int | None = None, dtype: str | None = None, exclusive: bool = False
) -> Tensor:
    return _running(torch.cumprod, data, axis, dtype, exclusive, 1)


@operator("sort")
def sort(x: Tensor, /, axis: int = -1, descending: bool = False) -> Tensor:
    return torch.sort(x, dim=axis, descending=descending, stable=True)[0]


@operator("argsort")
def argsort(data: Tensor, /, axis: int = -1, descending: bool = False, dtype: str = "int32") -> Tensor:
    return torch.sort(data, dim=axis, descending=descending, stable=True)[1].to(torch_dtype(dtype))


@operator("topk")
def topk(
    data: Tensor,
    /,
    k: int = 1,
    axis: int = -1,
    ret_type: str = "both",
    largest: bool = True,
    dtype: str = "int32",
) -> Any:
    size = data.shape[axis]
    values, places = torch.topk(data, size if k < 1 else k, axis, largest)
    places = places.to(torch_dtype(dtype))
    return {"both": (values, places), "values": values, "indices": places}[ret_type]


@operator("bucketize")
def bucketize(
    input_tensor: Tensor, boundaries: Tensor, /, out_int32: bool = False, right: bool = False
) -> Tensor:
    return torch.bucketize(input_tensor, boundaries, out_int32=out_int32, right=right)


@operator("nonzero")
def nonzero(x: Tensor, /) -> Tensor:
    return torch.nonzero(x).t()


@operator("unique")
def unique(
    x: Tensor,
    /,
    sorted: bool = True,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Any:
    if return_index:
        raise NotImplementedError("return_index")
    return torch.unique(x, bool(sorted), bool(return_inverse), bool(return_counts), axis)


@operator("matmul")
def matmul(x1: Tensor, x2: Tensor, /, out_dtype: str | None = None) -> Tensor:
    if out_dtype and torch_dtype(out_dtype) is not x1.dtype:
        x1, x2 = x1.to(torch_dtype(out_dtype)), x2.to(torch_dtype(out_dtype))
    return torch.matmul(x1, x2)


@composed("linear")
def linear(data: Any, weight: Any, bias: Any = None, out_dtype: str | None = None) -> Any:
    """``data @ weight.T + bias``: a permutation, a product and a sum."""
    product = OPERATORS["matmul"](data, OPERATORS["permute_dims"](weight), out_dtype=out_dtype)
    return product if bias is None else OPERATORS["add"](product, bias)


@operator("einsum")
def einsum(operands: Sequence[Tensor], /, subscripts: str) -> Tensor:
    return torch.einsum(subscripts, *operands)


@operator("outer")
def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    return x1.reshape(-1, 1) * x2.reshape(1, -1)
