"""Decompositions of composite operators that PyTorch's table leaves whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import binary_cross_entropy, binary_cross_entropy_with_logits
from torch._refs.nn.functional import huber_loss

from smelt.contract import antialias, distances, factories, grid_sampling, histograms, quantization

aten = torch.ops.aten


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def _soft_margin_loss(self: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """ATen's formula, rounded after each operator; PyTorch's decomposition computes in float32."""
    loss = torch.log1p(torch.exp(-(self * target)))
    return _reduced(loss.to(self.dtype), reduction)


def _huber_loss(self: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    """PyTorch's decomposition, with ``self``'s dtype for each element, whatever the target's."""
    return _reduced(huber_loss(self, target, "none", delta).to(self.dtype), reduction)


def _soft_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int = 1
) -> Tensor:
    """ATen's formula: PyTorch's ``sigmoid(x) - 1`` loses all digits if sigmoid is near 1."""
    z = torch.exp(-target * self)
    scale = 1.0 / self.numel() if reduction == 1 else 1.0
    return target * z * -scale / (z + 1) * grad_output


def _binary_cross_entropy(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Any:
    """PyTorch's decomposition, after eager's checks; ATen raises the errors about dtypes."""
    if self.dtype != target.dtype:
        return NotImplemented
    inside = ((self >= 0) & (self <= 1)).all()
    aten._assert_async.msg(inside, "all elements of input should be between 0 and 1")
    return _reduced(binary_cross_entropy(self, target, weight, 0).to(self.dtype), reduction)


def _binary_cross_entropy_with_logits(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 1,
) -> Any:
    """PyTorch's decomposition; eager stores losses in the target's memory, so integers are refused."""
    if not target.dtype.is_floating_point:
        return NotImplemented
    return binary_cross_entropy_with_logits(self, target, weight, pos_weight, reduction)


def _addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """The batch becomes part of the summed dimension: ``(n, b*m) @ (b*m, p)``."""
    left = batch1.transpose(0, 1).reshape(batch1.shape[1], -1)
    right = batch2.reshape(-1, batch2.shape[2])
    return torch.addmm(self, left, right, beta=beta, alpha=alpha)


def _angle(self: Tensor) -> Any:
    """The angle of real numbers: pi below 0, else 0."""
    if self.is_complex():
        return NotImplemented
    x = self if self.is_floating_point() else self.to(torch.get_default_dtype())
    angle = torch.where(x < 0, torch.full_like(x, math.pi), torch.zeros_like(x))
    return torch.where(x.isnan(), x, angle)


def _efficient_zeros(size: Sequence[int], **options: Any) -> Tensor:
    return torch.zeros(size, **{name: value for name, value in options.items() if value is not None})


def _channels_last(x: Tensor) -> torch.memory_format | None:
    """The channels-last memory format of a tensor, or None."""
    if x.numel() and not x.is_contiguous():
        for memory_format, rank in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
            if x.dim() == rank and x.is_contiguous(memory_format=memory_format):
                return memory_format
    return None


def _roll(self: Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Tensor:
    """A roll by concatenation of parts as in eager, which keeps channels last."""
    rolled = torch._refs.roll(self, list(shifts), list(dims))
    memory_format = _channels_last(self) if dims else None
    return rolled if memory_format is None else rolled.clone(memory_format=memory_format)


def _hardtanh_backward(grad: Tensor, self: Tensor, min_val: float, max_val: float) -> Tensor:
    """0 for NaN, as in eager's kernel. The backward saves a mask, which is smaller than the input."""
    return torch.where((self > min_val) & (self < max_val), grad, 0.0)


def _max_unpool2d(self: Tensor, indices: Tensor, output_size: Sequence[Any]) -> Any:
    """``max_unpool2d`` with channels last kept; its metadata function forgets them."""
    memory_format = _channels_last(self)
    if memory_format is None:
        return NotImplemented
    return aten.max_unpool2d(self.contiguous(), indices, output_size).clone(memory_format=memory_format)


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
    """The product of three tensors, with size-1 dimensions inserted as given, summed over ``sumdim``."""
    for tensor_dims in (expand1, expand2, expand3):
        assert list(tensor_dims) == sorted(tensor_dims)
    factors = []
    for tensor, dims in ((i1, expand1), (i2, expand2), (i3, expand3)):
        for dim in dims:
            tensor = tensor.unsqueeze(dim)
        factors.append(tensor)
    product = factors[0] * factors[1] * factors[2]
    return product.sum(list(sumdim)) if len(sumdim) else product


def _conv_tbc(self: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A convolution over time of (time, batch, channels); weight (time, in, out)."""
    lines, filters = self.permute(1, 2, 0), weight.permute(2, 1, 0)
    result = aten.convolution(lines, filters, bias, [1], [pad], [1], False, [0], 1)
    return result.permute(2, 0, 1).contiguous()


def _addmm_activation(
    self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False
) -> Tensor:
    result = torch.addmm(self, mat1, mat2, beta=beta, alpha=alpha)
    return torch.nn.functional.gelu(result) if use_gelu else result.relu()


def _embedding_renorm(self: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Rows that are looked up are scaled down to ``max_norm`` if their norm is larger."""
    at = indices.reshape(-1)
    rows = self[at]
    wide = rows if self.dtype is torch.float64 else rows.to(torch.float32)
    norm = torch.linalg.vector_norm(wide, norm_type, 1, keepdim=True)
    scaled = (wide * (max_norm / (norm + 1e-7))).to(self.dtype)
    return aten.index_put(self, [at], torch.where(norm > max_norm, scaled, rows))


def _weight_norm_interface(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """``v * (g / norm(v))`` and the norm, in float32 at least; all but dimension ``dim`` are reduced."""
    kept = torch.float64 if v.dtype is torch.float64 else torch.float32
    wide, rest = v.contiguous().to(kept), [d for d in range(v.dim()) if d != dim % v.dim()]
    norm = torch.linalg.vector_norm(wide, 2, rest, keepdim=True) if rest else wide.abs()
    return (wide * (g.to(kept) / norm)).to(v.dtype), norm


def _weight_norm_interface_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """The gradients of ``v * (g / norm(v))``, all but dimension ``dim`` being reduced, by v and by g."""
    kept = saved_norms.dtype
    grad, v, g = (each.contiguous().to(kept) for each in (grad_w, saved_v, saved_g))
    rest = [d for d in range(v.dim()) if d != dim % v.dim()]
    along = (grad * v).sum(rest, keepdim=True) if rest else grad * v
    by_v = g / saved_norms * (grad - v * along / (saved_norms * saved_norms))
    return by_v.to(saved_v.dtype), (along / saved_norms).to(saved_g.dtype)


def _prims_sum(x: Tensor, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> Tensor:
    dtype = output_dtype or x.dtype
    over = list(range(x.dim()) if dims is None else dims)
    return torch.sum(x, over, dtype=dtype) if over else x.to(dtype)


def _prims_prod(x: Tensor, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> Tensor:
    for dim in sorted(range(x.dim()) if dims is None else dims, reverse=True):
        x = torch.prod(x, dim, dtype=output_dtype or x.dtype)
    return x


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.prims.sum.default: _prims_sum,
    torch.ops.prims.prod.default: _prims_prod,
    aten._efficientzerotensor.default: _efficient_zeros,
    aten._trilinear.default: _trilinear,
    aten._addmm_activation.default: _addmm_activation,
    aten._weight_norm_interface.default: _weight_norm_interface,
    aten._weight_norm_interface_backward.default: _weight_norm_interface_backward,
    aten.addbmm.default: _addbmm,
    aten.angle.default: _angle,
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    aten.conv_tbc.default: _conv_tbc,
    aten.embedding_renorm.default: _embedding_renorm,
    aten.binary_cross_entropy_with_logits.default: _binary_cross_entropy_with_logits,
    aten.huber_loss.default: _huber_loss,
    aten.hardtanh_backward.default: _hardtanh_backward,
    aten.max_unpool2d.default: _max_unpool2d,
    aten.roll.default: _roll,
    aten.soft_margin_loss.default: _soft_margin_loss,
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
    **antialias.DECOMPOSITIONS,
    **distances.DECOMPOSITIONS,
    **factories.DECOMPOSITIONS,
    **grid_sampling.DECOMPOSITIONS,
    **histograms.DECOMPOSITIONS,
    **quantization.DECOMPOSITIONS,
}
