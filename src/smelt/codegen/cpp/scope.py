"""What statements are printed with and in: values and buffers as C++ has them, loops, functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sympy import Expr, Symbol

from smelt.codegen.cpp.index import Names, Offset, flat_offset
from smelt.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Value:
    """A printed value: its C++ text, and in how many lanes it lives (1: the same for all lanes)."""

    text: str
    dtype: torch.dtype
    lanes: int = 1
    number: float | int | bool | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """A printed buffer: name, dtype and strides; ``streamed``: vectors are stored past the caches."""

    text: str
    dtype: torch.dtype
    strides: tuple[Expr, ...]
    streamed: bool = False

    def offset(self, index: Sequence[Expr]) -> Offset:
        """Where an element is."""
        return flat_offset(index, self.strides)

    def at(self, offset: Offset, names: Names) -> str:
        """A pointer to there, as an argument."""
        number = offset.number
        if number is not None:
            return f"{self.text} + {names.number(number)}" if number else self.text
        text = offset.text(names)
        return f"{self.text} + ({text})" if " " in text else f"{self.text} + {text}"


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a statement is printed: ``lanes`` of loop variable ``var`` at once, of which only ``mask`` count.

    ``maybe_empty``: the mask can be off in all lanes. ``varying``: the symbols that differ from lane to lane.
    ``parallel``: how many parallel loops are around.
    """

    lanes: int = 1
    var: Symbol | None = None
    mask: str | None = None
    maybe_empty: bool = False
    varying: frozenset[Symbol] = frozenset()
    parallel: int = 0


@dataclass(slots=True)
class Head:
    """Where a loop's body begins: lines to be put there, and what they name."""

    lines: list[str]
    indent: int
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Function:
    """A printed kernel, or what is outlined of one, and what it ``needs`` of the header. ``checked``: it
    returns an error number. ``before``: comments or attributes. ``computes``: it does more than call
    functions. ``carries``: an iteration of a loop hands values to the next, in registers. ``calls``: the
    functions.
    """

    name: str
    parameters: str
    body: str
    checked: bool
    needs: frozenset[str]
    before: str = ""
    computes: bool = True
    carries: bool = False
    calls: tuple[Function, ...] = ()

    @property
    def head(self) -> str:
        return f"{'i64' if self.checked else 'void'} {self.name}({self.parameters})"

    def text(self, linkage: str = "") -> str:
        plain = "" if self.computes else "SMELT_PLAIN "
        return f"{self.before}{plain}{linkage}{self.head} {{\n{self.body}\n}}"
