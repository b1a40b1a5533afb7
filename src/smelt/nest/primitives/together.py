"""Makes one block of several."""

from __future__ import annotations

from collections.abc import Sequence

from sympy import Expr, Symbol

from smelt.nest.ir import Block, For, Kernel, Stage, Stmt
from smelt.nest.primitives.common import refusal, stage_place
from smelt.nest.scopes import members, stage_names, unique_name
from smelt.nest.tree import exchanged, loops, rewritten, substitute, with_blocks
from smelt.records import replace


def blockize_together(
    kernel: Kernel, names: Sequence[str], preserve_unit_iters: bool = True
) -> tuple[Kernel, str]:
    """Makes one block of several consecutive ones; returns the new block.

    for m: (for i: S; for j: T)   →   for m: outer_S_T: (for i: S; for j: T)

    ``preserve_unit_iters``: axes that have one value stay.

    Raises:
        ScheduleError: SM1002 there is no such block; SM1037 they are not consecutive, or they use a loop that
        is around all of them.
    """
    what = f"blockize({', '.join(names)})"
    for name in names:
        stage_place(kernel, name, what)
    around, held = _held(kernel.body, set(names), what)
    inside = Block(tuple(held))
    if sorted(each.name for each in members(inside)) != sorted(names):
        raise refusal("SM1037", what, "another block is in their loops")
    own = {loop.var for loop in loops(inside)}
    used = {symbol for stage in members(inside) for axis in stage.axes for symbol in axis.value.free_symbols}
    if used & around - own:
        shown = ", ".join(sorted(str(each) for each in used & around - own))
        raise refusal("SM1037", what, f"they use {shown}, which is around all of them")
    if not preserve_unit_iters:
        inside = rewritten(inside, lambda stmt: (_without_units(stmt),) if isinstance(stmt, Stage) else None)
    made = unique_name(f"outer_{'_'.join(names)}", stage_names(kernel))
    whole = Stage(made, (), inside)
    for each in held[1:]:
        kernel = exchanged(kernel, each)
    return exchanged(kernel, held[0], whole), made


def _held(block: Block, names: set[str], what: str) -> tuple[set[Symbol], Sequence[Stmt]]:
    """The loops around all blocks of these names, and the statements that contain them."""
    around: set[Symbol] = set()
    while True:
        places = [
            number
            for number, stmt in enumerate(block.stmts)
            if names & {each.name for each in members(Block((stmt,)))}
        ]
        found = block.stmts[places[0] : places[-1] + 1] if places else ()
        if len(places) == 1 and isinstance(found[0], For):
            around.add(found[0].var)
            block = found[0].body
        elif places and len(found) == len(places):
            return around, found
        else:
            raise refusal("SM1037", what, "the blocks are not consecutive")


def _without_units(stage: Stage) -> Stage:
    gone: dict[Symbol, Expr] = {axis.var: axis.begin for axis in stage.axes if axis.extent == 1}
    axes = tuple(axis for axis in stage.axes if axis.var not in gone)
    return replace(with_blocks(stage, lambda block: substitute(block, gone)), axes=axes)
