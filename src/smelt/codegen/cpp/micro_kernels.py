"""Micro-kernels of products, as functions that kernels call: printed and compiled once for all sizes.

    for (i64 d5 = 0; d5 < 16; d5 += 16) {            tile(in0 + d4*9216, t0, t1, 1024, 1024);
      …                                          →
      in0[d7 + d4*9216 + 1024] … t0 + d7*48 …        in0[d7 + s0] … in1 + d7*48 …

A compiler takes as long for a register tile as for all the rest of a kernel, and a model has many products.
The tile's form is constant: rows, columns, and the stride of terms in a panel. Operand addresses, strides of
rows and outer terms, and the number of terms are arguments. The rows of vectors that follow a tile are
functions as well: of these only the lanes of a vector are constant.

The remaining kernel calls functions: it need not be optimized, and serves any size (`Functions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import Max, Min

from smelt.codegen.cpp.scope import Memory
from smelt.codegen.index import Names, Offset, Term, index_text
from smelt.nest.ir import Advance, Block, Carry, For, Kernel, Let, LoopKind, Param, Prefetch, Stmt, Store
from smelt.nest.tree import trip_count, walk
from smelt.ops import TABLE
from smelt.records import dataclass, field, replace
from smelt.symbolic import loop_var, numel
from smelt.symbolic.affine import times, total

ONE = sympy.Integer(1)

FEWEST_TERMS = 16
"""The fewest terms of a micro-kernel, below which the cost of the call matters."""


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


def tile_micro_kernel(
    loop: For, buffers: Mapping[str, Memory], outside: Mapping[str, Let]
) -> MicroKernel | None:
    """The register tile of ``loop`` over lanes, as a function; None if it is of another kind.

    ``outside``: values that are bound around it; a function copies constants only.
    """
    stmts = walk(loop.body)
    if loop.begin.free_symbols or loop.end.free_symbols:
        return None
    if not any(isinstance(stmt, Advance) for stmt in stmts):
        return None
    if not all(isinstance(stmt, (For, Let, Carry, Advance, Store, Prefetch)) for stmt in stmts):
        return None
    inside = [stmt for stmt in stmts if isinstance(stmt, For)]
    if any(each.kind not in (LoopKind.SERIAL, LoopKind.JAM) for each in inside):
        return None
    if not any(isinstance(stmt, Let) and stmt.op == "fma" for stmt in stmts):
        return None
    terms = numel([trip_count(each) for each in inside if each.kind is LoopKind.SERIAL])
    if terms.is_Integer and int(terms) < FEWEST_TERMS:
        return None
    across = next((each.var for each in reversed(inside) if each.kind is LoopKind.JAM), None)
    return _extracted(_Extractor("tile", loop, loop, buffers, outside, inside[-1].var, across))


def row_micro_kernel(
    loop: For, buffers: Mapping[str, Memory], outside: Mapping[str, Let]
) -> MicroKernel | None:
    """The rows of vectors that ``loop`` computes, as a function; None if it does something else. See
    `tile_micro_kernel`.
    """
    nest = [loop]
    while len(nest[-1].body.stmts) == 1 and isinstance(inner := nest[-1].body.stmts[0], For):
        nest.append(inner)
    *rows, lanes = nest
    if (
        not rows
        or lanes.kind is not LoopKind.VECTOR
        or any(each.kind is not LoopKind.SERIAL for each in rows)
    ):
        return None
    if lanes.begin != 0 or not all(isinstance(stmt, (Let, Store)) for stmt in lanes.body.stmts):
        return None
    return _extracted(_Extractor("rows", loop, lanes, buffers, outside))


def _extracted(outliner: _Extractor) -> MicroKernel | None:
    try:
        return outliner.run()
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
    """Collects the accesses of ``loop``, then makes its function. ``lanes``: the loop over lanes, which is
    that loop or one in it.

    ``innermost``: the variable of a tile's loop over terms; ``across``: that of the loop over its adjacent
    registers, if any. ``panel_steps``: the stride of terms in a panel, by buffer. ``rows``: the stride of
    rows, by pointer, for accesses of one number for all lanes. ``pointers`` and ``numbers`` are the
    function's arguments: a buffer and its first offset; a value.
    """

    name: str
    loop: For
    lanes: For
    buffers: Mapping[str, Memory]
    outside: Mapping[str, Let]
    innermost: Symbol | None = None
    across: Symbol | None = None
    renamed: dict[Symbol, Symbol] = field(default_factory=dict)
    accesses: dict[int, _Access] = field(default_factory=dict)
    panel_steps: set[tuple[str, Offset]] = field(default_factory=set)
    pointers: dict[_Key, tuple[str, str, _Access]] = field(default_factory=dict)
    rows: dict[_Key, list[int]] = field(default_factory=dict)
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
        kernel = Kernel(self.name, params, tuple(made for made, _ in self.numbers.values()), body)
        pointers = tuple((buffer, _base(access)) for _, buffer, access in self.pointers.values())
        return MicroKernel(kernel, pointers, tuple(given for _, given in self.numbers.values()))

    def constants(self, stmts: Sequence[Stmt]) -> list[Let]:
        """The outer constants that are used here."""
        own = {stmt.name for stmt in stmts if isinstance(stmt, (Let, Carry))}
        used: dict[str, None] = {}
        for stmt in stmts:
            if isinstance(stmt, (Store, Advance)):
                used[stmt.value] = None
            elif isinstance(stmt, Let) and (stmt.op in TABLE or stmt.op == "to_dtype"):
                used.update((name, None) for name in stmt.args if isinstance(name, str))
            elif isinstance(stmt, Let):
                known = stmt.op in ("load", "constant") or (stmt.op == "read" and stmt.args[0] in own)
                if not known:
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
        if lane is not None and self.innermost in access.steps:
            self.panel_steps.add((buffer, access.steps[self.innermost]))
        if lane is None and not isinstance(stmt, Prefetch):
            rows = self.rows.setdefault(self.key(buffer, access), [])
            if access.number not in rows:
                rows.append(access.number)

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
            elif stmt is self.lanes and stmt is not self.loop:
                end = self.vectors(stmt)
            return replace(stmt, var=self.renamed[stmt.var], begin=begin, end=end, body=self.block(stmt.body))
        place = accessed(stmt)
        if place is None:
            return stmt
        name, index = self.access(place[0], self.accesses[id(stmt)], isinstance(stmt, Store))
        if isinstance(stmt, Let):
            return replace(stmt, args=(name, (index,)))
        assert isinstance(stmt, (Store, Prefetch))
        return replace(stmt, buffer=name, index=(index,))

    def access(self, buffer: str, access: _Access, stored: bool) -> tuple[str, Expr]:
        """The pointer of an access, and the offset from it."""
        key = self.key(buffer, access)
        name, _, first = self.pointers.setdefault(key, (f"p{len(self.pointers)}", buffer, access))
        if stored:
            self.written.add(name)
        terms = [self.moved(buffer, access, var, step) for var, step in access.steps.items()]
        away = access.number - first.number
        if away and access.number in self.rows.get(key, ()):
            terms.append(self.row(key, access.number))
        elif away:
            terms.append(sympy.Integer(away))
        return name, total(terms)

    def moved(self, buffer: str, access: _Access, var: Symbol, step: Offset) -> Expr:
        """The step of an access per iteration of a loop."""
        wide = self.lanes.var in access.steps
        form = step.is_one or (wide and var == self.across)
        form = form or (var == self.innermost and (wide or (buffer, step) in self.panel_steps))
        number = step.number
        if form and number is not None:
            return times(self.renamed[var], sympy.Integer(number))
        return self.renamed[var] * self.number(("step", buffer, wide, var, step), step)

    def row(self, key: _Key, number: int) -> Expr:
        """The offset of a row from the first one: a multiple of the second row's offset, or a constant."""
        first, *others = self.rows[key]
        offsets = [each - first for each in others]
        if all(each == (position + 1) * offsets[0] for position, each in enumerate(offsets)):
            step = self.number(("rows", key), sympy.Integer(offsets[0]))
            return step * (offsets.index(number - first) + 1)
        return self.number(("row", key, number), sympy.Integer(number - first))

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
    """The buffer and the index that a load, store or prefetch accesses; None for other statements."""
    if isinstance(stmt, (Store, Prefetch)):
        return stmt.buffer, stmt.index
    return (stmt.args[0], stmt.args[1]) if isinstance(stmt, Let) and stmt.op == "load" else None


def _base(access: _Access) -> Offset:
    return Offset((*access.fixed, Term(access.number, ()))) if access.number else Offset(access.fixed)
