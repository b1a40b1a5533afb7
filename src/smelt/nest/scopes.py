"""Places of stages: the loops and stages around them, the producers of their inputs, the consumers of their
outputs.

A scope is the kernel's body, or the body of a stage that contains stages. Its members are its outermost
stages; producers and consumers are looked for among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any

from sympy import Expr, Symbol

from smelt.nest.ir import (
    Alloc,
    AxisKind,
    Block,
    For,
    Kernel,
    Let,
    Masked,
    Nested,
    Param,
    Prefetch,
    SortRow,
    Stage,
    Stmt,
    Store,
)
from smelt.nest.tree import (
    accesses,
    blocks_of,
    local_buffers,
    map_exprs,
    named,
    names_in,
    rewritten,
    stages,
    walk,
    with_blocks,
)
from smelt.records import dataclass, replace


@dataclass(frozen=True, slots=True)
class Place:
    """A statement and the statements around it, outermost first."""

    stmt: Stmt
    around: tuple[Nested, ...]

    @property
    def stage(self) -> Stage:
        """The stage at this place, which must be one."""
        assert isinstance(self.stmt, Stage)
        return self.stmt

    @property
    def scope(self) -> Stage | None:
        """The innermost stage around the statement; None where that is the kernel itself."""
        return next((each for each in reversed(self.around) if isinstance(each, Stage)), None)

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around the statement within its scope, the outermost first."""
        inside = self.around
        for number, each in enumerate(self.around):
            if isinstance(each, Stage):
                inside = self.around[number + 1 :]
        return tuple(each for each in inside if isinstance(each, For))


def place_of(block: Block, wanted: Callable[[Nested], bool]) -> Place | None:
    """The place of the first statement with a block that is ``wanted``."""
    return _place_of(block, wanted, ())


def _place_of(block: Block, wanted: Callable[[Nested], bool], around: tuple[Nested, ...]) -> Place | None:
    for stmt in block.nested:
        if wanted(stmt):
            return Place(stmt, around)
        for inner in blocks_of(stmt):
            found = _place_of(inner, wanted, (*around, stmt)) if inner.nested else None
            if found is not None:
                return found
    return None


def place_of_loop(block: Block, var: Symbol, around: tuple[Nested, ...] = ()) -> Place | None:
    """The place of the first loop over a variable."""
    for stmt in block.nested:
        if type(stmt) is For and stmt.var == var:
            return Place(stmt, around)
        for inner in blocks_of(stmt):
            if inner.nested and var in names_in(inner).symbols:
                found = place_of_loop(inner, var, (*around, stmt))
                if found is not None:
                    return found
    return None


def place_of_stage(kernel: Kernel, name: str) -> Place | None:
    """The place of the stage of that name."""
    return place_of(kernel.body, lambda stmt: isinstance(stmt, Stage) and stmt.name == name)


def scope_body(kernel: Kernel, scope: Stage | None) -> Block:
    return kernel.body if scope is None else scope.body


def members(block: Block) -> list[Stage]:
    """The outermost stages of a scope, in order."""
    found: list[Stage] = []
    for stmt in block.stmts:
        if isinstance(stmt, Stage):
            found.append(stmt)
        else:
            for inner in blocks_of(stmt):
                found += members(inner)
    return found


def reads(stmt: Stmt) -> list[str]:
    """The buffers that a statement reads, in the order of its expressions; the buffer that a sum adds to does
    not count.
    """
    loaded: list[str] = []
    for block in [stmt.body] if isinstance(stmt, Stage) else [Block((stmt,))]:
        loaded += _named(block)
    loaded += [buffer for buffer, _, is_store in accesses(Block((stmt,))) if not is_store]
    own = local_buffers(Block((stmt,)))
    if isinstance(stmt, Stage) and stmt.init is not None:
        own |= set(writes(stmt))
    return [name for name in dict.fromkeys(loaded) if name not in own]


def _named(block: Block) -> list[str]:
    """The buffers that the stored values of a block depend on, outermost first."""
    made: dict[str, Let | Masked] = {}
    at: dict[Symbol, str] = {}
    found: list[str] = []

    def visit(name: object) -> None:
        step = made.pop(name, None) if isinstance(name, str) else None
        if isinstance(step, Masked):
            visit(step.mask)
            visit(step.result)
        elif step is not None and step.op == "load":
            found.append(step.args[0])
            for symbol in [each for expr in step.args[1] for each in expr.free_symbols if each in at]:
                visit(at[symbol])
        elif step is not None and step.op != "constant":
            for arg in step.args:
                visit(arg)

    for stmt in walk(block):
        if isinstance(stmt, (Let, Masked)):
            made[stmt.name] = stmt
            if isinstance(stmt, Let) and stmt.index is not None:
                at[stmt.index] = stmt.args[0]
        elif isinstance(stmt, Store):
            visit(stmt.value)
    return found


def writes(stmt: Stmt) -> list[str]:
    """The buffers that a statement stores to, in order."""
    stored = [buffer for buffer, _, is_store in accesses(Block((stmt,))) if is_store]
    own = local_buffers(Block((stmt,)))
    return [name for name in dict.fromkeys(stored) if name not in own]


def producers(kernel: Kernel, place: Place) -> list[Stage]:
    """The members of a stage's scope that write its inputs."""
    wanted = set(reads(place.stmt))
    return [
        each
        for each in members(scope_body(kernel, place.scope))
        if each is not place.stmt and not wanted.isdisjoint(writes(each))
    ]


def consumers(kernel: Kernel, place: Place) -> list[Stage]:
    """The members of a stage's scope that read its outputs."""
    wanted = set(writes(place.stmt))
    return [
        each
        for each in members(scope_body(kernel, place.scope))
        if each is not place.stmt and not wanted.isdisjoint(reads(each))
    ]


def is_output(kernel: Kernel, stage: Stage) -> bool:
    """Whether a stage writes a parameter of the kernel."""
    return not {param.name for param in kernel.params}.isdisjoint(writes(stage))


def not_complete(kernel: Kernel, place: Place) -> str | None:
    """The reason why a stage does not compute all of its output alone, each element once and not from itself;
    None where it does (TVM: a complete block).
    """
    stage = place.stage
    for axis in stage.axes:
        if axis.kind is not AxisKind.SPATIAL:
            what = "a reduction" if axis.kind is AxisKind.REDUCE else "opaque"
            return f"its axis {named(axis)} is {what}"
    if stage.init is not None:
        return "it is a reduction, with an init"
    return _not_alone(kernel, place) or _reads_itself(stage)


def not_reduction(kernel: Kernel, place: Place) -> str | None:
    """The reason why a stage is no reduction that computes all of its output alone; None where it is one
    (TVM: a reduction block).
    """
    stage = place.stage
    if stage.init is None:
        return "it has no init"
    reduced = set()
    for axis in stage.axes:
        if axis.kind is AxisKind.OPAQUE:
            return f"its axis {named(axis)} is opaque"
        if axis.kind is AxisKind.REDUCE:
            reduced.add(axis.var)
    for buffer, index, is_store in accesses(Block((stage,))):
        if is_store and any(not reduced.isdisjoint(expr.free_symbols) for expr in index):
            return f"the index at which it stores {buffer} depends on a reduce axis"
    return _not_alone(kernel, place)


def _not_alone(kernel: Kernel, place: Place) -> str | None:
    own = writes(place.stmt)
    for other in members(scope_body(kernel, place.scope)):
        shared = [] if other is place.stmt else [name for name in writes(other) if name in own]
        if shared:
            return f"{other.name} writes {shared[0]} too"
    return None


def _reads_itself(stage: Stage) -> str | None:
    own = set(writes(stage))
    for stmt in walk(stage.body):
        if isinstance(stmt, Stage) and stmt.init is not None:
            own -= set(writes(stmt))
    for stmt in walk(stage.body):
        if isinstance(stmt, Store) and stmt.mode is not None and stmt.buffer in own:
            return f"it adds to earlier contents of {stmt.buffer}"
        if isinstance(stmt, SortRow):
            return "it sorts rows"
    read = [name for name in reads(stage) if name in own]
    return f"it reads {read[0]}, which it writes" if read else None


def written_again(stage: Stage, names: Iterable[str], loops: set[Symbol]) -> str | None:
    """A buffer with elements to which a stage may store several values in iterations of loops, because it
    adds to them or its index does not depend on the iteration; None where there is none.
    """
    moving = {axis.var for axis in stage.axes if not loops.isdisjoint(axis.value.free_symbols)}
    for buffer, index, is_store in accesses(Block((stage,))):
        said = set().union(*(expr.free_symbols for expr in index)) if index else set()
        if is_store and buffer in names and not moving <= said:
            return buffer
    return None


# -- taking out and putting in -------------------------------------------------------------------------------


def without(block: Block, stage: Stage) -> Block:
    """The tree without a stage, and without the loops that contained nothing else."""
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if stmt is stage:
            continue
        changed = with_blocks(stmt, lambda inner: without(inner, stage))
        if (
            changed is not stmt
            and not isinstance(changed, Stage)
            and not any(inner.stmts for inner in blocks_of(changed))
        ):
            continue
        stmts.append(changed)
    same = len(stmts) == len(block.stmts) and all(map(is_, stmts, block.stmts))
    return block if same else Block(tuple(stmts))


def with_names(
    kernel: Kernel,
    names: Mapping[str, str],
    sizes: Mapping[Symbol, Expr],
    stage_names: Mapping[str, str] | None = None,
) -> Kernel:
    """The kernel with renamed buffers and sizes. Stages are renamed by ``stage_names``, or else by ``names``
    of buffers.
    """
    of_stages = names if stage_names is None else stage_names

    def other(name: str | None) -> Any:
        return name if name is None else names.get(name, name)

    def stmt(each: Stmt) -> list[Stmt] | None:
        if isinstance(each, Let) and each.op == "load":
            return [replace(each, args=(other(each.args[0]), *each.args[1:]))]
        if isinstance(each, (Store, Alloc, Prefetch)):
            return [replace(each, buffer=other(each.buffer))]
        if isinstance(each, SortRow):
            values, positions = other(each.values), other(each.positions)
            return [replace(each, source=other(each.source), values=values, positions=positions)]
        if isinstance(each, Stage) and each.name in of_stages:
            inner = with_blocks(each, lambda block: rewritten(block, stmt))
            return [replace(inner, name=of_stages[each.name])]
        return None

    def size(expr: Any) -> Any:
        return expr.xreplace(dict(sizes)) if sizes else expr

    def param(each: Param) -> Param:
        shape, strides = tuple(map(size, each.shape)), tuple(map(size, each.strides))
        return replace(each, name=other(each.name), shape=shape, strides=strides)

    body = rewritten(kernel.body, stmt)
    if sizes:
        body = map_exprs(body, size)
    found = tuple(sorted((size(each) for each in kernel.sizes), key=str))
    return replace(kernel, params=tuple(map(param, kernel.params)), body=body, sizes=found)


def unique_name(name: str, used: Iterable[str]) -> str:
    """The name, with a number if it is taken.

    >>> unique_name("A_local", {"A_local"}), unique_name("B", set())
    ('A_local_1', 'B')
    """
    taken, number, found = set(used), 0, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def stage_names(kernel: Kernel) -> set[str]:
    return {stage.name for stage in stages(kernel.body)}


def buffers(kernel: Kernel) -> dict[str, Param | Alloc]:
    """The declaration of each buffer of a kernel, with dtype and shape, by name."""
    found: dict[str, Param | Alloc] = {param.name: param for param in kernel.params}
    return found | {stmt.buffer: stmt for stmt in walk(kernel.body) if isinstance(stmt, Alloc)}


def buffer_names(kernel: Kernel) -> set[str]:
    return set(buffers(kernel))


def shapes_of(kernel: Kernel) -> dict[str, tuple[Expr, ...]]:
    return {name: each.shape for name, each in buffers(kernel).items()}


def position(order: Sequence[Stmt], wanted: Stmt) -> int:
    """The position of a statement in a list, by identity."""
    return next(number for number, each in enumerate(order) if each is wanted)


def with_alloc(body: Block, alloc: Alloc, *more: Alloc) -> Block:
    """The block with more allocations after those at its start."""
    stmts = body.stmts
    behind = first_step(body)
    return Block((*stmts[:behind], alloc, *more, *stmts[behind:]))


def without_alloc(kernel: Kernel, buffer: str) -> Kernel:
    def drop(stmt: Stmt) -> Sequence[Stmt] | None:
        return () if isinstance(stmt, Alloc) and stmt.buffer == buffer else None

    return replace(kernel, body=rewritten(kernel.body, drop))


def first_step(body: Block) -> int:
    """The number of leading allocations of a block."""
    return next((n for n, stmt in enumerate(body.stmts) if not isinstance(stmt, Alloc)), len(body.stmts))
