"""Walking and rebuilding loop trees: what the primitives are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from sympy import Expr, Symbol

from smelt.nest.ir import Alloc, Block, For, Kernel, Let, Masked, Prefetch, SortRow, Stmt, Store, Update
from smelt.symbolic.affine import expand, replaced


def walk(block: Block) -> Sequence[Stmt]:
    """Every statement, outer before inner, in program order."""
    found: list[Stmt] = []
    _collect(block, found)
    return found


def _collect(block: Block, found: list[Stmt]) -> None:
    for stmt in block.stmts:
        found.append(stmt)
        if isinstance(stmt, (For, Masked)):
            _collect(stmt.body, found)


def loops(block: Block) -> list[For]:
    return [stmt for stmt in walk(block) if isinstance(stmt, For)]


def find(block: Block, var: Symbol) -> For:
    """The loop over ``var``.

    Raises:
        KeyError: there is none.
    """
    for stmt in walk(block):
        if isinstance(stmt, For) and stmt.var == var:
            return stmt
    raise KeyError(f"no loop over {var}")


def replace_loop(block: Block, var: Symbol, rewrite: Callable[[For], tuple[Stmt, ...]]) -> Block:
    """The tree with the loop over ``var`` replaced by what ``rewrite`` makes of it."""
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if isinstance(stmt, For) and stmt.var == var:
            stmts += rewrite(stmt)
        elif isinstance(stmt, For):
            body = replace_loop(stmt.body, var, rewrite)
            stmts.append(stmt if body is stmt.body else replace(stmt, body=body))
        else:
            stmts.append(stmt)
    if len(stmts) == len(block.stmts) and all(a is b for a, b in zip(stmts, block.stmts)):
        return block
    return Block(tuple(stmts))


def map_exprs(block: Block, rewrite: Callable[[Expr], Expr]) -> Block:
    """The tree with every index expression (and loop bound) replaced by ``rewrite`` of it."""
    return Block(tuple(_map_stmt(stmt, rewrite) for stmt in block.stmts))


def _map_stmt(stmt: Stmt, rewrite: Callable[[Expr], Expr]) -> Stmt:
    if isinstance(stmt, For):
        return replace(
            stmt, begin=rewrite(stmt.begin), end=rewrite(stmt.end), body=map_exprs(stmt.body, rewrite)
        )
    if isinstance(stmt, Masked):
        return replace(stmt, body=map_exprs(stmt.body, rewrite))
    if isinstance(stmt, (Store, Prefetch)):
        return replace(stmt, index=tuple(rewrite(expr) for expr in stmt.index))
    if isinstance(stmt, SortRow):
        return replace(
            stmt,
            start=tuple(rewrite(expr) for expr in stmt.start),
            length=rewrite(stmt.length),
            limit=rewrite(stmt.limit),
            into=tuple(rewrite(expr) for expr in stmt.into),
        )
    if isinstance(stmt, Update) and stmt.position is not None:
        return replace(stmt, position=rewrite(stmt.position))
    if isinstance(stmt, Let):
        if stmt.op == "load":
            return replace(stmt, args=(stmt.args[0], tuple(rewrite(expr) for expr in stmt.args[1])))
        if stmt.op == "index_expr":
            return replace(stmt, args=(rewrite(stmt.args[0]),))
    return stmt


def substitute(block: Block, mapping: Mapping[Symbol, Expr]) -> Block:
    """Replace symbols in every index expression."""
    return map_exprs(block, lambda expr: replaced(expr, mapping))


def accesses(block: Block) -> Iterator[tuple[str, tuple[Expr, ...], bool]]:
    """(buffer, index, whether it is a store) of every access."""
    for stmt in walk(block):
        if isinstance(stmt, Store):
            yield stmt.buffer, stmt.index, True
        elif isinstance(stmt, Let) and stmt.op == "load":
            yield stmt.args[0], stmt.args[1], False
        elif isinstance(stmt, SortRow):
            yield stmt.source, stmt.start, False
            yield from ((name, stmt.into, True) for name in (stmt.values, stmt.positions) if name)


def local_buffers(block: Block) -> set[str]:
    return {stmt.buffer for stmt in walk(block) if isinstance(stmt, Alloc)}


def indirect_symbols(block: Block) -> set[Symbol]:
    return {stmt.index for stmt in walk(block) if isinstance(stmt, Let) and stmt.index is not None}


def with_body(kernel: Kernel, body: Block) -> Kernel:
    return replace(kernel, body=body)


def trip_count(loop: For) -> Expr:
    """How often the body runs (for a vector loop: how many elements it covers)."""
    return loop.end if loop.begin == 0 else expand(loop.end - loop.begin)
