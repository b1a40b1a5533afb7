"""The C++ of register tiles (`smelt.nest.intrinsics.register_tile`): sums of a product in registers.

With AVX-512 the loop over terms is assembly, with loads ahead of their use (`smelt.codegen.cpp.assembly`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smelt.codegen.cpp.assembly import ELEMENT, LANES, NUMBERS, UNROLLED, clobbered, fits, instructions


def source_of(form: Sequence[str | int]) -> str:
    """The statements of an intrinsic's function, over its operands."""
    name, *numbers = form
    if name == "transpose":
        return f"  copy_transposed<{numbers[0]}>(Y, Y_0, X, X_0);"
    assert name == "register_tile", name
    rows, width, lanes, step, adds, transposed, ahead = map(int, numbers)
    lines = _tile(rows, width, lanes, step, bool(adds), bool(transposed), ahead)
    return "\n".join(f"  {line}" for line in lines)


def _tile(
    rows: int, width: int, lanes: int, step: int, adds: bool, transposed: bool, ahead: int
) -> Iterator[str]:
    sides, rest = -(-width // lanes), width % lanes
    sums = [[f"c{row}_{side}" for side in range(sides)] for row in range(rows)]
    vector = f"values<f32, {lanes}>"
    for each in sums:
        yield f"{vector} {', '.join(f'{name} = splat<{lanes}>(0.0f)' for name in each)};"
    if rest:
        yield f"const auto last = first<{lanes}>({rest});"

    def active(side: int) -> str:
        return "last, " if rest and side == sides - 1 else ""

    if lanes == LANES and not rest and fits(rows, sides):
        yield from _assembly(rows, sides, step, [name for each in sums for name in each], transposed, ahead)
    else:
        yield "for (i64 k = 0; k < n; k += 1) {"
        if ahead:
            yield f"  __builtin_prefetch(N + k*{ahead});"
        for side in range(sides):
            yield f"  const {vector} p{side} = load<{lanes}>({active(side)}P + (k*{step} + {side * lanes}));"
        for row, each in enumerate(sums):
            place = f"k*A_0 + {row}" if transposed else f"k + {row}*A_0"
            yield f"  const {vector} a{row} = splat<{lanes}>(f32(A[{place}]));"
            for side, name in enumerate(each):
                yield f"  {name} = fma(a{row}, p{side}, {name});"
        yield "}"
    for row, each in enumerate(sums):
        for side, name in enumerate(each):
            place = f"C + ({row}*C_0 + {side * lanes})"
            value = f"add(load<{lanes}>({active(side)}{place}), {name})" if adds else name
            yield f"store({active(side)}{place}, {value});"


def _assembly(
    rows: int, sides: int, step: int, totals: Sequence[str], transposed: bool, ahead: int
) -> Iterator[str]:
    """The sums over all terms."""
    overlap = -(-NUMBERS // rows)  # an iteration loads what so many terms behind it use
    yield f"const i64 times = (n - {overlap})/{UNROLLED};"
    term = f"A_0*{ELEMENT}" if transposed else f"{ELEMENT}"
    addresses = [f"(i64)(A + {row}{'' if transposed else '*A_0'})" for row in range(rows)]
    addresses += ["(i64)P", *(["(i64)N", f"{ahead * ELEMENT}"] if ahead else [])]
    yield f"i64 given[] = {{times, n - times*{UNROLLED}, {', '.join(addresses)}, {term}}};"
    yield "asm volatile("
    lines = instructions(rows, sides, step * ELEMENT, not transposed, 0, bool(ahead))
    yield from (f'  "{line}\\n"' for line in lines)
    outputs = ", ".join(f'"=&v"({name}.v)' for name in totals)
    yield f'  : {outputs} : "r"(given) : {clobbered(rows, sides, bool(ahead))});'
