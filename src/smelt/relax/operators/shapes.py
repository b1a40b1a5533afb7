"""Operators that move elements (reshapes, slices, gathers, scatters), and operators that create tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sympy import Integer
from torch import Tensor

from smelt.nest.primitives import layouts
from smelt.relax.operators.table import aten, operator
from smelt.relax.types import RelaxError, torch_dtype
from smelt.symbolic import loop_var
from smelt.symbolic.expr import evaluate_on
from smelt.tir.maps import IndexMap

Axes = int | Sequence[int] | None


def axes_of(axis: Axes, rank: int) -> list[int]:
    """Dimensions as a list; all if None."""
    if axis is None:
        return list(range(rank))
    return [int(axis)] if isinstance(axis, int) else [int(each) for each in axis]


@operator("permute_dims", legal="transpose")
def permute_dims(x: Tensor, /, axes: Sequence[int] | None = None) -> Tensor:
    return torch.permute(x, list(reversed(range(x.dim()))) if axes is None else [int(each) for each in axes])


@operator("reshape")
def reshape(x: Tensor, shape: Sequence[int], /) -> Tensor:
    """A size of -1 is inferred from the others, a size of 0 is copied."""
    sizes = [
        x.shape[dim] if isinstance(size, int) and size == 0 and x.numel() else size
        for dim, size in enumerate(shape)
    ]
    return torch.reshape(x, sizes)


@operator("flatten")
def flatten(x: Tensor, /) -> Tensor:
    return torch.reshape(x, [-1])


@operator("nn.batch_flatten")
def batch_flatten(data: Tensor, /) -> Tensor:
    return torch.reshape(data, [data.shape[0], -1])


@operator("broadcast_to")
def broadcast_to(x: Tensor, shape: Sequence[int], /) -> Tensor:
    return x.expand(list(shape))


@operator("expand_dims")
def expand_dims(x: Tensor, /, axis: int | Sequence[int]) -> Tensor:
    axes = axes_of(axis, 0)
    rank = x.dim() + len(axes)
    for each in sorted(each % rank for each in axes):
        x = torch.unsqueeze(x, each)
    return x


@operator("squeeze")
def squeeze(x: Tensor, /, axis: Axes = None) -> Tensor:
    if axis is None:
        return torch.squeeze(x)
    return torch.squeeze(x, tuple(axes_of(axis, x.dim())))


@operator("concat", legal="concatenate")
def concat(tensors: Sequence[Tensor], /, axis: int | None = 0) -> Tensor:
    if axis is None:
        return torch.cat([each.reshape(-1) for each in tensors])
    return torch.cat(list(tensors), int(axis))


@operator("stack")
def stack(tensors: Sequence[Tensor], /, axis: int = 0) -> Tensor:
    return torch.stack(list(tensors), axis)


@operator("split")
def split(x: Tensor, /, indices_or_sections: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    size = x.shape[axis]
    if isinstance(indices_or_sections, int):
        step = -(-size // indices_or_sections)
        cuts = [step * each for each in range(1, indices_or_sections)]
    else:
        cuts = [int(each) for each in indices_or_sections]
    ends = [*cuts, size]
    return tuple(torch.narrow(x, axis, a, b - a) for a, b in zip([0, *cuts], ends))


@operator("repeat")
def repeat(data: Tensor, /, repeats: int, axis: int | None = None) -> Tensor:
    if axis is None:
        data, axis = data.reshape(-1), 0
    axis %= data.dim()
    wide = data.unsqueeze(axis + 1)
    shape = list(wide.shape)
    shape[axis + 1] = repeats
    return wide.expand(shape).reshape(
        [*data.shape[:axis], data.shape[axis] * repeats, *data.shape[axis + 1 :]]
    )


@operator("tile")
def tile(data: Tensor, /, repeats: int | Sequence[int]) -> Tensor:
    return torch.tile(data, (repeats,) if isinstance(repeats, int) else tuple(repeats))


@operator("flip")
def flip(data: Tensor, /, axis: int) -> Tensor:
    return torch.flip(data, [axis])


@operator("reverse_sequence")
def reverse_sequence(data: Tensor, seq_lengths: Tensor, /, seq_axis: int = 1, batch_axis: int = 0) -> Tensor:
    steps = torch.arange(data.shape[seq_axis])
    lengths = seq_lengths.to(torch.int64).reshape(-1, 1)
    places = torch.where(steps < lengths, lengths - 1 - steps, steps)
    shape = [1] * data.dim()
    shape[batch_axis], shape[seq_axis] = data.shape[batch_axis], data.shape[seq_axis]
    if batch_axis > seq_axis:
        places = places.t()
    return torch.gather(data, seq_axis, places.reshape(shape).expand(data.shape))


@operator("gather_elements")
def gather_elements(data: Tensor, indices: Tensor, /, axis: int = 0) -> Tensor:
    return torch.gather(data, axis, _positions(indices, data.shape[axis]))


@operator("gather_nd")
def gather_nd(data: Tensor, indices: Tensor, /, batch_dims: int = 0) -> Tensor:
    depth = indices.shape[-1]
    places: list[Tensor] = []
    for dim in range(batch_dims):
        shape = [1] * (indices.dim() - 1)
        shape[dim] = data.shape[dim]
        places.append(torch.arange(data.shape[dim]).reshape(shape))
    places += [_positions(indices.select(-1, k), data.shape[batch_dims + k]) for k in range(depth)]
    return data[tuple(places)]


@operator("index_tensor")
def index_tensor(data: Tensor, indices: Sequence[Tensor], /) -> Tensor:
    return data[tuple(indices)]


@operator("index_put")
def index_put(data: Tensor, indices: Any, values: Tensor, /, accumulate: bool = False) -> Tensor:
    places = [indices] if isinstance(indices, Tensor) else list(indices)
    return torch.index_put(data, places, values, accumulate)


@operator("meshgrid")
def meshgrid(tensors: Sequence[Tensor], /, indexing: str | None = "ij") -> tuple[Tensor, ...]:
    return tuple(torch.meshgrid(*tensors, indexing=indexing or "ij"))


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin", "mean": "mean"}


@operator("scatter_elements")
def scatter_elements(
    data: Tensor, indices: Tensor, updates: Tensor, /, axis: int = 0, reduction: str = "update"
) -> Tensor:
    places = _positions(indices, data.shape[axis])
    if reduction == "update":
        return torch.scatter(data, axis, places, updates)
    return torch.scatter_reduce(data, axis, places, updates, _REDUCTIONS[reduction])


@operator("scatter_nd")
def scatter_nd(data: Tensor, indices: Tensor, updates: Tensor, /, reduction: str = "update") -> Tensor:
    depth = indices.shape[-1]
    places = tuple(_positions(indices.select(-1, k), data.shape[k]) for k in range(depth))
    if reduction in ("update", "add"):
        return torch.index_put(data, places, updates, reduction == "add")
    if depth != 1 or reduction not in _REDUCTIONS:
        raise NotImplementedError(f"reduction {reduction!r} of several dimensions")
    shape = [updates.shape[0], *[1] * (data.dim() - 1)]
    return torch.scatter_reduce(
        data, 0, places[0].reshape(shape).expand(updates.shape), updates, _REDUCTIONS[reduction]
    )


@operator("layout_transform", legal="te_layout_transform")
def layout_transform(
    x: Tensor, /, index_map: IndexMap, pad_value: float | None = None, axis_separators: Any = None
) -> Tensor:
    """Element ``i`` moves to ``index_map(*i)``; positions without a source are ``pad_value``, or 0."""
    axes, sizes = ([loop_var(f"{name}{dim}") for dim in range(x.dim())] for name in ("axis", "size"))
    extents = [Integer(size) if isinstance(size, int) else var for size, var in zip(x.shape, sizes)]
    spans = {axis: (Integer(0), extent - 1) for axis, extent in zip(axes, extents)}
    known = dict(zip(sizes, x.shape))
    made = layouts.shape_of(layouts.mapped(index_map, axes), spans, "layout_transform")
    shape = [evaluate_on(each, known) for each in made]
    ones = [1] * x.dim()
    own = [
        torch.arange(size).reshape([*ones[:dim], -1, *ones[dim + 1 :]]) for dim, size in enumerate(x.shape)
    ]
    return torch.index_put(torch.full(shape, pad_value or 0, dtype=x.dtype), list(index_map(*own)), x)


@operator("slice_scatter")
def slice_scatter(
    input_tensor: Tensor, src: Tensor, /, start: int, end: int, step: int, axis: int = 0
) -> Tensor:
    return torch.slice_scatter(input_tensor, src, axis, start, end, step)


@operator("one_hot")
def one_hot(indices: Tensor, on_value: Any, off_value: Any, /, depth: int, axis: int = -1) -> Tensor:
    axis %= indices.dim() + 1
    shape = [1] * (indices.dim() + 1)
    shape[axis] = depth
    hot = indices.unsqueeze(axis) == torch.arange(depth).reshape(shape)
    dtype = torch.float32 if isinstance(on_value, float) else torch.int64
    on, off = (
        each if isinstance(each, Tensor) else torch.full((), each, dtype=dtype)
        for each in (on_value, off_value)
    )
    return torch.where(hot, on, off)


def _positions(indices: Tensor, size: Any) -> Tensor:
    """Indices as ATen takes them: negative ones count from the end."""
    wide = indices.to(torch.int64)
    return torch.where(wide < 0, wide + size, wide)


@operator("take")
def take(x: Tensor, indices: Any, /, axis: int | None = None, mode: str = "fast") -> Tensor:
    """``fast`` assumes indices in range; ``clip`` and ``wrap`` bring them in; ``nan`` marks the others."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    if not isinstance(indices, Tensor):
        return torch.select(x, axis, indices)
    size, wide = x.shape[axis], indices.to(torch.int64)
    if mode == "clip":
        wide = torch.clamp(wide, 0, size - 1)
    elif mode == "wrap":
        wide = torch.remainder(wide, size)
    elif mode == "nan":
        outside = (wide < -size) | (wide >= size)
        wide = torch.where(outside, 0, wide)
    wide = torch.where(wide < 0, wide + size, wide)
    axis %= x.dim()
    found = torch.index_select(x, axis, wide.reshape(-1))
    found = found.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])
    if mode == "nan":
        shape = [*[1] * axis, *indices.shape, *[1] * (x.dim() - axis - 1)]
        found = torch.where(outside.reshape(shape), float("nan"), found)
    return found


@operator("strided_slice")
def strided_slice(
    x: Tensor,
    axes: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    strides: Any = None,
    /,
    assume_inbound: bool = False,
) -> Tensor:
    """Bounds and strides may be negative, as in a Python slice."""
    steps = [1] * len(axes) if strides is None else list(strides)
    for axis, first, last, step in zip(axes, begin, end, steps):
        if step > 0:
            x = aten.slice.Tensor(x, axis, first, last, step)
            continue
        places = range(*slice(first, last, step).indices(int(x.shape[axis])))
        x = torch.index_select(x, axis, torch.arange(places.start, places.start + step * len(places), step))
    return x


def _number(value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise RelaxError(
            "SM1304", "a fill value that is no single number", remedy="give a 0-dimensional constant"
        )
    return value


def _filled(value: Any, dtype: str | None, x: Tensor | None = None, shape: Sequence[int] = ()) -> Tensor:
    value = _number(value)
    of = value.dtype if isinstance(value, Tensor) else None
    wanted = torch_dtype(dtype) if dtype else of
    sizes = list(shape if x is None else x.shape)
    if isinstance(value, Tensor):
        return value.reshape([]).to(wanted).expand(sizes).clone()
    return torch.full(sizes, value, dtype=wanted)


@operator("full", numbers=True)
def full(shape: Sequence[int], fill_value: Any, /, dtype: str | None = None) -> Tensor:
    return _filled(fill_value, dtype, None, shape)


@operator("full_like", legal="full", numbers=True)
def full_like(x: Tensor, fill_value: Any, /, dtype: str | None = None) -> Tensor:
    return _filled(fill_value, dtype or str(x.dtype), x)


@operator("ones")
def ones(shape: Sequence[int], /, dtype: str) -> Tensor:
    return torch.full(list(shape), 1, dtype=torch_dtype(dtype))


@operator("ones_like", legal="ones")
def ones_like(x: Tensor, /, dtype: str | None = None) -> Tensor:
    return torch.full(x.shape, 1, dtype=torch_dtype(dtype) if dtype else x.dtype)


@operator("zeros")
def zeros(shape: Sequence[int], /, dtype: str) -> Tensor:
    return torch.full(list(shape), 0, dtype=torch_dtype(dtype))


@operator("zeros_like", legal="zeros")
def zeros_like(x: Tensor, /, dtype: str | None = None) -> Tensor:
    return torch.full(x.shape, 0, dtype=torch_dtype(dtype) if dtype else x.dtype)


def _eye(rows: Any, columns: Any, k: Any, dtype: torch.dtype) -> Tensor:
    down = torch.arange(rows).reshape(-1, 1)
    return (torch.arange(columns) - down == k).to(dtype)


@operator("eye")
def eye(n: Any, m: Any = None, k: Any = 0, /, dtype: str = "float32") -> Tensor:
    return _eye(n, n if m is None else m, k, torch_dtype(dtype))


@operator("eye_like")
def eye_like(x: Tensor, k: Any = 0, /, dtype: str | None = None) -> Tensor:
    return _eye(x.shape[0], x.shape[1], k, torch_dtype(dtype) if dtype else x.dtype)


@operator("arange")
def arange(start: Any, end: Any = None, step: Any = 1, /, dtype: str | None = None) -> Tensor:
    if end is None:
        start, end = 0, start
    floats = any(isinstance(each, float) for each in (start, end, step))
    wanted = torch_dtype(dtype) if dtype else (torch.float32 if floats else torch.int64)
    return torch.arange(start, end, step, dtype=wanted)


@operator("hamming_window")
def hamming_window(
    window_size: int, periodic: bool, alpha: float, beta: float, /, dtype: str = "float32"
) -> Tensor:
    return torch.hamming_window(window_size, bool(periodic), alpha, beta, dtype=torch_dtype(dtype))


@operator("tril")
def tril(x: Tensor, k: Any = 0, /) -> Tensor:
    return aten.tril.default(x, k)


@operator("triu")
def triu(x: Tensor, k: Any = 0, /) -> Tensor:
    return aten.triu.default(x, k)


def _summed(data: Tensor, shape: Sequence[int]) -> Tensor:
    extra = data.dim() - len(shape)
    axes = [*range(extra), *[d + extra for d, s in enumerate(shape) if s == 1 and data.shape[d + extra] != 1]]
    return (torch.sum(data, axes, True) if axes else data).reshape(list(shape))


@operator("collapse_sum_like", legal="collapse_sum")
def collapse_sum_like(data: Tensor, collapse_target: Tensor, /) -> Tensor:
    return _summed(data, collapse_target.shape)


@operator("collapse_sum_to", legal="collapse_sum")
def collapse_sum_to(data: Tensor, shape: Sequence[int], /) -> Tensor:
    return _summed(data, shape)


@operator("shape_of")
def shape_of(expr: Tensor, /) -> tuple[Any, ...]:
    return tuple(expr.shape)


@operator("shape_to_tensor")
def shape_to_tensor(expr: Sequence[Any], /) -> Tensor:
    return torch.stack([torch.full((), each, dtype=torch.int64) for each in expr])
