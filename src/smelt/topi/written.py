"""Loop functions as te expressions: a handler whose values are those of `smelt.te`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from sympy import Expr, Integer, Symbol

from smelt.loops.ir import Contraction, Node, Pointwise, Reduction, accumulator
from smelt.loops.reductions import MODES
from smelt.ops import Handler, ops, using
from smelt.symbolic import loop_var
from smelt.symbolic.affine import replaced
from smelt.te import reductions
from smelt.te.errors import refuse
from smelt.te.index import Idx, IterVar, public
from smelt.te.reductions import Reducer
from smelt.te.tensor import Tensor, compute
from smelt.te.value import Bits, Choice, Elementwise, Load, Lookup, Number, Value, cast


class Writer(Handler):
    """Runs a loop function to record its expression.

    Args:
        tensors: the te tensor of every buffer that may be loaded, or a constant.
        symbols: the loop function's name of a size → te's.
    """

    def __init__(self, tensors: Mapping[str, Any], symbols: Mapping[Symbol, Expr]) -> None:
        self.tensors, self.symbols = tensors, symbols
        self.axes: Sequence[IterVar] = ()
        """The axes of a broadcasting stage."""

    def _at(self, expr: Expr | int) -> Expr:
        return replaced(expr, self.symbols) if isinstance(expr, Expr) else Integer(expr)

    def elementwise(self, name: str, *args: Value) -> Value:
        try:
            return Elementwise(name, args)
        except TypeError as error:
            refuse("SM1121", str(error).replace("torch.", ""))

    def load(self, buffer: str, index: Sequence[Expr]) -> Value:
        found = self.tensors[buffer]
        if isinstance(found, Number):
            return found
        return Load(found, self._aligned(found, [self._at(at) for at in index]))

    def _aligned(self, tensor: Tensor, index: list[Expr]) -> list[Expr]:
        """An index with 0 replaced by the axis that is always 0 there: ``A[1, n]`` reads like ``A[m, n]``."""
        skipped = len(self.axes) - len(index)
        for dim, axis in enumerate(self.axes[skipped:] if skipped >= 0 else ()):
            if index[dim] == 0 and axis.extent == 1 and tensor.sizes[dim] == 1:
                index[dim] = axis.expr
        return index

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> Value:
        return Number(value, dtype)

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> Value:
        at = self._at(expr)
        if at.is_Integer:
            return Number(int(at), dtype)
        kind = dtype if dtype in (torch.int32, torch.int64) else torch.int64
        return cast(Idx(at, kind), dtype)

    def to_dtype(self, x: Value, dtype: torch.dtype) -> Value:
        return cast(x, dtype)

    def bitcast(self, x: Value, dtype: torch.dtype) -> Value:
        return x if x.kind == dtype else Bits(x, dtype)

    def masked(self, mask: Value, body: Callable[[], Value], other: float | int | bool) -> Value:
        then = body()
        return Choice(mask, then, Number(other, then.kind), lazy=True)

    def indirect_index(self, x: Value, size: Expr, *, wrap: bool = True, check: bool | str = True) -> Expr:
        return Lookup(x, self._at(size), wrap, check).symbol


class Labels:
    """Names of stages and their axes: ``name`` for the last stage, ``steps`` for those before it."""

    def __init__(
        self,
        name: str,
        axes: str | Sequence[str] = "ax",
        reduce: Sequence[str] = (),
        tag: str = "",
        steps: Sequence[str] = (),
    ) -> None:
        self.name, self.axes, self.reduce, self.tag, self.steps = name, axes, tuple(reduce), tag, tuple(steps)

    def before(self, number: int) -> str:
        return self.steps[number] if number < len(self.steps) else f"{self.name}_{number}"

    def spatial(self, rank: int) -> list[str]:
        if not isinstance(self.axes, str) and len(self.axes) == rank:
            return list(self.axes)
        return [f"{self.axes if isinstance(self.axes, str) else 'ax'}{dim}" for dim in range(rank)]

    def reduced(self, rank: int) -> list[str]:
        return [self.reduce[dim] if dim < len(self.reduce) else f"k{dim}" for dim in range(rank)]


def stage(
    writer: Writer, shape: Sequence[Expr], f: Callable[[list[Expr]], Any], labels: Labels, name: str
) -> Any:
    """The te tensor of ``f`` of an index under the writer; several if ``f`` returns a tuple."""

    def body(*axes: IterVar) -> Any:
        writer.axes = axes if labels.tag in ("broadcast", "elemwise") else ()
        with using(writer):
            return f([axis.expr for axis in axes])

    sizes = [public(writer._at(size)) for size in shape]
    return compute(sizes, body, name, labels.tag, varargs_names=labels.spatial(len(shape)))


def node_tensors(writer: Writer, node: Node, labels: Labels, name: str) -> list[Any]:
    """The te tensors that a node of a loop graph defines.

    A reduction of several outputs becomes several reductions: each of them is a loop function.
    """
    body = node.body
    if isinstance(body, Pointwise):
        return [stage(writer, body.shape, body.inner_fn, labels, name)]
    if isinstance(body, Contraction):
        return [_contraction(writer, body, labels, name)]
    if not isinstance(body, Reduction):
        what = getattr(body, "target", type(body).__name__.lower())
        refuse("SM1120", f"{name.removeprefix('T_')}: a stage cannot hold a {what}")
    return _reductions(writer, body, labels, name)


def _axes(writer: Writer, extents: Sequence[Expr], labels: Labels) -> list[IterVar]:
    return [
        IterVar(label, Integer(0), writer._at(extent), torch.int32, reduce=True)
        for label, extent in zip(labels.reduced(len(extents)), extents)
    ]


def _reduced(
    writer: Writer,
    kind: Reducer,
    body: Reduction | Contraction,
    inner: Callable[[Sequence[Expr], Sequence[Expr]], Any],
    labels: Labels,
    name: str,
    init: Callable[[Sequence[Expr]], Any] | None = None,
) -> Any:
    axes = _axes(writer, body.reduce_shape, labels)
    at = [axis.expr for axis in axes]

    def value(index: list[Expr]) -> Any:
        return kind(inner(index, at), axis=axes, init=None if init is None else init(index))

    return stage(writer, body.shape, value, labels, name)


def _contraction(writer: Writer, body: Contraction, labels: Labels, name: str) -> Tensor:
    within = accumulator(body.dtype)

    def product(index: Sequence[Expr], at: Sequence[Expr]) -> Any:
        return ops.mul(body.lhs(index, at), body.rhs(index, at))

    first = name if within == body.dtype else f"{name}_sum"
    found = _reduced(writer, reductions.sum, body, product, labels, first, body.start)
    if within == body.dtype:
        return found  # type: ignore[no-any-return]
    return converted(writer, found, body.dtype, labels, name)


def converted(writer: Writer, tensor: Tensor, kind: torch.dtype, labels: Labels, name: str) -> Tensor:
    """The tensor in another dtype."""
    found: Tensor = stage(writer, tensor.sizes, lambda at: cast(Load(tensor, at), kind), labels, name)
    return found


_KINDS = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "any": "max", "all": "min"}


def _reductions(writer: Writer, body: Reduction, labels: Labels, name: str) -> list[Any]:
    kind = body.kind
    if kind in _KINDS:
        assert _KINDS[kind] in MODES
        return [_reduced(writer, getattr(reductions, _KINDS[kind]), body, body.inner_fn, labels, name)]
    if kind in ("argmax", "argmin"):
        return [_position(writer, body, labels, name)]
    if kind == "online_softmax":
        top = _reduced(writer, reductions.max, body, body.inner_fn, labels, f"{name}_max")

        def powers(index: Sequence[Expr], at: Sequence[Expr]) -> Any:
            largest = Load(top, index)
            below = ops.eq(largest, ops.constant(float("-inf"), body.dtype))
            value = body.inner_fn(index, at)
            nothing = ops.constant(0.0, body.dtype)
            return ops.where(below, nothing, ops.exp(ops.sub(value, largest)))

        return [top, _reduced(writer, reductions.sum, body, powers, labels, f"{name}_sum")]
    if kind != "welford":
        refuse("SM1120", f"{name.removeprefix('T_')}: a stage cannot hold a {kind}")
    return _welford(writer, body, labels, name)


def _welford(writer: Writer, body: Reduction, labels: Labels, name: str) -> list[Any]:
    """Mean, sum of squared deviations and count, in two passes: loops without a state."""
    count: Expr = Integer(1)
    for extent in body.reduce_shape:
        count *= extent
    total = _reduced(writer, reductions.sum, body, body.inner_fn, labels, f"{name}_sum")

    def number(index: Sequence[Expr]) -> Any:
        return ops.index_expr(count, body.dtype)

    def average(index: Sequence[Expr]) -> Any:
        return ops.truediv(Load(total, index), number(index))

    mean = stage(writer, body.shape, average, labels, f"{name}_mean")

    def squared(index: Sequence[Expr], at: Sequence[Expr]) -> Any:
        deviation = ops.sub(body.inner_fn(index, at), Load(mean, index))
        return ops.mul(deviation, deviation)

    squares = _reduced(writer, reductions.sum, body, squared, labels, f"{name}_squares")
    return [mean, squares, stage(writer, body.shape, number, labels, f"{name}_count")]


def _position(writer: Writer, body: Reduction, labels: Labels, name: str) -> Tensor:
    """The row-major position of the extreme, int64."""
    axes = _axes(writer, body.reduce_shape, labels)
    at = [axis.expr for axis in axes]
    place: Expr = Integer(0)
    for axis, extent in zip(at, body.reduce_shape):
        place = place * writer._at(extent) + axis

    def value(index: list[Expr]) -> Any:
        pair = (Idx(place, torch.int64), body.inner_fn(index, at))
        return getattr(reductions, body.kind)(pair, axis=axes)[0]

    return stage(writer, body.shape, value, labels, name)  # type: ignore[no-any-return]


def placeholder_symbols(rank: int) -> list[Symbol]:
    """Variables for an index of that many dimensions."""
    return [loop_var(f"p{dim}") for dim in range(rank)]
