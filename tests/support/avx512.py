"""Runs the register tiles of AVX-512 on any machine: their assembly is interpreted, the rest compiled.

    i64 given[] = {…}; asm volatile(…)    →    i64 given[] = {…}; interpret(…), which calls `run`

The loop that the assembly replaces runs before it and records what it reads. The assembly has to find
the same sums to the last bit, to read the same elements and no others, and to prefetch the same places.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from smelt.codegen.cpp import print_unit, register_tiles
from smelt.codegen.cpp.assembly import LANES, WORD
from smelt.nest.ir import Run
from tests.codegen.support import NATIVE, Library, compile_unit

Exact = numpy.longdouble
"""Holds a product of two float32 exactly, and a sum so that rounding it again does not matter."""
MOST_READS = 1 << 18
HOOK = f"""
static i64 reads[{MOST_READS}][2], reads_count = 0;
static const f32_buffer* noted(const f32_buffer* place, i64 bytes) {{
  if (reads_count == {MOST_READS}) __builtin_trap();
  reads[reads_count][0] = (i64)place;
  reads[reads_count][1] = bytes;
  reads_count += 1;
  return place;
}}
template <int N> static auto noted_load(const f32_buffer* place) {{ return load<N>(noted(place, N * 4)); }}
// Vectors of 16 lanes are two halves here, which the header's transposes do not expect.
template <class T, class B, int N> static void transpose_into(B* p, i64 step, vec<T, N, true> (&rows)[N]) {{
  for (i64 row = 0; row < N; row += 1) {{
    T lanes[N];
    __builtin_memcpy(lanes, &rows[row], sizeof(lanes));
    for (i64 lane = 0; lane < N; lane += 1) p[lane*step + row] = lanes[lane];
  }}
}}
template <class T, class B, int N> static void store_transposed(B* p, i64 step, vec<T, N, true> (&rows)[N]) {{
  transpose_into(p, step, rows);
}}
extern "C" {{
__attribute__((visibility("default"))) void (*interpret)(i64, i64*, i64, f32*, i64*, i64) = 0;
}}
"""
_CALL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)
_OPERAND = re.compile(r"\$(-?\d+)|%(%?\w+)|(-?\d*)\(%(%?\w+)(?:,%(%?\w+))?\)")


@dataclass(frozen=True)
class Place:
    """An operand in memory: registers that are added, and a distance in bytes."""

    registers: tuple[str, ...]
    distance: int


Operand = int | str | Place
"""A number (of a jump: the position to continue at), the name of a register, or a place in memory."""


@dataclass(frozen=True)
class Program:
    """An ``asm`` statement. Registers are named ``%rax``, those that the compiler chooses by their number."""

    steps: tuple[tuple[str, tuple[Operand, ...]], ...]
    totals: int


def parse(text: Sequence[str]) -> Program:
    """The lines of an ``asm`` statement; registers that it does not say to change must stay as they are."""
    lines = [re.fullmatch(r'  "(.*)\\n"', line)[1] for line in text[:-1]]  # type: ignore[index]
    outputs, _, clobbered = re.split(r" : ", text[-1].removeprefix("  : "))
    totals = outputs.count('"=&v"')
    changed = {f"%{name}" for name in re.findall(r'"(\w+)"', clobbered)} | {str(k) for k in range(totals)}
    labels = [(number, line[:-1]) for number, line in enumerate(lines) if line.endswith(":")]
    steps = []
    for number, line in enumerate(lines):
        op, _, rest = line.partition(" ")
        if op.endswith(":") or op == ".p2align":
            steps.append(("", ()))
            continue
        if op in ("je", "jne"):
            places = [place for place, name in labels if name == rest[:-1]]
            target = min(p for p in places if p > number) if rest[-1] == "f" else max(
                p for p in places if p < number
            )  # fmt: skip
            steps.append((op, (target,)))
            continue
        operands = tuple(map(_operand, re.findall(r"[^,(]*\([^)]*\)|[^, ]+", rest)))
        written = operands[-1]
        assert op in ("test", "prefetcht0") or isinstance(written, Place) or written in changed, line
        steps.append((op, operands))
    return Program(tuple(steps), totals)


def _operand(text: str) -> Operand:
    found = _OPERAND.fullmatch(text.strip())
    assert found is not None, text
    number, register, distance, *registers = found.groups()
    if number is not None:
        return int(number)
    if register is not None:
        return "%rax" if register == "%eax" else register
    return Place(tuple(name for name in registers if name), int(distance or 0))


@dataclass
class Machine:
    """The state of a run. ``given``: the numbers that are passed, at address 0 of operand ``totals``;
    ``readable``: the addresses and sizes of float32 vectors that may be read.
    """

    given: Any
    readable: set[tuple[int, int]]
    numbers: dict[str, int]
    vectors: dict[str, Any] = field(default_factory=dict)
    read: set[tuple[int, int]] = field(default_factory=set)
    ahead: list[int] = field(default_factory=list)
    zero: bool = False

    def address(self, place: Place) -> int:
        return sum(self.numbers[name] for name in place.registers) + place.distance

    def word(self, place: Place) -> int:
        """The position of a number of ``given``."""
        position, rest = divmod(self.address(place), WORD)
        assert rest == 0 and 0 <= position < len(self.given), place
        return position

    def number(self, operand: Operand) -> int:
        if isinstance(operand, Place):
            return int(self.given[self.word(operand)])
        return operand if isinstance(operand, int) else self.numbers[operand]

    def floats(self, place: Place, count: int) -> Any:
        address = self.address(place)
        assert (address, count * 4) in self.readable, f"{place} is no element of an operand"
        self.read.add((address, count * 4))
        return numpy.array((ctypes.c_float * count).from_address(address), Exact)

    def step(self, op: str, operands: Sequence[Any]) -> int | None:
        """Runs an instruction; the position of the next one, if it is not the following."""
        *sources, into = operands or (None,)
        if op in ("je", "jne"):
            return into if self.zero is (op == "je") else None
        if op == "vfmadd231ps":
            one, other = (self.vectors[name] for name in sources)
            self.vectors[into] = (one * other + self.vectors[into]).astype(numpy.float32).astype(Exact)
        elif op == "vmovups":
            self.vectors[into] = self.floats(sources[0], LANES)
        elif op == "vbroadcastss":
            self.vectors[into] = self.floats(sources[0], 1).repeat(LANES)
        elif op == "vpxord" and {*sources} == {into}:
            self.vectors[into] = numpy.zeros(LANES, Exact)
        elif op == "prefetcht0":
            self.ahead.append(self.address(into))
        elif op == "test" and sources == [into]:
            self.zero = self.numbers[into] == 0
        elif op == "xor" and sources == [into]:
            self.numbers[into], self.zero = 0, True
        elif op in ("mov", "add", "sub", "dec", "decq"):
            by = self.number(sources[0]) if sources else 1
            before = 0 if op == "mov" else self.number(into)
            value = before + by if op in ("mov", "add") else before - by
            self.zero = self.zero if op == "mov" else value == 0
            if isinstance(into, Place):
                self.given[self.word(into)] = value
            else:
                self.numbers[into] = value
        else:
            assert op == "", f"there is no {op} {operands} here"
        return None


def run(program: Program, given: Any, wanted: Any, reads: Any) -> Any:
    """The totals, float32[totals, lanes]; ``wanted``: the loop's. ``reads``: the addresses and bytes that it
    reads, 0 bytes for prefetches.
    """
    readable = {(int(place), int(size)) for place, size in reads if size}
    machine = Machine(given, readable, {str(program.totals): 0})
    position = 0
    while position < len(program.steps):
        target = machine.step(*program.steps[position])
        position = position + 1 if target is None else target
    found = numpy.stack([machine.vectors[str(k)] for k in range(program.totals)]).astype(numpy.float32)
    assert machine.read == readable, "elements that are not read"
    assert machine.ahead == [int(place) for place, size in reads if not size]
    numpy.testing.assert_array_equal(found, wanted)
    return found


class Interpreted(Library):
    """A unit for AVX-512. ``ran``: how often each of its assembly programs has been run."""

    def __init__(self, folder: Path, runs: Sequence[Run]) -> None:
        self.programs: list[Program] = []
        self.failed: list[BaseException] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                register_tiles._Tile, "assembly", _calling(register_tiles._Tile.assembly, self.programs)
            )
            self.unit = print_unit(runs)
        self.ran: list[int] = [0] * len(self.programs)
        source, target = folder / "unit.cpp", folder / "unit.so"
        header, opening, functions = self.unit.text.rpartition("\nnamespace smelt {\n")
        source.write_text(f"{header}{opening}{HOOK}{functions}")
        compile_unit(source, target, [*NATIVE, "-O0", "-fno-openmp"])
        self.handle = ctypes.CDLL(str(target))
        self.callback = _CALL(self.interpret)
        ctypes.c_void_p.in_dll(self.handle, "interpret").value = ctypes.cast(
            self.callback, ctypes.c_void_p
        ).value

    def interpret(self, number: int, given: int, length: int, totals: int, reads: int, count: int) -> None:
        program = self.programs[number]
        values, memory = (
            _array(ctypes.c_int64, given, length),
            _array(ctypes.c_float, totals, program.totals, LANES),
        )
        try:
            memory[:] = run(program, values, memory, _array(ctypes.c_int64, reads, count, 2))
        except BaseException as error:  # nothing passes through C
            self.failed.append(error)
        self.ran[number] += 1

    def __call__(self, name: str, *args: torch.Tensor | int, arena: torch.Tensor | int = 0) -> int:
        result = super().__call__(name, *args, arena=arena)
        if self.failed:
            raise self.failed[0]
        return result


def _array(kind: Any, address: int, *shape: int) -> Any:
    """The memory at an address."""
    return numpy.frombuffer((kind * math.prod(shape)).from_address(address), kind).reshape(shape)


def _calling(printed: Any, programs: list[Program]) -> Any:
    """`_Tile.assembly`, with the loop before it and a call in place of the ``asm`` statement."""

    def assembly(tile: Any, sides: int, totals: Sequence[str]) -> Iterator[str]:
        yield "reads_count = 0;"
        for line in tile.loop([totals[k : k + sides] for k in range(0, len(totals), sides)], 0):
            line = re.sub(r"__builtin_prefetch\((.*)\);", r"noted(\1, 0);", line)
            line = re.sub(r" = \*\((.*)\);", r" = *noted(\1, 4);", line)
            yield line.replace("load<", "noted_load<")
        lines = list(printed(tile, sides, totals))
        first = lines.index("asm volatile(")
        yield from lines[:first]
        yield f"f32 totals[{LANES * len(totals)}];"
        for number, name in enumerate(totals):
            yield f"store(totals + {LANES * number}, {name});"
        yield (f"interpret({len(programs)}, given, sizeof(given)/{WORD}, totals, (i64*)reads, reads_count);")
        for number, name in enumerate(totals):
            yield f"{name} = load<{LANES}>(totals + {LANES * number});"
        programs.append(parse(lines[first + 1 :]))

    return assembly
