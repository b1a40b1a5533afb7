"""Whether two programs are the same: by smelt's own comparison, or else by their nests and by running both.

smelt keeps index expressions and conditions in a normal form of its own, which may be another one than that
of the program that TVM prints. Where two functions have the same loops, blocks, axes, buffers and stores in
the same order, and differ in expressions alone, they are the same if they compute the same from the same
random arguments, by the interpreter or, where it would take too long, compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import smelt
from smelt.errors import SmeltError
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import Alloc, Block, For, Guard, Kernel, Let, Stage, Store
from smelt.nest.tree import blocks_of, walk, with_blocks
from smelt.records import replace
from smelt.script import IRModule, PrimFunc, structural_equal
from smelt.symbolic import evaluate, span
from smelt.tir.check import SIZE, _steps

MOST_STEPS = 200_000


def equal(one: Any, other: Any) -> bool:
    """Whether two programs are the same; of other things, whether they are equal."""
    if isinstance(one, IRModule) and isinstance(other, IRModule):
        names = [sorted(str(var) for var in each) for each in (one, other)]
        return names[0] == names[1] and all(equal(one[name], other[name]) for name in names[0])
    if isinstance(one, PrimFunc) and isinstance(other, PrimFunc):
        one, other = map(_with_symbol, (one, other))
        if one.attrs != other.attrs:
            return False
        return structural_equal(one, other) or _runs_alike(one.kernel, other.kernel)
    if (mine := getattr(one, "function", None)) and (theirs := getattr(other, "function", None)):
        return equal(mine, theirs)  # bodies of functions
    try:
        return structural_equal(one, other)
    except SmeltError as error:
        if error.code != "SM1208":
            raise
        return bool(one == other)


def _with_symbol(func: PrimFunc) -> PrimFunc:
    """The function with the attribute that TVM gives every public one."""
    if func.private or "global_symbol" in func.attrs:
        return func
    return func.with_attr("global_symbol", func.name)


# -- the same nest -------------------------------------------------------------------------------------------


def _runs_alike(one: Kernel, other: Kernel) -> bool:
    kinds = [
        [(param.dtype, len(param.shape), param.written) for param in each.params] for each in (one, other)
    ]
    if kinds[0] != kinds[1] or len(one.sizes) != len(other.sizes):
        return False
    if list(_outline(one)) != list(_outline(other)):
        return False
    sizes = [dict.fromkeys(each.sizes, SIZE) for each in (one, other)]
    for mine, theirs in zip(one.params, other.params):
        places = [
            [evaluate(e, known) for e in (*param.shape, *param.strides)]
            for param, known in zip((mine, theirs), sizes)
        ]
        if places[0] != places[1]:
            return False
    small = max(_steps(one, sizes[0]), _steps(other, sizes[1])) <= MOST_STEPS
    made = [_run(each, known, small) for each, known in zip((one, other), sizes)]
    return all(
        torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in zip(*made)
    )


def _outline(kernel: Kernel) -> Iterator[Any]:
    """The statements of a kernel in order, without expressions; buffers by the order of their use."""
    names = {param.name: number for number, param in enumerate(kernel.params)}
    allocs = {stmt.buffer: stmt for stmt in walk(kernel.body) if isinstance(stmt, Alloc)}

    def number(buffer: str) -> Any:
        names.setdefault(buffer, len(names))
        alloc = allocs.get(buffer)
        told = None if alloc is None else (alloc.dtype, str(alloc.shape), alloc.scope, alloc.aligned)
        return names[buffer], told

    def lines(block: Block, depth: int) -> Iterator[Any]:
        for stmt in block.stmts:
            if isinstance(stmt, For):
                extent = stmt.end - stmt.begin
                told = str(extent) if extent.is_Integer else "open"
                yield depth, "for", told, stmt.kind, stmt.step, stmt.thread, sorted(stmt.notes, key=str)
            elif isinstance(stmt, Stage):
                axes = [(axis.kind, str(axis.extent)) for axis in stmt.axes if not _is_unit(axis)]
                yield depth, "stage", axes, stmt.init is not None, sorted(stmt.notes, key=str)
            elif isinstance(stmt, Guard):
                yield depth, "if"
            elif isinstance(stmt, Store):
                yield depth, "store", number(stmt.buffer)
            elif isinstance(stmt, Let) and stmt.op == "load":
                names.setdefault(stmt.args[0], len(names))
            for inner in blocks_of(stmt):
                yield from lines(inner, depth + 1)

    yield from lines(kernel.body, 0)
    yield sorted((str(a.dtype), str(a.shape), a.scope) for a in allocs.values())


def _is_unit(axis: Any) -> bool:
    return axis.extent == 1 and not axis.value.free_symbols


# -- running -------------------------------------------------------------------------------------------------


def _run(kernel: Kernel, sizes: dict[Any, int], small: bool) -> list[torch.Tensor]:
    """What all parameters hold after a run from the same random numbers."""
    generator = torch.Generator().manual_seed(0)
    given: dict[str, torch.Tensor] = {}
    for param in kernel.params:
        count = evaluate(span(param.shape, param.strides), sizes)
        if param.dtype.is_floating_point:
            given[param.name] = torch.randn(count, generator=generator).to(param.dtype)
        else:
            given[param.name] = torch.randint(0, 5, (count,), generator=generator).to(param.dtype)
    if small:
        run_kernel(kernel, given, dict(sizes))
        return list(given.values())
    shapes = {p.name: tuple(evaluate(e, sizes) for e in p.shape) for p in kernel.params}
    strides = {p.name: tuple(evaluate(e, sizes) for e in p.strides) for p in kernel.params}
    args = [torch.as_strided(value, shapes[name], strides[name]) for name, value in given.items()]
    smelt.build(PrimFunc(_unbound(kernel)))(*args)
    return args


def _unbound(kernel: Kernel) -> Kernel:
    """The kernel with plain loops for those that are bound to a GPU's threads."""

    def plain(block: Block) -> Block:
        stmts = []
        for stmt in block.stmts:
            if isinstance(stmt, For):
                stmt = replace(stmt, thread=None)
            stmts.append(with_blocks(stmt, plain))
        return Block(tuple(stmts))

    return replace(kernel, body=plain(kernel.body))
