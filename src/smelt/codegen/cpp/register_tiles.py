"""The C++ of intrinsics' forms (`smelt.nest.intrinsics`): register tiles, transposes, fills.

With AVX-512 the loops over terms are assembly, with loads ahead of their use (`smelt.codegen.cpp.assembly`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smelt.codegen.cpp.assembly import (
    ELEMENT,
    LANES,
    MOST_OUTER,
    NUMBERS,
    UNROLLED,
    clobbered,
    fits,
    instructions,
)
from smelt.codegen.cpp.types import literal
from smelt.nest.intrinsics import RESULTS
from smelt.nest.ir import Operand, Text
from smelt.records import dataclass


def source_of(text: Text, streamed: bool, parallel: bool) -> str:
    """The statements of an intrinsic's function, over its operands; ``streamed``: the result is stored past
    the caches; ``parallel``: threads run it already.
    """
    name, *numbers = text.form
    if name == "fill":
        ((operand,), value) = text.operands, text.form[1]
        assert not isinstance(value, str)
        extent = "rows, Y_0" if len(operand.loops) == 2 else "1, 0"
        function = "fill_rows" if parallel else "fill_all_rows"
        return f"  {function}(Y, {extent}, length, {literal(value, operand.dtype)});"
    if name == "transpose":
        return f"  copy_transposed<{numbers[0]}>(Y, Y_0, X, X_0);"
    assert name == "register_tile", name
    rows, width, lanes, result, ahead = numbers
    operands = {operand.name: operand for operand in text.operands}
    *_, column = operands["C"].loops
    loops = [loop for loop in operands["P"].loops if loop != column]
    names = {number: name for name, number in text.counts}
    counts = [names[loop] for loop in loops]
    tile = _Tile(
        int(rows), int(width), int(lanes), str(result), int(ahead), operands, loops, counts, streamed
    )
    return "\n".join(f"  {line}" for line in tile.lines())


def _stride(operand: Operand, loop: int) -> str:
    """The stride of an operand with a loop."""
    dim = operand.loops.index(loop)
    known = operand.strides[dim]
    return f"{operand.name}_{dim}" if known is None else str(known)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A register tile. ``loops``: the numbers of the loops over terms, outermost first; ``counts``: the names
    of their numbers of iterations. ``ahead``: the step of the prefetch, if it has no stride of its own.
    """

    rows: int
    width: int
    lanes: int
    result: str
    ahead: int
    operands: dict[str, Operand]
    loops: Sequence[int]
    counts: Sequence[str]
    streamed: bool

    def lines(self) -> Iterator[str]:
        """The statements."""
        lanes, sides = self.lanes, -(-self.width // self.lanes)
        rest, vector = self.width % lanes, f"values<f32, {lanes}>"
        sums = [[f"c{row}_{side}" for side in range(sides)] for row in range(self.rows)]
        for each in sums:
            yield f"{vector} {', '.join(f'{name} = splat<{lanes}>(0.0f)' for name in each)};"
        if rest:
            yield f"const auto last = first<{lanes}>({rest});"
        if lanes == LANES and not rest and fits(self.rows, sides) and len(self.loops) <= MOST_OUTER + 1:
            yield from self.assembly(sides, [name for each in sums for name in each])
        else:
            yield from self.loop(sums, rest)
        op, used = RESULTS[self.result]
        for row, each in enumerate(sums):
            for side, name in enumerate(each):
                place = self.at("C", row, f"{side * lanes}")
                active = "last, " if rest and side == sides - 1 else ""
                values = {"sum": name, "before": f"load<{lanes}>({active}{place})"}
                if "factor" in used:
                    values["factor"] = f"splat<{lanes}>(f32(*({self.at('F', row)})))"
                value = f"{op}({', '.join(values[each] for each in used)})" if op else name
                stores = "stream(" if self.streamed and not active else f"store({active}"
                yield f"{stores}{place}, {value});"

    def at(self, name: str, row: int, *terms: str) -> str:
        """The address of a row of an operand, plus ``terms``."""
        operand = self.operands[name]
        if operand.each is not None:
            return " + ".join([f"{name}{row}", *terms])
        down = next(loop for loop in operand.loops if loop not in self.loops)
        step = _stride(operand, down)
        return " + ".join([name, f"{row}*{step}" if step != "1" else str(row), *terms])

    def moved(self, name: str) -> list[str]:
        """The distances of an operand that the loops over terms make."""
        operand = self.operands[name]
        if name == "N" and self.ahead:
            return [f"k0*{self.ahead}"]
        return [f"k{level}*{_stride(operand, loop)}" for level, loop in enumerate(self.loops)]

    def loop(self, sums: Sequence[Sequence[str]], rest: int) -> Iterator[str]:
        """The sums over all terms, in C++."""
        lanes, sides = self.lanes, len(sums[0])
        for level, count in enumerate(self.counts):
            goes_on = f"k{level} < {count}"
            goes_on = f"SMELT_OFTEN({goes_on})" if count == self.counts[-1] else goes_on
            yield f"for (i64 k{level} = 0; {goes_on}; k{level} += 1) {{"
        if "N" in self.operands:
            yield f"  __builtin_prefetch({' + '.join(['N', *self.moved('N')])});"
        for side in range(sides):
            active = "last, " if rest and side == sides - 1 else ""
            place = " + ".join(["P", *self.moved("P"), f"{side * lanes}"])
            load = f"load<{lanes}>({active}{place})"
            yield f"  const auto p{side} = {f'held({load})' if self.rows > 1 else load};"
        for row, each in enumerate(sums):
            yield f"  const f32 a{row} = *({self.at('A', row, *self.moved('A'))});"
            for side, name in enumerate(each):
                yield f"  {name} = fma(splat<{lanes}>(a{row}), p{side}, {name});"
        yield "}" * len(self.counts)

    def assembly(self, sides: int, totals: Sequence[str]) -> Iterator[str]:
        """The sums over all terms, with AVX-512."""
        *outer, terms = self.counts
        overlap = -(-NUMBERS // self.rows)  # an iteration loads what so many terms behind it use
        for name in self.counts:
            yield f"{name} = max_of({name}, i64(0));"
        yield f"const i64 times = ({terms} - {overlap})/{UNROLLED};"
        ahead = "N" in self.operands
        moving = ["A", "P", *(["N"] if ahead else [])]

        def step(name: str, level: int) -> str:
            """The step of an operand in bytes, from the end of the inner loops' reads."""
            if name == "N" and self.ahead:
                return f"{self.ahead * ELEMENT}"
            steps = [f"{_stride(self.operands[name], loop)}*{ELEMENT}" for loop in self.loops]
            inside = f" - {self.counts[level + 1]}*{steps[level + 1]}" if level + 1 < len(steps) else ""
            return steps[level] + inside

        last = len(outer)
        numbers = ["times", f"{terms} - times*{UNROLLED}"]
        numbers += [f"(i64)({self.at('A', row)})" for row in range(self.rows)]
        numbers += ["(i64)P", *(["(i64)N", step("N", last)] if ahead else []), step("A", last)]
        for level, count in enumerate(outer):
            numbers += [count, "0", *(step(name, level) for name in moving)]
        yield f"i64 given[] = {{{', '.join(numbers)}}};"
        term_bytes = int(_stride(self.operands["P"], self.loops[-1])) * ELEMENT
        adjacent = _stride(self.operands["A"], self.loops[-1]) == "1"
        yield "asm volatile("
        for line in instructions(self.rows, sides, term_bytes, adjacent, last, ahead):
            yield f'  "{line}\\n"'
        outputs = ", ".join(f'"=&v"({name}.v)' for name in totals)
        yield f'  : {outputs} : "r"(given) : {clobbered(self.rows, sides, ahead)});'
