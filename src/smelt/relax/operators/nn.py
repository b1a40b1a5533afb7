"""Operators of neural networks, under ``relax.op.nn``; and operators of images and quantized numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from smelt.relax.operators.shapes import Axes, axes_of
from smelt.relax.operators.table import OPERATORS, aten, composed, operator
from smelt.relax.types import torch_dtype

Ints = int | Sequence[int]


def _many(value: Ints, count: int) -> list[int]:
    values: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def _arranged(x: Tensor, have: str, want: str) -> Tensor:
    """The dimensions permuted from layout ``have`` to ``want``; layouts may have blocks (``NCHW16c``)."""
    if have == want:
        return x
    blocks, blocked = _blocks(have), _blocks(want)
    if blocks:
        return _arranged(
            _unblocked(x, blocks), "".join(each for each, size in blocks if each.isupper()), want
        )
    if blocked:
        plain = [each for each, size in blocked if each.isupper()]
        return _blocked(_arranged(x, have, "".join(plain)), blocked)
    if sorted(have) != sorted(want) or len(have) != x.dim():
        raise NotImplementedError(f"layout {have} (known: orders of {want})")
    return x.permute([have.index(letter) for letter in want])


def _blocks(layout: str) -> list[tuple[str, int]]:
    """A layout's dimensions with the sizes of its blocks; none without blocks."""
    found = [(each, int(size or 0)) for size, each in re.findall(r"(\d*)([A-Za-z])", layout)]
    return found if any(size for _, size in found) else []


def _unblocked(x: Tensor, layout: Sequence[tuple[str, int]]) -> Tensor:
    """Blocks merged into their dimensions."""
    letters = [each for each, _ in layout]
    order: list[int] = []
    shape: list[Any] = []
    for letter in [each for each in letters if each.isupper()]:
        own = [letters.index(each) for each in (letter, letter.lower()) if each in letters]
        order += own
        size = x.shape[own[0]]
        shape.append(size if len(own) == 1 else size * x.shape[own[1]])
    return x.permute(order).reshape(shape)


def _blocked(x: Tensor, layout: Sequence[tuple[str, int]]) -> Tensor:
    """Dimensions split into blocks."""
    sizes = {each.upper(): size for each, size in layout if size}
    shape: list[Any] = []
    places: dict[str, int] = {}
    plain = [each for each, _ in layout if each.isupper()]
    for letter, size in zip(plain, x.shape):
        places[letter] = len(shape)
        if letter in sizes:
            shape += [size // sizes[letter], sizes[letter]]
            places[letter.lower()] = len(shape) - 1
        else:
            shape.append(size)
    return x.reshape(shape).permute([places[each] for each, _ in layout])


def _borders(padding: Ints, dims: int) -> tuple[list[int], list[int]]:
    """The padding before and after each dimension."""
    values = _many(padding, 1)
    if len(values) == 1:
        return values * dims, values * dims
    if len(values) == dims:
        return values, values
    if len(values) != 2 * dims:
        raise ValueError(f"padding {padding!r} of {dims} dimensions")
    return values[:dims], values[dims:]


def _padded(x: Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Tensor:
    flat = [each for pair in zip(reversed(before), reversed(after)) for each in pair]
    return aten.constant_pad_nd.default(x, flat, value)


_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def _convolution(dims: int, transposed: bool) -> None:
    space = _SPATIAL[dims]
    kernel = f"IO{space}" if transposed else f"OI{space}"

    def run(
        data: Tensor,
        weight: Tensor,
        strides: Ints,
        padding: Ints,
        output_padding: Ints,
        dilation: Ints,
        groups: int,
        data_layout: str,
        kernel_layout: str,
        out_layout: str | None,
        out_dtype: str | None,
    ) -> Tensor:
        x, w = _arranged(data, data_layout, f"NC{space}"), _arranged(weight, kernel_layout, kernel)
        if out_dtype and torch_dtype(out_dtype) is not x.dtype:
            x, w = x.to(torch_dtype(out_dtype)), w.to(torch_dtype(out_dtype))
        before, after = _borders(padding, dims)
        extra = _many(output_padding, dims)
        crop = None
        if before != after and not transposed:
            x, before = _padded(x, before, after), [0] * dims
        elif before != after:
            crop, before = (before, after), [0] * dims
        steps, apart = _many(strides, dims), _many(dilation, dims)
        found = aten.convolution.default(x, w, None, steps, before, apart, transposed, extra, groups)
        if crop is not None:
            for dim, (first, last) in enumerate(zip(*crop)):
                found = torch.narrow(found, dim + 2, first, found.shape[dim + 2] - first - last)
        return _arranged(found, f"NC{space}", out_layout or data_layout)

    if transposed:

        def forward(
            data: Tensor,
            weight: Tensor,
            /,
            strides: Ints = 1,
            padding: Ints = 0,
            output_padding: Ints = 0,
            dilation: Ints = 1,
            groups: int = 1,
            data_layout: str = f"NC{space}",
            kernel_layout: str = kernel,
            out_layout: str | None = None,
            out_dtype: str | None = None,
        ) -> Tensor:
            given = (
                strides,
                padding,
                output_padding,
                dilation,
                groups,
                data_layout,
                kernel_layout,
                out_layout,
            )
            return run(data, weight, *given, out_dtype)

        operator(f"nn.conv{dims}d_transpose")(forward)
    else:

        def straight(
            data: Tensor,
            weight: Tensor,
            /,
            strides: Ints = 1,
            padding: Ints = 0,
            dilation: Ints = 1,
            groups: int = 1,
            data_layout: str = f"NC{space}",
            kernel_layout: str = kernel,
            out_layout: str | None = None,
            out_dtype: str | None = None,
        ) -> Tensor:
            given = (strides, padding, 0, dilation, groups, data_layout, kernel_layout, out_layout)
            return run(data, weight, *given, out_dtype)

        operator(f"nn.conv{dims}d")(straight)


def _pooling(dims: int) -> None:
    space = _SPATIAL[dims]
    maximum: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
    average: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]
    adaptive: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[dims - 1]

    def max_pool(
        data: Tensor,
        /,
        pool_size: Ints = 1,
        strides: Ints = 1,
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = f"NC{space}",
        out_layout: str | None = None,
    ) -> Tensor:
        x = _arranged(data, layout, f"NC{space}")
        before, after = _borders(padding, dims)
        if before != after:
            lowest = float("-inf") if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
            x, before = _padded(x, before, after, lowest), [0] * dims
        sizes = [_many(each, dims) for each in (pool_size, strides)]
        found = maximum(x, *sizes, before, _many(dilation, dims), ceil_mode)
        return _arranged(found, f"NC{space}", out_layout or layout)

    def avg_pool(
        data: Tensor,
        /,
        pool_size: Ints = 1,
        strides: Ints = 1,
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = f"NC{space}",
        out_layout: str | None = None,
    ) -> Tensor:
        x = _arranged(data, layout, f"NC{space}")
        before, after = _borders(padding, dims)
        if before != after or any(each != 1 for each in _many(dilation, dims)):
            raise NotImplementedError("an average with borders that differ, or with dilation")
        sizes = [_many(each, dims) for each in (pool_size, strides)]
        found = average(x, *sizes, before, ceil_mode, count_include_pad)
        return _arranged(found, f"NC{space}", out_layout or layout)

    def adaptive_avg_pool(
        data: Tensor,
        /,
        output_size: Ints | None = None,
        layout: str = f"NC{space}",
        out_layout: str | None = None,
    ) -> Tensor:
        x = _arranged(data, layout, f"NC{space}")
        size = list(x.shape[2:]) if output_size is None else _many(output_size, dims)
        return _arranged(adaptive(x, size), f"NC{space}", out_layout or layout)

    operator(f"nn.max_pool{dims}d")(max_pool)
    operator(f"nn.avg_pool{dims}d")(avg_pool)
    operator(f"nn.adaptive_avg_pool{dims}d")(adaptive_avg_pool)


for _dims in (1, 2, 3):
    _convolution(_dims, False)
    _convolution(_dims, True)
    _pooling(_dims)


@operator("nn.softmax")
def softmax(data: Tensor, /, axis: int = -1) -> Tensor:
    return torch.softmax(data, axis)


@operator("nn.log_softmax")
def log_softmax(data: Tensor, /, axis: int = -1) -> Tensor:
    return torch.log_softmax(data, axis)


@operator("nn.pad")
def pad(
    data: Tensor,
    /,
    pad_width: Sequence[int],
    pad_mode: str | None = "constant",
    pad_value: float | None = 0.0,
) -> Tensor:
    """``pad_width``: (before, after) of each dimension, from the first."""
    flat = [int(each) for each in pad_width]
    turned = [each for dim in reversed(range(len(flat) // 2)) for each in flat[2 * dim : 2 * dim + 2]]
    if pad_mode in (None, "constant"):
        return aten.constant_pad_nd.default(data, turned, pad_value or 0)
    mode = {"reflect": "reflect", "replicate": "replicate", "edge": "replicate", "circular": "circular"}[
        pad_mode
    ]
    while turned and turned[-2:] == [0, 0]:
        turned = turned[:-2]
    return F.pad(data, turned, mode)


@operator("nn.pixel_shuffle")
def pixel_shuffle(data: Tensor, /, upscale_factor: int) -> Tensor:
    return torch.pixel_shuffle(data, upscale_factor)


def _along(value: Tensor, axis: int, rank: int) -> Tensor:
    shape = [1] * rank
    shape[axis] = -1
    return value.reshape(shape)


@operator("nn.batch_norm")
def batch_norm(
    data: Tensor,
    gamma: Tensor,
    beta: Tensor,
    moving_mean: Tensor,
    moving_var: Tensor,
    /,
    axis: int = 1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    momentum: float = 0.1,
    training: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The normalized tensor, and the running mean and variance."""
    mean, var = moving_mean, moving_var
    if training:
        others = [dim for dim in range(data.dim()) if dim != axis % data.dim()]
        mean = torch.mean(data, others)
        var = torch.var(data, others, correction=0)
        moving_mean = (1 - momentum) * moving_mean + momentum * mean
        moving_var = (1 - momentum) * moving_var + momentum * var
    found = (data - _along(mean, axis, data.dim())) / torch.sqrt(_along(var, axis, data.dim()) + epsilon)
    if scale:
        found = found * _along(gamma, axis, data.dim())
    if center:
        found = found + _along(beta, axis, data.dim())
    return found, moving_mean.clone(), moving_var.clone()


def _normalized(data: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    wide = data.float() if data.dtype in (torch.float16, torch.bfloat16) else data
    var, mean = torch.var_mean(wide, list(axes), correction=0, keepdim=True)
    return ((wide - mean) * torch.rsqrt(var + epsilon)).to(data.dtype)


@operator("nn.layer_norm")
def layer_norm(
    data: Tensor,
    gamma: Tensor,
    beta: Tensor,
    /,
    axes: Ints = -1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Tensor:
    dims = [each % data.dim() for each in axes_of(axes, data.dim())]
    if dims == list(range(data.dim() - len(dims), data.dim())):
        shape = [data.shape[each] for each in dims]
        return F.layer_norm(data, shape, gamma if scale else None, beta if center else None, epsilon)
    shape = [data.shape[each] if each in dims else 1 for each in range(data.dim())]
    found = _normalized(data, dims, epsilon)
    found = found * gamma.reshape(shape) if scale else found
    return found + beta.reshape(shape) if center else found


@operator("nn.group_norm")
def group_norm(
    data: Tensor,
    gamma: Tensor,
    beta: Tensor,
    /,
    num_groups: int,
    channel_axis: int = 1,
    axes: Ints = (),
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Tensor:
    axis = channel_axis % data.dim()
    shape = list(data.shape)
    grouped = data.reshape([*shape[:axis], num_groups, shape[axis] // num_groups, *shape[axis + 1 :]])
    dims = [axis + 1, *[d % data.dim() + (d % data.dim() > axis) for d in axes_of(axes, 0)]]
    found = _normalized(grouped, dims, epsilon).reshape(shape)
    found = found * _along(gamma, axis, data.dim()) if scale else found
    return found + _along(beta, axis, data.dim()) if center else found


@operator("nn.instance_norm")
def instance_norm(
    data: Tensor,
    gamma: Tensor,
    beta: Tensor,
    /,
    channel_axis: int = 1,
    axes: Ints = (),
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Tensor:
    found = _normalized(data, axes_of(axes, data.dim()), epsilon)
    found = found * _along(gamma, channel_axis, data.dim()) if scale else found
    return found + _along(beta, channel_axis, data.dim()) if center else found


@operator("nn.rms_norm")
def rms_norm(data: Tensor, weight: Tensor, /, axes: Axes = -1, epsilon: float = 1e-5) -> Tensor:
    wide = data.float() if data.dtype in (torch.float16, torch.bfloat16) else data
    mean = torch.mean(wide * wide, axes_of(axes, data.dim()), True)
    return (wide * torch.rsqrt(mean + epsilon) * weight.to(wide.dtype)).to(data.dtype)


@operator("nn.cross_entropy_with_logits")
def cross_entropy_with_logits(predictions: Tensor, labels: Tensor, /) -> Tensor:
    found = -(predictions * labels).sum()
    return found if predictions.dim() == 1 else found / predictions.shape[0]


@operator("nn.nll_loss")
def nll_loss(
    predictions: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    /,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    return F.nll_loss(
        predictions, targets.to(torch.int64), weights, ignore_index=ignore_index, reduction=reduction
    )


@operator("nn.attention")
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    /,
    scale: float | None = None,
    causal_mask: str | None = None,
    window_size: int | None = None,
) -> Tensor:
    """Tensors are (batch, position, head, depth)."""
    if window_size is not None or causal_mask not in (None, "TopLeft", "BottomRight"):
        raise NotImplementedError(f"attention with {causal_mask} and a window of {window_size}")
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    mask = bias
    if causal_mask == "BottomRight" or (causal_mask and bias is not None):
        rows, columns = q.shape[-2], k.shape[-2]
        offset = columns - rows if causal_mask == "BottomRight" else 0
        seen = torch.arange(columns).reshape(1, -1) <= torch.arange(rows).reshape(-1, 1) + offset
        hidden = torch.where(seen, 0.0, float("-inf")).to(q.dtype)
        mask = hidden if bias is None else bias + hidden
    found = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal_mask == "TopLeft" and mask is None, scale=scale
    )
    return found.transpose(1, 2)


composed("nn.attention_bias")(OPERATORS["nn.attention"])


_INTERPOLATIONS = {(2, "linear"): "bilinear", (2, "cubic"): "bicubic", (3, "linear"): "trilinear"}


def _resizing(dims: int) -> None:
    own = f"NC{_SPATIAL[dims]}"

    def resize(
        data: Tensor,
        size: Any,
        /,
        roi: Any = None,
        layout: str = own,
        method: str = "linear",
        coordinate_transformation_mode: str = "half_pixel",
        rounding_method: str = "round",
        cubic_alpha: float = -0.75,
        cubic_exclude: int = 0,
        extrapolation_value: float = 0.0,
        out_dtype: str | None = None,
    ) -> Tensor:
        found = _arranged(data, layout, own)
        sizes = _many(size, dims)
        coordinates = coordinate_transformation_mode
        if method == "nearest_neighbor":
            for dim, wanted in enumerate(sizes, 2):
                at = _nearest(wanted, found.shape[dim], coordinates, rounding_method)
                found = found.index_select(dim, at)
        elif method == "cubic" and (cubic_alpha, cubic_exclude) != (-0.75, 0):
            raise NotImplementedError(f"cubic_alpha {cubic_alpha}, cubic_exclude {cubic_exclude}")
        elif (dims, method) in _INTERPOLATIONS and coordinates in _COORDINATES:
            aligned = coordinates == "align_corners"
            found = F.interpolate(found, sizes, mode=_INTERPOLATIONS[dims, method], align_corners=aligned)
        else:
            raise NotImplementedError(f"{method} in {dims} dimensions, coordinates {coordinates}")
        found = found.to(torch_dtype(out_dtype)) if out_dtype else found
        return _arranged(found, own, layout)

    operator(f"image.resize{dims}d")(resize)


_COORDINATES = ("half_pixel", "align_corners", "pytorch_half_pixel")
_resizing(2)
_resizing(3)


def _nearest(wanted: Any, size: Any, coordinates: str, rounding: str) -> Tensor:
    """The nearest of ``size`` positions for each of the ``wanted`` ones; halves are rounded to even."""
    at = torch.arange(wanted, dtype=torch.float32)
    scale = size / wanted
    if coordinates == "half_pixel":
        at = (at + 0.5) * scale - 0.5
    elif coordinates == "asymmetric":
        at = at * scale
    elif coordinates == "align_corners":
        at = at * ((size - 1) / max(wanted - 1, 1))
    else:
        raise NotImplementedError(f"coordinates {coordinates}")
    ways = {"": torch.round, "round": torch.round, "floor": torch.floor, "ceil": torch.ceil}
    if rounding not in ways:
        raise NotImplementedError(f"rounding {rounding}")
    return ways[rounding](at).long().clamp(0, size - 1)


@operator("image.grid_sample")
def grid_sample(
    data: Tensor,
    grid: Tensor,
    /,
    method: str = "bilinear",
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """``grid`` is (batch, 2, height, width)."""
    x = _arranged(data, layout, "NCHW")
    found = F.grid_sample(x, grid.permute(0, 2, 3, 1), method, padding_mode, align_corners)
    return _arranged(found, "NCHW", layout)


@operator("image.affine_grid")
def affine_grid(data: Tensor, size: Any, /, align_corners: bool = True) -> Tensor:
    """``data`` is (batch, 2, 3); the grid is (batch, 2, height, width)."""
    height, width = _many(size, 2)
    grid = F.affine_grid(data, [data.shape[0], 1, height, width], align_corners)
    return grid.permute(0, 3, 1, 2)


def _scaled(value: Any, axis: int, rank: int) -> Any:
    return _along(value, axis, rank) if isinstance(value, Tensor) and value.dim() == 1 else value


@operator("quantize")
def quantize(data: Tensor, scale: Any, zero_point: Any, /, axis: int = -1, out_dtype: str = "int8") -> Tensor:
    limits = torch.iinfo(torch_dtype(out_dtype))
    scaled = torch.round(data / _scaled(scale, axis, data.dim())) + _scaled(zero_point, axis, data.dim())
    return torch.clamp(scaled, limits.min, limits.max).to(torch_dtype(out_dtype))


@operator("dequantize")
def dequantize(
    data: Tensor, scale: Any, zero_point: Any, /, axis: int = -1, out_dtype: str = "float32"
) -> Tensor:
    shifted = data.to(torch.int32) - _scaled(zero_point, axis, data.dim())
    return (shifted * _scaled(scale, axis, data.dim())).to(torch_dtype(out_dtype))
