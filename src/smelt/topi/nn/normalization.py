"""Softmax and normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.te.errors import refuse
from smelt.te.index import reduce_axis
from smelt.te.reductions import max as largest
from smelt.te.reductions import sum as total
from smelt.te.tensor import Tensor, compute
from smelt.te.value import unary
from smelt.topi.reduction import axes_of
from smelt.topi.rows import Program, compose
from smelt.topi.written import Labels

aten = torch.ops.aten


def softmax(x: Tensor, axis: int = -1) -> Any:
    """``exp(x)`` divided by its sum along an axis, in four stages with TVM's names."""
    dim = _floating("softmax", x, axis)
    rest, shape, k = _without(dim), _shape_without(x, dim), _axis_of(x, dim)
    top = compute(shape, lambda *i: largest(x(*_with(i, dim, k)), axis=k), "T_softmax_maxelem")
    power = compute(x.shape, lambda *i: unary("exp", x(*i) - top(*rest(i))), "T_softmax_exp")
    n = _axis_of(x, dim)
    whole = compute(shape, lambda *i: total(power(*_with(i, dim, n)), axis=n), "T_softmax_expsum")
    share = lambda *i: power(*i) / whole(*rest(i))  # noqa: E731
    return compute(x.shape, share, "T_softmax_norm", "softmax_output", {"axis": dim})


fast_softmax = softmax


def log_softmax(x: Tensor, axis: int = -1) -> Any:
    """The logarithm of `softmax`."""
    dim = _floating("log_softmax", x, axis)
    rest, shape, k, n = _without(dim), _shape_without(x, dim), _axis_of(x, dim), _axis_of(x, dim)
    top = compute(shape, lambda *i: largest(x(*_with(i, dim, k)), axis=k), "T_softmax_maxelem")
    whole = compute(shape, lambda *i: total(unary("exp", x(*_with(i, dim, n)) - top(*i)), axis=n), "compute")
    value = lambda *i: x(*i) - top(*rest(i)) - unary("log", whole(*rest(i)))  # noqa: E731
    return compute(x.shape, value, "compute", "log_softmax_output", {"axis": dim})


def _floating(name: str, x: Tensor, axis: int) -> int:
    if not x.kind.is_floating_point:
        refuse("SM1121", f"topi.nn.{name} of {x.dtype}", remedy='topi.cast(x, "float32")')
    (dim,) = axes_of(f"nn.{name}", x.ndim, axis)
    return dim


def _axis_of(x: Tensor, dim: int) -> Any:
    return reduce_axis((0, x.shape[dim]), "k")


def _shape_without(x: Tensor, dim: int) -> tuple[Any, ...]:
    return (*x.shape[:dim], *x.shape[dim + 1 :])


def _without(dim: int) -> Any:
    return lambda index: (*index[:dim], *index[dim + 1 :])


def _with(index: Sequence[Any], dim: int, k: Any) -> tuple[Any, ...]:
    return (*index[:dim], k, *index[dim:])


def _shape_along(program: Program, x: Any, axes: Sequence[int]) -> list[Any]:
    """The shape of a weight for some axes, with size 1 for all other dimensions."""
    return [-1 if d in axes else 1 for d in range(len(x.fake.shape))]


def layer_norm(data: Tensor, gamma: Tensor, beta: Tensor | None, axis: Any, epsilon: float = 1e-5) -> Any:
    """``(data - mean) / sqrt(variance + epsilon) * gamma + beta``, over the last axes."""
    axes = axes_of("nn.layer_norm", data.ndim, axis)
    if axes != list(range(data.ndim - len(axes), data.ndim)):
        refuse("SM1123", f"topi.nn.layer_norm: over {axes}", remedy="transpose these axes to the end first")

    def function(program: Program, x: Any, weight: Any, bias: Any) -> Any:
        shape = [program.size(data.sizes[d]) for d in axes]
        return program(aten.native_layer_norm.default, x, shape, weight, bias, float(epsilon))[0]

    return compose("nn.layer_norm", Labels("T_layer_norm", tag="injective"), function, data, gamma, beta)


def group_norm(
    data: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    num_groups: int,
    channel_axis: int = 1,
    axes: Any = None,
    epsilon: float = 1e-5,
) -> Any:
    """``(data - mean) / sqrt(variance + epsilon) * gamma + beta``, of groups of channels."""
    _channels_second("group_norm", data, channel_axis, axes)

    def function(program: Program, x: Any, weight: Any, bias: Any) -> Any:
        count: Any = 1
        for size in x.fake.shape[2:]:
            count = count * size
        n, c = x.fake.shape[:2]
        if not all(isinstance(size, int) for size in (n, c, count)):
            refuse("SM1123", "topi.nn.group_norm: sizes that are not known")
        overload = aten.native_group_norm.default
        return program(overload, x, weight, bias, n, c, count, num_groups, float(epsilon))[0]

    return compose("nn.group_norm", Labels("T_group_norm", tag="injective"), function, data, gamma, beta)


def instance_norm(
    data: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    channel_axis: int = 1,
    axis: Any = None,
    epsilon: float = 1e-5,
) -> Any:
    """``(data - mean) / sqrt(variance + epsilon) * gamma + beta``, of each channel."""
    _channels_second("instance_norm", data, channel_axis, axis)
    channels = data.shape[1]
    return group_norm(data, gamma, beta, channels, channel_axis, axis, epsilon)


def _channels_second(name: str, data: Tensor, channel_axis: int, axes: Any) -> None:
    rest = list(range(2, data.ndim))
    if channel_axis % data.ndim != 1 or (
        axes is not None and axes_of(f"nn.{name}", data.ndim, axes) not in (rest, [1, *rest])
    ):
        refuse(
            "SM1123",
            f"topi.nn.{name}: another layout than N, C and then all others",
            remedy="transpose first",
        )


def rms_norm(data: Tensor, weight: Tensor, axis: Any, epsilon: float = 1e-5) -> Any:
    """``data / sqrt(mean(data**2) + epsilon) * weight``, over axes."""
    axes = axes_of("nn.rms_norm", data.ndim, axis)

    def function(program: Program, x: Any, weight: Any) -> Any:
        wide = (
            x
            if data.kind in (torch.float32, torch.float64)
            else program(aten._to_copy.default, x, dtype=torch.float32)
        )
        square = program(aten.mean.dim, program(aten.mul.Tensor, wide, wide), axes, True)
        scale = program(aten.rsqrt.default, program(aten.add.Scalar, square, float(epsilon)))
        shape = (
            _shape_along(program, x, axes)
            if len(axes) == 1
            else [program.size(data.sizes[d]) if d in axes else 1 for d in range(data.ndim)]
        )
        scaled = program(aten.mul.Tensor, wide, scale)
        found = program(aten.mul.Tensor, scaled, program(aten.reshape.default, weight, shape))
        return found if wide is x else program(aten._to_copy.default, found, dtype=data.kind)

    return compose("nn.rms_norm", Labels("T_rms_norm", tag="injective"), function, data, weight)


def batch_norm(
    data: Tensor,
    gamma: Tensor,
    beta: Tensor,
    moving_mean: Tensor,
    moving_var: Tensor,
    axis: int | None = None,
    epsilon: float | None = None,
    center: bool | None = None,
    scale: bool | None = None,
    training: bool | None = None,
    momentum: float | None = None,
) -> list[Any]:
    """``(data - mean) / sqrt(variance + epsilon) * gamma + beta`` of each channel.

    Mean and variance are given, or those of the batch, with weight ``momentum`` in the new moving ones.
    Returns all three.
    """
    dim = axes_of("nn.batch_norm", data.ndim, 1 if axis is None else axis)[0]
    eps, rate = 1e-5 if epsilon is None else epsilon, 0.1 if momentum is None else momentum
    rest = [d for d in range(data.ndim) if d != dim]

    def function(program: Program, x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> Any:
        shape = [-1 if d == dim else 1 for d in range(data.ndim)]
        spread = lambda t: program(aten.reshape.default, t, shape)  # noqa: E731
        means = [mean, var]
        if training:
            found = program(aten.mean.dim, x, rest, False)
            means = [found, program(aten.var.correction, x, rest, correction=0, keepdim=False)]
        scaled = program(aten.sub.Tensor, x, spread(means[0]))
        deviation = program(aten.sqrt.default, program(aten.add.Scalar, spread(means[1]), float(eps)))
        scaled = program(aten.div.Tensor, scaled, deviation)
        if scale is not False:
            scaled = program(aten.mul.Tensor, scaled, spread(weight))
        if center is not False:
            scaled = program(aten.add.Tensor, scaled, spread(bias))
        if training:
            old = [program(aten.mul.Scalar, each, 1 - rate) for each in (mean, var)]
            new = [program(aten.mul.Scalar, each, rate) for each in means]
            return [scaled, *(program(aten.add.Tensor, *pair) for pair in zip(old, new))]
        return [scaled, mean, var]

    labels = Labels("T_batch_norm", tag="injective")
    return compose("nn.batch_norm", labels, function, data, gamma, beta, moving_mean, moving_var)  # type: ignore[no-any-return]


def lrn(
    data: Tensor, size: int, axis: int = 1, alpha: float = 0.0001, beta: float = 0.75, bias: float = 2
) -> Any:
    """``data / (bias + alpha / size * sum of squares of size neighbours along an axis) ** beta``."""
    if size % 2 == 0:
        refuse("SM1121", f"topi.nn.lrn: an even size, {size}")
    (dim,) = axes_of("nn.lrn", data.ndim, axis)
    half, rank = size // 2, data.ndim

    def function(program: Program, x: Any) -> Any:
        pads = [0] * (2 * rank)
        pads[2 * (rank - 1 - dim)] = pads[2 * (rank - 1 - dim) + 1] = half
        square = program(aten.constant_pad_nd.default, program(aten.mul.Tensor, x, x), pads, 0.0)
        windows = program(aten.unfold.default, square, dim, size, 1)
        near = program(aten.sum.dim_IntList, windows, [-1], False)
        base = program(aten.add.Scalar, program(aten.mul.Scalar, near, alpha / size), float(bias))
        return program(aten.div.Tensor, x, program(aten.pow.Tensor_Scalar, base, float(beta)))

    return compose("nn.lrn", Labels("T_lrn", tag="injective"), function, data)


__all__ = [
    *("batch_norm", "fast_softmax", "group_norm", "instance_norm", "layer_norm", "log_softmax", "lrn"),
    *("rms_norm", "softmax"),
]
