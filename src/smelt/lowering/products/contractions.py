"""Matrix products and convolutions as loop functions of their operands.

A row gives the contraction of an ATen call that is recorded anyway (`smelt.loops.ir.Contraction` has both);
it raises `Unsupported` if only the call can compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.loops.ir import Contraction, Extern, Node, Pointwise, Reduction, StridedView, accumulator
from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert
from smelt.lowering.numbers import symbolic_number
from smelt.lowering.products.attention import ATTENTIONS
from smelt.lowering.tensor import Index, Tensor
from smelt.lowering.windows.windows import Test, holds
from smelt.ops import ops
from smelt.records import dataclass, replace
from smelt.symbolic import as_expr
from smelt.symbolic.affine import divided, remainder, times, total

aten = torch.ops.aten
ZERO = sympy.Integer(0)


@dataclass(frozen=True, slots=True)
class Sum:
    """``start(index) + sum over rindex of lhs * rhs``, each in the accumulator's dtype."""

    reduce_shape: tuple[Expr, ...]
    lhs: Callable[[Index, Index], Any]
    rhs: Callable[[Index, Index], Any]
    start: Callable[[Index], Any] | None = None


Meaning = Callable[..., "Sum | tuple[Sum, ...]"]

CONTRACTIONS: dict[torch._ops.OpOverload, Meaning] = {}
"""ATen overload → ``meaning(ctx, *args, **kwargs)``, its contraction; rows get the same arguments.

A meaning may add nodes that the sum reads; for a call with several results it returns a sum for each.
"""

NAMED_CONTRACTIONS: dict[str, Meaning] = {}
"""Operator name (``library::name``) → meaning, for operators that other libraries define."""


def means(*overloads: torch._ops.OpOverload) -> Callable[[Meaning], Meaning]:
    """Register the contraction of ATen overloads."""

    def add(meaning: Meaning) -> Meaning:
        for overload in overloads:
            CONTRACTIONS[overload] = meaning
        return meaning

    return add


def computes_named(name: str) -> Callable[[Meaning], Meaning]:
    """Register the contraction of an operator that may not exist yet."""

    def add(meaning: Meaning) -> Meaning:
        NAMED_CONTRACTIONS[name] = meaning
        return meaning

    return add


def contraction_of(target: torch._ops.OpOverload) -> Meaning | None:
    """The contraction of an overload, or None."""
    return CONTRACTIONS.get(target) or NAMED_CONTRACTIONS.get(target.name())


def keep_contraction(
    ctx: Builder, target: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Replace the last node, a call of ``target``, by the contraction that it computes, if there is one."""
    node = ctx.graph.nodes[-1]
    if not isinstance(node.body, Extern):
        return
    try:
        if target is aten.convolution_backward.default:
            _keep_gradients(ctx, node, node.body, *args)
        elif target in ATTENTIONS:
            ATTENTIONS[target](ctx, *args, **kwargs)
        else:
            _keep(ctx, node, node.body, target, args, kwargs)
    except Unsupported:
        return


def _keep(
    ctx: Builder,
    node: Node,
    call: Extern,
    target: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> None:
    """Add a contraction for each result, after the nodes that they read."""
    meaning, place = contraction_of(target), len(ctx.graph.nodes) - 1
    if meaning is None:
        return
    try:
        found = meaning(ctx, *args, **kwargs)
    except Unsupported:
        del ctx.graph.nodes[place + 1 :]
        raise
    del ctx.graph.nodes[place]
    sums = found if isinstance(found, tuple) else (found,)
    for result, (name, each) in enumerate(zip(node.outputs, sums, strict=True)):
        if name is not None:
            buffer = ctx.graph.buffers[name]
            body = _contraction(buffer.shape, buffer.dtype, each, call, result, len(sums))
            ctx.graph.nodes.append(replace(node, outputs=(name,), body=body))


def _contraction(
    shape: Sequence[Expr], dtype: torch.dtype, found: Sum, call: Extern, result: int = 0, results: int = 1
) -> Contraction:
    functions = found.lhs, found.rhs, found.start
    return Contraction(tuple(shape), found.reduce_shape, dtype, *functions, call, result, results)


def factor(x: Tensor, index: Index, dtype: torch.dtype) -> Any:
    """An operand's element in the accumulator's dtype of a contraction with result ``dtype``."""
    return convert(x.load(index), x.dtype, accumulator(dtype))


def _scaled(value: Any, factor: Any, dtype: torch.dtype) -> Any:
    """``value * factor``; ``value`` itself for 1."""
    if factor == 1:
        return value
    within = accumulator(dtype)
    if isinstance(factor, Expr):
        return ops.mul(value, symbolic_number(factor, within)(()))
    return ops.mul(value, ops.constant(float(factor) if within.is_floating_point else int(factor), within))


# -- matrix products ---------------------------------------------------------------------------------------


def matrix_product(ctx: Builder, x: Tensor, y: Tensor, alpha: Any = 1, mixed: bool = False) -> Sum:
    """``x @ y`` with as many batch dimensions in front as the operands share; either may be a vector.

    Operands of two dtypes are refused unless ``mixed``: ATen refuses them, but its meta functions (hence
    capture) do not.
    """
    if x.dtype != y.dtype and not mixed:
        raise Unsupported("a product of two dtypes")
    batch = max(len(x.shape), len(y.shape)) - 2 if min(len(x.shape), len(y.shape)) > 1 else 0
    rows = len(x.shape) > 1
    columns = len(y.shape) > 1
    dtype = ctx.dtype

    def lhs(index: Index, rindex: Index) -> Any:
        row = [index[batch]] if rows else []
        return _scaled(factor(x, [*index[:batch], *row, *rindex], dtype), alpha, dtype)

    def rhs(index: Index, rindex: Index) -> Any:
        return factor(y, [*index[:batch], *rindex, *([index[-1]] if columns else [])], dtype)

    return Sum((x.shape[-1],), lhs, rhs)


@means(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default)
def product(ctx: Builder, x: Tensor, y: Tensor) -> Sum:
    return matrix_product(ctx, x, y)


@means(aten._int_mm.default)
def integer_product(ctx: Builder, x: Tensor, y: Tensor) -> Sum:
    """``x @ y`` for integers, including uint8 and int8."""
    return matrix_product(ctx, x, y, mixed=True)


@means(aten.vdot.default)
def conjugate_product(ctx: Builder, x: Tensor, y: Tensor) -> Sum:
    """The product with a conjugate operand: for real numbers, the plain product."""
    return matrix_product(ctx, x, y)


@means(aten.addmm.default, aten.baddbmm.default, aten.addmv.default)
def product_onto(ctx: Builder, onto: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Sum:
    """``beta * onto + alpha * (x @ y)``; for a beta of 0, ``onto`` is not read, so its NaN do not count."""
    found = matrix_product(ctx, x, y, alpha)
    if onto.dtype != x.dtype:
        raise Unsupported("a product onto another dtype")
    if beta == 0:
        return found
    shape, dtype = ctx.shape, ctx.dtype

    def start(index: Index) -> Any:
        tail = index[len(shape) - len(onto.shape) :]
        where = [ZERO if size == 1 else at for at, size in zip(tail, onto.shape, strict=True)]
        return _scaled(factor(onto, where, dtype), beta, dtype)

    return Sum(found.reduce_shape, found.lhs, found.rhs, start)


# -- convolutions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Geometry:
    """The geometry of a convolution's windows, for each of its spatial dimensions.

    Tap ``tap`` of the weight sees input position ``output * stride + tap * dilation - padding``; in a
    ``transposed`` one, the input position sees the output's.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    def position(self, dim: int, output: Expr, tap: Expr) -> Expr:
        stride, dilation, padding = self._of(dim)
        return total([times(output, stride), times(tap, dilation), -padding])

    def numerator(self, dim: int, position: Expr, tap: Expr) -> Expr:
        """``output * stride`` of the window that sees ``position`` with ``tap``."""
        _, dilation, padding = self._of(dim)
        return total([position, times(tap, -dilation), padding])

    def _of(self, dim: int) -> tuple[Expr, Expr, Expr]:
        return as_expr(self.stride[dim]), as_expr(self.dilation[dim]), as_expr(self.padding[dim])


def _geometry(
    rank: int, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: Any
) -> Geometry:
    if not isinstance(groups, int):
        raise Unsupported("a convolution whose groups depend on sizes")

    def spread(values: Sequence[Any]) -> tuple[int, ...]:
        if not all(isinstance(value, int) for value in values):
            raise Unsupported("a convolution whose geometry depends on sizes")
        return tuple(values) * rank if len(values) == 1 else tuple(values)

    windows = spread(stride), spread(padding), spread(dilation)
    return Geometry(*windows, transposed, spread(output_padding), groups)


_BEFORE = {"aten.convolution.default": 3, "aten.convolution_backward.default": 4}
"""The number of arguments before the geometry: the tensors, and last the bias or its sizes."""


def convolution_of(call: Extern) -> tuple[tuple[StridedView, ...], Geometry] | None:
    """The operands and the geometry of a contraction's call; None if it is no convolution.

    The operands of a convolution are input and weight; those of its gradients, the result's gradient before.
    """
    count = _BEFORE.get(call.target)
    if count is None:
        return None
    operands = call.args[: count - 1]
    return operands, _geometry(len(operands[-1].shape) - 2, *call.args[count : count + 6])


def _where(tests: Sequence[Test], body: Callable[[], Any], dtype: torch.dtype) -> Any:
    if not tests:
        return body()
    return ops.masked(holds(tests), body, 0.0 if accumulator(dtype).is_floating_point else 0)


def _windows(
    x: Tensor, batch: Expr, channel: Expr, outputs: Index, taps: Index, lie: Geometry, dtype: torch.dtype
) -> Any:
    """The element of x that tap ``taps`` of output ``outputs``'s window sees; 0 in the padding."""
    at = [lie.position(d, o, k) for d, (o, k) in enumerate(zip(outputs, taps, strict=True))]
    tests: list[Test] = []
    for dim, (position, size) in enumerate(zip(at, x.shape[2:], strict=True)):
        if lie.padding[dim] > 0:
            tests += [("ge", position, ZERO), ("lt", position, size)]
    return _where(tests, lambda: factor(x, [batch, channel, *at], dtype), dtype)


def _seen_by(
    x: Tensor,
    batch: Expr,
    channel: Expr,
    positions: Index,
    sizes: Index,
    taps: Index,
    counts: Index,
    lie: Geometry,
    dtype: torch.dtype,
) -> Any:
    """The element of x whose window sees position ``positions`` with tap ``taps``; 0 if there is none.

    ``positions`` are below ``sizes``, ``taps`` below ``counts``. Needless tests are left out: a window of one
    sees every position. With a stride all tests are needed: split by phase
    (`smelt.schedule.products.split_dimensions`), positions exceed ``sizes``.
    """
    tests: list[Test] = []
    at: list[Expr] = []
    for dim, (position, tap) in enumerate(zip(positions, taps, strict=True)):
        numerator, stride = lie.numerator(dim, position, tap), lie.stride[dim]
        least, most = lie.numerator(dim, ZERO, counts[dim] - 1), lie.numerator(dim, sizes[dim] - 1, ZERO)
        end = x.shape[2 + dim] * stride
        if stride > 1 or least.is_nonnegative is not True:
            tests.append(("ge", numerator, ZERO))
        if stride > 1 or (most - end).is_negative is not True:
            tests.append(("lt", numerator, end))
        if stride > 1:
            tests.append(("eq", remainder(numerator, stride), ZERO))
        at.append(divided(numerator, stride))
    return _where(tests, lambda: factor(x, [batch, channel, *at], dtype), dtype)


@means(aten.convolution.default)
def convolution(
    ctx: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: int,
) -> Sum:
    """x (N, C, *); weight (O, C / groups, *taps), or transposed (C, O / groups, *taps)."""
    rank, dtype = len(weight.shape) - 2, ctx.dtype
    if len(x.shape) != rank + 2:
        raise Unsupported("a convolution without a batch dimension")
    lie = _geometry(rank, stride, padding, dilation, transposed, output_padding, groups)
    taps = weight.shape[2:]
    start = None if bias is None else (lambda index: factor(bias, (index[1],), dtype))
    if transposed:
        into, out, sizes = divided(weight.shape[0], groups), weight.shape[1], ctx.shape[2:]

        def channels(index: Index, rindex: Index) -> Expr:
            return divided(index[1], out) * into + rindex[0] if groups > 1 else rindex[0]

        return Sum(
            (into, *taps),
            lambda i, r: _seen_by(x, i[0], channels(i, r), i[2:], sizes, r[1:], taps, lie, dtype),
            lambda i, r: factor(
                weight, [channels(i, r), remainder(i[1], out) if groups > 1 else i[1], *r[1:]], dtype
            ),
            start,
        )
    each = divided(weight.shape[0], groups)

    def channel(index: Index, rindex: Index) -> Expr:
        return divided(index[1], each) * weight.shape[1] + rindex[0] if groups > 1 else rindex[0]

    return Sum(
        (weight.shape[1], *taps),
        lambda i, r: _windows(x, i[0], channel(i, r), i[2:], r[1:], lie, dtype),
        lambda i, r: factor(weight, [i[1], *r], dtype),
        start,
    )


# -- gradients of convolutions -------------------------------------------------------------------------------

_MASK = 10
"""The place of ``output_mask`` among the arguments of ``aten.convolution_backward``."""


def _keep_gradients(
    ctx: Builder,
    node: Node,
    call: Extern,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: int,
    output_mask: Sequence[bool],
) -> None:
    """A call for several gradients becomes a contraction for each of them; the bias's gradient is a sum."""
    rank = len(weight.shape) - 2
    if len(x.shape) != rank + 2:
        raise Unsupported("a convolution without a batch dimension")
    lie = _geometry(rank, stride, padding, dilation, transposed, output_padding, groups)
    sums = (
        _input_gradient(grad, x, weight, lie, transposed, groups),
        _weight_gradient(grad, x, weight, lie, transposed, groups),
    )
    ctx.graph.nodes.pop()
    for result, found in enumerate(sums):
        name = node.outputs[result] if output_mask[result] else None
        if name is None:
            continue
        mask = [at == result for at in range(3)]
        alone = replace(call, args=(*call.args[:_MASK], mask))
        buffer = ctx.graph.buffers[name]
        body = _contraction(buffer.shape, buffer.dtype, found, alone, result, len(node.outputs))
        ctx.graph.nodes.append(replace(node, outputs=(name,), body=body))
    if output_mask[2] and node.outputs[2] is not None:
        _bias_gradient(ctx, node, node.outputs[2], grad)


def _input_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, lie: Geometry, transposed: bool, groups: int
) -> Sum:
    """The input's gradient: the convolution of the output's gradient with transposed and plain swapped."""
    dtype = grad.dtype
    taps = weight.shape[2:]
    inner = divided(weight.shape[0], groups)

    def weights(own: Expr, other: Expr, at: Index) -> Any:
        return factor(weight, [own, other, *at], dtype)

    if transposed:
        each = weight.shape[1]

        def seen(index: Index, rindex: Index) -> Expr:
            return divided(index[1], inner) * each + rindex[0] if groups > 1 else rindex[0]

        return Sum(
            (each, *taps),
            lambda i, r: _windows(grad, i[0], seen(i, r), i[2:], r[1:], lie, dtype),
            lambda i, r: weights(i[1], r[0], r[1:]),
        )
    into = weight.shape[1]

    def channel(index: Index, rindex: Index) -> Expr:
        return divided(index[1], into) * inner + rindex[0] if groups > 1 else rindex[0]

    return Sum(
        (inner, *taps),
        lambda i, r: _seen_by(grad, i[0], channel(i, r), i[2:], x.shape[2:], r[1:], taps, lie, dtype),
        lambda i, r: weights(channel(i, r), remainder(i[1], into) if groups > 1 else i[1], r[1:]),
    )


def _weight_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, lie: Geometry, transposed: bool, groups: int
) -> Sum:
    """The weight's gradient: output gradients times the inputs of the taps, summed over batch and windows."""
    dtype = grad.dtype
    seen, windows = (grad, x) if transposed else (x, grad)
    inner = divided(weight.shape[0], groups)

    def channel(index: Index) -> Expr:
        return divided(index[0], inner) * weight.shape[1] + index[1] if groups > 1 else index[1]

    return Sum(
        (windows.shape[0], *windows.shape[2:]),
        lambda i, r: factor(windows, [r[0], i[0], *r[1:]], dtype),
        lambda i, r: _windows(seen, r[0], channel(i), r[1:], i[2:], lie, dtype),
    )


def _bias_gradient(ctx: Builder, node: Node, name: str, grad: Tensor) -> None:
    """The bias's gradient: the sum over all dimensions but the channels, rounded once."""
    buffer, within = ctx.graph.buffers[name], accumulator(grad.dtype)
    over = (grad.shape[0], *grad.shape[2:])
    body = Reduction(
        "sum", buffer.shape, over, within, lambda i, r: factor(grad, [r[0], i[0], *r[1:]], grad.dtype)
    )
    if buffer.dtype == within:
        ctx.graph.nodes.append(replace(node, outputs=(name,), body=body))
        return
    total = ctx.new_buffer(within, buffer.shape, buffer.strides)
    ctx.graph.nodes.append(replace(node, outputs=(total.name,), body=body))
    rounded = Pointwise(
        buffer.shape,
        buffer.dtype,
        lambda index: ops.to_dtype(ops.load(total.name, tuple(index)), buffer.dtype),
    )
    ctx.graph.nodes.append(replace(node, outputs=(name,), body=rounded))
