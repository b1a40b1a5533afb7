"""Rows of vectors with the note ``function``: printed and compiled once for all sizes.

    for (i64 d5 = 0; d5 < 6; d5 += 1)                      rows(t0 + d4*48, out1 + d4*9216, 6, 48, 1024);
      for (i64 d6 = 0; d6 < 48; d6 += 16) …         →
        out1[d6 + d5*1024 + d4*9216] …                     p1[d1 + d0*n2] …

They follow the register tiles of products. A compiler takes as long for them as for all the rest of a kernel,
and a model has many products. Only the lanes of a vector are constant; addresses, strides and numbers of
rows are arguments. The remaining kernel calls functions: it need not be optimized, and serves any size
(`Functions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import Max, Min

from smelt.codegen.cpp.scope import Memory
from smelt.codegen.index import Names, Offset, Term, index_text
from smelt.nest.ir import Block, For, Kernel, Let, LoopKind, Param, Stmt, Store
from smelt.nest.tree import nested, walk
from smelt.ops import TABLE
from smelt.records import dataclass, field, replace
from smelt.symbolic import loop_var
from smelt.symbolic.affine import total

ONE = sympy.Integer(1)


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """A separate function, and its arguments in a kernel: a buffer and an offset for each pointer, then
    numbers.
    """

    kernel: Kernel
    pointers: tuple[tuple[str, Offset], ...]
    numbers: tuple[Offset | Expr, ...]

    def call(self, function: str, memories: Mapping[str, Memory], names: Names) -> str:
        pointers = [memories[buffer].at(place, names) for buffer, place in self.pointers]
        numbers = [
            given.text(names) if isinstance(given, Offset) else index_text(given, names)
            for given in self.numbers
        ]
        return f"{function}({', '.join([*pointers, *numbers])});"


def row_micro_kernel(
    loop: For, buffers: Mapping[str, Memory], outside: Mapping[str, Let]
) -> MicroKernel | None:
    """The rows of vectors that ``loop`` computes, as a function; None if their addresses do not advance by a
    stride with each loop.

    ``outside``: values that are bound around it; a function copies constants only.
    """
    *_, lanes = nested(loop)[0]
    try:
        return _Extractor(loop, lanes, buffers, outside).run()
    except _OfAnotherKindError:
        return None


class _OfAnotherKindError(Exception):
    """The loop can't be a function."""


_Key = tuple[object, ...]


@dataclass(slots=True)
class _Access:
    """A flat offset: its constant part inside the function, its number, and its step for each loop."""

    fixed: tuple[Term, ...]
    number: int
    steps: dict[Symbol, Offset]


@dataclass(slots=True)
class _Extractor:
    """Collects the accesses of ``loop``, then makes its function. ``lanes``: the loop over lanes in it.

    ``pointers`` and ``numbers`` are the function's arguments: a buffer and its first offset; a value.
    """

    loop: For
    lanes: For
    buffers: Mapping[str, Memory]
    outside: Mapping[str, Let]
    renamed: dict[Symbol, Symbol] = field(default_factory=dict)
    accesses: dict[int, _Access] = field(default_factory=dict)
    pointers: dict[_Key, tuple[str, str, _Access]] = field(default_factory=dict)
    numbers: dict[_Key, tuple[Symbol, Offset | Expr]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    def run(self) -> MicroKernel:
        stmts = walk(self.loop.body)
        inside = [self.loop, *(stmt for stmt in stmts if isinstance(stmt, For))]
        self.renamed = {each.var: loop_var(f"t{number}") for number, each in enumerate(inside)}
        for stmt in stmts:
            self.look_at(stmt)
        body = Block((*self.constants(stmts), self.stmt(self.loop)))
        params = tuple(
            Param(name, made.dtype, (ONE,), (ONE,), name in self.written, made.streamed)
            for name, made in ((name, self.buffers[buffer]) for name, buffer, _ in self.pointers.values())
        )
        kernel = Kernel("rows", params, tuple(made for made, _ in self.numbers.values()), body)
        pointers = tuple((buffer, _base(access)) for _, buffer, access in self.pointers.values())
        return MicroKernel(kernel, pointers, tuple(given for _, given in self.numbers.values()))

    def constants(self, stmts: Sequence[Stmt]) -> list[Let]:
        """The outer constants that are used here."""
        own = {stmt.name for stmt in stmts if isinstance(stmt, Let)}
        used: dict[str, None] = {}
        for stmt in stmts:
            if isinstance(stmt, Store):
                used[stmt.value] = None
            elif isinstance(stmt, Let) and (stmt.op in TABLE or stmt.op == "to_dtype"):
                used.update((name, None) for name in stmt.args if isinstance(name, str))
            elif isinstance(stmt, Let) and stmt.op not in ("load", "constant"):
                raise _OfAnotherKindError
        found = [self.outside.get(name) for name in used if name not in own]
        if any(each is None or each.op != "constant" for each in found):
            raise _OfAnotherKindError
        return [each for each in found if each is not None]

    # -- accesses
    def look_at(self, stmt: Stmt) -> None:
        """Records the accesses of a statement."""
        place = accessed(stmt)
        if place is None:
            return
        buffer, index = place
        access = self.accesses[id(stmt)] = self.split(self.buffers[buffer].offset(index))
        lane = access.steps.get(self.lanes.var)
        if lane is not None and not lane.is_one:
            raise _OfAnotherKindError

    def split(self, offset: Offset) -> _Access:
        """Splits an offset by the loops that move it; raises if it is not linear in a loop's variable."""
        fixed: list[Term] = []
        number = 0
        steps: dict[Symbol, list[Term]] = {}
        for term in offset.terms:
            inner = [factor for factor in term.factors if factor in self.renamed]
            others = tuple(factor for factor in term.factors if factor not in self.renamed)
            if len(inner) > 1 or Term(1, others).depends(set(self.renamed)):
                raise _OfAnotherKindError
            if inner:
                steps.setdefault(inner[0], []).append(Term(term.coefficient, others))
            elif others:
                fixed.append(term)
            else:
                number += term.coefficient
        return _Access(tuple(fixed), number, {var: Offset(tuple(terms)) for var, terms in steps.items()})

    def key(self, buffer: str, access: _Access) -> _Key:
        """The common part of accesses through one pointer."""
        return buffer, self.lanes.var in access.steps, access.fixed, tuple(access.steps.items())

    # -- the function
    def block(self, block: Block) -> Block:
        """The statements of the function."""
        return Block(tuple(map(self.stmt, block.stmts)))

    def stmt(self, stmt: Stmt) -> Stmt:
        """A statement of the function."""
        if isinstance(stmt, For):
            begin, end = stmt.begin, stmt.end
            if stmt.kind is LoopKind.SERIAL:
                begin, end = self.bound(stmt, "begin", begin), self.bound(stmt, "end", end)
            else:
                end = self.vectors(stmt)
            made = replace(stmt, var=self.renamed[stmt.var], begin=begin, end=end, notes=())
            return replace(made, body=self.block(stmt.body))
        place = accessed(stmt)
        if place is None:
            return stmt
        name, index = self.access(place[0], self.accesses[id(stmt)], isinstance(stmt, Store))
        if isinstance(stmt, Let):
            return replace(stmt, args=(name, (index,)))
        assert isinstance(stmt, Store)
        return replace(stmt, buffer=name, index=(index,))

    def access(self, buffer: str, access: _Access, stored: bool) -> tuple[str, Expr]:
        """The pointer of an access, and the offset from it."""
        key = self.key(buffer, access)
        name, _, first = self.pointers.setdefault(key, (f"p{len(self.pointers)}", buffer, access))
        if stored:
            self.written.add(name)
        terms = [self.moved(buffer, access, var, step) for var, step in access.steps.items()]
        return name, total([*terms, sympy.Integer(access.number - first.number)])

    def moved(self, buffer: str, access: _Access, var: Symbol, step: Offset) -> Expr:
        """The step of an access per iteration of a loop."""
        if step.is_one:
            return self.renamed[var]
        wide = self.lanes.var in access.steps
        return self.renamed[var] * self.number(("step", buffer, wide, var, step), step)

    def bound(self, loop: For, end: str, bound: Expr) -> Expr:
        """A bound of an inner loop; its constant part is an argument."""
        if bound == 0:
            return bound
        if bound.free_symbols.isdisjoint(self.renamed):
            return self.number((end, loop.var), bound)
        if isinstance(bound, (Min, Max)):
            return bound.func(*(self.bound(loop, f"{end}{n}", each) for n, each in enumerate(bound.args)))
        if not bound.free_symbols <= self.renamed.keys():
            raise _OfAnotherKindError
        return bound.xreplace(self.renamed)

    def vectors(self, loop: For) -> Expr:
        """The end of a loop over lanes: the number of vectors is an argument, or, if the last is partial, the
        number of lanes.
        """
        count = loop.end / loop.step
        if count.is_Integer:
            return self.number(("vectors",), count) * loop.step
        if not loop.end.free_symbols.isdisjoint(self.renamed):
            raise _OfAnotherKindError
        return self.number(("lanes",), loop.end)

    def number(self, role: _Key, given: Offset | Expr) -> Symbol:
        """The argument in this role."""
        if role not in self.numbers:
            self.numbers[role] = Symbol(f"n{len(self.numbers)}", integer=True), given
        return self.numbers[role][0]


def accessed(stmt: Stmt) -> tuple[str, tuple[Expr, ...]] | None:
    """The buffer and the index that a load or store accesses; None for other statements."""
    if isinstance(stmt, Store):
        return stmt.buffer, stmt.index
    return (stmt.args[0], stmt.args[1]) if isinstance(stmt, Let) and stmt.op == "load" else None


def _base(access: _Access) -> Offset:
    return Offset((*access.fixed, Term(access.number, ()))) if access.number else Offset(access.fixed)
