"""The C++ of a kernel with the origins of its lines, for people."""

from __future__ import annotations

from typing import Any

from smelt.codegen.cpp.kernel import KernelPrinter
from smelt.codegen.cpp.scope import Function
from smelt.nest.ir import Kernel, Stmt
from smelt.nest.origins import FIRST, Places, Sources
from smelt.records import dataclass, field

Lines = list[tuple[str, Places]]
"""Lines of text, and the positions of the kernel's origins that each comes from; () for those around."""


class _Line(str):
    """A line that knows where it is from."""

    of: Places


@dataclass(slots=True)
class _Traced(KernelPrinter):
    """A printer that notes which statement each line is printed for."""

    sources: Sources = field(kw_only=True)
    at: Places = ()

    def line(self, text: str) -> None:
        made = _Line("  " * self.indent + text)
        made.of = self.at
        self.lines.append(made)

    def statement(self, stmt: Stmt, *scope: Any) -> Any:
        before, self.at = self.at, self.sources.of(stmt)
        try:
            return KernelPrinter.statement(self, stmt, *scope)
        finally:
            self.at = before


def traced(kernel: Kernel) -> Lines:
    """The lines of a kernel's function, after those of the functions that it calls. Compiled is the same, but
    numbers in which otherwise equal kernels differ are arguments there.
    """
    printer = _Traced(kernel, sources=Sources(kernel))
    function = printer.run()
    found: Lines = []
    for called in function.calls:
        found += [(line, FIRST) for line in _lines(called)]
    head, *_ = _lines(function)
    return [*found, (head, ()), *((str(line), getattr(line, "of", ())) for line in printer.text()), ("}", ())]


def _lines(function: Function) -> list[str]:
    return function.text().rstrip("\n").split("\n")
