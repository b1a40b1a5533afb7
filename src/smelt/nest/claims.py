"""Proves that loops may run as their kinds say: the iterations of parallel, vector and jammed loops touch
different elements.

A parallel loop around intrinsics or register tiles that one of smelt's own builders has placed
(`smelt.schedule.products`, `attention`) rests on that builder where no proof is found: `trusted` names these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from smelt.errors import Problem, VerificationError
from smelt.nest.dependence import overlap, reduced_over
from smelt.nest.ir import Block, For, Kernel, LoopKind, Stmt
from smelt.nest.primitives import own_memory
from smelt.nest.primitives.kinds import not_reduced
from smelt.nest.tree import blocks_of, loops, named, stages, with_body
from smelt.records import replace


def verify_kinds(kernels: Iterable[Kernel]) -> None:
    """Check the kinds of all loops, in each kernel once.

    Raises:
        VerificationError: SM0531, with every loop that is not shown to be what it is.
    """
    for kernel in dict.fromkeys(kernels):
        problems = [Problem(why, kernel.name) for why in unproved(kernel)]
        if problems:
            raise VerificationError("SM0531", f"kernel {kernel.name}", problems)


def prove(kernel: Kernel, context: object = None) -> Kernel:
    """Marks the loops whose iterations touch different elements.

    It runs while indices have a number for each dimension: a flat index of sizes that are symbols hides them.
    """
    del context

    def marked(block: Block) -> Block:
        stmts: list[Stmt] = []
        for stmt in block.stmts:
            if isinstance(stmt, For):
                stmt = replace(stmt, body=marked(stmt.body), proved=overlap(stmt) is None)
            stmts.append(stmt)
        return Block(tuple(stmts))

    return with_body(kernel, marked(kernel.body))


def unproved(kernel: Kernel) -> list[str]:
    """The loops that are parallel, vector or jammed and whose iterations cannot be shown to touch different
    elements, with the reason. (That they share no accumulator or carry, `smelt.nest.verify` checks.)
    """
    return [why for loop, why in _unproved(kernel, kernel.body, ()) if not _placed(loop)]


def trusted(kernel: Kernel) -> list[str]:
    """The loops that rest on the builder that has placed intrinsics or register tiles in them, with these."""
    found = [(loop, _placed(loop)) for loop, _ in _unproved(kernel, kernel.body, ())]
    return [f"{named(loop)} rests on {', '.join(names)}" for loop, names in found if names]


def _placed(loop: For) -> list[str]:
    """The intrinsics that a builder has placed in a parallel loop (a schedule's own have axes), and the
    jammed loops of its register tiles.
    """
    if loop.kind is not LoopKind.PARALLEL:
        return []
    found = [each.text.name for each in stages(loop.body) if each.text is not None and not each.axes]
    found += [f"the tile of {named(each)}" for each in loops(loop.body) if each.kind is LoopKind.JAM]
    return list(dict.fromkeys(found))


def _unproved(kernel: Kernel, block: Block, around: tuple[For, ...]) -> Iterator[tuple[For, str]]:
    for stmt in block.nested:
        inside = around
        if isinstance(stmt, For):
            why = _conflict(kernel, stmt, around)
            if why is not None:
                yield stmt, f"{named(stmt)} is {stmt.kind.value}: {why}"
            inside = (*around, stmt)
        for inner in blocks_of(stmt):
            yield from _unproved(kernel, inner, inside)


def _conflict(kernel: Kernel, loop: For, around: Sequence[For]) -> str | None:
    if loop.proved:
        return None
    if loop.kind is LoopKind.JAM:  # stores of one statement keep their order
        jammed = {inner.var for inner in loops(loop.body) if inner.kind is LoopKind.JAM}
        return overlap(loop, repeated=jammed, around=around)
    if loop.kind not in (LoopKind.PARALLEL, LoopKind.VECTOR):
        return None
    if loop.kind is LoopKind.VECTOR and not_reduced(loop) is None:
        return None
    why = reduced_over(loop) or overlap(loop, around=around)
    if why is None or loop.kind is LoopKind.VECTOR:
        return why
    return reduced_over(loop) or overlap(loop, own_memory(kernel, loop), around=around)
