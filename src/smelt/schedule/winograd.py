"""Convolutions with fewer multiplications: two by two results at a time (Winograd's F(2x2, 3x3)).

Four results of a 3x3 window that moves by one, side by side two by two, see 4x4 elements. Instead of 36 products
for each channel, 16: of what 16 sums of the elements are with 16 sums of the weights (Lavin and Gray 2016,
"Fast Algorithms for Convolutional Neural Networks").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.ir import Buffer, Contraction, Extern, Graph, Index, Node, Pointwise, Reduction, StridedView, Value
from smelt.ops import ops
from smelt.symbolic import FloorDiv, Mod, contiguous_strides

FEWEST_CHANNELS, FEWEST_TILES = 64, 48
_I = sympy.Integer


def with_winograd(graph: Graph, frozen: frozenset[str]) -> Graph:
    nodes: list[Node] = []
    found = replace(graph, buffers=dict(graph.buffers))
    flags: list[str] = []
    for node in graph.nodes:
        if _pays(node, graph, frozen):
            made = _Rewritten(node, found)
            nodes += made.nodes()
            flags.append(made.flag)
        else:
            nodes.append(node)
    if not flags:
        return graph
    found.buffers["infinite"] = Buffer("infinite", torch.bool, (_I(1),), (_I(1),))
    nodes.append(Node(("infinite",), Pointwise((_I(1),), torch.bool, _Any(tuple(flags))), nodes[-1].origin))
    outputs = [*graph.outputs, StridedView("infinite", (_I(1),), (_I(1),), _I(0))]
    return replace(found, nodes=nodes, outputs=outputs)


@dataclass(frozen=True, slots=True)
class _Any:
    flags: tuple[str, ...]

    def __call__(self, index: Index) -> Value:
        first, *rest = (ops.load(flag, ()) for flag in self.flags)
        for each in rest:
            first = ops.logical_or(first, each)
        return first


def _pays(node: Node, graph: Graph, frozen: frozenset[str]) -> bool:
    body = node.body
    if not isinstance(body, Contraction) or body.dtype != torch.float32 or len(body.shape) != 4:
        return False
    if body.call.target != "aten.convolution.default":
        return False
    x, weight, _, stride, padding, dilation, transposed, _, groups = body.call.args
    if not (isinstance(weight, StridedView) and weight.buffer in frozen):
        return False
    if transposed or groups != 1 or set(stride) != {1} or set(dilation) != {1}:
        return False
    if not all(size.is_Integer for size in (*body.shape, *body.reduce_shape)):
        return False
    n, k, h, w = map(int, body.shape)
    c, *taps = map(int, body.reduce_shape)
    return taps == [3, 3] and h % 2 == w % 2 == 0 and min(c, k) >= FEWEST_CHANNELS and n * h * w // 4 >= FEWEST_TILES


class _Rewritten:
    def __init__(self, node: Node, graph: Graph) -> None:
        self.node, self.graph = node, graph

    def nodes(self) -> Iterator[Node]:
        body = self.node.body
        n, k, h, w = body.shape
        c = body.reduce_shape[0]
        tiles = n * h * w / 4
        weights = self._buffer("weights", (_I(16), c, k))
        patches = self._buffer("patches", (_I(16), tiles, c))
        products = self._buffer("products", (_I(16), tiles, k))
        origin = self.node.origin
        yield Node((weights,), Pointwise((_I(16), c, k), torch.float32, _Weights(body)), origin)
        yield Node((patches,), Pointwise((_I(16), tiles, c), torch.float32, _Patches(body)), origin)
        views = [StridedView(name, self.graph.buffers[name].shape, self.graph.buffers[name].strides, _I(0)) for name in (patches, weights)]
        call = Extern("aten.bmm.default", tuple(views), {})
        yield Node((products,), Contraction((_I(16), tiles, k), (c,), torch.float32,
            lambda i, r: ops.load(patches, (i[0], i[1], r[0])), lambda i, r: ops.load(weights, (i[0], r[0], i[2])), None, call), origin)
        yield replace(self.node, body=Pointwise(body.shape, torch.float32, Results(body, products)))
        whole = str(self.node.outputs[0])
        rows = self._buffer("rows", (n, h, w), torch.bool)
        yield Node((rows,), Reduction("any", (n, h, w), (k,), torch.bool, lambda i, r: _infinite(ops.load(whole, (i[0], r[0], i[1], i[2])))), origin)
        self.flag = self._buffer("flag", (), torch.bool)
        yield Node((self.flag,), Reduction("any", (), (n, h, w), torch.bool, lambda i, r: ops.load(rows, r)), origin)

    def _buffer(self, purpose: str, shape: tuple[Expr, ...], dtype: torch.dtype = torch.float32) -> str:
        name = f"{self.node.outputs[0]}_{purpose}"
        self.graph.buffers[name] = Buffer(name, dtype, shape, contiguous_strides(shape))
        return name


def _infinite(value: Value) -> Value:
    return ops.logical_not(ops.eq(ops.sub(value, value), ops.constant(0.0, torch.float32)))


def _sign(plus: Expr) -> Value:
    """1 where ``plus`` is 1, -1 where it is 0."""
    return ops.index_expr(2 * plus - 1, torch.float32)


@dataclass(frozen=True, slots=True)
class _Patches:
    """(frequency, tile, channel): of rows 0 to 3 of a tile 0-2, 1+2, 2-1 or 1-3, of the columns of these too."""

    body: Contraction

    def __call__(self, index: Index) -> Value:
        frequency, tile, channel = index
        h, w = self.body.shape[2:]
        across = w / 2
        row, column = Mod(FloorDiv(tile, across), h / 2) * 2, Mod(tile, across) * 2
        image = FloorDiv(tile, across * (h / 2))
        (a, b, s), (d, e, t) = _pair(FloorDiv(frequency, _I(4))), _pair(Mod(frequency, _I(4)))

        def seen(i: Expr, j: Expr) -> Value:
            return self.body.lhs((image, _I(0), row, column), (channel, i, j))

        def across_(i: Expr) -> Value:
            return ops.fma(seen(i, e), _sign(t), seen(i, d))

        return ops.fma(across_(b), _sign(s), across_(a))


def _pair(i: Expr) -> tuple[Expr, Expr, Expr]:
    """Rows a and b, and whether b is added to a, for frequency i: (0, 2, 0), (1, 2, 1), (2, 1, 0), (1, 3, 0)."""
    half, third = FloorDiv(i, _I(2)), FloorDiv(i, _I(3))
    one = FloorDiv(i + 1, _I(2)) - half  # i is odd
    return i - 2 * third, 2 + 2 * third - half, one - third


@dataclass(frozen=True, slots=True)
class _Weights:
    """(frequency, channel, result's channel): w0, (w0 + w1 + w2) / 2, (w0 - w1 + w2) / 2 or w2, both ways."""

    body: Contraction

    def __call__(self, index: Index) -> Value:
        frequency, channel, out = index
        zero = _I(0)

        def weight(i: int, j: int) -> Value:
            return self.body.rhs((zero, out, zero, zero), (channel, _I(i), _I(j)))

        rows = [_weight_sum(FloorDiv(frequency, _I(4)), [weight(i, j) for i in range(3)]) for j in range(3)]
        return _weight_sum(Mod(frequency, _I(4)), rows)


def _weight_sum(i: Expr, w: list[Value]) -> Value:
    ends = ops.add(w[0], w[2])
    half = ops.constant(0.5, torch.float32)
    middle = ops.mul(half, ops.where(_is(i, 1), ops.add(ends, w[1]), ops.sub(ends, w[1])))
    return ops.where(_is(i, 0), w[0], ops.where(_is(i, 3), w[2], middle))


def _is(i: Expr, value: int) -> Value:
    return ops.eq(ops.index_expr(i, torch.int64), ops.constant(value, torch.int64))


@dataclass(frozen=True, slots=True)
class Results:
    """Row 0 of a tile: products 0+1+2, row 1: 1-2-3; columns alike."""

    body: Contraction
    products: str

    def __call__(self, index: Index) -> Value:
        image, out, row, column = index
        h, w = self.body.shape[2:]
        tile = (image * (h / 2) + FloorDiv(row, _I(2))) * (w / 2) + FloorDiv(column, _I(2))
        i, j = Mod(row, _I(2)), Mod(column, _I(2))

        def product(di: int, dj: int) -> Value:
            return ops.load(self.products, ((i + di) * 4 + j + dj, tile, out))

        def along(di: int) -> Value:
            return ops.fma(ops.add(product(di, 1), product(di, 2)), _sign(1 - j), product(di, 0))

        total = ops.fma(ops.add(along(1), along(2)), _sign(1 - i), along(0))
        return total if self.body.start is None else ops.add(total, self.body.start(index))
