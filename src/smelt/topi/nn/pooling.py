"""Pooling, in TVM's form: a padding stage, then one reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.loops.reductions import identity
from smelt.te import functions as te
from smelt.te import reductions
from smelt.te.errors import refuse
from smelt.te.index import reduce_axis
from smelt.te.tensor import Tensor, compute
from smelt.te.value import Number, cast
from smelt.topi.nn.convolution import Sizes, several
from smelt.topi.nn.layouts import pad


def pool(
    data: Tensor,
    kernel: Sizes,
    stride: Sizes,
    dilation: Sizes,
    padding: Sequence[int],
    pool_type: str,
    ceil_mode: bool,
    layout: str,
    count_include_pad: bool,
) -> Any:
    """The maximum or mean of windows, along the dimensions other than N and C."""
    places = places_of(layout)
    count, name = len(places), f"pool{len(places)}d"
    _known(name, data, layout, pool_type)
    size, step, gap = (several(name, each, count) for each in (kernel, stride, dilation))
    sides = [int(each) for each in padding]
    sides = sides * 2 if len(sides) == count else sides
    if len(sides) != 2 * count:
        refuse("SM1121", f"topi.nn.{name}: {len(sides)} paddings for {count} dimensions")
    before, after = sides[:count], sides[count:]
    shape, more = list(data.shape), []
    for at, d in enumerate(places):
        reach = (size[at] - 1) * gap[at] + 1
        whole = data.shape[d] + before[at] + after[at] - reach
        out = (whole + step[at] - 1) // step[at] + 1 if ceil_mode else whole // step[at] + 1
        # as in PyTorch, the last window begins inside of the input, or before it
        if ceil_mode and isinstance(out, int) and (out - 1) * step[at] >= data.shape[d] + before[at]:
            out -= 1
        if isinstance(out, int) and out <= 0:
            refuse("SM1121", f"topi.nn.{name}: a result of {out} along {layout[d]}")
        shape[d] = out
        more.append((out - 1) * step[at] + reach - data.shape[d] - before[at] if ceil_mode else after[at])
    low, high = [0] * data.ndim, [0] * data.ndim
    for at, d in enumerate(places):
        low[d], high[d] = (
            before[at],
            reductions.max(more[at], 0) if not isinstance(more[at], int) else max(more[at], 0),
        )
    fill = Number(identity("max", data.kind), data.kind) if pool_type == "max" else Number(0, data.kind)
    padded = any(low) or any(not isinstance(each, int) or each for each in high)
    temp = pad(data, low, high, fill, name="pad_temp") if padded else data
    over = [reduce_axis((0, each), f"rv{at}") for at, each in enumerate(size)]

    def source(index: Sequence[Any]) -> list[Any]:
        at = list(index)
        for number, d in enumerate(places):
            at[d] = index[d] * step[number] + over[number] * gap[number]
        return at

    labels = [f"ax{d}" for d in range(data.ndim)]
    if pool_type == "max":
        element = lambda *i: reductions.max(temp(*source(i)), axis=over)  # noqa: E731
        return compute(shape, element, "pool_max", "pool_max", varargs_names=labels)
    element = lambda *i: reductions.sum(temp(*source(i)), axis=over)  # noqa: E731
    added = compute(shape, element, "pool_sum", "pool_sum", varargs_names=labels)

    def mean(*index: Any) -> Any:
        elements: Any = 1
        for number, d in enumerate(places):
            begin = index[d] * step[number] - before[number]
            end = data.shape[d] + (after[number] if count_include_pad else 0)
            first = begin if count_include_pad else _at_least(begin, 0, gap[number])
            reach = begin + (size[number] - 1) * gap[number] + 1
            last = (
                reductions.min(reach, end)
                if isinstance(end, int) or ceil_mode or not count_include_pad
                else reach
            )
            elements = elements * ((last - first + gap[number] - 1) // gap[number])
        divisor = elements if isinstance(elements, (int, float)) else cast(elements, data.kind)
        return added(*index) / divisor if data.kind.is_floating_point else te.div(added(*index), divisor)

    return compute(shape, mean, "pool_avg", "elemwise", varargs_names=labels)


def _at_least(begin: Any, low: int, gap: int) -> Any:
    """The first position of a window that is not before ``low``."""
    if gap == 1:
        return reductions.max(begin, low)
    return begin + reductions.max((low - begin + gap - 1) // gap, 0) * gap


def places_of(layout: str) -> list[int]:
    """The pooled dimensions of a layout: whole ones, neither N nor C.

    >>> places_of("NCHW"), places_of("NHWC"), places_of("NCHW16c")
    ([2, 3], [1, 2], [2, 3])
    """
    letters = [letter for letter in layout if letter.isalpha()]
    return [d for d, letter in enumerate(letters) if letter.isupper() and letter not in "NC"]


def _known(name: str, data: Tensor, layout: str, pool_type: str) -> None:
    letters = [letter for letter in layout if letter.isalpha()]
    if (
        len(letters) != data.ndim
        or "C" not in letters
        or any(each not in "nc" for each in letters if each.islower())
    ):
        refuse("SM1123", f"topi.nn.{name}: layout {layout!r} of {data.ndim} dimensions")
    if pool_type not in ("max", "avg"):
        refuse("SM1123", f"topi.nn.{name}: pool_type {pool_type!r}", remedy='"max" or "avg"')


def pool1d(
    data: Tensor,
    kernel: Sizes,
    stride: Sizes,
    dilation: Sizes,
    padding: Sequence[int],
    pool_type: str,
    ceil_mode: bool = False,
    layout: str = "NCW",
    count_include_pad: bool = True,
) -> Any:
    """Pooling of rows."""
    return pool(data, kernel, stride, dilation, padding, pool_type, ceil_mode, layout, count_include_pad)


def pool2d(
    data: Tensor,
    kernel: Sizes,
    stride: Sizes,
    dilation: Sizes,
    padding: Sequence[int],
    pool_type: str,
    ceil_mode: bool = False,
    layout: str = "NCHW",
    count_include_pad: bool = True,
) -> Any:
    """Pooling of images."""
    return pool(data, kernel, stride, dilation, padding, pool_type, ceil_mode, layout, count_include_pad)


def pool3d(
    data: Tensor,
    kernel: Sizes,
    stride: Sizes,
    dilation: Sizes,
    padding: Sequence[int],
    pool_type: str,
    ceil_mode: bool = False,
    layout: str = "NCDHW",
    count_include_pad: bool = True,
) -> Any:
    """Pooling of volumes."""
    return pool(data, kernel, stride, dilation, padding, pool_type, ceil_mode, layout, count_include_pad)


def _adaptive(data: Tensor, output_size: Sizes, pool_type: str, layout: str) -> Any:
    places = places_of(layout)
    name = f"adaptive_pool{len(places)}d"
    _known(name, data, layout, pool_type)
    sizes = several(name, output_size, len(places))
    shape, over = list(data.shape), []
    for number, (d, out) in enumerate(zip(places, sizes)):
        size = data.shape[d]
        if not isinstance(size, int):
            refuse("SM1123", f"topi.nn.{name}: sizes that are not known")
        longest = max(((i + 1) * size + out - 1) // out - i * size // out for i in range(out))
        shape[d] = out
        over.append(reduce_axis((0, longest), f"rv{number}"))

    def window(index: Sequence[Any], number: int) -> tuple[Any, Any]:
        d, out = places[number], sizes[number]
        size = data.shape[d]
        begin = index[d] * size // out
        return begin, ((index[d] + 1) * size + out - 1) // out - begin

    def reduced(kind: Any, nothing: Number) -> Any:
        def element(*index: Any) -> Any:
            at, inside = list(index), []
            for number, d in enumerate(places):
                begin, length = window(index, number)
                at[d] = begin + over[number]
                inside.append(over[number] < length)
                inside.append(at[d] < data.shape[d])
            return kind(te.if_then_else(te.all(*inside), data(*at), nothing), axis=over)

        return element

    labels = [f"ax{d}" for d in range(data.ndim)]
    if pool_type == "max":
        element = reduced(reductions.max, Number(identity("max", data.kind), data.kind))
        return compute(shape, element, "adaptive_pool_max", "adaptive_pool_max", varargs_names=labels)
    added = compute(
        shape, reduced(reductions.sum, Number(0, data.kind)), "adaptive_pool_sum", varargs_names=labels
    )

    def mean(*index: Any) -> Any:
        elements: Any = 1
        for number in range(len(places)):
            elements = elements * window(index, number)[1]
        return te.div(added(*index), te.cast(data.dtype, elements))

    return compute(shape, mean, "adaptive_pool_avg", "elemwise", varargs_names=labels)


def adaptive_pool(data: Tensor, output_size: Sizes, pool_type: str, layout: str = "NCHW") -> Any:
    """Pooling of images to a size."""
    return _adaptive(data, output_size, pool_type, layout)


def adaptive_pool1d(data: Tensor, output_size: Sizes, pool_type: str, layout: str = "NCW") -> Any:
    """Pooling of rows to a size."""
    return _adaptive(data, output_size, pool_type, layout)


def adaptive_pool3d(data: Tensor, output_size: Sizes, pool_type: str, layout: str = "NCDHW") -> Any:
    """Pooling of volumes to a size."""
    return _adaptive(data, output_size, pool_type, layout)


def global_pool(data: Tensor, pool_type: str, layout: str = "NCHW") -> Any:
    """Pooling of whole images."""
    return _adaptive(data, 1, pool_type, layout)


__all__ = ["adaptive_pool", "adaptive_pool1d", "adaptive_pool3d", "global_pool", "pool1d", "pool2d", "pool3d"]
