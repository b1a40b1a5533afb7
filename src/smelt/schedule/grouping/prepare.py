"""Loop graph → items: rewrites applied, loops ordered, reads known, cheap producers inlined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sympy
from sympy import Expr

from smelt.loops.dependencies import Read, analyze, bound_symbols, variables
from smelt.loops.ir import (
    Attention,
    Attentions,
    Body,
    Contraction,
    Fold,
    Graph,
    Host,
    Native,
    Node,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    StridedView,
)
from smelt.loops.ranges import contents_of
from smelt.records import replace
from smelt.schedule.context import Context
from smelt.schedule.graph.rewrites import Rewriter, appended_in_place, mutation_copies, stored_in_place
from smelt.schedule.grouping.inline import inline
from smelt.schedule.grouping.items import Item, Work, extents_of, natural_vars
from smelt.schedule.products.operands import loads_of, operand_code, operand_codes
from smelt.schedule.products.panels import Panels
from smelt.schedule.products.split_dimensions import product_of
from smelt.symbolic import flatten, free_symbols, simplify
from smelt.symbolic.affine import linear, symbols_in


def rewrite(graph: Graph, context: Context) -> Work:
    """Rewrites single nodes (`REWRITES`) and writes mutations as copies; the nodes become items."""
    if any(isinstance(node.body, Native) for node in graph.nodes):
        graph = stored_in_place(graph)
    graph, appended = appended_in_place(graph)
    ordered = context.config.ordered
    rewritten = Rewriter(graph, context.target, appended, ordered).run()
    rewritten.nodes += mutation_copies(graph)
    work = Work(rewritten, rewritten.buffers, [], blocks=context.target.blocks, ordered=ordered)
    work.dtypes = {name: buffer.dtype for name, buffer in rewritten.buffers.items()}
    work.contents = contents_of(rewritten)
    work.items = [_item(node) for node in rewritten.nodes]
    for output in graph.outputs:
        if isinstance(output, StridedView):
            work.outside.add(output.buffer)
    work.outside.update(str(node.outputs[0]) for node in appended)
    for position, item in enumerate(work.items):
        if isinstance(item.body, Host):
            work.outside |= {read.buffer for read in item.reads}
        elif isinstance(item.body, Sort):
            work.outside.add(item.body.source)
        elif isinstance(item.body, Native):
            work.outside.update(item.body.reads)
        else:
            item = work.items[position] = _analyzed(work, item)
        if isinstance(item.body, Contraction):  # operands are read many times over
            work.inlined_never |= {read.buffer for read in item.reads} - _packed_once(work, item)
        if isinstance(item.body, Attentions):
            work.inlined_never |= _computed(work, item)
    return work


def inline_cheap(work: Work, context: Context) -> Work:
    """Computes cheap pointwise buffers where they are read."""
    del context
    work = inline(work)
    items = [
        _analyzed(work, item) if any(read.buffer in work.inlined for read in item.reads) else item
        for item in work.items
    ]
    return replace(work, items=items)


def order_loops(work: Work, context: Context) -> Work:
    """Orders the loops of each item by its memory layout."""
    del context
    return replace(work, items=[_ordered(work, item) for item in work.items])


def numbers_first(work: Work, context: Context) -> Work:
    """Moves single numbers that are computed from inputs, or from ATen's results, as early as possible.

    An example are the keys of random numbers: their readers can join earlier groups only if the keys are
    early. The final value of an input is not moved, because other items may have to read the old value first;
    neither are buffers that are written again (by a scatter in place).
    """
    del context
    writers = Counter(name for item in work.items for name in item.writes)
    again = {name for name, count in writers.items() if count > 1} | set(work.graph.inputs)
    known = {name: -1 for name in (*work.graph.inputs, *work.graph.constants) if isinstance(name, str)}
    late = {symbol for item in work.items for symbol in bound_symbols(item.node)}
    places: list[tuple[int, bool, Item]] = []
    for position, item in enumerate(work.items):
        place = (position, False, item)
        mutates = any(name in again for name in item.writes)
        waits = not late.isdisjoint(free_symbols(item.exprs))
        if isinstance(item.body, Pointwise) and not (item.order or mutates or waits):
            ready = [known.get(read.buffer, position) for read in item.reads]
            if all(each < position for each in ready):
                place = (max(ready, default=-1), True, item)
        if isinstance(item.body, Host) or place[1]:
            known.update((name, place[0]) for name in item.writes if name is not None and name not in again)
        places.append(place)
    return replace(work, items=[item for _, _, item in sorted(places, key=lambda place: place[:2])])


def _item(node: Node) -> Item:
    body = node.body
    if isinstance(body, Host):
        reads = tuple(Read(name, (), False, False) for name in analyze(node).whole)
        return Item(node, (), (), 0, node.outputs, reads)
    if isinstance(body, Sort):
        rows = tuple(body.shape[:-1])
        reads = (Read(body.source, (), False, False),)
        return Item(node, rows, tuple(range(len(rows))), len(rows), node.outputs, reads)
    if isinstance(body, Native):
        return Item(node, (), (), 0, node.outputs, tuple(Read(each, (), False, False) for each in body.reads))
    sizes = tuple(body.shape)
    outer = len(sizes)
    if isinstance(body, (Reduction, Contraction, Attentions)):
        sizes = (*sizes, *body.reduce_shape)
    elif isinstance(body, Fold):
        sizes = (*sizes, body.turns)
    order = tuple(d for d, size in enumerate(sizes) if size != 1)
    if isinstance(body, Scan) and body.dim in order:
        order = (*(d for d in order if d != body.dim), body.dim)
        return Item(node, sizes, order, len(order) - 1, node.outputs)
    return Item(node, sizes, order, sum(d < outer for d in order), node.outputs)


def _analyzed(work: Work, item: Item) -> Item:
    """The item with its reads (through inlined producers) and its cost."""
    index = natural_vars(item.sizes)
    extents = extents_of(index, item.sizes)
    found = analyze(item.node, index[: item.rank], index[item.rank :], work.inlined)
    reads = (
        replace(read, index=tuple(simplify(expr, extents) for expr in read.index)) for read in found.reads
    )
    return replace(
        item,
        reads=tuple(dict.fromkeys(reads)),
        cost=found.cost,
        exprs=found.exprs,
        inlined=found.inlined,
        code=work.codes.setdefault((_form(item.body), found.code), len(work.codes)),
    )


def _form(body: Body) -> tuple[Any, ...]:
    """The structure of a body without loop functions, buffer names and sizes."""
    if isinstance(body, Pointwise):
        return Pointwise, body.dtype
    if isinstance(body, Reduction):
        return Reduction, body.dtype, body.kind, body.reduce_shape
    if isinstance(body, Contraction):
        return Contraction, body.dtype, body.reduce_shape, type(body.rhs)
    if isinstance(body, Scatter):
        return Scatter, body.dtype, body.mode
    if isinstance(body, Attentions):
        of = body if isinstance(body, Attention) else body.attention
        seen = None if of.seen is None else of.seen(variables("i", len(body.shape) - 1))
        return type(body), body.dtype, body.shapes, body.reduce_shape, seen
    assert isinstance(body, (Scan, Fold))
    along = (body.dim, body.dtypes) if isinstance(body, Scan) else ()
    return type(body), repr(body.state), *along


def _packed_once(work: Work, item: Item) -> set[str]:
    """The weight that the kernel of a product packs itself, and reads once so."""
    body = item.body
    assert isinstance(body, Contraction)
    product = product_of(body, work.graph)
    if product is not None and product.pairs:
        return {buffer for buffer, _ in loads_of(operand_code(product.body.lhs, product.body, work.graph))}
    if isinstance(body.rhs, Panels) or product is None or product.shared or product.split is not None:
        return set()
    left, right = (
        {buffer for buffer, _ in loads_of(code)} for code in operand_codes(product.body, work.graph)
    )
    packed = work.hint_product((*product.extents[:-2], product.extents[-1], product.depth))
    return {name for name in right - left if work.hint_product(work.buffers[name].shape) >= packed}


def _computed(work: Work, reader: Item) -> set[str]:
    """The buffers that an item reads, read through plain copies, which may vanish."""
    writers = {name: item for item in work.items for name in item.writes}
    found: set[str] = set()
    open_ = [read.buffer for read in reader.reads]
    while open_:
        name = open_.pop()
        item = writers.get(name)
        if item is not None and isinstance(item.body, Pointwise) and item.cost == 0 and len(item.reads) == 1:
            open_.append(item.reads[0].buffer)
        else:
            found.add(name)
    return found


def drop_unused(work: Work, context: Context) -> Work:
    """Removes computations of unused results (an unused output of a reduction, for example)."""
    del context
    needed = set(work.outside) | {name for name in work.graph.inputs if isinstance(name, str)}
    kept = []
    for item in reversed(work.items):
        used = isinstance(item.body, Host) or any(name in needed for name in item.writes)
        if used:
            needed |= {read.buffer for read in item.reads}
            if isinstance(item.body, Scatter):
                needed.add(item.body.base)
            kept.append(item)
    return replace(work, items=kept[::-1])


def _ordered(work: Work, item: Item) -> Item:
    """The item with its outer loops in the order of its output's memory, the reduced ones in the order of the
    largest read.
    """
    if isinstance(item.body, (Contraction, Attentions, Host, Native, Scatter, Sort)):
        return item
    outer, reduced = list(item.order[: item.outer]), list(item.order[item.outer :])
    written = next(name for name in item.writes if name is not None)
    strides = work.buffers[written].strides
    outer = _by_stride(work, outer, [strides[d] for d in outer])
    if len(reduced) > 1:
        reduced = _by_stride(work, reduced, _read_strides(work, item, reduced))
    item = replace(item, order=(*outer, *reduced))
    return replace(item, access_order=_access_order(work, item))


def _by_stride(work: Work, dims: list[int], strides: Sequence[Expr]) -> list[int]:
    hints = [work.hint(stride) for stride in strides]
    return [dim for _, dim in sorted(zip(hints, dims), key=lambda pair: -pair[0])]


def _read_strides(work: Work, item: Item, dims: list[int]) -> list[Expr]:
    """Strides of the given natural dimensions in the largest buffer that varies with any of them."""
    variables = natural_vars(item.sizes)
    wanted = {variables[d] for d in dims}
    best: list[Expr] = [sympy.Integer(0)] * len(dims)
    largest = -1
    for read in item.reads:
        buffer = work.buffers[read.buffer]
        size = work.hint_product(buffer.shape)
        if size <= largest or all(symbols_in(expr).isdisjoint(wanted) for expr in read.index):
            continue
        flat = flatten(read.index, buffer.strides)
        found = [linear(flat, variables[d])[0] for d in dims]
        if any(stride.free_symbols & set(variables) for stride in found):
            continue
        best, largest = found, size
    return best


def _access_order(work: Work, item: Item) -> str:
    """The access order of the item's largest read (see `Item.access_order`)."""
    # A fold's iterations have no access order.
    order = item.order[: item.outer] if isinstance(item.body, Fold) else item.order
    if len(order) < 2:
        return "rows"
    strides = _read_strides(work, item, list(order))
    if strides[-1] == 1 or not any(stride == 1 for stride in strides[:-1]):
        return "rows"
    if not isinstance(item.body, (Reduction, Scan)):
        return "across" if strides[-1] != 0 else "rows"
    return "columns" if any(stride == 1 for stride in strides[: item.outer]) else "rows"


PASSES = (rewrite, drop_unused, inline_cheap, order_loops, numbers_first)
