"""Schedule primitives: each checks that it is legal, then returns a new kernel. People and the scheduler use
the same.

Loops are named by their variables, which are unique in a kernel. Extents begin at 0 unless a split made them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import sympy
from sympy import Expr, Symbol

from smelt.errors import SmeltError
from smelt.nest.dependence import carried_updates, conflict
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Alloc,
    Block,
    Carry,
    For,
    Guard,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Prefetch,
    SortRow,
    Stmt,
    Store,
    Update,
)
from smelt.nest.tree import (
    accesses,
    find,
    indirect_symbols,
    local_buffers,
    loops,
    map_exprs,
    replace_loop,
    substitute,
    trip_count,
    walk,
    with_body,
)
from smelt.records import replace
from smelt.symbolic import contiguous_strides, flatten, free_symbols, least, loop_var, same, span
from smelt.symbolic.affine import divided, expand, linear, remainder, replaced, symbols_in, times, total
from smelt.symbolic.index import simplify

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


MOST_JAMMED = 64
"""Turns that may run side by side: no machine has more registers."""


class ScheduleError(SmeltError):
    """A primitive was asked for something that would change results."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__("SM0701", what, why=why)


def fresh_var(kernel: Kernel) -> Symbol:
    """A loop variable that the kernel does not use yet."""
    used = {loop.var.name for loop in loops(kernel.body)}
    number = len(used)
    while f"i{number}" in used:
        number += 1
    return loop_var(f"i{number}")


def flatten_accesses(kernel: Kernel) -> Kernel:
    """Every access by one flat index.

    p0[i0, i1]  →  p0[i0*64 + i1]      (p0: f32[8, 64] becomes f32[512])
    """
    strides = {param.name: param.strides for param in kernel.params}
    for stmt in walk(kernel.body):
        if isinstance(stmt, Alloc):
            strides[stmt.buffer] = contiguous_strides(stmt.shape)
    extents = {loop.var: loop.end for loop in loops(kernel.body)}

    def flat(buffer: str, index: Sequence[Expr]) -> tuple[Expr, ...]:
        return (simplify(expand(flatten(tuple(index), strides[buffer])), extents),)

    def visit(block: Block) -> Block:
        stmts: list[Stmt] = []
        for stmt in block.stmts:
            if isinstance(stmt, (For, Masked, Guard)):
                stmts.append(replace(stmt, body=visit(stmt.body)))
            elif isinstance(stmt, (Store, Prefetch)):
                stmts.append(replace(stmt, index=flat(stmt.buffer, stmt.index)))
            elif isinstance(stmt, Let) and stmt.op == "load":
                stmts.append(replace(stmt, args=(stmt.args[0], flat(stmt.args[0], stmt.args[1]))))
            elif isinstance(stmt, SortRow):
                result = stmt.values or stmt.positions
                into = flat(result, stmt.into) if result else stmt.into
                stmts.append(replace(stmt, start=flat(stmt.source, stmt.start), into=into))
            elif isinstance(stmt, Alloc):
                stmts.append(replace(stmt, shape=(sympy.Mul(*stmt.shape),)))
            else:
                stmts.append(stmt)
        return Block(tuple(stmts))

    params = tuple(
        replace(param, shape=(span(param.shape, param.strides),), strides=(ONE,)) for param in kernel.params
    )
    return replace(kernel, params=params, body=visit(kernel.body))


def inner_loop(loop: For) -> For | None:
    """The loop that is the whole body of ``loop``, where the two are perfectly nested."""
    return loop.body.stmts[0] if len(loop.body.stmts) == 1 and isinstance(loop.body.stmts[0], For) else None


def merges_cleanly(kernel: Kernel, var: Symbol) -> bool:
    """Whether merging the loop over ``var`` with the one inside leaves no division in any flat index."""
    outer = find(kernel.body, var)
    inner = inner_loop(outer)
    if inner is None or outer.kind is not inner.kind or outer.step != 1 or inner.step != 1:
        return False
    if outer.begin != 0 or inner.begin != 0 or inner.end.has(var):
        return False
    for expr in _exprs(inner.body):
        if symbols_in(expr).isdisjoint((var, inner.var)):
            continue
        a, rest = linear(expr, var)
        b, rest = linear(rest, inner.var)
        if not same(a, times(b, inner.end)) or not symbols_in(rest).isdisjoint((var, inner.var)):
            return False
    return True


def merge(kernel: Kernel, var: Symbol) -> Kernel:
    """Make one loop of two perfectly nested ones.

    for i0 in 8: for i1 in 64: p0[i0*64 + i1] = …   →   for i0 in 512: p0[i0] = …

    Raises:
        ScheduleError: the loops are not perfectly nested, or of different kinds.
    """
    outer = find(kernel.body, var)
    inner = inner_loop(outer)
    if inner is None:
        raise ScheduleError(f"merge({var})", "the loop's body is not exactly one loop")
    if outer.kind is not inner.kind or inner.end.has(var):
        raise ScheduleError(
            f"merge({var})", "the two loops are of different kinds, or the inner one's end varies"
        )
    clean = merges_cleanly(kernel, var)
    size = inner.end
    turns = outer.end * size

    def rewrite(expr: Expr) -> Expr:
        if symbols_in(expr).isdisjoint((var, inner.var)):
            return expr
        if clean:
            _, rest = linear(expr, var)
            step, rest = linear(rest, inner.var)
            return total([rest, times(var, step)])
        apart = replaced(expr, {var: divided(var, size), inner.var: remainder(var, size)})
        return simplify(apart, {var: turns})

    body = map_exprs(inner.body, rewrite)
    merged = replace(outer, end=turns, body=body, independent=outer.independent and inner.independent)
    return with_body(kernel, replace_loop(kernel.body, var, lambda loop: (merged,)))


def split(kernel: Kernel, var: Symbol, factor: int) -> tuple[Kernel, Symbol]:
    """Cut a loop into blocks of ``factor``; returns the kernel and the new inner loop's variable.

    for i0 in 100: A   →   for i0 in 4: for i1 in i0*32 … min(100, i0*32 + 32): A[i0 := i1]
    """
    loop = find(kernel.body, var)
    if loop.begin != 0:
        raise ScheduleError(f"split({var}, {factor})", "the loop does not begin at 0")
    inner = fresh_var(kernel)
    count = simplify(divided(loop.end + factor - 1, sympy.Integer(factor)), {})
    even = loop.end.is_Integer and int(loop.end) % factor == 0
    end = var * factor + factor if even else least(loop.end, var * factor + factor)
    body = substitute(loop.body, {var: inner})
    new = replace(
        loop, end=count, body=Block((replace(loop, var=inner, begin=var * factor, end=end, body=body),))
    )
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (new,))), inner


def peel(kernel: Kernel, var: Symbol, count: int) -> tuple[Kernel, Symbol]:
    """Cut a loop's last turns off; returns the kernel and the variable of the loop that runs them.

    for i in 100: A   →   for i in 96: A; for i' in 96 … 100: A[i := i']
    """
    loop = find(kernel.body, var)
    if loop.begin != 0 or not loop.end.is_Integer or not 0 < count < int(loop.end):
        raise ScheduleError(f"peel({var}, {count})", f"the loop runs from {loop.begin} to {loop.end}")
    first, last = replace(loop, end=sympy.Integer(count)), replace(loop, begin=sympy.Integer(count))
    kernel = with_body(kernel, replace_loop(kernel.body, var, lambda _: (first,)))
    alone = with_body(kernel, Block((last,)))
    for inner in loops(alone.body):
        new = fresh_var(with_body(kernel, Block((*kernel.body.stmts, *alone.body.stmts))))
        alone = with_body(alone, replace_loop(alone.body, inner.var, partial(_over, var=new)))
    pieces = (first, *alone.body.stmts)
    rest = loops(alone.body)[0].var
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: pieces)), rest


def _over(loop: For, var: Symbol) -> tuple[For]:
    """The same loop with another variable."""
    return (replace(loop, var=var, body=substitute(loop.body, {loop.var: var})),)


def interchange(kernel: Kernel, var: Symbol) -> Kernel:
    """Swap a loop with the one that is its whole body.

    for i: for j: A   →   for j: for i: A

    Raises:
        ScheduleError: not perfectly nested, bounds that depend on the other loop, or turns that depend on
        each other.
    """
    outer = find(kernel.body, var)
    inner = inner_loop(outer)
    if inner is None:
        raise ScheduleError(f"interchange({var})", "the loop's body is not exactly one loop")
    if inner.begin.has(var) or inner.end.has(var):
        raise ScheduleError(f"interchange({var})", f"the bounds of {inner.var} depend on {var}")
    why = conflict(outer)
    if why is not None:
        raise ScheduleError(f"interchange({var})", why)
    swapped = replace(inner, body=Block((replace(outer, body=inner.body),)))
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (swapped,)))


def tile(kernel: Kernel, var: Symbol, rows: int, columns: int) -> tuple[Kernel, Symbol, Symbol]:
    """Walk two perfectly nested loops in tiles; returns the kernel and the two loops inside a tile.

    for i: for j: A   →   for i: for j: for i' in tile: for j' in tile: A
    """
    outer = find(kernel.body, var)
    inner = inner_loop(outer)
    if inner is None:
        raise ScheduleError(f"tile({var})", "the loop's body is not exactly one loop")
    kernel, within_rows = split(kernel, var, rows)
    kernel, within_columns = split(kernel, inner.var, columns)
    kernel = interchange(kernel, within_rows)
    return kernel, within_rows, within_columns


def parallelize(kernel: Kernel, var: Symbol) -> Kernel:
    """Run the turns of a loop on a thread team.

    for i0: A   →   parallel for i0: A

    Raises:
        ScheduleError: turns write what others read or write, or add to one accumulator.
    """
    loop = find(kernel.body, var)
    why = not_parallel(loop)
    if why is not None:
        raise ScheduleError(f"parallelize({var})", why)
    return _with_kind(kernel, var, LoopKind.PARALLEL)


def not_parallel(loop: For) -> str | None:
    """Why a loop's turns cannot run at the same time; None where they can."""
    carried = carried_updates(loop)
    if carried:
        return f"turns of {loop.var} add to the accumulator {carried[0].acc}"
    return conflict(loop)


def vectorize(kernel: Kernel, var: Symbol, lanes: int) -> Kernel:
    """Compute ``lanes`` turns of a loop at once; loops inside it run with all lanes in step.

    for i0 in n: A   →   vector(16) for i0 in n: A

    Raises:
        ScheduleError: turns depend on each other other than through accumulators, an inner bound depends on
        the
            loop, or an inner loop is parallel or vector already.
    """
    loop = find(kernel.body, var)
    why = not_vector(loop)
    if why is not None:
        raise ScheduleError(f"vectorize({var}, {lanes})", why)
    return with_body(
        kernel,
        replace_loop(kernel.body, var, lambda found: (replace(found, kind=LoopKind.VECTOR, step=lanes),)),
    )


def not_vector(loop: For) -> str | None:
    """Why a loop's turns cannot be lanes of one vector; None where they can."""
    for inner in loops(loop.body):
        if inner.kind in (LoopKind.PARALLEL, LoopKind.VECTOR):
            return f"the loop over {inner.var} inside is {inner.kind.value}"
        if inner.begin.has(loop.var) or inner.end.has(loop.var):
            return f"the bounds of {inner.var} depend on {loop.var}"
    if any(isinstance(stmt, Alloc) for stmt in walk(loop.body)):
        return "the loop holds scratch memory of its own"
    if any(isinstance(stmt, SortRow) for stmt in walk(loop.body)):
        return "the loop sorts rows"
    if any(update.merge for update in carried_updates(loop)):
        return "the loop merges accumulators"
    return conflict(loop)


def unroll(kernel: Kernel, var: Symbol) -> Kernel:
    """Print the turns of a loop one after another (its extent must be a small number)."""
    loop = find(kernel.body, var)
    if not trip_count(loop).is_Integer or int(trip_count(loop)) > 64:
        raise ScheduleError(f"unroll({var})", f"{trip_count(loop)} turns")
    return _with_kind(kernel, var, LoopKind.UNROLL)


def jam(kernel: Kernel, var: Symbol, *, stores_last: bool = False) -> Kernel:
    """Run the turns of a short loop side by side: its statements once for each turn, inner loops only once.

    for i in 2: c = 0; for k: c = c + a[i, k] * b[k]   →   c, c' = 0, 0; for k: …; c = …; c' = …

    What does not vary with ``var`` is computed once for all turns. This is how registers are filled: each
    turn has accumulators of its own. ``stores_last``: every turn computes what it stores before any of them
    stores, as a tile that is turned in registers wants it; no loops inside then.

    Raises:
        ScheduleError: more than 64 turns, turns that depend on each other, or inner bounds that vary.
    """
    loop = find(kernel.body, var)
    why = not_jammed(loop) or not_parallel(loop)
    if why is not None:
        raise ScheduleError(f"jam({var})", why)
    body = side_by_side(loop)
    if stores_last:
        if any(isinstance(stmt, For) for stmt in body.stmts):
            raise ScheduleError(
                f"jam({var})", "there are loops inside, between which stores have their place"
            )
        body = Block(tuple(sorted(body.stmts, key=lambda stmt: isinstance(stmt, Store))))
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: body.stmts))


def not_jammed(loop: For) -> str | None:
    """Why the turns of a loop cannot run side by side, whether they depend on each other or not; None where
    they can.
    """
    turns = trip_count(loop)
    if not turns.is_Integer or int(turns) > MOST_JAMMED:
        return f"{turns} turns"
    for inner in loops(loop.body):
        if inner.begin.has(loop.var) or inner.end.has(loop.var):
            return f"the bounds of {inner.var} depend on {loop.var}"
    for stmt in walk(loop.body):
        if isinstance(stmt, (Alloc, SortRow)) or (isinstance(stmt, Masked) and loops(stmt.body)):
            return "the loop holds scratch memory, sorts or masked loops"
    return None


def side_by_side(loop: For) -> Block:
    """What runs in place of a loop whose turns `jam` runs side by side, and of JAM loops in it."""
    values = [loop.begin + turn for turn in range(int(trip_count(loop)))]
    return _jammed(without_jams(loop.body), loop.var, values, set())


def without_jams(block: Block) -> Block:
    """The block, with what runs in place of its JAM loops.

    >>> import torch
    >>> i, k, n = sympy.symbols("i k n", integer=True, nonnegative=True)
    >>> load = Let("v", torch.float32, "load", ("x", (4 * i + k,)))
    >>> inner = For(k, sympy.Integer(0), n, Block((load,)))
    >>> loop = For(i, sympy.Integer(0), sympy.Integer(2), Block((inner,)), LoopKind.JAM)
    >>> [(stmt.name, stmt.args[1]) for stmt in walk(without_jams(Block((loop,)))) if isinstance(stmt, Let)]
    [('v_0', (k,)), ('v_1', (k + 4,))]
    """
    if not any(isinstance(stmt, For) for stmt in block.stmts):
        return block
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if isinstance(stmt, For) and stmt.kind is LoopKind.JAM:
            stmts += side_by_side(stmt).stmts
        elif isinstance(stmt, For):
            stmts.append(replace(stmt, body=without_jams(stmt.body)))
        else:
            stmts.append(stmt)
    return Block(tuple(stmts))


def _jammed(block: Block, var: Symbol, values: Sequence[Expr], varying: set[str]) -> Block:
    """``varying``: the names that differ from turn to turn; they get a number behind them.

    Between inner loops, what all turns share comes first, then one turn after the other: few values live at
    the same time.
    """
    stmts: list[Stmt] = []
    together: list[Stmt] = []

    def flush() -> None:
        for turn, value in enumerate(values):
            names = {name: f"{name}_{turn}" for name in varying}
            stmts.extend(_renamed(s, names) for s in substitute(Block(tuple(together)), {var: value}).stmts)
        together.clear()

    for stmt in block.stmts:
        if isinstance(stmt, For):
            flush()
            stmts.append(replace(stmt, body=_jammed(stmt.body, var, values, varying)))
        elif _same_in_all(stmt, var, varying):
            stmts.append(stmt)
        else:
            made = (Let, Carry, Accumulate, Masked)
            varying.update(each.name for each in walk(Block((stmt,))) if isinstance(each, made))
            together.append(stmt)
    flush()
    return Block(tuple(stmts))


def _same_in_all(stmt: Stmt, var: Symbol, varying: set[str]) -> bool:
    """Whether a statement does the same in all turns: gives one value, prefetches one element."""
    if isinstance(stmt, Let):
        if stmt.op == "read" or stmt.index is not None:
            return False
        if any(isinstance(arg, str) and arg in varying for arg in stmt.args):
            return False
    elif not isinstance(stmt, Prefetch):
        return False
    return not any(expr.has(var) for expr in _exprs(Block((stmt,))))


def _renamed(stmt: Stmt, names: Mapping[str, str]) -> Stmt:
    """The statement with other names for values, carries and accumulators."""
    if isinstance(stmt, Let):
        args = tuple(names.get(arg, arg) if isinstance(arg, str) else arg for arg in stmt.args)
        return replace(stmt, name=names.get(stmt.name, stmt.name), args=args)
    if isinstance(stmt, Store):
        return replace(stmt, value=names.get(stmt.value, stmt.value))
    if isinstance(stmt, Masked):
        body = Block(tuple(_renamed(inner, names) for inner in stmt.body.stmts))
        mask, result = (names.get(each, each) for each in (stmt.mask, stmt.result))
        return replace(stmt, name=names[stmt.name], mask=mask, body=body, result=result)
    if isinstance(stmt, (Carry, Accumulate)):
        return replace(stmt, name=names[stmt.name])
    if isinstance(stmt, Advance):
        return replace(stmt, carry=names.get(stmt.carry, stmt.carry), value=names.get(stmt.value, stmt.value))
    if isinstance(stmt, Prefetch):
        return stmt
    assert isinstance(stmt, Update)
    return replace(stmt, acc=names.get(stmt.acc, stmt.acc), value=names.get(stmt.value, stmt.value))


def cascade(kernel: Kernel, var: Symbol) -> Kernel:
    """Give each turn of a reduced loop accumulators of its own, folded into the outer ones at its end.

    for i: for j: acc += x   →   for i: part = 0; for j: part += x; acc += part

    Sums stay accurate, because no accumulator takes more than one turn's terms.

    Raises:
        ScheduleError: an accumulator is not a plain sum.
    """
    loop = find(kernel.body, var)
    kinds = {s.name: s for s in walk(kernel.body) if isinstance(s, Accumulate)}
    outside = {update.acc for update in carried_updates(loop)}
    for name in outside:
        if kinds[name].kind != "sum":
            raise ScheduleError(f"cascade({var})", f"{name} is a {kinds[name].kind}, not a sum")
    parts = {name: f"{name}_part{len(kinds)}" for name in sorted(outside)}

    def redirect(block: Block) -> Block:
        stmts: list[Stmt] = []
        for stmt in block.stmts:
            if isinstance(stmt, For):
                stmts.append(replace(stmt, body=redirect(stmt.body)))
            elif isinstance(stmt, Update) and stmt.acc in parts:
                stmts.append(replace(stmt, acc=parts[stmt.acc]))
            else:
                stmts.append(stmt)
        return Block(tuple(stmts))

    opened = [Accumulate(part, "sum", kinds[name].dtype) for name, part in parts.items()]
    folded: list[Stmt] = []
    for name, part in parts.items():
        folded.append(Let(f"{part}_sum", kinds[name].dtype, "read", (part, 0)))
        folded.append(Update(name, f"{part}_sum"))
    body = Block((*opened, *redirect(loop.body).stmts, *folded))
    return with_body(kernel, replace_loop(kernel.body, var, lambda found: (replace(found, body=body),)))


def hoist(kernel: Kernel) -> Kernel:
    """Move what a loop computes the same in every turn in front of it.

    for i: for j: v = sqrt(x[i]); y[i, j] = v   →   for i: v = sqrt(x[i]); for j: y[i, j] = v

    A load stays where the loop stores to the same buffer; checks and integer divisions stay where they are.
    What comes out of two loops of a block under one name comes out once.
    """
    return with_body(kernel, _hoist_block(kernel.body))


_STAYS = ("indirect_index", "read", "fmod", "remainder", "floordiv", "truncdiv")


def _hoist_block(block: Block) -> Block:
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if not isinstance(stmt, For):
            stmts.append(stmt)
            continue
        loop = replace(stmt, body=_hoist_block(stmt.body))
        moved, kept = _invariant(loop)
        stmts += [each for each in moved if each not in stmts]
        stmts.append(replace(loop, body=Block(tuple(kept))) if moved else loop)
    return Block(tuple(stmts))


def _invariant(loop: For) -> tuple[list[Stmt], list[Stmt]]:
    """Split a loop's own statements into those that do not vary with it and the rest."""
    if loop.kind is LoopKind.PARALLEL:
        return [], list(loop.body.stmts)
    stored = {buffer for buffer, _, is_store in accesses(loop.body) if is_store} | local_buffers(loop.body)
    inside = {s.name for s in walk(loop.body) if isinstance(s, (Let, Masked, Accumulate))}
    symbols = {loop.var} | indirect_symbols(loop.body)
    moved: list[Stmt] = []
    kept: list[Stmt] = []
    for stmt in loop.body.stmts:
        if isinstance(stmt, Let) and _fixed(stmt, inside, symbols, stored):
            inside.discard(stmt.name)
            moved.append(stmt)
        else:
            kept.append(stmt)
    return moved, kept


def _fixed(stmt: Let, inside: set[str], symbols: set[Symbol], stored: set[str]) -> bool:
    if stmt.op in _STAYS and not (stmt.dtype.is_floating_point and stmt.op != "read"):
        return False
    if stmt.op == "load":
        return stmt.args[0] not in stored and symbols.isdisjoint(free_symbols(stmt.args[1]))
    if stmt.op == "index_expr":
        return symbols_in(stmt.args[0]).isdisjoint(symbols)
    return not any(isinstance(arg, str) and arg in inside for arg in stmt.args)


def _exprs(block: Block) -> list[Expr]:
    found: list[Expr] = []

    def keep(expr: Expr) -> Expr:
        found.append(expr)
        return expr

    map_exprs(block, keep)
    return found


def _with_kind(kernel: Kernel, var: Symbol, kind: LoopKind) -> Kernel:
    return with_body(kernel, replace_loop(kernel.body, var, lambda loop: (replace(loop, kind=kind),)))
