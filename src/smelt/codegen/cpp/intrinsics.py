"""Stages with a text of their own, as functions and calls of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from sympy import Expr, Symbol

from smelt.codegen.cpp.register_tiles import source_of
from smelt.codegen.cpp.scope import Function, Memory
from smelt.codegen.cpp.types import CPP_TYPES
from smelt.codegen.index import Offset
from smelt.errors import SmeltError
from smelt.nest.ir import For, Operand, Prefetch, Stage, Text
from smelt.nest.tree import accesses, loops, trip_count, walk
from smelt.symbolic import flatten
from smelt.symbolic.affine import expand, linear, replaced

Arguments = tuple[Sequence[tuple[Memory, Offset]], Sequence[Expr]]
"""Addresses of operands, then their strides and numbers of iterations."""


def intrinsic_call(
    stage: Stage, text: Text, memories: Mapping[str, Memory], parallel: bool = False
) -> tuple[Function, Arguments]:
    """The function of a text, and its arguments: addresses, strides, numbers of iterations.
    ``parallel``: a parallel loop is around the stage.

    Raises:
        SmeltError: SM0809, a buffer does not have the layout that the text requires.
    """
    found, around = list(accesses(stage.body)), loops(stage.body)
    found += [(stmt.buffer, stmt.index, False) for stmt in walk(stage.body) if isinstance(stmt, Prefetch)]
    begin = {loop.var: loop.begin for loop in around}
    pointers, strides, wanted, numbers = list[tuple[Memory, Offset]](), list[Expr](), list[str](), list[str]()
    streamed = False
    for operand in text.operands:
        buffer, place, _ = found[operand.access]
        memory = memories[buffer]
        index = flatten(place, memory.strides)
        streamed |= operand.written and memory.streamed
        const = "" if operand.written else "const "
        for iteration, name in pointed(operand, around):
            pointers.append((memory, memory.offset([replaced(each, begin | iteration) for each in place])))
            wanted.append(f"{const}{CPP_TYPES[operand.dtype]}_buffer* {name}")
        for dim, (number, need) in enumerate(zip(operand.loops, operand.strides)):
            step = expand(linear(index, around[number].var)[0])
            if need is not None and step != need:
                what = f"codegen: {text.name} wants the stride {need} in dimension {dim} of {operand.name}"
                raise SmeltError("SM0809", what, why=f"{buffer} has {step}")
            if need is None or not text.form:
                strides.append(step)
                numbers.append(f"{operand.name}_{dim}")
    strides += [trip_count(around[number]) for _, number in text.counts]
    numbers += [name for name, _ in text.counts]
    wanted += [f"i64 {name}" for name in numbers]
    body = source_of(text, streamed, parallel) if text.form else text.source
    if text.requires:
        body = f"{macros(text)}\n{body}\n#endif"
    digest = hashlib.sha256("".join([*wanted, body]).encode()).hexdigest()[:12]
    parameters, parts = ", ".join(wanted), frozenset((*text.parts, *(("stream",) if streamed else ())))
    before = "__attribute__((noinline)) " if text.form else ""
    function = Function(f"{text.name}_{digest}", parameters, body, False, parts, before)
    return function, (pointers, strides)


def pointed(operand: Operand, around: Sequence[For]) -> list[tuple[dict[Symbol, Expr], str]]:
    """The pointers of an operand: the iteration of a loop that each is for, and its name."""
    if operand.each is None:
        return [({}, operand.name)]
    loop = around[operand.each]
    return [
        ({loop.var: loop.begin + number}, f"{operand.name}{number}")
        for number in range(int(trip_count(loop)))
    ]


def macros(text: Text) -> str:
    """The preprocessor line for a text with required macros.

    >>> macros(Text("dot", "", (), ("__AVX2__", "__FMA__")))
    '#if defined(__AVX2__) && defined(__FMA__)'
    """
    return f"#if {' && '.join(f'defined({macro})' for macro in text.requires)}"
