"""3x3 convolutions with fewer multiplications: 2x2 results at a time (Winograd's F(2x2, 3x3)).

Four adjacent results of a window with stride one see 4x4 elements, a patch. For each channel they take 36
products; or 16 products of sums of the patch with sums of the weights (Lavin and Gray 2016, "Fast Algorithms
for Convolutional Neural Networks"; F(4x4, 3x3) would lose digits, this loses none)::

    patches[f, tile, c]  = sums of x's patch             weights[f, c, k] = sums of the weight, ahead
    products[f]          = patches[f] @ weights[f]       result = sums of the products, by row and column

Where x has an infinity, or a sum overflows, sums of the patch are NaN, and so are results that should not be.
Hence the graph gets a last output, a bool: whether a result was not finite. If it is set, the other outputs
are invalid, and the runtime runs a graph without Winograd (`smelt.runtime.deoptimize`).
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch
from sympy import Expr

from smelt.loops.ir import (
    Bind,
    Buffer,
    Check,
    Contraction,
    Extern,
    Graph,
    Index,
    Node,
    Pointwise,
    Reduction,
    StridedView,
    Value,
)
from smelt.ops import ops
from smelt.records import dataclass, replace
from smelt.schedule.context import Context
from smelt.schedule.graph.constants import frozen_buffers
from smelt.schedule.loops import Target
from smelt.symbolic import FloorDiv, Mod, contiguous_strides, size_hint, unflatten

FEWEST_CHANNELS, FEWEST_TILES = 64, 16
"""The fewest channels, of input and result, and tiles of four results for which it pays. More tiles are
needed where a cycle has more than 16 multiply-adds (`_fewest_tiles`).
"""
MOST_BYTES = 2**24
"""Limit on the bytes of patches and products together: larger ones do not stay in the caches."""
FREQUENCIES = 4
"""The number of sums of a row, and of a column, of a patch."""

ZERO, ONE, TWO = map(sympy.Integer, (0, 1, 2))


def with_winograd(graph: Graph, context: Context) -> Graph:
    """Computes 3x3 convolutions by Winograd's algorithm where that pays.

    A check of the results becomes the last output. The graph is unchanged where no convolution pays, or where
    it must not run twice.

    The convolutions: 3x3 with stride and dilation 1, without groups, in float32, with a weight that
    depends on frozen inputs alone.
    """
    config, target = context.config, context.target
    wanted = config.winograd and config.contractions and not config.ordered
    frozen = frozen_buffers(graph) if wanted else None
    if not frozen or not _may_run_again(graph):
        return graph
    found = replace(graph, buffers=dict(graph.buffers), nodes=[])
    flags = []
    for node in graph.nodes:
        if _pays(node, graph, frozen, _fewest_tiles(target)):
            rewritten = _Rewritten(node, found)
            found.nodes += rewritten.nodes()
            flags.append(rewritten.flag)
        else:
            found.nodes.append(node)
    if not flags:
        return graph
    name = "not_finite"
    found.buffers[name] = Buffer(name, torch.bool, (ONE,), (ONE,))
    found.nodes.append(
        Node((name,), Pointwise((ONE,), torch.bool, _Any(tuple(flags))), found.nodes[-1].origin)
    )
    found.outputs = [*graph.outputs, StridedView(name, (ONE,), (ONE,), ZERO)]
    return found


def _may_run_again(graph: Graph) -> bool:
    """Whether the graph can run again: it has no side effects and uses no random numbers."""
    return not graph.mutations and not any(
        isinstance(node.body, (Extern, Bind, Check)) for node in graph.nodes
    )


def _fewest_tiles(target: Target) -> int:
    """The fewest tiles for which it pays. The sums of the weights, nearly twice as many as weights, come from
    memory: about 8 flop a byte for 16 tiles. AVX2's memory bandwidth suffices for that; two 64-byte
    multiply-adds a cycle need twice as many.

    >>> [_fewest_tiles(target) for target in (Target(32, (), 2), Target(64, (), 1), Target(64, (), 2))]
    [16, 16, 32]
    """
    return max(FEWEST_TILES, target.lanes * target.multiply_adds)


def _pays(node: Node, graph: Graph, frozen: frozenset[str], fewest_tiles: int) -> bool:
    body = node.body
    if not isinstance(body, Contraction) or body.call.target != "aten.convolution.default":
        return False
    _, weight, _, stride, padding, dilation, transposed, _, groups = body.call.args
    if body.dtype != torch.float32 or len(body.shape) != 4:
        return False
    _, results, height, width = body.shape
    channels, *taps = body.reduce_shape
    if taps != [3, 3] or not (results.is_Integer and channels.is_Integer):
        return False
    if transposed or groups != 1 or {*stride, *dilation} != {1} or weight.buffer not in frozen:
        return False
    tiles = size_hint(_tiles(body), graph.hints)
    # the last patch of an odd size reaches beyond the convolution's own: only a padded input is asked there
    return (
        all(Mod(size, TWO) == 0 or pad > 0 for size, pad in ((height, padding[0]), (width, padding[-1])))
        and min(channels, results) >= FEWEST_CHANNELS
        and tiles >= fewest_tiles
        and 4 * FREQUENCIES**2 * tiles * (channels + results) <= MOST_BYTES
    )


def _tiles(body: Contraction) -> Expr:
    """The number of tiles of four results of a convolution."""
    images, _, height, width = body.shape
    return images * halves(height) * halves(width)


class _Rewritten:
    """The nodes that replace a convolution. ``flag``: the buffer that tells whether a result is not
    finite.
    """

    def __init__(self, node: Node, graph: Graph) -> None:
        assert isinstance(node.body, Contraction)
        self.node, self.body, self.graph = node, node.body, graph
        self.result = str(node.outputs[0])
        self.flag = self._buffer("flag", (), torch.bool)

    def nodes(self) -> Iterator[Node]:
        images, results, height, width = self.body.shape
        channels, tiles = self.body.reduce_shape[0], _tiles(self.body)
        sums, place = sympy.Integer(FREQUENCIES**2), (images, halves(height), halves(width))
        patches = self._buffer("patches", (sums, *place, channels))
        weights = self._buffer("weights", (sums, channels, results))
        products = self._buffer("products", (sums, tiles, results))
        yield self._pointwise(patches, _Patches(self.body))
        yield self._pointwise(weights, _Weights(self.body))
        shapes = {patches: (sums, tiles, channels), weights: (sums, channels, results)}
        views = [StridedView(name, shape, contiguous_strides(shape), ZERO) for name, shape in shapes.items()]
        product = Contraction(
            (sums, tiles, results),
            (channels,),
            torch.float32,
            lambda i, r: ops.load(patches, (i[0], *unflatten(i[1], place), r[0])),
            lambda i, r: ops.load(weights, (i[0], r[0], i[2])),
            None,
            Extern("aten.bmm.default", tuple(views), {}),
        )
        yield replace(self.node, outputs=(products,), body=product)
        yield self._pointwise(self.result, Results(self.body, products))
        pixels = self._buffer("pixels", (images, height, width), torch.bool)
        over_channels = Reduction("any", (images, height, width), (results,), torch.bool, self._is_not_finite)
        yield replace(self.node, outputs=(pixels,), body=over_channels)
        over_pixels = Reduction(
            "any", (), (images, height, width), torch.bool, lambda i, r: ops.load(pixels, r)
        )
        yield replace(self.node, outputs=(self.flag,), body=over_pixels)

    def _is_not_finite(self, index: Index, rindex: Index) -> Value:
        image, row, column = index
        value = ops.load(self.result, (image, rindex[0], row, column))
        return ops.ne(ops.sub(value, value), ops.constant(0.0, torch.float32))

    def _pointwise(self, name: str, function: _Patches | _Weights | Results) -> Node:
        body = Pointwise(self.graph.buffers[name].shape, torch.float32, function)
        return replace(self.node, outputs=(name,), body=body)

    def _buffer(self, purpose: str, shape: tuple[Expr, ...], dtype: torch.dtype = torch.float32) -> str:
        name = f"{self.result}_{purpose}"
        self.graph.buffers[name] = Buffer(name, dtype, shape, contiguous_strides(shape))
        return name


def halves(size: Expr) -> Expr:
    """The number of adjacent tiles for so many results; the last one may be half used."""
    return FloorDiv(size + 1, TWO)


def _sign(plus: Expr) -> Value:
    """1 where ``plus`` is 1, -1 where it is 0."""
    return ops.index_expr(2 * plus - 1, torch.float32)


@dataclass(frozen=True, slots=True)
class _Patches:
    """A loop function of (frequency, image, row and column of the tile, channel): a sum of two rows of a
    patch, each of two elements.

    By frequency: 0 - 2, 1 + 2, 2 - 1, 1 - 3.
    """

    body: Contraction

    def __call__(self, index: Index) -> Value:
        frequency, image, tile_row, tile_column, channel = index
        place = (image, ZERO, tile_row * 2, tile_column * 2)
        first, second, plus = _pair(Mod(frequency, sympy.Integer(FREQUENCIES)))

        def along(row: Expr) -> Value:
            left, right = (self.body.lhs(place, (channel, row, column)) for column in (first, second))
            return ops.fma(right, _sign(plus), left)

        upper, lower, added = _pair(FloorDiv(frequency, sympy.Integer(FREQUENCIES)))
        return ops.fma(along(lower), _sign(added), along(upper))


def _pair(frequency: Expr) -> tuple[Expr, Expr, Expr]:
    """The two elements of a line that form a sum, and 1 if they are added, 0 if they are subtracted.

    >>> [_pair(sympy.Integer(frequency)) for frequency in range(FREQUENCIES)]
    [(0, 2, 0), (1, 2, 1), (2, 1, 0), (1, 3, 0)]
    """
    half, third, odd = FloorDiv(frequency, TWO), FloorDiv(frequency, sympy.Integer(3)), Mod(frequency, TWO)
    return frequency - 2 * third, 2 + 2 * third - half, odd - third


@dataclass(frozen=True, slots=True)
class _Weights:
    """A loop function of (frequency, channel, channel of the result): sums of the weight's rows and columns.

    By frequency: 0, (0 + 1 + 2) / 2, (0 - 1 + 2) / 2, 2.
    """

    body: Contraction

    def __call__(self, index: Index) -> Value:
        frequency, channel, result = index
        of_rows, of_columns = (part(frequency, sympy.Integer(FREQUENCIES)) for part in (FloorDiv, Mod))

        def down(column: int) -> Value:
            taps = [(channel, sympy.Integer(row), sympy.Integer(column)) for row in range(3)]
            return _of_three(of_rows, [self.body.rhs((ZERO, result, ZERO, ZERO), tap) for tap in taps])

        return _of_three(of_columns, [down(column) for column in range(3)])


def _of_three(frequency: Expr, values: list[Value]) -> Value:
    first, middle, last = (
        ops.mul(value, ops.mul(ops.constant(0.5, torch.float32), ops.index_expr(twice, torch.float32)))
        for value, twice in zip(values, _twice(frequency))
    )
    return ops.add(ops.add(first, last), middle)


def _twice(frequency: Expr) -> tuple[Expr, Expr, Expr]:
    """Twice the weights of the three elements of a line in the sum.

    >>> [_twice(sympy.Integer(frequency)) for frequency in range(FREQUENCIES)]
    [(2, 0, 0), (1, 1, 1), (1, -1, 1), (0, 0, 2)]
    """
    last, inner = FloorDiv(frequency + 1, TWO), Mod(frequency, sympy.Integer(3))
    return 2 - last, inner - 3 * FloorDiv(inner, TWO), last


@dataclass(frozen=True, slots=True)
class Results:
    """A loop function: the convolution's results, as sums of the products of their tile.

    In the upper row of a tile 0 + 1 + 2, in the lower 1 - 2 - 3; so for the columns.
    """

    body: Contraction
    products: str

    channels_last = (0, 2, 3, 1)
    """The memory order of the result's dimensions, outermost first."""

    def __call__(self, index: Index) -> Value:
        image, channel, row, column = index
        _, _, height, width = self.body.shape
        tile = (image * halves(height) + FloorDiv(row, TWO)) * halves(width) + FloorDiv(column, TWO)
        below, right = Mod(row, TWO), Mod(column, TWO)

        def product(down: int, across: int) -> Value:
            frequency = (below + down) * FREQUENCIES + right + across
            return ops.load(self.products, (frequency, tile, channel))

        def along(down: int) -> Value:
            two = ops.add(product(down, 1), product(down, 2))
            return ops.fma(two, _sign(1 - right), product(down, 0))

        total = ops.fma(ops.add(along(1), along(2)), _sign(1 - below), along(0))
        return total if self.body.start is None else ops.add(total, self.body.start(index))


@dataclass(frozen=True, slots=True)
class _Any:
    """A loop function: whether one of the flags is set."""

    flags: tuple[str, ...]

    def __call__(self, index: Index) -> Value:
        found, *others = (ops.load(flag, ()) for flag in self.flags)
        for other in others:
            found = ops.logical_or(found, other)
        return found
