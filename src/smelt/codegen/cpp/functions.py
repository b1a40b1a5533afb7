"""Kernels as C++ functions: equal ones as one, and copies of many sizes as one that takes the sizes.

    for (i64 d0 = 0; d0 < 64; d0 += 1)  …  in0[d0*256]         n0 = 64,  n1 = 256
    for (i64 d0 = 0; d0 < 128; d0 += 1) …  in0[d0*512]         n0 = 128, n1 = 512
        →  for (i64 d0 = 0; d0 < n0; d0 += 1) … in0[d0*n1]

Compilers take as long for a copy as for a product. A model packs a weight of each size, and updates it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from sympy.core.function import Application
from torch.utils._sympy.functions import Max, Min

from smelt.codegen.cpp.kernel import KernelText, print_kernel
from smelt.nest.ir import Accumulate, Carry, For, Kernel, SortRow
from smelt.nest.tree import accesses, walk

_MARKED = re.compile("⟨([0-9]+)⟩")
"""A number that equal functions may take as an argument, as it stands in the text while this is made."""


@dataclass(frozen=True, slots=True)
class Function:
    """A printed kernel. ``checked``: it returns an error number."""

    name: str
    parameters: str
    body: str
    checked: bool
    comments: str = ""

    @property
    def head(self) -> str:
        return f"{'i64' if self.checked else 'void'} {self.name}({self.parameters})"

    def text(self, linkage: str = "") -> str:
        return f"{self.comments}{linkage}{self.head} {{\n{self.body}\n}}"


@dataclass(slots=True)
class _Family:
    """Kernels whose text is the same but for ``numbers``: those of each, in the order in which they stand."""

    first: KernelText
    name: str
    origins: dict[str, None] = field(default_factory=dict)
    numbers: dict[tuple[int, ...], None] = field(default_factory=dict)

    def function(self) -> tuple[Function, dict[tuple[int, ...], tuple[int, ...]]]:
        """One function for all, and what each passes for the numbers in which they differ."""
        parameters: dict[tuple[int, ...], str] = {}
        texts = []
        for column in zip(*self.numbers):
            same = len(set(column)) == 1
            texts.append(str(column[0]) if same else parameters.setdefault(column, f"n{len(parameters)}"))
        remaining = iter(texts)
        body = _MARKED.sub(lambda _: next(remaining), self.first.body)
        declared = ", ".join(filter(None, [self.first.signature, *(f"i64 {n}" for n in parameters.values())]))
        comments = "".join(f"// {_one_line(origin)}\n" for origin in self.origins)
        passed = zip(*parameters) if parameters else ((),) * len(self.numbers)
        return (
            Function(self.name, declared, body, self.first.checked, comments),
            dict(zip(self.numbers, passed)),
        )


class Functions:
    """The functions of a unit: ``functions`` in order, and the parts of the header that they ``needs``."""

    def __init__(self, kernels: Iterable[Kernel]) -> None:
        self.needs: set[str] = set()
        self.functions: list[Function] = []
        families: dict[tuple[str, str], _Family] = {}
        printed: dict[object, tuple[_Family, tuple[int, ...]]] = {}
        names: set[str] = set()
        for kernel in kernels:
            key = _key(kernel)
            if key not in printed:
                text = print_kernel(kernel, _marked if _is_copy(kernel) else str)
                self.needs |= text.needs
                skeleton = (text.signature, _MARKED.sub("⟨⟩", text.body))
                if skeleton not in families:
                    families[skeleton] = _Family(text, _fresh(kernel.name, names))
                family = families[skeleton]
                numbers = tuple(map(int, _MARKED.findall(text.body)))
                family.numbers[numbers] = None
                family.origins.update(dict.fromkeys(kernel.origins))
                printed[key] = family, numbers
        made = {id(family): family.function() for family in families.values()}
        self.functions = [function for function, _ in made.values()]
        self._found = {key: (made[id(family)], numbers) for key, (family, numbers) in printed.items()}

    def __getitem__(self, kernel: Kernel) -> tuple[Function, tuple[int, ...]]:
        """The function that computes the kernel, and what it takes after the kernel's buffers and sizes."""
        (function, passed), numbers = self._found[_key(kernel)]
        return function, passed[numbers]


def _key(kernel: Kernel) -> object:
    return kernel.params, kernel.sizes, kernel.body


def _marked(value: int) -> str:
    return f"⟨{value}⟩" if value > 1 else str(value)


def _is_copy(kernel: Kernel) -> bool:
    """Whether it computes each element for itself, and no index divides: numbers that the compiler does not
    know cost nothing then.
    """
    if any(isinstance(stmt, (Accumulate, Carry, SortRow)) for stmt in walk(kernel.body)):
        return False
    exprs = [expr for _, index, _ in accesses(kernel.body) for expr in index]
    exprs += [
        bound for stmt in walk(kernel.body) if isinstance(stmt, For) for bound in (stmt.begin, stmt.end)
    ]
    return all(isinstance(each, (Max, Min)) for expr in exprs for each in expr.atoms(Application))


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
