"""The passes that lower a scheduled kernel for a GPU before it is printed: `PASSES`, in order.

They make the form that smelt's own GPU recipes have: lanes begin at their axis, a sum is an accumulator, and
what one lane computes for itself is a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from sympy import Expr

from smelt.nest.conditions import bound_loops
from smelt.nest.finish import compact_buffers, dissolve_stages, flatten_indices
from smelt.nest.initialization import hoist_initialization
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Alloc,
    Block,
    For,
    Kernel,
    Let,
    Masked,
    Stmt,
    Store,
    Update,
)
from smelt.nest.primitives.ahead import used_values
from smelt.nest.primitives.kinds import renamed
from smelt.nest.stages import KINDS, identity
from smelt.nest.tree import (
    accesses,
    find,
    loops,
    map_exprs,
    redirected,
    replace_loop,
    rewritten,
    stages,
    symbols_of,
    trip_count,
    walk,
    with_blocks,
    with_body,
)
from smelt.passes import Watch, run
from smelt.records import replace
from smelt.symbolic.affine import expand, replaced, symbols_in, total


def lower_for_gpu(kernel: Kernel, watch: Watch | None = None) -> Kernel:
    """The kernel, lowered for a GPU's printer."""
    return run(PASSES, kernel, 1, watch)


def begin_at_axes(kernel: Kernel, lanes: int) -> Kernel:
    """Has lanes begin at the value that their axis begins at, so that the loop's variable is the axis.

    for i_1 in 64 on threadIdx.y: stage: v = 64*i_0 + i_1
        →   for i_1 in 64*i_0 … 64*i_0 + 64 on threadIdx.y: stage: v = i_1
    """
    del lanes
    for var in [loop.var for loop in loops(kernel.body) if str(loop.thread).startswith("threadIdx")]:
        loop = find(kernel.body, var)
        begin = _begin_of(loop)
        if begin is None:
            continue
        back = {var: var - begin}
        body = map_exprs(loop.body, lambda expr, back=back: expand(replaced(expr, back)))  # type: ignore[misc]
        moved = replace(loop, begin=total([loop.begin, begin]), end=total([loop.end, begin]), body=body)
        kernel = with_body(kernel, replace_loop(kernel.body, var, lambda _, moved=moved: (moved,)))  # type: ignore[misc]
    return kernel


def _begin_of(loop: For) -> Expr | None:
    """What all axes that a loop moves have besides its variable; None if they differ, or it is nothing."""
    values = [axis.value for stage in stages(loop.body) for axis in stage.axes if axis.value.has(loop.var)]
    found = {expand(value - loop.var) for value in values}
    if len(found) != 1:
        return None
    (begin,) = found
    inside = {loop.var, *(each.var for each in loops(loop.body))}
    return begin if begin != 0 and inside.isdisjoint(symbols_in(begin)) else None


def same_for_all_lanes(kernel: Kernel, lanes: int) -> Kernel:
    """Does once what all lanes of a loop would do alike, as the initialization of a sum over lanes.

    for k on threadIdx.z: C[i] = 0   →   C[i] = 0
    """
    del lanes

    def rewrite(stmt: Stmt) -> Sequence[Stmt] | None:
        if not isinstance(stmt, For) or not str(stmt.thread).startswith("threadIdx"):
            return None
        stores = all(isinstance(s, Let) or (isinstance(s, Store) and s.mode is None) for s in stmt.body.stmts)
        read = any(not is_store for _, _, is_store in accesses(stmt.body))
        runs = trip_count(stmt).is_positive and stmt.var not in symbols_of(stmt.body)
        return stmt.body.stmts if stores and not read and runs else None

    return with_body(kernel, rewritten(kernel.body, rewrite))


def sums_to_accumulators(kernel: Kernel, lanes: int) -> Kernel:
    """Accumulates a sum of one element in an accumulator, and stores it once.

    C[i] = 0; for k: C[i] += x   →   acc; for k: acc += x; C[i] = acc
    """
    del lanes
    dtypes = {param.name: param.dtype for param in kernel.params}
    dtypes |= {stmt.buffer: stmt.dtype for stmt in walk(kernel.body) if isinstance(stmt, Alloc)}
    return with_body(kernel, _accumulated(kernel.body, dtypes))


def _accumulated(block: Block, dtypes: Mapping[str, torch.dtype]) -> Block:
    stmts = [with_blocks(stmt, lambda inner: _accumulated(inner, dtypes)) for stmt in block.stmts]
    constants = {s.name: s.args[0] for s in stmts if isinstance(s, Let) and s.op == "constant"}
    for first in [stmt for stmt in stmts if isinstance(stmt, Store) and stmt.mode is None]:
        at = next(n for n, stmt in enumerate(stmts) if stmt is first)
        later = [n for n in range(at + 1, len(stmts)) if _touches(stmts[n], first.buffer)]
        loop = stmts[later[0]] if later else None
        if not isinstance(loop, For) or (step := _only_step(loop, first)) is None:
            continue
        kind, dtype = KINDS[str(step.mode)], dtypes[first.buffer]
        if constants.get(first.value) != identity(kind, dtype):
            continue
        name, result = f"{first.buffer}_{first.value}_acc", f"{first.buffer}_{first.value}_sum"
        update = Update(name, step.value)
        stmts[at] = Accumulate(name, kind, dtype)
        (stmts[later[0]],) = rewritten(
            Block((loop,)),
            lambda s, step=step, update=update: (update,) if s is step else None,  # type: ignore[misc]
        ).stmts
        read = Let(result, dtype, "read", (name, 0))
        stmts[later[0] + 1 : later[0] + 1] = [read, replace(first, value=result)]
        if not any(first.value in used_values(stmt) for stmt in walk(Block(tuple(stmts)))):
            stmts = [stmt for stmt in stmts if not isinstance(stmt, Let) or stmt.name != first.value]
    return Block(tuple(stmts))


def _only_step(loop: For, first: Store) -> Store | None:
    """The store in a loop that adds to one element, if the loop does nothing else with the buffer."""
    inside = Block((loop,))
    found = [s for s in walk(inside) if isinstance(s, Store) and s.buffer == first.buffer]
    variables = {each.var for each in loops(inside)}
    if len(found) != 1 or found[0].mode not in KINDS or found[0].index != first.index:
        return None
    read = any(name == first.buffer and not is_store for name, _, is_store in accesses(inside))
    moves = any(not variables.isdisjoint(symbols_in(expr)) for expr in first.index)
    return None if read or moves else found[0]


def _touches(stmt: Stmt, buffer: str) -> bool:
    return any(name == buffer for name, _, _ in accesses(Block((stmt,))))


def elements_to_values(kernel: Kernel, lanes: int) -> Kernel:
    """Replaces a buffer of one element, stored once, by the value.

    scratch D: f32[1]; D[0] = v; …; w = D[0]; E[i] = w + 1   →   …; E[i] = v + 1
    """
    del lanes
    return with_body(kernel, _valued(kernel.body))


def _valued(block: Block) -> Block:
    block = Block(tuple(with_blocks(stmt, _valued) for stmt in block.stmts))
    for alloc in [stmt for stmt in block.stmts if isinstance(stmt, Alloc) and stmt.count == 1]:
        touching = [stmt for stmt in block.stmts if _touches(stmt, alloc.buffer)]
        first, *others = touching or (None,)
        if not isinstance(first, Store) or first.mode is not None:
            continue
        if not all(isinstance(each, Let) for each in others):
            continue
        names: dict[str, str] = {}
        for each in others:
            assert isinstance(each, Let)
            names[each.name] = first.value
        gone = {id(each) for each in (alloc, *touching)}
        kept = Block(tuple(stmt for stmt in block.stmts if id(stmt) not in gone))
        block = rewritten(kept, lambda stmt, names=names: _with_names(stmt, names))  # type: ignore[misc]
    return block


def _with_names(stmt: Stmt, names: Mapping[str, str]) -> Sequence[Stmt] | None:
    return (renamed(stmt, names),) if isinstance(stmt, (Let, Masked, Store, Update, Advance)) else None


def number_params(kernel: Kernel, lanes: int) -> Kernel:
    """Calls the parameters p0, p1 …, as smelt's own kernels do: a person's names may be those of the text."""
    del lanes
    body = kernel.body
    for name in ("{}#", "p{}"):  # in two steps: a person may have called one p1
        for place, param in enumerate(kernel.params):
            old = param.name if name == "{}#" else f"{place}#"
            body = redirected(body, old, name.format(place))
    params = tuple(replace(param, name=f"p{place}") for place, param in enumerate(kernel.params))
    return replace(kernel, params=params, body=body)


PASSES = (
    hoist_initialization,
    begin_at_axes,
    dissolve_stages,
    bound_loops,
    same_for_all_lanes,
    compact_buffers,
    sums_to_accumulators,
    elements_to_values,
    flatten_indices,
    number_params,
)
