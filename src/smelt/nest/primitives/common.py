"""Helpers of all primitives: error construction, and the lookup of loops and stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import sympy
from sympy import Symbol

from smelt.errors import SmeltError
from smelt.nest.ir import Block, For, Guard, Kernel, LoopKind, Stage, Stmt
from smelt.nest.scopes import Place, place_of_loop, place_of_stage
from smelt.nest.tree import loops, named, stages, substitute, with_variables
from smelt.records import replace
from smelt.symbolic import loop_var
from smelt.symbolic.text import python_text

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)

MOST_LINES = 24
"""Limit on the lines of a nest that an error shows."""

Mark: TypeAlias = Symbol | str | None
"""The line to mark in an excerpt: the loop over a variable, or the stage of a name."""


class ScheduleError(SmeltError):
    """The error of a primitive whose request would change results, or makes no sense.

    The first line names the request, the stage, and the reason; then come the remedy and the nest, with the
    loop or stage in question marked.
    """

    def __init__(
        self,
        what: str,
        why: str,
        *,
        code: str = "SM1003",
        remedy: str | None = None,
        kernel: Kernel | None = None,
        mark: Mark = None,
    ) -> None:
        super().__init__(code, f"{what}: {why}", remedy=remedy)
        self.why = why
        self.excerpt = "" if kernel is None else excerpt(kernel, mark)
        if self.excerpt:
            self.args = (f"{self}\n{self.excerpt}",)


def refused(
    kernel: Kernel, method: str, mark: Mark, why: str, *, code: str = "SM1003", remedy: str | None = None
) -> ScheduleError:
    """The error of a method on a loop or a stage, in the user's words."""
    return ScheduleError(asked(kernel, method, mark), why, code=code, remedy=remedy, kernel=kernel, mark=mark)


def asked(kernel: Kernel, method: str, mark: Mark) -> str:
    """``parallel(k) of matmul``: a method, its loop or stage argument, and the stage concerned."""
    if not isinstance(mark, Symbol):
        return f"{method} of {mark}" if mark else method
    loop = next((loop for loop in loops(kernel.body) if loop.var == mark), None)
    what = method if method.endswith(")") else f"{method}({mark if loop is None else named(loop)})"
    inside = [] if loop is None else stages(loop.body)
    return f"{what} of {inside[0].name}" if inside else what


def excerpt(kernel: Kernel, mark: Mark) -> str:
    """The loops and stages of the nest around the mark, one a line; ``>`` marks the line."""
    nest = next((stmt for stmt in kernel.body.stmts if _holds(stmt, mark)), None)
    if nest is None:
        return ""
    lines = list(_lines(nest, mark, 0))
    at = next((n for n, line in enumerate(lines) if line.startswith(">")), 0)
    first = max(0, min(at - MOST_LINES // 2, len(lines) - MOST_LINES))
    return "\n".join(lines[first : first + MOST_LINES])


def _holds(stmt: Stmt, mark: Mark) -> bool:
    block = Block((stmt,))
    found = (
        [loop.var for loop in loops(block)] if isinstance(mark, Symbol) else [s.name for s in stages(block)]
    )
    return mark in found


def _lines(stmt: Stmt, mark: Mark, depth: int) -> Iterable[str]:
    text, inner = "", tuple[Block, ...]()
    if isinstance(stmt, For):
        begin = "" if stmt.begin == 0 else f"{python_text(stmt.begin)}, "
        kind = "range" if stmt.kind is LoopKind.SERIAL else stmt.kind.value
        text, inner = f"for {named(stmt)} in {kind}({begin}{python_text(stmt.end)}):", (stmt.body,)
    elif isinstance(stmt, Stage):
        text, inner = f"stage {stmt.name}", (stmt.body,)
    elif isinstance(stmt, Guard):
        text, inner = f"if {python_text(stmt.condition)}:", (stmt.body,)
    if not text:
        return
    here = mark is not None and mark in (getattr(stmt, "var", None), getattr(stmt, "name", None))
    line = f"{'> ' if here else '  '}{'  ' * depth}{text}"
    yield f"{line}  ← here" if here else line
    for block in inner:
        for each in block.stmts:
            yield from _lines(each, mark, depth + 1)


def listed(names: Iterable[str]) -> str:
    """Joins names for a sentence.

    >>> listed("ijk"), listed("i")
    ('i, j and k', 'i')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def refusal(code: str, what: str, why: str, remedy: str | None = None) -> ScheduleError:
    """The error of a method that moves stages and data: ``what`` describes the whole request."""
    return ScheduleError(what, why, code=code, remedy=remedy)


def loop_place(kernel: Kernel, var: Symbol, method: str) -> tuple[For, Place]:
    """A loop and its place.

    Raises:
        ScheduleError: SM1002, there is no loop over that variable.
    """
    place = place_of_loop(kernel.body, var)
    if place is None:
        what = method if "(" in method or " of " in method else f"{method}({var})"
        raise ScheduleError(what, f"there is no such loop: {var}", code="SM1002")
    assert isinstance(place.stmt, For)
    return place.stmt, place


def stage_place(kernel: Kernel, name: str, method: str) -> tuple[Stage, Place]:
    """A stage and its place.

    Raises:
        ScheduleError: SM1002, there is no stage of that name.
    """
    place = place_of_stage(kernel, name)
    if place is None:
        what = method if "(" in method or " of " in method else f"{method} of {name}"
        raise ScheduleError(what, f"there is no block {name!r}", code="SM1002")
    return place.stage, place


def is_asked_for(stmt: Stmt, target: Symbol | str) -> bool:
    """Whether a statement is the loop over the variable, or the stage of the name."""
    if isinstance(stmt, Stage):
        return stmt.name == target
    return isinstance(stmt, For) and stmt.var == target


class Numbered:
    """New variables for plain loops: ``i3`` in a kernel of three loops, whatever the requested label."""

    def __init__(self, kernel: Kernel) -> None:
        self.used = {loop.var.name for loop in loops(kernel.body)}

    def __call__(self, label: str) -> Symbol:
        del label
        number = len(self.used)
        while f"i{number}" in self.used:
            number += 1
        self.used.add(f"i{number}")
        return loop_var(f"i{number}")


def renewed(stmt: Stmt, fresh: Callable[[str], Symbol], *, outermost: bool = False) -> Block:
    """A nest with new variables for all loops and axes, or for its ``outermost`` loop alone."""
    block = Block((stmt,))
    found = loops(block)
    names = {loop.var: fresh(named(loop)) for loop in (found[:1] if outermost else found)}
    if not outermost:
        for stage in stages(block):
            names.update({axis.var: fresh(named(axis)) for axis in stage.axes})
    return substitute(with_variables(block, names), names)


def in_loops(around: Iterable[For], inside: Block | Stmt) -> Stmt:
    """The statements inside copies of loops, given from the outermost to the innermost."""
    for loop in reversed(list(around)):
        inside = replace(loop, body=inside if isinstance(inside, Block) else Block((inside,)))
    assert not isinstance(inside, Block)
    return inside


def inner_loop(loop: For) -> For | None:
    """The loop that is the whole body of ``loop``, if the two are perfectly nested."""
    return loop.body.stmts[0] if len(loop.body.stmts) == 1 and isinstance(loop.body.stmts[0], For) else None
