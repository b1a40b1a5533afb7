"""The summation loop of a register tile as assembly, with loads scheduled ahead of their use.

    for k:  a0 = lhs[0, k] …  q0 = panel[k, 0] …  c00 += a0*q0 …      →  asm: loads of k + 1 between sums of k

Compilers load an operand right before its use, and rely on out-of-order execution. That hides less latency if
another thread shares the core, as on most rented machines (docs/benchmarks.md). The loop is unrolled by four
terms, with two sets of registers for the panel and the next two numbers of lhs in flight. Terms may be in
several loops (the lines of a window, and its elements); lhs may be contiguous along terms or along rows.
"""

from __future__ import annotations

from functools import lru_cache

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


def fits(rows: int, sides: int) -> bool:
    """Whether a tile of so many rows and adjacent vectors has a schedule."""
    return rows <= len(ROWS) and (rows + 2) * sides + NUMBERS <= REGISTERS


def clobbered(rows: int, sides: int, ahead: bool) -> str:
    """The registers that the loop changes, as `asm` lists them."""
    vectors = [f"zmm{number}" for number in range(2 * sides + NUMBERS)]
    scratch = ["rax", "rcx", "rdi", *ROWS[:rows], *(AHEAD if ahead else ()), *vectors]
    return ", ".join(f'"{name}"' for name in (*scratch, "cc", "memory"))


@lru_cache(maxsize=256)
def instructions(
    rows: int, sides: int, term_bytes: int, adjacent: bool, outer: int, ahead: bool
) -> tuple[str, ...]:
    """The assembly of a tile's sums, with ``outer`` outer loops; ``adjacent``: lhs is contiguous along terms.

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
