"""The choice of kernel for a contraction, and the packing of its operands."""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence

import sympy
import torch
from sympy import Expr

from smelt.config import Config
from smelt.loops.dependencies import variables
from smelt.loops.ir import (
    AttentionGradients,
    Attentions,
    Buffer,
    Contraction,
    Extern,
    Graph,
    Index,
    Node,
    Pointwise,
    Reduction,
    Value,
    accumulator,
)
from smelt.lowering.dims import convert
from smelt.ops import ops
from smelt.records import dataclass, replace
from smelt.schedule.attention.few_queries import Blocks, as_reductions, why_not_few
from smelt.schedule.attention.kernels import attention_pays, has_attention_nest
from smelt.schedule.context import Choose, Context
from smelt.schedule.few_rows import MOST_STREAMED_ROWS, has_few_rows
from smelt.schedule.graph.constants import frozen_buffers
from smelt.schedule.graph.layouts import Layouts, fixed_buffers
from smelt.schedule.graph.ordered import is_of_products, refuse
from smelt.schedule.graph.own import with_products
from smelt.schedule.graph.winograd import Results
from smelt.schedule.graph.zero_padding import Halos, Sides
from smelt.schedule.loops import Target
from smelt.schedule.products.boxes import Boxed, Place, box
from smelt.schedule.products.integers import Weight, with_integers
from smelt.schedule.products.matrix_tiles import HEIGHT, ROWS
from smelt.schedule.products.operands import (
    Product,
    Split,
    is_plain,
    is_windowed,
    lhs_place,
    memory_order,
    operand_code,
    place_before_cast,
    readable_in_place,
    strides_in_order,
    swapped,
    symbols_of,
)
from smelt.schedule.products.panels import Panels
from smelt.schedule.products.split_dimensions import product_of
from smelt.schedule.products.tiles import ZERO, panel_width, swapped_panels
from smelt.schedule.tilings import Extents, Tiles, split_dim, usual_tiles
from smelt.symbolic import contiguous_strides, size_hint
from smelt.symbolic.affine import linear

FEWEST_ROWS, FEW_ROWS = 32, 8
"""Limits on the rows of matrix products below which ATen computes them because packing would take longer than
ATen's call: with more than `MOST_PACKED` elements to pack, for one matrix or, with fewer than `FEW_ROWS`, for
all.
"""
MOST_PACKED = 2**14
"""Elements whose packing takes as long as a call of ATen."""
FEWEST_COLUMNS, MOST_PADDED = 4, 2**16
"""Columns below which a panel is mostly padding: ATen computes these if lhs has more than `MOST_PADDED`
elements.
"""
FEWEST_DOTTED = 64
"""The fewest columns and terms of a 16-bit product in the processor's own instructions."""
FEWEST_PANELS = 8
"""Panels from which on every thread has enough of its own, and packs them."""
FEWEST_PIXELS, FEWEST_CHANNELS, FEWEST_TAPS = 32, 4, 3
"""Limits on rows, columns and terms of convolutions below which ATen computes them; for depthwise
convolutions, on the smaller of rows and terms.
"""
MOST_SWAPPED_ROWS, MORE_COLUMNS = 144, 2
"""The most rows of a product with swapped operands, and the fewest columns for each row."""
FEWEST_SWAPPED_TERMS, FEWEST_SWAPPED_WEIGHTS = 64, 2**16
"""The fewest terms of such a product, and elements of its weight: packing its rows is an additional step."""
SAVED_ROWS = 11
"""The saving of swapped operands, in rows for every 8 lanes: packing a column takes as long as multiplying it
with some 15 rows, and the result has to be transposed.
"""
MOST_ROWS = 4
"""Limit on the rows of products in a 16-bit dtype that the processor multiplies itself: ATen computes larger
ones, as ours are in float32.
"""
MOST_IN_PLACE = 256
"""Limit on the rows of a product in matrix registers: with more, ATen's packing of the weight pays."""
FEWEST_TO_TRANSPOSE, MOST_TO_TRANSPOSE = 48, 2**20
"""The fewest terms of a product whose result has to be transposed; with at most ``MOST_TO_TRANSPOSE``
multiplications it always pays, as a call of ATen takes longer.
"""


MOST_SUMMED = 2**14
"""Multiplications of a product up to which packing takes longer than plain sums."""


def choose_kernels(graph: Graph, context: Context) -> Graph:
    """Gives every contraction its kernel, or ATen's call; so in the bodies of control flow.

    A product that pays (``Context.choose``, `worth_it` where it is None) becomes its sums, in a buffer of the
    accumulator's dtype, and a pointwise node that adds the start and rounds; all others become ATen's call.
    For a GPU, or of few rows, the sums are a reduction like any other (`smelt.schedule.dots` and
    `smelt.schedule.few_rows` have the recipes); of quantized operands they are sums of integers
    (`smelt.schedule.products.integers`). Packing is a pointwise node of its own. Values computed from a
    convolution keep its channels-last layout; padded inputs of a convolution have a halo of zeros in memory.
    """
    if context.config.own:
        graph = with_products(graph)
    chosen = replace(
        graph, buffers=dict(graph.buffers), nodes=[], hints=dict(graph.hints), limits=dict(graph.limits)
    )
    counted: dict[Hashable, Blocks] = {}
    packed: dict[Hashable, str] = {}
    frozen = frozen_buffers(graph)
    config, target = context.config, context.target
    choose = context.choose or (is_tiled if config.own else worth_it)
    products, fixed = _products(graph, config, target, choose, frozen)
    layouts = Layouts(fixed, chosen)
    halos = Halos(chosen, layouts, frozen, graph.nodes)
    for node in graph.nodes:
        product = products.get(id(node))
        if config.ordered:
            made: Iterable[Node] = _in_order(node, chosen, context, counted)
        elif product is None and config.own and isinstance(node.body, Contraction):
            made = _as_sums(node, None, chosen, target)
        elif product is None:
            made = _without_product(node, chosen, context, counted)
        elif product.pairs:
            made = _Native(node, product, chosen, layouts, halos, target, packed).nodes()
        elif (integers := with_integers(product, chosen, target)) is not None:
            made = _Native(
                node, replace(product, body=integers), chosen, layouts, halos, target, packed
            ).nodes()
        elif target.blocks or has_few_rows(product, chosen, target):
            made = _as_sums(node, product, chosen, target)
        else:
            if _swapping_pays(product, chosen, target.lanes):
                product = swapped(product)
            made = _Native(node, product, chosen, layouts, halos, target, packed).nodes()
        for each in made:
            if _is_joined(chosen.nodes, each):
                continue
            chosen.nodes.append(each)
            if isinstance(each.body, Pointwise) and isinstance(each.body.inner_fn, Results):
                _place(str(each.outputs[0]), each.body, layouts)
            layouts.follow(each)
            halos.note(each)
    chosen.outputs = layouts.outputs()
    return chosen


def _place(name: str, body: Pointwise, layouts: Layouts) -> None:
    """Gives a convolution's result the layout of its products, unless its layout is fixed."""
    if name not in layouts.fixed:
        layouts.place(name, strides_in_order(body.shape, Results.channels_last))


def _products(
    graph: Graph, config: Config, target: Target, choose: Choose, frozen: frozenset[str]
) -> tuple[dict[int, Product], set[str]]:
    """The products that get a kernel, by their node's id; and the buffers with a fixed layout.

    A convolution's result is channels-last. If its layout is fixed otherwise, because ATen reads it for
    example, and it has few terms, ATen computes it.
    """
    contractions = [node for node in graph.nodes if isinstance(node.body, Contraction)]
    products: dict[int, Product] = {}
    for node in contractions if config.contractions and not config.ordered else ():
        assert isinstance(node.body, Contraction)
        product = product_of(node.body, graph, frozen)
        found = product is not None and choose(product, graph, target)
        if product is not None and found:
            if has_matrix_tiles(product, graph, target) and with_integers(product, graph, target) is None:
                product = replace(swapped(product), pairs=True)
            products[id(node)] = replace(product, tiles=found) if isinstance(found, Tiles) else product
    while True:
        fixed = fixed_buffers(graph, [node for node in contractions if id(node) not in products])
        if config.own:
            return products, fixed
        lost = [
            node
            for node in contractions
            if id(node) in products
            and node.outputs[0] in fixed
            and _is_costly_to_transpose(products[id(node)], graph)
            and not _has_result_layout(products[id(node)], graph.buffers[node.outputs[0]])
        ]
        if not lost:
            return products, fixed
        for node in lost:
            del products[id(node)]


def _is_costly_to_transpose(product: Product, graph: Graph) -> bool:
    sizes = [size_hint(size, graph.hints) for size in (*product.extents, product.depth)]
    return sizes[-1] < FEWEST_TO_TRANSPOSE and math.prod(sizes) > MOST_TO_TRANSPOSE


def _has_result_layout(product: Product, result: Buffer) -> bool:
    """Whether the layout that a product writes is the layout of its result buffer."""
    dims = [d for d, size in enumerate(result.shape) if size != 1]
    strides = product.whole_strides
    wanted = sorted(dims, key=lambda d: size_hint(strides[d], {}))
    found = sorted(dims, key=lambda d: size_hint(result.strides[d], {}))
    return wanted == found


def _without_product(
    node: Node, graph: Graph, context: Context, counted: dict[Hashable, Blocks]
) -> Iterable[Node]:
    """The node, or ATen's call; an attention of few queries as its sums, if that pays."""
    made = _without_kernel(node, graph, context)
    body = made.body
    if context.target.blocks or not isinstance(body, Attentions) or why_not_few(body, graph) is not None:
        return [made]
    return as_reductions(made, graph, counted, limited=context.config.own)


def _in_order(node: Node, graph: Graph, context: Context, counted: dict[Hashable, Blocks]) -> Iterable[Node]:
    """The node, its products as sums that have one order (`smelt.schedule.graph.ordered`)."""
    refuse(node, graph)
    body = node.body
    if isinstance(body, Contraction):
        return _as_sums(node, None, graph, context.target)
    if isinstance(body, Attentions):
        return as_reductions(node, graph, counted, from_first=False) if is_of_products(body) else [node]
    return [_without_kernel(node, graph, context)]


def _without_kernel(node: Node, graph: Graph, context: Context) -> Node:
    """The node; a contraction becomes ATen's call, and an attention where that pays."""
    body = node.body
    if isinstance(body, Attentions):
        only_ours = body.call.target.startswith("higher_order.")
        pays = context.choose or worth_it
        native = only_ours or context.config.own
        native = native or (context.config.contractions and bool(pays(body, graph, context.target)))
        if native:
            return node
        unread = (None,) * (body.results - 3) if isinstance(body, AttentionGradients) else ()
        return replace(node, outputs=(*node.outputs, *unread), body=body.call)
    if isinstance(body, Extern) and body.bodies:
        inner = tuple(choose_kernels(each, context) for each in body.bodies)
        return replace(node, body=replace(body, bodies=inner))
    if isinstance(body, Contraction):
        outputs: list[str | None] = [None] * body.results
        outputs[body.result] = node.outputs[0]
        return replace(node, outputs=tuple(outputs), body=body.call)
    return node


def _is_joined(nodes: list[Node], node: Node) -> bool:
    """Whether an earlier node is the same call of ATen; if so, that node's call gives this node's results as
    well.
    """
    if not isinstance(node.body, Extern) or len(node.outputs) == 1:
        return False
    for place, each in enumerate(nodes):
        if each.body is node.body:
            outputs = tuple(own if other is None else other for own, other in zip(each.outputs, node.outputs))
            nodes[place] = replace(each, outputs=outputs)
            return True
    return False


def has_nest(product: Product | Attentions, graph: Graph, target: Target) -> bool:
    """Whether `smelt.schedule.products.nests` has a nest for a product, or there is one for an attention."""
    if not isinstance(product, Product):
        return has_attention_nest(product, graph)
    if any(size == 0 for size in (*product.extents, product.depth)):
        return False
    if not _is_plain_rhs(product.body, graph) and box(product, graph, "rhs") is None:
        return False
    if is_matrix_product(product):
        return True
    if (product.batch and product.split is None) or box(product, graph) is None:
        return False
    if product.shared:
        width, lanes = product.extents[-1], target.lanes
        return bool(width.is_Integer) and int(width) % lanes == 0  # lanes beyond would read on
    return True


def is_tiled(product: Product | Attentions, graph: Graph, target: Target) -> bool:
    """Whether a product gets a register tile where there is no ATen (`smelt.config.Config.own`): the others
    are plain sums.
    """
    if not isinstance(product, Product) or not has_nest(product, graph, target):
        return False
    sizes = [size_hint(size, graph.hints) for size in (*product.extents, product.depth)]
    streamed = is_matrix_product(product) and not product.frozen and sizes[-3] <= MOST_STREAMED_ROWS
    return worth_it(product, graph, target) or (math.prod(sizes) > MOST_SUMMED and not streamed)


def worth_it(product: Product | Attentions, graph: Graph, target: Target) -> bool:
    """Whether there is a nest for a product or an attention, and it is large enough to pay: a rule."""
    if not isinstance(product, Product):
        return attention_pays(product, graph)
    if not has_nest(product, graph, target):
        return False
    *batch, rows, columns, depth = (size_hint(s, graph.hints) for s in (*product.extents, product.depth))
    if with_integers(product, graph, target) is not None:
        return True
    if has_few_rows(product, graph, target):
        return True
    if has_matrix_tiles(product, graph, target):
        return True
    if product.body.dtype in target.dot_products:
        return (
            is_matrix_product(product)
            and product.frozen
            and rows <= MOST_ROWS
            and min(columns, depth) >= FEWEST_DOTTED
        )
    if is_matrix_product(product):
        packed = columns * depth * (math.prod(batch) if rows < FEW_ROWS else 1)
        packs = product.frozen or rows >= FEWEST_ROWS or packed <= MOST_PACKED
        pays = packs or _swapping_pays(product, graph, target.lanes)
        return pays and (columns >= FEWEST_COLUMNS or rows * depth <= MOST_PADDED)
    if product.shared:
        return max(rows, depth) >= FEWEST_PIXELS and min(rows, depth) >= FEWEST_TAPS
    if product.frozen and rows < FEWEST_CHANNELS:  # as a matrix product: calling ATen takes longer
        return depth >= FEWEST_PIXELS and (columns >= FEWEST_COLUMNS or rows * depth <= MOST_PADDED)
    return max(rows, depth) >= FEWEST_PIXELS and min(rows, columns, depth) >= FEWEST_CHANNELS


def has_matrix_tiles(product: Product, graph: Graph, target: Target) -> bool:
    """Whether matrix registers sum a product: of a weight whose columns' terms are contiguous."""
    *batch, rows, columns = product.extents
    body, sizes = product.body, (columns, product.depth)
    special = batch or product.shared or product.split is not None or product.swapped
    if (
        not target.matrix_tiles
        or special
        or body.dtype is not torch.bfloat16
        or not is_matrix_product(product)
    ):
        return False
    if not all(size.is_Integer and int(size) % HEIGHT == 0 for size in sizes) or rows == 1:
        return False
    if rows.is_Integer and int(rows) > MOST_IN_PLACE:
        return False
    if has_few_rows(product, graph, target):
        return False
    found = place_before_cast(body.rhs, body, graph)
    if found is None or graph.buffers[found[0]].dtype is not body.dtype or not _is_plain_rhs(body, graph):
        return False
    (column,), (term,) = (variables("i", len(body.shape))[d] for d in product.columns), variables("r", 1)
    return linear(found[1], term)[0] == 1 and linear(found[1], column)[0] == product.depth


def _is_plain_rhs(body: Contraction, graph: Graph) -> bool:
    return is_plain(operand_code(body.rhs, body, graph))


def is_matrix_product(product: Product) -> bool:
    """Whether rows, columns and terms are one dimension each, rows and columns the last two of the result."""
    rank = len(product.body.shape)
    last = (product.rows, product.columns) == ((rank - 2,), (rank - 1,))
    return last and len(product.body.reduce_shape) == 1


def _swapping_pays(product: Product, graph: Graph, lanes: int) -> bool:
    """Whether to swap the operands: lhs is packed, and rhs, a weight that may change between calls, is read
    in place. That pays if few rows use the weight, so that packing it would take longer, but enough to fill
    most of a vector, and if each column's terms are contiguous. Dynamic numbers of rows do not qualify.
    """
    plain = not (product.frozen or product.shared or product.batch or product.split)
    sizes = (*product.extents, product.depth)
    if not plain or not all(size.is_Integer for size in sizes):
        return False
    rows, columns, depth = map(int, sizes)
    if rows > min(MOST_SWAPPED_ROWS, columns // MORE_COLUMNS):
        return False
    if depth < FEWEST_SWAPPED_TERMS or columns * depth < FEWEST_SWAPPED_WEIGHTS:
        return False
    cost, _ = swapped_panels(rows, lanes)
    if cost * lanes > rows + SAVED_ROWS * lanes / 8:
        return False
    other = swapped(product)
    packs = _is_plain_rhs(other.body, graph) or box(other, graph, "rhs") is not None
    return packs and readable_in_place(other, graph)


def _as_sums(node: Node, product: Product | None, graph: Graph, target: Target) -> list[Node]:
    """A contraction as a reduction, or one over parts of the terms and one that adds these, and the result
    from its sums.

    sums[i] = sum_r f(i, r)  →  parts[k, i] = sum_b f(i, k*B + b);  sums[i] = sum_k parts[k, i]
    """
    body, made = node.body, []
    assert isinstance(body, Contraction)
    within, terms = accumulator(body.dtype), body.reduce_shape
    tiles = None
    if product is not None:
        tiles = product.tiles or usual_tiles(extents_of(product, graph), target.multiprocessors, terms)

    def add(name: str, of: Reduction) -> str:
        buffer = Buffer(f"{node.outputs[0]}_{name}", within, of.shape, contiguous_strides(of.shape))
        graph.buffers[buffer.name] = buffer
        made.append(replace(node, outputs=(buffer.name,), body=of))
        return buffer.name

    notes = tiles.notes if tiles is not None and target.blocks else ()
    sums = Reduction("sum", body.shape, terms, within, _Products(body), product=notes)
    dim = split_dim(terms, tiles.parts) if tiles is not None and tiles.parts > 1 else None
    if tiles is not None and dim is not None:
        length, count = terms[dim] / tiles.parts, sympy.Integer(tiles.parts)
        rest = (*terms[:dim], length, *terms[dim + 1 :])
        products = _Products(body, dim, length)
        parts = add("parts", replace(sums, shape=(count, *body.shape), reduce_shape=rest, inner_fn=products))
        sums = Reduction("sum", body.shape, (count,), within, lambda i, r: ops.load(parts, [*r, *i]))
    total = add("sums", sums)
    result = Pointwise(body.shape, body.dtype, _Ending(body, total))
    return [*made, replace(node, body=result)]


def extents_of(product: Product, graph: Graph) -> Extents:
    """The sizes of a product."""
    *batch, rows, columns, terms = (size_hint(s, graph.hints) for s in (*product.extents, product.depth))
    return Extents(math.prod(batch), rows, columns, terms, product.body.dtype.itemsize == 2)


@dataclass(frozen=True, slots=True)
class _Products:
    """A loop function: the terms of a contraction's sums; with ``dim`` those of parts, by the first index, of
    ``length`` terms along this dimension.
    """

    body: Contraction
    dim: int | None = None
    length: Expr = ZERO

    def __call__(self, index: Index, rindex: Index) -> Value:
        if self.dim is not None:
            part, *index = index
            rindex = [r + part * self.length if d == self.dim else r for d, r in enumerate(rindex)]
        index, rindex = tuple(index), tuple(rindex)
        return ops.mul(self.body.lhs(index, rindex), self.body.rhs(index, rindex))


class _Native:
    """The nodes of a contraction that runs in a kernel of our own."""

    def __init__(
        self,
        node: Node,
        product: Product,
        graph: Graph,
        layouts: Layouts,
        halos: Halos,
        target: Target,
        packed: dict[Hashable, str],
    ) -> None:
        self.node, self.product, self.graph, self.packed = node, product, graph, packed
        self.layouts, self.halos = layouts, halos
        self.target, self.lanes = target, target.lanes
        self.within = accumulator(product.body.dtype)

    def nodes(self) -> Iterator[Node]:
        """The copy of lhs, if it is not contiguous along terms and cannot be read in place; the packing of
        rhs; the sums; the result.
        """
        body = self.product.body
        sums = self._buffer("sums", body.shape)
        self.layouts.place(sums, self.product.strides)
        if isinstance(body.rhs, Weight):
            yield from self._summed(body, sums)
            return
        ahead = self._packs_ahead()
        beyond = self.halos.read_beyond(self.product)
        if beyond is not None:
            body = beyond
        elif not self.product.pairs and not readable_in_place(self.product, self.graph):
            body = yield from self._laid_out(body)
        if ahead:
            body = yield from self._packed(body)
        elif not _is_plain_rhs(body, self.graph):
            found = box(self.product, self.graph, "rhs")
            assert found is not None
            name = yield from self._boxed("rhs", found)
            body = replace(body, rhs=found.load(name))
        yield from self._summed(body, sums)

    def _summed(self, body: Contraction, sums: str) -> Iterator[Node]:
        """The sums, and the result."""
        yield replace(self.node, outputs=(sums,), body=replace(body, dtype=self.within, start=None))
        whole = self.product.whole
        result = str(self.node.outputs[0])
        if self.product.split is not None and result not in self.layouts.fixed:
            self.layouts.place(result, self.product.whole_strides)
        yield replace(
            self.node, body=Pointwise(whole.shape, whole.dtype, _Ending(whole, sums, self.product.split))
        )

    def _packs_ahead(self) -> bool:
        """Whether all of rhs is packed before the product begins: if it is constant, or every thread needs
        it. With more columns than rows, the kernel packs one panel at a time.
        """
        if self.product.frozen or self.product.swapped or self.product.split is not None:
            return True
        *batch, rows, columns = (size_hint(size, self.graph.hints) for size in self.product.extents)
        if is_matrix_product(self.product):
            panels = math.prod(batch) * -(-columns // self._panel_width())
            depth = size_hint(self.product.depth, self.graph.hints)
            return panels < FEWEST_PANELS <= rows // self.lanes or rows >= 2 * depth
        width = size_hint(self.product.body.shape[self.product.columns[-1]], self.graph.hints)
        few = width < self.lanes or rows >= columns
        return few or self.product.shared or is_windowed(self.product, self.graph)

    def _panel_width(self) -> int:
        product, target = self.product, self.target
        *_, rows, columns = product.extents
        if product.pairs:
            return ROWS if columns.is_Integer and int(columns) <= ROWS else 2 * ROWS
        if product.swapped:
            return self.lanes * swapped_panels(int(columns), self.lanes)[1]
        often = min(size_hint(size, self.graph.hints) for size in (rows, product.depth))
        if product.frozen and not product.shared and target.panels is not None:
            target = target.panels
        large = target.large_tiles
        return panel_width(columns, target.lanes, product.shared, large, product.frozen, often)

    def _buffer(
        self, purpose: str, shape: Sequence[Expr], halo: Sides = (), dtype: torch.dtype | None = None
    ) -> str:
        name = f"{self.node.outputs[0]}_{purpose}"
        while name in self.graph.buffers:
            name += "_"
        made = Buffer(name, dtype or self.within, tuple(shape), contiguous_strides(shape), halo=halo)
        self.graph.buffers[name] = replace(made, strides=contiguous_strides(made.whole_shape))
        self.layouts.fixed.add(name)  # its layout is the one that the kernel reads
        return name

    def _laid_out(self, body: Contraction) -> Generator[Node, None, Contraction]:
        found = box(self.product, self.graph)
        if found is not None:
            found, halo = self.halos.around_copy(found)
            name = yield from self._boxed("lhs", found, halo)
            return replace(body, lhs=found.load(name))
        shape = (*body.shape[:-1], *body.reduce_shape)
        name = self._buffer("lhs", shape)
        yield Node((name,), Pointwise(shape, self.within, _Rows(body)), self.node.origin)
        outer, terms = variables("i", len(body.shape)), variables("r", len(body.reduce_shape))
        return replace(body, lhs=Place(name, (*outer[:-1], *terms), (*outer, *terms)))

    def _boxed(self, operand: str, found: Boxed, halo: Sides = ()) -> Generator[Node, None, str]:
        """The node that copies an operand into its box; the buffer of the box."""
        name = self._buffer(operand, found.shape, halo)
        yield Node((name,), Pointwise(found.shape, self.within, found.fill), self.node.origin)
        return name

    def _packed(self, body: Contraction) -> Generator[Node, None, Contraction]:
        if self.product.pairs:
            panels = Panels("", self.product, (), (0,), self._panel_width())
            key = place_before_cast(body.rhs, body, self.graph), panels.shape
            name = self.packed.get(key)
            if name is None or key[0] is None:  # several products of one matrix pack it once
                name = self.packed[key] = self._buffer("rhs", panels.shape, dtype=body.dtype)
                yield Node((name,), Pointwise(panels.shape, body.dtype, panels.fill), self.node.origin)
            return replace(body, rhs=replace(panels, buffer=name))
        place = lhs_place(body, self.graph)
        assert place is not None
        order = memory_order(place[1], variables("r", len(body.reduce_shape)), body.reduce_shape)
        assert order is not None
        short = [t for t in range(len(body.reduce_shape)) if t not in order]
        outer, seen = variables("i", len(body.shape)), symbols_of(operand_code(body.rhs, body, self.graph))
        batch = tuple(dim for dim in self.product.batch if outer[dim] in seen)
        panels = Panels("", self.product, batch, (*short, *order), self._panel_width())
        name = self._buffer("rhs", panels.shape)
        yield Node((name,), Pointwise(panels.shape, self.within, panels.fill), self.node.origin)
        return replace(body, rhs=replace(panels, buffer=name))


@dataclass(frozen=True, slots=True)
class _Ending:
    """A loop function: the rounded sum of the start and the products; ``split``: of their dimensions."""

    body: Contraction
    sums: str
    split: Split | None = None

    def __call__(self, index: Index) -> Value:
        body = self.body
        total = ops.load(self.sums, tuple(index) if self.split is None else self.split.index(index))
        if body.start is not None:
            total = ops.add(total, body.start(index))
        return convert(total, accumulator(body.dtype), body.dtype)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A loop function: lhs of a matrix product at (batch, row, term)."""

    body: Contraction

    def __call__(self, index: Index) -> Value:
        return self.body.lhs((*index[:-1], sympy.Integer(0)), (index[-1],))
