"""The context of printed statements: values and buffers in C++, loops, functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sympy import Expr, Symbol

from smelt.codegen.index import Names, Offset, flat_offset
from smelt.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Value:
    """A printed value: its C++ text, and its number of lanes (1: uniform)."""

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
        """The offset of an element."""
        return flat_offset(index, self.strides)

    def at(self, offset: Offset, names: Names) -> str:
        """A pointer to an offset, as an argument."""
        number = offset.number
        if number is not None:
            return f"{self.text} + {names.number(number)}" if number else self.text
        text = offset.text(names)
        return f"{self.text} + ({text})" if " " in text else f"{self.text} + {text}"


@dataclass(frozen=True, slots=True)
class Scope:
    """The place of a printed statement: ``lanes`` of loop variable ``var`` at once, of which only those of
    ``mask`` are active.

    ``maybe_empty``: the mask can be off in all lanes. ``varying``: the symbols that differ from lane to lane.
    ``parallel``: the number of parallel loops around it.
    """

    lanes: int = 1
    var: Symbol | None = None
    mask: str | None = None
    maybe_empty: bool = False
    varying: frozenset[Symbol] = frozenset()
    parallel: int = 0


@dataclass(slots=True)
class Head:
    """The beginning of a loop's body: lines to be inserted there, and their names."""

    lines: list[str]
    indent: int
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Function:
    """A printed kernel or micro-kernel, and the parts of the header that it ``needs``. ``checked``: it
    returns an error number. ``before``: comments or attributes. ``computes``: it does more than call
    functions. ``carries``: a loop carries values in registers. ``calls``: the functions.
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
