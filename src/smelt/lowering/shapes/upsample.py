"""Resizing by nearest neighbour, linear and cubic interpolation: eager's index formulae in its precision.

Source: ATen's UpSample.h (area_pixel_compute_scale, area_pixel_compute_source_index, guard_index_and_lambda).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import compute_dtype, convert, fill, fold, load_as
from smelt.lowering.indexing.scatter_reduce import combined, computed
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.lowering.windows.windows import Window, window_reduce
from smelt.ops import ops
from smelt.symbolic import FloorDiv, as_expr, same

aten = torch.ops.aten

TABLE_LIMIT = 1 << 16
"""Static sizes up to this have their source positions worked out while compiling, to find a plain index."""

Scale = float | None
Source = Callable[[Expr], Expr]


def _scale(size: Expr, out: Expr, given: Scale, dtype: torch.dtype, align_corners: bool = False) -> Any:
    """Input elements per output element, as a value of ``dtype``."""
    if align_corners:
        width = ops.index_expr(out - 1, dtype)
        one = ops.maximum(width, ops.constant(1.0, dtype))
        ratio = ops.truediv(ops.index_expr(size - 1, dtype), one)
        return ops.where(ops.gt(width, ops.constant(0.0, dtype)), ratio, ops.constant(0.0, dtype))
    if given is not None and given > 0:
        return ops.constant(_rounded(1.0 / given, dtype), dtype)
    return ops.truediv(ops.index_expr(size, dtype), ops.index_expr(out, dtype))


def _rounded(number: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(number, dtype=torch.float64).to(dtype))


# -- nearest -------------------------------------------------------------------------------------------------


def nearest_source(size: Expr, out: Expr, given: Scale, exact: bool) -> Source:
    """Which input position an output position takes; a plain index where that can be shown."""
    if not exact:
        if same(out, size):
            return lambda o: o
        if same(out, 2 * size):
            return lambda o: FloorDiv(o, as_expr(2))
    plain = _plain_source(size, out, given, exact)
    if plain is not None:
        return plain

    def source(o: Expr) -> Expr:
        scale = _scale(size, out, given, torch.float32)
        if exact:
            middle = ops.add(ops.index_expr(o, torch.float64), ops.constant(0.5, torch.float64))
            wide = ops.mul(middle, ops.to_dtype(scale, torch.float64))
            position = ops.floor(ops.to_dtype(wide, torch.float32))
        else:
            position = ops.floor(ops.mul(ops.index_expr(o, torch.float32), scale))
        last = ops.index_expr(size - 1, torch.int64)
        return ops.indirect_index(
            ops.minimum(ops.to_dtype(position, torch.int64), last), size, wrap=False, check=False
        )

    return source


def _plain_source(size: Expr, out: Expr, given: Scale, exact: bool) -> Source | None:
    """``o // r`` or ``a*o + b`` where eager's float32 formula gives just that for every output position."""
    if not (size.is_Integer and out.is_Integer) or not 0 < out <= TABLE_LIMIT:
        return None
    positions = torch.arange(int(out))
    if given is not None and given > 0:
        scale = torch.tensor(1.0 / given, dtype=torch.float64).to(torch.float32)
    else:
        scale = torch.tensor(float(size), dtype=torch.float32) / float(out)
    if exact:
        floats = ((positions.double() + 0.5) * scale.double()).float().floor()
    else:
        floats = (positions.float() * scale).floor()
    sources = floats.long().clamp(max=int(size) - 1)
    repeat = int((sources == 0).sum())
    if repeat and torch.equal(sources, positions // repeat):
        return lambda o: FloorDiv(o, as_expr(repeat)) if repeat != 1 else o
    first = int(sources[0])
    step = int(sources[1]) - first if len(sources) > 1 else 0
    if torch.equal(sources, positions * step + first):
        return lambda o: o * step + first
    return None


def _nearest(ctx: Builder, x: Tensor, output_size: Any, *given: Scale, exact: bool, **named: Scale) -> Tensor:
    scales, out = _given_scales(len(x.shape) - 2, given, named), ctx.shape
    sources = [nearest_source(x.shape[2 + d], out[2 + d], scale, exact) for d, scale in enumerate(scales)]

    def inner_fn(index: Index) -> Any:
        return x.load([*index[:2], *(source(o) for source, o in zip(sources, index[2:], strict=True))])

    return ctx.pointwise(inner_fn)


def _nearest_vec(
    ctx: Builder, x: Tensor, output_size: Any, scale_factors: Sequence[float] | None, *, exact: bool
) -> Tensor:
    return _nearest(ctx, x, output_size, *(scale_factors or ()), exact=exact)


def _nearest_backward(
    ctx: Builder,
    grad: Tensor,
    output_size: Any,
    input_size: Sequence[Any],
    *given: Scale,
    exact: bool,
    **named: Scale,
) -> Tensor:
    scales = _given_scales(len(input_size) - 2, given, named)
    shape = [as_expr(size) for size in input_size]
    ratios = [grad.shape[2 + d] / shape[2 + d] for d in range(len(scales))]
    free = [scale is None or not scale > 0 for scale in scales]
    if all(ratio.is_Integer and ratio >= 1 for ratio in ratios) and all(
        any_scale or scale == float(ratio)
        for any_scale, scale, ratio in zip(free, scales, ratios, strict=True)
    ):
        return _repeated_backward(ctx, grad, shape, [int(ratio) for ratio in ratios])
    sources = [
        nearest_source(shape[2 + d], grad.shape[2 + d], scale, exact) for d, scale in enumerate(scales)
    ]

    def place(index: Index) -> list[Expr]:
        return [*index[:2], *(source(o) for source, o in zip(sources, index[2:], strict=True))]

    base = fill(ctx, shape, grad.dtype, 0)
    return combined(ctx, base, "sum", computed(grad.load, grad.dtype), place, grad.shape)


def _repeated_backward(ctx: Builder, grad: Tensor, shape: Sequence[Expr], ratios: Sequence[int]) -> Tensor:
    """Each input was repeated ``ratio`` times: its gradient is the sum of as many."""
    dtype = compute_dtype(grad.dtype)

    def window(ratio: int) -> Window:
        return Window(as_expr(ratio), lambda i, k: i * ratio + k, lambda i, k: [])

    return window_reduce(
        ctx,
        "sum",
        shape,
        2,
        [window(ratio) for ratio in ratios],
        lambda index, where: load_as(grad, [*index[:2], *where], dtype),
        dtype,
        0.0,
        lambda total, index: total,
        grad.dtype,
    )


for _name, _exact in {"upsample_nearest": False, "_upsample_nearest_exact": True}.items():
    for _rank in (1, 2, 3):
        _forward, _backward = (getattr(aten, f"{_name}{_rank}d{end}") for end in ("", "_backward"))
        lowers(_forward.default)(partial(_nearest, exact=_exact))
        lowers(_forward.vec)(partial(_nearest_vec, exact=_exact))
        lowers(_backward.default)(partial(_nearest_backward, exact=_exact))


def _factors(scale_factors: Sequence[float] | None, rank: int) -> list[Scale]:
    return [None] * rank if scale_factors is None else list(scale_factors)


def _given_scales(rank: int, scales: Sequence[Scale], named: dict[str, Scale]) -> list[Scale]:
    """Trailing scale arguments (positional or by name) as one per dimension."""
    names = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}[rank]
    listed = [*scales, *([None] * (rank - len(scales)))]
    return [named.get(name, value) for name, value in zip(names, listed, strict=True)]


# -- linear --------------------------------------------------------------------------------------------------

Taps = list[tuple[Expr, Any]]
"""(input position, weight) pairs of one dimension; a single pair has weight 1, which is not computed."""


def _real_source(
    size: Expr, out: Expr, given: Scale, align_corners: bool, cubic: bool, o: Expr, dtype: torch.dtype
) -> Any:
    scale = _scale(size, out, given, dtype, align_corners)
    if align_corners:
        return ops.mul(scale, ops.index_expr(o, dtype))
    half = ops.constant(0.5, dtype)
    source = ops.sub(ops.mul(scale, ops.add(ops.index_expr(o, dtype), half)), half)
    return source if cubic else ops.maximum(source, ops.constant(0.0, dtype))


def _guarded(real: Any, size: Expr, dtype: torch.dtype) -> tuple[Any, Any]:
    """(whole input position as int64, fraction within [0, 1])."""
    last = ops.index_expr(size - 1, torch.int64)
    whole = ops.minimum(ops.to_dtype(ops.floor(real), torch.int64), last)
    fraction = ops.sub(real, ops.to_dtype(whole, dtype))
    zero, one = ops.constant(0.0, dtype), ops.constant(1.0, dtype)
    return whole, ops.minimum(ops.maximum(fraction, zero), one)


def _linear_parts(
    size: Expr, out: Expr, given: Scale, align_corners: bool, o: Expr, dtype: torch.dtype
) -> tuple[Any, Any, Any, Any]:
    """(near position, far position, near weight, far weight) for output ``o``; positions are int64."""
    if same(size, out):
        at = ops.index_expr(o, torch.int64)
        return at, at, ops.constant(1.0, dtype), ops.constant(0.0, dtype)
    whole, fraction = _guarded(_real_source(size, out, given, align_corners, False, o, dtype), size, dtype)
    last = ops.index_expr(size - 1, torch.int64)
    following = ops.minimum(ops.add(whole, ops.constant(1, torch.int64)), last)
    return whole, following, ops.sub(ops.constant(1.0, dtype), fraction), fraction


def _linear_taps(
    size: Expr, out: Expr, given: Scale, align_corners: bool, dtype: torch.dtype
) -> Callable[[Expr], Taps]:
    def taps(o: Expr) -> Taps:
        if same(size, out):
            return [(o, None)]
        near, far, near_weight, far_weight = _linear_parts(size, out, given, align_corners, o, dtype)
        return [
            (ops.indirect_index(near, size, wrap=False, check=False), near_weight),
            (ops.indirect_index(far, size, wrap=False, check=False), far_weight),
        ]

    return taps


def _cubic_taps(
    size: Expr, out: Expr, given: Scale, align_corners: bool, dtype: torch.dtype
) -> Callable[[Expr], Taps]:
    """Keys' cubic convolution with A = -0.75, borders repeated."""
    slope = -0.75

    def number(value: float) -> Any:
        return ops.constant(value, dtype)

    def inner(t: Any) -> Any:
        steep = ops.sub(ops.mul(number(slope + 2), t), number(slope + 3))
        return ops.add(ops.mul(ops.mul(steep, t), t), number(1.0))

    def outer(t: Any) -> Any:
        value = ops.sub(ops.mul(number(slope), t), number(5 * slope))
        value = ops.add(ops.mul(value, t), number(8 * slope))
        return ops.sub(ops.mul(value, t), number(4 * slope))

    def taps(o: Expr) -> Taps:
        whole, t = _guarded(_real_source(size, out, given, align_corners, True, o, dtype), size, dtype)
        one = number(1.0)
        rest = ops.sub(one, t)
        weights = [outer(ops.add(t, one)), inner(t), inner(rest), outer(ops.add(rest, one))]
        last, zero = ops.index_expr(size - 1, torch.int64), ops.constant(0, torch.int64)
        result = []
        for shift, weight in zip((-1, 0, 1, 2), weights, strict=True):
            at = ops.minimum(ops.maximum(ops.add(whole, ops.constant(shift, torch.int64)), zero), last)
            result.append((ops.indirect_index(at, size, wrap=False, check=False), weight))
        return result

    return taps


def _interpolate(ctx: Builder, x: Tensor, taps_of: Sequence[Callable[[Expr], Taps]]) -> Tensor:
    """Weighted sums, one dimension inside the other."""
    if not x.dtype.is_floating_point:
        raise Unsupported(f"interpolation of {x.dtype}")
    dtype, out = compute_dtype(x.dtype), x.dtype

    def inner_fn(index: Index) -> Any:
        taps = [of(o) for of, o in zip(taps_of, index[2:], strict=True)]

        def along(dim: int, where: list[Expr]) -> Any:
            if dim == len(taps):
                return load_as(x, where, dtype)
            if len(taps[dim]) == 1:
                return along(dim + 1, [*where, taps[dim][0][0]])
            terms = [ops.mul(weight, along(dim + 1, [*where, at])) for at, weight in taps[dim]]
            return fold(lambda left, right: ops.add(left, right), terms)

        return convert(along(0, list(index[:2])), dtype, out)

    return ctx.pointwise(inner_fn)


def _linear(ctx: Builder, x: Tensor, align_corners: bool, scales: Sequence[Scale]) -> Tensor:
    out, dtype = ctx.shape, compute_dtype(x.dtype)
    return _interpolate(
        ctx,
        x,
        [
            _linear_taps(x.shape[2 + d], out[2 + d], scale, align_corners, dtype)
            for d, scale in enumerate(scales)
        ],
    )


@lowers(aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default)
def upsample_linear(
    ctx: Builder, x: Tensor, output_size: Any, align_corners: bool, *scales: Scale, **named: Scale
) -> Tensor:
    return _linear(ctx, x, align_corners, _given_scales(len(x.shape) - 2, scales, named))


@lowers(aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec)
def upsample_linear_vec(
    ctx: Builder, x: Tensor, output_size: Any, align_corners: bool, scale_factors: Sequence[float] | None
) -> Tensor:
    return _linear(ctx, x, align_corners, _factors(scale_factors, len(x.shape) - 2))


@lowers(aten.upsample_bicubic2d.default)
def upsample_bicubic2d(
    ctx: Builder,
    x: Tensor,
    output_size: Any,
    align_corners: bool,
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Tensor:
    out, dtype = ctx.shape, compute_dtype(x.dtype)
    scales = (scales_h, scales_w)
    return _interpolate(
        ctx,
        x,
        [_cubic_taps(x.shape[2 + d], out[2 + d], scales[d], align_corners, dtype) for d in range(2)],
    )


@lowers(aten.upsample_bicubic2d.vec)
def upsample_bicubic_vec(
    ctx: Builder, x: Tensor, output_size: Any, align_corners: bool, scale_factors: Sequence[float] | None
) -> Tensor:
    return upsample_bicubic2d(ctx, x, output_size, align_corners, *_factors(scale_factors, 2))


# -- gradients of linear -------------------------------------------------------------------------------------


def _linear_backward(
    ctx: Builder, grad: Tensor, input_size: Sequence[Any], align_corners: bool, scales: Sequence[Scale]
) -> Tensor:
    """Each output's gradient goes to two inputs per dimension, by weight."""
    if grad.dtype in (torch.bfloat16, torch.float16):
        raise Unsupported("gradient of interpolation in a 16-bit floating dtype")
    rank, dtype = len(scales), grad.dtype
    shape = [as_expr(size) for size in input_size]
    outs = grad.shape[2:]

    def parts(index: Index, d: int) -> tuple[Any, tuple[Any, Any, Any, Any]]:
        """(whether this is the near tap, both taps) in dimension ``d``."""
        is_near = ops.eq(ops.index_expr(index[2 + rank + d], torch.int64), ops.constant(0, torch.int64))
        return is_near, _linear_parts(shape[2 + d], outs[d], scales[d], align_corners, index[2 + d], dtype)

    def value(index: Index) -> Any:
        result = grad.load(index[: 2 + rank])
        for d in range(rank):
            is_near, (_, _, near, far) = parts(index, d)
            result = ops.mul(result, ops.where(is_near, near, far))
        return result

    def place(index: Index) -> list[Expr]:
        where = list(index[:2])
        for d in range(rank):
            is_near, (near, far, _, _) = parts(index, d)
            at = ops.where(is_near, near, far)
            where.append(ops.indirect_index(at, shape[2 + d], wrap=False, check=False))
        return where

    base = fill(ctx, shape, dtype, 0)
    return ctx.scatter(base, value, place, shape=[*grad.shape, *([as_expr(2)] * rank)], mode="add")


@lowers(
    aten.upsample_linear1d_backward.default,
    aten.upsample_bilinear2d_backward.default,
    aten.upsample_trilinear3d_backward.default,
)
def upsample_linear_backward(
    ctx: Builder,
    grad: Tensor,
    output_size: Any,
    input_size: Sequence[Any],
    align_corners: bool,
    *scales: Scale,
    **named: Scale,
) -> Tensor:
    return _linear_backward(
        ctx, grad, input_size, align_corners, _given_scales(len(input_size) - 2, scales, named)
    )
