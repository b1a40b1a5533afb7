"""Kernels as C++ functions: equal ones share one, and those that differ in sizes share one with sizes as
arguments.

    for (i64 d0 = 0; d0 < 64; d0 += 1)  …  in0[d0*256]         n0 = 64,  n1 = 256
    for (i64 d0 = 0; d0 < 128; d0 += 1) …  in0[d0*512]         n0 = 128, n1 = 512
        →  for (i64 d0 = 0; d0 < n0; d0 += 1) … in0[d0*n1]

Compilers take as long for a copy as for a product, and a model packs, updates and sums weights of many sizes.
Loops with values carried in registers, such as sums of products, keep their constants, because constants make
them fast. Local buffers keep their size, and divisors are constants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from smelt.codegen.cpp.kernel import print_kernel
from smelt.codegen.cpp.scope import Function
from smelt.loops.ir import Origin
from smelt.nest.ir import Advance, Alloc, Kernel, SortRow
from smelt.nest.tree import walk
from smelt.records import dataclass, field, replace

_MARKED = re.compile("⟨([^⟩]+)⟩")
"""A number that equal functions may take as an argument, marked in the text."""

Numbers = tuple[str, ...]


@dataclass(slots=True)
class _Family:
    """Kernels whose text differs in ``numbers`` only: those of each, in textual order."""

    first: Function
    name: str
    origins: dict[str, None] = field(default_factory=dict)
    numbers: dict[Numbers, None] = field(default_factory=dict)
    made: tuple[Function, dict[Numbers, Numbers]] | None = None

    def add(self, numbers: Numbers, origins: Iterable[Origin]) -> None:
        self.numbers[numbers] = None
        self.origins.update(dict.fromkeys(map(str, origins)))
        self.made = None

    def function(self) -> tuple[Function, dict[Numbers, Numbers]]:
        """The common function, and the arguments of each for the numbers in which they differ."""
        if self.made is not None:
            return self.made
        parameters: dict[Numbers, str] = {}
        texts = []
        for column in zip(*self.numbers):
            same = len(set(column)) == 1
            texts.append(column[0] if same else parameters.setdefault(column, f"n{len(parameters)}"))
        remaining = iter(texts)
        body = _MARKED.sub(lambda _: next(remaining), self.first.body)
        declared = ", ".join(
            filter(None, [self.first.parameters, *(f"{_type(of[0])} {n}" for of, n in parameters.items())])
        )
        comments = "".join(f"// {_one_line(origin)}\n" for origin in self.origins)
        passed = zip(*parameters) if parameters else ((),) * len(self.numbers)
        function = replace(self.first, name=self.name, parameters=declared, body=body, before=comments)
        self.made = function, dict(zip(self.numbers, passed))
        return self.made


class Functions:
    """The printed functions of the kernels of a unit.

    ``_met``: kernels by identity, since a hash traverses the whole kernel.
    """

    def __init__(self) -> None:
        self._families: dict[tuple[str, str], _Family] = {}
        self._printed: dict[object, tuple[_Family, Numbers]] = {}
        self._met: dict[int, tuple[Kernel, _Family, Numbers]] = {}
        self._names: set[str] = set()

    def add(self, kernel: Kernel) -> tuple[Function, ...]:
        """Prints a kernel; returns those of its functions that are new and that later kernels cannot
        change.
        """
        if id(kernel) in self._met:
            return ()
        key = kernel.params, kernel.sizes, kernel.body
        printed = self._printed.get(key)
        if printed is not None:
            self._met[id(kernel)] = kernel, *printed
            return ()
        kinds = {type(stmt) for stmt in walk(kernel.body)}
        text = print_kernel(kernel, _marked, known=not kinds.isdisjoint((Alloc, Advance, SortRow)))
        any_size = not text.carries and SortRow not in kinds
        if not any_size:
            text = replace(text, body=_MARKED.sub(r"\1", text.body))
        skeleton = (text.parameters, _MARKED.sub("⟨⟩", text.body))
        new = skeleton not in self._families
        if new:
            self._families[skeleton] = _Family(text, _fresh(kernel.name, self._names))
        family = self._families[skeleton]
        numbers = tuple(_MARKED.findall(text.body))
        family.add(numbers, kernel.origins)
        self._printed[key] = family, numbers
        self._met[id(kernel)] = kernel, family, numbers
        if not new:
            return ()
        return text.calls if any_size else (*text.calls, family.function()[0])

    def __getitem__(self, kernel: Kernel) -> tuple[Function, Numbers]:
        """The function that computes the kernel, and its arguments after the kernel's buffers and sizes; all
        kernels of the unit have been added.
        """
        _, family, numbers = self._met[id(kernel)]
        function, passed = family.function()
        return function, passed[numbers]


def _marked(value: int | str) -> str:
    return f"⟨{value}⟩" if isinstance(value, str) or abs(value) > 1 else str(value)


def _type(number: str) -> str:
    """The C++ type of the argument for a number."""
    if number.lstrip("-").isdecimal():
        return "i64"
    return "f32" if number.endswith("f") else "f64"


def _fresh(wanted: str, taken: set[str]) -> str:
    base = "kernel_" + re.sub(r"\W+", "_", wanted).strip("_")
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name)
    return name


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip("\\")
