"""The text of a kernel: lines, names by position, and the names of values and buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sympy import Symbol

from smelt.codegen.cpp.accumulators import Accumulator
from smelt.codegen.cpp.scope import Function, Head, Memory, Value
from smelt.codegen.index import Names
from smelt.codegen.nests import NestText
from smelt.nest.ir import For, Let
from smelt.records import dataclass, field


@dataclass(slots=True)
class KernelText(NestText):
    """The text of one kernel so far, and its names.

    ``fences``: the kernel waits at its end for its non-temporal stores; a tile leaves that to its caller.
    """

    number: Callable[[int | str], str] = str
    known: bool = True
    fences: bool = True
    symbols: Names = field(default_factory=Names, kw_only=True)
    memories: dict[str, Memory] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict, kw_only=True)
    definitions: dict[str, Let] = field(default_factory=dict)
    accumulators: dict[str, Accumulator] = field(default_factory=dict)
    carries: dict[str, Value] = field(default_factory=dict)
    checked: bool = False
    needs: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    loops: list[For] = field(default_factory=list)
    heads: dict[Symbol | None, Head] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    computes: bool = False

    @contextmanager
    def head(self, variables: Sequence[Symbol | None]) -> Iterator[None]:
        """Begins the body of loops over these variables (None: the kernel's)."""
        head = Head([], self.indent)
        self.lines.append(head.lines)
        self.heads.update(dict.fromkeys(variables, head))
        yield
        for variable in variables:
            del self.heads[variable]

    def shared(self, text: str, symbols: frozenset[Symbol]) -> str:
        """A name for a common part of an index, defined in the innermost loop of its symbols: compilers do
        not hoist expressions with branches. The text itself if a symbol is not a loop's, or a vector loop's.
        """
        if not symbols <= self.heads.keys():
            return text
        head = next(head for variable, head in reversed(self.heads.items()) if variable in symbols | {None})
        if text not in head.names:
            head.names[text] = self.fresh("q")
            head.lines.append(f"{'  ' * head.indent}const i64 {head.names[text]} = {text};")
        return head.names[text]
