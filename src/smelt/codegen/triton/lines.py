"""The base of Triton's printer: lanes, masks, addresses, and the text so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from sympy import Expr, Symbol

from smelt.codegen.index import Names, Spelling, flat_offset
from smelt.codegen.nests import NestText
from smelt.codegen.triton.values import Value
from smelt.codegen.triton.words import lanes_of
from smelt.nest.ir import Alloc, Combination, For
from smelt.nest.tree import loops
from smelt.records import dataclass, field

TRITON = Spelling(
    "Triton", "{}//{}", " & ", " | ", "({} == 0)", "tl.where({}, {}, {})", ("False", "True"), floats=False
)
AXES = {"threadIdx.y": 0, "threadIdx.x": 1}
TERMS = "threadIdx.z"
"""Iterations that are terms of a product: columns of its left block, rows of its right one."""
MANY = 4096
"""Elements of a block of sums that eight warps share."""
SMALLEST = 16
"""The fewest rows, columns and terms of blocks that Triton multiplies."""
GRID = {"blockIdx.x": 0, "blockIdx.y": 1, "blockIdx.z": 2}
Axes = frozenset[int]

TRUE = "tl.full([1, 1], 1, tl.int1)"


@dataclass(frozen=True, slots=True)
class Lanes:
    """A loop whose iterations are lanes: their number (a power of two), and the mask of active lanes ("" for
    all).
    """

    loop: For
    axis: int
    width: int
    mask: str


@dataclass(slots=True)
class Sum:
    """An accumulator: its variables, and the axes that are reduced when it is read."""

    kind: str
    names: tuple[str, ...]
    dtype: torch.dtype
    folded: tuple[int, ...]
    axes: Axes


@dataclass(slots=True)
class Row:
    """A buffer that a block keeps in registers: its strides, and its value once stored."""

    stmt: Alloc
    value: Value | None = None
    width: int = 0


@dataclass(slots=True)
class Lines(NestText):
    """The text of one kernel. ``grid``: the programs along each axis; ``errors``: the error of check number
    1, 2 …
    """

    symbols: Names = field(default_factory=lambda: Names(spelling=TRITON), kw_only=True)
    grid: dict[int, Expr] = field(default_factory=dict)
    errors: list[tuple[str, str]] = field(default_factory=list)
    lanes: list[Lanes] = field(default_factory=list)
    conditions: list[tuple[str, Axes]] = field(default_factory=list)
    axes: dict[Symbol, Axes] = field(default_factory=dict)
    of_value: dict[str, Axes] = field(default_factory=dict)
    sums: dict[str, Sum] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    narrow: dict[str, Value] = field(default_factory=dict)
    """The text of a value → the 16-bit float that it was before."""
    interpreted: bool = False
    """Blocks of 16-bit floats are multiplied in float32: the interpreter multiplies bfloat16's bits."""
    by_descriptor: bool = True
    """Whether blocks that a GPU's copy engine can load are loaded by it, if their product asks for that."""
    descriptors: list[str] = field(default_factory=list)
    """The lines that make the descriptors of these blocks."""
    scans: dict[str, Combination] = field(default_factory=dict)
    carried: dict[str, int] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    name: str = ""
    word: str = "tl.int64"
    handler: Any = None

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def block(self, opening: str, closing: str = "") -> Iterator[None]:
        self.line(f"{opening}:")
        self.indent += 1
        yield
        self.indent -= 1

    def axes_of(self, exprs: Iterable[Any]) -> Axes:
        """The axes along which expressions differ between lanes."""
        symbols = {symbol for expr in exprs for symbol in expr.free_symbols}
        return frozenset().union(*(self.axes[symbol] for symbol in symbols))

    def block_index(self, expr: Expr) -> str:
        """An index as a block, also where it is the same for all lanes."""
        return self._as_block(self.index(expr), self.axes_of([expr]))

    def _as_block(self, text: str, axes: Axes) -> str:
        return text if axes else f"({text} + tl.zeros([1, 1], {self.word}))"

    def _named(self, loop: For, axes: Axes) -> str:
        name = self.symbols[loop.var] = self.fresh("xr"[1 in axes] if axes else "i")
        self.axes[loop.var] = axes
        return name

    def _width(self, loop: For) -> tuple[int, bool]:
        """The number of lanes of a loop, and whether all of them are always active; blocks that are
        multiplied have some at least.
        """
        width, exact = lanes_of(loop)
        least = SMALLEST if any(each.thread == TERMS for each in loops(self.kernel.body)) else 1
        return max(width, least), exact and width >= least

    def _width_of(self, axis: int) -> int:
        return next((each.width for each in self.lanes if each.axis == axis), 1)

    def _bound(self, name: str, value: Value, axes: Axes) -> str:
        text = self.fresh("v")
        self.line(f"{text} = {value.text}")
        self.values[name], self.of_value[name] = Value(text, value.dtype), axes
        return text

    # -- masks ----------------------------------------------------------------------------------------------

    def mask(self, axes: Axes) -> tuple[str, Axes]:
        """The mask of active lanes, from the lanes along ``axes`` and all conditions, and the axes along
        which it differs.
        """
        parts = [
            (each.mask, frozenset({each.axis})) for each in self.lanes if each.mask and each.axis in axes
        ]
        for name, own in self.conditions:
            parts.append((name, own))
            parts += [(e.mask, frozenset({e.axis})) for e in self.lanes if e.mask and e.axis in own - axes]
        texts = dict.fromkeys(name for name, _ in parts)
        return " & ".join(texts), frozenset().union(*(own for _, own in parts))

    def _pointer(self, buffer: str, index: Sequence[Expr]) -> tuple[str, str, Axes]:
        """The addresses of elements, their mask, and the axes along which they differ."""
        strides = next(param.strides for param in self.kernel.params if param.name == buffer)
        offset = flat_offset(index, strides)
        axes = self.axes_of(factor for term in offset.terms for factor in term.factors)
        mask, masked = self.mask(axes)
        text = self._as_block(offset.text(self.symbols), axes)
        if masked - axes:
            text = f"({text} + ({mask}).to({self.word}) * 0)"
        return f"{buffer} + {text}", f", mask={mask}" if mask else "", axes | masked
