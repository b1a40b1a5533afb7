"""Primitives on plain loops that compute values ahead: of all iterations, or of all numbers of 4 bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sympy import Symbol

from smelt.nest.ir import TABLE_LANES, Alloc, Block, For, Kernel, Let, LoopKind, Masked, Stmt, Store
from smelt.nest.primitives.common import in_loops, loop_place, refused
from smelt.nest.primitives.kinds import renamed
from smelt.nest.scopes import buffer_names, unique_name
from smelt.nest.stages import Fresh, names_of
from smelt.nest.tree import (
    accesses,
    loops,
    needed,
    replace_loop,
    rewritten,
    substitute,
    symbols_of,
    trip_count,
    walk,
    with_body,
)
from smelt.ops import TABLE
from smelt.records import replace
from smelt.symbolic import contiguous_strides, flatten, numel

_PURE = frozenset((*TABLE, "load", "constant", "index_expr", "to_dtype", "bitcast"))


def precompute(kernel: Kernel, name: str, var: Symbol) -> tuple[Kernel, list[Symbol]]:
    """Computes a value at the beginning of each iteration of a loop, for all iterations of the loops inside
    that it depends on. Returns the kernel and the new loops.

    for j: for i: for k: v = f(p[j, k]); …
        →   for j: scratch t; for k': v' = f(p[j, k']); t[k'] = v'
                   for i: for k: v = t[k]; …

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1007, the value is not computed from indices and
            unchanged buffers, or depends on no loop inside.
    """
    loop, _ = loop_place(kernel, var, "precompute")
    path = _down_to(loop, name)
    steps = needed(Block(tuple(stmt for each in path for stmt in each.body.stmts)), name)
    over = [each for each in path[1:] if each.var in symbols_of(steps)]
    stored = {buffer for buffer, _, is_store in accesses(loop.body) if is_store}
    changes = not stored.isdisjoint(buffer for buffer, _, _ in accesses(steps))
    if changes or not over or not all(isinstance(s, Let) and s.op in _PURE for s in steps.stmts):
        why = f"{name} is not computed from indices and unchanged buffers, for loops inside"
        raise refused(kernel, "precompute", var, why, code="SM1007")
    fresh, used = Fresh(names_of(kernel)), _value_names(kernel)
    variables = {each.var: fresh(f"{each.var}_ahead") for each in over}
    own = {each: unique_name(f"{each}_ahead", used) for each in _names(steps)}
    scratch = unique_name(f"{name}_ahead", buffer_names(kernel))
    shape = tuple(map(trip_count, over))
    place = flatten(tuple(each.var - each.begin for each in over), contiguous_strides(shape))
    copied = substitute(Block((*steps.stmts, Store(scratch, (place,), name))), variables)
    nest = in_loops(
        [replace(each, var=variables[each.var]) for each in over],
        Block(tuple(renamed(stmt, own) for stmt in copied.stmts)),
    )
    made = steps.stmts[-1]
    assert isinstance(made, Let)
    read = replace(made, op="load", args=(scratch, (place,)), index=None)
    body = _without_unused(rewritten(loop.body, lambda s: (read,) if s is made else None), _names(steps))
    whole = replace(loop, body=Block((Alloc(scratch, made.dtype, (numel(shape),)), nest, *body.stmts)))
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (whole,))), list(variables.values())


def tabulate(kernel: Kernel, var: Symbol) -> Kernel:
    """Looks up what is a function of a number of at most 4 bits, in the function's values for all 16 of them:
    each iteration of a loop, which becomes a vector, computes one. Nothing changes where there is none.

    for l in 16: q = p[l] & 15; v = s * f32(q); …
        →   vector(16) for l in 16: t = s * f32(l); v = lookup(t, p[l]); …

    Raises:
        ScheduleError: SM1002, there is no such loop; SM1008, it has not 16 iterations.
    """
    loop, _ = loop_place(kernel, var, "tabulate")
    if loop.begin != 0 or trip_count(loop) != TABLE_LANES:
        raise refused(kernel, "tabulate", var, f"it has not {TABLE_LANES} iterations", code="SM1008")
    lets = {stmt.name: stmt for stmt in walk(kernel.body) if isinstance(stmt, Let)}
    body = loop.body
    for stmt in loop.body.stmts:
        mask = _mask(stmt, lets) if isinstance(stmt, Let) else None
        if mask is not None and any(each is stmt for each in body.stmts):
            body = _looked_up(replace(loop, body=body), stmt, *mask, _value_names(kernel))  # type: ignore[arg-type]
    if body is loop.body:
        return kernel
    made = replace(loop, body=body, kind=LoopKind.VECTOR, step=TABLE_LANES)
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (made,)))


def uniform_values(loop: For) -> set[str]:
    """The names of values in a loop's own block that are the same in all of its iterations."""
    inside = {each.var for each in loops(loop.body)} | {loop.var}
    found: set[str] = set()
    own = _names(loop.body)
    for stmt in loop.body.stmts:
        if isinstance(stmt, Let) and stmt.op in _PURE and inside.isdisjoint(symbols_of(Block((stmt,)))):
            args = () if stmt.op == "load" else stmt.args
            if all(arg in found for arg in args if isinstance(arg, str) and arg in own):
                found.add(stmt.name)
    return found


def _mask(stmt: Let, lets: dict[str, Let]) -> tuple[str, str] | None:
    """The number that a ``bitwise_and`` takes at most 4 bits of, and these bits, an integer constant."""
    if stmt.op != "bitwise_and" or stmt.dtype is not torch.int32:
        return None
    for number, mask in (stmt.args, stmt.args[::-1]):
        bits = lets.get(mask)
        if bits is not None and bits.op == "constant" and 0 < bits.args[0] < TABLE_LANES:
            return number, mask
    return None


def _looked_up(loop: For, few_bits: Let, number: str, mask: str, used: set[str]) -> Block:
    """The body of a loop in which functions of one number of few bits are looked up."""
    stmts, uniform, own = loop.body.stmts, uniform_values(loop), _names(loop.body)
    function: list[Let] = []
    names = {few_bits.name}
    for stmt in stmts:
        if not isinstance(stmt, Let) or (stmt.op not in TABLE and stmt.op != "to_dtype"):
            continue
        args = set(stmt.args)
        if args & names and all(arg in names or arg in uniform or arg not in own for arg in args):
            function.append(stmt)
            names.add(stmt.name)
    outside = {arg for stmt in walk(loop.body) if stmt not in function for arg in used_values(stmt)}
    results = [s for s in function if s.name in outside and s.dtype.itemsize == 4]
    if number in uniform or not results:
        return loop.body
    place = unique_name(f"{few_bits.name}_lane", used)
    tables = {each: unique_name(f"{each}_table", used) for each in names}
    lane = replace(few_bits, name=place, op="index_expr", args=(loop.var,))
    made: list[Stmt] = []
    for stmt in stmts:
        if stmt not in results:
            made.append(stmt)
        if stmt is few_bits:
            made += (lane, replace(few_bits, name=tables[few_bits.name], args=(place, mask)))
        elif stmt in function:
            assert isinstance(stmt, Let)
            made.append(renamed(stmt, tables))
            if stmt in results:
                made.append(replace(stmt, op="lookup", args=(tables[stmt.name], number)))
    return _without_unused(Block(tuple(made)), names)


def _down_to(loop: For, name: str) -> list[For]:
    """A loop and those inside of it, down to the one whose block has a value; empty if there is none."""
    if name in _names(loop.body):
        return [loop]
    for inner in loop.body.stmts:
        below = _down_to(inner, name) if isinstance(inner, For) else []
        if below:
            return [loop, *below]
    return []


def _names(block: Block) -> set[str]:
    """The names of a block's own values."""
    return {stmt.name for stmt in block.stmts if isinstance(stmt, (Let, Masked))}


def _value_names(kernel: Kernel) -> set[str]:
    return {stmt.name for stmt in walk(kernel.body) if isinstance(stmt, (Let, Masked))}


def used_values(stmt: Stmt) -> Sequence[str]:
    """The names of values that a statement itself uses."""
    if isinstance(stmt, Let):
        return [] if stmt.op == "load" else [arg for arg in stmt.args if isinstance(arg, str)]
    named = (getattr(stmt, each, None) for each in ("value", "mask", "result"))
    return [each for each in named if each is not None]


def _without_unused(block: Block, names: set[str]) -> Block:
    """The block without those of some values that nothing uses."""
    unused = names - {each for stmt in walk(block) for each in used_values(stmt)}
    changed = rewritten(block, lambda s: () if isinstance(s, Let) and s.name in unused else None)
    return block if changed is block else _without_unused(changed, names)
