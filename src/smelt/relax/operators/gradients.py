"""Gradients of operators, under ``relax.op.grad``: ATen's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smelt.relax.operators.nn import Ints, _borders, _many
from smelt.relax.operators.table import aten, operator


def _same(input: Tensor, /) -> Tensor:
    """The identity: the operator only affects gradients."""
    return aten.clone.default(input)


for _name in ("no_grad", "start_checkpoint", "end_checkpoint"):
    operator(f"grad.{_name}", legal="identity")(_same)


@operator("grad.nll_loss_backward")
def nll_loss_backward(
    output_grad: Tensor,
    predictions: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    /,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    classes = predictions.shape[0 if predictions.dim() == 1 else 1]
    counted = (targets != ignore_index).to(predictions.dtype)
    places = torch.arange(classes).reshape([-1, *[1] * max(targets.dim() - 1, 0)])
    axis = 0 if predictions.dim() == 1 else 1
    hot = (targets.unsqueeze(axis) if predictions.dim() > 1 else targets) == places
    weight = torch.ones(classes, dtype=predictions.dtype) if weights is None else weights
    each = hot.to(predictions.dtype) * weight[:classes].reshape(places.shape)
    chosen = each.sum(axis) * counted
    grad = output_grad
    if reduction == "mean":
        grad = grad / chosen.sum()
    if grad.dim() > 0 and predictions.dim() > 1:
        grad = grad.unsqueeze(axis)
    keep = counted.unsqueeze(axis) if predictions.dim() > 1 else counted
    return -grad * each * keep


def _pool_of(layout: str, pool_size: Ints, strides: Ints, padding: Ints) -> tuple[Any, ...]:
    before, after = _borders(padding, 2)
    if layout != "NCHW" or before != after:
        raise NotImplementedError(f"layout {layout} with padding {padding}")
    return _many(pool_size, 2), _many(strides, 2), before


@operator("grad.max_pool2d_backward")
def max_pool2d_backward(
    output_grad: Tensor,
    data: Tensor,
    /,
    pool_size: Ints = 1,
    strides: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = "NCHW",
    out_layout: str | None = None,
) -> Tensor:
    size, steps, border = _pool_of(layout, pool_size, strides, padding)
    options = (size, steps, border, _many(dilation, 2), ceil_mode)
    _, places = aten.max_pool2d_with_indices.default(data, *options)
    return aten.max_pool2d_with_indices_backward.default(output_grad, data, *options, places)


@operator("grad.avg_pool2d_backward")
def avg_pool2d_backward(
    output_grad: Tensor,
    data: Tensor,
    /,
    pool_size: Ints = 1,
    strides: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = "NCHW",
    out_layout: str | None = None,
) -> Tensor:
    options = _pool_of(layout, pool_size, strides, padding)
    return aten.avg_pool2d_backward.default(output_grad, data, *options, ceil_mode, count_include_pad, None)


@operator("grad.take_backward")
def take_backward(output_grad: Tensor, x: Tensor, indices: Tensor, /, axis: int | None = None) -> Tensor:
    zeros = torch.zeros_like(x)
    if axis is None:
        return zeros.reshape(-1).index_add(0, indices.reshape(-1), output_grad.reshape(-1)).reshape(x.shape)
    axis %= x.dim()
    shape = [*x.shape[:axis], indices.numel(), *x.shape[axis + 1 :]]
    return zeros.index_add(axis, indices.reshape(-1), output_grad.reshape(shape))
