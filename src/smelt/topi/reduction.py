"""Reductions over axes of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.te.errors import refuse
from smelt.te.tensor import Tensor
from smelt.topi.rows import Program, compose
from smelt.topi.written import Labels

aten = torch.ops.aten
Axis = int | Sequence[int] | None


def axes_of(name: str, rank: int, axis: Axis) -> list[int]:
    """The axes in ascending order, counted from the front; None: all.

    >>> axes_of("sum", 3, (-1, 0)), axes_of("sum", 2, None)
    ([0, 2], [0, 1])
    """
    if axis is None:
        return list(range(rank))
    given = [int(a) for a in (axis if isinstance(axis, (tuple, list)) else [axis])]  # type: ignore[arg-type,list-item]
    for each in given:
        if not -rank <= each < rank:
            refuse("SM1121", f"topi.{name}: axis {each} of {rank} dimensions")
    return sorted({each % rank for each in given})


def _labels(data: Tensor, axes: Sequence[int], tag: str = "comm_reduce") -> Labels:
    return Labels(f"{data.name}_red", reduce=[f"k{axis}" for axis in axes], tag=tag)


def _reduced(name: str, overload: Any, data: Tensor, axis: Axis, keepdims: bool, **options: Any) -> Any:
    axes = axes_of(name, data.ndim, axis)

    def function(program: Program, x: Any) -> Any:
        return program(overload, x, axes, keepdims, **options) if axes else x

    return compose(name, _labels(data, axes), function, data)


def sum(data: Tensor, axis: Axis = None, keepdims: bool = False) -> Any:
    """The sum over axes, in the tensor's dtype."""
    kind = torch.int32 if data.kind is torch.bool else data.kind
    return _reduced("sum", aten.sum.dim_IntList, data, axis, keepdims, dtype=kind)


def max(data: Tensor, axis: Axis = None, keepdims: bool = False) -> Any:
    """The maximum over axes."""
    return _reduced("max", aten.amax.default, data, axis, keepdims)


def min(data: Tensor, axis: Axis = None, keepdims: bool = False) -> Any:
    """The minimum over axes."""
    return _reduced("min", aten.amin.default, data, axis, keepdims)


def any(data: Tensor, axis: Axis = None, keepdims: bool = False) -> Any:
    """Whether an element over axes is not 0."""
    return _reduced("any", aten.any.dims, data, axis, keepdims)


def all(data: Tensor, axis: Axis = None, keepdims: bool = False) -> Any:
    """Whether no element over axes is 0."""
    return _reduced("all", aten.all.dims, data, axis, keepdims)


def _at_one_axis(data: Tensor, axes: Sequence[int], program: Program, x: Any) -> tuple[Any, Any]:
    """The tensor with the axes merged as its last dimension, and the result's shape."""
    kept = [dim for dim in range(data.ndim) if dim not in axes]
    moved = program(aten.permute.default, x, [*kept, *axes])
    shape = [program.size(data.sizes[dim]) for dim in kept]
    return program(aten.reshape.default, moved, [*shape, -1]), shape


def prod(data: Tensor, axis: Axis = None, keepdims: bool = False) -> Any:
    """The product over axes, in the dtype of the tensor."""
    axes = axes_of("prod", data.ndim, axis)
    kind = torch.int32 if data.kind is torch.bool else data.kind

    def function(program: Program, x: Any) -> Any:
        if not axes:
            return x
        if len(axes) == 1:
            return program(aten.prod.dim_int, x, axes[0], keepdims, dtype=kind)
        flat, _ = _at_one_axis(data, axes, program, x)
        found = program(aten.prod.dim_int, flat, -1, False, dtype=kind)
        for each in axes if keepdims else ():
            found = program(aten.unsqueeze.default, found, each)
        return found

    return compose("prod", _labels(data, axes), function, data)


def _position(name: str, data: Tensor, axis: Axis, keepdims: bool, last: bool) -> Any:
    axes = axes_of(name, data.ndim, axis)
    if last:
        refuse("SM1123", f"topi.{name}: select_last_index", remedy="flip the tensor along its axis")
    if not axes:
        refuse("SM1121", f"topi.{name}: a tensor of no dimensions")
    overload = getattr(aten, name).default

    def function(program: Program, x: Any) -> Any:
        if len(axes) == 1:
            return program(overload, x, axes[0], keepdims)
        flat, _ = _at_one_axis(data, axes, program, x)
        found = program(overload, flat, -1, False)
        for each in axes if keepdims else ():
            found = program(aten.unsqueeze.default, found, each)
        return found

    return compose(name, _labels(data, axes, "comm_reduce_idx"), function, data)


def argmax(data: Tensor, axis: Axis = None, keepdims: bool = False, select_last_index: bool = False) -> Any:
    """The row-major position over axes of the first maximum, int64."""
    return _position("argmax", data, axis, keepdims, select_last_index)


def argmin(data: Tensor, axis: Axis = None, keepdims: bool = False, select_last_index: bool = False) -> Any:
    """The row-major position over axes of the first minimum, int64."""
    return _position("argmin", data, axis, keepdims, select_last_index)


def collapse_sum(data: Tensor, target_shape: Sequence[Any]) -> Any:
    """The sum over the dimensions that broadcasting ``target_shape`` to the tensor's shape repeats."""
    more = data.ndim - len(target_shape)
    if more < 0:
        refuse("SM1121", f"topi.collapse_sum: {data.ndim} dimensions to {len(target_shape)}")
    repeated = [more + d for d, size in enumerate(target_shape) if size == 1 and data.sizes[more + d] != 1]

    def function(program: Program, x: Any) -> Any:
        if repeated:
            x = program(aten.sum.dim_IntList, x, repeated, True, dtype=data.kind)
        return program(aten.sum.dim_IntList, x, list(range(more)), False, dtype=data.kind) if more else x

    return compose("collapse_sum", _labels(data, [*range(more), *repeated]), function, data)


__all__ = ["all", "any", "argmax", "argmin", "axes_of", "collapse_sum", "max", "min", "prod", "sum"]
