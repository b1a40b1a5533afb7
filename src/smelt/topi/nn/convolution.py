"""Convolutions of any rank, layout and number of groups, in TVM's form: a padding stage, then one sum."""

from __future__ import annotations

# ruff: noqa: N803  (arguments have the names that TVM gives them)
from collections.abc import Sequence
from typing import Any

from smelt.te.dtypes import kind_of
from smelt.te.errors import refuse
from smelt.te.index import reduce_axis
from smelt.te.reductions import sum as total
from smelt.te.tensor import Tensor, compute
from smelt.te.value import cast
from smelt.topi.nn.layouts import dilate, pad

Sizes = int | Sequence[int]


def several(name: str, value: Sizes, count: int) -> list[int]:
    """One number for each dimension."""
    found = [int(value)] * count if isinstance(value, int) else [int(each) for each in value]
    if len(found) != count:
        refuse("SM1121", f"topi.nn.{name}: {len(found)} numbers for {count} dimensions")
    return found


def pads(
    name: str, padding: Any, kernel: Sequence[Any], stride: Sequence[int]
) -> tuple[list[Any], list[Any]]:
    """The padding before and after each dimension: one number, one each, two each, "VALID" or "SAME"."""
    count = len(kernel)
    if isinstance(padding, str):
        if padding not in ("VALID", "SAME"):
            refuse("SM1123", f"topi.nn.{name}: padding {padding!r}", remedy='"VALID" or "SAME"')
        whole = [0 if padding == "VALID" else size - 1 for size in kernel]
        before = [(each + 1) // 2 for each in whole]
        return before, [each - low for each, low in zip(whole, before)]
    if not isinstance(padding, int) and len(padding) == 2 * count:
        return [int(each) for each in padding[:count]], [int(each) for each in padding[count:]]
    found = several(name, padding, count)
    return found, list(found)


def conv(
    inp: Tensor,
    filt: Tensor,
    stride: Sizes,
    padding: Any,
    dilation: Sizes,
    groups: int,
    data_layout: str,
    kernel_layout: str = "",
    out_dtype: Any = None,
    auto_scheduler_rewritten_layout: Any = None,
    meta_schedule_original_shape: Any = None,
    auto_scheduler_should_rewrite_layout: bool = False,
) -> Any:
    """A convolution: N, C are batch and channels of ``data_layout``, O, I those of ``kernel_layout``."""
    count = inp.ndim - 2
    name = f"{'group_' if groups > 1 else ''}conv{count}d_{data_layout.lower()}"
    places = "".join(letter for letter in data_layout if letter not in "NC")
    if len(data_layout) != inp.ndim or "N" not in data_layout or "C" not in data_layout:
        refuse("SM1123", f"topi.nn.{name}: layout {data_layout!r} of {inp.ndim} dimensions")
    if not kernel_layout:
        first = data_layout.index("C") < data_layout.index(places[0])
        kernel_layout = f"OI{places}" if first else f"{places}IO"
    if sorted(kernel_layout) != sorted(f"OI{places}") or filt.ndim != inp.ndim:
        refuse("SM1123", f"topi.nn.{name}: kernel layout {kernel_layout!r} beside {data_layout!r}")
    kind = inp.kind if out_dtype in (None, "") else kind_of(out_dtype)
    strides, dilations = several(name, stride, count), several(name, dilation, count)
    given = dict(zip(data_layout, inp.shape))
    kernel = dict(zip(kernel_layout, filt.shape))
    channels, filters = given["C"], kernel["O"]
    for what, size in (("channels", channels), ("filters", filters)):
        if isinstance(size, int) and size % groups:
            refuse("SM1121", f"topi.nn.{name}: {size} {what} in {groups} groups")
    if kernel["I"] != channels // groups:
        refuse("SM1121", f"topi.nn.{name}: filters of {kernel['I']} channels, of {channels // groups} given")
    reach = [(kernel[place] - 1) * step + 1 for place, step in zip(places, dilations)]
    before, after = pads(name, padding, reach, strides)
    low, high = dict(zip(places, before)), dict(zip(places, after))
    temp = pad(
        inp, [low.get(x, 0) for x in data_layout], [high.get(x, 0) for x in data_layout], name="pad_temp"
    )
    sizes = {
        place: (given[place] + low[place] + high[place] - span) // step + 1
        for place, span, step in zip(places, reach, strides)
    }
    for place, size in sizes.items():
        if isinstance(size, int) and size <= 0:
            refuse("SM1121", f"topi.nn.{name}: a result of {size} along {place}")
    over = {"C": reduce_axis((0, channels // groups), "rc")}
    over |= {place: reduce_axis((0, kernel[place]), f"r{label}") for place, label in zip(places, "yxz")}

    def element(*index: Any) -> Any:
        at = dict(zip(data_layout, index))
        channel: Any = over["C"]
        if groups > 1:
            channel = at["C"] // (filters // groups) * (channels // groups) + channel
        source = {"N": at["N"], "C": channel}
        for place, step, gap in zip(places, strides, dilations):
            source[place] = at[place] * step + over[place] * gap
        weight = {"O": at["C"], "I": over["C"], **{place: over[place] for place in places}}
        x = cast(temp(*(source[letter] for letter in data_layout)), kind)
        w = cast(filt(*(weight[letter] for letter in kernel_layout)), kind)
        return total(x * w, axis=[over[letter] for letter in data_layout if letter != "N"])

    shape = [{"N": given["N"], "C": filters, **sizes}[letter] for letter in data_layout]
    labels = {"N": "nn", "C": "ff", **dict(zip(places, ("yy", "xx", "zz")))}
    attrs = {"layout_free_placeholders": [filt]} if auto_scheduler_should_rewrite_layout else {}
    return compute(
        shape, element, name, name, attrs, varargs_names=[labels[letter] for letter in data_layout]
    )


def conv1d(
    data: Tensor,
    kernel: Tensor,
    strides: Sizes = 1,
    padding: Any = "VALID",
    dilation: Sizes = 1,
    groups: int = 1,
    data_layout: str = "NCW",
    kernel_layout: str = "",
    out_dtype: Any = None,
) -> Any:
    """A convolution of rows."""
    return conv(data, kernel, strides, padding, dilation, groups, data_layout, kernel_layout, out_dtype)


def conv1d_ncw(
    data: Tensor,
    kernel: Tensor,
    strides: Sizes = 1,
    padding: Any = "VALID",
    dilation: Sizes = 1,
    out_dtype: Any = None,
) -> Any:
    """A convolution of rows, channels first."""
    return conv(data, kernel, strides, padding, dilation, 1, "NCW", "OIW", out_dtype)


def conv1d_nwc(
    data: Tensor,
    kernel: Tensor,
    strides: Sizes = 1,
    padding: Any = "VALID",
    dilation: Sizes = 1,
    out_dtype: Any = None,
) -> Any:
    """A convolution of rows, channels last."""
    return conv(data, kernel, strides, padding, dilation, 1, "NWC", "WIO", out_dtype)


def conv2d(
    input: Tensor,
    filter: Tensor,
    strides: Sizes,
    padding: Any,
    dilation: Sizes,
    data_layout: str = "NCHW",
    kernel_layout: str = "",
    out_dtype: Any = None,
) -> Any:
    """A convolution of images."""
    return conv(input, filter, strides, padding, dilation, 1, data_layout, kernel_layout, out_dtype)


def conv2d_nchw(
    Input: Tensor, Filter: Tensor, stride: Sizes, padding: Any, dilation: Sizes, out_dtype: Any = None
) -> Any:
    """A convolution of images, channels first."""
    return conv(Input, Filter, stride, padding, dilation, 1, "NCHW", "OIHW", out_dtype)


def conv2d_hwcn(
    Input: Tensor, Filter: Tensor, stride: Sizes, padding: Any, dilation: Sizes, out_dtype: Any = None
) -> Any:
    """A convolution of images, the batch last."""
    return conv(Input, Filter, stride, padding, dilation, 1, "HWCN", "HWIO", out_dtype)


def conv2d_nhwc(
    Input: Tensor,
    Filter: Tensor,
    stride: Sizes,
    padding: Any,
    dilation: Sizes,
    out_dtype: Any = "float32",
    auto_scheduler_rewritten_layout: str = "",
    meta_schedule_original_shape: Any = None,
) -> Any:
    """A convolution of images, channels last."""
    return conv(
        Input,
        Filter,
        stride,
        padding,
        dilation,
        1,
        "NHWC",
        "HWIO",
        out_dtype,
        auto_scheduler_should_rewrite_layout=True,
    )


def group_conv2d_nchw(
    Input: Tensor,
    Filter: Tensor,
    stride: Sizes,
    padding: Any,
    dilation: Sizes,
    groups: int,
    out_dtype: Any = None,
) -> Any:
    """A convolution of images whose channels are in groups."""
    return conv(Input, Filter, stride, padding, dilation, groups, "NCHW", "OIHW", out_dtype)


def group_conv2d_nhwc(
    Input: Tensor,
    Filter: Tensor,
    stride: Sizes,
    padding: Any,
    dilation: Sizes,
    groups: int,
    out_dtype: Any = None,
) -> Any:
    """A convolution of images whose channels are in groups, channels last."""
    return conv(Input, Filter, stride, padding, dilation, groups, "NHWC", "HWIO", out_dtype)


def conv3d_ncdhw(
    Input: Tensor,
    Filter: Tensor,
    stride: Sizes,
    padding: Any,
    dilation: Sizes,
    groups: int = 1,
    out_dtype: Any = None,
) -> Any:
    """A convolution of volumes."""
    return conv(Input, Filter, stride, padding, dilation, groups, "NCDHW", "OIDHW", out_dtype)


def conv3d_ndhwc(
    Input: Tensor,
    Filter: Tensor,
    stride: Sizes,
    padding: Any,
    dilation: Sizes,
    groups: int = 1,
    out_dtype: Any = "float32",
) -> Any:
    """A convolution of volumes, channels last."""
    return conv(Input, Filter, stride, padding, dilation, groups, "NDHWC", "DHWIO", out_dtype)


def depthwise_conv2d_nchw(
    Input: Tensor,
    Filter: Tensor,
    stride: Sizes,
    padding: Any,
    dilation: Sizes,
    out_dtype: Any = None,
) -> Any:
    """A depthwise convolution: ``Filter`` is (channel, multiplier, height, width)."""
    kind = Input.kind if out_dtype in (None, "") else kind_of(out_dtype)
    name = "depthwise_conv2d_nchw"
    batch, channels, height, width = Input.shape
    of, multiplier, rows, columns = Filter.shape
    if of != channels:
        refuse("SM1121", f"topi.nn.{name}: filters of {of} channels, of {channels} given")
    (sy, sx), (dy, dx) = several(name, stride, 2), several(name, dilation, 2)
    reach = [(rows - 1) * dy + 1, (columns - 1) * dx + 1]
    before, after = pads(name, padding, reach, [sy, sx])
    temp = pad(Input, [0, 0, *before], [0, 0, *after], name="PaddedInput")
    size = [
        (s + b + a - r) // t + 1 for s, b, a, r, t in zip((height, width), before, after, reach, (sy, sx))
    ]
    y, x = reduce_axis((0, rows), "di"), reduce_axis((0, columns), "dj")

    def element(b: Any, c: Any, i: Any, j: Any) -> Any:
        value = cast(temp[b, c // multiplier, i * sy + y * dy, j * sx + x * dx], kind)
        return total(value * cast(Filter[c // multiplier, c % multiplier, y, x], kind), axis=[y, x])

    return compute((batch, channels * multiplier, *size), element, "DepthwiseConv2d", name)


def conv_transpose(
    name: str,
    inp: Tensor,
    filt: Tensor,
    strides: Sizes,
    padding: Any,
    out_dtype: Any,
    output_padding: Sizes,
    groups: int = 1,
) -> Any:
    """The gradient of a convolution by its input, channels first.

    ``filt`` is (channels of inp, filters of a group, …). A stage inserts zeros between and around the
    elements, then it is one sum.
    """
    kind = inp.kind if out_dtype in (None, "") else kind_of(out_dtype)
    count = inp.ndim - 2
    batch, channels, *given = inp.shape
    of, filters, *kernel = filt.shape
    if of != channels or (isinstance(channels, int) and channels % groups):
        refuse("SM1121", f"topi.nn.{name}: filters of {of} channels, of {channels} in {groups} groups given")
    step, more = several(name, strides, count), several(name, output_padding, count)
    before, after = pads(name, padding, kernel, step)
    low = [size - 1 - side for size, side in zip(kernel, before)]
    high = [size - 1 - side + each for size, side, each in zip(kernel, after, more)]
    if any(isinstance(side, int) and side < 0 for side in (*low, *high)):
        refuse("SM1123", f"topi.nn.{name}: a padding that is larger than the filter")
    spread = dilate(inp, [1, 1, *step], name="data_dilate")
    temp = pad(spread, [0, 0, *low], [0, 0, *high], name="data_pad")
    size = [
        (whole - 1) * each + 1 + first + last - window + 1
        for whole, each, first, last, window in zip(given, step, low, high, kernel)
    ]
    dc = reduce_axis((0, channels // groups), "dc")
    over = [reduce_axis((0, window), f"d{letter}") for window, letter in zip(kernel, "hwd")]

    def element(b: Any, c: Any, *at: Any) -> Any:
        channel = dc if groups == 1 else c // filters * (channels // groups) + dc
        value = temp(b, channel, *(place + d for place, d in zip(at, over)))
        turned = (window - 1 - d for window, d in zip(kernel, over))
        weight = filt(channel, c if groups == 1 else c % filters, *turned)
        return total(cast(value, kind) * cast(weight, kind), axis=[dc, *over])

    labels = ["b", "c", *"hwd"[:count]]
    return compute((batch, filters * groups, *size), element, name, name, varargs_names=labels[2:])


def conv1d_transpose_ncw(
    data: Tensor,
    kernel: Tensor,
    stride: Sizes,
    padding: Any,
    out_dtype: Any = None,
    output_padding: Sizes = 0,
) -> Any:
    """The gradient of a convolution of rows."""
    return conv_transpose("conv1d_transpose_ncw", data, kernel, stride, padding, out_dtype, output_padding)


def conv2d_transpose_nchw(
    Input: Tensor,
    Filter: Tensor,
    strides: Sizes,
    padding: Any,
    out_dtype: Any = None,
    output_padding: Sizes = 0,
) -> Any:
    """The gradient of a convolution of images."""
    return conv_transpose("conv2d_transpose_nchw", Input, Filter, strides, padding, out_dtype, output_padding)


def group_conv2d_transpose_nchw(
    data: Tensor,
    kernel: Tensor,
    stride: Sizes,
    padding: Any,
    out_dtype: Any = None,
    output_padding: Sizes = 0,
    groups: int = 1,
) -> Any:
    """The gradient of a convolution of images whose channels are in groups."""
    name = "group_conv2d_transpose_nchw"
    return conv_transpose(name, data, kernel, stride, padding, out_dtype, output_padding, groups)


def conv3d_transpose_ncdhw(
    Input: Tensor,
    Filter: Tensor,
    strides: Sizes,
    padding: Any,
    out_dtype: Any = None,
    output_padding: Sizes = 0,
) -> Any:
    """The gradient of a convolution of volumes."""
    return conv_transpose(
        "conv3d_transpose_ncdhw", Input, Filter, strides, padding, out_dtype, output_padding
    )


def group_conv1d_ncw(
    data: Tensor,
    kernel: Tensor,
    strides: Sizes = 1,
    padding: Any = "VALID",
    dilation: Sizes = 1,
    groups: int = 1,
    out_dtype: Any = None,
) -> Any:
    """A convolution of rows whose channels are in groups."""
    return conv(data, kernel, strides, padding, dilation, groups, "NCW", "OIW", out_dtype)


def group_conv1d_nwc(
    data: Tensor,
    kernel: Tensor,
    strides: Sizes = 1,
    padding: Any = "VALID",
    dilation: Sizes = 1,
    groups: int = 1,
    out_dtype: Any = None,
) -> Any:
    """A convolution of rows whose channels are in groups, channels last."""
    return conv(data, kernel, strides, padding, dilation, groups, "NWC", "WIO", out_dtype)


__all__ = [
    *("conv", "conv1d", "conv1d_ncw", "conv1d_nwc", "conv1d_transpose_ncw", "conv2d", "conv2d_hwcn"),
    *("conv2d_nchw", "conv2d_nhwc", "conv2d_transpose_nchw", "conv3d_ncdhw", "conv3d_ndhwc"),
    *("conv3d_transpose_ncdhw", "depthwise_conv2d_nchw", "group_conv1d_ncw", "group_conv1d_nwc"),
    *("group_conv2d_nchw", "group_conv2d_nhwc", "group_conv2d_transpose_nchw"),
]
