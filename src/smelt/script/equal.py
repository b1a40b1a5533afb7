"""Equality of two programs except for the names of loops, blocks, axes, buffers and values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from smelt.errors import SmeltError
from smelt.nest.ir import Alloc, Block, For, Kernel, Let, Prefetch, SortRow, Stage, Stmt, Store
from smelt.nest.tree import map_exprs, symbols_of_params, walk, with_blocks
from smelt.records import replace
from smelt.script.module import IRModule, PrimFunc
from smelt.script.nest_text import function_lines
from smelt.symbolic import loop_var
from smelt.symbolic.affine import replaced


def structural_equal(one: Any, other: Any) -> bool:
    """Whether two functions, or two modules with functions of the same names, are the same program.

    Names of loops, blocks, axes, buffers and values do not count, nor does the name of a single function.
    """
    return _first_difference(one, other) is None


def assert_structural_equal(one: Any, other: Any) -> None:
    """
    Raises:
        SmeltError: SM1209, with the first lines that differ.
    """
    found = _first_difference(one, other)
    if found is not None:
        where, left, right = found
        raise SmeltError("SM1209", f"not the same program, {where}", why=f"{left}\n     {right}")


def structural_hash(thing: Any) -> str:
    """A hash (sha256, hex) that is equal for programs that `structural_equal` considers equal."""
    return hashlib.sha256("\n".join(_lines(thing)).encode()).hexdigest()


def _first_difference(one: Any, other: Any) -> tuple[str, str, str] | None:
    for number, (left, right) in enumerate(zip_longest(_lines(one), _lines(other), fillvalue="(no line)")):
        if left != right:
            return f"line {number + 1}", left.strip(), right.strip()
    return None


def _lines(thing: Any) -> Iterator[str]:
    if isinstance(thing, Kernel):
        yield from function_lines(canonical(thing), {}, name="f")
    elif isinstance(thing, PrimFunc):
        attrs = dict(sorted(thing.attrs.items()))
        yield from function_lines(canonical(thing.kernel), attrs, thing.private, name="f")
    elif isinstance(thing, IRModule):
        for name, function in sorted((str(var), function) for var, function in thing.items()):
            yield f"function {name}"
            yield from _lines(function)
    elif hasattr(thing, "canonical_lines"):
        yield from thing.canonical_lines()
    else:
        raise SmeltError(
            "SM1208", f"{type(thing).__name__} is no program", remedy="a PrimFunc or an IRModule"
        )


def canonical(kernel: Kernel) -> Kernel:
    """The kernel with names by position: loops, stages and their axes, sizes, buffers, values."""
    shaped = symbols_of_params(kernel.params)
    ordered = sorted(kernel.sizes, key=lambda size: size not in shaped)
    sizes = {size: loop_var(f"n{number}") for number, size in enumerate(ordered)}
    buffers = {param.name: f"p{number}" for number, param in enumerate(kernel.params)}
    stmts = walk(kernel.body)
    for stmt in stmts:
        if isinstance(stmt, Alloc):
            buffers[stmt.buffer] = f"b{len(buffers)}"
    params = tuple(
        replace(
            param,
            name=buffers[param.name],
            shape=tuple(replaced(e, sizes) for e in param.shape),
            strides=tuple(replaced(e, sizes) for e in param.strides),
        )
        for param in kernel.params
    )
    counter = iter(range(len(stmts) * 8 + 8))
    body = _relabelled(map_exprs(kernel.body, lambda expr: replaced(expr, sizes)), counter, buffers)
    scalars = tuple(sorted((place, sizes[size]) for place, size in kernel.scalars))
    given = {"sizes": tuple(sizes.values()), "scalars": scalars}
    return replace(kernel, name="f", params=params, body=body, **given)


def _key(note: tuple[str, Any]) -> str:
    return note[0]


def _relabelled(block: Block, counter: Iterator[int], buffers: Mapping[str, str]) -> Block:
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if isinstance(stmt, For):
            notes = tuple(sorted(stmt.notes, key=_key))
            stmt = replace(stmt, label=f"l{next(counter)}", notes=notes, proved=False)
        elif isinstance(stmt, Stage):
            axes = tuple(replace(axis, label=f"a{next(counter)}") for axis in stmt.axes)
            stmt = replace(
                stmt, name=f"s{next(counter)}", axes=axes, notes=tuple(sorted(stmt.notes, key=_key))
            )
        elif isinstance(stmt, Let) and stmt.op == "load":
            stmt = replace(stmt, args=(buffers[stmt.args[0]], stmt.args[1]))
        elif isinstance(stmt, (Store, Alloc, Prefetch)):
            stmt = replace(stmt, buffer=buffers[stmt.buffer])
        elif isinstance(stmt, SortRow):
            values, positions = (name and buffers[name] for name in (stmt.values, stmt.positions))
            stmt = replace(stmt, source=buffers[stmt.source], values=values, positions=positions)
        stmts.append(with_blocks(stmt, lambda inner: _relabelled(inner, counter, buffers)))
    return Block(tuple(stmts))
