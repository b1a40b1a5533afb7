"""The loop in which a register tile sums, as assembly: what a compiler does not do with it.

    for k:  a0 = lhs[0, k] …  q0 = panel[k, 0] …  c00 += a0*q0 …      →  asm: loads of k + 1 between sums of k

Compilers load an operand right in front of its use, and rely on the processor to run ahead. It does so less
where another thread shares its core, as on most rented machines: products of 512 and 1024 had 0.75 to 0.87 of
the speed of MKL's there, and have 0.89 to 0.96 with this (and `smelt.schedule.tiles.DEPTH`); alone on its
core it gains some percent. Four terms a turn, two sets of registers for the panel, the next two numbers of
lhs on their way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from sympy import Symbol

from smelt.codegen.cpp.index import Names, Offset, Term, index_text
from smelt.codegen.cpp.outline import accessed
from smelt.codegen.cpp.scope import Memory, Scope
from smelt.nest.ir import Advance, Block, For, Let, LoopKind, Prefetch
from smelt.symbolic.affine import replaced

Memories = Mapping[str, Memory]
T = TypeVar("T")

REGISTERS, BYTES, ELEMENT = 32, 64, 4
"""AVX-512: how many there are, and how large; and a float32's size."""
LANES = BYTES // ELEMENT
UNROLLED = 4
NUMBERS = 2
"""Registers for numbers of lhs; as many are on their way."""
GIVEN = ("rsi", "rdx", "rcx", "rdi", "rax")
"""Registers of what a loop is told: where lhs is, bytes between its rows, where the panel is, turns, and how
many terms are left behind them."""
AHEAD = ("r11", "r12")
"""Where what is ahead is, and bytes between what two terms fetch."""
MULTIPLES = ("r8", "r9", "r10")
"""3, 5 and 7 times rdx."""
ROWS = ("", ",%%rdx", ",%%rdx,2", ",%%r8", ",%%rdx,4", ",%%r9", ",%%r8,2", ",%%r10")
"""What is added to the address of lhs for each row."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What such a loop does. ``totals``: the carried sums, row after row. The operands: a buffer, where in it
    the first term is; ``row_step``: how far apart rows of lhs are, in elements; ``term_step``: terms of the
    panel; ``ahead``: what is fetched meanwhile, and how far apart that is for two terms.
    """

    loop: For
    rows: int
    totals: tuple[str, ...]
    lhs: tuple[str, Offset]
    row_step: Offset
    panel: tuple[str, Offset]
    term_step: int
    ahead: tuple[str, Offset, Offset] | None

    def text(
        self, totals: Sequence[str], memories: Memories, names: Names, fresh: Callable[[str], str]
    ) -> Iterator[str]:
        """The lines of C++; ``totals``: the variables that get the sums."""

        def address(buffer: str, place: Offset) -> str:
            return f"(i64)({memories[buffer].at(place, names)})"

        terms, turns, given = fresh("k"), fresh("k"), fresh("k")
        overlap = -(-NUMBERS // self.rows)  # a turn loads what so many terms behind it use
        yield f"const i64 {terms} = max_of({index_text(self.loop.end - self.loop.begin, names)}, i64(0));"
        yield f"const i64 {turns} = ({terms} - {overlap})/{UNROLLED};"
        numbers = [
            address(*self.lhs),
            f"({self.row_step.text(names)})*{ELEMENT}",
            address(*self.panel),
            turns,
            f"{terms} - {turns}*{UNROLLED}",
        ]
        if self.ahead:
            numbers += [address(*self.ahead[:2]), f"({self.ahead[2].text(names)})*{ELEMENT}"]
        yield f"const i64 {given}[] = {{{', '.join(numbers)}}};"
        sides = len(self.totals) // self.rows
        lines = _instructions(self.rows, sides, self.term_step * ELEMENT, self.ahead is not None)
        yield "asm volatile("
        yield from (f'  "{line}\\n"' for line in lines)
        outputs = ", ".join(f'"=&v"({total}.v)' for total in totals)
        vectors = [f"zmm{number}" for number in range(2 * sides + NUMBERS)]
        scratch = [*GIVEN, *MULTIPLES, *(AHEAD if self.ahead else ()), *vectors]
        clobbered = ", ".join(f'"{name}"' for name in (*scratch, "cc", "memory"))
        yield f'  : {outputs} : "r"({given}) : {clobbered});'


def sums_of(loop: For, scope: Scope, memories: Memories, zeros: Collection[str]) -> Sums | None:
    """What ``loop`` sums, where it is one over terms of a register tile, whose sums are 0 before (``zeros``);
    None where it is another loop, or there is no such schedule for it.
    """
    if scope.lanes != LANES or scope.mask is not None or loop.kind is not LoopKind.SERIAL or loop.step != 1:
        return None
    try:
        return _Reader(loop, scope, memories, zeros).sums()
    except _AnotherLoopError:
        return None


class _AnotherLoopError(Exception):
    """It is none of these loops."""


def _need(condition: bool) -> None:
    if not condition:
        raise _AnotherLoopError


def _have(found: T | None) -> T:
    if found is None:
        raise _AnotherLoopError
    return found


class _Reader:
    """Reads the statements of a loop."""

    def __init__(self, loop: For, scope: Scope, memories: Memories, zeros: Collection[str]) -> None:
        self.loop, self.scope, self.memories, self.zeros = loop, scope, memories, zeros
        self.lets = {stmt.name: stmt for stmt in loop.body.stmts if isinstance(stmt, Let)}

    def sums(self) -> Sums:
        advances = [stmt for stmt in self.loop.body.stmts if isinstance(stmt, Advance)]
        fetched = [stmt for stmt in self.loop.body.stmts if isinstance(stmt, Prefetch)]
        _need(len(self.lets) + len(advances) + len(fetched) == len(self.loop.body.stmts))
        _need(len(advances) > 0 and len(fetched) <= 1)
        found = {self.factors(stmt): stmt.carry for stmt in advances}
        _need(len(found) == len(advances))  # else rows are the same number
        lefts, rights = (list(dict.fromkeys(each)) for each in zip(*found))
        rows, sides = len(lefts), len(rights)
        _need(set(found) == {(left, right) for left in lefts for right in rights})
        _need(rows <= len(ROWS) and (rows + 2) * sides + NUMBERS <= REGISTERS)
        _need(len(self.lets) == rows + sides + 2 * len(advances))
        totals = tuple(found[left, right] for left in lefts for right in rights)
        _need(set(totals) <= set(self.zeros) and len(set(totals)) == len(totals))
        places = [self.place(self.lets[name]) for name in lefts]
        row_step = _minus(places[1], places[0]) if rows > 1 else {}
        for row, place in enumerate(places[1:], 1):
            _need(_minus(place, places[0]) == {factors: n * row for factors, n in row_step.items()})
        columns = [self.place(self.lets[name]) for name in rights]
        for side, place in enumerate(columns[1:], 1):
            _need(_minus(place, columns[0]) == {(): side * LANES})
        first, panel = self.lets[lefts[0]], self.lets[rights[0]]
        _need(len({self.lets[name].args[0] for name in lefts}) == 1)
        _need(len({self.lets[name].args[0] for name in rights}) == 1)
        _need(all(self.steps(self.lets[name]) == (0, 1) for name in lefts))
        term_steps = {self.steps(self.lets[name]) for name in rights}
        _need(len(term_steps) == 1)
        ((lane, term_step),) = term_steps
        _need(lane == 1)
        return Sums(
            self.loop,
            rows,
            totals,
            (first.args[0], places[0]),
            Offset(tuple(Term(number, key) for key, number in row_step.items())),
            (panel.args[0], columns[0]),
            term_step,
            self.ahead(fetched[0]) if fetched else None,
        )

    def factors(self, advance: Advance) -> tuple[str, str]:
        """The names of a number of lhs and of a vector of the panel whose product is added to a total."""
        product = _have(self.lets.get(str(advance.value)))
        _need(product.op == "fma")
        left, right, before = product.args
        read = _have(self.lets.get(before))
        _need(read.op == "read" and read.args[0] == advance.carry)
        _need(all(name in self.lets and self.lets[name].op == "load" for name in (left, right)))
        return left, right

    def place(self, access: Let | Prefetch) -> Offset:
        """Where in its buffer an access is with the first term."""
        name, index = _have(accessed(access))
        memory = self.memories[name]
        _need(memory.dtype is torch.float32)
        return memory.offset([replaced(each, {self.loop.var: self.loop.begin}) for each in index])

    def step(self, access: Let | Prefetch, variable: Symbol | None) -> Offset:
        """By how much the next turn of a loop moves an access."""
        name, index = _have(accessed(access))
        return _have(self.memories[name].offset(index).split(_have(variable)))[1]

    def steps(self, access: Let) -> tuple[int, int]:
        """By how much the next lane moves a load, and the next term."""
        lane, term = (self.step(access, variable) for variable in (self.scope.var, self.loop.var))
        return _have(lane.number), _have(term.number)

    def ahead(self, fetched: Prefetch) -> tuple[str, Offset, Offset]:
        """`Sums.ahead`."""
        return fetched.buffer, self.place(fetched), self.step(fetched, self.loop.var)


def _minus(offset: Offset, other: Offset) -> dict[tuple[Any, ...], int]:
    """The terms of ``offset - other``: factors, and how many times."""
    found = {term.factors: term.coefficient for term in offset.terms}
    for term in other.terms:
        found[term.factors] = found.get(term.factors, 0) - term.coefficient
    return {factors: number for factors, number in found.items() if number}


@lru_cache(maxsize=256)
def _instructions(rows: int, sides: int, term_bytes: int, ahead: bool) -> tuple[str, ...]:
    """The assembly of `Sums.text`. The first vector registers are those for the panel's even and odd terms,
    then `NUMBERS` for lhs; those of the totals the compiler chooses.
    """
    totals, given = rows * sides, (*GIVEN, *(AHEAD if ahead else ()))

    def load(side: int, term: int) -> str:
        return f"vmovups {term * term_bytes + side * BYTES}(%%rcx), %%zmm{term % 2 * sides + side}"

    def broadcast(place: int) -> str:
        """``place`` counts all rows of the first term, then those of the next."""
        term, row = divmod(place, rows)
        return f"vbroadcastss {term * ELEMENT}(%%rsi{ROWS[row]}), %%zmm{2 * sides + place % NUMBERS}"

    def add(place: int, side: int) -> str:
        term, row = divmod(place, rows)
        factors = f"%%zmm{term % 2 * sides + side}, %%zmm{2 * sides + place % NUMBERS}"
        return f"vfmadd231ps {factors}, %{row * sides + side}"

    lines = [f"mov {8 * number}(%{totals}), %%{name}" for number, name in enumerate(given)]
    lines += ["lea (%%rdx,%%rdx,2), %%r8", "lea (%%rdx,%%rdx,4), %%r9", "lea (%%r8,%%rdx,4), %%r10"]
    lines += [f"vpxord %{total}, %{total}, %{total}" for total in range(totals)]
    lines += ["test %%rdi, %%rdi", "je 2f"]
    lines += [load(side, 0) for side in range(sides)] + [broadcast(place) for place in range(NUMBERS)]
    lines += [".p2align 5", "1:"]
    for place in range(UNROLLED * rows):
        term, row = divmod(place, rows)
        for side in range(sides):
            lines.append(add(place, side))
            if side * rows // sides == row:
                lines.append(load(side, term + 1))
        lines.append(broadcast(place + NUMBERS))
        if ahead and row == rows - 1:
            lines += ["prefetcht0 (%%r11)", "add %%r12, %%r11"]
    lines += [f"add ${UNROLLED * term_bytes}, %%rcx", f"add ${UNROLLED * ELEMENT}, %%rsi"]
    lines += ["dec %%rdi", "jne 1b", "2:", "test %%rax, %%rax", "je 4f", "3:"]
    lines += [load(side, 0) for side in range(sides)]
    for row in range(rows):
        lines += [broadcast(row), *(add(row, side) for side in range(sides))]
    lines += [f"add ${term_bytes}, %%rcx", f"add ${ELEMENT}, %%rsi", "dec %%rax", "jne 3b", "4:"]
    return tuple(lines)


def factors_of_several(block: Block) -> set[str]:
    """The values that several fused multiply-adds of a block take: a register tile's operands."""
    uses = Counter(
        name for stmt in block.stmts if isinstance(stmt, Let) and stmt.op == "fma" for name in stmt.args[:2]
    )
    return {name for name, count in uses.items() if count > 1}
