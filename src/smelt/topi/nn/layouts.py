"""Padding, and layouts with split dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.te import functions as te
from smelt.te import reductions
from smelt.te.errors import refuse
from smelt.te.tensor import Tensor, compute
from smelt.te.value import as_value, cast
from smelt.topi.rows import Program, call, compose
from smelt.topi.transform import plainly
from smelt.topi.written import Labels

aten = torch.ops.aten


def pad(
    data: Tensor,
    pad_before: Sequence[Any],
    pad_after: Sequence[Any] | None = None,
    pad_value: Any = 0.0,
    name: str = "PadInput",
    attrs: Any = None,
) -> Any:
    """The tensor with constant elements before and after each dimension."""
    after = pad_before if pad_after is None else pad_after
    if len(pad_before) != data.ndim or len(after) != data.ndim:
        refuse("SM1121", f"topi.nn.pad: {len(pad_before)} and {len(after)} sizes for {data.ndim} dimensions")
    value = cast(as_value(plainly(pad_value)), data.kind)
    shape = [low + size + high for low, size, high in zip(pad_before, data.shape, after)]

    def element(*index: Any) -> Any:
        inside, moved = [], []
        for at, low, size, high in zip(index, pad_before, data.shape, after):
            none_before, none_after = isinstance(low, int) and low == 0, isinstance(high, int) and high == 0
            inside += [] if none_before else [at >= low]
            inside += [] if none_after else [at < low + size]
            moved.append(at if none_before else at - low)
        return te.if_then_else(te.all(*inside), data(*moved), value) if inside else data(*moved)

    return compute(shape, element, name, "injective,pad", attrs)


def mirror_pad(
    data: Tensor,
    pad_before: Sequence[int],
    pad_after: Any = None,
    mode: str = "SYMMETRIC",
    name: str = "MirrorPadInput",
) -> Any:
    """The tensor padded before and after each dimension by mirrored elements."""
    after = pad_before if pad_after is None else pad_after
    if mode not in ("SYMMETRIC", "REFLECT"):
        refuse("SM1123", f"topi.nn.mirror_pad: mode {mode!r}", remedy='"SYMMETRIC" or "REFLECT"')
    shape = [low + size + high for low, size, high in zip(pad_before, data.shape, after)]
    edge = 1 if mode == "SYMMETRIC" else 0

    def turned(at: Any, low: int, size: Any) -> Any:
        place = at - low
        first = te.if_then_else(place < 0, -place - edge, place)
        return te.if_then_else(place >= size, 2 * size - 2 + edge - place, first)

    def element(*index: Any) -> Any:
        return data(
            *(
                turned(at, low, size) if low or high else at
                for at, low, size, high in zip(index, pad_before, data.shape, after)
            )
        )

    return compute(shape, element, name, "injective,pad")


def reflect_pad(
    data: Tensor, pad_before: Sequence[int], pad_after: Any = None, name: str = "ReflectPadInput"
) -> Any:
    """The tensor padded by its own elements, mirrored at the outermost ones."""
    return mirror_pad(data, pad_before, pad_after, "REFLECT", name)


def _padded_by(data: Tensor, pad_before: Any, pad_after: Any, name: str, place: Any) -> Any:
    after = pad_before if pad_after is None else pad_after
    if len(pad_before) != data.ndim or len(after) != data.ndim:
        refuse("SM1121", f"topi.nn.pad: {len(pad_before)} and {len(after)} sizes for {data.ndim} dimensions")
    shape = [low + size + high for low, size, high in zip(pad_before, data.shape, after)]

    def element(*index: Any) -> Any:
        sides = zip(index, pad_before, data.shape, after)
        return data(*(place(at - low, size) if low or high else at for at, low, size, high in sides))

    return compute(shape, element, name, "injective,pad")


def replicate_pad(
    data: Tensor, pad_before: Sequence[int], pad_after: Any = None, name: str = "ReplicatePadInput"
) -> Any:
    """The tensor padded by its outermost elements."""

    def place(at: Any, size: Any) -> Any:
        return reductions.max(reductions.min(at, size - 1), 0)

    return _padded_by(data, pad_before, pad_after, name, place)


def circular_pad(
    data: Tensor, pad_before: Sequence[int], pad_after: Any = None, name: str = "CircularPadInput"
) -> Any:
    """The tensor padded by its own elements from the other end."""
    return _padded_by(data, pad_before, pad_after, name, lambda at, size: (at + size) % size)


def dilate(
    data: Tensor, strides: Sequence[int], dilation_value: Any = 0.0, name: str = "DilatedInput"
) -> Any:
    """The tensor with ``strides - 1`` elements between those of each dimension."""
    if len(strides) != data.ndim:
        refuse("SM1121", f"topi.nn.dilate: {len(strides)} strides for {data.ndim} dimensions")
    value = cast(as_value(plainly(dilation_value)), data.kind)
    shape = [(size - 1) * step + 1 for size, step in zip(data.shape, strides)]

    def element(*index: Any) -> Any:
        on = [(at % step).equal(0) for at, step in zip(index, strides) if step != 1]
        moved = [at if step == 1 else at // step for at, step in zip(index, strides)]
        return te.if_then_else(te.all(*on), data(*moved), value) if on else data(*moved)

    return compute(shape, element, name, "injective,dilate")


def flatten(data: Tensor) -> Any:
    """The tensor with all dimensions but the first merged."""

    def function(program: Program, x: Any) -> Any:
        return program(aten.reshape.default, x, [program.size(data.sizes[0]), -1])

    return compose("nn.flatten", Labels("compute", ["i", "j"], tag="injective"), function, data)


def depth_to_space(data: Tensor, block_size: int, layout: str = "NCHW", mode: str = "DCR") -> Any:
    """Channels as blocks of pixels."""
    _plain_layout("depth_to_space", data, layout)
    if mode not in ("DCR", "CRD"):
        refuse("SM1123", f"topi.nn.depth_to_space: mode {mode!r}", remedy='"DCR" or "CRD"')

    def function(program: Program, x: Any) -> Any:
        x = x if layout == "NCHW" else program(aten.permute.default, x, [0, 3, 1, 2])
        n, c, h, w = x.fake.shape
        b = block_size
        split = [n, b, b, c // (b * b), h, w] if mode == "DCR" else [n, c // (b * b), b, b, h, w]
        order = [0, 3, 4, 1, 5, 2] if mode == "DCR" else [0, 1, 4, 2, 5, 3]
        parts = program(aten.permute.default, program(aten.reshape.default, x, split), order)
        found = program(aten.reshape.default, parts, [n, c // (b * b), h * b, w * b])
        return found if layout == "NCHW" else program(aten.permute.default, found, [0, 2, 3, 1])

    return compose("nn.depth_to_space", Labels("depth_to_space", tag="injective"), function, data)


def space_to_depth(data: Tensor, block_size: int, layout: str = "NCHW") -> Any:
    """Blocks of pixels as channels."""
    _plain_layout("space_to_depth", data, layout)

    def function(program: Program, x: Any) -> Any:
        x = x if layout == "NCHW" else program(aten.permute.default, x, [0, 3, 1, 2])
        n, c, h, w = x.fake.shape
        b = block_size
        split = program(aten.reshape.default, x, [n, c, h // b, b, w // b, b])
        parts = program(aten.permute.default, split, [0, 3, 5, 1, 2, 4])
        found = program(aten.reshape.default, parts, [n, c * b * b, h // b, w // b])
        return found if layout == "NCHW" else program(aten.permute.default, found, [0, 2, 3, 1])

    return compose("nn.space_to_depth", Labels("space_to_depth", tag="injective"), function, data)


def _plain_layout(name: str, data: Tensor, layout: str) -> None:
    if layout not in ("NCHW", "NHWC") or data.ndim != 4:
        refuse("SM1123", f"topi.nn.{name}: layout {layout!r}", remedy='"NCHW" or "NHWC", of 4 dimensions')
    if not all(isinstance(size, int) for size in data.shape):
        refuse("SM1123", f"topi.nn.{name}: sizes that are not known")


def pixel_shuffle(data: Tensor, upscale_factor: int, name: str = "PixelShuffle") -> Any:
    """Channels as blocks of pixels, in PyTorch's order."""
    return call(
        "nn.pixel_shuffle", aten.pixel_shuffle.default, [data, upscale_factor], Labels(name, tag="injective")
    )


def scale_shift_nchw(Input: Tensor, Scale: Tensor, Shift: Tensor) -> Any:  # noqa: N803
    """``Input * Scale[c] + Shift[c]``."""
    element = lambda b, c, i, j: Input[b, c, i, j] * Scale[c] + Shift[c]  # noqa: E731
    return compute(Input.shape, element, "ScaleShift", "broadcast")


def scale_shift_nhwc(Input: Tensor, Scale: Tensor, Shift: Tensor) -> Any:  # noqa: N803
    """``Input * Scale[c] + Shift[c]``, channels last."""
    element = lambda b, i, j, c: Input[b, i, j, c] * Scale[c] + Shift[c]  # noqa: E731
    return compute(Input.shape, element, "ScaleShift", "broadcast")


def bias_add(data: Tensor, bias: Tensor, axis: int = 1) -> Any:
    """``data + bias[c]``, c the index along an axis."""
    dim = axis % data.ndim
    return compute(data.shape, lambda *i: data(*i) + bias[i[dim]], "T_add", "broadcast")


def upsampling(
    data: Tensor,
    scale_h: float,
    scale_w: float,
    layout: str = "NCHW",
    method: str = "nearest_neighbor",
    align_corners: bool = False,
    output_shape: Any = None,
) -> Any:
    """The image resized: nearest_neighbor, bilinear or bicubic."""
    overloads = {
        "nearest_neighbor": aten.upsample_nearest2d.default,
        "bilinear": aten.upsample_bilinear2d.default,
        "bicubic": aten.upsample_bicubic2d.default,
    }
    _plain_layout("upsampling", data, layout)
    if method not in overloads:
        refuse("SM1123", f"topi.nn.upsampling: method {method!r}", remedy=", ".join(overloads))

    def function(program: Program, x: Any) -> Any:
        x = x if layout == "NCHW" else program(aten.permute.default, x, [0, 3, 1, 2])
        height, width = x.fake.shape[2:]
        size = [int(height * scale_h), int(width * scale_w)] if output_shape is None else list(output_shape)
        more = [] if method == "nearest_neighbor" else [align_corners]
        found = program(overloads[method], x, size, *more)
        return found if layout == "NCHW" else program(aten.permute.default, found, [0, 2, 3, 1])

    return compose("nn.upsampling", Labels("resize", tag="injective"), function, data)


def nll_loss(predictions: Tensor, targets: Tensor, weights: Tensor, reduction: str, ignore_index: int) -> Any:
    """The negative log likelihood of targets."""
    codes = {"none": 0, "mean": 1, "sum": 2}
    if reduction not in codes or predictions.ndim > 2:
        refuse("SM1123", f"topi.nn.nll_loss: reduction {reduction!r} of {predictions.ndim} dimensions")
    at = targets

    def function(program: Program, x: Any, target: Any, weight: Any) -> Any:
        if at.kind is not torch.int64:
            target = program(aten._to_copy.default, target, dtype=torch.int64)
        return program(aten.nll_loss_forward.default, x, target, weight, codes[reduction], ignore_index)[0]

    return compose(
        "nn.nll_loss", Labels("nll_loss", tag="broadcast"), function, predictions, targets, weights
    )


__all__ = [
    *(
        "bias_add",
        "circular_pad",
        "depth_to_space",
        "dilate",
        "flatten",
        "mirror_pad",
        "nll_loss",
        "pad",
        "pixel_shuffle",
    ),
    *("reflect_pad", "replicate_pad"),
    *("scale_shift_nchw", "scale_shift_nhwc", "space_to_depth", "upsampling"),
]
