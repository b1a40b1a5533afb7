"""Runs of kernels as one C++ translation unit."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Sequence, Set
from itertools import accumulate
from typing import Protocol

from smelt.codegen.cpp.functions import Functions
from smelt.codegen.cpp.header import ONCE, header_text
from smelt.codegen.cpp.scope import Function
from smelt.codegen.cpp.types import CPP_TYPES
from smelt.codegen.index import Names, index_text
from smelt.codegen.runs import call_arguments, run_parameters
from smelt.nest.ir import InArena, Kernel, Run
from smelt.records import dataclass
from smelt.runtime.trampoline import MOST_ARGUMENTS

ERRORS: tuple[tuple[str, str], ...] = (
    ("IndexError", "index out of range in self"),
    ("RuntimeError", "ZeroDivisionError"),
    ("RuntimeError", "index out of bounds"),
)
"""The exception of each error number (from 1) of a run; the numbers are the same in every unit (``smelt.h``).
"""


CLOCKS = "smelt_clocks"
"""The array of a unit with clocks: the number of runs and nanoseconds for each call of a kernel."""

_WATCHING = """static void (*watcher)(i64) = 0;
extern "C" SMELT_ENTRY void smelt_watch(void (*by)(i64)) { watcher = by; }
#define SMELT_WATCHED(number) if (__builtin_expect(watcher != 0, 0)) watcher(number)"""
"""What a profiler sets, and asks each run to call (`smelt.runtime.watching`)."""

LEAST_PART = 12_000
"""Characters of kernels below which a separate file does not pay."""

LEAST_EARLY = LEAST_PART // 2
"""The same limit while Python is still compiling: idle processors can parse the header again."""

MOST_EARLY = 3 * LEAST_PART
"""Limit on the characters of a file that is compiled early, so that no compiler finishes late."""

PER_FUNCTION = 750
"""The fixed cost of each function for a compiler, in characters."""

CALLS_ARE_FASTER = 8
"""Ratio of compile times of kernels to those of declarations and calls of equal length, which are not
optimized (``SMELT_PLAIN``).
"""

TILES_ARE_FASTER = 5
"""The same ratio for register tiles and rows that kernels call: one line for each vector, and hardly a loop.
"""

_BUFFERS = {dtype: f"{text}_buffer" for dtype, text in CPP_TYPES.items()}


@dataclass(frozen=True, slots=True)
class CppUnit:
    """A complete translation unit, and the exceptions of each run's error numbers (from 1).

    ``parts``: the same in one or several files that can be compiled in parallel, without the parts that were
    compiled early. Empty where that does not pay. ``calls``: the name of the function of each call of a
    kernel, in order.
    """

    text: str
    errors: dict[str, tuple[tuple[str, str], ...]]
    parts: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()


class Compilers(Protocol):
    """The compiler of parts of a unit, before the rest is printed."""

    @property
    def header(self) -> str | None:
        """A line that replaces the header in a part, and the definitions that a program contains once; None:
        the text of both.
        """

    def free(self) -> bool:
        """Whether another compilation can be started now."""

    def start(self, text: str) -> None:
        """Starts the compilation of a part."""


class UnitPrinter:
    """A unit that is printed while its kernels are made, and compiled: ``early`` takes parts of it."""

    def __init__(self, early: Compilers | None = None, watched: bool = True) -> None:
        """``watched``: a profiler can ask runs to call it."""
        self.kernels = Functions()
        self.early, self.watched = early, watched
        self.begun: set[str] = set()
        self.waiting: list[Function] = []

    def add(self, kernel: Kernel) -> None:
        """Adds a kernel that runs will call (others are compiled in vain).

        Raises:
            SmeltError: SM0801-SM0807, the nest breaks the rules of `smelt.nest.ir`.
        """
        functions = self.kernels.add(kernel)
        if self.early is not None:
            known = self.begun.union(each.name for each in self.waiting)
            self.waiting += [each for each in functions if each.name not in known]
        reach = list(accumulate(len(each.body) for each in self.waiting))
        if reach and reach[-1] >= LEAST_EARLY and self.early is not None and self.early.free():
            count = bisect(reach, MOST_EARLY) or 1
            taken, self.waiting = self.waiting[:count], self.waiting[count:]
            self.early.start(_part(taken, self.early.header))
            self.begun.update(each.name for each in taken)

    def finish(self, runs: Sequence[Run], compilers: int = 1, clocks: bool = False) -> CppUnit:
        """The unit with one entry point per run; see `print_unit`."""
        for run in runs:
            for call in run.calls:
                self.kernels.add(call.kernel)
        errors, entries, calls = {}, [], list[str]()
        functions: dict[str, Function] = {}
        for run in runs:
            for call in run.calls:
                function = self.kernels[call.kernel][0]
                functions.update((each.name, each) for each in (*function.calls, function))
            text, checked = _print_run(run, self.kernels, calls, clocks, self.watched)
            entries.append(text)
            errors[run.name] = ERRORS if checked else ()
        if entries and self.watched:
            entries.insert(0, _WATCHING)
        extra = {"clock"} if clocks else set[str]()
        if clocks:
            array = f"i64 {CLOCKS}[{2 * max(len(calls), 1)}] = {{}};"
            entries.insert(0, f'extern "C" {{ __attribute__((visibility("default"))) {array} }}')
        every = list(functions.values())
        whole = _file(every, [*(function.text("static ") for function in every), *entries], extra)
        return CppUnit(whole, errors, self._parts(every, entries, extra, compilers), tuple(calls))

    def _parts(
        self, functions: Sequence[Function], entries: Sequence[str], extra: Set[str], compilers: int
    ) -> tuple[str, ...]:
        """Files of about equal compile time; the first has the entry points and declares all kernels."""
        rest = [function for function in functions if function.name not in self.begun]
        count = min(compilers, sum(len(function.body) for function in rest) // LEAST_PART)
        header = None if self.early is None else self.early.header
        if count < 2 and not self.begun and header is None:
            return ()
        files: list[list[Function]] = [[] for _ in range(max(count, 1))]
        declared = "\n".join(f"{function.head};" for function in functions)
        sizes = [0] * len(files)
        sizes[-1] = sum(map(len, [declared, *entries])) // CALLS_ARE_FASTER
        called = {each.name for function in functions for each in function.calls}
        works = ((_work(each, each.name in called), each) for each in rest)
        for work, function in sorted(works, key=lambda pair: -pair[0]):
            shortest = sizes.index(min(sizes))
            files[shortest].append(function)
            sizes[shortest] += work
        kernels = [function.text() for function in files[-1]]
        if header is None:
            extra = {*extra, *ONCE}  # whatever other files need of it is here
        first = _file(files[-1], [declared, *kernels, *entries], extra, header)
        return first, *(_part(file, header) for file in files[:-1])


def print_unit(runs: Sequence[Run], compilers: int = 1, clocks: bool = False) -> CppUnit:
    """The translation unit with one entry point per run. It includes nothing: the header is part of the text.

    ``compilers``: the number of parallel compilers. ``clocks``: for each call of a kernel, in order, the unit
    counts calls and nanoseconds in an array of 64-bit integers, `CLOCKS`.

    Raises:
        SmeltError: SM0801-SM0807, a nest breaks the rules of `smelt.nest.ir`.
    """
    return UnitPrinter().finish(runs, compilers, clocks)


def _work(function: Function, called: bool) -> int:
    """The compile time of a function, in characters of kernels; ``called``: kernels call it. Assembly costs
    nothing.
    """
    assembly = sum(map(len, re.findall(r'^ *"[^"]*"$', function.body, re.MULTILINE)))
    written = len(function.body) - assembly
    if not function.computes:
        return written // CALLS_ARE_FASTER
    return PER_FUNCTION + written // (TILES_ARE_FASTER if called else 1)


def _part(functions: Sequence[Function], header: str | None) -> str:
    """A file of functions; it declares the functions that they call. ``header``: see `Compilers`."""
    called = {f"{each.head};": None for function in functions for each in function.calls}
    if header is None:
        header = header_text(frozenset().union(*(function.needs for function in functions)), once=False)
    return _file(functions, [*called, *(function.text() for function in functions)], header=header)


def _file(
    functions: Iterable[Function],
    pieces: Sequence[str],
    extra: Set[str] = frozenset(),
    header: str | None = None,
) -> str:
    """A file of these functions, and entry points that need ``extra`` of the header."""
    if header is None:
        header = header_text(frozenset(extra).union(*(function.needs for function in functions)))
    body = "\n\n".join(pieces)
    return f"{header}\nnamespace smelt {{\n\n{body}\n\n}}  // namespace smelt\n"


def _print_run(
    run: Run, kernels: Functions, calls: list[str], clocks: bool, watched: bool
) -> tuple[str, bool]:
    parameters, names = run_parameters(run, "i64")
    sizes = Names(names)
    places = dict.fromkeys(arg.offset for call in run.calls for arg in call.args if isinstance(arg, InArena))
    offsets = {
        offset: str(offset) if offset.is_Integer else f"at{number}" for number, offset in enumerate(places)
    }
    lines: list[str] = []
    if len(parameters) > MOST_ARGUMENTS:
        lines = [
            f"  {kind} {name} = ({kind})values[{place}];"
            for place, (kind, name) in enumerate(each.rsplit(" ", 1) for each in parameters)
        ]
        parameters = ["const i64* values"]
    known: dict[str, str] = {}
    divided_by: set[str] = set()

    def named(text: str) -> str:
        """Shares the common parts of arena offsets, so that compilers see them once. A divisor is declared
        before its first quotient, after its own parts.
        """
        if text not in known:
            known[text] = f"piece{len(known)}"
            new = {by: name for by, name in sizes.dividers.items() if by not in divided_by}
            lines.extend(f"  const divider {name}({by});" for by, name in new.items())
            divided_by.update(new)
            lines.append(f"  const i64 {known[text]} = {text};")
        return known[text]

    sizes.named = named
    for offset, name in offsets.items():
        if not offset.is_Integer:
            place = index_text(offset, sizes)
            lines.append(f"  const i64 {name} = {place};")
    any_checked = False
    for call in run.calls:
        function, numbers = kernels[call.kernel]
        number = len(calls)
        calls.append(function.name)
        given = call_arguments(call, offsets.__getitem__, _BUFFERS, sizes)
        args = ", ".join([*given, *numbers])
        if watched:
            lines.append(f"  SMELT_WATCHED({number});")
        if clocks:
            lines.append(f"  clock_reading clock{number}({CLOCKS} + {2 * number});")
        if function.checked:
            any_checked = True
            lines.append(f"  if (i64 error = {function.name}({args})) return error;")
        else:
            lines.append(f"  {function.name}({args});")
        if clocks:
            lines.append(f"  clock{number}.stop();")
    signature = f'extern "C" SMELT_ENTRY i64 {run.name}({", ".join(parameters)})'
    lines += ["  SMELT_WATCHED(-1);"] if run.calls and watched else []
    return "\n".join([f"{signature} {{", *lines, "  return 0;", "}"]), any_checked
