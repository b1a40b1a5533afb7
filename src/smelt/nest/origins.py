"""The origins of a kernel's statements: which of the kernel's origins each one comes from.

An instruction refers to them by position (`Instruction.of`), and keeps that through all passes. A store has
the origins of its value, an update those of the value that is read at last, and a statement with statements
inside those of all. What a builder adds, such as the loops of a product, belongs to the first origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smelt.errors import Problem, VerificationError
from smelt.nest.ir import Advance, Call, Kernel, Let, Stmt, Store, Update
from smelt.nest.tree import blocks_of, rewritten, walk, with_body
from smelt.records import replace

Places = tuple[int, ...]
"""Positions in a kernel's origins, ascending."""

FIRST: Places = (0,)


class Sources:
    """The origins of the statements of a kernel.

    >>> import torch
    >>> from smelt.nest.ir import Block
    >>> load = Let("v0", torch.float32, "load", ("p0", ()), of=(1,))
    >>> kernel = Kernel("k", (), (), Block((load, Store("p1", (), "v0"))))
    >>> [Sources(kernel).of(stmt) for stmt in kernel.body.stmts]
    [(1,), (1,)]
    """

    def __init__(self, kernel: Kernel) -> None:
        self._by_name: dict[str, Places] = {}
        self._known: dict[int, tuple[Stmt, Places]] = {}
        for stmt in walk(kernel.body):
            if isinstance(stmt, Let):
                self._by_name[stmt.name] = stmt.of or FIRST
                if stmt.op == "read":
                    name, known = stmt.args[0], self._by_name.get(stmt.args[0], ())
                    self._by_name[name] = _union(known, stmt.of or FIRST)

    def of(self, stmt: Stmt) -> Places:
        """The positions of a statement's origins; of one that a printer has renamed: of those around."""
        if isinstance(stmt, Let):
            return stmt.of or FIRST
        known = self._known.get(id(stmt))
        if known is None:
            named = {Store: "value", Update: "acc", Advance: "carry"}.get(type(stmt), "name")
            inside = [self.of(inner) for block in blocks_of(stmt) for inner in block.stmts]
            found = _union(*inside) if inside else self._by_name.get(getattr(stmt, named, ""), FIRST)
            known = self._known[id(stmt)] = stmt, found  # while it is kept, its identity is unique
        return known[1]


def numbers_in(kernel: Kernel) -> tuple[Places, ...]:
    """What the instructions refer to, in program order: equal kernels may differ in it."""
    return tuple(stmt.of for stmt in walk(kernel.body) if isinstance(stmt, Let))


def moved(kernel: Kernel, by: int) -> Kernel:
    """The kernel whose instructions refer to origins ``by`` places later."""

    def rewrite(stmt: Stmt) -> tuple[Stmt, ...] | None:
        if isinstance(stmt, Let):
            return (replace(stmt, of=tuple(place + by for place in stmt.of or FIRST)),)
        return None

    return with_body(kernel, rewritten(kernel.body, rewrite))


def verify(calls: Iterable[Call]) -> None:
    """Checks that the kernels of a program, and their instructions, have origins in the contract graph.

    Raises:
        VerificationError: SM0530, with every problem found.
    """
    problems = [problem for call in calls for problem in _problems(call)]
    if problems:
        raise VerificationError("SM0530", "origins of kernels", problems)


def _problems(call: Call) -> Iterator[Problem]:
    kernel = call.kernel
    if not call.origins:
        yield Problem(f"kernel {kernel.name} has no origin")
    for origin in call.origins:
        if not origin.nodes:
            yield Problem(f"kernel {kernel.name}: {origin.op} comes from no node of the contract graph")
    for stmt in walk(kernel.body):
        if isinstance(stmt, Let) and any(place >= len(call.origins) for place in stmt.of):
            yield Problem(f"kernel {kernel.name}: {stmt.name} refers to {stmt.of}, of {len(call.origins)}")


def _union(*places: Places) -> Places:
    return tuple(sorted({each for some in places for each in some}))
