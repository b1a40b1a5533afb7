"""The base of printers of nests: lines, fresh names, and a method for each kind of statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sympy import Expr, Symbol

from smelt.codegen.index import index_text
from smelt.errors import Unsupported
from smelt.loops.straightline import perform
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Alloc,
    Block,
    Carry,
    For,
    Guard,
    Kernel,
    Let,
    Masked,
    Prefetch,
    Routine,
    SortRow,
    Stage,
    Stmt,
    Store,
    Update,
)
from smelt.ops import Handler
from smelt.records import dataclass, field

METHODS: dict[type, str] = {
    For: "loop",
    Let: "let",
    Masked: "masked",
    Store: "store",
    Accumulate: "accumulate",
    Update: "update",
    Carry: "carry",
    Advance: "advance",
    Alloc: "alloc",
    SortRow: "sort_row",
    Routine: "routine",
    Prefetch: "prefetch",
    Guard: "guard",
    Stage: "stage",
}
"""Kind of statement → the method of a printer that prints it."""


@dataclass(slots=True)
class NestText:
    """The text of one kernel so far.

    A target subclasses this with the methods of `METHODS`. It prints a ``Let`` by hand, or by a handler that
    `perform` runs. ``symbols``, ``values``: their names in the text. A line that is known only later is a
    list, to be filled before `text` is called.
    """

    kernel: Kernel
    lines: list[str | list[str]] = field(default_factory=list, kw_only=True)
    indent: int = field(default=1, kw_only=True)
    counters: dict[str, int] = field(default_factory=dict, kw_only=True)
    symbols: dict[Symbol, str] = field(default_factory=dict, kw_only=True)
    values: dict[str, Any] = field(default_factory=dict, kw_only=True)

    def fresh(self, prefix: str) -> str:
        """A name that is unique in the kernel."""
        number = self.counters.get(prefix, 0)
        self.counters[prefix] = number + 1
        return f"{prefix}{number}"

    def index(self, expr: Expr) -> str:
        """An index or a size in C syntax."""
        return index_text(expr, self.symbols)

    def perform(self, stmt: Let, handler: Handler) -> Any:
        """Runs a handler on an instruction, and adds the result to ``values``.

        Raises:
            Unsupported: the handler does not know it.
        """
        try:
            return perform(stmt, handler, self.values, {})
        except NotImplementedError as error:
            raise Unsupported(str(error)) from error

    def line(self, text: str) -> None:
        self.lines.append("  " * self.indent + text)

    @contextmanager
    def block(self, opening: str, closing: str = "}") -> Iterator[None]:
        """Lines between braces."""
        self.line(f"{opening} {{".lstrip())
        self.indent += 1
        yield
        self.indent -= 1
        self.line(closing)

    def statement(self, stmt: Stmt, *scope: Any) -> Any:
        """Print one statement by its method.

        Raises:
            Unsupported: the target has no such method.
        """
        method = getattr(self, METHODS[type(stmt)], None)
        if method is None:
            raise Unsupported(f"{type(self).__name__} has no text for a {type(stmt).__name__} statement")
        return method(stmt, *scope)

    def statements(self, block: Block, *scope: Any) -> Any:
        """Print the statements of a block."""
        for stmt in block.stmts:
            self.statement(stmt, *scope)

    def stage(self, stmt: Stage, *scope: Any) -> None:
        """The body, which defines the stage; a target may print its form instead (`smelt.nest.ir.Text`)."""
        assert not stmt.axes, f"the stage {stmt.name} is dissolved before it is printed"
        self.statements(stmt.body, *scope)

    def prefetch(self, stmt: Prefetch, *scope: Any) -> Any:
        """Prints nothing: no value depends on it."""

    def text(self) -> list[str]:
        """All lines."""
        return [part for entry in self.lines for part in ([entry] if isinstance(entry, str) else entry)]
