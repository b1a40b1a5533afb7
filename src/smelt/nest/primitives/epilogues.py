"""Fuses the addition after a reduction into it, and pads a reduction."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from sympy import Expr, Symbol

from smelt.nest.ir import Alloc, Axis, Block, Kernel, Let, Masked, Stage, Stmt, Store
from smelt.nest.primitives.common import in_loops, refusal, stage_place
from smelt.nest.primitives.copies import Values, copied
from smelt.nest.primitives.inline import inverted
from smelt.nest.primitives.layouts import own_nest
from smelt.nest.scopes import (
    buffer_names,
    buffers,
    consumers,
    not_reduction,
    producers,
    reads,
    shapes_of,
    stage_names,
    unique_name,
    with_alloc,
    without,
    without_alloc,
    writes,
)
from smelt.nest.tree import exchanged, redirected, reduced_axes, with_blocks, with_body
from smelt.records import replace
from smelt.symbolic.affine import divided, expand, symbols_in

ZERO = sympy.Integer(0)


def fuse_reduction_epilogue(kernel: Kernel, reduction: str, epilogue: str) -> Kernel:
    """Initializes a sum with the term that is added to it afterwards.

    T[i] = 0; T[i] += A[i, k]          D[i] = C[i]
    D[i] = T[i] + C[i]             →   D[i] += A[i, k]

    The order of floating-point additions changes. (TVM also moves a maximum or a clamp into every iteration,
    which changes the result: smelt refuses that.)

    Raises:
        ScheduleError: SM1002 there is no such block; SM1029 the sum has other consumers, is a result, or the
        epilogue does more than add a term to it.
    """
    what = f"fuse_reduction_epilogue({epilogue}) of {reduction}"
    stage, place = stage_place(kernel, reduction, what)
    target, last = stage_place(kernel, epilogue, what)
    why = not_reduction(kernel, place)
    if why is not None:
        raise refusal("SM1029", what, f"{reduction} is no reduction block: {why}")
    store, first = stage.body.stmts[-1], stage.init.stmts[-1] if stage.init is not None else None
    if not isinstance(store, Store) or store.mode != "add" or not isinstance(first, Store):
        raise refusal("SM1029", what, f"{reduction} is no plain sum")
    (buffer,) = writes(stage)
    if buffer in {param.name for param in kernel.params}:
        raise refusal("SM1029", what, f"{reduction} is an output block: {buffer} is given back")
    users = consumers(kernel, place)
    if [each.name for each in users] != [epilogue]:
        raise refusal("SM1029", what, f"{buffer} is read by {', '.join(u.name for u in users) or 'nobody'}")
    others = [each.name for each in producers(kernel, last) if each is not stage]
    if others:
        raise refusal("SM1029", what, f"{epilogue} has other producers: {', '.join(others)}")
    zero = _is_zero(stage.init, first)
    *steps, end = target.body.stmts
    by_name = {step.name: step for step in steps if isinstance(step, Let)}
    loads = [step for step in by_name.values() if step.op == "load" and step.args[0] == buffer]
    plain = isinstance(end, Store) and end.mode is None and target.init is None and not target.where
    total = by_name.get(end.value) if isinstance(end, Store) else None
    if not plain or len(loads) != 1 or total is None or len(by_name) != len(steps) or not zero:
        raise refusal("SM1029", what, f"{epilogue} does more than add a term to {buffer}")
    assert isinstance(end, Store)
    name = loads[0].name
    uses = [step for step in by_name.values() if name in step.args]
    if total.op != "add" or uses != [total] or total.args.count(name) != 1:
        remedy = "reverse_compute_at computes it at the end of each sum"
        raise refusal("SM1029", what, f"{epilogue} does more than add a term to {buffer}", remedy)
    bias = next(arg for arg in total.args if arg != name)
    found = inverted(loads[0].args[1], store.index, {axis.var: axis.extent for axis in target.axes})
    if isinstance(found, str) or any(a.var not in found and a.extent != 1 for a in target.axes):
        raise refusal("SM1030", what, f"the index at which it loads {buffer} cannot be inverted")
    symbols = {axis.var: found.get(axis.var, axis.begin) for axis in target.axes}
    begin = [step for step in steps if step not in (loads[0], total)]
    made = copied((*begin, replace(end, value=bias)), {}, symbols, Values(kernel))
    started = made[-1]
    assert isinstance(started, Store)
    body = Block((*stage.body.stmts[:-1], replace(store, buffer=end.buffer, index=started.index)))
    new = replace(stage, init=Block(tuple(made)), body=body)
    changed = exchanged(with_body(kernel, without(kernel.body, target)), stage, new)
    return without_alloc(changed, buffer)


def _is_zero(init: Block | None, store: Store) -> bool:
    constants = [each for each in init.stmts if isinstance(each, Let)] if init is not None else []
    return any(each.name == store.value and each.op == "constant" and each.args[0] == 0 for each in constants)


def pad_einsum(kernel: Kernel, stage: str, padding: Sequence[int]) -> Kernel:
    """Rounds the extents of a sum of products up: operands and result get padded copies.

    for i in 30, k in 30: C[i] += A[i, k]   →   A_pad = A, and 0 beyond;  for i in 32, k in 32: C_pad[i] +=
                                                A_pad[i, k];  C = C_pad, as far as it goes

    ``padding``: for each axis of the block, the number of which its extent becomes a multiple.

    Raises:
        ScheduleError: SM1002 there is no such block; SM1036 it is no sum of products at its own axes, the
        padding is not one number for each axis, or the loops around the block are not its axes.
    """
    what = f"pad_einsum of {stage}"
    target, place = stage_place(kernel, stage, what)
    top, around = own_nest(place, what)
    if len(padding) != len(target.axes) or any(each < 1 for each in padding):
        raise refusal("SM1036", what, f"{list(padding)} is not one positive number for each of its axes")
    if place.scope is not None or [axis.value for axis in target.axes] != [loop.var for loop in around]:
        raise refusal("SM1036", what, "its axes are not the loops around it, one by one")
    if not_reduction(kernel, place) is not None or not _is_product(target):
        raise refusal("SM1036", what, "it is no sum of products, each factor at axes of the block")
    sizes = {
        axis.var: expand(divided(axis.extent + by - 1, by) * by) for axis, by in zip(target.axes, padding)
    }
    padded = {axis.var for axis in target.axes if sizes[axis.var] != axis.extent}
    if not padded:
        return kernel
    (out,) = writes(target)
    values, names, shapes = Values(kernel), buffer_names(kernel) | stage_names(kernel), shapes_of(kernel)
    before: list[Stmt] = []
    after: list[Stmt] = []
    allocs: list[Alloc] = []
    moved: dict[str, str] = {}
    reduced = {axis.var for axis in reduced_axes(target)} & padded
    for buffer in [*reads(target), out]:
        index = _index_of(target, buffer)
        if padded.isdisjoint(symbols_in(sympy.Tuple(*index))):
            continue
        made = moved[buffer] = unique_name(f"{buffer}_pad", names)
        names.add(made)
        shape = tuple(sizes.get(expr, size) for expr, size in zip(index, shapes[buffer]))
        allocs.append(Alloc(made, buffers(kernel)[buffer].dtype, shape))
        if buffer == out:
            after.append(_copy(made, made, buffer, shapes[buffer], shapes[buffer], values, kernel))
        else:
            before.append(_copy(made, buffer, made, shape, shapes[buffer], values, kernel))
        reduced -= set() if buffer == out else symbols_in(sympy.Tuple(*index))
    if reduced:
        raise refusal("SM1036", what, "terms beyond the end would not be 0")

    def padded_copy(block: Block) -> Block:
        for buffer, made in moved.items():
            block = redirected(block, buffer, made)
        return block

    axes = tuple(replace(axis, extent=sizes[axis.var]) for axis in target.axes)
    around = [replace(loop, end=axis.extent) for loop, axis in zip(around, axes)]
    nest = in_loops(around, with_blocks(replace(target, axes=axes), padded_copy))
    changed = exchanged(kernel, top, *before, nest, *after)
    return with_body(changed, with_alloc(changed.body, *allocs))


def _is_product(stage: Stage) -> bool:
    """Whether a stage adds products of loads at its own axes, from 0 on."""
    own = {axis.var for axis in stage.axes}
    *steps, store = stage.body.stmts
    if stage.init is None or stage.where or not isinstance(store, Store) or store.mode != "add":
        return False
    first = stage.init.stmts[-1]
    if not isinstance(first, Store) or not _is_zero(stage.init, first):
        return False
    for step in steps:
        if not isinstance(step, Let) or step.op not in ("load", "mul", "to_dtype"):
            return False
        if step.op == "load" and not _own_axes(step.args[1], own):
            return False
    return _own_axes(store.index, own) and all(axis.begin == 0 for axis in stage.axes)


def _own_axes(index: Sequence[Expr], own: set[Symbol]) -> bool:
    used = [expr for expr in index if not expr.is_Integer]
    return all(expr in own for expr in used) and len(set(used)) == len(used)


def _index_of(stage: Stage, buffer: str) -> tuple[Expr, ...]:
    """The index at which a sum of products uses a buffer (the first one)."""
    for stmt in stage.body.stmts:
        if isinstance(stmt, Let) and stmt.op == "load" and stmt.args[0] == buffer:
            index: tuple[Expr, ...] = stmt.args[1]
            return index
        if isinstance(stmt, Store) and stmt.buffer == buffer:
            return stmt.index
    raise KeyError(buffer)


def _copy(
    name: str,
    source: str,
    target: str,
    shape: Sequence[Expr],
    inside: Sequence[Expr],
    values: Values,
    kernel: Kernel,
) -> Stmt:
    """A block that copies all of ``target``, of shape ``shape``, from ``source``, of shape ``inside``, with 0
    beyond it.
    """
    dtype = buffers(kernel)[source if source != name else target].dtype
    loops = [values.loop(dim, size) for dim, size in enumerate(shape)]
    axes = tuple(
        Axis(values.symbol(f"v{dim}"), loop.end, loop.var, label=f"v{dim}") for dim, loop in enumerate(loops)
    )
    at = tuple(axis.var for axis in axes)
    bounded = [(axis.var, size) for axis, size in zip(axes, inside) if expand(axis.extent - size) != 0]
    value = values()
    steps: list[Stmt] = [Let(value, dtype, "load", (source, at))]
    for var, size in bounded:
        value, steps = _only_below(var, size, value, steps, dtype, values)
    return in_loops(loops, Stage(name, axes, Block((*steps, Store(target, at, value)))))


def _only_below(
    var: Symbol, size: Expr, value: str, steps: list[Stmt], dtype: torch.dtype, values: Values
) -> tuple[str, list[Stmt]]:
    """The steps where ``var < size``, and 0 elsewhere."""
    place, end, mask, made = values(), values(), values(), values()
    zero = False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 0
    compare = [
        Let(place, torch.int64, "index_expr", (var,)),
        Let(end, torch.int64, "index_expr", (size,)),
        Let(mask, torch.bool, "lt", (place, end)),
    ]
    return made, [*compare, Masked(made, dtype, mask, Block(tuple(steps)), value, zero)]
