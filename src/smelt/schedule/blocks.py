"""The GPU recipe of one nest: it binds loops to the programs of a grid and to the lanes of a block.

    for i in n: acc; for k in m: …; y[i] = acc
        →  for x on blockIdx.x: for i on threadIdx.y:
               acc; for k' in m/lanes: for k on threadIdx.x: …; y[i] = acc

The outer loops are fused, and each program takes some iterations; inner loops are rows of lanes, all at once
(a persistent reduction) if they are short, else block after block.
"""

from __future__ import annotations

from sympy import Symbol

from smelt.errors import Unsupported
from smelt.nest.dependence import carried_state
from smelt.nest.finish import flatten_indices
from smelt.nest.ir import Advance, Alloc, Block, Carry, For, Kernel, SortRow, Store
from smelt.nest.primitives import fuse, inner_loop, not_parallel, not_vector, own_memory, reorder, split
from smelt.nest.primitives.kinds import bind
from smelt.nest.tree import accesses, find, indirect_symbols, last_call, loops, trip_count, walk
from smelt.passes import run
from smelt.records import replace
from smelt.schedule.dots import choose_dots
from smelt.schedule.loops import LANES, NestContext, fuse_loops
from smelt.schedule.products.elements import chain_of
from smelt.symbolic import flatten, free_symbols, numel, size_hint
from smelt.symbolic.affine import coefficient

ENOUGH = 512
"""Programs from which on each takes several short rows."""
PERSISTENT = 16384
"""Longest row that a block keeps in registers, if intermediate rows are kept."""
ROW = 1024
"""Lanes of a row that is processed block after block."""
IN_ORDER = 1024
"""The most elements that a lane adds to results in order, if the order matters."""
COLUMN = 32
"""Lanes in each direction if results are contiguous in memory."""


def fuse_lanes(kernel: Kernel, context: NestContext) -> Kernel:
    """Fuses perfectly nested loops where all indices stay simple, unless loops are bound."""
    return kernel if any(loop.thread for loop in loops(kernel.body)) else fuse_loops(kernel, context)


def choose_blocks(kernel: Kernel, context: NestContext) -> Kernel:
    """Binds the loops of a plain nest to programs and lanes, if they are not bound yet."""
    if any(loop.thread for loop in loops(kernel.body)):
        return kernel
    ordered = context.config.deterministic
    if ordered:
        kernel = _in_order(kernel, context)
    root = kernel.body.stmts[-1] if len(kernel.body.stmts) == 1 else None
    outer = None
    if isinstance(root, For):
        chain = _chain(kernel, root, ordered)
        if chain:
            kernel, outer = fuse(kernel, chain, plain=True) if len(chain) > 1 else (kernel, chain[0])
    kernel = _fused_rows(kernel, outer)
    rows = [loop.var for loop in loops(kernel.body) if loop.var != outer and _is_row(loop)]
    keeps = any(isinstance(stmt, Alloc) for stmt in walk(kernel.body))
    whole = {var: _persistent(find(kernel.body, var), keeps) for var in rows}
    wide = outer is not None and rows != [] and not keeps and _neighbours(kernel, rows)
    for var in rows:
        if whole[var] and not (wide and trip_count(find(kernel.body, var)) > COLUMN):
            kernel = bind(kernel, var, "threadIdx.x", proved=True)
            continue
        kernel, (_, lane) = split(kernel, var, [None, COLUMN if wide else ROW], plain=True)
        kernel = bind(kernel, lane, "threadIdx.x", proved=True)
    if outer is None:
        return kernel
    extent = trip_count(find(kernel.body, outer))
    lanes = COLUMN if wide else _rows_at_once(kernel, whole, size_hint(extent, context.hints))
    if lanes == 1:
        return bind(kernel, outer, "blockIdx.x", proved=True)
    if extent.is_Integer and extent <= lanes:
        return bind(kernel, outer, "threadIdx.y", proved=True)
    kernel, (outer, lane) = split(kernel, outer, [None, lanes], plain=True)
    kernel = bind(kernel, lane, "threadIdx.y", proved=True)
    return bind(kernel, outer, "blockIdx.x", proved=True)


def _rows_at_once(kernel: Kernel, whole: dict[Symbol, bool], extent: int) -> int:
    """The rows that a program processes: as many short ones as fill a block, while there are programs enough;
    all lanes of a block where there are no rows.
    """
    sorted_rows = [stmt.length for stmt in walk(kernel.body) if isinstance(stmt, SortRow)]
    if not whole and not sorted_rows:
        return LANES
    lengths = [*sorted_rows, *(trip_count(find(kernel.body, var)) for var in whole)]
    if not all(whole.values()) or not all(length.is_Integer for length in lengths):
        return 1
    lanes = LANES
    while lanes > 1 and (lanes * max(lengths) > LANES or extent < lanes * ENOUGH):
        lanes //= 2
    return lanes


def fits_registers(kernel: Kernel, context: NestContext) -> bool:
    """Whether the rows between the loops of a plain nest fit in registers: short enough, each stored by one
    loop over all of it, and read in the same order or one element at a time.
    """
    if not any(isinstance(stmt, Alloc) for stmt in walk(kernel.body)):
        return True
    arranged = run(PASSES, kernel, context)
    kept = {stmt.buffer: stmt for stmt in walk(arranged.body) if isinstance(stmt, Alloc)}
    rows = {loop.var: loop for loop in loops(arranged.body) if loop.thread == "threadIdx.x"}
    inside = {loop.var for loop in loops(arranged.body)} - {
        loop.var for loop in loops(arranged.body) if loop.thread in ("blockIdx.x", "threadIdx.y")
    }
    for buffer, index, stored in accesses(arranged.body):
        if buffer in kept:
            flat = flatten(index, kept[buffer].strides)
            whole = flat in rows and rows[flat].begin == 0 and trip_count(rows[flat]) == kept[buffer].count
            if not whole and (stored or not inside.isdisjoint(flat.free_symbols)):
                return False
    return True


def _in_order(kernel: Kernel, context: NestContext) -> Kernel:
    """Moves the loops outwards whose iterations never combine elements of one place: those inside of them run
    one after another.

    for i: for j: y[at[i], j] += x[i, j]   →   for j: for i: y[at[i], j] += x[i, j]

    Raises:
        Unsupported: there are too many of them; ATen sorts.
    """
    chain = chain_of(kernel)
    if not any(isinstance(stmt, Store) and _is_ordered(kernel, stmt) for stmt in walk(kernel.body)):
        return kernel
    if any(_scatters(kernel, loop, ordered=False) for loop in chain):
        free = [loop for loop in chain if not_parallel(loop, own_memory(kernel, loop)) is None]
        rest = [loop for loop in chain if loop not in free]
        count = size_hint(numel([trip_count(loop) for loop in rest]), context.hints)
        if count > IN_ORDER:
            why = f"{count} elements that may have one place would be added in order (at most {IN_ORDER})"
            raise Unsupported(why, last_call(kernel))
        kernel = reorder(kernel, [loop.var for loop in (*free, *rest)], proved=True)
    return kernel


def _is_ordered(kernel: Kernel, stmt: Store) -> bool:
    """Whether the order of stores to one place matters."""
    dtype = next((param.dtype for param in kernel.params if param.name == stmt.buffer), None)
    sums = (stmt.mode or "").removeprefix("atomic_") in ("add", "mul")
    return dtype is not None and (stmt.mode is None or (sums and dtype.is_floating_point))


def _chain(kernel: Kernel, root: For, ordered: bool) -> list[Symbol]:
    """The perfectly nested outer loops with independent iterations."""
    found: list[Symbol] = []
    loop: For | None = root
    while loop is not None and loop.begin == 0:
        if not _scatters(kernel, loop, ordered) and not_parallel(loop, own_memory(kernel, loop)) is not None:
            break
        found.append(loop.var)
        loop = inner_loop(loop)
    return found


def _scatters(kernel: Kernel, loop: For, ordered: bool) -> bool:
    """Whether a loop stores at positions that data decides: by atomic operations, or, where elements are
    stored and positions occur twice, one of them stays, as in ATen's own kernels for GPUs. ``ordered``: such
    stores do not count if their order matters.
    """
    placed = indirect_symbols(loop.body)
    return any(
        isinstance(stmt, Store)
        and (stmt.mode is not None or not placed.isdisjoint(free_symbols(stmt.index)))
        and not (ordered and _is_ordered(kernel, stmt))
        for stmt in walk(loop.body)
    )


def _fused_rows(kernel: Kernel, outer: Symbol | None) -> Kernel:
    """Fuses perfectly nested inner loops."""
    again = True
    while again:
        again = False
        for loop in loops(kernel.body):
            inner = inner_loop(loop)
            if loop.var == outer or inner is None or loop.begin != 0 or inner.begin != 0:
                continue
            if _is_row(inner) and not any(isinstance(stmt, Carry) for stmt in walk(loop.body)):
                kernel, _ = fuse(kernel, [loop.var, inner.var], plain=True)
                again = True
                break
    return kernel


def _is_row(loop: For) -> bool:
    """Whether the iterations of an innermost loop may be lanes."""
    inside = any(isinstance(stmt, (For, SortRow)) for stmt in walk(loop.body))
    if inside or loop.begin != 0:
        return False
    handed = carried_state(loop)
    if handed and all(each.by is not None for each in handed):
        ahead = {each.carry for each in handed}
        stmts = [s for s in loop.body.stmts if not isinstance(s, Advance) or s.carry not in ahead]
        loop = replace(loop, body=Block(tuple(stmts)))
    return not_vector(loop) is None


def _persistent(loop: For, keeps: bool) -> bool:
    count = trip_count(loop)
    return bool(count.is_Integer) and count <= (PERSISTENT if keeps else 4 * ROW)


def _neighbours(kernel: Kernel, rows: list[Symbol]) -> bool:
    """Whether adjacent terms never read adjacent elements: then adjacent results may."""
    strides = {param.name: param.strides for param in kernel.params}
    for buffer, index, stored in accesses(kernel.body):
        if stored or buffer not in strides:
            continue
        flat = flatten(index, strides[buffer])
        if any(coefficient(flat, row) == 1 for row in rows):
            return False
    return True


PASSES = (choose_dots, flatten_indices, fuse_lanes, choose_blocks)
"""The passes of one plain nest for a GPU, in order."""
