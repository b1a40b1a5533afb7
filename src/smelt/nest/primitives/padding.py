"""Separates padding from the computation of the padded values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
from sympy import Expr, Integer, Symbol

from smelt.nest.ir import Alloc, AxisKind, Block, For, Kernel, Let, Masked, Stage, Stmt, Store
from smelt.nest.primitives.combiners import needed
from smelt.nest.primitives.common import in_loops, loop_place, refused, renewed, stage_place
from smelt.nest.scopes import stage_names, unique_name
from smelt.nest.stages import Fresh, names_of
from smelt.nest.tree import (
    accesses,
    exchanged,
    find,
    named,
    nested,
    replace_loop,
    substitute,
    walk,
    with_body,
)
from smelt.records import replace
from smelt.symbolic.affine import expand, linear, symbols_in


def decompose_padding(kernel: Kernel, name: str, var: Symbol) -> tuple[Kernel, str]:
    """Fills a buffer with the padding value in loops of its own before a loop around the stage, and then
    computes only the elements without padding. Returns the kernel and the name of the padding stage.

    for i < 140: B[i] = A[i - 6] if 6 <= i < 134 else 0
        →   for i < 140: B[i] = 0
            for i < 128: B[i + 6] = A[i]

    Raises:
        ScheduleError: SM1007, the stage does not store a value under a condition on its axes, or else a
            constant, to elements of its own; SM1003, the loop is not around the stage, or others write or see
            the elements before.
    """
    stage, place = stage_place(kernel, name, "decompose_padding")
    loop, _ = loop_place(kernel, var, "decompose_padding")
    method = f"decompose_padding at {named(loop)}"
    if loop not in place.loops:
        raise refused(kernel, method, name, f"{named(loop)} is not around it in its scope")
    around = place.loops[place.loops.index(loop) :]
    parts = _parts(stage)
    if isinstance(parts, str):
        raise refused(kernel, method, name, parts, code="SM1007")
    masked, store, limits = parts
    if why := _seen_before(kernel, stage, loop, store.buffer):
        raise refused(kernel, method, name, why)
    fresh = Fresh(names_of(kernel))
    made = unique_name(f"{name}_pad_const", stage_names(kernel))
    constant = Let(store.value, masked.dtype, "constant", (masked.other,))
    padding = replace(stage, name=made, body=Block((constant, store)))
    (nest,) = renewed(in_loops(around, padding), fresh).stmts

    axes, where, moved, shorter = [], list(stage.where), dict[Symbol, Expr](), dict[Symbol, Expr]()
    for axis in stage.axes:
        low, high = limits.get(axis.var, (axis.begin, axis.begin + axis.extent))
        if (low, high) == (axis.begin, axis.begin + axis.extent):
            axes.append(axis)
            continue
        extent, value = expand(high - low), expand(axis.value - low)
        own = next((each for each in around if each.var == axis.value and _is_alone(each, stage)), None)
        if own is not None and own.begin == axis.begin and expand(own.end - own.begin - axis.extent) == 0:
            shorter[own.var], value = expand(own.begin + extent), axis.value - own.begin
        else:
            where += [sympy.Ge(axis.value, low)] if low != axis.begin else []
            where += [sympy.Lt(axis.value, high)] if high != axis.begin + axis.extent else []
        moved[axis.var] = axis.var + low
        axes.append(replace(axis, extent=extent, value=value, begin=Integer(0)))
    steps = [*needed(_before(stage, masked), _names(masked)), *masked.body.stmts]
    body = substitute(Block((*steps, replace(store, value=masked.result))), moved)
    rest = replace(stage, axes=tuple(axes), where=tuple(where), body=body)
    kernel = exchanged(kernel, stage, rest)
    for each, end in shorter.items():
        kernel = _shortened(kernel, each, end)
    found = find(kernel.body, var)
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (nest, found))), made


def _shortened(kernel: Kernel, var: Symbol, end: Expr) -> Kernel:
    loop = replace(find(kernel.body, var), end=end)
    return with_body(kernel, replace_loop(kernel.body, var, lambda _: (loop,)))


Limits = Mapping[Symbol, tuple[Expr, Expr]]
"""The elements without padding: lower and upper bound for each axis."""


def _parts(stage: Stage) -> tuple[Masked, Store, Limits] | str:
    """The masked value of a stage, its store, and the limits; or the reason why it is no padding."""
    *steps, store = stage.body.stmts
    made = {step.name: step for step in steps if isinstance(step, (Let, Masked))}
    masked = made.get(store.value) if isinstance(store, Store) else None
    if not isinstance(store, Store) or not isinstance(masked, Masked) or store.mode is not None:
        return f"{stage.name} does not store a value under a condition, or else a constant"
    axes = {axis.var: axis for axis in stage.axes}
    if stage.init is not None or any(axis.kind is not AxisKind.SPATIAL for axis in stage.axes):
        return f"{stage.name} does more than to store each element"
    wide = {axis.var for axis in stage.axes if axis.extent != 1}
    if len(set(store.index)) != len(store.index) or not wide <= set(store.index):
        return f"{stage.name} stores elements more than once"
    facts = _facts(masked.mask, made)
    if facts is None:
        return f"the condition of {stage.name} is no comparison of its axes"
    limits = {var: (axis.begin, expand(axis.begin + axis.extent)) for var, axis in axes.items()}
    for fact in facts:
        over = list(symbols_in(fact) & set(axes))
        step, rest = linear(fact, over[0]) if len(over) == 1 else (Integer(0), fact)
        if step not in (1, -1) or symbols_in(rest) & set(axes):
            return f"the condition {fact} >= 0 of {stage.name} is not about one axis"
        var = over[0]
        low, high = limits[var]
        low, high = (sympy.Max(low, -rest), high) if step == 1 else (low, sympy.Min(high, rest + 1))
        if not (expand(high - low)).is_Integer or high <= low:
            return f"{stage.name} has no known number of elements that are no padding"
        limits[var] = low, high
    if all(limits[var] == (a.begin, expand(a.begin + a.extent)) for var, a in axes.items()):
        return f"the condition of {stage.name} holds everywhere: there is no padding"
    return masked, store, limits


def _facts(name: str, made: Mapping[str, Let | Masked]) -> list[Expr] | None:
    """Expressions that are nonnegative where a condition holds; None, if it is no comparison of indices."""
    step = made.get(name)
    if not isinstance(step, Let):
        return None
    if step.op in ("logical_and", "bitwise_and"):
        both = [_facts(arg, made) for arg in step.args]
        return None if None in both else [fact for facts in both for fact in facts or ()]
    if step.op not in ("ge", "gt", "le", "lt"):
        return None
    a, b = (_index(made.get(arg)) for arg in step.args)
    if a is None or b is None:
        return None
    more = a - b if step.op in ("ge", "gt") else b - a
    return [expand(more if step.op in ("ge", "le") else more - 1)]


def _index(step: Let | Masked | None) -> Expr | None:
    if isinstance(step, Let) and step.op == "index_expr":
        return step.args[0]  # type: ignore[no-any-return]
    if isinstance(step, Let) and step.op == "constant" and not step.dtype.is_floating_point:
        return Integer(step.args[0])
    return None


def _seen_before(kernel: Kernel, stage: Stage, loop: For, buffer: str) -> str | None:
    """The reason why other statements may access elements of a buffer before the loop; None where they do
    not.
    """
    inside = accesses(Block((stage,)))
    if any(name == buffer and not is_store for name, _, is_store in inside):
        return f"it reads {buffer}"
    everywhere = [is_store for name, _, is_store in accesses(kernel.body) if name == buffer]
    if sum(everywhere) > 1:
        return f"others store to {buffer} too"
    if any(isinstance(each, Alloc) and each.buffer == buffer for each in walk(loop.body)):
        return f"{buffer} is memory of each iteration of {named(loop)}"
    if any(param.name == buffer for param in kernel.params) and len(everywhere) > 1:
        return f"{buffer} is given, and others read it"
    return None


def _is_alone(loop: For, stage: Stage) -> bool:
    """Whether a loop contains a stage and nothing else."""
    _, held = nested(loop)
    return len(held) == 1 and held[0] is stage and sum(axis.value.has(loop.var) for axis in stage.axes) == 1


def _before(stage: Stage, masked: Masked) -> Sequence[Stmt]:
    return [step for step in stage.body.stmts if step is not masked and not isinstance(step, Store)]


def _names(masked: Masked) -> list[str]:
    """The names that a masked block may take from outside."""
    own = [*walk(masked.body)]
    found = [arg for step in own if isinstance(step, Let) and step.op != "load" for arg in step.args]
    inner = [each for step in own if isinstance(step, Masked) for each in (step.mask, step.result)]
    return [each for each in (*found, *inner, masked.result) if isinstance(each, str)]


__all__ = ["decompose_padding"]
