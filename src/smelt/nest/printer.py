"""Prints loop nests as indented text; `smelt explain --stage nest` shows it."""

from __future__ import annotations

from collections.abc import Iterator

from smelt.loops.printer import buffer_text, index_text, instruction_text, store_sign, type_text
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Alloc,
    Argument,
    Block,
    Call,
    Carry,
    For,
    Guard,
    InArena,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Prefetch,
    Routine,
    Run,
    SortRow,
    Stage,
    Stmt,
    Store,
)
from smelt.symbolic.text import python_text

_INDENT = "    "


def print_kernel(kernel: Kernel) -> str:
    """The text of one kernel.

    >>> import sympy, torch
    >>> from smelt.nest.ir import Param
    >>> i, eight, one = sympy.Symbol("i0"), sympy.Integer(8), sympy.Integer(1)
    >>> x, y = (Param(name, torch.float32, (eight,), (one,), name == "y") for name in "xy")
    >>> load = Let("v0", torch.float32, "load", ("x", (i,)))
    >>> loop = For(i, sympy.Integer(0), eight, Block((load, Store("y", (i,), "v0"))), LoopKind.VECTOR, 4)
    >>> print(print_kernel(Kernel("copy", (x, y), (), Block((loop,)))), end="")
    kernel copy(x: f32[8], out y: f32[8]):
        vector for i0 in range(8) step 4:
            v0: f32 = x[i0]
            y[i0] = v0
    """
    params = [f"{'out ' if param.written else ''}{buffer_text(param)}" for param in kernel.params]
    head = f"kernel {kernel.name}({', '.join([*params, *(f'{size}: size' for size in kernel.sizes)])}):"
    origins = [f"{_INDENT}# {origin}" for origin in dict.fromkeys(map(str, kernel.origins))]
    return "\n".join([head, *origins, *(_INDENT + line for line in block_lines(kernel.body))]) + "\n"


def print_run(run: Run) -> str:
    """The text of one native call: its kernels (equal ones once) and their arguments."""
    args = ", ".join([*run.arguments, *(f"{size}: size" for size in run.sizes)])
    lines = [f"run {run.name}({args}):"]
    lines += [f"{_INDENT}{_call_text(call, run)}" for call in run.calls]
    kernels = dict.fromkeys(call.kernel for call in run.calls)
    return "\n".join(["\n".join(lines) + "\n", *(print_kernel(kernel) for kernel in kernels)])


def _call_text(call: Call, run: Run) -> str:
    texts = []
    for param, arg in zip(call.kernel.params, call.args):
        if isinstance(arg, InArena):
            texts.append(f"{param.name}=arena[{python_text(arg.offset)}]")
        elif isinstance(arg, Argument):
            texts.append(f"{param.name}={run.arguments[arg.position]}")
        else:
            texts.append(f"{param.name}={arg}")
    return f"{call.kernel.name}({', '.join(texts)})"


def block_lines(block: Block) -> list[str]:
    """The lines of a block, not indented."""
    return [line for line, _ in lines_of(block)]


def lines_of(block: Block) -> list[tuple[str, Stmt | None]]:
    """The lines of a block, not indented, and the innermost statement of each."""
    found: list[tuple[str, Stmt | None]] = []
    for stmt in block.stmts:
        for line in _lines(stmt):
            found.append((line, stmt) if isinstance(line, str) else line)
    return found or [("pass", None)]


Line = str | tuple[str, Stmt | None]
"""A line of a statement, or of one inside of it."""


def _lines(stmt: Stmt) -> Iterator[Line]:
    if isinstance(stmt, For):
        yield _loop_head(stmt)
        yield from _indented(stmt.body)
    elif isinstance(stmt, Guard):
        yield f"if {python_text(stmt.condition)}:"
        yield from _indented(stmt.body)
    elif isinstance(stmt, Stage):
        yield from _stage_lines(stmt)
    elif isinstance(stmt, Masked):
        yield f"{stmt.name}: {type_text(stmt.dtype)} = where {stmt.mask}, else {stmt.other}:"
        if stmt.body.stmts:
            yield from _indented(stmt.body)
        yield f"{_INDENT}{stmt.result}"
    elif isinstance(stmt, Let):
        if stmt.index is not None:
            yield f"{stmt.index} = {instruction_text(stmt)}"
        elif stmt.op == "read":
            yield f"{stmt.name}: {type_text(stmt.dtype)} = {stmt.args[0]}.{stmt.args[1]}"
        else:
            yield f"{stmt.name}: {type_text(stmt.dtype)} = {instruction_text(stmt)}"
    elif isinstance(stmt, Store):
        yield f"{stmt.buffer}[{index_text(stmt.index)}] {store_sign(stmt.mode)} {stmt.value}"
    elif isinstance(stmt, SortRow):
        order = "descending" if stmt.descending else "ascending"
        results = ", ".join(f"{n}[{index_text(stmt.into)}…]" for n in (stmt.values, stmt.positions) if n)
        row = f"{stmt.source}[{index_text(stmt.start)}…]"
        yield f"{results} = first {python_text(stmt.limit)} of {python_text(stmt.length)} of {row}, {order}"
    elif isinstance(stmt, Routine):
        given = [*map(python_text, stmt.numbers), *stmt.reads]
        yield f"{', '.join(stmt.writes)} = {stmt.name}({', '.join(given)})"
    elif isinstance(stmt, Prefetch):
        yield f"prefetch {stmt.buffer}[{index_text(stmt.index)}]"
    elif isinstance(stmt, Alloc):
        strides = f", strides {index_text(stmt.strides)}" if stmt.aligned else ""
        yield f"scratch {stmt.buffer}: {type_text(stmt.dtype)}[{index_text(stmt.shape)}]{strides}"
    elif isinstance(stmt, Carry):
        yield f"carry {stmt.name}: {type_text(stmt.dtype)} = {stmt.initial}"
    elif isinstance(stmt, Advance):
        yield f"{stmt.carry} = {stmt.value}"
    elif isinstance(stmt, Accumulate):
        yield f"{stmt.name}: {type_text(stmt.dtype)} = {stmt.kind}()"
    else:
        position = "" if stmt.position is None else f" at {python_text(stmt.position)}"
        yield f"{stmt.acc} {'merge' if stmt.merge else 'update'} {stmt.value}{position}"


def _stage_lines(stage: Stage) -> Iterator[Line]:
    where = "".join(f" if {python_text(each)}" for each in stage.where)
    yield f"stage {stage.name}{where}:"
    for axis in stage.axes:
        begin = "" if axis.begin == 0 else f"{python_text(axis.begin)} + "
        extent = f"{begin}{python_text(axis.extent)}"
        yield f"{_INDENT}{axis.kind.value} {axis.var} in {extent} = {python_text(axis.value)}"
    if stage.init is not None:
        yield f"{_INDENT}init:"
        yield from ((_INDENT + line, stmt) for line, stmt in _indented(stage.init))
    yield from _indented(stage.body)


def _loop_head(loop: For) -> str:
    kind = "" if loop.kind is LoopKind.SERIAL else f"{loop.kind.value} "
    begin = "" if loop.begin == 0 else f"{python_text(loop.begin)}, "
    step = "" if loop.step == 1 else f" step {loop.step}"
    thread = "" if loop.thread is None else f" on {loop.thread}"
    return f"{kind}for {loop.var} in range({begin}{python_text(loop.end)}){step}{thread}:"


def _indented(block: Block) -> list[tuple[str, Stmt | None]]:
    return [(_INDENT + line, stmt) for line, stmt in lines_of(block)]
