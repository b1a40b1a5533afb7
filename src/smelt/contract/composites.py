"""Operators that are a few others, and that PyTorch's table leaves whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import binary_cross_entropy

from smelt.contract import antialias, distances, grid_sampling

aten = torch.ops.aten


def _soft_margin_loss(self: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """As ATen computes it, rounded after each operator: PyTorch's decomposition computes in float32."""
    loss = torch.log1p(torch.exp(-(self * target)))
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def _soft_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int = 1
) -> Tensor:
    """As ATen computes it: PyTorch's ``sigmoid(x) - 1`` loses all digits where sigmoid is near 1."""
    z = torch.exp(-target * self)
    scale = 1.0 / self.numel() if reduction == 1 else 1.0
    return target * z * -scale / (z + 1) * grad_output


def _binary_cross_entropy(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """As PyTorch takes it apart, after eager's check of the probabilities."""
    inside = ((self >= 0) & (self <= 1)).all()
    aten._assert_async.msg(inside, "all elements of input should be between 0 and 1")
    return binary_cross_entropy(self, target, weight, reduction)


def _addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """The batch is one more summed dimension: ``(n, b*m) @ (b*m, p)``."""
    left = batch1.transpose(0, 1).reshape(batch1.shape[1], -1)
    right = batch2.reshape(-1, batch2.shape[2])
    return torch.addmm(self, left, right, beta=beta, alpha=alpha)


def _angle(self: Tensor) -> Any:
    """Of real numbers: pi below 0, else 0."""
    if self.is_complex():
        return NotImplemented
    x = self if self.is_floating_point() else self.to(torch.get_default_dtype())
    angle = torch.where(x < 0, torch.full_like(x, math.pi), torch.zeros_like(x))
    return torch.where(x.isnan(), x, angle)


def _ldexp(self: Tensor, other: Tensor) -> Tensor:
    return self * torch.pow(2.0, other)


def _efficient_zeros(size: Sequence[int], **options: Any) -> Tensor:
    return torch.zeros(size, **{name: value for name, value in options.items() if value is not None})


def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The product of three tensors, given dimensions of one element where told, summed over ``sumdim``."""
    for tensor_dims in (expand1, expand2, expand3):
        assert list(tensor_dims) == sorted(tensor_dims)
    factors = []
    for tensor, dims in ((i1, expand1), (i2, expand2), (i3, expand3)):
        for dim in dims:
            tensor = tensor.unsqueeze(dim)
        factors.append(tensor)
    product = factors[0] * factors[1] * factors[2]
    return product.sum(list(sumdim)) if len(sumdim) else product


def _histc(self: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """How many elements fall into each of ``bins`` equal parts of min..max (equal: of the data's range)."""
    if not self.is_floating_point() or min > max:  # eager refuses
        return NotImplemented
    x = self.reshape(-1)
    if min == max and x.numel() != 0:
        low, high = x.amin(), x.amax()
        same = low == high
        low, high = torch.where(same, low - 1, low), torch.where(same, high + 1, high)
        finite = low.isfinite() & high.isfinite()
        aten._assert_async.msg(finite, "histc: the range of the data is not finite")
    else:
        span = (min, max) if min != max else (min - 1, max + 1)
        low, high = (torch.full((), float(end), dtype=x.dtype, device=x.device) for end in span)
    inside = (x >= low) & (x <= high)
    at = ((x - low) / (high - low) * bins).to(torch.int64)
    at = torch.where(inside, at.clamp(0, bins - 1), torch.zeros_like(at))
    return torch.zeros(bins, dtype=x.dtype, device=x.device).index_add(0, at, inside.to(x.dtype))


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._efficientzerotensor.default: _efficient_zeros,
    aten._trilinear.default: _trilinear,
    aten.addbmm.default: _addbmm,
    aten.angle.default: _angle,
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    aten.histc.default: _histc,
    aten.ldexp.Tensor: _ldexp,
    aten.soft_margin_loss.default: _soft_margin_loss,
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
    **antialias.DECOMPOSITIONS,
    **distances.DECOMPOSITIONS,
    **grid_sampling.DECOMPOSITIONS,
}
