"""Rearrangement of tensors: ATen's views are stages here."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from sympy import Expr, Integer

from smelt.te.dtypes import kind_of, number
from smelt.te.errors import refuse
from smelt.te.functions import any as any_of
from smelt.te.functions import if_then_else
from smelt.te.index import made
from smelt.te.tensor import Tensor, compute
from smelt.topi.reduction import axes_of
from smelt.topi.rows import Program, call, compose
from smelt.topi.written import Labels

aten = torch.ops.aten


def _injective(name: str) -> Labels:
    return Labels(name, tag="injective")


def _axis(name: str, rank: int, axis: int) -> int:
    (found,) = axes_of(name, rank, axis)
    return found


def broadcast_to(data: Tensor, shape: Sequence[Any]) -> Any:
    """The tensor repeated to a shape."""
    return call(
        "broadcast_to", aten.expand.default, [data, list(shape)], Labels("T_broadcast_to", tag="broadcast")
    )


def expand_dims(a: Tensor, axis: int, num_newaxis: int = 1) -> Any:
    """The tensor with ``num_newaxis`` dimensions of 1 from ``axis`` on."""
    at = _axis("expand_dims", a.ndim + 1, axis)

    def function(program: Program, x: Any) -> Any:
        for _ in range(num_newaxis):
            x = program(aten.unsqueeze.default, x, at)
        return x

    return compose("expand_dims", Labels("T_expand_dims", tag="broadcast"), function, a)


def expand_like(a: Tensor, shape_like: Tensor, axis: Any) -> Any:
    """The tensor repeated along new axes to the shape of another."""
    axes = axes_of("expand_like", shape_like.ndim, axis)

    def function(program: Program, x: Any) -> Any:
        for each in axes if a.ndim != shape_like.ndim else ():
            x = program(aten.unsqueeze.default, x, each)
        return program(aten.expand.default, x, [program.size(size) for size in shape_like.sizes])

    return compose("expand_like", Labels("T_expand_like", tag="broadcast"), function, a)


def transpose(a: Tensor, axes: Sequence[int] | None = None) -> Any:
    """The tensor with its dimensions in another order; reversed by default."""
    order = list(range(a.ndim))[::-1] if axes is None else [int(axis) for axis in axes]
    return call("transpose", aten.permute.default, [a, order], _injective("T_transpose"))


def reshape(a: Tensor, newshape: Sequence[Any]) -> Any:
    """The elements in row-major order in another shape; one size may be -1."""
    return call("reshape", aten.reshape.default, [a, list(newshape)], _injective("T_reshape"))


def squeeze(a: Tensor, axis: Any = None) -> Any:
    """The tensor without dimensions of size 1: all, or those of ``axis``, which must have size 1."""
    axes = (
        [d for d, size in enumerate(a.sizes) if size == 1]
        if axis is None
        else axes_of("squeeze", a.ndim, axis)
    )
    for each in axes:
        if a.sizes[each] != 1:
            refuse("SM1121", f"topi.squeeze: dimension {each} is {a.shape[each]}, not 1")
    return call("squeeze", aten.squeeze.dims, [a, axes], _injective("T_squeeze"))


def flip(a: Tensor, axis: int = 0) -> Any:
    """The tensor with the elements along an axis reversed."""
    return call("flip", aten.flip.default, [a, [_axis("flip", a.ndim, axis)]], _injective("T_flip"))


def concatenate(a_tuple: Sequence[Tensor], axis: int = 0) -> Any:
    """Tensors concatenated along an axis."""
    return call("concatenate", aten.cat.default, [list(a_tuple), axis], _injective("T_concat"))


concat = concatenate


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Any:
    """Tensors stacked along a new axis."""
    return call("stack", aten.stack.default, [list(tensors), axis], _injective("T_stack"))


def split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Parts of a tensor along an axis: a number of equal ones, or those between given positions."""
    dim = _axis("split", ary.ndim, axis)
    size = ary.sizes[dim]
    if isinstance(indices_or_sections, int):
        sections = indices_or_sections
        if sections <= 0 or (size.is_Integer and size % sections):
            refuse("SM1121", f"topi.split: {size} elements in {sections} equal parts")
        part = made(size, torch.int32) // sections
        ends = [part * n for n in range(1, sections)]
        name = "T_split_sections"
    else:
        ends, name = [int(end) for end in indices_or_sections], "T_split"
    bounds = [0, *ends, made(size, torch.int32)]
    return [
        call("split", aten.slice.Tensor, [ary, dim, begin, end], _injective(name))
        for begin, end in itertools.pairwise(bounds)
    ]


def strided_slice(
    a: Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    slice_mode: str = "end",
    assume_inbound: bool = True,
) -> Any:
    """Every ``strides``-th element from ``begin`` to ``end`` along axes, also backwards.

    ``slice_mode`` "size": ``end`` holds numbers of elements.
    """
    dims = (
        list(range(len(begin))) if axes is None else [_axis("strided_slice", a.ndim, axis) for axis in axes]
    )
    steps = list(strides or []) + [1] * (len(dims) - len(strides or []))
    limits = list(end) + [2**31 - 1] * (len(dims) - len(end))

    def function(program: Program, x: Any) -> Any:
        for dim, low, high, step in zip(dims, map(int, begin), limits, map(int, steps)):
            x = _sliced(program, x, dim, low, high, step, slice_mode)
        return x

    name = "T_strided_slice" if axes is None else "T_strided_slice_with_axes"
    return compose("strided_slice", _injective(name), function, a)


def _sliced(program: Program, x: Any, dim: int, low: int, high: Any, step: int, mode: str) -> Any:
    if step == 0:
        refuse("SM1121", "topi.strided_slice: a step of 0")
    if mode == "size":
        high = 2**31 - 1 if int(high) < 0 else low + int(high)
        step = 1
    if step > 0:
        return program(aten.slice.Tensor, x, dim, low, int(high), step)
    size = x.fake.shape[dim]
    if not isinstance(size, int):
        refuse("SM1123", "topi.strided_slice: backwards along a size that is not known")
    taken = range(size)[slice(low, None if int(high) < -size else int(high), step)]
    if not taken:
        return program(aten.slice.Tensor, x, dim, 0, 0)
    forward = program(aten.slice.Tensor, x, dim, taken[-1], taken[0] + 1, -step)
    return program(aten.flip.default, forward, [dim])


def strided_set(a: Tensor, v: Tensor, begin: Sequence[int], end: Sequence[int], strides: Any = None) -> Any:
    """The tensor with a strided slice of it replaced by ``v``."""
    steps = list(strides or [1] * len(begin))
    if len(begin) != 1 and any(step != 1 for step in steps):
        refuse("SM1123", "topi.strided_set: strides along several axes")

    def function(program: Program, x: Any, part: Any) -> Any:
        views = [x]
        for dim in range(len(begin) - 1):
            views.append(
                program(aten.slice.Tensor, views[-1], dim, int(begin[dim]), int(end[dim]), int(steps[dim]))
            )
        for dim in reversed(range(len(begin))):
            place = (dim, int(begin[dim]), int(end[dim]), int(steps[dim]))
            part = program(aten.slice_scatter.default, views[dim], part, *place)
        return part

    return compose("strided_set", _injective("T_strided_set"), function, a, v)


def repeat(a: Tensor, repeats: int, axis: int) -> Any:
    """Each element repeated along an axis."""
    dim = _axis("repeat", a.ndim, axis)

    def function(program: Program, x: Any) -> Any:
        wide = program(aten.unsqueeze.default, x, dim + 1)
        shape = [program.size(size) for size in a.sizes]
        wide = program(aten.expand.default, wide, [*shape[: dim + 1], repeats, *shape[dim + 1 :]])
        size = program.size(a.sizes[dim] * repeats)
        return program(aten.reshape.default, wide, [*shape[:dim], size, *shape[dim + 1 :]])

    return compose("repeat", Labels("T_repeat", tag="broadcast"), function, a)


def tile(a: Tensor, reps: Sequence[int]) -> Any:
    """The tensor repeated along each axis."""
    times = [1] * (a.ndim - len(reps)) + [int(each) for each in reps]
    return call("tile", aten.repeat.default, [a, times], Labels("T_tile", tag="broadcast"))


def take(a: Tensor, indices: Tensor, axis: int | None = None, batch_dims: int = 0, mode: str = "fast") -> Any:
    """Elements at positions along an axis, or among all elements in row-major order.

    Positions out of range raise an IndexError at their use; ``mode`` "clip" and "wrap" bring them into it.
    """
    if batch_dims:
        refuse("SM1123", "topi.take: batch_dims", remedy="topi.gather")
    if mode not in ("fast", "clip", "wrap"):
        refuse("SM1123", f"topi.take: mode {mode!r}", remedy='"fast", "clip" or "wrap"')
    at = indices if indices.kind in (torch.int32, torch.int64) else call(
        "take", aten._to_copy.default, [indices], _injective("T_cast"), dtype=torch.int64
    )  # fmt: skip
    size: Expr = Integer(1)
    for each in a.sizes if axis is None else (a.sizes[_axis("take", a.ndim, axis)],):
        size = size * each

    def function(program: Program, x: Any, at: Any) -> Any:
        count = program.size(size)
        if mode == "clip":
            if not isinstance(count, int):
                refuse("SM1123", "topi.take: mode 'clip' along a size that is not known")
            at = program(aten.clamp.default, at, 0, count - 1)
        elif mode == "wrap":
            at = program(aten.remainder.Scalar, at, count)
        if axis is None:
            flat = program(aten.reshape.default, x, [-1])
            return program(aten.index.Tensor, flat, [at])
        return program(aten.index.Tensor, x, [None] * _axis("take", a.ndim, axis) + [at])

    return compose("take", _injective("T_take"), function, a, at)


def gather(data: Tensor, axis: int, indices: Tensor) -> Any:
    """Elements at positions along an axis, one for each of ``indices``."""
    at = [data, axis, indices]
    if indices.kind is not torch.int64:
        at[2] = call("gather", aten._to_copy.default, [indices], _injective("T_cast"), dtype=torch.int64)
    return call("gather", aten.gather.default, at, _injective("T_gather"))


def gather_nd(a: Tensor, indices: Tensor, batch_dims: int = 0) -> Any:
    """Elements at the positions that the first dimension of ``indices`` holds."""
    if batch_dims:
        refuse("SM1123", "topi.gather_nd: batch_dims")
    count = indices.shape[0]
    if not isinstance(count, int) or count > a.ndim:
        refuse("SM1121", f"topi.gather_nd: {count} positions for {a.ndim} dimensions")

    def function(program: Program, x: Any, at: Any) -> Any:
        if indices.kind not in (torch.int32, torch.int64):
            at = program(aten._to_copy.default, at, dtype=torch.int64)
        return program(aten.index.Tensor, x, [program(aten.select.int, at, 0, n) for n in range(count)])

    return compose("gather_nd", _injective("T_gather_nd"), function, a, indices)


def matmul(a: Tensor, b: Tensor, transp_a: bool = False, transp_b: bool = False) -> Any:
    """The product of two matrices."""

    def function(program: Program, x: Any, y: Any) -> Any:
        x = program(aten.t.default, x) if transp_a else x
        return program(aten.mm.default, x, program(aten.t.default, y) if transp_b else y)

    return compose("matmul", Labels("T_matmul", reduce=["k"], tag="matmul"), function, a, b)


def tensordot(a: Tensor, b: Tensor, axes: Any) -> Any:
    """The sum of products over axes of both: a number of last and first ones, or pairs of lists."""
    if isinstance(axes, int):
        first, second = list(range(a.ndim - axes, a.ndim)), list(range(axes))
    else:
        first, second = (list(each) if isinstance(each, (list, tuple)) else [each] for each in axes)
    keep_a = [d for d in range(a.ndim) if d not in first]
    keep_b = [d for d in range(b.ndim) if d not in second]

    def function(program: Program, x: Any, y: Any) -> Any:
        rows, columns = ([program.size(t.sizes[d]) for d in kept] for t, kept in ((a, keep_a), (b, keep_b)))
        wide, high, reduced = Integer(1), Integer(1), Integer(1)
        for d in keep_a:
            wide = wide * a.sizes[d]
        for d in keep_b:
            high = high * b.sizes[d]
        for d in first:
            reduced = reduced * a.sizes[d]
        shape = [program.size(each) for each in (wide, reduced, high)]
        left = program(aten.reshape.default, program(aten.permute.default, x, [*keep_a, *first]), shape[:2])
        right = program(aten.reshape.default, program(aten.permute.default, y, [*second, *keep_b]), shape[1:])
        return program(aten.reshape.default, program(aten.mm.default, left, right), [*rows, *columns])

    return compose("tensordot", Labels("T_tensordot", reduce=["k"], tag="matmul"), function, a, b)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = "float32") -> Any:
    """Numbers from ``start`` to ``stop`` by ``step``."""
    start, stop = (0, start) if stop is None else (start, stop)
    kind = kind_of(dtype)
    return call("arange", aten.arange.start_step, [start, stop, step], _injective("T_arange"), dtype=kind)


def meshgrid(a_tuple: Sequence[Tensor], indexing: str) -> list[Any]:
    """The coordinates of a grid: the tensors repeated along the axes of the others."""
    if indexing not in ("ij", "xy"):
        refuse("SM1123", f"topi.meshgrid: indexing {indexing!r}", remedy='"ij" or "xy"')
    order = list(range(len(a_tuple)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    shape = [a_tuple[d].sizes[0] if a_tuple[d].ndim else Integer(1) for d in order]

    def one(number: int) -> Any:
        def function(program: Program, x: Any) -> Any:
            view = [1] * len(order)
            view[order.index(number)] = -1
            spread = program(aten.reshape.default, x, view)
            return program(aten.expand.default, spread, [program.size(size) for size in shape])

        return compose("meshgrid", _injective("T_meshgrid"), function, a_tuple[number])

    return [one(number) for number in range(len(a_tuple))]


def full(shape: Sequence[Any], dtype: Any, fill_value: Any) -> Any:
    """A tensor filled with one number."""
    kind = kind_of(dtype)
    value = number(float(fill_value) if isinstance(fill_value, float) else int(fill_value), kind)
    return call("full", aten.full.default, [list(shape), value], Labels("T_full", tag="elemwise"), dtype=kind)


def full_like(x: Tensor, fill_value: Any) -> Any:
    """A tensor filled with one number, with the shape and dtype of another."""
    value = number(float(fill_value) if isinstance(fill_value, float) else int(fill_value), x.kind)
    labels = Labels("T_full_like", tag="elemwise")
    return call("full_like", aten.full.default, [list(x.shape), value], labels, dtype=x.kind)


def eye(n: int, m: int | None = None, k: int = 0, dtype: Any = "float32") -> Any:
    """1 on the k-th diagonal, else 0."""
    one, zero = number(1, kind_of(dtype)), number(0, kind_of(dtype))

    def element(i: Any, j: Any) -> Any:
        from smelt.te.functions import const, select

        return select((j - i).equal(k), const(one, dtype), const(zero, dtype))

    return compute((n, n if m is None else m), element, "T_eye", "elemwise")


def trilu(data: Tensor, k: Any, upper: bool) -> Any:
    """The triangle of the last two dimensions above (or below) the k-th diagonal; 0 elsewhere."""
    overload = aten.triu.default if upper else aten.tril.default
    return call("trilu", overload, [data, int(k)], _injective("trilu"))


def one_hot(indices: Tensor, on_value: Any, off_value: Any, depth: int, axis: int, dtype: Any) -> Any:
    """``on_value`` at the positions that ``indices`` hold along a new axis, else ``off_value``."""
    from smelt.te.functions import const, select

    at = indices.ndim if axis == -1 else _axis("one_hot", indices.ndim + 1, axis)

    def element(*index: Any) -> Any:
        kept = (*index[:at], *index[at + 1 :])
        return select(
            indices(*kept) == index[at], const(plainly(on_value), dtype), const(plainly(off_value), dtype)
        )

    shape = [*indices.shape[:at], depth, *indices.shape[at:]]
    names = [f"ax{d}" for d in range(len(shape))]
    return compute(shape, element, "T_one_hot", "injective", varargs_names=names)


def plainly(x: Any) -> Any:
    """The number of a constant of te."""
    return getattr(x, "value", x)


def sequence_mask(data: Tensor, valid_length: Tensor, mask_value: Any = 0, axis: int = 0) -> Any:
    """The tensor with ``mask_value`` from ``valid_length`` on, along axis 0 or 1; the other is the batch."""
    if axis not in (0, 1) or data.ndim < 2:
        refuse("SM1121", "topi.sequence_mask: axis 0 or 1 of at least 2 dimensions")
    from smelt.te.functions import const

    def element(*index: Any) -> Any:
        inside = valid_length[index[1 - axis]] > index[axis]
        return if_then_else(inside, data(*index), const(plainly(mask_value), data.dtype))

    names = [f"ax{d}" for d in range(data.ndim)]
    return compute(data.shape, element, "T_sequence_mask", "injective", varargs_names=names)


def reverse_sequence(a: Tensor, seq_lengths: Tensor, seq_axis: int = 1, batch_axis: int = 0) -> Any:
    """The first ``seq_lengths`` elements along an axis reversed, for each element of the batch."""
    from smelt.te.functions import select

    def element(*index: Any) -> Any:
        length = seq_lengths[index[batch_axis]]
        turned = select(
            any_of(index[seq_axis] >= length, length <= 1), index[seq_axis], length - 1 - index[seq_axis]
        )
        return a(*index[:seq_axis], turned, *index[seq_axis + 1 :])

    names = [f"ax{d}" for d in range(a.ndim)]
    return compute(a.shape, element, "T_reverse_sequence", "injective", varargs_names=names)


def shape(array: Tensor, dtype: Any = "int32") -> Any:
    """The sizes of a tensor, as a tensor."""
    from smelt.te.functions import cast, select

    def element(i: Any) -> Any:
        found = cast(dtype, made(array.sizes[-1], torch.int64))
        for dim in reversed(range(array.ndim - 1)):
            found = select(i.equal(dim), cast(dtype, made(array.sizes[dim], torch.int64)), found)
        return found

    return compute((array.ndim,), element, "T_shape", "injective")


def layout_transform(array: Tensor, src_layout: str, dst_layout: str, schedule_rule: str = "None") -> Any:
    """The tensor with permuted dimensions: ``"NCHW"`` to ``"NHWC"``, of whole dimensions."""
    if sorted(src_layout) != sorted(dst_layout) or not src_layout.isalpha() or len(src_layout) != array.ndim:
        refuse(
            "SM1123",
            f"topi.layout_transform: {src_layout} to {dst_layout}",
            remedy="a permutation of letters",
        )
    order = [src_layout.index(letter) for letter in dst_layout]
    return call("layout_transform", aten.permute.default, [array, order], _injective("T_layout_trans"))


def cumsum(data: Tensor, axis: int | None = None, dtype: Any = None, exclusive: Any = None) -> Any:
    """The cumulative sums along an axis: each is a sum over the elements before it."""
    from smelt.te.functions import cast
    from smelt.te.index import reduce_axis
    from smelt.te.reductions import sum as total

    if exclusive:
        refuse("SM1123", "topi.cumsum: exclusive")
    if axis is None:
        data, axis = reshape(data, [-1]), 0
    dim = _axis("cumsum", data.ndim, axis)
    kind = data.dtype if dtype is None else dtype
    k = reduce_axis((0, data.shape[dim]), "k")

    def element(*index: Any) -> Any:
        value = cast(kind, data(*index[:dim], k, *index[dim + 1 :]))
        return total(value, axis=k, where=k <= index[dim])

    names = [f"ax{d}" for d in range(data.ndim)]
    return compute(data.shape, element, "cumsum", varargs_names=names)


__all__ = [
    *(
        "arange",
        "broadcast_to",
        "concat",
        "concatenate",
        "cumsum",
        "expand_dims",
        "expand_like",
        "eye",
        "flip",
    ),
    *(
        "full",
        "full_like",
        "gather",
        "gather_nd",
        "layout_transform",
        "matmul",
        "meshgrid",
        "one_hot",
        "repeat",
    ),
    *("reshape", "reverse_sequence", "sequence_mask", "shape", "split", "squeeze", "stack", "strided_set"),
    *("strided_slice", "take", "tensordot", "tile", "transpose", "trilu"),
]
