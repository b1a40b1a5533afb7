"""Traversal and rewriting of loop trees, the base of the primitives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from operator import is_
from typing import Any, TypeVar

import sympy
from sympy import Basic, Expr, Integer, Symbol
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import (
    NESTED,
    Alloc,
    AnAccess,
    Axis,
    AxisKind,
    Block,
    BlockNames,
    For,
    Guard,
    Kernel,
    Let,
    Masked,
    Param,
    Prefetch,
    Routine,
    SortRow,
    Stage,
    Stmt,
    Store,
    Update,
)
from smelt.records import replace
from smelt.symbolic import free_symbols
from smelt.symbolic.affine import difference, expand, replaced, symbols_in

S = TypeVar("S", bound=Stmt)


def walk(block: Block) -> Sequence[Stmt]:
    """Every statement, outer before inner, in program order."""
    if not block.nested:
        return block.stmts
    if block.inside is None:
        found: list[Stmt] = []
        for stmt in block.stmts:
            found.append(stmt)
            if type(stmt) in NESTED:
                for inner in blocks_of(stmt):
                    found += walk(inner)
        object.__setattr__(block, "inside", tuple(found))
    assert block.inside is not None
    return block.inside


def blocks_of(stmt: Stmt) -> tuple[Block, ...]:
    """The blocks that a statement holds, in the order in which they run."""
    if type(stmt) is Stage:
        return (stmt.body,) if stmt.init is None else (stmt.init, stmt.body)
    return (stmt.body,) if type(stmt) in NESTED else ()  # type: ignore[union-attr]


def with_blocks(stmt: S, rewrite: Callable[[Block], Block]) -> S:
    """The statement with ``rewrite`` applied to each of its blocks; the same object where nothing changes."""
    if type(stmt) not in NESTED:
        return stmt
    if isinstance(stmt, Stage) and stmt.init is not None:
        init, body = rewrite(stmt.init), rewrite(stmt.body)
        return stmt if init is stmt.init and body is stmt.body else replace(stmt, init=init, body=body)
    assert isinstance(stmt, (For, Masked, Guard, Stage))
    body = rewrite(stmt.body)
    return stmt if body is stmt.body else replace(stmt, body=body)


def loops(block: Block) -> list[For]:
    """Every loop, outer before inner, in program order."""
    return [stmt for stmt in walk(block) if type(stmt) is For] if block.nested else []


def stages(block: Block) -> list[Stage]:
    """Every stage, outer before inner, in program order."""
    return [stmt for stmt in walk(block) if type(stmt) is Stage] if block.nested else []


def find(block: Block, var: Symbol) -> For:
    """The loop over ``var``.

    Raises:
        KeyError: there is none.
    """
    for loop in loops(block):
        if loop.var == var:
            return loop
    raise KeyError(f"no loop over {var}")


def nested(stmt: Stmt) -> tuple[list[For], Sequence[Stmt]]:
    """The perfectly nested loops from a statement on, and the body of the last one (the statement itself, if
    it is no loop).
    """
    found: list[For] = []
    inside: Sequence[Stmt] = (stmt,)
    while len(inside) == 1 and isinstance(inside[0], For):
        found.append(inside[0])
        inside = inside[0].body.stmts
    return found, inside


def replace_loop(block: Block, var: Symbol, rewrite: Callable[[For], tuple[Stmt, ...]]) -> Block:
    """The tree with the loop over ``var``, the only one, replaced by the result of ``rewrite``."""
    for stmt in block.nested:
        if type(stmt) is For and stmt.var == var:
            made = rewrite(stmt)
        elif not any(var in names_in(inner).symbols for inner in blocks_of(stmt)):
            continue
        else:
            changed = with_blocks(stmt, lambda inner: replace_loop(inner, var, rewrite))
            if changed is stmt:
                continue
            made = (changed,)
        at = next(number for number, each in enumerate(block.stmts) if each is stmt)
        return Block((*block.stmts[:at], *made, *block.stmts[at + 1 :]))
    return block


def without_guards(block: Block) -> Block:
    """The statements but for those under an ``if``."""
    return rewritten(block, lambda stmt: () if isinstance(stmt, Guard) else None)


def rewritten(block: Block, rewrite: Callable[[Stmt], Sequence[Stmt] | None]) -> Block:
    """The tree with each statement replaced by the result of ``rewrite``; where that is None, the statement's
    own blocks are rewritten.
    """
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        found = rewrite(stmt)
        if found is not None:
            stmts += found
        elif type(stmt) in NESTED:
            stmts.append(with_blocks(stmt, lambda inner: rewritten(inner, rewrite)))
        else:
            stmts.append(stmt)
    return (
        block if len(stmts) == len(block.stmts) and all(map(is_, stmts, block.stmts)) else Block(tuple(stmts))
    )


def exchanged(kernel: Kernel, old: Stmt, *new: Stmt) -> Kernel:
    """The kernel with a statement, found by identity, replaced by others."""
    return with_body(kernel, _exchanged(kernel.body, old, new))


def _exchanged(block: Block, old: Stmt, new: tuple[Stmt, ...]) -> Block:
    for number, stmt in enumerate(block.stmts):
        made = new
        if stmt is not old:
            changed = with_blocks(stmt, lambda inner: _exchanged(inner, old, new))
            if changed is stmt:
                continue
            made = (changed,)
        return Block((*block.stmts[:number], *made, *block.stmts[number + 1 :]))
    return block


def map_exprs(
    block: Block, rewrite: Callable[[Expr], Expr], symbols: Collection[Symbol] | None = None
) -> Block:
    """The tree with ``rewrite`` applied to every index expression, size and loop bound; unchanged parts are
    the same objects. ``symbols``: those that ``rewrite`` replaces, if it does nothing else.
    """
    if symbols is not None and block.names is not None and block.names.symbols.isdisjoint(symbols):
        return block
    stmts = tuple([_map_stmt(stmt, rewrite, symbols) for stmt in block.stmts])
    return block if all(map(is_, stmts, block.stmts)) else Block(stmts)


def exprs_of(block: Block) -> list[Expr]:
    """The expressions that `map_exprs` would replace."""
    found: list[Expr] = []

    def keep(expr: Expr) -> Expr:
        found.append(expr)
        return expr

    map_exprs(block, keep)
    return found


def needed(block: Block, name: str) -> Block:
    """The values among the statements of a block that one value is computed from, in order."""
    names, symbols, found = {name}, set[Symbol](), list[Stmt]()
    for stmt in reversed(block.stmts):
        if not isinstance(stmt, (Let, Masked)) or (
            stmt.name not in names and not (isinstance(stmt, Let) and stmt.index in symbols)
        ):
            continue
        found.append(stmt)
        own = Block((stmt,))
        symbols |= symbols_of(own)
        names |= {
            arg for each in walk(own) if isinstance(each, Let) for arg in each.args if isinstance(arg, str)
        }
        if isinstance(stmt, Masked):
            names.add(stmt.mask)
    return Block(tuple(reversed(found)))


def symbols_of(block: Block) -> set[Symbol]:
    """The symbols in the expressions of a block."""
    return {symbol for expr in exprs_of(block) for symbol in expr.free_symbols}


def _map_stmt(stmt: Stmt, rewrite: Callable[[Expr], Expr], symbols: Collection[Symbol] | None) -> Stmt:
    if isinstance(stmt, Let):
        if stmt.op == "load":
            return _with(stmt, args=(stmt.args[0], tuple(map(rewrite, stmt.args[1]))))
        if stmt.op == "indirect_index":
            return _with(stmt, args=(stmt.args[0], rewrite(stmt.args[1]), *stmt.args[2:]))
        return _with(stmt, args=(rewrite(stmt.args[0]),)) if stmt.op == "index_expr" else stmt
    if isinstance(stmt, (Store, Prefetch)):
        return _with(stmt, index=tuple(map(rewrite, stmt.index)))
    if isinstance(stmt, For):
        body = map_exprs(stmt.body, rewrite, symbols)
        return _with(stmt, begin=rewrite(stmt.begin), end=rewrite(stmt.end), body=body)
    if isinstance(stmt, Masked):
        return _with(stmt, body=map_exprs(stmt.body, rewrite, symbols))
    if isinstance(stmt, Guard):
        condition = map_condition(stmt.condition, rewrite)
        return _with(stmt, condition=condition, body=map_exprs(stmt.body, rewrite, symbols))
    if isinstance(stmt, Stage):
        axes = tuple(_map_axis(axis, rewrite) for axis in stmt.axes)
        conditions = (map_condition(each, rewrite) for each in stmt.where)
        where = tuple(each for each in conditions if each != sympy.true)
        return with_blocks(
            _with(stmt, axes=axes, where=where), lambda block: map_exprs(block, rewrite, symbols)
        )
    if isinstance(stmt, Alloc):
        return _with(stmt, shape=tuple(map(rewrite, stmt.shape)))
    if isinstance(stmt, SortRow):
        return _with(
            stmt,
            start=tuple(map(rewrite, stmt.start)),
            length=rewrite(stmt.length),
            limit=rewrite(stmt.limit),
            into=tuple(map(rewrite, stmt.into)),
        )
    if isinstance(stmt, Routine):
        return _with(stmt, numbers=tuple(map(rewrite, stmt.numbers)))
    if isinstance(stmt, Update) and stmt.position is not None:
        return _with(stmt, position=rewrite(stmt.position))
    return stmt


def _map_axis(axis: Axis, rewrite: Callable[[Expr], Expr]) -> Axis:
    extent, value, begin = rewrite(axis.extent), rewrite(axis.value), rewrite(axis.begin)
    if extent == axis.extent and value == axis.value and begin == axis.begin:
        return axis
    return replace(axis, extent=extent, value=value, begin=begin)


def map_condition(condition: Boolean, rewrite: Callable[[Expr], Expr]) -> Boolean:
    """The condition with ``rewrite`` applied to every index expression in it."""
    args = tuple(
        [rewrite(each) if isinstance(each, Expr) else map_condition(each, rewrite) for each in condition.args]
    )
    return condition if all(map(is_, args, condition.args)) else _condition(condition.func, args)


@lru_cache(maxsize=16384)
def _condition(kind: Callable[..., Boolean], args: tuple[Any, ...]) -> Boolean:
    """A comparison or a junction: SymPy takes a while to see that it cannot decide it."""
    return kind(*args)


def _with(stmt: S, **fields: Any) -> S:
    """The statement with other fields; the same object where they are equal."""
    for name, value in fields.items():
        have = getattr(stmt, name)
        if value is not have and (isinstance(value, Block) or value != have):
            return replace(stmt, **fields)
    return stmt


def substitute(block: Block, mapping: Mapping[Symbol, Expr]) -> Block:
    """Replace symbols in every index expression."""
    return map_exprs(block, lambda expr: replaced(expr, mapping), mapping.keys())


def with_variables(block: Block, mapping: Mapping[Symbol, Any]) -> Block:
    """The tree with other variables for loops and axes; expressions that use them are not changed
    (`map_exprs`).
    """

    def renamed(stmt: Stmt) -> Sequence[Stmt] | None:
        if isinstance(stmt, For) and stmt.var in mapping:
            return [replace(stmt, var=mapping[stmt.var], body=with_variables(stmt.body, mapping))]
        if isinstance(stmt, Stage) and any(axis.var in mapping for axis in stmt.axes):
            axes = tuple(replace(axis, var=mapping.get(axis.var, axis.var)) for axis in stmt.axes)
            inside = with_blocks(stmt, lambda inner: with_variables(inner, mapping))
            return [replace(inside, axes=axes)]
        return None

    return rewritten(block, renamed)


def accesses(block: Block) -> Sequence[AnAccess]:
    """The buffer, the index and whether it is a store, for every access."""
    if block.touched is None:
        found: list[AnAccess] = []
        for stmt in walk(block):
            if type(stmt) is Let:
                if stmt.op == "load":
                    found.append((stmt.args[0], stmt.args[1], False))
            elif type(stmt) is Store:
                found.append((stmt.buffer, stmt.index, True))
            elif type(stmt) is SortRow:
                found.append((stmt.source, stmt.start, False))
                found += [(name, stmt.into, True) for name in (stmt.values, stmt.positions) if name]
            elif type(stmt) is Routine:
                zero = (Integer(0),)
                found += [(name, zero, False) for name in stmt.reads]
                found += [(name, zero, True) for name in stmt.writes]
        object.__setattr__(block, "touched", tuple(found))
    assert block.touched is not None
    return block.touched


def names_in(block: Block) -> BlockNames:
    """The symbols and the buffers that a block uses or declares."""
    if block.names is None:
        symbols, buffers = set[Symbol](), {buffer for buffer, _, _ in accesses(block)}
        for stmt in block.stmts:
            for expr in own_exprs(stmt):
                if not expr.is_Integer:
                    symbols |= symbols_in(expr)
            if isinstance(stmt, For):
                symbols.add(stmt.var)
            elif isinstance(stmt, Stage):
                symbols.update(axis.var for axis in stmt.axes)
            elif isinstance(stmt, Let) and stmt.index is not None:
                symbols.add(stmt.index)
            elif isinstance(stmt, (Alloc, Prefetch)):
                buffers.add(stmt.buffer)
            for inner in blocks_of(stmt):
                symbols |= names_in(inner).symbols
                buffers |= names_in(inner).buffers
        object.__setattr__(block, "names", BlockNames(frozenset(symbols), frozenset(buffers)))
    assert block.names is not None
    return block.names


def own_exprs(stmt: Stmt) -> Sequence[Basic]:
    """The index expressions, sizes, bounds and conditions of a statement, without those of its blocks."""
    match stmt:
        case Let(op="load"):
            return stmt.args[1]
        case Let(op="indirect_index"):
            return (stmt.args[1],)
        case Let(op="index_expr"):
            return (stmt.args[0],)
        case Store() | Prefetch():
            return stmt.index
        case For():
            return stmt.begin, stmt.end
        case Stage():
            of_axes = (each for axis in stmt.axes for each in (axis.value, axis.extent, axis.begin))
            return *stmt.where, *of_axes
        case Guard():
            return (stmt.condition,)
        case Alloc():
            return stmt.shape
        case SortRow():
            return *stmt.start, stmt.length, stmt.limit, *stmt.into
        case Routine():
            return stmt.numbers
        case Update() if stmt.position is not None:
            return (stmt.position,)
    return ()


def redirected(
    block: Block,
    buffer: str,
    to: str,
    moved: Callable[[tuple[Expr, ...]], tuple[Expr, ...]] = tuple,
    *,
    loads: bool = True,
    stores: bool = True,
) -> Block:
    """The tree in which the accesses to a buffer, or its loads or stores alone, use another one, at the index
    given by ``moved``.
    """

    def visit(stmt: Stmt) -> Sequence[Stmt] | None:
        if isinstance(stmt, Let):
            if loads and stmt.op == "load" and stmt.args[0] == buffer:
                return (replace(stmt, args=(to, moved(stmt.args[1]))),)
        elif isinstance(stmt, (Store, Prefetch)) and stmt.buffer == buffer:
            wanted = stores if isinstance(stmt, Store) else loads
            return (replace(stmt, buffer=to, index=moved(stmt.index)),) if wanted else None
        return None

    return rewritten(block, visit)


def local_buffers(block: Block) -> set[str]:
    return {stmt.buffer for stmt in walk(block) if type(stmt) is Alloc}


def indirect_symbols(block: Block) -> set[Symbol]:
    return {stmt.index for stmt in walk(block) if type(stmt) is Let and stmt.index is not None}


def variables_of(block: Block) -> set[Symbol]:
    """The symbols that a block itself gives values: of loops, axes and positions."""
    axes = {axis.var for stage in stages(block) for axis in stage.axes}
    return {loop.var for loop in loops(block)} | axes | indirect_symbols(block)


def symbols_of_params(params: Sequence[Param]) -> set[Symbol]:
    """The symbols of the shapes and strides of parameters."""
    return free_symbols(expr for param in params for expr in (*param.shape, *param.strides))


def with_body(kernel: Kernel, body: Block) -> Kernel:
    return replace(kernel, body=body)


def reduced_axes(stage: Stage) -> list[Axis]:
    return [axis for axis in stage.axes if axis.kind is AxisKind.REDUCE]


def other_axes(stage: Stage) -> list[Axis]:
    """The axes of a stage that are no reduce axes."""
    return [axis for axis in stage.axes if axis.kind is not AxisKind.REDUCE]


def named(one: For | Axis) -> str:
    """The user's name of a loop or an axis."""
    return one.label or one.var.name


def trip_count(loop: For) -> Expr:
    """The number of executions of the body (for a vector loop: of elements)."""
    return expand(difference(loop.end, loop.begin))


def last_call(kernel: Kernel) -> tuple[str, str | None] | None:
    """The operator that a kernel ends with, and its source line, which tell kernels from one another."""
    if not kernel.origins:
        return None
    last = kernel.origins[-1]
    return last.op, last.where
