"""The recipe of matrix products of few rows, as in text generation: the weight is read once, from memory.

    for i in rows: for j in columns: acc; for k: acc += x[i, k] * w[j, k]; …; y[i, j] = acc
        →  parallel for j in columns/4: jam for i in rows: jam for j' in 4:
               acc; vector for k: prefetch w[4*j + j' + 4, k]; acc += x[i, k] * w[4*j + j', k]; …

What is computed from an element of the weight, such as its value before quantization, is computed once for
all rows. A group of terms that share a scale, or a byte, is a loop of its own around lanes. Where columns are
contiguous in the weight, some vectors of them are lanes, and terms stream by (`_in_stripes`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sympy import Expr, Symbol

from smelt.loops.dependencies import variables
from smelt.loops.ir import Graph, Pointwise
from smelt.nest.claims import prove
from smelt.nest.finish import flatten_indices, hoist_invariants
from smelt.nest.ir import TABLE_LANES, Accumulate, Block, Kernel, Let
from smelt.nest.primitives import (
    accumulate_in_lanes,
    jam,
    parallelize,
    precompute,
    prefetch,
    reorder,
    split,
    tabulate,
    uniform_values,
    unroll,
    vectorize,
)
from smelt.nest.tree import accesses, find, needed, symbols_of, trip_count, walk
from smelt.schedule.chains import in_one_chain
from smelt.schedule.dots import Dot, dot_of, fused
from smelt.schedule.loops import NestContext, Target, cascade_sums, choose_loops, fuse_loops
from smelt.schedule.packed import pairs_as_one, rounded_by, split_rounded
from smelt.schedule.products.operands import Product, is_plain, loads_of, operand_codes
from smelt.schedule.recipes.few_rows import LINE_BYTES, SUMS, columns_together, vectors_of
from smelt.schedule.tilings import divisor_of
from smelt.symbolic import flatten, numel, size_hint
from smelt.symbolic.affine import coefficient, linear

MOST_ROWS, MOST_FLOAT_ROWS, MOST_LOW_ROWS = 16, 8, 4
"""Limits on the rows: of weights that are computed, and would have to be stored; of float32 ones; of 16-bit
ones, which processors multiply themselves.
"""
FEWEST_TERMS, FEWEST_WEIGHTS = 64, 2**14
"""The fewest terms, and elements of the weight, for which calling ATen does not take longer."""
VECTORS = (4, 2)
"""Numbers of vectors of adjacent columns that are summed at once."""
BLOCK = 16
"""Terms that are summed at once, and rows of a weight with contiguous columns that are prefetched ahead."""
STRIPE = 16
"""Limit on the vectors of sums in a stripe of contiguous columns."""
FEWEST_STRIPES = 8
"""Threads share the stripes of such a weight: their fewest number."""
MOST_STREAMED_ROWS = 4
"""Limit on the rows of products with such a weight."""
MOST_FLOATS_OF_ONE_ROW = 2**20
"""With one row of float32 and a larger weight of this kind, ATen reads at memory's speed."""


def has_few_rows(product: Product, graph: Graph, target: Target) -> bool:
    """Whether a product gets this recipe: few rows, and a weight whose terms are contiguous."""
    body = product.body
    special = product.batch or product.shared or product.split is not None or product.swapped
    sizes = (*product.extents, product.depth)
    if target.blocks or special or len(body.reduce_shape) > 1 or not all(size.is_Integer for size in sizes):
        return False
    rows, columns, depth = map(int, sizes)
    left, right = operand_codes(body, graph)
    loads, casts = loads_of(right), {"load", "to_dtype"}
    if rows > MOST_ROWS or depth < FEWEST_TERMS or columns * depth < FEWEST_WEIGHTS or len(loads) != 1:
        return False
    if not is_plain(left) or not is_plain(right) or any(step.op not in casts for step in right):  # type: ignore[union-attr]
        return False
    ((buffer, index),) = loads
    at = flatten(index, graph.buffers[buffer].strides)
    if linear(at, variables("r", 1)[0])[0] != 1:
        return _is_streamed(product, at, graph.buffers[buffer].dtype.itemsize, target)
    if rows <= (MOST_LOW_ROWS if graph.buffers[buffer].dtype.itemsize == 2 else MOST_FLOAT_ROWS):
        return True
    return any(buffer in node.outputs and isinstance(node.body, Pointwise) for node in graph.nodes)


def _is_streamed(product: Product, at: Expr, itemsize: int, target: Target) -> bool:
    """Whether a weight, read at a place, gets the recipe for contiguous columns, which fill vectors."""
    rows, columns, depth = map(int, (*product.extents, product.depth))
    (*others, column) = product.columns
    contiguous = linear(at, variables("i", len(product.body.shape))[column])[0] == 1
    whole = columns % (FEWEST_STRIPES * target.lanes) == 0 and depth % BLOCK == 0
    if others or not contiguous or not whole or product.frozen or itemsize > 4:
        return False
    fewest = 2 if itemsize == 4 and columns * depth > MOST_FLOATS_OF_ONE_ROW else 1
    return fewest <= rows <= MOST_STREAMED_ROWS


def choose_few_rows(kernel: Kernel, context: NestContext) -> Kernel:
    """Arranges a nest that is a product of few rows, whose terms are contiguous in the weight."""
    found = dot_of(kernel)
    if found is None or len(found.terms) > 1 or not context.config.vectorize:
        return kernel
    rows, columns, depth = (
        numel([trip_count(find(kernel.body, var)) for var in variables])
        for variables in (found.rows, found.columns, found.terms)
    )
    if 0 in (rows, columns, depth):
        return kernel
    ordered, many = context.config.ordered, not rows.is_Integer or rows > MOST_ROWS
    if context.config.own and not ordered and (many or found.batch):
        return _tiled(kernel, found, context)
    if not ordered and (many or not (columns.is_Integer or found.batch)):
        return kernel
    work = numel([trip_count(find(kernel.body, var)) for var in found.batch]) * rows * columns * depth
    shared = context.config.parallel and size_hint(work, context.hints) >= context.config.parallel_grain
    parted, inner, weight = _in_lines(kernel, found, context.target.lanes)
    if weight is None:
        if not found.batch and not ordered:
            return _in_stripes(kernel, found, int(rows), context, shared)
        return _columns_in_lanes(kernel, found, None if many else int(rows), context, shared)
    kernel = reorder(parted, [*found.batch, *found.columns, *found.rows], proved=True)
    kernel, outer = fused(kernel, found.columns)
    together = columns_together(columns, None if many else int(rows))
    if together > 1:
        kernel, (outer, within) = split(kernel, outer, [None, together], predicated=False)
        kernel = reorder(kernel, [outer, *found.rows, within], proved=True)
    if len(inner) > 1:
        kernel = _ahead(kernel, outer, inner, context.target.lanes)
    if together > 1:
        kernel = jam(kernel, within, proved=True)
    if not many:
        for row in reversed(found.rows):
            kernel = jam(kernel, row, proved=True)
    for part in inner[1:-1]:
        kernel = unroll(kernel, part)
    if len(inner) > 1:
        kernel = accumulate_in_lanes(kernel, inner)
    if not many:
        kernel = prefetch(kernel, weight, inner[0], outer)
    if ordered:
        kernel = in_one_chain(kernel, inner[-1], context.target.vector_bytes)
    else:
        kernel = vectorize(kernel, inner[-1], context.target.lanes, proved=True)
    return _in_parallel(kernel, [*found.batch, outer]) if shared else kernel


def _columns_in_lanes(
    kernel: Kernel, found: Dot, rows: int | None, context: NestContext, shared: bool
) -> Kernel:
    """Sums some vectors of columns at once, for all rows, if these are contiguous in what is read; ``rows``
    None: many, one after another.

    for b, i in rows, j in columns: acc; for k: …   →   parallel for b: vector for j: jam for i: acc; …
    """
    (*_, column), lanes = found.columns, context.target.lanes
    read = [index for _, (index,), stored in accesses(kernel.body) if not stored and index.has(column)]
    if len(found.columns) > 1 or any(coefficient(index, column) != 1 for index in read):
        return kernel
    kernel = reorder(kernel, [*found.batch, column, *found.rows], proved=True)
    depth = trip_count(find(kernel.body, found.terms[0]))
    if not context.config.ordered and depth.is_Integer and depth % BLOCK == 0:
        kernel = _in_blocks(kernel, found.terms[0])[0]
    for row in reversed(found.rows) if rows is not None else ():
        kernel = jam(kernel, row, proved=True)
    count = trip_count(find(kernel.body, column))
    widths = [n for n in VECTORS if n * (rows or 1) <= SUMS]
    together = next((n for n in widths if count % (n * lanes) == 0), 1)
    kernel = vectorize(kernel, column, together * lanes, proved=True)
    return _in_parallel(kernel, found.batch) if shared else kernel


def _tiled(kernel: Kernel, found: Dot, context: NestContext) -> Kernel:
    """Sums tiles of some rows and columns in registers, where no recipe packs the operands: in double
    precision, for example.

    for i, j: acc; for k: acc += x[i, k] * w[k, j]; …   →   parallel for j in vectors: for i in rows/4:
        jam for i' in 4: vector for j': acc; for k in blocks: s = 0; for k': s = fma(x[i, k], w[k, j], s)
    """
    itemsize = next(stmt.dtype.itemsize for stmt in walk(kernel.body) if isinstance(stmt, Accumulate))
    lanes, (terms, *others) = context.target.vector_bytes // itemsize, found.terms
    depth = trip_count(find(kernel.body, terms))
    counts = [trip_count(find(kernel.body, var)) for var in (*found.columns, *found.rows)]
    if others or len(counts) != 2 or not all(count.is_Integer for count in (*counts, depth)):
        return kernel
    (column,), (row,), (columns, rows) = found.columns, found.rows, counts
    most = SUMS if context.target.vector_bytes >= 64 else SUMS // 2
    read = [index for _, (index,), stored in accesses(kernel.body) if not stored and index.has(column)]
    contiguous = all(coefficient(index, column) == 1 for index in read)
    kernel = reorder(kernel, [*found.batch, column, row], proved=True)
    height = divisor_of(rows, 4)
    kernel, (row, within) = split(kernel, row, [None, height], predicated=False)
    if contiguous and columns % lanes == 0:
        widths = [n for n in VECTORS if n * height <= most]
        width = next((n for n in widths if columns % (n * lanes) == 0), 1)
        kernel, (column, lane) = split(kernel, column, [None, width * lanes], predicated=False)
        kernel = reorder(kernel, [column, row, within, lane], proved=True)
        if depth % BLOCK == 0:
            kernel = _in_blocks(kernel, terms)[0]
        kernel = vectorize(jam(kernel, within, proved=True), lane, width * lanes, proved=True)
    elif depth % lanes == 0 and _read_by_term(kernel, terms) and not contiguous:
        width = divisor_of(columns, most // height)
        kernel, (column, beside) = split(kernel, column, [None, width], predicated=False)
        kernel, inner = split(kernel, terms, [None, lanes], predicated=False)
        kernel = reorder(kernel, [column, row, within, beside], proved=True)
        for jammed in (beside, within):
            kernel = jam(kernel, jammed, proved=True)
        kernel = accumulate_in_lanes(kernel, inner)
        kernel = vectorize(kernel, inner[-1], lanes, proved=True)
    else:
        kernel = reorder(kernel, [row, column, within], proved=True)
        kernel = jam(kernel, within, proved=True)
        column = row
        if contiguous:
            kernel = vectorize(kernel, found.columns[0], lanes, proved=True)
    work = size_hint(numel([*counts, depth]), context.hints)
    shared = context.config.parallel and work >= context.config.parallel_grain
    return _in_parallel(kernel, [*found.batch, column]) if shared else kernel


def _in_stripes(kernel: Kernel, found: Dot, rows: int, context: NestContext, shared: bool) -> Kernel:
    """Sums stripes of some vectors of contiguous columns, for all rows, while the weight's rows stream by.

    for i, j: acc; for k: acc += x[i, k] * w[k, j]; …
        →  parallel for j in stripes: jam for i: jam for j' in vectors: vector for j'': acc; for k in blocks:
               s = 0; for k': prefetch w[k' of the next block, j]; s = fma(x[i, k], w[k, j], s)
               acc += s
    """
    (*others, column), (terms,), lanes = found.columns, found.terms, context.target.lanes
    if others:
        return kernel
    count, depth = trip_count(find(kernel.body, column)), trip_count(find(kernel.body, terms))
    read = {
        name for name, (index,), stored in accesses(kernel.body) if not stored and coefficient(index, column)
    }
    if not (depth.is_Integer and count.is_Integer) or depth % BLOCK or count % lanes:
        return kernel
    most = min(int(count) // lanes // FEWEST_STRIPES, STRIPE // rows) or 1
    together = next(n for n in range(most, 0, -1) if count % (n * lanes) == 0)
    kernel = reorder(kernel, [column, *found.rows], proved=True)
    kernel, (stripe, within, lane) = split(kernel, column, [None, together, lanes], predicated=False)
    kernel = reorder(kernel, [stripe, *found.rows, within, lane], proved=True)
    kernel, block, term = _in_blocks(kernel, terms)
    for jammed in (within, *reversed(found.rows)):
        kernel = jam(kernel, jammed, proved=True)
    for name in read & _read_by_term(kernel, term):
        kernel = prefetch(kernel, name, term, block)
    kernel = vectorize(kernel, lane, lanes, proved=True)
    return _in_parallel(kernel, [stripe]) if shared else kernel


def _in_blocks(kernel: Kernel, terms: Symbol) -> tuple[Kernel, Symbol, Symbol]:
    """Sums blocks of terms by fused multiply-add, and these sums. Returns the loops over blocks and terms."""
    kernel, (block, term) = split(kernel, terms, [None, BLOCK], predicated=False)
    kernel = reorder(kernel, [term, block], proved=True)
    return accumulate_in_lanes(kernel, [term, block]), block, term


def _read_by_term(kernel: Kernel, term: Symbol) -> set[str]:
    return {name for name, (index,), _ in accesses(find(kernel.body, term).body) if index.has(term)}


def _ahead(kernel: Kernel, outer: Symbol, inner: Sequence[Symbol], lanes: int) -> Kernel:
    """Computes what a group of terms shares, such as its scale, before the sums, in vectors of groups; looks
    up functions of a number of 4 bits.
    """
    lane = find(kernel.body, inner[-1])
    wide = any(isinstance(stmt, Accumulate) and stmt.dtype.itemsize > 4 for stmt in walk(kernel.body))
    if not wide and lanes == TABLE_LANES == trip_count(lane):
        kernel = tabulate(kernel, lane.var)
        lane = find(kernel.body, lane.var)
    uniform = uniform_values(lane)
    values = {stmt.name: stmt for stmt in lane.body.stmts if isinstance(stmt, Let)}
    varying = [stmt for name, stmt in values.items() if name not in uniform]
    for name in dict.fromkeys(arg for stmt in varying if stmt.op != "load" for arg in stmt.args):
        steps = needed(lane.body, name) if name in uniform else Block()
        over = [var for var in inner[:-1] if var in symbols_of(steps)]
        read = [buffer for buffer, _, _ in accesses(steps)]
        if not over or not read or values[name].op == "load":
            continue
        kernel, made = precompute(kernel, name, outer)
        kernel = vectorize(kernel, made[-1], lanes, proved=True)
    return kernel


def _in_parallel(kernel: Kernel, variables: Sequence[Symbol]) -> Kernel:
    for var in variables:
        kernel = parallelize(kernel, var, proved=True)
    return kernel


def _in_lines(kernel: Kernel, found: Dot, lanes: int) -> tuple[Kernel, list[Symbol], str | None]:
    """Splits the terms into groups of a line of memory, or of those that share a scale or a byte, and these
    into vectors. Returns the loops, outermost first, and the weight: the largest buffer of which lanes read
    adjacent elements, other ones for each column.
    """
    (terms,) = found.terms
    loop = find(kernel.body, terms)
    extent = trip_count(loop)
    sizes = rounded_by(loop)
    if not sizes:
        weight = _weight(kernel, found, terms)
        if weight is None:
            return kernel, [terms], None
        itemsize = next(param.dtype.itemsize for param in kernel.params if param.name == weight)
        sizes = [LINE_BYTES // itemsize]
    inner, factors = [terms], vectors_of(int(extent), sizes, lanes) if extent.is_Integer else None
    if factors is not None:
        kernel, inner = split(kernel, terms, [None, *factors], predicated=False)
    return kernel, inner, _weight(kernel, found, inner[-1])


def _weight(kernel: Kernel, found: Dot, lane: Symbol) -> str | None:
    sizes = {param.name: numel(param.shape) for param in kernel.params}
    read = [
        buffer
        for buffer, (index,), stored in accesses(find(kernel.body, lane).body)
        if not stored and coefficient(index, lane) == 1 and not index.free_symbols.isdisjoint(found.columns)
    ]
    return max(read, key=lambda name: size_hint(sizes[name], {}), default=None)


PASSES = (
    prove,
    flatten_indices,
    choose_few_rows,
    pairs_as_one,
    split_rounded,
    fuse_loops,
    cascade_sums,
    choose_loops,
    hoist_invariants,
)
"""The passes of one plain nest for a CPU, in order."""
