"""Stages with a text of their own, as functions and calls of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from sympy import Expr

from smelt.codegen.cpp.register_tiles import source_of
from smelt.codegen.cpp.scope import Function, Memory
from smelt.codegen.cpp.types import CPP_TYPES
from smelt.codegen.index import Offset
from smelt.errors import SmeltError
from smelt.nest.ir import Prefetch, Stage, Text
from smelt.nest.tree import accesses, loops, trip_count, walk
from smelt.symbolic import flatten
from smelt.symbolic.affine import expand, linear, replaced

Arguments = tuple[Sequence[tuple[Memory, Offset]], Sequence[Expr]]
"""Addresses of operands, and their strides; then the values of the stage's axes that have a label."""


def intrinsic_call(stage: Stage, text: Text, memories: Mapping[str, Memory]) -> tuple[Function, Arguments]:
    """The function of a text, and its arguments: addresses, strides, numbers of iterations, labelled axes.

    Raises:
        SmeltError: SM0809, a buffer does not have the layout that the text requires.
    """
    found, around = list(accesses(stage.body)), loops(stage.body)
    found += [(stmt.buffer, stmt.index, False) for stmt in walk(stage.body) if isinstance(stmt, Prefetch)]
    labelled = [axis for axis in stage.axes if axis.label]
    begin = {axis.var: axis.value for axis in stage.axes}
    begin |= {loop.var: loop.begin for loop in around}
    pointers, strides, wanted = [], [], []
    for operand in text.operands:
        buffer, place, _ = found[operand.access]
        memory = memories[buffer]
        index = flatten(place, memory.strides)
        pointers.append((memory, memory.offset([replaced(each, begin) for each in place])))
        steps = [expand(linear(index, around[number].var)[0]) for number in operand.loops]
        for dim, (step, need) in enumerate(zip(steps, operand.strides)):
            if need is not None and step != need:
                what = f"codegen: {text.name} wants the stride {need} in dimension {dim} of {operand.name}"
                raise SmeltError("SM0809", what, why=f"{buffer} has {step}")
        strides += steps
        const = "" if operand.written else "const "
        wanted.append(f"{const}{CPP_TYPES[operand.dtype]}_buffer* {operand.name}")
    wanted += [f"i64 {o.name}_{dim}" for o in text.operands for dim in range(len(o.loops))]
    strides += [trip_count(around[number]) for _, number in text.counts]
    wanted += [f"i64 {name}" for name, _ in text.counts]
    strides += [axis.value for axis in labelled]
    wanted += [f"i64 {axis.label}" for axis in labelled]
    body = source_of(text.form) if text.form else text.source
    if text.requires:
        body = f"{macros(text)}\n{body}\n#endif"
    digest = hashlib.sha256("".join([*wanted, body]).encode()).hexdigest()[:12]
    parameters, parts = ", ".join(wanted), frozenset(text.parts)
    before = "__attribute__((noinline)) " if text.form else ""
    function = Function(f"{text.name}_{digest}", parameters, body, False, parts, before)
    return function, (pointers, strides)


def macros(text: Text) -> str:
    """The preprocessor line for a text with required macros.

    >>> macros(Text("dot", "", (), ("__AVX2__", "__FMA__")))
    '#if defined(__AVX2__) && defined(__FMA__)'
    """
    return f"#if {' && '.join(f'defined({macro})' for macro in text.requires)}"
