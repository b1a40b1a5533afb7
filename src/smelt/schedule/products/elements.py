"""The elements of a product: the order of its memory, and the loops of its epilogue over them."""

from __future__ import annotations

from collections.abc import Sequence

from sympy import Expr

from smelt.nest.ir import Alloc, Carry, For, Kernel, Let, Store
from smelt.nest.primitives import flatten_accesses, fuse, fuses_cleanly, inner_loop
from smelt.nest.tree import walk
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.operands import Product
from smelt.symbolic import contiguous_strides, flatten, numel, same, simplify
from smelt.symbolic.affine import expand


def over_elements(built: BuiltKernel, source: str, product: Product) -> Kernel | None:
    """The kernel as perfectly nested loops over the product's elements, flattened, which loads ``source``
    only at the current element; None if it is not of that kind.
    """
    kernel = flatten_accesses(built.kernel)
    groups = grouped(chain_of(kernel), [size for _, size in pieces_in_order(product)])
    if groups is None or len(kernel.body.stmts) != 1:
        return None
    for group, _ in groups:
        for _ in group[1:]:
            chain = chain_of(kernel)
            at = [loop.var for loop in chain].index(group[0].var)
            if fuses_cleanly(kernel, group[0].var):
                kernel, _ = fuse(kernel, [loop.var for loop in chain[at : at + 2]], plain=True)
    chain = chain_of(kernel)
    if any(isinstance(stmt, (Alloc, Carry)) for stmt in walk(kernel.body)):
        return None
    mine = next(param.name for param, buffer in zip(kernel.params, built.buffers) if buffer == source)
    strides = contiguous_strides([loop.end for loop in chain])
    extents = {loop.var: loop.end for loop in chain}
    place = simplify(expand(flatten([loop.var for loop in chain], strides)), extents)
    for stmt in walk(chain[-1].body):
        if isinstance(stmt, Store) and stmt.buffer == mine:
            return None
        if isinstance(stmt, Let) and stmt.op == "load" and stmt.args[0] == mine:
            read = simplify(expand(stmt.args[1][0]), extents)
            if not same(read, place):
                return None
    return kernel


def pieces_in_order(product: Product) -> list[tuple[tuple[int, ...], Expr]]:
    """(dimensions, size) of the pieces of a result's memory, outermost first: a dimension of the batch, all
    rows, all columns; rows with phases between them one by one.
    """
    order = list(product.order)
    pieces: list[tuple[int, ...]] = []
    while order:
        runs = (dims for dims in (product.rows, product.columns) if tuple(order[: len(dims)]) == dims)
        pieces.append(next((dims for dims in runs if dims), (order[0],)))
        del order[: len(pieces[-1])]
    return [(dims, numel(product.sizes(dims))) for dims in pieces]


def grouped(chain: Sequence[For], extents: Sequence[Expr]) -> list[tuple[list[For], list[int]]] | None:
    """Corresponding (loops, numbers of extents), one after another; None where they do not fit.

    Several loops over one extent, or one loop over several extents. An extent of 1 has no loops.
    """
    left, open_ = list(chain), list(range(len(extents)))
    groups: list[tuple[list[For], list[int]]] = []
    while open_:
        first = extents[open_[0]]
        ends = [loop.end for loop in left]
        pairs = [(0, 1)] if first == 1 else []
        pairs += [(count, 1) for count in range(1, len(left) + 1) if same(numel(ends[:count]), first)]
        pairs += [
            (1, count)
            for count in range(2, len(open_) + 1)
            if left and same(numel(extents[piece] for piece in open_[:count]), ends[0])
        ]
        if not pairs:
            return None
        loops_taken, taken = pairs[0]
        groups.append((left[:loops_taken], open_[:taken]))
        del left[:loops_taken], open_[:taken]
    return None if left else groups


def chain_of(kernel: Kernel) -> list[For]:
    """The perfectly nested loops of a kernel, outermost first."""
    loop = kernel.body.stmts[0] if len(kernel.body.stmts) == 1 else None
    chain: list[For] = []
    while isinstance(loop, For):
        chain.append(loop)
        loop = inner_loop(loop)
    return chain
