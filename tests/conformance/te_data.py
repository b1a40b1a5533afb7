"""What a random te program holds: sizes, axes, expressions and tensors, each with its numbers of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt import te
from smelt.script.module import PrimFunc

HALVES = ("float16", "bfloat16")

Numbers = torch.Tensor


def number_of(dim: Any, sizes: Mapping[str, int]) -> int:
    """What a size is."""
    if isinstance(dim, Sum):
        return sizes[dim.dim.name] + dim.more
    return dim if isinstance(dim, int) else sizes[dim.name]


class Sum:
    """A size that is another and a number."""

    def __init__(self, dim: Any, more: int) -> None:
        self.dim, self.more = dim, more


class Run:
    """One evaluation: what tensors hold, and what sizes are. ``wide``: floats are float64."""

    def __init__(self, given: Mapping[int, Numbers], sizes: Mapping[str, int], wide: bool) -> None:
        self.sizes, self.wide = sizes, wide
        self.known = {key: self.cast(value, value.dtype) for key, value in given.items()}

    def cast(self, value: Numbers, kind: torch.dtype) -> Numbers:
        return value.to(torch.float64 if self.wide and kind.is_floating_point else kind)

    def size(self, dim: Any) -> int:
        return number_of(dim, self.sizes)


@dataclass(slots=True)
class Axis:
    """An axis of a computation: te's, where it begins, its extent; its place among all of them."""

    te: Any
    begin: int
    extent: Any
    place: int

    def grid(self, run: Run, rank: int) -> Numbers:
        view = [1] * rank
        view[self.place] = -1
        return torch.arange(self.begin, self.begin + run.size(self.extent)).view(view)


@dataclass(slots=True)
class Both:
    """An expression of te, and all of its elements of torch. ``exact``: it is computed without rounding."""

    value: Any
    numbers: Callable[[Run], Numbers]
    exact: bool

    @property
    def kind(self) -> torch.dtype:
        return te.dtypes.kind_of(self.value.dtype)


@dataclass(slots=True)
class Made:
    """A tensor, and how its numbers are found."""

    tensor: te.Tensor
    shape: tuple[Any, ...]
    exact: bool
    numbers: Callable[[Run], Numbers] | None = None
    below: Any = None
    """Of a tensor of indices: what they are less than."""


@dataclass(slots=True)
class TeProgram:
    """Tensors in the order of the parameters, what is computed in the order in which it is."""

    seed: int
    params: list[Made]
    made: list[Made]
    sizes: list[dict[str, int]]
    unread: list[Made]
    """What torch reads and te does not, whose conditions never hold."""
    func: PrimFunc = field(init=False)

    def __post_init__(self) -> None:
        self.func = te.create_prim_func([each.tensor for each in self.params])

    def shape(self, made: Made, sizes: Mapping[str, int]) -> list[int]:
        return [number_of(dim, sizes) for dim in made.shape]

    def inputs(self, sizes: Mapping[str, int]) -> list[Numbers]:
        """Numbers for the parameters that are given, in order."""
        draw = torch.Generator().manual_seed(self.seed)
        given = [each for each in self.params if each.numbers is None]
        return [drawn(each, self.shape(each, sizes), draw) for each in given]

    def results(self, inputs: Sequence[Numbers], sizes: Mapping[str, int], wide: bool) -> list[Numbers]:
        """What the other parameters hold in the end, in order."""
        given = [each for each in self.params if each.numbers is None]
        known = {id(each.tensor): value for each, value in zip(given, inputs)}
        for each in self.unread:
            kind = te.dtypes.kind_of(each.tensor.dtype)
            known.setdefault(id(each.tensor), torch.zeros(self.shape(each, sizes), dtype=kind))
        run = Run(known, sizes, wide)
        for each in self.made:
            assert each.numbers is not None
            run.known[id(each.tensor)] = each.numbers(run)
        return [run.known[id(each.tensor)] for each in self.params if each.numbers is not None]


def drawn(made: Made, shape: Sequence[int], draw: torch.Generator) -> Numbers:
    kind = te.dtypes.kind_of(made.tensor.dtype)
    if made.below is not None:
        return torch.randint(0, max(made.below, 1), shape, generator=draw).to(kind)
    if kind.is_floating_point and not made.exact:
        return torch.randn(shape, generator=draw).to(kind)
    low, high = {torch.bool: (0, 2), torch.uint8: (0, 6)}.get(kind, (-3, 4))
    return torch.randint(low, high, shape, generator=draw).to(kind)


__all__ = ["HALVES", "Axis", "Both", "Made", "Numbers", "Run", "Sum", "TeProgram", "drawn"]
