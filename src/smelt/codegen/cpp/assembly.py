"""The summation loop of a register tile as assembly, with loads scheduled ahead of their use.

    for k:  a0 = lhs[0, k] …  q0 = panel[k, 0] …  c00 += a0*q0 …      →  asm: loads of k + 1 between sums of k

Compilers load an operand right before its use, and rely on out-of-order execution. That hides less latency if
another thread shares the core, as on most rented machines (docs/benchmarks.md). The loop is unrolled by four
terms, with two sets of registers for the panel and the next two numbers of lhs in flight. Terms may be in
several loops (the lines of a window, and its elements); lhs may be contiguous along terms or along rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import torch
from sympy import Symbol

from smelt.codegen.cpp.micro_kernels import accessed
from smelt.codegen.cpp.scope import Memory, Scope
from smelt.codegen.index import Names, Offset, index_text
from smelt.nest.ir import Advance, Block, For, Let, LoopKind, Prefetch
from smelt.nest.primitives import inner_loop
from smelt.records import dataclass
from smelt.symbolic.affine import replaced

Memories = Mapping[str, Memory]
T = TypeVar("T")

REGISTERS, BYTES, ELEMENT = 32, 64, 4
"""The number of AVX-512 registers, their bytes; bytes of a float32."""
LANES = BYTES // ELEMENT
UNROLLED = 4
MOST_OUTER = 4
"""Limit on the loops around the innermost one: their labels have one digit."""
NUMBERS = 2
"""Registers for numbers of lhs: the number of loads in flight."""
ROWS = ("rsi", "rdx", "r8", "r9", "r10", "r13", "r14", "r15")
"""Registers of the addresses of rows of lhs; rax is the byte offset in a row."""
AHEAD = ("r11", "r12")
"""Registers of the prefetch address, and of its step for two terms, in bytes."""
WORD = 8
"""Bytes of a number that is passed to a loop."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A read: its buffer, the offset of the first term, and the strides of terms, in elements, for each loop
    over terms, outermost first.
    """

    buffer: str
    first: Offset
    steps: tuple[Offset, ...]


@dataclass(frozen=True, slots=True)
class Sums:
    """The work of such loops. ``loops``: over terms, outermost first. ``totals``: the carried sums, row by
    row. ``rows``: the reads of lhs, all with the same strides. ``ahead``: the prefetch.
    """

    loops: tuple[For, ...]
    totals: tuple[str, ...]
    rows: tuple[Walk, ...]
    panel: Walk
    ahead: Walk | None

    def text(
        self, totals: Sequence[str], memories: Memories, names: Names, fresh: Callable[[str], str]
    ) -> Iterator[str]:
        """The lines of C++; ``totals``: the variables of the sums."""

        def address(walk: Walk) -> str:
            return f"(i64)({memories[walk.buffer].at(walk.first, names)})"

        def step(walk: Walk, level: int) -> str:
            """The step in bytes, from the end of the inner loops' reads."""
            steps = [f"({each.text(names)})*{ELEMENT}" for each in walk.steps]
            inside = f" - {counts[level + 1]}*({steps[level + 1]})" if level + 1 < len(counts) else ""
            return steps[level] + inside

        counts = [fresh("k") for _ in self.loops[1:]]
        terms, iterations, given = fresh("k"), fresh("k"), fresh("k")
        walks = [self.rows[0], self.panel, *([self.ahead] if self.ahead else [])]
        overlap = -(-NUMBERS // len(self.rows))  # an iteration loads what so many terms behind it use
        for name, loop in zip((*counts, terms), self.loops):
            yield f"const i64 {name} = max_of({index_text(loop.end - loop.begin, names)}, i64(0));"
        counts.append(terms)
        yield f"const i64 {iterations} = ({terms} - {overlap})/{UNROLLED};"
        numbers = [iterations, f"{terms} - {iterations}*{UNROLLED}", *map(address, (*self.rows, self.panel))]
        if self.ahead:
            numbers += [address(self.ahead), step(self.ahead, len(counts) - 1)]
        numbers.append(step(self.rows[0], len(counts) - 1))
        for level, count in enumerate(counts[:-1]):
            numbers += [count, "0", *(step(walk, level) for walk in walks)]
        yield f"i64 {given}[] = {{{', '.join(numbers)}}};"
        sides = len(self.totals) // len(self.rows)
        term_bytes = (self.panel.steps[-1].number or 0) * ELEMENT
        adjacent, ahead = self.rows[0].steps[-1].is_one, self.ahead is not None
        lines = instructions(len(self.rows), sides, term_bytes, adjacent, len(counts) - 1, ahead)
        yield "asm volatile("
        yield from (f'  "{line}\\n"' for line in lines)
        outputs = ", ".join(f'"=&v"({total}.v)' for total in totals)
        yield f'  : {outputs} : "r"({given}) : {clobbered(len(self.rows), sides, ahead)});'


def fits(rows: int, sides: int) -> bool:
    """Whether a tile of so many rows and adjacent vectors has a schedule."""
    return rows <= len(ROWS) and (rows + 2) * sides + NUMBERS <= REGISTERS


def clobbered(rows: int, sides: int, ahead: bool) -> str:
    """The registers that the loop changes, as `asm` lists them."""
    vectors = [f"zmm{number}" for number in range(2 * sides + NUMBERS)]
    scratch = ["rax", "rcx", "rdi", *ROWS[:rows], *(AHEAD if ahead else ()), *vectors]
    return ", ".join(f'"{name}"' for name in (*scratch, "cc", "memory"))


def sums_of(loop: For, scope: Scope, memories: Memories, zeros: Collection[str]) -> Sums | None:
    """The sums of ``loop``, or of the perfectly nested loops that it begins, if they are over terms of a
    register tile whose sums are 0 before (``zeros``); None for other loops, or if there is no schedule for
    them.
    """
    if scope.lanes != LANES or scope.mask is not None:
        return None
    nested = [loop]
    while (inner := inner_loop(nested[-1])) is not None and len(nested) <= MOST_OUTER:
        nested.append(inner)
    if any(each.kind is not LoopKind.SERIAL or each.step != 1 for each in nested):
        return None
    try:
        return _Reader(tuple(nested), scope, memories, zeros).sums()
    except _AnotherLoopError:
        return None


class _AnotherLoopError(Exception):
    """The loop is none of these loops."""


def _need(condition: bool) -> None:
    if not condition:
        raise _AnotherLoopError


def _have(found: T | None) -> T:
    if found is None:
        raise _AnotherLoopError
    return found


class _Reader:
    """Reads the statements of nested loops."""

    def __init__(
        self, nested: tuple[For, ...], scope: Scope, memories: Memories, zeros: Collection[str]
    ) -> None:
        self.loops, self.scope, self.memories, self.zeros = nested, scope, memories, zeros
        self.stmts = nested[-1].body.stmts
        self.lets = {stmt.name: stmt for stmt in self.stmts if isinstance(stmt, Let)}

    def sums(self) -> Sums:
        advances = [stmt for stmt in self.stmts if isinstance(stmt, Advance)]
        fetched = [stmt for stmt in self.stmts if isinstance(stmt, Prefetch)]
        _need(len(self.lets) + len(advances) + len(fetched) == len(self.stmts))
        _need(len(advances) > 0 and len(fetched) <= 1)
        found = {self.factors(stmt): stmt.carry for stmt in advances}
        _need(len(found) == len(advances))  # else rows are the same number
        lefts, rights = (list(dict.fromkeys(each)) for each in zip(*found))
        rows, sides = len(lefts), len(rights)
        _need(set(found) == {(left, right) for left in lefts for right in rights})
        _need(fits(rows, sides))
        _need(len(self.lets) == rows + sides + 2 * len(advances))
        totals = tuple(found[left, right] for left in lefts for right in rights)
        _need(set(totals) <= set(self.zeros) and len(set(totals)) == len(totals))
        lhs, panel = ([self.walk(self.lets[name]) for name in names] for names in (lefts, rights))
        _need(all(self.step(self.lets[name], self.scope.var).is_number(0) for name in lefts))
        _need(all(self.step(self.lets[name], self.scope.var).is_one for name in rights))
        for walks in (lhs, panel):
            _need(all(walk.steps == walks[0].steps for walk in walks))
        _need(panel[0].steps[-1].number is not None)
        for side, walk in enumerate(panel[1:], 1):
            _need(walk.buffer == panel[0].buffer)
            _need(_minus(walk.first, panel[0].first) == {(): side * LANES})
        variables = {loop.var for loop in self.loops}
        _need(not any({*loop.begin.free_symbols, *loop.end.free_symbols} & variables for loop in self.loops))
        ahead = self.walk(fetched[0]) if fetched else None
        walks = [lhs[0], panel[0], *([ahead] if ahead else [])]
        _need(not any(step.depends(variables) for walk in walks for step in walk.steps))
        return Sums(self.loops, totals, tuple(lhs), panel[0], ahead)

    def factors(self, advance: Advance) -> tuple[str, str]:
        """The names of the number of lhs and the vector of the panel whose product is added to a total."""
        product = _have(self.lets.get(str(advance.value)))
        _need(product.op == "fma")
        left, right, before = product.args
        read = _have(self.lets.get(before))
        _need(read.op == "read" and read.args[0] == advance.carry)
        _need(all(name in self.lets and self.lets[name].op == "load" for name in (left, right)))
        return left, right

    def place(self, access: Let | Prefetch) -> Offset:
        """The offset of an access at the first term."""
        name, index = _have(accessed(access))
        memory = self.memories[name]
        _need(memory.dtype is torch.float32)
        begins = {loop.var: loop.begin for loop in self.loops}
        return memory.offset([replaced(each, begins) for each in index])

    def step(self, access: Let | Prefetch, variable: Symbol | None) -> Offset:
        """The step of an access per iteration of a loop."""
        name, index = _have(accessed(access))
        return _have(self.memories[name].offset(index).split(_have(variable)))[1]

    def walk(self, access: Let | Prefetch) -> Walk:
        """The read of an access."""
        name, _ = _have(accessed(access))
        return Walk(name, self.place(access), tuple(self.step(access, loop.var) for loop in self.loops))


def _minus(offset: Offset, other: Offset) -> dict[tuple[Any, ...], int]:
    """The terms of ``offset - other``: factors, and their coefficients."""
    found = {term.factors: term.coefficient for term in offset.terms}
    for term in other.terms:
        found[term.factors] = found.get(term.factors, 0) - term.coefficient
    return {factors: number for factors, number in found.items() if number}


@lru_cache(maxsize=256)
def instructions(
    rows: int, sides: int, term_bytes: int, adjacent: bool, outer: int, ahead: bool
) -> tuple[str, ...]:
    """The assembly of `Sums.text`, with ``outer`` outer loops; ``adjacent``: lhs is contiguous along terms.

    The first vector registers are those for the panel's even and odd terms, then `NUMBERS` for lhs; the
    compiler chooses those of the totals.
    """
    totals, fetch = rows * sides, ["prefetcht0 (%%r11)", "add %%r12, %%r11"] if ahead else []
    iterations, rest, *addresses, lhs_step = range(2 + rows + 1 + len(fetch) + 1)
    """Positions of the numbers that are passed to the loop; those of outer loops follow."""

    def passed(number: int) -> str:
        return f"{WORD * number}(%{totals})"

    def load(side: int, term: int) -> str:
        return f"vmovups {term * term_bytes + side * BYTES}(%%rcx), %%zmm{term % 2 * sides + side}"

    def broadcast(place: int) -> list[str]:
        """``place`` counts all rows of the first term, then those of the next."""
        term, row = divmod(place, rows)
        before = [next_term] if term and not (adjacent or row) else []
        source = f"{term * ELEMENT if adjacent else 0}(%%{ROWS[row]},%%rax)"
        return [*before, f"vbroadcastss {source}, %%zmm{2 * sides + place % NUMBERS}"]

    def add(place: int, side: int) -> str:
        term, row = divmod(place, rows)
        factors = f"%%zmm{term % 2 * sides + side}, %%zmm{2 * sides + place % NUMBERS}"
        return f"vfmadd231ps {factors}, %{row * sides + side}"

    next_term = f"add ${ELEMENT}, %%rax" if adjacent else f"add {passed(lhs_step)}, %%rax"
    moved = ("rax", "rcx", "r11")[: 3 if ahead else 2]
    """Registers that an outer loop advances; their steps are passed in this order."""
    around = [lhs_step + 1 + level * (2 + len(moved)) for level in range(outer)]
    """The position of the first number of each outer loop: iterations, remaining iterations, steps."""
    into = (*ROWS[:rows], "rcx", *(AHEAD if ahead else ()))
    lines = [f"mov {passed(number)}, %%{name}" for number, name in zip(addresses, into)]
    lines += ["xor %%eax, %%eax", *(f"vpxord %{total}, %{total}, %{total}" for total in range(totals))]
    for level, first in enumerate(around):
        lines += [f"mov {passed(first)}, %%rdi", "test %%rdi, %%rdi", "je 9f"]
        lines += [f"mov %%rdi, {passed(first + 1)}", f"{5 + level}:"]
    lines += [f"mov {passed(iterations)}, %%rdi", "test %%rdi, %%rdi", "je 2f"]
    lines += [load(side, 0) for side in range(sides)]
    lines += [line for place in range(NUMBERS) for line in broadcast(place)]
    lines += [".p2align 5", "1:"]
    for place in range(UNROLLED * rows):
        term, row = divmod(place, rows)
        for side in range(sides):
            lines.append(add(place, side))
            if side * rows // sides == row:
                lines.append(load(side, term + 1))
        lines += broadcast(place + NUMBERS)
        lines += fetch if row == rows - 1 else []
    lines.append(f"add ${UNROLLED * term_bytes}, %%rcx")
    lines += [f"add ${UNROLLED * ELEMENT}, %%rax"] if adjacent else []
    lines += ["dec %%rdi", "jne 1b"]
    if not adjacent:  # numbers of terms to come have been loaded
        lines += [f"sub {passed(lhs_step)}, %%rax"] * ((NUMBERS - 1) // rows)
    lines += ["2:", f"mov {passed(rest)}, %%rdi", "test %%rdi, %%rdi", "je 4f", "3:"]
    lines += [load(side, 0) for side in range(sides)]
    for row in range(rows):
        lines += [*broadcast(row), *(add(row, side) for side in range(sides))]
    lines += fetch
    lines += [f"add ${term_bytes}, %%rcx", next_term, "dec %%rdi", "jne 3b", "4:"]
    for level, first in reversed(list(enumerate(around))):
        lines += [f"add {passed(first + 2 + number)}, %%{name}" for number, name in enumerate(moved)]
        lines += [f"decq {passed(first + 1)}", f"jne {5 + level}b"]
    return (*lines, "9:") if outer else tuple(lines)


def factors_of_several(block: Block) -> set[str]:
    """The operands of several fused multiply-adds of a block: those of a register tile."""
    uses = Counter(
        name for stmt in block.stmts if isinstance(stmt, Let) and stmt.op == "fma" for name in stmt.args[:2]
    )
    return {name for name, count in uses.items() if count > 1}
