"""Runs of kernels as one C++ translation unit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from smelt.codegen.cpp.header import header_text
from smelt.codegen.cpp.index import index_text
from smelt.codegen.cpp.kernel import KernelText, print_kernel
from smelt.codegen.cpp.types import CPP_TYPES
from smelt.nest.ir import Call, InArena, Kernel, Run

ERRORS: tuple[tuple[str, str], ...] = (
    ("IndexError", "index out of range in self"),
    ("RuntimeError", "ZeroDivisionError"),
    ("RuntimeError", "index out of bounds"),
)
"""What each error number (from 1) of a run means; the numbers are the same in every unit (``smelt.h``)."""


CLOCKS = "smelt_clocks"
"""The array of a unit with clocks: for each call of a kernel how often it ran, and nanoseconds."""

LEAST_PART = 12_000
"""Characters of kernels (some 0.15 s of the compiler's) below which a file of their own does not pay."""


@dataclass(frozen=True, slots=True)
class CppUnit:
    """A complete translation unit, and for each run what its error numbers (from 1) mean.

    ``parts``: the same in several units, which compilers may take side by side; nothing where that does not
    pay. ``calls``: the name of the function that each call of a kernel calls, in order.
    """

    text: str
    errors: dict[str, tuple[tuple[str, str], ...]]
    parts: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Function:
    """A printed kernel."""

    comments: str
    head: str
    body: str

    def text(self, linkage: str = "") -> str:
        return f"{self.comments}{linkage}{self.head} {{\n{self.body}\n}}"


@dataclass(slots=True)
class _Unit:
    """The unit while it is printed."""

    functions: list[_Function] = field(default_factory=list)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    seen: dict[object, tuple[str, KernelText]] = field(default_factory=dict)
    needs: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    def kernel(self, kernel: Kernel) -> tuple[str, KernelText]:
        """The C++ name of a kernel; equal ones are printed once."""
        key = (kernel.params, kernel.sizes, kernel.body)
        if key in self.seen:
            return self.seen[key]
        printed = print_kernel(kernel)
        text = (printed.signature, printed.body)
        if text not in self.names:
            name = self.names[text] = self.fresh(kernel.name)
            result = "i64" if printed.checked else "void"
            comments = "".join(f"// {_one_line(origin)}\n" for origin in dict.fromkeys(kernel.origins))
            self.functions.append(_Function(comments, f"{result} {name}({printed.signature})", printed.body))
            self.needs |= printed.needs
        self.seen[key] = self.names[text], printed
        return self.seen[key]

    def fresh(self, wanted: str) -> str:
        base = "kernel_" + re.sub(r"\W+", "_", wanted).strip("_")
        taken = set(self.names.values())
        name, number = base, 1
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        return name


def print_unit(runs: Sequence[Run], compilers: int = 1, clocks: bool = False) -> CppUnit:
    """The translation unit with one entry point per run. It includes nothing: the header is part of the text.

    ``compilers``: how many may work side by side. ``clocks``: for each call of a kernel, in order, the unit
    counts calls and nanoseconds in an array of 64-bit integers, `CLOCKS`.

    Raises:
        SmeltError: SM0801-SM0807, a nest breaks the rules of `smelt.nest.ir`.
    """
    unit = _Unit()
    errors, entries = {}, []
    for run in runs:
        text, checked = _print_run(run, unit, clocks)
        entries.append(text)
        errors[run.name] = ERRORS if checked else ()
    header = header_text(frozenset(unit.needs))
    if clocks:
        array = f"i64 {CLOCKS}[{2 * max(len(unit.calls), 1)}] = {{}};"
        entries.insert(0, f'extern "C" {{ __attribute__((visibility("default"))) {array} }}')
    functions = [function.text("static ") for function in unit.functions]
    parts = _parts(header, unit.functions, entries, compilers)
    return CppUnit(_file(header, [*functions, *entries]), errors, parts, tuple(unit.calls))


def _file(header: str, pieces: Sequence[str]) -> str:
    body = "\n\n".join(pieces)
    return f"{header}\nnamespace smelt {{\n\n{body}\n\n}}  // namespace smelt\n"


def _parts(
    header: str, functions: Sequence[_Function], entries: Sequence[str], compilers: int
) -> tuple[str, ...]:
    """Files of about equally long kernels, which the file of the entry points declares."""
    count = min(compilers, sum(len(function.body) for function in functions) // LEAST_PART)
    if count < 2:
        return ()
    files: list[list[_Function]] = [[] for _ in range(count)]
    sizes = [0] * count
    for function in sorted(functions, key=lambda function: -len(function.body)):
        shortest = sizes.index(min(sizes))
        files[shortest].append(function)
        sizes[shortest] += len(function.body)
    declared = "\n".join(f"{function.head};" for function in functions)
    kernels = [[function.text() for function in file] for file in files]
    return (
        _file(header, [declared, *kernels[-1], *entries]),
        *(_file(header, texts) for texts in kernels[:-1]),
    )


def _print_run(run: Run, unit: _Unit, clocks: bool) -> tuple[str, bool]:
    sizes = {symbol: f"s{position}" for position, symbol in enumerate(run.sizes)}
    parameters = [
        "char* arena",
        *(f"void* p{k}" for k in range(len(run.arguments))),
        *(f"i64 {s}" for s in sizes.values()),
    ]
    lines, any_checked = [], False
    for call in run.calls:
        name, printed = unit.kernel(call.kernel)
        number = len(unit.calls)
        unit.calls.append(name)
        args = ", ".join(_arguments(call, sizes))
        if clocks:
            lines.append(f"  clock_reading clock{number}({CLOCKS} + {2 * number});")
            unit.needs.add("clock")
        if printed.checked:
            any_checked = True
            lines.append(f"  if (i64 error = {name}({args})) return error;")
        else:
            lines.append(f"  {name}({args});")
        if clocks:
            lines.append(f"  clock{number}.stop();")
    signature = f'extern "C" __attribute__((visibility("default"))) i64 {run.name}({", ".join(parameters)})'
    return "\n".join([f"{signature} {{", *lines, "  return 0;", "}"]), any_checked


def _arguments(call: Call, sizes: dict) -> Iterable[str]:
    for param, place in zip(call.kernel.params, call.args, strict=True):
        where = (
            f"(arena + {index_text(place.offset, sizes)})"
            if isinstance(place, InArena)
            else f"p{place.position}"
        )
        yield f"({CPP_TYPES[param.dtype]}_buffer*){where}"
    yield from (sizes[symbol] for symbol in call.kernel.sizes)


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip("\\")
