"""What is printed of a kernel: lines, names by position, and what each value and buffer is called."""

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
    """The text of one kernel as far as it is printed, and the names that it uses.

    ``fences``: the kernel waits at its end for stores past the caches; a tile leaves that to the kernel that
    calls it.
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
    zeros: set[str] = field(default_factory=set)
    checked: bool = False
    needs: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    loops: list[For] = field(default_factory=list)
    heads: dict[Symbol | None, Head] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    computes: bool = False

    @contextmanager
    def head(self, variables: Sequence[Symbol | None]) -> Iterator[None]:
        """Here the body of loops over these variables begins (None: the kernel's)."""
        head = Head([], self.indent)
        self.lines.append(head.lines)
        self.heads.update(dict.fromkeys(variables, head))
        yield
        for variable in variables:
            del self.heads[variable]

    def shared(self, text: str, symbols: frozenset[Symbol]) -> str:
        """A name for what an index computes, defined where the last of its symbols is: compilers do not move
        what has branches. The text itself where one of them is no loop's, or a vector loop's.
        """
        if not symbols <= self.heads.keys():
            return text
        head = next(head for variable, head in reversed(self.heads.items()) if variable in symbols | {None})
        if text not in head.names:
            head.names[text] = self.fresh("q")
            head.lines.append(f"{'  ' * head.indent}const i64 {head.names[text]} = {text};")
        return head.names[text]
